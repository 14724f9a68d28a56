# Cursor: reading the messages of a store: the next one, those that were requeued, any by position.
#
# Records come from the staged tail, or from a window of the file read around the last position.
# Passing what is deleted can be long: it stops when the portion is over, and the next call goes on.
# Behind damage reading goes on where salvage.pyx finds the next record. Called by queue.pyx,
# channel.pyx and load.pyx; shares store_t with store.pyx, which writes.
# Source: docs/formats.md.


# ---- requeued records ----------------------------------------------------------------------------

cdef int store_requeue(store_t* st, u32 seg, u32 pos, bint is_fresh) noexcept nogil:
    """Put a record back in front of the cursor, in its original order.
    0, or -1 when out of memory."""
    cdef loc_t* grown
    cdef loc_t item
    if st.n_requeued == st.cap_requeued:
        grown = <loc_t*>realloc(st.requeued, (st.cap_requeued * 2 + 64) * sizeof(loc_t))
        if grown == NULL:
            return -1
        st.requeued = grown
        st.cap_requeued = st.cap_requeued * 2 + 64
    item.seg = seg
    item.pos = pos
    item.is_fresh = is_fresh
    heap_rise(st.requeued, st.n_requeued, item)
    st.n_requeued += 1
    return 0


cdef void store_pop_requeued(store_t* st) noexcept nogil:
    st.n_requeued -= 1
    if st.n_requeued == 0:
        if st.cap_requeued > 1024:      # a large burst does not stay in memory
            free(st.requeued)
            st.requeued = NULL
            st.cap_requeued = 0
        return
    heap_sink(st.requeued, st.n_requeued, 0, st.requeued[st.n_requeued])


cdef void store_remove_requeued(store_t* st, u32 i) noexcept nogil:
    """Take one out of the heap of requeued ones, wherever it is."""
    st.n_requeued -= 1
    if i < st.n_requeued:
        heap_replace(st.requeued, st.n_requeued, i, st.requeued[st.n_requeued])


# ---- reading -------------------------------------------------------------------------------------

cdef int store_fill_window(store_t* st, pool_t* pool, window_t* w, seg_t* seg, u32 pos,
                           u32 need, u32 wish) noexcept nogil:
    """Read the file of seg from pos, or from somewhere before: at least `need` bytes, up to `wish`.
    0 done, -1 torn or given up, -2 errno."""
    cdef u32 limit = st.flushed if seg is st.wseg else seg.size
    cdef u32 want
    cdef span_t span
    cdef i64 got
    cdef int fd
    if need > limit - pos:
        return -1
    span_set(&span, st, seg.id, pos, need, wish, limit)
    if span.key and st.loop.sums.n_bad and sums_has_bad(
            st.loop.sums, span.key, pos, pos + <u64>1):
        w.len = 0
        return segment_spoiled(st)
    need, want = span.least - span.at, span.most - span.at
    if w.buf == NULL or w.cap < need or (w.cap > BLOCK_SIZE and need <= BLOCK_SIZE):
        buffer_give(pool, w.buf, w.cap)
        w.len = 0
        w.cap = BLOCK_SIZE if need <= BLOCK_SIZE else need
        w.buf = block_take(pool) if need <= BLOCK_SIZE else <u8*>malloc(need)
        if w.buf == NULL:
            w.cap = 0
            return -2
    if want > w.cap:
        want = w.cap
    if seg is st.wseg and st.wfd >= 0:
        fd = st.wfd
    else:
        fd = window_file(w, st, seg.id)
    if fd < 0:
        return -2
    w.len = 0
    got = read_at(fd, w.buf, want, span.at)
    if got < 0:
        return -2
    return window_take(w, st, seg.id, &span, <u32>got, limit)


# hot
cdef int store_read(store_t* st, pool_t* pool, window_t* w, seg_t* seg, u32 pos, u32 wish,
                    rec_t* rec) noexcept nogil:
    """Slice the record at pos of seg, reading about `wish` bytes when it is not in memory.

    1 done, -1 no whole record is there, -2 with errno. The slices are valid until the next call on
    this store. Of a large record that is not in memory the body is left where it is: see
    store_copy_body. Cost: 5 ns when staged or in the window."""
    cdef u32 avail = 0, need, limit = (st.flushed if seg is st.wseg else seg.size) - pos
    cdef int rc
    if w == NULL:
        return -2
    rec.seg = seg.id
    rec.pos = pos
    if seg is st.wseg and pos >= st.stage_at:
        return 1 if record_parse(st.stage + (pos - st.stage_at), seg.size - pos, rec) == 1 else -1
    if w.len and w.seg == seg.id and pos >= w.at and pos < w.at + w.len:
        avail = w.at + w.len - pos
        rc = record_parse(w.buf + (pos - w.at), avail, rec)
        if rc:
            return rc
        if record_is_far(rec):
            return record_stays(st, rec, limit)
    else:
        rec.size = 1
    while avail < limit:
        need = rec.size if rec.size > avail else avail + 1
        rc = store_fill_window(st, pool, w, seg, pos, need if need < limit else limit, wish)
        if rc:
            return rc
        avail = w.at + w.len - pos
        rc = record_parse(w.buf + (pos - w.at), avail, rec)
        if rc:
            return rc
        if record_is_far(rec):
            return record_stays(st, rec, limit)
    return -1


# ---- bodies that are not in memory ---------------------------------------------------------------

cdef bint record_is_far(rec_t* rec) noexcept nogil:
    """Whether a record that runs past what was read is large, and all but its body is here: that
    stays in the file then."""
    if rec.size <= LARGE_RECORD or rec.body == NULL:
        return False
    rec.body = NULL
    return True


cdef inline bint record_has_far_body(const rec_t* rec) noexcept nogil:
    return rec.body == NULL


cdef inline i64 record_body_at(const rec_t* rec) noexcept nogil:
    """Where its body is in the file."""
    return rec.pos + <i64>(rec.size - rec.body_len)


cdef int store_open_body(store_t* st, u32 seg) noexcept nogil:
    """A descriptor, the caller's, of the file of a segment; -1 with errno."""
    if seg == st.wseg.id and st.wfd >= 0:
        return c_dup(st.wfd)
    return segment_open(st, b"msgs", seg, O_RDONLY)


cdef int store_copy_body(store_t* st, const rec_t* rec, u8* p, u64 n) noexcept nogil:
    """Copy the first n bytes of a body to p, in one go. 0, or -1 with errno."""
    cdef proof_t* proof
    cdef i64 got = -1
    cdef int fd
    if not record_has_far_body(rec):
        memcpy(p, rec.body, n)
        return 0
    fd = store_open_body(st, rec.seg)
    if fd < 0:
        return -1
    proof = proof_new(st, rec.seg, <u64>record_body_at(rec), n)
    if proof_holds(proof, fd, <u64>record_body_at(rec), n) == 0:
        got = read_at(fd, p, n, record_body_at(rec))
        if got >= 0:
            set_errno(EIO)
    free(proof)
    close_failed(fd)
    return 0 if got == <i64>n else -1


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
    for i in range(seg.n_deleted):
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
        rc = store_read(st, pool, store_window(st), seg, pos[0], BLOCK_SIZE, rec)
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


cdef enum:
    PEEK_LATER = 2
    PASS_LOOK = 256             # deleted records passed between two looks at the portion
    PASS_UNITS = 10             # of work for each of them
    REMOVAL_UNITS = 5000        # of work, for a segment that may be removed


# hot
cdef int store_peek(store_t* st, loop_t* loop, rec_t* rec) noexcept nogil:
    """The next record to deliver: requeued ones first, then the cursor's. Does not move.

    1 done, 0 nothing left, -1 the cursor stands on junk, -2 with errno, -3 a requeued record is
    unreadable, PEEK_LATER: the portion was over while the cursor passed deleted ones."""
    cdef pool_t* pool = &loop.pool
    cdef seg_t* seg
    cdef u32 n_passed = 0
    cdef int rc
    if st.n_requeued:
        rec.is_requeued = True
        rec.redelivered = not st.requeued[0].is_fresh
        seg = store_segment(st, st.requeued[0].seg)
        if seg == NULL:
            return -3
        rc = store_read(st, pool, store_window(st), seg, st.requeued[0].pos, 16384, rec)
        return -3 if rc == -1 else rc
    rec.redelivered = rec.is_requeued = False
    while True:
        seg = st.rseg
        if st.rpos >= seg.size:
            if seg is st.wseg:
                return 0
            store_next_segment(st)
            loop.work += REMOVAL_UNITS
            continue
        rc = store_read(st, pool, store_window(st), seg, st.rpos, BLOCK_SIZE, rec)
        if rc < 0:
            return rc
        if seg.n_deleted and seg.deleted[0] <= st.rpos:
            if seg.deleted[0] == st.rpos:
                st.rpos += rec.size
                st.passed += 1
            segment_pop_deleted(seg)
            n_passed += 1
            if n_passed % PASS_LOOK == 0 and loop_spent(loop, PASS_LOOK * PASS_UNITS):
                return PEEK_LATER
            continue
        return 1


# hot
cdef inline void store_take(store_t* st, const rec_t* rec) noexcept nogil:
    """Move past the record that store_peek returned."""
    if rec.is_requeued:
        store_pop_requeued(st)
    else:
        st.rpos += rec.size
        st.passed += 1
        lmq_assert(st.rpos <= st.rseg.size)
