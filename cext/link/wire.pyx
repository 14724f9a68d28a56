# Wire: the socket half of a link: the one place that reads a socket, and the one that sends.
#
# A wire carries bytes and knows no protocol. It is plain, or a table of functions stands before the
# socket (TLS, tls_t): those two places ask which. Whoever reads does not know whether what was read
# is walked at once, and whoever has sent not whether the peer has it.
# Called by output.pyx and by the Wire of loop/.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* buf, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void* buf, size_t n, int flags)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT


cdef inline i64 wire_receive(wire_t* w, u8* p, u64 n) noexcept nogil:
    """Read up to n bytes into p. How many; 0 at the end of the connection; -EAGAIN when there are
    none now; another negative errno when it is lost."""
    cdef i64 k
    if w.tls != NULL:
        k = w.tls.read(w, p, n)
    else:
        k = c_recv(w.fd, p, n, MSG_DONTWAIT)
        if k < 0:
            k = -errno
    if k == -EINTR:
        k = -EAGAIN
    if k > 0:
        w.n_received_bytes += <u64>k
    return k


cdef inline bint wire_has_more(const wire_t* w) noexcept nogil:
    """Whether there is something to read that no event of the socket will tell of."""
    return w.tls != NULL and w.tls.pending(w)


cdef inline i64 wire_send(wire_t* w, const u8* p, u64 n) noexcept nogil:
    """Send up to n bytes at p. How many were taken; -EAGAIN when the wire is slow: it is blocked
    then, and the next send begins with the same bytes; another negative errno when it is lost."""
    cdef i64 k
    while True:
        if w.tls != NULL:
            k = w.tls.write(w, p, n)
        else:
            k = c_send(w.fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT)
            if k < 0:
                k = -errno
        if k != -EINTR:
            break
    if k == -EAGAIN:
        w.is_blocked = True
    elif k > 0:
        w.n_sent_bytes += <u64>k
    return k


cdef u64 link_whole(const link_t* l, const u8* p, u64 n) noexcept nogil:
    """Where in n bytes at p, which begin with a frame, the last whole one ends."""
    cdef u64 at = 0, size
    while at < n:
        size = l.protocol.frame_size(l, p + at, n - at)
        if size == 0 or size > n - at:
            break
        at += size
    return at


# ---- what is left of a frame ---------------------------------------------------------------------

cdef bint wire_grow_left(wire_t* w, u64 cap) noexcept nogil:
    """Have room for so many bytes of a frame. Whether there was memory."""
    cdef u8* grown = <u8*>realloc(w.left, cap)
    if grown == NULL:
        return False
    w.left = grown
    w.cap_left = <u32>cap
    return True


cdef bint wire_keep(wire_t* w, const u8* p, u64 n) noexcept nogil:
    """Keep n bytes at p, which may be kept ones, for the next read. Whether there was memory."""
    if n == 0:
        if w.cap_left > 4096:
            wire_drop_left(w)
        w.n_left = 0
        return True
    if n > w.cap_left and not wire_grow_left(w, n):
        return False
    memmove(w.left, p, n)
    w.n_left = <u32>n
    return True


cdef void wire_drop_left(wire_t* w) noexcept nogil:
    free(w.left)
    w.left = NULL
    w.n_left = w.cap_left = 0
