# TLS of a wire by an object of Python that has read, write and pending of an ssl.SSLSocket.
import ssl

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

cdef enum:
    TLS_RECORD = 16384          # plain bytes of a full record; more are likely to follow one


@cython.final
cdef class SocketTls:
    """TLS by way of `tls`. `failure` says why it has failed, empty for its orderly end, None while
    it lives."""
    cdef tls_t calls
    cdef tls_provider_t provider
    cdef object tls
    cdef readonly object failure

    def __cinit__(self, tls):
        self.tls = tls
        self.calls.read = tls_read
        self.calls.write = tls_write
        self.calls.pending = tls_pending
        self.provider.calls, self.provider.session = &self.calls, <void*>self

    def wire(self):
        return PyCapsule_New(&self.provider, TLS_PROVIDER, NULL)

    cdef i64 receive(self, u8* p, u64 n):
        """Fill n bytes at p as far as there is something."""
        cdef u64 got = 0
        cdef u64 k
        if n > BLOCK_SIZE:
            n = BLOCK_SIZE              # a turn: the rest of a large message comes in others
        while got < n and self.failure is None:
            try:
                k = self.tls.read(n - got, PyMemoryView_FromMemory(
                    <char*>p + got, <Py_ssize_t>(n - got), PyBUF_WRITE))
            except ssl.SSLWantReadError:
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

    cdef i64 send(self, const u8* p, u64 n):
        """Send what it takes. A send that did not end has to be repeated with the same bytes, at
        any place, and may bring more: that is what the output of a link does."""
        try:
            return self.tls.write(PyMemoryView_FromMemory(<char*>p, <Py_ssize_t>n, PyBUF_READ))
        except ssl.SSLWantWriteError:
            return -EAGAIN
        except BaseException as why:    # what it has taken is not known
            self.failure = tls_reason(why)
            return -EIO


cdef i64 tls_read(wire_t* w, u8* p, u64 n) noexcept with gil:
    return (<SocketTls>w.tls_session).receive(p, n)


cdef i64 tls_write(wire_t* w, const u8* p, u64 n) noexcept with gil:
    return (<SocketTls>w.tls_session).send(p, n)


cdef bint tls_pending(const wire_t* w) noexcept with gil:
    cdef SocketTls session = <SocketTls>w.tls_session
    return session.failure is not None or session.tls.pending() > 0


cdef object tls_reason(error):
    """What an exception of the TLS library says, without its place in the library's source."""
    return f"TLS: {getattr(error, 'reason', None) or getattr(error, 'strerror', None) or error}"
