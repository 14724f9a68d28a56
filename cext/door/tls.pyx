# TLS: a wire that reads and writes through an ssl.SSLSocket, with the GIL (decision 0016).
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef enum:
    TLS_RECORD = 16384          # plain bytes of a full record; more are likely to follow one


@cython.final
cdef class SocketTls:
    """TLS by way of `tls`, an SSLSocket whose handshake is over. `failure` says why it has failed,
    empty for its orderly end, None while it lives."""
    cdef tls_t calls
    cdef object tls
    cdef readonly object failure
    cdef object wants_read      # ssl.SSLWantReadError: a broker without TLS has not loaded it
    cdef object wants_write

    def __cinit__(self, tls):
        import ssl
        self.tls = tls
        self.wants_read, self.wants_write = ssl.SSLWantReadError, ssl.SSLWantWriteError
        self.calls.read = tls_read
        self.calls.write = tls_write
        self.calls.pending = tls_pending

    cdef i64 receive(self, wire_t* w, u8* p, u64 n):
        """Fill n bytes at p as far as there is something."""
        cdef u64 got = 0
        cdef u64 k
        if n > BLOCK_SIZE:
            n = BLOCK_SIZE              # a turn: the rest of a large message comes in others
        while got < n and self.failure is None:
            try:
                k = self.tls.read(n - got, PyMemoryView_FromMemory(
                    <char*>p + got, <Py_ssize_t>(n - got), PyBUF_WRITE))
            except self.wants_read:
                break
            except self.wants_write:
                w.read_awaits_room = True
                break
            except Exception as error:
                self.failure = tls_reason(error)
                break
            if k == 0:
                self.failure = ""
            got += k
            # OpenSSL takes one record at a time from the kernel: what it has not taken is shown by
            # an event, and asking costs an exception.
            if k < TLS_RECORD and not self.tls.pending():
                break
        if got:
            return <i64>got             # and the failure the next time
        return -EAGAIN if self.failure is None else (-EIO if self.failure else 0)

    cdef i64 send(self, wire_t* w, const u8* p, u64 n):
        """Send what it takes. A send that did not end has to be repeated with the same bytes, at
        any place, and may bring more: that is what the output of a link does."""
        try:
            return self.tls.write(PyMemoryView_FromMemory(<char*>p, <Py_ssize_t>n, PyBUF_READ))
        except self.wants_write:
            return -EAGAIN
        except self.wants_read:
            w.send_awaits_input = True
            return -EAGAIN
        except BaseException as why:    # what it has taken is not known
            self.failure = tls_reason(why)
            return -EIO


cdef i64 tls_read(wire_t* w, u8* p, u64 n) noexcept with gil:
    return (<SocketTls>w.tls_session).receive(w, p, n)


cdef i64 tls_write(wire_t* w, const u8* p, u64 n) noexcept with gil:
    return (<SocketTls>w.tls_session).send(w, p, n)


cdef bint tls_pending(const wire_t* w) noexcept with gil:
    cdef SocketTls session = <SocketTls>w.tls_session
    return session.failure is not None or session.tls.pending() > 0


cdef object tls_reason(error):
    """What an exception of the TLS library says, without its place in the library's source."""
    return f"TLS: {getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error}"
