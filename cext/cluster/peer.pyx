# Peer: sends a follower what it has not got, and hears what it has on disk. A thread for each.
#
# The leader never waits for a follower: one that is so far behind that the ring has lost what comes
# next ends. What is little and awaited by nobody is sent a moment later, with what comes meanwhile.
# What is to be packed is copied first: it is the peer's own from then on.
# Called by door.pyx, without the GIL.
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t c_sendfile "sendfile"(int to, int fd, i64* at, size_t n)

cdef enum:
    PEER_PIECE = 262144         # bytes that are sent at once
    PEER_ACKS = 512             # bytes of answers that are read at once
    PEER_WAIT_MS = 1000
    PEER_LINGER_MS = 2

cdef enum peer_end_t:           # why a peer has ended
    PEER_CLOSED = 0             # the leader wants no more of it
    PEER_GONE = 1               # the connection, errno says why; 0: the follower has closed it
    PEER_OVERRUN = 2            # it is too far behind
    PEER_LIES = 3               # it has what was not sent, or less than before


cdef int peer_take_acks(peer_t* p, const u8* acks, u64 n) noexcept nogil:
    """Take in what it says to have, 8 bytes each; the last counts. What it has said before is a
    beat: nothing new is on its disk, but it is there. PEER_CLOSED, or PEER_LIES."""
    cdef feed_t* f = p.feed
    cdef u64 acked = le64(acks + n - 8)
    cdef bint is_news
    if acked < p.acked or acked > p.given:
        return PEER_LIES
    pthread_mutex_lock(&f.lock)
    p.heard_ns = clock_ns()
    if acked == p.acked:
        pthread_mutex_unlock(&f.lock)
        return PEER_CLOSED
    p.acked = acked
    p.behind_ns = p.heard_ns if acked < f.ring.head else 0
    is_news = feed_look(f) and f.awaited != 0
    if f.is_behind:
        feed_look_behind(f)
        is_news |= not f.is_behind
    pthread_mutex_unlock(&f.lock)
    if is_news:
        wake(f.copied_fd)
    return PEER_CLOSED


cdef struct piece_t:            # what is sent at once
    u64 n
    int fd                      # the file that it is in, -1 = it is in the ring's memory
    u32 file                    # the same in the keeper's table
    i64 at                      # there
    flag_t has_more             # something comes behind it


cdef i64 peer_take(peer_t* p, bint has_lingered, piece_t* piece) noexcept nogil:
    """Begin to send what comes next: the number of bytes, which stay as they are until peer_sent; 0
    when there is none, or little that nobody waits for; -1 when it is lost."""
    cdef feed_t* f = p.feed
    cdef const kept_t* kept
    cdef u64 n
    pthread_mutex_lock(&f.lock)
    if p.cursor < f.ring.first:
        pthread_mutex_unlock(&f.lock)
        return -1
    n = f.ring.head - p.cursor
    p.wants = WANTS_NOTHING
    if n == 0:
        p.wants = WANTS_ANYTHING
    elif n < FEED_MUCH and f.marked <= p.cursor and not has_lingered:
        p.wants = WANTS_MUCH
        n = 0
    piece.fd = -1
    piece.has_more = False
    kept = keeper_next(&f.keeper, p.cursor) if n else NULL
    if kept != NULL and kept.position <= p.cursor:
        piece.file = kept.file
        piece.fd = f.keeper.files[kept.file].fd
        f.keeper.files[kept.file].n_uses += 1
        piece.at = kept.at + <i64>(p.cursor - kept.position)
        n = kept.position + kept.n - p.cursor
    elif kept != NULL and kept.position < p.cursor + n:
        piece.has_more = True
        n = kept.position - p.cursor
    n = PEER_PIECE if n > PEER_PIECE else n
    piece.n = n
    p.is_sending = n != 0 and piece.fd < 0
    if n and p.behind_ns == 0:
        p.behind_ns = clock_ns()
    pthread_mutex_unlock(&f.lock)
    return <i64>n


cdef void peer_sent(peer_t* p, const piece_t* piece, u64 n) noexcept nogil:
    """So much of it is with the kernel; the rest is begun with again. errno stays."""
    cdef int error = errno
    pthread_mutex_lock(&p.feed.lock)
    p.cursor += n
    p.is_sending = False
    if piece.fd >= 0:
        keeper_let_go(&p.feed.keeper, piece.file)
    pthread_mutex_unlock(&p.feed.lock)
    set_errno(error)


cdef ssize_t peer_send_kept(peer_t* p, const piece_t* piece) noexcept nogil:
    """Send what is in a file, zeros if a failing disk has had it cut, as is said behind it. The
    number of bytes, or -1 with errno."""
    cdef u8 zeros[4096]
    cdef i64 at = piece.at
    cdef ssize_t k
    if p.wire.tls != NULL:
        return peer_send_read(p, piece)
    k = c_sendfile(p.wire.fd, piece.fd, &at, piece.n)
    if k != 0:
        return k
    memset(zeros, 0, sizeof(zeros))
    return channel_send(&p.wire, zeros, sizeof(zeros) if piece.n > sizeof(zeros) else piece.n,
                        False)


cdef int peer_read(const piece_t* piece, u8* to) noexcept nogil:
    """Read what is in a file, zeros behind its end. 0, or -1 with errno."""
    cdef u64 done = 0
    cdef ssize_t k
    while done < piece.n:
        k = c_pread(piece.fd, to + done, piece.n - done, piece.at + <i64>done)
        if k < 0 and errno == EINTR:
            continue
        if k < 0:
            return -1
        if k == 0:
            memset(to + done, 0, piece.n - done)
            break
        done += <u64>k
    return 0


cdef ssize_t peer_send_read(peer_t* p, const piece_t* piece) noexcept nogil:
    """The same for TLS, which needs the bytes themselves: once they are read they stay as they are
    until they are sent."""
    if p.block == NULL:
        p.block = <u8*>malloc(PEER_PIECE)
        if p.block == NULL:
            return -1
    if p.block_at != p.cursor or not p.n_block:
        if peer_read(piece, p.block):
            return -1
        p.block_at, p.n_block = p.cursor, piece.n
    return channel_send(&p.wire, p.block, p.n_block, piece.has_more)


cdef i64 peer_gather(peer_t* p, bint has_lingered) noexcept nogil:
    """Copy what comes next, up to a block of it: the number of bytes, 0 as peer_take; -1 when it is
    lost, -2 with errno when it cannot be read."""
    cdef u8* to = p.pack.plain + BLOCK_HEAD
    cdef u64 done = 0
    cdef piece_t piece
    cdef i64 n
    cdef int rc
    while done < BLOCK_PACKED:
        n = peer_take(p, has_lingered or done != 0, &piece)
        if n <= 0:
            return <i64>done if done else n
        piece.n = BLOCK_PACKED - done if piece.n > BLOCK_PACKED - done else piece.n
        rc = 0
        if piece.fd >= 0:
            rc = peer_read(&piece, to + done)
        else:
            memcpy(to + done, ring_at(&p.feed.ring, p.cursor), piece.n)
        peer_sent(p, &piece, 0 if rc else piece.n)
        if rc:
            return -2
        done += piece.n
    return <i64>done


cdef int peer_send_out(peer_t* p, bint has_more, bint* is_stuck) noexcept nogil:
    """Send what the packer has, as peer_send."""
    cdef ssize_t k = channel_send(&p.wire, p.pack.out, p.pack.n_out, has_more)
    if k < 0 and errno != EAGAIN and errno != EINTR:
        return PEER_GONE
    if k > 0:
        p.pack.out += k
        p.pack.n_out -= <u64>k
        p.pack.n_wire += <u64>k
    is_stuck[0] = p.pack.n_out != 0
    return PEER_CLOSED


cdef int peer_send_block(peer_t* p, bint* is_stuck, bint* has_lingered) noexcept nogil:
    """Pack what there is, and send it, as peer_send."""
    cdef i64 n = peer_gather(p, has_lingered[0])
    if n < 0:
        return PEER_OVERRUN if n == -1 else PEER_GONE
    if n == 0:
        return PEER_CLOSED
    has_lingered[0] = False
    p.given = p.cursor
    packer_block(&p.pack, <u64>n)
    return peer_send_out(p, False, is_stuck)


cdef int peer_send(peer_t* p, bint* is_stuck, bint* has_lingered) noexcept nogil:
    """Send what there is and the kernel takes at once. PEER_CLOSED, or why it has ended."""
    cdef piece_t piece
    cdef i64 n
    cdef ssize_t k
    cdef int error
    is_stuck[0] = False
    if p.pack.n_out:
        return peer_send_out(p, p.plain_left != 0, is_stuck)
    if p.is_in_blocks and not p.plain_left and packer_is_on(&p.pack):
        return peer_send_block(p, is_stuck, has_lingered)
    n = peer_take(p, has_lingered[0], &piece)
    if n < 0:
        return PEER_OVERRUN
    if n == 0:
        return PEER_CLOSED
    if p.is_in_blocks:
        if not p.plain_left:
            p.plain_left = BLOCK_PLAIN
            packer_plain(&p.pack, BLOCK_PLAIN)
            error = peer_send_out(p, True, is_stuck)
            if error != PEER_CLOSED or is_stuck[0]:
                peer_sent(p, &piece, 0)
                return error
        n = <i64>p.plain_left if n > <i64>p.plain_left else n
        piece.n = <u64>n
    p.given = p.cursor + <u64>n
    if piece.fd >= 0:
        k = peer_send_kept(p, &piece)
    else:
        k = channel_send(&p.wire, ring_at(&p.feed.ring, p.cursor), <size_t>n, piece.has_more)
    error = errno
    peer_sent(p, &piece, <u64>k if k > 0 else 0)
    has_lingered[0] = False
    if k > 0:
        p.pack.n_wire += <u64>k
        p.plain_left -= <u64>k if p.is_in_blocks else 0
    # TLS that waits for room does not tell how much of it has gone.
    if k > 0 or p.wire.tls == NULL:
        p.given = p.cursor
    if k < 0 and error != EAGAIN and error != EINTR:
        set_errno(error)
        return PEER_GONE
    is_stuck[0] = k < n
    return PEER_CLOSED


cdef int peer_hear(peer_t* p, u8* acks, u64* n_acks) noexcept nogil:
    """Take in what the follower has said. PEER_CLOSED, or why it has ended."""
    cdef u64 whole
    cdef ssize_t k = channel_recv(&p.wire, acks + n_acks[0], PEER_ACKS - n_acks[0])
    if k == 0:
        set_errno(0)
        return PEER_GONE
    if k < 0:
        return PEER_CLOSED if errno == EAGAIN or errno == EINTR else PEER_GONE
    n_acks[0] += <u64>k
    whole = n_acks[0] // 8 * 8
    if whole and peer_take_acks(p, acks, whole) != PEER_CLOSED:
        return PEER_LIES
    n_acks[0] -= whole
    memcpy(acks, acks + whole, n_acks[0])
    return PEER_CLOSED


cdef int peer_serve(peer_t* p) noexcept nogil:
    """The thread's work until it ends; a peer_end_t."""
    cdef pollfd fds[2]
    cdef u8 acks[PEER_ACKS]
    cdef u64 n_acks = 0, value
    cdef bint is_stuck = False, has_lingered = False
    cdef int end, wait_ms
    fds[0].fd, fds[1].fd = p.wire.fd, p.wake_fd
    fds[1].events = POLLIN
    if fcntl(p.wire.fd, F_SETFL, fcntl(p.wire.fd, F_GETFL, 0) | O_NONBLOCK) < 0:
        return PEER_GONE
    while not p.is_over:
        end = peer_send(p, &is_stuck, &has_lingered)
        if end != PEER_CLOSED:
            return end
        if is_stuck or p.wants != WANTS_NOTHING:
            fds[0].events = POLLIN | (POLLOUT if is_stuck else 0)
            fds[0].revents = fds[1].revents = 0
            wait_ms = PEER_LINGER_MS if p.wants == WANTS_MUCH else PEER_WAIT_MS
            if is_stuck:
                packer_waits(&p.pack, p.wire.fd)
            c_poll(fds, 2, channel_wait_ms(&p.wire, wait_ms))
            if is_stuck:
                packer_waited(&p.pack, p.wire.fd)
            has_lingered = p.wants == WANTS_MUCH
            if fds[1].revents and c_read(p.wake_fd, &value, 8) < 0 and errno not in (EAGAIN, EINTR):
                return PEER_GONE
        end = peer_hear(p, acks, &n_acks)
        if end != PEER_CLOSED:
            return end
    return PEER_CLOSED
