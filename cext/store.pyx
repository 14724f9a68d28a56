# Store: the messages of one queue as segments, a tail in memory, a read cursor and deletions.
#
# The newest records are staged in memory and reach the file in one pwrite per tick; readers take
# them from the stage, or from a window read around the cursor. When a queue runs empty its
# unwritten tail is taken back, so messages that are consumed at once never touch the disk. A
# backlog of any length costs no memory. Called by queue.pyx only; never logs, never calls Python on
# the message path.
# Source: storage reference sections 2 to 5, 11, 12 and 15.
from libc.stdlib cimport qsort


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
    if st.win_seg == seg.id:
        st.win_len = 0
    if st.rfd >= 0 and st.rfd_seg == seg.id:
        c_close(st.rfd)
        st.rfd = -1
    if seg.damaged_at and st.is_durable:
        segment_keep(st, seg.id)
    segment_unlink(st, seg.id)
    memmove(&st.segs[i], &st.segs[i + 1], (st.n_segs - i - 1) * sizeof(seg_t*))
    st.n_segs -= 1
    segment_free(seg)


# ---- writing -------------------------------------------------------------------------------------

cdef int store_open_write(store_t* st) noexcept nogil:
    """Open the write segment's file, cut it to its logical end and give a new one its header."""
    cdef u8 header[4]
    cdef int fd = segment_open(st, b"msgs", st.wseg.id, O_RDWR | O_CREAT)
    if fd < 0:
        return -1
    if ftruncate(fd, st.flushed):
        close_failed(fd)
        return -1
    if st.flushed == SEGMENT_HEADER:
        put_le32(header, SCHEMA_VERSION)
        st.is_dir_unsynced = True
        if write_at(fd, header, 4, 0):
            close_failed(fd)
            return -1
    st.wfd = fd
    return 0


cdef int store_failed(store_t* st, const char* kind, u32 seg) noexcept nogil:
    """Note which file could not be written; errno says why. Returns -1."""
    st.write_error = errno if errno else EIO
    st.failed_kind = kind
    st.failed_seg = seg
    set_errno(st.write_error)
    return -1


cdef void store_cut(store_t* st) noexcept nogil:
    """A write stopped half-way: what it left must not be taken for a record after a crash."""
    cdef int error = errno
    if ftruncate(st.wfd, st.flushed):
        pass                    # then the bytes stay behind the end, where a later write goes
    set_errno(error)


# hot
cdef int store_flush(store_t* st) noexcept nogil:
    """Write the staged tail to the file. Returns 0, or -1 with errno set.

    Cost: one pwrite, about 0.3 ns per byte."""
    cdef u32 n = st.wseg.size - st.flushed
    if n == 0:
        return 0
    if st.wfd < 0 and store_open_write(st):
        return store_failed(st, b"msgs", st.wseg.id)
    if write_at(st.wfd, st.stage + (st.flushed - st.stage_at), n, st.flushed):
        store_cut(st)
        return store_failed(st, b"msgs", st.wseg.id)
    st.flushed = st.wseg.size
    st.unflushed = 0
    st.is_unsynced = True
    return 0


cdef void store_drop_stage(store_t* st, pool_t* pool) noexcept nogil:
    """Give the stage's memory back; only when all of it is in the file (or was taken back)."""
    buffer_give(pool, st.stage, st.stage_cap)
    st.stage = NULL
    st.stage_cap = 0
    st.stage_at = st.wseg.size


cdef void store_drop_window(store_t* st, pool_t* pool) noexcept nogil:
    buffer_give(pool, st.win, st.win_cap)
    st.win = NULL
    st.win_cap = 0
    st.win_len = 0
    if st.rfd >= 0:
        c_close(st.rfd)
        st.rfd = -1


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


cdef int store_roll(store_t* st) noexcept nogil:
    """Finish the write segment and start the next one. Its descriptor, when still to be synced,
    must have been handed over before. Returns 0, or -1 with errno set."""
    cdef seg_t* done = st.wseg
    cdef seg_t* seg
    if store_flush(st):
        return -1
    if st.is_durable:
        segment_write_meta(st, done)
    seg = store_add_segment(st, done.id + 1)
    if seg == NULL:
        return -1
    if st.wfd >= 0:
        c_close(st.wfd)
        st.wfd = -1
    st.wseg = seg
    st.flushed = SEGMENT_HEADER
    st.stage_at = SEGMENT_HEADER
    st.unflushed = 0
    if st.rseg is done and st.rpos >= done.size:
        store_next_segment(st)
    elif st.rseg is not done and done.acked >= done.count:
        store_remove_segment(st, done)
    return 0


cdef int store_write_large(store_t* st, const msg_t* m, i64 timestamp_ms) noexcept nogil:
    """Append a record that no stage can hold, straight to the file."""
    cdef u64 head_len = m.size - m.body_len
    cdef u8* head = <u8*>malloc(head_len)
    cdef int rc
    if head == NULL:
        return -1
    rc = -1 if st.wfd < 0 and store_open_write(st) else 0
    if rc == 0:
        record_write(head, m, timestamp_ms)
        rc = write_at(st.wfd, head, head_len, st.wseg.size)
        if rc == 0:
            rc = write_at(st.wfd, m.body, m.body_len, st.wseg.size + <i64>head_len)
        if rc:
            store_cut(st)
    if rc:
        store_failed(st, b"msgs", st.wseg.id)
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
    cdef u8* p = st.stage + (st.wseg.size - st.stage_at)
    lmq_assert(st.wseg.size - st.stage_at + m.size <= st.stage_cap)
    record_write(p, m, timestamp_ms)
    memcpy(p + (m.size - m.body_len), m.body, m.body_len)
    st.wseg.size += <u32>m.size
    st.wseg.count += 1
    st.unflushed += 1


cdef bint store_take_back(store_t* st) noexcept nogil:
    """The queue is empty, nothing is unsettled: forget the records that the file does not hold.

    Returns whether there were any."""
    cdef seg_t* seg = st.wseg
    cdef u32 i, kept
    if st.unflushed == 0:
        return False
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
    return 0


cdef int store_flush_acks(store_t* st) noexcept nogil:
    """Write the positions deleted since the last flush. 0, or -1 with errno."""
    cdef seg_t* seg
    while st.dirty != NULL:
        seg = st.dirty
        if segment_flush_acks(st, seg, seg is st.wseg or seg is st.rseg):
            return store_failed(st, b"acks", seg.id)
        st.dirty = seg.dirty_next
        seg.is_dirty = False
    return 0


# ---- requeued records ----------------------------------------------------------------------------

cdef inline bint loc_before(loc_t a, loc_t b) noexcept nogil:
    return a.seg < b.seg or (a.seg == b.seg and a.pos < b.pos)


cdef int store_requeue(store_t* st, u32 seg, u32 pos) noexcept nogil:
    """Put a record back in front of the cursor, in its original order.
    0, or -1 when out of memory."""
    cdef loc_t* grown
    cdef loc_t item
    cdef u32 i, up
    if st.n_requeued == st.cap_requeued:
        grown = <loc_t*>realloc(st.requeued, (st.cap_requeued * 2 + 64) * sizeof(loc_t))
        if grown == NULL:
            return -1
        st.requeued = grown
        st.cap_requeued = st.cap_requeued * 2 + 64
    item.seg = seg
    item.pos = pos
    i = st.n_requeued
    st.n_requeued += 1
    while i:
        up = (i - 1) >> 1
        if not loc_before(item, st.requeued[up]):
            break
        st.requeued[i] = st.requeued[up]
        i = up
    st.requeued[i] = item
    return 0


cdef void store_pop_requeued(store_t* st) noexcept nogil:
    cdef u32 i = 0, child
    cdef loc_t item
    st.n_requeued -= 1
    if st.n_requeued == 0:
        if st.cap_requeued > 1024:      # a large burst does not stay in memory
            free(st.requeued)
            st.requeued = NULL
            st.cap_requeued = 0
        return
    item = st.requeued[st.n_requeued]
    while True:
        child = 2 * i + 1
        if child >= st.n_requeued:
            break
        if child + 1 < st.n_requeued and loc_before(st.requeued[child + 1], st.requeued[child]):
            child += 1
        if not loc_before(st.requeued[child], item):
            break
        st.requeued[i] = st.requeued[child]
        i = child
    st.requeued[i] = item


# ---- reading -------------------------------------------------------------------------------------

cdef int store_fill_window(store_t* st, pool_t* pool, seg_t* seg, u32 pos, u32 need,
                           u32 wish) noexcept nogil:
    """Read the file of seg from pos: at least `need` bytes, up to `wish`.
    0 done, -1 torn, -2 errno."""
    cdef u32 limit = st.flushed if seg is st.wseg else seg.size
    cdef u32 want
    cdef i64 got
    cdef int fd
    if need > limit - pos:
        return -1
    want = wish if wish > need else need
    if want > limit - pos:
        want = limit - pos
    if st.win == NULL or st.win_cap < need or (st.win_cap > BLOCK_SIZE and need <= BLOCK_SIZE):
        buffer_give(pool, st.win, st.win_cap)
        st.win_len = 0
        st.win_cap = BLOCK_SIZE if need <= BLOCK_SIZE else need
        st.win = block_take(pool) if need <= BLOCK_SIZE else <u8*>malloc(need)
        if st.win == NULL:
            st.win_cap = 0
            return -2
    if want > st.win_cap:
        want = st.win_cap
    if seg is st.wseg and st.wfd >= 0:
        fd = st.wfd
    else:
        if st.rfd < 0 or st.rfd_seg != seg.id:
            if st.rfd >= 0:
                c_close(st.rfd)
            st.rfd = segment_open(st, b"msgs", seg.id, O_RDONLY)
            st.rfd_seg = seg.id
        fd = st.rfd
    if fd < 0:
        return -2
    st.win_len = 0
    got = read_at(fd, st.win, want, pos)
    if got < 0:
        return -2
    st.win_seg = seg.id
    st.win_at = pos
    st.win_len = <u32>got
    return 0 if got >= need else -1


# hot
cdef int store_read(store_t* st, pool_t* pool, seg_t* seg, u32 pos, u32 wish,
                    rec_t* rec) noexcept nogil:
    """Slice the record at pos of seg, reading about `wish` bytes when it is not in memory.

    1 done, -1 no whole record is there, -2 with errno. The slices are valid until the next call on
    this store. Cost: 5 ns when staged or in the window."""
    cdef u32 avail = 0, need, limit
    cdef int rc
    rec.seg = seg.id
    rec.pos = pos
    if seg is st.wseg and pos >= st.stage_at:
        return 1 if record_parse(st.stage + (pos - st.stage_at), seg.size - pos, rec) == 1 else -1
    if st.win_len and st.win_seg == seg.id and pos >= st.win_at and pos < st.win_at + st.win_len:
        avail = st.win_at + st.win_len - pos
        rc = record_parse(st.win + (pos - st.win_at), avail, rec)
        if rc:
            return rc
    else:
        rec.size = 1
    limit = (st.flushed if seg is st.wseg else seg.size) - pos
    while avail < limit:
        need = rec.size if rec.size > avail else avail + 1
        rc = store_fill_window(st, pool, seg, pos, need if need < limit else limit, wish)
        if rc:
            return rc
        avail = st.win_len
        rc = record_parse(st.win, avail, rec)
        if rc:
            return rc
    return -1


cdef void store_next_segment(store_t* st) noexcept nogil:
    """Move the cursor from a finished segment to the next; remove it when nothing is left.

    The walk has counted its records: that is the truth, whatever its meta file said."""
    cdef seg_t* old = st.rseg
    st.miscount += <i64>st.passed - <i64>old.count
    old.count = st.passed
    st.rseg = st.segs[store_index(st, old.id + 1)]
    st.rpos = SEGMENT_HEADER
    st.passed = 0
    if old.acked >= old.count:
        store_remove_segment(st, old)


cdef i64 store_skip_junk(store_t* st) noexcept nogil:
    """What the cursor points at is not a record: go on behind it, where one can be found.

    Returns how many messages were lost, or -1 with errno."""
    cdef seg_t* seg = st.rseg
    cdef u32 after, gone = 0, i
    cdef i64 lost
    cdef i64 to = store_resume(st, seg, st.rpos, st.passed, &after)
    if to < 0:
        return -1
    if seg is st.wseg:
        after += store_count_staged(st)
    for i in range(seg.next_deleted, seg.n_deleted):
        gone += seg.deleted[i] < to
    lost = <i64>seg.count - st.passed - after - gone
    if lost < 0:                # its meta file had promised less
        st.miscount -= lost
        lost = 0
    elif lost:
        store_note_gap(st, seg, st.rpos, <u32>to)
    seg.count = st.passed + after
    seg.acked -= gone
    st.rpos = <u32>to
    st.lost += <u32>lost
    return lost


cdef u32 store_count_staged(const store_t* st) noexcept nogil:
    """Records in the stage."""
    cdef rec_t rec
    cdef u32 at = 0, n = 0, end = st.wseg.size - st.stage_at
    while at < end and record_parse(st.stage + at, end - at, &rec) == 1:
        at += rec.size
        n += 1
    return n


cdef int store_walk(store_t* st, pool_t* pool, seg_t* seg, u32* pos, u32 passed,
                    rec_t* rec) noexcept nogil:
    """The record at pos, or the next one behind damage: pos then moves there.

    1 done, 0 there is none up to the segment's end, -1 with errno."""
    cdef u32 found
    cdef i64 to
    cdef int rc
    while pos[0] < seg.size:
        rc = store_read(st, pool, seg, pos[0], BLOCK_SIZE, rec)
        if rc != -1:
            return 1 if rc == 1 else -1
        to = store_resume(st, seg, pos[0], passed, &found)
        if to < 0:
            return -1
        if found == 0 and seg is not st.wseg:
            return 0            # pos stays: here the readable part ends
        if to == pos[0]:
            return 0
        pos[0] = <u32>to
    return 0


cdef void store_recount(store_t* st, pool_t* pool) noexcept nogil:
    """Count what is left of the cursor's segment: its meta file may have promised less."""
    cdef rec_t rec
    cdef seg_t* seg = st.rseg
    cdef u32 pos = st.rpos, count = st.passed
    while store_walk(st, pool, seg, &pos, count, &rec) == 1:
        pos += rec.size
        count += 1
    if count > seg.count:
        st.miscount += count - seg.count
        seg.count = count


# hot
cdef int store_peek(store_t* st, pool_t* pool, rec_t* rec) noexcept nogil:
    """The next record to deliver: requeued ones first, then the cursor's. Does not move.

    1 done, 0 nothing left, -1 the cursor stands on junk, -2 with errno, -3 a requeued record is
    unreadable."""
    cdef seg_t* seg
    cdef int rc
    if st.n_requeued:
        rec.redelivered = True
        seg = store_segment(st, st.requeued[0].seg)
        if seg == NULL:
            return -3
        rc = store_read(st, pool, seg, st.requeued[0].pos, 16384, rec)
        return -3 if rc == -1 else rc
    rec.redelivered = False
    while True:
        seg = st.rseg
        if st.rpos >= seg.size:
            if seg is st.wseg:
                return 0
            store_next_segment(st)
            continue
        rc = store_read(st, pool, seg, st.rpos, BLOCK_SIZE, rec)
        if rc < 0:
            return rc
        if seg.next_deleted < seg.n_deleted and seg.deleted[seg.next_deleted] <= st.rpos:
            if seg.deleted[seg.next_deleted] == st.rpos:
                st.rpos += rec.size
                st.passed += 1
            seg.next_deleted += 1
            continue
        return 1


# hot
cdef inline void store_take(store_t* st, const rec_t* rec) noexcept nogil:
    """Move past the record that store_peek returned."""
    if rec.redelivered:
        store_pop_requeued(st)
    else:
        st.rpos += rec.size
        st.passed += 1
        lmq_assert(st.rpos <= st.rseg.size)


# ---- opening, closing, purging -------------------------------------------------------------------

cdef int store_init(store_t* st, const char* path, u32 segment_size,
                    bint is_durable) noexcept nogil:
    """An empty store at `path`; nothing is created on disk before the first flush."""
    memset(st, 0, sizeof(store_t))
    st.wfd = st.rfd = -1
    st.segment_size = segment_size
    st.is_durable = is_durable
    st.dir = <char*>malloc(strlen(path) + 1)
    if st.dir == NULL:
        return -1
    memcpy(st.dir, path, strlen(path) + 1)
    st.wseg = store_add_segment(st, 1)
    st.rseg = st.wseg
    st.rpos = st.flushed = st.stage_at = SEGMENT_HEADER
    return 0 if st.wseg != NULL else -1


cdef void store_release(store_t* st, pool_t* pool) noexcept nogil:
    """Free all memory and descriptors. Files stay."""
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
    free(st.dir)
    memset(st, 0, sizeof(store_t))
    st.wfd = st.rfd = -1


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
    """Write everything out, and cut files that a crash left longer than their data.
    0, or -1 with errno."""
    cdef u32 i
    if st.is_untrimmed and st.wfd < 0 and store_open_write(st):
        return -1
    for i in range(st.n_segs):
        if st.segs[i].ack_size and segment_trim_acks(st, st.segs[i]):
            return -1
    return 0 if store_flush(st) == 0 and store_flush_acks(st) == 0 else -1


cdef int store_drop_after_cursor(store_t* st) noexcept nogil:
    """Delete every segment behind the cursor's and go on writing in a new one.
    0, or -1 with errno."""
    cdef u32 last = st.wseg.id, i
    cdef seg_t* seg
    st.wseg.size = st.flushed          # what is staged is dropped with its segment
    st.stage_at = st.flushed
    st.unflushed = 0
    if st.wfd >= 0:
        c_close(st.wfd)
        st.wfd = -1
    seg = store_add_segment(st, last + 1)
    if seg == NULL:
        return -1
    st.wseg = seg
    st.flushed = st.stage_at = SEGMENT_HEADER
    i = store_index(st, st.rseg.id + 1)
    while st.segs[i] is not seg:
        store_remove_segment(st, st.segs[i])
    return 0


cdef int compare_u32(const void* a, const void* b) noexcept nogil:
    cdef u32 x = (<const u32*>a)[0], y = (<const u32*>b)[0]
    return 1 if x > y else (-1 if x < y else 0)


cdef int store_load_acks(store_t* st, seg_t* seg) noexcept nogil:
    """Read acks.N of a segment whose size is known: sorted, without the zero tail, duplicates and
    positions behind the data. 0, or -1 with errno."""
    cdef int fd = segment_open(st, b"acks", seg.id, O_RDONLY)
    cdef u32 cap = 0, n = 0, _i, i, kept = 0
    cdef u32* grown
    cdef i64 got
    if fd < 0:
        return 0 if errno == ENOENT else -1
    while True:
        if n + 16384 > cap:
            cap = cap * 2 + 16384
            grown = <u32*>realloc(seg.deleted, <u64>cap * 4)
            if grown == NULL:
                c_close(fd)
                return -1
            seg.deleted = grown
        got = read_at(fd, <u8*>&seg.deleted[n], 65536, <i64>n * 4)
        if got < 4 or n > seg.size:     # more positions than bytes: doubles without end
            break
        for _i in range(<u32>(got // 4)):
            if seg.deleted[n] == 0:
                break
            n += 1
        else:
            if got == 65536:
                continue
        break
    c_close(fd)
    if got < 0:
        return -1
    seg.ack_size = n * 4
    qsort(seg.deleted, n, 4, compare_u32)
    for i in range(n):
        if seg.deleted[i] < seg.size and (kept == 0 or seg.deleted[kept - 1] != seg.deleted[i]):
            seg.deleted[kept] = seg.deleted[i]
            kept += 1
    seg.n_deleted = kept
    return 0


cdef int store_scan(store_t* st, pool_t* pool, seg_t* seg) noexcept nogil:
    """Count the records of a segment by walking them; its size becomes the end of the last whole
    one. 0, or -1 with errno."""
    cdef rec_t rec
    cdef u32 pos = SEGMENT_HEADER, end = SEGMENT_HEADER
    cdef int rc
    seg.count = 0
    while True:
        rc = store_walk(st, pool, seg, &pos, seg.count, &rec)
        if rc != 1:
            break
        pos += rec.size
        end = pos
        seg.count += 1
    seg.size = end
    return rc


cdef i64 store_match_deleted(store_t* st, pool_t* pool, seg_t* seg) noexcept nogil:
    """Walk a segment that has deleted records: keep the positions where a record starts, count all.

    Returns the bytes of the deleted records, or -1 with errno.
    A position inside a record is damage and is dropped."""
    cdef rec_t rec
    cdef i64 total = 0
    cdef u32 pos = SEGMENT_HEADER, end = SEGMENT_HEADER, count = 0, next_ = 0, kept = 0
    cdef int rc
    if seg.n_deleted == 0:
        return 0
    while True:
        rc = store_walk(st, pool, seg, &pos, count, &rec)
        if rc != 1:
            break
        while next_ < seg.n_deleted and seg.deleted[next_] < pos:
            next_ += 1
        if next_ < seg.n_deleted and seg.deleted[next_] == pos:
            seg.deleted[kept] = pos
            kept += 1
            total += rec.size
        pos += rec.size
        end = pos
        count += 1
    if rc < 0:
        return -1
    if seg.written > count + seg.n_deleted - kept:
        st.lost += seg.written - count - (seg.n_deleted - kept)
    seg.n_deleted = kept
    seg.count = count
    seg.size = end
    return total
