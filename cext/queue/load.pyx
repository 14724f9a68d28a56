# Load: opening what a queue's directory holds, whatever state it was left in.
#
# Everything is looked at before anything is changed: a directory that cannot be understood closes
# the queue and stays as it is. What files there are says found.pyx. Called once per queue by the
# door, at start.
# Source: docs/formats.md.
from libc.stdlib cimport qsort

cdef enum:
    FILLER_HEAD = 20            # of compaction: time, no names, no properties, size of the body
    FILLER_MS = 1               # its time, which no message has


cdef str store_directory(const store_t* st):
    """The queue's directory; empty when the queue has let go of it."""
    if st.basename == NULL:
        return ""
    return f"{os.fsdecode(st.dirname)}/{os.fsdecode(st.basename)}"


cdef void store_forget(store_t* st, pool_t* pool):
    """Back to an empty store after a load that failed; files stay."""
    cdef const char* dirname = st.dirname
    cdef const char* basename = st.basename
    cdef u32 segment_size = st.segment_size
    cdef bint is_durable = st.is_durable, is_nested = st.is_nested, is_stream = st.is_stream
    cdef u8 level = st.level
    store_release(st, pool)
    store_init(st, st.loop, dirname, basename, segment_size, is_durable)
    st.level, st.is_nested, st.is_stream = level, is_nested, is_stream


cdef void queue_forget(queue_t* q):
    """Back to empty stores after a load that failed; files stay."""
    cdef u32 i
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL and not queue_level(q, i).is_vacant:
            store_forget(queue_level(q, i), &q.loop.pool)
    q.ready = q.ready_bytes = 0
    queue_clear_levels(q)


cdef str queue_directory(const queue_t* q):
    """Its directory, in which a priority queue has one for each level."""
    if q.levels != NULL:
        return os.fsdecode(q.levels.dirname)
    return f"{os.fsdecode(q.dirname)}/{os.fsdecode(queue_basename(q))}"


cdef list queue_load(queue_t* q, dict entries):
    """Load segments, counts and deletions; `entries` of the queue's directory. Returns lines for
    the log."""
    cdef store_t* st
    cdef u32 i, at
    cdef u64 before
    notes = []
    if q.store.is_vacant and entries.keys() <= {".queue"}:
        return notes
    for i in range(queue_levels(q)):
        st = load_level(q, i, entries)
        if st == NULL:
            continue
        before = q.ready
        own = entries if q.levels == NULL else entries_of(st)
        load_find(st, own, notes)
        for at in range(st.n_segs):
            load_segment(q, st, at, own, notes)
        load_end(q, st, before, own)
    queue_loaded(q)
    return notes


cdef store_t* load_level(queue_t* q, u32 level, dict entries) except? NULL:
    """The store of a level; NULL when it has no files."""
    cdef store_t* st
    if level:
        entry = entries.get(f"prio.{level:03d}")
        if entry is None or not entry.is_dir():
            return NULL
    st = queue_own_store(q) if q.levels == NULL else queue_make_level(q, level)
    if st == NULL:
        raise MemoryError()
    return st


cdef queue_loaded(queue_t* q):
    """All stores are loaded. What is there may have deadlines and targets of its own: they are
    found on the way out."""
    if q.releases != NULL:
        if delayed_index(q):
            raise OSError(errno, os.strerror(errno), store_directory(q.store))
        if q.store.n_segs:
            load_drop_finished(q.store)
    elif q.ready:
        q.may_expire = q.may_bury = q.is_special = True


cdef void queue_begin(queue_t* q) noexcept nogil:
    """What was loaded is served from now on: have its deadlines looked for."""
    if q.ready and q.releases == NULL and q.stream == NULL:
        queue_set_due(q, q.loop.now_ms)
        queue_want_index(q)


cdef load_find(store_t* st, dict entries, list notes):
    """Find the segments of a store; nothing is read yet."""
    cdef seg_t* seg
    found = find_segments(st, entries, notes)
    for id, size in found:
        seg = store_add_segment(st, id)
        if seg == NULL:
            raise MemoryError()
        seg.size = <u32>size
        st.wseg = seg
    if not found:
        store_drop_window(st, &st.loop.pool)
        if "deliveries" in entries:
            store_drop_counts(st)
        return
    st.rseg = st.segs[0]
    st.flushed = st.stage_at = st.wseg.size


cdef load_segment(queue_t* q, store_t* st, u32 at, dict entries, list notes):
    """Read what a segment found there holds, and what of it was deleted."""
    cdef seg_t* seg = st.segs[at]
    cdef i64 gone = -1
    if f"acks.{seg.id:010d}" in entries and store_load_acks(st, seg):
        raise os_error(st, "acks", seg.id)
    load_count(st, seg, f"meta.{seg.id:010d}" in entries, &gone)
    load_deleted(q, st, seg, gone, notes)
    seg.acked = seg.n_deleted
    q.ready += seg.count - seg.acked if seg.count > seg.acked else 0


cdef load_end(queue_t* q, store_t* st, u64 before, dict entries):
    """All segments of a store were read; before it the queue had so many messages."""
    if st.n_segs == 0:
        return
    queue_count_level(q, st, <i64>(q.ready - before))
    if st.is_durable and "deliveries" in entries and counts_load(st):
        raise OSError(errno, os.strerror(errno), f"{store_directory(st)}/deliveries")
    # Whoever made the newest file may not have lived to sync its name.
    st.is_dir_unsynced = st.is_durable
    if st.wseg.damaged_at:
        load_leave_segment(st)
    if q.releases == NULL:      # else its index counts what there is
        load_drop_finished(st)
        while not queue_reconcile(q, st):
            pass
    store_drop_window(st, &q.loop.pool)
    if q.ready > before:
        st.tail_due_ms = NEVER


cdef load_count(store_t* st, seg_t* seg, bint has_meta, i64* gone):
    """Count the records of a segment: by its meta file, or by walking it. That tells the bytes of
    the deleted ones, too.

    The newest one is always walked. Filling at its end is not looked at, and junk there is moved to
    a file of its own, so that it can be written to; zeros are what the original preallocates."""
    cdef u32 size = seg.size, data_end
    cdef u8 facts[QUEUE_META]
    if has_meta and seg is not st.wseg:
        # A finished segment has records: one of which it says that it has none would be removed.
        if read_meta(st, seg.id, facts, QUEUE_META) == QUEUE_META and le32(facts):
            seg.count = seg.written = le32(facts)
            return
    if store_scan(st, &st.loop.pool, seg, &data_end, gone):
        raise os_error(st, "msgs", seg.id)
    if seg is not st.wseg:
        if st.is_durable and not seg.damaged_at:
            if data_end < size:
                segment_finish(st, seg)
            else:
                segment_write_meta(st, seg)     # a cache: if it fails the next start walks again
        return
    load_newest(st, seg, size, data_end)
    if has_meta and drop_meta(st, seg.id):
        sync_directory(store_directory(st))


cdef load_newest(store_t* st, seg_t* seg, u32 size, u32 data_end):
    """The newest segment was walked: writing goes on behind its data. Junk there is moved away."""
    st.is_untrimmed = seg.size != size
    if seg.damaged_at and seg.damaged_at >= seg.size:
        keep_tail(st.loop, f"{store_directory(st)}/msgs.{seg.id:010d}", seg.size, data_end)
        seg.damaged_at = 0
        store_forget_window(st)
    st.flushed = st.stage_at = st.synced = seg.size


cdef load_deleted(queue_t* q, store_t* st, seg_t* seg, i64 gone, list notes):
    """Take off the deleted records of a counted segment, which have so many bytes, if a walk has
    told.

    Positions behind the data are taken out of the file: a new message might come to stand there."""
    if gone < 0 or seg.n_fillers:
        gone = store_match_deleted(st, &q.loop.pool, seg)
    if gone < 0:
        raise os_error(st, "msgs", seg.id)
    q.ready_bytes += seg.size - SEGMENT_HEADER - gone
    if seg.n_deleted * 4 != seg.ack_size and not seg.damaged_at:
        if is_kept_out(st.loop):
            raise os_error(st, "acks", seg.id)
        path = f"{store_directory(st)}/acks.{seg.id:010d}"
        if seg.ack_size // 4 < seg.n_deleted:
            notes.append(f"{path}: {seg.n_deleted - seg.ack_size // 4} positions of deleted"
                         " messages were missing and are there again")
        else:
            notes.append(f"{path}: {seg.ack_size // 4 - seg.n_deleted} of {seg.ack_size // 4}"
                         " positions belong to no message and were dropped")
        sync_file(f"{store_directory(st)}/msgs.{seg.id:010d}")
        rewrite_acks(q.loop, path, PyBytes_FromStringAndSize(<char*>seg.deleted, seg.n_deleted * 4))
        seg.ack_size = seg.n_deleted * 4


cdef load_leave_segment(store_t* st):
    """The newest segment is damaged in the middle: nothing more is written to it."""
    cdef seg_t* seg = store_add_segment(st, st.wseg.id + 1)
    if seg == NULL:
        raise MemoryError()
    st.wseg = seg
    st.flushed = st.stage_at = SEGMENT_HEADER
    st.is_untrimmed = False


cdef load_drop_finished(store_t* st):
    """Put the cursor on the first message; remove finished segments that have none left."""
    cdef seg_t* seg
    cdef u32 i = 0
    st.rpos = SEGMENT_HEADER
    while i < st.n_segs - 1:
        seg = st.segs[i]
        if seg.acked < seg.count:
            i += 1
        elif seg is st.rseg:
            st.passed = seg.count
            store_next_segment(st)          # removes it
        else:
            store_remove_segment(st, seg)


cdef object os_error(const store_t* st, str kind, u32 id):
    """What errno says, about a file of one segment."""
    cdef int error = errno
    return OSError(error, os.strerror(error), f"{store_directory(st)}/{kind}.{id:010d}")


cdef inline bint record_is_filler(const rec_t* rec) noexcept nogil:
    """Whether a record stands for deleted ones, whatever acks.N says (compaction.pyx)."""
    return le64(rec.names - 8) == FILLER_MS and rec.names_len == 2 and rec.props_len == 2


# ---- counting and matching -----------------------------------------------------------------------

cdef int compare_u32(const void* a, const void* b) noexcept nogil:
    cdef u32 x = (<const u32*>a)[0], y = (<const u32*>b)[0]
    return 1 if x > y else (-1 if x < y else 0)


cdef bint is_rising(const u32* p, u32 n) noexcept nogil:
    """Whether so many numbers are in order, as positions are unless something was requeued."""
    cdef u32 i
    for i in range(1, n):
        if p[i] < p[i - 1]:
            return False
    return True


cdef int store_load_acks(store_t* st, seg_t* seg) noexcept nogil:
    """Read acks.N of a segment whose size is known: sorted, without the zero tail, duplicates and
    positions behind it. 0, or -1 with errno."""
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
    if not is_rising(seg.deleted, n):
        qsort(seg.deleted, n, 4, compare_u32)
    for i in range(n):
        if seg.deleted[i] < seg.size and (kept == 0 or seg.deleted[kept - 1] != seg.deleted[i]):
            seg.deleted[kept] = seg.deleted[i]
            kept += 1
    seg.n_deleted = kept
    return 0


cdef int store_scan(store_t* st, pool_t* pool, seg_t* seg, u32* data_end,
                    i64* gone) noexcept nogil:
    """Count the records of a segment by walking them; its size becomes the end of the last whole
    one, and `data_end` where the filling behind them begins. Of the deleted positions it keeps
    those where a record starts, as store_match_deleted does; `gone`: the bytes of these records.
    0, or -1 with errno.

    A record that a loss of power has left torn is blanked: it is junk then."""
    cdef rec_t rec
    cdef u8 pattern[PATTERN]
    cdef u32 pos = SEGMENT_HEADER, end = SEGMENT_HEADER, next_ = 0, kept = 0
    cdef window_t* w = store_window(st)
    cdef bint may_be_filled
    cdef i64 filled_at = seg.size
    cdef int rc
    if w == NULL or window_file(w, st, seg.id) < 0:
        return -1
    may_be_filled = seg.size >= RESERVE_FROM and reserve_pattern(w.fd, pattern) == 0
    if may_be_filled:
        filled_at = filling_start(w.fd, seg.size, pattern)
        if filled_at < 0:
            return -1
    data_end[0] = seg.size = <u32>filled_at
    gone[0] = 0
    if seg is st.wseg:
        st.flushed = st.stage_at = seg.size
    seg.count = 0
    while True:
        rc = store_walk(st, pool, seg, &pos, seg.count, &rec)
        if rc == 1 and may_be_filled and record_is_torn(w.fd, &rec, pattern):
            rc = store_blank(st, seg, pos)
            if rc == 0:
                continue
        if rc != 1:
            break
        while next_ < seg.n_deleted and seg.deleted[next_] < pos:
            next_ += 1
        if next_ < seg.n_deleted and seg.deleted[next_] == pos:
            seg.deleted[kept] = pos
            kept += 1
            gone[0] += rec.size
        pos += rec.size
        end = pos
        if seg.count == 0:
            seg.first_ms = <i64>le64(rec.names - 8)
        if seg.last_ms < <i64>le64(rec.names - 8):
            seg.last_ms = <i64>le64(rec.names - 8)
        seg.count += 1
        seg.n_fillers += record_is_filler(&rec)
    seg.n_deleted = kept
    segment_fit_deleted(seg)
    seg.size = end
    return rc


cdef i64 store_match_deleted(store_t* st, pool_t* pool, seg_t* seg) noexcept nogil:
    """Walk a segment that has deleted records: keep the positions where a record starts, and those
    of fillers, which an ack file may have lost; count all.

    Returns the bytes of the deleted records, or -1 with errno.
    A position inside a record is damage and is dropped."""
    cdef rec_t rec
    cdef i64 total = 0
    cdef u32 pos = SEGMENT_HEADER, end = SEGMENT_HEADER, count = 0, next_ = 0, kept = 0, named = 0
    cdef u32* found
    cdef bint is_named
    cdef int rc
    if seg.n_deleted == 0 and seg.n_fillers == 0:
        return 0
    found = <u32*>malloc((<u64>seg.n_deleted + seg.n_fillers + 1) * 4)
    if found == NULL:
        return -1
    while True:
        rc = store_walk(st, pool, seg, &pos, count, &rec)
        if rc != 1:
            break
        while next_ < seg.n_deleted and seg.deleted[next_] < pos:
            next_ += 1
        is_named = next_ < seg.n_deleted and seg.deleted[next_] == pos
        named += is_named
        if is_named or (record_is_filler(&rec) and kept - named < seg.n_fillers):
            found[kept] = pos
            kept += 1
            total += rec.size
        pos += rec.size
        end = pos
        count += 1
    if rc < 0:
        free(found)
        return -1
    if seg.written > count + seg.n_deleted - named:
        st.lost += seg.written - count - (seg.n_deleted - named)
    free(seg.deleted)
    seg.deleted = found
    seg.n_deleted = kept
    seg.count = count
    seg.size = end
    return total
