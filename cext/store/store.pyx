# Store: the messages of one queue as segments, a tail in memory, a read cursor and deletions.
#
# The newest records are staged in memory and reach the file in one pwrite per tick; readers take
# them from the stage, or from a window read around the cursor. When a queue runs empty its
# unwritten tail is taken back, so messages that are consumed at once never touch the disk. A
# backlog of any length costs no memory. Called by queue.pyx only; never logs, never calls Python on
# the message path.
# Longer than 500 lines: writing, deleting and closing turn on the same few positions.
# Source: docs/formats.md.


cdef enum:
    STAGE_PIECE = 131072        # bytes that are written at once of a tail that has waited for room


# Where a store without segments writes and reads: empty, and never changed.
cdef seg_t no_segment
memset(&no_segment, 0, sizeof(seg_t))
no_segment.size = SEGMENT_HEADER
no_segment.ack_fd = -1


# ---- finding and removing segments ---------------------------------------------------------------

cdef u32 store_index(const store_t* st, u32 id) noexcept nogil:
    """Index of the first segment whose id is not below `id`."""
    cdef u32 lo = 0, hi = st.n_segs, mid
    while lo < hi:
        mid = (lo + hi) >> 1
        if st.segs[mid].id < id:
            lo = mid + 1
        else:
            hi = mid
    return lo


cdef seg_t* store_segment(const store_t* st, u32 id) noexcept nogil:
    cdef u32 i
    if st.wseg.id == id:
        return st.wseg
    if st.rseg.id == id:
        return st.rseg
    i = store_index(st, id)
    if i < st.n_segs and st.segs[i].id == id:
        return st.segs[i]
    return NULL


cdef seg_t* store_add_segment(store_t* st, u32 id) noexcept nogil:
    """Append a segment to the list; NULL when out of memory."""
    cdef seg_t* seg
    cdef seg_t** grown
    if st.n_segs == st.cap_segs:
        grown = <seg_t**>realloc(st.segs, (st.cap_segs * 2 + 2) * sizeof(seg_t*))
        if grown == NULL:
            return NULL
        st.segs = grown
        st.cap_segs = st.cap_segs * 2 + 2
    seg = segment_new(id)
    if seg == NULL:
        return NULL
    st.segs[st.n_segs] = seg
    st.n_segs += 1
    return seg


cdef void store_remove_segment(store_t* st, seg_t* seg) noexcept nogil:
    """Delete a segment and its files. Never the write segment, never the cursor's."""
    cdef u32 i = store_index(st, seg.id)
    cdef seg_t** link = &st.dirty
    while link[0] != NULL:
        if link[0] == seg:
            link[0] = seg.dirty_next
            break
        link = &link[0].dirty_next
    if st.window != NULL:
        window_forget(st.window, seg.id)
    if seg.damaged_at and st.is_durable:
        segment_keep(st, seg.id)
    segment_unlink(st, seg)
    st.is_acks_dir_unsynced = True
    memmove(&st.segs[i], &st.segs[i + 1], (st.n_segs - i - 1) * sizeof(seg_t*))
    st.n_segs -= 1
    segment_free(seg)


# ---- writing -------------------------------------------------------------------------------------

cdef int store_open_write(store_t* st) noexcept nogil:
    """Open the write segment's file, cut it to its logical end and give a new one its header."""
    cdef u8 header[4]
    cdef bint is_new = st.flushed == SEGMENT_HEADER
    cdef i64 began_ns = clock_ns() if is_new else 0
    cdef int fd = segment_open(st, b"msgs", st.wseg.id, O_RDWR | O_CREAT)
    if fd < 0:
        return -1
    st.piecemeal = 0
    if st.reserved == 0 and segment_resize(st, b"msgs", st.wseg.id, fd, st.flushed):
        close_failed(fd)
        return -1
    if is_new:
        put_le32(header, SCHEMA_VERSION)
        st.is_dir_unsynced = True
        if segment_write(st, b"msgs", st.wseg.id, CHANGE_PATCH, fd, header, 4, 0):
            close_failed(fd)
            return -1
        loop_made_file(st.loop, began_ns)
    st.wfd = fd
    return 0


cdef bint store_is_blank(const store_t* st) noexcept nogil:
    """Whether the next message makes a file, which nothing that stands here has asked for yet."""
    return st.is_durable and st.wfd < 0 and st.wseg.size == SEGMENT_HEADER


cdef int store_failed(store_t* st, file_kind kind, u32 seg) noexcept nogil:
    """Note which file could not be written; errno says why. Returns -1."""
    st.write_error = errno if errno else EIO
    st.failed_kind = <u8>kind
    st.failed_seg = seg
    set_errno(st.write_error)
    return -1


cdef void store_cut(store_t* st) noexcept nogil:
    """A write stopped half-way: what it left must not be taken for a record after a crash."""
    cdef int error = errno
    st.reserved = st.piecemeal = 0
    if segment_resize(st, b"msgs", st.wseg.id, st.wfd, st.flushed):
        # What is written next may be shorter, or other messages: they are cut before that.
        c_close(st.wfd)
        st.wfd = -1
        st.is_untrimmed = True
    set_errno(error)


# hot
cdef int store_flush(store_t* st) noexcept nogil:
    """Write the staged tail to the file. Returns 0, or -1 with errno set.

    Cost: one pwrite, about 0.3 ns per byte."""
    cdef u32 n = st.wseg.size - st.flushed, at
    cdef const u8* p
    if n == 0:
        return 0
    if st.wfd < 0 and store_open_write(st):
        return store_failed(st, FILE_MSGS, st.wseg.id)
    if st.reserved and st.loop.n_snapshots:
        store_cut(st)           # a copy of the file has its size, which ends behind the filling
        if st.wfd < 0:
            return store_failed(st, FILE_MSGS, st.wseg.id)
    n -= st.piecemeal
    at = st.flushed + st.piecemeal
    p = st.stage + (at - st.stage_at)
    if (store_write_over(st, p, n, at) if st.reserved
            else segment_write(st, b"msgs", st.wseg.id, CHANGE_APPEND, st.wfd, p, n, at)):
        store_cut(st)
        return store_failed(st, FILE_MSGS, st.wseg.id)
    st.flushed = st.wseg.size
    st.unflushed = st.piecemeal = 0
    st.is_unsynced = True
    return 0


cdef int store_flush_pieces(store_t* st) noexcept nogil:
    """Write of a tail that has waited for room, and may be very long, what the portion allows, and
    leave its last piece to store_flush. 0, 1 when it goes on in the next turn, -1 with errno."""
    cdef u32 at
    if st.stage_cap <= BLOCK_SIZE or st.reserved:
        return 0
    while st.wseg.size - st.flushed - st.piecemeal > STAGE_PIECE:
        if st.wfd < 0 and store_open_write(st):
            return store_failed(st, FILE_MSGS, st.wseg.id)
        at = st.flushed + st.piecemeal
        # store_take_back may cut it away again, and other messages come to stand there.
        if segment_write(st, b"msgs", st.wseg.id, CHANGE_PATCH, st.wfd,
                         st.stage + (at - st.stage_at), STAGE_PIECE, at):
            store_cut(st)
            return store_failed(st, FILE_MSGS, st.wseg.id)
        st.piecemeal += STAGE_PIECE
        if loop_spent(st.loop, STAGE_PIECE >> UNIT_SHIFT):
            return 1
    return 0


cdef void store_drop_stage(store_t* st, pool_t* pool) noexcept nogil:
    """Give the stage's memory back; only when all of it is in the file (or was taken back)."""
    buffer_give(pool, st.stage, st.stage_cap)
    st.stage = NULL
    st.stage_cap = 0
    st.stage_at = st.wseg.size


cdef void window_drop(window_t* w, pool_t* pool) noexcept nogil:
    """Let go of the bytes and of the file."""
    buffer_give(pool, w.buf, w.cap)
    w.buf = NULL
    w.cap = w.len = 0
    if w.fd >= 0:
        c_close(w.fd)
        w.fd = -1


cdef int window_file(window_t* w, store_t* st, u32 seg) noexcept nogil:
    """The descriptor by which the messages of a segment are read; -1 with errno."""
    if w.fd < 0 or w.fd_seg != seg:
        if w.fd >= 0:
            c_close(w.fd)
        w.fd = segment_open(st, b"msgs", seg, O_RDONLY)
        w.fd_seg = seg
    return w.fd


cdef void window_forget(window_t* w, u32 seg) noexcept nogil:
    """The segment's file goes."""
    if w.seg == seg:
        w.len = 0
    if w.fd >= 0 and w.fd_seg == seg:
        c_close(w.fd)
        w.fd = -1


cdef void store_drop_window(store_t* st, pool_t* pool) noexcept nogil:
    if st.window != NULL:
        window_drop(st.window, pool)
        free(st.window)
        st.window = NULL


cdef void store_forget_window(store_t* st) noexcept nogil:
    """The file of its bytes has changed."""
    if st.window != NULL:
        st.window.len = 0


cdef window_t* store_window(store_t* st) noexcept nogil:
    """The window around the cursor, made when it is first used; NULL when out of memory, errno."""
    if st.window == NULL:
        st.window = <window_t*>calloc(1, sizeof(window_t))
        if st.window != NULL:
            st.window.fd = -1
    return st.window


cdef int store_room(store_t* st, pool_t* pool, u64 need) noexcept nogil:
    """Make room for `need` more bytes in the stage. 0 done, 1 too large for any stage (all before
    it is flushed then), -1 with errno."""
    cdef u32 used = st.wseg.size - st.stage_at
    cdef u8* block
    if st.stage != NULL and used + need > BLOCK_SIZE:
        if store_flush(st):
            return -1
        st.stage_at = st.wseg.size
        used = 0
        if st.stage_cap > BLOCK_SIZE:       # it grew while the disk had no room
            store_drop_stage(st, pool)
    if need > BLOCK_SIZE:
        return 1
    if used + need <= st.stage_cap:
        return 0
    if st.stage == NULL and need <= SMALL_STAGE:
        st.stage = <u8*>malloc(SMALL_STAGE)
        st.stage_cap = SMALL_STAGE if st.stage != NULL else 0
        return 0 if st.stage != NULL else -1
    if pool.n_used >= MAX_BLOCKS:       # very many queues are busy: their tails go to the files
        if store_flush(st):
            return -1
        st.stage_at = st.wseg.size
        return 0 if need <= st.stage_cap else 1
    block = block_take(pool)
    if block == NULL:
        return -1
    if used:
        memcpy(block, st.stage, used)
    free(st.stage)      # a stage smaller than a block is never a pool block
    st.stage = block
    st.stage_cap = BLOCK_SIZE
    return 0


cdef int store_grow_stage(store_t* st, pool_t* pool, u64 need) noexcept nogil:
    """Make room for `need` more bytes in memory while the file cannot take them. 0, or -1."""
    cdef u64 used = st.wseg.size - st.stage_at, cap = (used + need) * 2
    cdef u8* grown
    if used + need <= st.stage_cap:
        return 0
    if cap == BLOCK_SIZE:
        cap += 1                # that size is a pooled block
    grown = <u8*>malloc(cap) if cap >> 32 == 0 else NULL
    if grown == NULL:
        return -1
    if used:
        memcpy(grown, st.stage, used)
    buffer_give(pool, st.stage, st.stage_cap)
    st.stage = grown
    st.stage_cap = <u32>cap
    return 0


cdef void store_leave_segment(store_t* st, seg_t* seg) noexcept nogil:
    """From now on write to `seg`, which is new."""
    if st.wfd >= 0:
        c_close(st.wfd)
        st.wfd = -1
    st.wseg.is_reserved = st.reserved != 0
    st.wseg = seg
    st.flushed = st.stage_at = st.synced = SEGMENT_HEADER
    st.reserved = 0
    st.is_untrimmed = False


cdef int store_roll(store_t* st) noexcept nogil:
    """Finish the write segment and start the next one. Its descriptor, when still to be synced,
    must have been handed over before. Returns 0, or -1 with errno set."""
    cdef seg_t* done = st.wseg
    cdef seg_t* seg
    if store_flush(st):
        return -1
    if st.is_untrimmed and st.wfd < 0 and store_open_write(st):
        return store_failed(st, FILE_MSGS, done.id)
    if st.is_durable and st.reserved == 0:      # else the next start has to look at each record
        segment_write_meta(st, done)
    seg = store_add_segment(st, done.id + 1)
    if seg == NULL:
        return -1
    store_leave_segment(st, seg)
    st.unflushed = 0
    if st.rseg is done and st.rpos >= done.size:
        store_next_segment(st)
    elif st.rseg is not done and done.acked >= done.count:
        store_remove_segment(st, done)
    return 0


cdef int store_write_large(store_t* st, const msg_t* m, i64 timestamp_ms) noexcept nogil:
    """Append a record that no stage can hold, straight to the file."""
    cdef u32 head_len = <u32>(m.size - m.body_len)
    cdef u8* head = <u8*>malloc(head_len)
    cdef int rc
    if head == NULL:
        return -1
    rc = -1 if st.wfd < 0 and store_open_write(st) else 0
    if rc == 0:
        record_write(head, m, timestamp_ms)
        # Over filling, if there is some; else nothing is there.
        rc = segment_write(st, b"msgs", st.wseg.id,
                           CHANGE_PATCH if st.reserved else CHANGE_APPEND, st.wfd, head, head_len,
                           st.wseg.size)
        if rc == 0 and st.reserved:
            rc = store_write_over(st, m.body, <u32>m.body_len, st.wseg.size + head_len)
        elif rc == 0:
            rc = segment_write(st, b"msgs", st.wseg.id, CHANGE_APPEND, st.wfd, m.body, m.body_len,
                               st.wseg.size + <i64>head_len)
        if rc:
            store_cut(st)
    if rc:
        store_failed(st, FILE_MSGS, st.wseg.id)
    free(head)
    if rc:
        return -1
    st.wseg.size += <u32>m.size
    st.wseg.count += 1
    st.flushed = st.wseg.size
    st.stage_at = st.wseg.size
    st.is_unsynced = True
    return 0


# hot
cdef inline void store_write(store_t* st, const msg_t* m, i64 timestamp_ms) noexcept nogil:
    """Append m to the stage, which has room for it. Cost: 10 ns and 0.1 ns per byte."""
    cdef seg_t* seg = st.wseg
    cdef u8* p = st.stage + (seg.size - st.stage_at)
    lmq_assert(seg.size - st.stage_at + m.size <= st.stage_cap)
    # First, as no register holds the store while something is copied.
    seg.size += <u32>m.size
    seg.count += 1
    st.unflushed += 1
    record_write(p, m, timestamp_ms)
    memcpy(p + (m.size - m.body_len), m.body, m.body_len)


cdef bint store_take_back(store_t* st) noexcept nogil:
    """The queue is empty, nothing is unsettled: forget the records that the file does not hold.

    Returns whether there were any."""
    cdef seg_t* seg = st.wseg
    cdef u32 i, kept
    if st.unflushed == 0:
        return False
    if st.piecemeal:
        store_cut(st)
    seg.count -= st.unflushed
    seg.acked -= st.unflushed
    seg.size = st.flushed
    kept = 0
    for i in range(seg.n_acks):
        if seg.acks[i] < st.flushed:
            seg.acks[kept] = seg.acks[i]
            kept += 1
    seg.n_acks = kept
    st.unflushed = 0
    st.stage_at = st.flushed
    while st.rseg is not seg:
        store_next_segment(st)
    st.rpos = seg.size
    st.passed = seg.count
    seg.n_deleted = 0           # other messages will come to stand there
    return True


# ---- deleting ------------------------------------------------------------------------------------

# hot
cdef int store_delete(store_t* st, u32 seg_id, u32 pos) noexcept nogil:
    """Note that the record at pos is gone; a segment that has lost all its records is removed.

    Returns 0, or -1 when out of memory. Cost: 3 ns."""
    cdef seg_t* seg = store_segment(st, seg_id)
    cdef u32* grown
    if seg == NULL:
        return 0
    seg.acked += 1
    if seg.acked >= seg.count and seg is not st.wseg and seg is not st.rseg:
        store_remove_segment(st, seg)
        return 0
    if not st.is_durable:
        return 0
    if seg.n_acks == seg.cap_acks:
        grown = <u32*>realloc(seg.acks, (seg.cap_acks * 2 + 64) * sizeof(u32))
        if grown == NULL:
            return -1
        seg.acks = grown
        seg.cap_acks = seg.cap_acks * 2 + 64
    seg.acks[seg.n_acks] = pos
    seg.n_acks += 1
    if not seg.is_dirty:
        seg.is_dirty = True
        seg.dirty_next = st.dirty
        st.dirty = seg
        if seg.ack_size == 0 and (seg is not st.wseg or pos < st.flushed):
            loop_owe_file(st.loop)
    return 0


cdef int store_flush_acks(store_t* st) noexcept nogil:
    """Write the positions deleted since the last flush. 0, or -1 with errno."""
    cdef seg_t* seg
    while st.dirty != NULL:
        seg = st.dirty
        if segment_flush_acks(st, seg, seg is st.wseg or seg is st.rseg):
            return store_failed(st, FILE_ACKS, seg.id)
        st.dirty = seg.dirty_next
        seg.is_dirty = False
    return 0


# ---- opening, closing, purging -------------------------------------------------------------------

cdef void store_init(store_t* st, loop_t* loop, const char* dirname, const char* basename,
                     u32 segment_size, bint is_durable) noexcept nogil:
    """An empty store in the directory `basename` of `dirname`; both must outlive it. Nothing is
    created on disk before the first flush, and no segment before the first message."""
    memset(st, 0, sizeof(store_t))
    st.loop = loop
    st.wfd = -1
    st.counts = &no_counts
    # Zeros behind the data (reserve.pyx) have positions of 32 bits, too.
    st.segment_size = min(segment_size, <u32>-1 - (TERMINATOR + PATTERN))
    st.is_durable = is_durable
    st.dirname = dirname
    st.basename = basename
    st.wseg = st.rseg = &no_segment
    st.rpos = st.flushed = st.stage_at = SEGMENT_HEADER


cdef int store_begin(store_t* st) noexcept nogil:
    """Give a store that has never held a message its first segment. 0, or -1 out of memory."""
    cdef seg_t* seg = store_add_segment(st, 1)
    if seg == NULL:
        return -1
    st.wseg = st.rseg = seg
    return 0


cdef void store_release(store_t* st, pool_t* pool) noexcept nogil:
    """Free all memory and descriptors. Files stay."""
    cdef loop_t* loop = st.loop
    cdef const char* dirname = st.dirname
    cdef u32 i
    if st.wseg != NULL:
        store_drop_stage(st, pool)
    store_drop_window(st, pool)
    if st.wfd >= 0:
        c_close(st.wfd)
    for i in range(st.n_segs):
        segment_free(st.segs[i])
    free(st.segs)
    free(st.requeued)
    free(st.gaps)
    free(st.dues)
    free(st.left)
    store_release_counts(st)
    memset(st, 0, sizeof(store_t))
    st.loop = loop
    st.dirname = dirname
    st.counts = &no_counts
    st.wfd = -1


cdef void store_abandon(store_t* st, pool_t* pool) noexcept nogil:
    """The files cannot be written any more: let go of memory and descriptors; files stay."""
    st.wseg.size = st.flushed
    st.unflushed = 0
    st.rseg = st.wseg
    st.rpos = st.flushed
    free(st.requeued)
    st.requeued = NULL
    st.n_requeued = st.cap_requeued = 0
    store_drop_stage(st, pool)
    store_drop_window(st, pool)
    store_close_files(st)


cdef void store_close_files(store_t* st) noexcept nogil:
    """Let go of the descriptors; they are opened again when needed."""
    if st.window != NULL and st.window.fd >= 0:
        c_close(st.window.fd)
        st.window.fd = -1
    if st.wfd >= 0:
        c_close(st.wfd)
        st.wfd = -1
    if st.wseg.ack_fd >= 0:
        c_close(st.wseg.ack_fd)
        st.wseg.ack_fd = -1
    if st.rseg.ack_fd >= 0:
        c_close(st.rseg.ack_fd)
        st.rseg.ack_fd = -1


cdef int store_close(store_t* st) noexcept nogil:
    """Write everything out, also which messages were delivered before, and cut files that are
    longer than their data: filled ahead, or left so by a crash. 0, or -1 with errno."""
    cdef u32 i
    for i in range(st.n_requeued):
        if (not st.requeued[i].is_fresh
                and counts_of(st.counts, st.requeued[i].seg, st.requeued[i].pos) == 0):
            if store_count(st, st.requeued[i].seg, st.requeued[i].pos, 1):
                return -1
    if store_flush(st) or store_flush_acks(st) or (st.counts.n_news and counts_flush(st, NULL)):
        return -1
    if (st.is_untrimmed or st.reserved) and st.wfd < 0 and store_open_write(st):
        return -1
    if st.reserved and (sync_data(st.wfd) or segment_resize(
            st, b"msgs", st.wseg.id, st.wfd, st.flushed)):
        return -1
    st.reserved = 0
    for i in range(st.n_segs):
        if st.segs[i].is_reserved and segment_finish(st, st.segs[i]):
            return -1
        if st.segs[i].ack_size and segment_trim_acks(st, st.segs[i]):
            return -1
    return store_drop_all_left(st)
