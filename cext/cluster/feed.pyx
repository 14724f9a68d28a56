# Feed: hears of each change of the leader's files, and knows which followers have how much of it.
#
# Bytes are copied when the change is noted, by the thread that made it: what is sent later is what
# was there then. Long appends stay where they are (kept.pyx). Peers (peer.pyx) send all straight
# from there, each in a thread of its own; what one is sending is not written over.
# Called by the broker's compiled half, by way of observer_t and copies_t.

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initval, int flags)
    enum:
        EFD_CLOEXEC
        EFD_NONBLOCK

cdef extern from "<unistd.h>" nogil:
    ssize_t c_write "write"(int fd, const void* buf, size_t n)
    ssize_t c_read "read"(int fd, void* buf, size_t n)

cdef enum:
    FEED_MUCH = 131072          # bytes that are sent at once even if nobody waits for them

cdef enum wanted_t:             # what a peer's thread sleeps for
    WANTS_NOTHING = 0           # it does not
    WANTS_ANYTHING = 1
    WANTS_MUCH = 2              # FEED_MUCH, or something that is waited for

cdef struct feed_t:
    copies_t copies             # first: what the loop knows of it
    pthread_mutex_t lock        # of all below
    ring_t ring
    keeper_t keeper
    peer_t* peers
    u64 awaited                 # last position that the loop waits for, 0 = it does not
    u64 marked                  # position behind the last mark
    u64 common                  # position up to which all is where it has to be
    u64 told                    # up to where the disks of all have it, as marks tell the followers
    u64 changed                 # position behind the last change, marks do not count
    u64 woken                   # position up to which the peers have been told
    u32 least                   # copies that there have to be, the leader's own included
    u32 n_missing               # followers in sync that are not there
    int copied_fd               # tells the loop that what it waits for may be there
    int error                   # errno: what was changed could not be read
    flag_t is_behind            # a follower in sync is, by half of the ring

cdef struct peer_t:             # a follower that is connected
    feed_t* feed
    peer_t* next
    u64 cursor                  # position up to which the kernel has it
    u64 given                   # position up to which the follower may have it: not before that
    u64 acked                   # position up to which it is on the follower's disk
    i64 heard_ns                # when it said anything last
    i64 behind_ns               # since when it has been owing an answer, 0 = it owes none
    wire_t wire
    packer_t pack
    u64 began                   # position at which it has begun
    u64 plain_left              # bytes of the stream that go as they are before the next block
    u8* block                   # of TLS: what it is sending of a file, NULL before
    u64 block_at                # position of that
    u64 n_block
    int wake_fd
    u8 wants                    # a wanted_t
    flag_t is_sending           # what is behind the cursor, in the ring: it must stay as it is
    flag_t is_required          # acknowledgements wait for it
    flag_t is_in_blocks         # so it gets the stream (pack.pyx)
    flag_t is_over


cdef void wake(int fd) noexcept nogil:
    """Wake whoever waits for the counter of an eventfd."""
    cdef u64 one = 1
    while c_write(fd, &one, 8) < 0 and errno == EINTR:
        pass


cdef bint feed_is_sent(feed_t* f, u64 head) noexcept nogil:
    """Under the lock: whether a peer is sending what has to go when the head is there."""
    cdef peer_t* p = f.peers if head > f.ring.first + f.ring.size else NULL
    while p != NULL:
        if p.is_sending and p.cursor + f.ring.size < head:
            return True
        p = p.next
    return False


cdef void feed_make_room(feed_t* f, u64 n) noexcept nogil:
    """Under the lock: give up the oldest, so that n bytes fit, once nobody is sending of it.

    That is waited for: a thread that has stood still in the middle of a call, while others have
    written nearly the whole ring, is about to be awake. No disk has a part in its call: who sends
    of a file is not waited for (kept.pyx)."""
    while feed_is_sent(f, f.ring.head + n):
        pthread_mutex_unlock(&f.lock)
        sched_yield()
        pthread_mutex_lock(&f.lock)
    ring_make_room(&f.ring, n)
    keeper_drop(&f.keeper, f.ring.first)


cdef void feed_put(feed_t* f, u8 kind, const char* path, const char* target, int fd, const u8* data,
                   i64 start, i64 end) noexcept nogil:
    """Add one entry. If nobody says what its data is, that is what is in the file now, of which a
    failed write may have left less than it was to be."""
    cdef u64 n_path = strlen(path), n_target = strlen(target) if target != NULL else 0
    cdef u64 n = <u64>(end - start) if kind == CHANGE_APPEND or kind == CHANGE_PATCH else 0
    cdef u64 head = ENTRY_HEAD + n_path + n_target, done = 0
    cdef ssize_t k
    cdef u8* p
    cdef bint is_kept
    if n_path >= ENTRY_PATH or n_target >= ENTRY_PATH:
        f.error = ENAMETOOLONG
        return
    feed_make_room(f, head + n)
    p = ring_at(&f.ring, f.ring.head)
    if n and data != NULL:
        done = n
        is_kept = kind == CHANGE_APPEND and keeper_keep(
            &f.keeper, f.ring.head + head, path, fd, start, n)
        if not is_kept:
            memcpy(p + head, data, n)
    while done < n:
        k = c_pread(fd, p + head + done, n - done, start + <i64>done)
        if k < 0 and errno == EINTR:
            continue
        if k < 0:
            f.error = errno
            return
        if k == 0:
            break
        done += <u64>k
    put_le32(p, <u32>(head + done))
    put_le16(p + 4, kind)
    put_le16(p + 6, <u16>n_path)
    put_le16(p + 8, <u16>n_target)
    put_le16(p + 10, 0)
    put_le32(p + 12, 0)
    put_le64(p + 16, <u64>start)
    put_le64(p + 24, <u64>(start + <i64>done if n else end))
    memcpy(p + ENTRY_HEAD, path, n_path)
    if n_target:
        memcpy(p + ENTRY_HEAD + n_path, target, n_target)
    f.ring.head += head + done
    if kind != ENTRY_MARK:
        f.changed = f.ring.head
    if n_path:
        touched_note(f.ring.touched, path, n_path, f.ring.head)
    if n_target:
        touched_note(f.ring.touched, target, n_target, f.ring.head)


cdef void feed_note(void* owner, u64 position, u8 kind, const char* path, const char* target,
                    int fd, const u8* data, i64 start, i64 end) noexcept nogil:
    """Keep a change. An observe_t."""
    cdef feed_t* f = <feed_t*>owner
    cdef i64 piece, first = start
    pthread_mutex_lock(&f.lock)
    if kind == CHANGE_APPEND or kind == CHANGE_PATCH:
        while start < end and not f.error:
            piece = end if end - start < ENTRY_PIECE else start + ENTRY_PIECE
            feed_put(f, kind, path, target, fd, data + (start - first) if data != NULL else NULL,
                     start, piece)
            start = piece
    else:
        feed_put(f, kind, path, target, fd, NULL, start, end)
    pthread_mutex_unlock(&f.lock)


cdef void feed_look_behind(feed_t* f) noexcept nogil:
    """Under the lock: learn whether a follower in sync is so far behind that publishers wait, until
    it has made up for half of that. The loop looks at it without the lock, too."""
    cdef u64 most = f.ring.size // (4 if f.is_behind else 2)
    cdef peer_t* p = f.peers
    cdef bint is_behind = False
    while p != NULL:
        is_behind |= p.is_required and f.ring.head - p.acked > most
        p = p.next
    f.is_behind = is_behind


cdef bint feed_wake(copies_t* copies) noexcept nogil:
    """Have what is new sent; whether publishers are to wait. A part of copies_t."""
    cdef feed_t* f = <feed_t*>copies
    cdef peer_t* p
    if f.woken == f.ring.head and not f.is_behind:
        return False                # of this thread's changes there are none
    pthread_mutex_lock(&f.lock)
    f.woken = f.ring.head
    p = f.peers
    while p != NULL:
        if p.wants == WANTS_ANYTHING or (p.wants == WANTS_MUCH and (
                f.marked > p.cursor or f.ring.head - p.cursor >= FEED_MUCH)):
            p.wants = WANTS_NOTHING
            wake(p.wake_fd)
        p = p.next
    feed_look_behind(f)
    pthread_mutex_unlock(&f.lock)
    return f.is_behind


cdef u64 feed_mark(copies_t* copies) noexcept nogil:
    """Ask the followers for what was changed so far; the position behind that. A part of copies_t.
    """
    cdef feed_t* f = <feed_t*>copies
    cdef u64 position
    pthread_mutex_lock(&f.lock)
    feed_put(f, ENTRY_MARK, b"", NULL, -1, NULL, <i64>f.told, 0)
    position = f.ring.head
    f.awaited = f.marked = position
    pthread_mutex_unlock(&f.lock)
    feed_wake(copies)
    return position


cdef bint feed_look(feed_t* f) noexcept nogil:
    """Under the lock: learn what is where it has to be. Whether that is more than before."""
    cdef peer_t* p = f.peers
    cdef u32 n = 1
    cdef u64 common = f.ring.head
    if f.error or f.n_missing:
        return False
    while p != NULL:
        if p.is_required:
            common = p.acked if p.acked < common else common
            n += 1
        p = p.next
    if n < f.least or common <= f.common:
        return False
    f.common = common
    return True


cdef bint feed_has(copies_t* copies, u64 position) noexcept nogil:
    """Whether all that was changed up to a position is where it has to be. A part of copies_t."""
    cdef feed_t* f = <feed_t*>copies
    cdef bint has
    pthread_mutex_lock(&f.lock)
    feed_look(f)
    has = f.common >= position
    if f.common >= f.awaited:
        f.awaited = 0
    pthread_mutex_unlock(&f.lock)
    return has
