# Stream retention: whole segments go from the front when a stream has become too long, large or
# old.
#
# The write segment always stays. Offsets are not in the segments, and meta files go with them: that
# offsets are never used twice, a file without content tells by its name the first offset of the
# write segment: `first.<segment, 10 digits>.<offset>`. A file system that keeps the order of
# changes to directories cannot lose the name and keep what was changed after it, so it is not
# synced. A limit that is new, or a long stop, may have very many segments go: some at a time, the
# rest in the next turns. Called by stream.pyx, stream_load.pyx, expiry.pyx and the door.
# Source: docs/streams.md.

cdef enum:
    LOOK_MS = 60000             # between two looks for what is too old
    FINISH_SEGMENTS = 8         # whose filling is cut in one round
    RETAIN_NS = 1000000         # that a look may take,
    RETAIN_LEAST = 8            # but so many segments go
    OFFSETS_LOOK = 64           # of offsets, between two looks at the clock


# ---- the marker ----------------------------------------------------------------------------------

cdef void marker_path(const store_t* st, u32 seg, i64 offset, char* path) noexcept nogil:
    snprintf(path, PATH_MAX_BYTES, b"%s/%s/first.%010u.%lld", st.dirname, st.basename, seg,
             <long long>offset)


cdef int stream_write_marker(queue_t* q) noexcept nogil:
    """Have a name tell where the write segment begins. 0, or -1 with errno: tried again at the next
    roll, and before anything is removed."""
    cdef char path[PATH_MAX_BYTES]
    cdef store_t* st = q.store
    cdef stream_t* s = q.stream
    cdef i64 offset = segment_first(q, st.wseg)
    cdef int fd
    if s.marker_seg == st.wseg.id and s.marker_offset == offset:
        return 0
    marker_path(st, st.wseg.id, offset, path)
    fd = file_open(st.loop, path, O_RDWR | O_CREAT)
    if fd < 0:
        return -1
    c_close(fd)
    if s.marker_seg:
        marker_path(st, s.marker_seg, s.marker_offset, path)
        file_unlink(st.loop, path)
    s.marker_seg = st.wseg.id
    s.marker_offset = offset
    return 0


# ---- removing ------------------------------------------------------------------------------------

cdef void stream_drop_first(queue_t* q) noexcept nogil:
    """Remove the first segment, which is not the write segment. Readers in it go on behind it."""
    cdef store_t* st = q.store
    cdef seg_t* seg = st.segs[0]
    cdef u64 n_bytes = seg.size - SEGMENT_HEADER
    cdef consumer_t* k = q.stream.readers
    while k != NULL:
        window_forget(&k.reader.window, seg.id)
        if k.reader.seg is seg:
            reader_enter(q, k.reader, st.segs[1])
        k = k.reader.next
    q.ready -= seg.count if seg.count < q.ready else q.ready
    q.ready_bytes -= n_bytes if n_bytes < q.ready_bytes else q.ready_bytes
    q.stream.n_marks -= seg.n_marks
    store_remove_segment(st, seg)


cdef inline bint stream_is_over(const queue_t* q) noexcept nogil:
    """Whether the first segment is more than the limits allow."""
    cdef const stream_t* s = q.stream
    return (q.ready >= s.max_length or q.ready_bytes >= s.max_bytes
            or (s.max_age_ms >= 0
                and q.loop.now_ms - q.store.segs[0].last_ms > s.max_age_ms))


cdef bint stream_drop(queue_t* q, i64 ends_ns) noexcept nogil:
    """Remove segments that are over the limits, until then. Whether no more are to go now."""
    cdef store_t* st = q.store
    cdef u32 n = 0
    if st.n_segs < 2 or not stream_is_over(q) or stream_write_marker(q):
        return True
    queue_touch(q)
    while st.n_segs > 1 and stream_is_over(q):
        stream_drop_first(q)
        n += 1
        if n >= RETAIN_LEAST and loop_is_past(q.loop, ends_ns):
            return st.n_segs < 2 or not stream_is_over(q)
    return True


cdef bint tracks_drop_below(tracks_t* ts, const loop_t* loop, i64 first,
                            i64 ends_ns) noexcept nogil:
    """Forget offsets of messages that are gone; a start would do so too. Whether that is done: it
    ends then, and goes on where it was. Cost: a microsecond for each that goes."""
    cdef track_t* t
    cdef u32 n = 0
    while ts.next != NULL or ts.dropped < first:
        if ts.next == NULL:
            ts.next = ts.oldest
            ts.dropped = first      # once all have been looked at that there are now
            continue
        t = ts.next
        ts.next = t.newer
        if t.offset and t.offset < first:
            tracks_forget(ts, t)
            ts.is_stale = True
        n += 1
        if n % OFFSETS_LOOK == 0 and loop_is_past(loop, ends_ns):
            return False
    return True


cdef void stream_forget_gone(queue_t* q, bint is_done, i64 ends_ns) noexcept nogil:
    """Forget what consumers have stored of messages that are gone. What is left of that, or of
    segments that are to go, comes in the next turn."""
    if not tracks_drop_below(&q.stream.tracks, q.loop, stream_first(q), ends_ns) or not is_done:
        queue_set_due(q, q.loop.now_ms)
        q.loop.is_expiring = True


cdef bint stream_has_limits(const stream_t* s) noexcept nogil:
    return s.max_length != NO_LIMIT or s.max_bytes != NO_LIMIT or s.max_age_ms >= 0


cdef void stream_retain(queue_t* q) noexcept nogil:
    """Hold the stream to its limits, as far as that goes in a moment."""
    cdef i64 began_ns = clock_ns()
    cdef i64 ends_ns = began_ns + RETAIN_NS
    stream_forget_gone(q, not stream_has_limits(q.stream) or stream_drop(q, ends_ns), ends_ns)
    q.loop.work += <u32>((clock_ns() - began_ns) // 10)


# ---- from time to time ---------------------------------------------------------------------------

cdef void stream_look(queue_t* q) noexcept nogil:
    """The loop's clock says that it is time to look at the stream."""
    queue_set_due(q, q.loop.now_ms + LOOK_MS if stream_has_limits(q.stream) else NEVER)
    stream_retain(q)


cdef void stream_set_limits(queue_t* q, u64 max_length, u64 max_bytes,
                            i64 max_age_ms) noexcept nogil:
    """Replace the limits, and hold the stream to them at once."""
    q.stream.max_length = max_length
    q.stream.max_bytes = max_bytes
    q.stream.max_age_ms = max_age_ms
    if not q.is_deleted and not q.is_closed:
        stream_look(q)
