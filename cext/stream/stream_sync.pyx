# Stream sync: how far a stream is on disk, and in which parts of its life its offsets were given.
#
# Readers that keep offsets outside the broker plan up to what a sync has brought to the disk:
# behind that a loss of power may give the same offsets to other messages. A place is noted with the
# number of the sync that brings it there, and counts once that sync is over. Confirms ask for syncs
# of the write segment; finished segments that nobody has asked for wait until somebody who plans
# does. An epoch begins at each start that no orderly stop came before
# (lavinmq/files/stream_epochs.py). Called by stream.pyx, tick.pyx and the door.
# Source: docs/streams.md, decision 0036.

cdef enum:
    SYNC_SEGMENTS = 64          # that are opened for one sync; for more the file system is synced
    SYNC_FILES = 1024           # waiting for the next sync, above which nobody adds for planning


# ---- places --------------------------------------------------------------------------------------

cdef void stream_take_synced(queue_t* q) noexcept nogil:
    """Take over what syncs have brought to the disk since the last look."""
    cdef stream_t* s = q.stream
    cdef u32 i
    for i in range(2):
        if s.awaited[i].sync and s.awaited[i].sync <= q.loop.n_synced:
            if s.awaited[i].offset > s.synced.offset:
                s.synced = s.awaited[i]
            s.awaited[i].sync = 0


cdef void stream_await(queue_t* q, i64 offset, u32 seg, u32 pos) noexcept nogil:
    """The next sync brings the stream to the disk up to there."""
    cdef stream_t* s = q.stream
    cdef u64 number = q.loop.n_syncs + 1
    cdef reach_t* p
    stream_take_synced(q)
    # What is left is of the sync in flight, or of the next one already.
    p = &s.awaited[1 if s.awaited[0].sync == q.loop.n_syncs or s.awaited[1].sync == number else 0]
    p.offset = offset
    p.seg = seg
    p.pos = pos
    p.sync = number


cdef inline i64 stream_written(const queue_t* q) noexcept nogil:
    """The offset behind what the files hold."""
    return q.stream.next_offset - q.store.unflushed


cdef reach_t stream_synced(queue_t* q) noexcept nogil:
    """Up to where the stream is on disk; without syncs, up to where it is written."""
    cdef reach_t reach
    cdef i64 first = stream_first(q)
    stream_take_synced(q)
    reach = q.stream.synced
    if not q.loop.sync:
        reach.offset = stream_written(q)
        reach.seg = q.store.wseg.id
        reach.pos = q.store.flushed
    if reach.offset < first:            # what was not on disk has gone after its time
        reach.offset = first
        reach.seg = reach.pos = 0
    return reach


cdef inline bint stream_is_handed(const queue_t* q) noexcept nogil:
    """Whether syncs were asked for of all that finished segments hold."""
    cdef const store_t* st = q.store
    return (q.stream.unsynced_seg >= st.wseg.id
            or store_index(st, q.stream.unsynced_seg) + 1 >= st.n_segs)


# ---- asking for syncs ----------------------------------------------------------------------------

cdef void stream_handed_over(queue_t* q) noexcept nogil:
    """The next sync has the write segment: note up to where the stream is on disk then."""
    if q.store.n_segs and not q.store.is_unsynced and stream_is_handed(q):
        q.stream.unsynced_seg = q.store.wseg.id
        stream_await(q, stream_written(q), q.store.wseg.id, q.store.flushed)


cdef int stream_hand_over_segment(queue_t* q, u32 id) noexcept nogil:
    """Have the next sync sync the file of a segment, whose descriptor may be closed. 0, or -1 with
    errno."""
    cdef int fd = segment_open(q.store, b"msgs", id, O_RDONLY)
    if fd < 0:
        return 0 if errno == ENOENT else -1     # nothing was ever written to it
    return loop_add_sync_fd(q.loop, fd)


cdef int stream_hand_over(queue_t* q) noexcept nogil:
    """Have the next sync bring to the disk what the files hold, or a part of it when that is much.
    0, or -1 with errno."""
    cdef store_t* st = q.store
    cdef stream_t* s = q.stream
    cdef seg_t* seg
    cdef u32 i = store_index(st, s.unsynced_seg), n = 0
    if st.n_segs == 0 or q.loop.n_sync_fds > SYNC_FILES:
        return 0
    if i + SYNC_SEGMENTS < st.n_segs and q.loop.dir_fd >= 0:
        # Far behind, as after an end without order: all files of the file system at once.
        q.loop.is_whole_wanted = True
        i = st.n_segs - 1
    while i + 1 < st.n_segs and n < SYNC_SEGMENTS:
        if stream_hand_over_segment(q, st.segs[i].id):
            return -1
        q.loop.is_large_wanted = q.loop.is_large_wanted or st.segs[i].size > LARGE_RECORD
        i += 1
        n += 1
        s.unsynced_seg = st.segs[i].id
    if i + 1 < st.n_segs:
        seg = st.segs[i - 1]
        stream_await(q, seg.first_offset + seg.count, seg.id, seg.size)
        return store_hand_over_directory(st, q.loop)
    if store_hand_over_file(st, q.loop) or store_hand_over_directory(st, q.loop):
        return -1
    s.unsynced_seg = st.wseg.id
    stream_handed_over(q)
    return 0


cdef int stream_sync_files(queue_t* q) noexcept nogil:
    """Sync what is not known to be on disk, here and now: the broker stops. 0, or -1 with errno."""
    cdef store_t* st = q.store
    cdef char path[PATH_MAX_BYTES]
    cdef u32 i
    cdef int fd, rc
    stream_take_synced(q)
    i = store_index(st, q.stream.synced.seg)
    while i < st.n_segs:
        fd = segment_open(st, b"msgs", st.segs[i].id, O_RDONLY)
        if fd >= 0:
            # Of very many files all are synced at once, with the first one.
            rc = sync_all(fd) if i + SYNC_SEGMENTS < st.n_segs else sync_data(fd)
            i = st.n_segs - 1 if i + SYNC_SEGMENTS < st.n_segs else i
            close_failed(fd)
            if rc:
                return -1
        elif errno != ENOENT:
            return -1
        i += 1
    if not st.is_dir_unsynced:
        return 0
    store_path(st, path)
    fd = c_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    if fd < 0:
        return -1
    rc = sync_data(fd)
    close_failed(fd)
    return rc


# ---- epochs --------------------------------------------------------------------------------------

cdef i64 stream_epoch_of(const stream_t* s, i64 offset) noexcept nogil:
    """The number of the epoch in which an offset was given, 0 = not known. At the end: 1 ns."""
    cdef u32 i = s.n_epochs
    while i:
        i -= 1
        if s.epochs[i].first_offset <= offset or i == 0:
            return s.epochs[i].number
    return 0


cdef stream_set_epochs(queue_t* q, list epochs):
    """Replace the epochs: (number, first offset) by rising number."""
    cdef Py_ssize_t i, n = len(epochs)
    cdef epoch_t* made = <epoch_t*>malloc((n + 1) * sizeof(epoch_t))
    if made == NULL:
        raise MemoryError()
    try:
        for i in range(n):
            made[i].number, made[i].first_offset = epochs[i]
    except BaseException:
        free(made)
        raise
    free(q.stream.epochs)
    q.stream.epochs = made
    q.stream.n_epochs = <u32>n
