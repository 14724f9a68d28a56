# Blocks: a connection to another node that is used as a socket is, whose stream goes one way in
# blocks (pack.pyx): what a node gets that joins.
#
# The other way everything goes as it is. Called by Python; while it packs and waits, without the
# GIL.
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef extern from "Python.h":
    enum:
        PyBUF_READ

_PACKING = {"off": PACK_NEVER, "auto": PACK_AUTO, "on": PACK_ALWAYS}


cdef class BlockSender(_Connection):
    """The end whose stream goes in blocks. See the stub."""
    cdef packer_t pack
    cdef readonly int n_sent    # bytes of the stream

    def __cinit__(self, sock, str compression):
        self.sock = sock
        self.pack.mode = _PACKING[compression]

    def __dealloc__(self):
        packer_close(&self.pack)

    def recv(self, int n) -> bytes:
        """Up to n bytes, b"" at the end. Raises: OSError."""
        return self.sock.recv(n)

    def sendall(self, data) -> None:
        """Send all of it. Raises: OSError."""
        cdef const u8[::1] view = data
        cdef u64 n = <u64>view.shape[0], at = 0, k
        while at < n:
            if packer_is_on(&self.pack):
                k = n - at if n - at < BLOCK_PACKED else BLOCK_PACKED
                with nogil:
                    memcpy(self.pack.plain + BLOCK_HEAD, &view[at], k)
                    packer_block(&self.pack, k)
                self.send_out()
            else:
                k = n - at if n - at < BLOCK_PLAIN else BLOCK_PLAIN
                packer_plain(&self.pack, k)
                self.send_out()
                self.send(view[at:at + k])
            at += k
            self.n_sent += k

    cdef int send_out(self) except -1:
        """Send what the packer has."""
        return self.send(PyMemoryView_FromMemory(
            <char*>self.pack.out, <Py_ssize_t>self.pack.n_out, PyBUF_READ))

    cdef int send(self, data) except -1:
        """Send something as it is, and learn of the link."""
        cdef int fd = self.sock.fileno()
        packer_waits(&self.pack, fd)
        self.sock.sendall(data)
        self.pack.n_wire += <u64>len(data)
        packer_waited(&self.pack, fd)
        return 0

    @property
    def n_wire(self) -> int:
        """Bytes that were sent for it."""
        return self.pack.n_wire


cdef class BlockReceiver(_Connection):
    """The end to which a stream comes in blocks. See the stub."""
    cdef unpacker_t unpack
    cdef u8* plain
    cdef u64 n_plain            # bytes in it
    cdef u64 at                 # of these, that were taken
    cdef str wrong              # what was wrong with a block: nothing comes behind it

    def __cinit__(self, sock):
        self.sock = sock
        self.unpack.is_on = True
        self.plain = <u8*>malloc(BLOCK_PACKED)
        if self.plain == NULL:
            raise MemoryError

    def __dealloc__(self):
        unpacker_close(&self.unpack)
        free(self.plain)

    def sendall(self, data) -> None:
        """Send all of it. Raises: OSError."""
        self.sock.sendall(data)

    def recv(self, u64 n) -> bytes:
        """Up to n bytes, b"" at the end. Raises: OSError, EBADMSG: a block makes no sense."""
        while self.at == self.n_plain:
            if not self.more():
                return b""
        n = self.n_plain - self.at if self.n_plain - self.at < n else n
        self.at += n
        return (<char*>self.plain + (self.at - n))[:n]

    cdef bint more(self) except -1:
        """Receive something. False: that was the end."""
        cdef u64 most
        if self.wrong is not None:
            raise OSError(EBADMSG, self.wrong)
        cdef u8* to = unpacker_place(&self.unpack, self.plain, BLOCK_PACKED, &most)
        cdef bytes come = self.sock.recv(most)
        cdef const u8* raw = come
        cdef u64 n = <u64>len(come)
        cdef i64 k
        cdef int error
        if n == 0:
            return False
        with nogil:
            memcpy(to, raw, n)
            k = unpacker_take(&self.unpack, self.plain, n)
            error = errno
        if k < 0:
            self.wrong = (unpacker_words(&self.unpack) if error == EBADMSG
                          else os.strerror(error))
            raise OSError(error, self.wrong)
        self.n_plain, self.at = <u64>k, 0
        return True
