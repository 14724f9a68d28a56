# Stream view: a stream that is read here and written elsewhere, as by a follower of a cluster.
#
# Its files are a copy, which a thread that knows nothing of queues goes on writing. Nothing is put
# right here, and nothing is looked for: the caller says which segments there are, and up to where
# they may be read, which it knows from the log of changes. What was shown once never changes.
# Called by door/stream_view.pyx, and by stream.pyx for files that have gone. Source: decision 0121.

cdef enum:
    VIEW_RECORDS = 20000        # that are counted in one go
    VIEW_BYTES = 4194304        # and of how many bytes


cdef int view_add(queue_t* q, u32 id, i64 first) noexcept nogil:
    """A segment begins behind all others. 0, or -1 out of memory.

    Args: first: the offset of its first message, if that is higher than the one that is next."""
    cdef store_t* st = q.store
    cdef stream_t* s = q.stream
    cdef seg_t* seg = store_add_segment(st, id)
    if seg == NULL:
        set_errno(ENOMEM)
        return -1
    if first > s.next_offset:
        s.next_offset = first
    seg.first_offset = s.next_offset
    st.wseg = st.rseg = seg
    st.rpos = st.flushed = st.stage_at = st.synced = SEGMENT_HEADER
    return 0


cdef void view_fill(queue_t* q, u32 size, u32 count, i64 first_ms, i64 last_ms) noexcept nogil:
    """The segment that was added last is finished: this is in it."""
    cdef store_t* st = q.store
    cdef seg_t* seg = st.wseg
    seg.size = st.flushed = st.stage_at = st.synced = size
    seg.count = seg.written = count
    seg.first_ms = first_ms
    seg.last_ms = last_ms
    q.stream.next_offset += count
    q.ready += count
    q.ready_bytes += size - SEGMENT_HEADER


cdef void view_count(queue_t* q, seg_t* seg, const rec_t* rec) noexcept nogil:
    """One message more may be read, at the end of the last segment."""
    cdef i64 at_ms = <i64>le64(rec.names - 8)
    if seg.count == 0:
        seg.first_ms = at_ms
    if seg.last_ms < at_ms:
        seg.last_ms = at_ms
    if seg.size >= seg.marked_to + <u64>MARK_BYTES:
        stream_mark(q, seg, seg.size, seg.count, at_ms)
    seg.count += 1
    seg.size += rec.size
    q.stream.next_offset += 1
    q.ready += 1
    q.ready_bytes += rec.size


cdef int view_reach(queue_t* q, u32 id, u32 end) noexcept nogil:
    """A segment may be read up to there. 0: that is so, or what comes next is no whole message; 1:
    there is more to count, others have their turn; -1 with errno."""
    cdef store_t* st = q.store
    cdef seg_t* seg
    cdef rec_t rec
    cdef u32 n = 0, limit
    cdef int rc = 1
    if id > st.wseg.id and view_add(q, id, 0):
        return -1
    seg = st.wseg
    if id != seg.id or end <= seg.size:
        return 0
    limit = seg.size + <u32>VIEW_BYTES if end - seg.size > <u32>VIEW_BYTES else end
    st.flushed = st.stage_at = end
    while seg.size < limit and n < VIEW_RECORDS:
        rc = store_read(st, &q.loop.pool, store_window(st), seg, seg.size, BLOCK_SIZE, &rec)
        if rc != 1:
            break
        view_count(q, seg, &rec)
        n += 1
    st.flushed = st.stage_at = st.synced = seg.size
    store_drop_window(st, &q.loop.pool)
    if n:
        queue_touch(q)
    if rc == -2:
        return -1
    return rc == 1 and seg.size < end


cdef void view_forget(queue_t* q, u32 id) noexcept nogil:
    """The segments up to this one have gone after their time. The last one stays."""
    cdef store_t* st = q.store
    while st.n_segs > 1 and st.segs[0].id <= id:
        stream_drop_first(q)


cdef void view_passed(queue_t* q, consumer_t* k) noexcept nogil:
    """A file is gone that a consumer was to read: its segment and all before it are. If it is the
    last one, the stream is: who removes it here is about to hear of that."""
    cdef u32 id = k.reader.window.fd_seg
    if id < q.store.wseg.id:
        view_forget(q, id)
        return
    consumer_leave_ring(k)
    if not k.is_patient:
        loop_add_patient(q.loop, k)
