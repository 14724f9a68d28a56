# Channel: a connection to another node, plain or with TLS: the one place here that reads a socket,
# and the one that sends.
#
# TLS is a table of functions (tls_t) that `lavinmq._tls` hands over, which is loaded only when the
# nodes have certificates. A connection belongs to one thread at a time; another one may shut the
# socket down, which ends whatever waits for it.
# Called by peer.pyx, follow.pyx and door.pyx, without the GIL; the class, by Python.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* p, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void* p, size_t n, int flags)
    int c_shutdown "shutdown"(int fd, int how)
    enum:
        MSG_DONTWAIT
        MSG_MORE
        MSG_NOSIGNAL
        SHUT_RDWR

cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int c_poll "poll"(pollfd* fds, unsigned long n, int timeout_ms)
    enum:
        POLLIN
        POLLOUT

cdef enum:
    CHANNEL_PIECE = 262144      # bytes that Python gets at once


cdef inline ssize_t channel_result(i64 k) noexcept nogil:
    """What a function of tls_t has come to, as a system call says it."""
    if k >= 0:
        return <ssize_t>k
    # What has failed is no disk; the session knows it in words.
    set_errno(EAGAIN if k == -EAGAIN else EPROTO)
    return -1


cdef inline ssize_t channel_recv(wire_t* w, void* p, size_t n) noexcept nogil:
    """As recv, without waiting."""
    if w.tls != NULL:
        return channel_result(w.tls.read(w, <u8*>p, n))
    return c_recv(w.fd, p, n, MSG_DONTWAIT)


cdef inline ssize_t channel_send(wire_t* w, const void* p, size_t n, bint has_more) noexcept nogil:
    """As send, without waiting. After EAGAIN the next one has to begin with the same bytes.

    Args: has_more: something comes behind it at once."""
    if w.tls != NULL:
        return channel_result(w.tls.write(w, <const u8*>p, n))
    return c_send(w.fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL | (MSG_MORE if has_more else 0))


cdef inline int channel_wait_ms(const wire_t* w, int timeout_ms) noexcept nogil:
    """For how long a poll for input may wait: not at all, when there is some that it cannot see."""
    return 0 if w.tls != NULL and w.tls.pending(w) else timeout_ms


cdef int channel_wait(wire_t* w, short events, int timeout_ms) noexcept nogil:
    """Wait until it may be read, or sent to. As poll: 1, 0 when the time is over, or -1."""
    cdef pollfd one
    if events == POLLIN and channel_wait_ms(w, 1) == 0:
        return 1
    one.fd, one.events, one.revents = w.fd, events, 0
    return c_poll(&one, 1, timeout_ms)


cdef bint channel_send_all(wire_t* w, const u8* p, u64 n, int timeout_ms) noexcept nogil:
    """Send all of it, and wait for room. Whether it is sent; else errno says why not."""
    cdef u64 at = 0
    cdef i64 until_ns = clock_ns() + timeout_ms * <i64>1000000
    cdef ssize_t k
    cdef int left_ms
    while at < n:
        k = channel_send(w, p + at, n - at, False)
        if k > 0:
            at += <u64>k
            continue
        if k == 0 or errno not in (EAGAIN, EINTR):
            return False
        left_ms = timeout_ms if timeout_ms < 0 else <int>((until_ns - clock_ns()) // 1000000)
        if left_ms <= 0 and timeout_ms >= 0:
            set_errno(ETIMEDOUT)
            return False
        if channel_wait(w, POLLOUT, left_ms) < 0 and errno != EINTR:
            return False
    return True


cdef int channel_open(wire_t* w, sock) except -1:
    """Be the one of a Channel, or of a socket or its descriptor."""
    if isinstance(sock, Channel):
        w[0] = (<Channel>sock).w
    else:
        w.tls = NULL
        w.fd = sock if isinstance(sock, int) else sock.fileno()
    return 0


cdef str channel_words(sock, int error, str at_end):
    """Why a connection has ended, for people. Args: error: 0: the other node has closed it."""
    if error == EPROTO and isinstance(sock, Channel):
        return sock.session.failure or os.strerror(error)
    return os.strerror(error) if error else at_end


cdef class _Connection:
    """A connection to another node that is used as a socket is, over one. See the stub."""
    cdef object sock

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self.sock.fileno()

    def settimeout(self, seconds) -> None:
        """Have `recv` and `sendall` end after so many seconds; None: wait."""
        self.sock.settimeout(seconds)

    def shutdown(self, int how) -> None:
        """Shut the socket down, as another thread may. Raises: OSError."""
        self.sock.shutdown(how)

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self.sock.close()


cdef class Channel(_Connection):
    """A connection with TLS. See the stub."""
    cdef wire_t w
    cdef int timeout_ms         # below 0: none
    cdef readonly object session

    def __cinit__(self, sock, session):
        cdef const tls_provider_t* given = <const tls_provider_t*>PyCapsule_GetPointer(
            session.wire(), TLS_PROVIDER)
        self.sock, self.session = sock, session
        self.w.fd = sock.fileno()
        self.w.tls, self.w.tls_session = given.calls, given.session
        self.settimeout(sock.gettimeout())

    def settimeout(self, seconds) -> None:
        """Have `recv` and `sendall` end after so many seconds; None: wait."""
        self.timeout_ms = -1 if seconds is None else int(seconds * 1000)

    def recv(self, int n) -> bytes:
        """Up to n bytes, b"" at the end. Raises: OSError."""
        cdef ssize_t k
        cdef int rc, error
        if n > CHANNEL_PIECE:
            n = CHANNEL_PIECE
        data = PyBytes_FromStringAndSize(NULL, n)
        cdef char* p = data
        while True:
            with nogil:
                k = channel_recv(&self.w, p, n)
                error = errno
                rc = 1
                if k < 0 and error == EAGAIN:
                    rc = channel_wait(&self.w, POLLIN, self.timeout_ms)
            if k >= 0:
                return p[:k]
            if rc == 0:
                self.fail(ETIMEDOUT)
            if error != EAGAIN and error != EINTR:
                self.fail(error)

    def sendall(self, data) -> None:
        """Send all of it. Raises: OSError."""
        cdef const u8[::1] view = data
        cdef u64 n = <u64>view.shape[0]
        cdef bint is_sent
        cdef int error
        if n == 0:
            return
        with nogil:
            is_sent = channel_send_all(&self.w, &view[0], n, self.timeout_ms)
            error = errno
        if not is_sent:
            self.fail(error)

    cdef int fail(self, int error) except -1:
        """Raise what has ended it."""
        if error == ETIMEDOUT:
            raise TimeoutError(error, os.strerror(error))
        raise OSError(error, channel_words(self, error, ""))

    def close(self) -> None:
        """Say goodbye, as far as the kernel takes it, and close. Idempotent."""
        self.session.shutdown()
        self.session.close()
        self.sock.close()
