# Stream load: opening the directory of a stream, and numbering what is in it.
#
# Finished segments have their facts in meta files; those without, and the newest, are walked.
# Offsets are counted from segment to segment. Where that is not possible, because one is missing or
# damaged, what the meta file or the marker says counts; an offset is never lower than one before
# it. Called once per stream by the door, at start, and in steps when a closed one is restarted.
# Source: docs/formats.md, streams.

cdef enum:
    OFFSET_MAX = 0x4000000000000000     # with a cast: by itself it may be taken for an int


cdef list stream_load(queue_t* q, dict entries, bint is_synced):
    """queue_load for a stream; `is_synced`, whether all that is found is known to be on disk.
    Returns lines for the log."""
    cdef store_t* st = q.store
    cdef u32 i
    notes = []
    for i in range(stream_find(q, entries, notes)):
        stream_load_segment(q, st.segs[i], entries)
    stream_number(q)
    for i in range(st.n_segs):
        stream_end_segment(q, st.segs[i])
    stream_loaded(q, is_synced, entries, notes)
    notes += tracks_load(q, entries, stream_first(q))
    stream_all_read(q)
    return notes


cdef u32 stream_find(queue_t* q, dict entries, list notes) except? 0:
    """Find the segments of a stream; nothing is read yet. Returns how many there are to read."""
    cdef store_t* st = q.store
    q.stream.changed_seg = 0
    found = find_segments(st, entries, notes)
    stream_find_marker(q, entries)
    for id, size in found:
        stream_add_segment(st, id, <u32>size)
    if not found and q.stream.marker_seg:
        notes.append(f"{store_directory(st)}: no segment is left, offsets go on at "
                     f"{q.stream.marker_offset}")
        stream_add_segment(st, q.stream.marker_seg, SEGMENT_HEADER)
    return <u32>len(found)


cdef int stream_loaded(queue_t* q, bint is_synced, dict entries, list notes) except -1:
    """All segments were read, numbered and ended: what consumers have stored comes next."""
    if q.store.n_segs:
        stream_end_load(q, entries, notes)
    stream_begin_syncs(q, is_synced)
    return 0


cdef void stream_all_read(queue_t* q) noexcept nogil:
    """All is read."""
    stream_look(q)
    store_drop_window(q.store, &q.loop.pool)


cdef stream_add_segment(store_t* st, u32 id, u32 size):
    cdef seg_t* seg = store_add_segment(st, id)
    if seg == NULL:
        raise MemoryError()
    seg.size = size
    st.wseg = st.rseg = seg
    st.flushed = st.stage_at = st.synced = size


cdef void stream_begin_syncs(queue_t* q, bint is_synced) noexcept nogil:
    """Note what is on disk. After an end without order that is not known: the kernel may still have
    it in memory."""
    cdef store_t* st = q.store
    cdef stream_t* s = q.stream
    memset(&s.synced, 0, sizeof(reach_t))
    memset(s.awaited, 0, sizeof(s.awaited))
    s.synced.offset = s.next_offset if is_synced else stream_first(q)
    s.unsynced_seg = 0
    if st.n_segs:
        s.synced.seg = st.wseg.id if is_synced else st.segs[0].id
        s.synced.pos = st.flushed if is_synced else SEGMENT_HEADER
        s.unsynced_seg = s.synced.seg
        st.is_unsynced = st.is_dir_unsynced = not is_synced


cdef stream_set_created(queue_t* q, str value):
    """Note what tells the stream from others that have its name; what is none is ignored."""
    cdef bytes text = value.encode("utf-8", "replace")
    cdef Py_ssize_t most = sizeof(q.stream.created) - 1
    if value.isascii() and value.isprintable() and 0 < len(text) <= most:
        memcpy(q.stream.created, PyBytes_AS_STRING(text), len(text) + 1)


cdef stream_find_marker(queue_t* q, dict entries):
    """Find the name that tells where a segment begins; the newest counts, others go. And the one
    that tells the stream from others."""
    found, identities = [], []
    for name in entries:
        parts = name.split(".")
        if parts[0] == "created" and len(parts) == 2:
            identities.append(parts[1])
        if (len(parts) == 3 and parts[0] == "first" and len(parts[1]) == 10
                and all(part.isascii() and part.isdigit() for part in parts[1:])
                and 0 < int(parts[1]) < 0xFFFFFFFF and 0 < int(parts[2]) < <i64>OFFSET_MAX):
            found.append((int(parts[1]), int(parts[2]), name))
    if identities:
        stream_set_created(q, min(identities))
    if not found:
        return
    found.sort()
    newest = found.pop()
    for _, _, name in found:
        if entries[name].is_file():
            unlink_file(q.loop, entries[name].path)
    q.stream.marker_seg = newest[0]
    q.stream.marker_offset = newest[1]


cdef bint load_stream_meta(store_t* st, seg_t* seg) except -1:
    """Take the facts of a finished segment from its meta file. Whether they are all there; the
    first offset is taken from what is left of them."""
    cdef u8 facts[STREAM_META]
    cdef i64 got = read_meta(st, seg.id, facts, STREAM_META)
    cdef u64 first_ms, last_ms
    if got < 12 or not 0 < <i64>le64(facts + 4) < <i64>OFFSET_MAX:
        return False
    seg.first_offset = <i64>le64(facts + 4)
    if got < STREAM_META or not 0 < le32(facts) <= seg.size // RECORD_FIXED:
        return False
    first_ms, last_ms = le64(facts + 12), le64(facts + 20)
    if not (0 < first_ms < NEWEST_MS and 0 < last_ms < NEWEST_MS):
        return False
    seg.count = seg.written = le32(facts)
    seg.first_ms = <i64>first_ms
    seg.last_ms = <i64>last_ms
    return True


cdef stream_load_segment(queue_t* q, seg_t* seg, dict entries):
    """Count the records of a segment: by its meta file, or by walking it."""
    cdef store_t* st = q.store
    cdef u32 size = seg.size, data_end
    cdef i64 gone
    if (f"meta.{seg.id:010d}" in entries and load_stream_meta(st, seg)
            and seg is not st.wseg):
        return
    seg.written = 0
    if store_scan(st, &q.loop.pool, seg, &data_end, &gone):
        raise os_error(st, "msgs", seg.id)
    if seg.damaged_at and q.stream.changed_seg == 0:
        stream_note_changed(q, seg)
    if seg is not st.wseg:
        seg.is_reserved = data_end < size
        return
    load_newest(st, seg, size, data_end)


cdef void stream_note_changed(queue_t* q, seg_t* seg) noexcept nogil:
    """A segment was walked and is damaged. Where nobody knows how many records the damage had, what
    follows has lower offsets than it had: note how many come before."""
    cdef store_t* st = q.store
    cdef rec_t rec
    cdef u32 pos = SEGMENT_HEADER, at = SEGMENT_HEADER, i
    q.stream.changed_seg = seg.id
    q.stream.changed_passed = 0
    for i in range(st.n_gaps):
        if st.gaps[i].seg == seg.id:
            at = st.gaps[i].pos             # the first one; none when there are too many
            break
    if at >= seg.size:                      # behind all records, as a loss of power leaves it
        q.stream.changed_passed = seg.count
        return
    while pos < at and store_walk(st, &q.loop.pool, seg, &pos, q.stream.changed_passed, &rec) == 1:
        pos += rec.size
        q.stream.changed_passed += 1


cdef void stream_number(queue_t* q) noexcept nogil:
    """Give each segment the offset of its first record."""
    cdef store_t* st = q.store
    cdef stream_t* s = q.stream
    cdef seg_t* seg
    cdef seg_t* before
    cdef i64 next_
    cdef u32 i, known = 0
    s.damaged_offset = s.changed_offset = 0
    if st.n_segs == 0:
        return
    if s.marker_seg:
        seg = store_segment(st, s.marker_seg)
        if seg != NULL and seg.id == s.marker_seg and seg.first_offset < s.marker_offset:
            seg.first_offset = s.marker_offset
    while known < st.n_segs and st.segs[known].first_offset == 0:
        known += 1
    if known == st.n_segs:
        known = 0
        st.segs[0].first_offset = 1
    for i in range(known, 0, -1):           # back to the first one
        st.segs[i - 1].first_offset = st.segs[i].first_offset - st.segs[i - 1].count
    if known and st.segs[0].id == 1:
        st.segs[0].first_offset = 1
        known = 0
    if st.segs[0].first_offset < 1:
        st.segs[0].first_offset = 1
    for i in range(1, st.n_segs):
        before = st.segs[i - 1]
        next_ = before.first_offset + before.count
        seg = st.segs[i]
        if seg.first_offset < next_ or (seg.id == before.id + 1 and seg.id != s.marker_seg
                                        and before.damaged_at == 0):
            seg.first_offset = next_
        elif (before.damaged_at and before.written == 0 and seg.id == before.id + 1
                and seg.first_offset - before.first_offset < before.size):
            # Its end is known, and so is how many records the damage had.
            before.count = <u32>(seg.first_offset - before.first_offset)
            if before.id == s.changed_seg and next_ < seg.first_offset:
                s.changed_seg = 0
    s.next_offset = st.wseg.first_offset + st.wseg.count
    s.seen_offset = s.next_offset
    if s.changed_seg:
        i = store_index(st, s.changed_seg)
        s.damaged_offset = st.segs[i].first_offset + s.changed_passed
        # What was numbered back from a later segment is too high as far as the damage.
        s.changed_offset = st.segs[0].first_offset if i < known else s.damaged_offset


cdef void stream_end_segment(queue_t* q, seg_t* seg) noexcept nogil:
    """Count what a numbered segment has; write its meta file if that is missing."""
    cdef store_t* st = q.store
    q.ready += seg.count
    q.ready_bytes += seg.size - SEGMENT_HEADER
    if seg is st.wseg or seg.written or seg.damaged_at or seg.count == 0:
        return
    if seg.is_reserved:
        segment_finish(st, seg)
    else:
        segment_write_meta(st, seg)     # a cache: if it fails the next start walks again


cdef stream_end_load(queue_t* q, dict entries, list notes):
    """Go on in a new segment where the newest is damaged, or where the marker says."""
    cdef store_t* st = q.store
    if st.wseg.damaged_at:
        load_leave_segment(st)
        st.wseg.first_offset = q.stream.next_offset
    if q.stream.marker_seg > st.wseg.id and q.stream.marker_offset > q.stream.next_offset:
        # It was begun, and is lost together with the end of the one before.
        notes.append(f"{store_directory(st)}: offsets {q.stream.next_offset} to "
                     f"{q.stream.marker_offset - 1} are lost")
        stream_add_segment(st, q.stream.marker_seg, SEGMENT_HEADER)
        st.is_untrimmed = False
        q.stream.next_offset = q.stream.seen_offset = q.stream.marker_offset
        st.wseg.first_offset = q.stream.next_offset
    st.rseg = st.wseg
    st.rpos = SEGMENT_HEADER
    if ((st.wseg.first_offset == 1 or stream_write_marker(q) == 0)
            and f"meta.{st.wseg.id:010d}" in entries):
        drop_meta(st, st.wseg.id)
