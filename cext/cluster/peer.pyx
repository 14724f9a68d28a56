# Peer: sends a follower what it has not got, and hears what it has on disk. A thread for each.
#
# The thread copies from the ring under the feed's lock, and sends from its own block: the leader
# never waits for a follower. One that is so far behind that the ring has lost what comes next ends.
# Called by door.pyx, without the GIL.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* p, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void* p, size_t n, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

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
    PEER_BLOCK = 262144
    PEER_ACKS = 512             # bytes of answers that are read at once
    PEER_WAIT_MS = 1000

cdef enum peer_end_t:           # why a peer has ended
    PEER_CLOSED = 0             # the leader wants no more of it
    PEER_GONE = 1               # the connection, errno says why; 0: the follower has closed it
    PEER_OVERRUN = 2            # it is too far behind
    PEER_LIES = 3               # it has what was not sent, or less than before


cdef int peer_take_acks(peer_t* p, const u8* acks, u64 n) noexcept nogil:
    """Take in what it says to have, 8 bytes each; the last counts. PEER_CLOSED, or PEER_LIES."""
    cdef feed_t* f = p.feed
    cdef u64 acked = le64(acks + n - 8)
    cdef bint is_news
    if acked < p.acked or acked > p.cursor:
        return PEER_LIES
    pthread_mutex_lock(&f.lock)
    p.acked = acked
    p.acked_ns = clock_ns()
    p.behind_ns = p.acked_ns if acked < f.ring.head else 0
    is_news = feed_look(f) and f.awaited != 0
    if f.is_behind:
        feed_look_behind(f)
        is_news |= not f.is_behind
    pthread_mutex_unlock(&f.lock)
    if is_news:
        wake(f.copied_fd)
    return PEER_CLOSED


cdef i64 peer_take(peer_t* p, u8* block) noexcept nogil:
    """Copy what comes next for it; the number of bytes, or -1 when that is lost."""
    cdef feed_t* f = p.feed
    cdef u64 n
    pthread_mutex_lock(&f.lock)
    if p.cursor < f.ring.first:
        pthread_mutex_unlock(&f.lock)
        return -1
    n = f.ring.head - p.cursor
    n = PEER_BLOCK if n > PEER_BLOCK else n
    memcpy(block, ring_at(&f.ring, p.cursor), n)
    p.cursor += n
    p.is_waiting = n == 0
    if n and p.behind_ns == 0:
        p.behind_ns = clock_ns()
    pthread_mutex_unlock(&f.lock)
    return <i64>n


cdef int peer_serve_by(peer_t* p, u8* block) noexcept nogil:
    """The thread's work until it ends; a peer_end_t."""
    cdef pollfd fds[2]
    cdef u8 acks[PEER_ACKS]
    cdef u64 n_acks = 0, whole, value
    cdef i64 n = 0, at = 0
    cdef ssize_t k
    cdef bint is_stuck
    fds[0].fd, fds[1].fd = p.fd, p.wake_fd
    fds[1].events = POLLIN
    while not p.is_over:
        if at == n:
            at = 0
            n = peer_take(p, block)
            if n < 0:
                return PEER_OVERRUN
        is_stuck = at == n
        if not is_stuck:
            k = c_send(p.fd, block + at, <size_t>(n - at), MSG_DONTWAIT | MSG_NOSIGNAL)
            if k >= 0:
                at += k
            elif errno == EAGAIN:
                is_stuck = True
            elif errno != EINTR:
                return PEER_GONE
        if is_stuck:
            fds[0].events = POLLIN | (POLLOUT if at < n else 0)
            fds[0].revents = fds[1].revents = 0
            c_poll(fds, 2, PEER_WAIT_MS)
            if fds[1].revents and c_read(p.wake_fd, &value, 8) < 0 and errno not in (EAGAIN, EINTR):
                return PEER_GONE
        k = c_recv(p.fd, acks + n_acks, PEER_ACKS - n_acks, MSG_DONTWAIT)
        if k == 0:
            set_errno(0)
            return PEER_GONE
        if k < 0:
            if errno != EAGAIN and errno != EINTR:
                return PEER_GONE
            continue
        n_acks += <u64>k
        whole = n_acks // 8 * 8
        if whole and peer_take_acks(p, acks, whole) != PEER_CLOSED:
            return PEER_LIES
        memcpy(acks, acks + whole, n_acks - whole)
        n_acks -= whole
    return PEER_CLOSED


cdef int peer_serve(peer_t* p) noexcept nogil:
    """The same with a block of its own."""
    cdef u8* block = <u8*>malloc(PEER_BLOCK)
    cdef int why
    if block == NULL:
        return PEER_GONE
    why = peer_serve_by(p, block)
    free(block)
    return why
