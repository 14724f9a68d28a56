# Load: opening what a queue's directory holds, whatever state it was left in.
#
# Everything is looked at before anything is changed: a directory that cannot be understood closes
# the queue and stays as it is. Called once per queue by the door, at start.
# Longer than 500 lines: what is looked at, and what is done about it, is read side by side.
# Source: storage reference section 15.
import stat as stat_

from libc.stdlib cimport qsort

cdef enum:
    READ_BYTES = 1 << 20
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
    cdef bytes basename = st.basename
    cdef u32 segment_size = st.segment_size
    cdef bint is_durable = st.is_durable
    cdef u8 level = st.level
    store_release(st, pool)
    if store_init(st, st.loop, dirname, basename, segment_size, is_durable):
        raise MemoryError()
    st.level = level


cdef void queue_forget(queue_t* q):
    """Back to empty stores after a load that failed; files stay."""
    cdef u32 i
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL:
            store_forget(queue_level(q, i), &q.loop.pool)
    q.ready = q.ready_bytes = 0
    queue_clear_levels(q)


cdef list queue_load(queue_t* q):
    """Load segments, counts and deletions. Returns lines for the log."""
    cdef store_t* st
    cdef u32 i, at
    cdef u64 before
    notes = []
    for i in range(queue_levels(q)):
        st = load_level(q, i)
        if st == NULL:
            continue
        before = q.ready
        load_find(st, notes)
        for at in range(st.n_segs):
            load_segment(q, st, at, notes)
        load_end(q, st, before)
    queue_loaded(q)
    return notes


cdef store_t* load_level(queue_t* q, u32 level) except? NULL:
    """The store of a level; NULL when it has no files."""
    cdef store_t* st
    if level and not is_directory(f"{os.fsdecode(q.store.dirname)}/prio.{level:03d}"):
        return NULL
    st = queue_level(q, level) if q.levels == NULL else queue_make_level(q, level)
    if st == NULL:
        raise MemoryError()
    return st


cdef queue_loaded(queue_t* q):
    """All stores are loaded. What is there may have deadlines and targets of its own: they are
    found on the way out."""
    if q.releases != NULL:
        if delayed_index(q):
            raise OSError(errno, os.strerror(errno), store_directory(&q.store))
        if q.store.n_segs:
            load_drop_finished(&q.store)
    elif q.ready:
        q.may_expire = q.may_bury = q.is_special = True
        queue_set_due(q, q.loop.now_ms)
        queue_want_index(q)


cdef load_find(store_t* st, list notes):
    """Find the segments of a store; nothing is read yet."""
    cdef seg_t* seg
    found = find_segments(st.loop, store_directory(st), notes)
    for id, size in found:
        seg = store_add_segment(st, id)
        if seg == NULL:
            raise MemoryError()
        seg.size = <u32>size
        st.wseg = seg
    if not found:
        store_drop_counts(st)
        return
    st.rseg = st.segs[0]
    st.flushed = st.stage_at = st.wseg.size


cdef load_segment(queue_t* q, store_t* st, u32 at, list notes):
    """Read what a segment found there holds, and what of it was deleted."""
    cdef seg_t* seg = st.segs[at]
    load_count(q, st, seg)
    load_deleted(q, st, seg, notes)
    seg.acked = seg.n_deleted
    q.ready += seg.count - seg.acked if seg.count > seg.acked else 0


cdef load_end(queue_t* q, store_t* st, u64 before):
    """All segments of a store were read; before it the queue had so many messages."""
    if st.n_segs == 0:
        return
    queue_count_level(q, st, <i64>(q.ready - before))
    if st.is_durable and counts_load(st):
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


cdef load_count(queue_t* q, store_t* st, seg_t* seg):
    """Count the records of a segment: by its meta file, or by walking it.

    The newest one is always walked. Filling at its end is not looked at, and junk there is moved to
    a file of its own, so that it can be written to; zeros are what the original preallocates."""
    cdef u32 size = seg.size, data_end
    directory = store_directory(st)
    if seg is not st.wseg:
        count = read_meta(f"{directory}/meta.{seg.id:010d}")
        if count is not None:
            seg.count = seg.written = count
            return
    if store_scan(st, &q.loop.pool, seg, &data_end):
        raise os_error(st, "msgs", seg.id)
    if seg is not st.wseg:
        if st.is_durable and not seg.damaged_at:
            if data_end < size:
                segment_finish(st, seg)
            else:
                segment_write_meta(st, seg)     # a cache: if it fails the next start walks again
        return
    load_newest(st, seg, size, data_end)


cdef load_newest(store_t* st, seg_t* seg, u32 size, u32 data_end):
    """The newest segment was walked: writing goes on behind its data. Junk there is moved away."""
    st.is_untrimmed = seg.size != size
    if seg.damaged_at and seg.damaged_at >= seg.size:
        keep_tail(st.loop, f"{store_directory(st)}/msgs.{seg.id:010d}", seg.size, data_end)
        seg.damaged_at = 0
        store_forget_window(st)
    if not st.is_stream and drop_meta(st, seg.id):
        sync_directory(store_directory(st))
    st.flushed = st.stage_at = st.synced = seg.size


cdef load_deleted(queue_t* q, store_t* st, seg_t* seg, list notes):
    """Load the deleted positions of a counted segment, and the bytes of what is left.

    Positions behind the data are taken out of the file: a new message might come to stand there."""
    cdef i64 gone
    if store_load_acks(st, seg):
        raise os_error(st, "acks", seg.id)
    gone = store_match_deleted(st, &q.loop.pool, seg)
    if gone < 0:
        raise os_error(st, "msgs", seg.id)
    q.ready_bytes += seg.size - SEGMENT_HEADER - gone
    if seg.n_deleted * 4 != seg.ack_size and not seg.damaged_at:
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


# ---- files ---------------------------------------------------------------------------------------

cdef list find_segments(loop_t* loop, str directory, list notes):
    """(id, size) of the segments of a directory, by rising id.

    Removes what holds nothing: segments of zeros or without a header, and, once it is on disk that
    they have none, acks and metas without a segment. Raises ValueError for what cannot be read as a
    segment; nothing is removed then."""
    ids = {"msgs": [], "acks": [], "meta": []}
    leftovers = []
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    for name in names:
        kind, _, number = name.partition(".")
        if name.startswith(("tmp.acks.", "tmp.msgs.")):
            leftovers.append(f"{directory}/{name}")
        elif kind in ids and len(number) == 10 and number.isascii() and number.isdigit():
            ids[kind].append(int(number))
            if not stat_.S_ISREG(os.stat(f"{directory}/{name}").st_mode):
                raise ValueError(f"{directory}/{name} is not a regular file")
    found, empty = [], []
    for id in sorted(ids["msgs"]):
        path = f"{directory}/msgs.{id:010d}"
        size = segment_size_of(path, id)
        if size:
            found.append((id, size))
        else:
            empty.append(path)
    known = {id for id, _ in found}
    stray = [f"{directory}/{kind}.{id:010d}" for kind in ("acks", "meta") for id in ids[kind]
             if id not in known]
    if stray:
        sync_directory(directory)
    for path in leftovers + stray:
        if remove_file(loop, path):
            notes.append(f"{path} belongs to no segment and was removed")
    for path in empty:
        unlink_file(loop, path)
        notes.append(f"{path} held nothing and was removed")
    return found


cdef object segment_size_of(str path, id):
    """Bytes of a segment file; 0 when it holds nothing. Raises ValueError when it is not one."""
    if id >= 0xFFFFFFFF:
        raise ValueError(f"{path} has an impossible number")
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(12)
        if size > 0xFFFFFFFF:
            raise ValueError(f"{path} is larger than 4 GiB")
        if len(head) < SEGMENT_HEADER:
            return 0
        version = int.from_bytes(head[:4], "little")
        if version == SCHEMA_VERSION:
            return size
        if any(head):
            raise ValueError(f"{path} has schema version {version}, expected {SCHEMA_VERSION}")
        while block := file.read(READ_BYTES):
            if block.count(0) != len(block):
                return size         # its beginning was lost, not all of it
    return 0


cdef object read_meta(str path):
    """Record count from meta.N, or None when it is missing, short or 0: a finished segment has
    records, and one that has none would be removed."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read(4)
    except FileNotFoundError:
        return None
    return int.from_bytes(data, "little") or None if len(data) == 4 else None


cdef str kept_name(str path):
    """Under which name a damaged file is kept: the first one that is free."""
    kept = f"{path}.damaged"
    for number in range(1, MAX_KEPT):
        if not os.path.lexists(kept):
            break
        kept = f"{path}.damaged.{number}"
    return kept


cdef keep_tail(loop_t* loop, str path, u32 position, u32 size):
    """Move the junk at the end of a segment to `<path>.damaged`, at the same offset: a sparse file,
    so that positions agree. Raises OSError; the segment is then as it was."""
    kept = kept_name(path)
    cdef int to = open_file(loop, kept, O_RDWR | O_CREAT | O_TRUNC)
    cdef int fd = -1
    try:
        fd = open_file(loop, path, O_RDWR)
        for at in range(position, size, READ_BYTES):
            block = os.pread(fd, min(READ_BYTES, size - at), at)
            if block.count(0) != len(block):
                write_file(loop, kept, CHANGE_APPEND, to, block, at)
        os.fsync(to)
        sync_directory(os.path.dirname(path))
        cut_file(loop, path, fd, position)
    finally:
        c_close(to)
        if fd >= 0:
            c_close(fd)


cdef rewrite_acks(loop_t* loop, str path, bytes positions):
    """Replace an ack file, by way of the name the original uses for it. The messages that it does
    not name any more must be on disk, or must be gone for good."""
    directory, _, name = path.rpartition("/")
    temporary = f"{directory}/tmp.{name}"
    cdef int fd = open_file(loop, temporary, O_RDWR | O_CREAT | O_TRUNC)
    try:
        write_file(loop, temporary, CHANGE_APPEND, fd, positions, 0)
        os.fsync(fd)
    finally:
        c_close(fd)
    rename_file(loop, temporary, path)
    sync_directory(directory)


cdef bint is_directory(str path) except -1:
    """Whether there is a directory. Raises OSError when the disk does not say: what is there would
    be written over, if it were taken for missing."""
    try:
        return stat_.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


cdef bint remove_file(loop_t* loop, str path) except -1:
    """Remove what is no directory; whether it was there. Raises OSError."""
    try:
        unlink_file(loop, path)
    except (FileNotFoundError, IsADirectoryError):
        return False
    return True


cdef sync_file(str path):
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())


cdef sync_directory(str path):
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


cdef bint drop_meta(const store_t* st, u32 id) except -1:
    """The newest segment was finished once, before those behind it were lost: it is written to
    again, and what its meta file says will not be true. Whether there was one."""
    return remove_file(st.loop, f"{store_directory(st)}/meta.{id:010d}")


cdef inline bint record_is_filler(const rec_t* rec) noexcept nogil:
    """Whether a record stands for deleted ones, whatever acks.N says (compaction.pyx)."""
    return le64(rec.names - 8) == FILLER_MS and rec.names_len == 2 and rec.props_len == 2


# ---- counting and matching -----------------------------------------------------------------------

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


cdef int store_scan(store_t* st, pool_t* pool, seg_t* seg, u32* data_end) noexcept nogil:
    """Count the records of a segment by walking them; its size becomes the end of the last whole
    one, and `data_end` where the filling behind them begins. 0, or -1 with errno.

    A record that a loss of power has left torn is blanked: it is junk then."""
    cdef rec_t rec
    cdef u8 pattern[PATTERN]
    cdef u32 pos = SEGMENT_HEADER, end = SEGMENT_HEADER
    cdef int fd = segment_open(st, b"msgs", seg.id, O_RDONLY)
    cdef bint may_be_filled
    cdef i64 filled_at = seg.size
    cdef int rc
    if fd < 0:
        return -1
    may_be_filled = seg.size >= RESERVE_FROM and reserve_pattern(fd, pattern) == 0
    if may_be_filled:
        filled_at = filling_start(fd, seg.size, pattern)
        if filled_at < 0:
            close_failed(fd)
            return -1
    data_end[0] = seg.size = <u32>filled_at
    if seg is st.wseg:
        st.flushed = st.stage_at = seg.size
    seg.count = 0
    while True:
        rc = store_walk(st, pool, seg, &pos, seg.count, &rec)
        if rc == 1 and may_be_filled and record_is_torn(fd, &rec, pattern):
            rc = store_blank(st, seg, pos)
            if rc == 0:
                continue
        if rc != 1:
            break
        pos += rec.size
        end = pos
        if seg.count == 0:
            seg.first_ms = <i64>le64(rec.names - 8)
        if seg.last_ms < <i64>le64(rec.names - 8):
            seg.last_ms = <i64>le64(rec.names - 8)
        seg.count += 1
        seg.n_fillers += record_is_filler(&rec)
    close_failed(fd)
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
