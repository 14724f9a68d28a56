# Follow: a follower's half of a connection: receives changes, makes them again, says what is on
# disk.
#
# What comes goes into the ring first, where it stays for others to have if this node leads one day.
# It is synced when the leader asks (ENTRY_MARK), for all that has come by then, and else after a
# moment or a lot.
# Whoever is at the disk for long is there all the same: another thread says so meanwhile
# (follow_beat), under the lock that the connection has for that.
# Called by door.pyx, without the GIL; other threads hear of its positions meanwhile.

cdef enum:
    FOLLOW_READ = 1048576
    FOLLOW_UNSYNCED = 8388608
    FOLLOW_MOMENT_MS = 100
    FOLLOW_LOOK_MS = 1000
    FOLLOW_ACK_MS = 10000       # a leader takes what it is told
    FOLLOW_SILENT_MS = 10000    # a leader says something each second

cdef enum follow_end_t:         # why it has ended
    FOLLOW_LOST = 0             # the connection, errno says why; 0: the leader has closed it
    FOLLOW_REFUSED = 1          # what came could not be done: apply_t's `why`
    FOLLOW_UNSYNCED_END = 2     # the disk has failed: nobody knows what is on it
    FOLLOW_THERE = 3            # it has come to where it was to stop
    FOLLOW_FULL = 4             # the disk has no room for the next change
    FOLLOW_GARBLED = 5          # a block makes no sense: nothing was done of it


cdef struct follow_t:
    ring_t* ring
    apply_t apply
    wire_t wire
    unpacker_t unpack
    u64 applied                 # position up to which everything was done
    u64 synced                  # and is on disk
    u64 common                  # and is on the disks of all nodes in sync, as the leader has told
    u64 changed                 # behind the last change: marks are none
    u64 stop_at                 # position on disk at which it stops, 0 = none
    flag_t is_lazy              # nobody waits for what is on disk
    i64 synced_ns               # when that was so last
    histogram_t sync_times      # how long syncs took
    i64 heard_ns                # when something came last
    pthread_mutex_t lock        # of the wire
    flag_t may_beat             # it runs, by a connection whose leader knows beats


cdef int follow_ack(follow_t* w) noexcept nogil:
    """Sync, and say what is on disk by now. -1, or a follow_end_t."""
    cdef u8 ack[8]
    cdef bint is_sent, is_dirty = w.apply.is_dirty
    cdef i64 began_ns = clock_ns()
    if apply_sync(&w.apply):
        return FOLLOW_UNSYNCED_END
    w.synced_ns = clock_ns()
    if is_dirty:
        histogram_add(&w.sync_times, w.synced_ns - began_ns)
    if w.synced == w.applied:
        return -1
    position_tell(&w.synced, w.applied)
    put_le64(ack, w.synced)
    pthread_mutex_lock(&w.lock)
    is_sent = channel_send_all(&w.wire, ack, 8, FOLLOW_ACK_MS)
    pthread_mutex_unlock(&w.lock)
    if not is_sent:
        return FOLLOW_LOST
    return FOLLOW_THERE if w.stop_at and w.synced >= w.stop_at else -1


cdef bint follow_beat(follow_t* w) noexcept nogil:
    """Say once more what is on disk: this node is there. In another thread than the one that
    follows, and without waiting for it. Whether it went; else the connection is in use."""
    cdef u8 ack[8]
    cdef ssize_t k = 0
    if pthread_mutex_trylock(&w.lock):
        return False
    if w.may_beat:
        put_le64(ack, position_hear(&w.synced))
        k = channel_send(&w.wire, ack, 8, False)
        if k != 8:
            # Nobody takes anything any more; and what begins otherwise must not come behind it.
            c_shutdown(w.wire.fd, SHUT_RDWR)
    pthread_mutex_unlock(&w.lock)
    return k == 8


cdef void follow_note(const ring_t* r, const u8* p, u64 position) noexcept nogil:
    """Know for later which paths an entry has changed, and at which places."""
    cdef const char* path = <const char*>p + ENTRY_HEAD
    cdef u64 n_path = le16(p + 6), n_target = le16(p + 8)
    cdef places_t* places = r.places
    touched_note(r.touched, path, n_path, position)
    pthread_mutex_lock(&places.lock)
    touched_note(&places.touched, path, place_length(path, n_path), position)
    if n_target:
        path += n_path
        touched_note(r.touched, path, n_target, position)
        touched_note(&places.touched, path, place_length(path, n_target), position)
    pthread_mutex_unlock(&places.lock)


cdef int follow_take(follow_t* w) noexcept nogil:
    """Do what has come as a whole. -1, or a follow_end_t."""
    cdef u8* p
    cdef u64 size
    cdef int end
    cdef bint is_asked = False
    while w.ring.head - w.applied >= ENTRY_HEAD:
        p = ring_at(w.ring, w.applied)
        size = le32(p)
        if size < ENTRY_HEAD or size > ENTRY_MOST:
            apply_nonsense(&w.apply, b"", w.applied)
            return FOLLOW_REFUSED
        if w.ring.head - w.applied < size:
            break
        if p[4] == ENTRY_MARK:
            position_tell(&w.applied, w.applied + size)
            if le64(p + 16) > w.common and le64(p + 16) <= w.applied:
                position_tell(&w.common, le64(p + 16))
            if w.common >= w.changed:
                position_tell(&w.common, w.applied)     # nothing but marks has come since
            is_asked = is_asked or not w.is_lazy or (w.stop_at and w.applied >= w.stop_at)
            continue
        follow_note(w.ring, p, w.applied + size)    # before: it may be done in part
        if apply_entry(&w.apply, p, w.applied):
            return FOLLOW_FULL if w.apply.is_full else FOLLOW_REFUSED
        position_tell(&w.applied, w.applied + size)
        w.changed = w.applied
        if w.apply.unsynced > <u64>FOLLOW_UNSYNCED:
            end = follow_ack(w)
            if end >= 0:
                return end
    return follow_ack(w) if is_asked else -1


cdef ssize_t follow_receive(follow_t* w) noexcept nogil:
    """Receive what is there of the stream, behind the ring's head: as channel_recv."""
    cdef u8* plain
    cdef u8* to
    cdef u64 most
    cdef ssize_t k
    ring_make_room(w.ring, FOLLOW_READ)
    plain = ring_at(w.ring, w.ring.head)
    while True:
        to = unpacker_place(&w.unpack, plain, FOLLOW_READ, &most)
        pthread_mutex_lock(&w.lock)
        k = channel_recv(&w.wire, to, most)
        pthread_mutex_unlock(&w.lock)
        if k <= 0:
            return k
        w.heard_ns = clock_ns()
        k = <ssize_t>unpacker_take(&w.unpack, plain, <u64>k)
        if k:
            return k


cdef int follow_wait(follow_t* w, int timeout_ms) noexcept nogil:
    """Wait for input, as channel_wait."""
    cdef pollfd one
    pthread_mutex_lock(&w.lock)
    timeout_ms = channel_wait_ms(&w.wire, timeout_ms)
    pthread_mutex_unlock(&w.lock)
    if timeout_ms == 0:
        return 1
    one.fd, one.events, one.revents = w.wire.fd, POLLIN, 0
    return c_poll(&one, 1, timeout_ms)


cdef int follow_run(follow_t* w) noexcept nogil:
    """Until it ends; a follow_end_t."""
    cdef ssize_t k
    cdef int end, n
    w.synced_ns = clock_ns()
    end = follow_take(w)            # what had come when it stopped
    if end >= 0:
        return end
    while True:
        n = follow_wait(w, FOLLOW_MOMENT_MS
                        if w.synced != w.applied and not w.is_lazy else FOLLOW_LOOK_MS)
        if n < 0 and errno != EINTR:
            return FOLLOW_LOST
        if n == 0 and clock_ns() - w.heard_ns > FOLLOW_SILENT_MS * <i64>1000000:
            set_errno(ETIMEDOUT)
            return FOLLOW_LOST
        if w.synced != w.applied and not w.is_lazy and (
                n == 0 or clock_ns() - w.synced_ns > FOLLOW_MOMENT_MS * <i64>1000000):
            end = follow_ack(w)
            if end >= 0:
                return end
        if n <= 0:
            continue
        k = follow_receive(w)
        if k == 0:
            set_errno(0)
            return FOLLOW_LOST
        if k < 0:
            if errno != EAGAIN and errno != EINTR:
                return FOLLOW_GARBLED if errno == EBADMSG else FOLLOW_LOST
            continue
        position_tell(&w.ring.head, w.ring.head + <u64>k)
        end = follow_take(w)
        if end >= 0:
            return end
