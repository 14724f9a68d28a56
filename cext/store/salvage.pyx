# Salvage: where reading goes on in a segment, behind bytes that are no record.
#
# The file is not changed. What is believed: chain.pyx.
# Called by store.pyx when a walk meets junk; reads the rest of the segment, which is rare.
# Source: docs/formats.md, damaged files.
from posix.unistd cimport lseek

cdef enum:
    SALVAGE_MAX = 1 << 28           # bytes behind the damage that are looked at
    MAX_GAPS = 64                   # damages remembered until they are logged
    MAX_KEPT = 100                  # damaged files kept under one segment's name
    SEEK_DATA = 3                   # Linux
    SEEK_HOLE = 4


cdef void store_note_gap(store_t* st, seg_t* seg, u32 pos, u32 end) noexcept nogil:
    """Remember a damage for the log, once; its segment's file will be kept."""
    if pos <= seg.damaged_at:
        return
    seg.damaged_at = pos
    if st.gaps == NULL:
        st.gaps = <gap_t*>malloc(MAX_GAPS * sizeof(gap_t))
    if st.gaps == NULL or st.n_gaps == MAX_GAPS:
        return
    st.gaps[st.n_gaps].seg = seg.id
    st.gaps[st.n_gaps].pos = pos
    st.gaps[st.n_gaps].end = end
    st.n_gaps += 1


cdef int salvage_read(store_t* st, const seg_t* seg, u32 pos, salvage_t* s) noexcept nogil:
    """Read n bytes from pos, and the oldest time a message behind can have. 0, 1 when
    that is too much to look at, or -1 with errno.

    The hole that a preallocated file ends in is left out: it is zeros, and may be of any size."""
    cdef u8 first[8]
    cdef i64 got = -1, hole
    cdef int fd = segment_open(st, b"msgs", seg.id, O_RDONLY)
    if fd < 0:
        return -1
    hole = lseek(fd, pos, SEEK_HOLE)
    if hole >= pos and hole - pos < s.n and lseek(fd, hole, SEEK_DATA) < 0:
        s.n = <u32>(hole - pos)
    if s.n > SALVAGE_MAX:
        c_close(fd)
        return 1
    s.oldest_ms = OLDEST_MS
    if read_at(fd, first, 8, SEGMENT_HEADER) == 8 and pos > SEGMENT_HEADER:
        if le64(first) > OLDEST_MS + DAY_MS:
            s.oldest_ms = le64(first) - DAY_MS
    s.data = <u8*>malloc(s.n + 1)
    s.starts = <u8*>calloc(1, (s.n >> 3) + 1)
    if s.data != NULL and s.starts != NULL:
        got = read_at(fd, s.data, s.n, pos)
    c_close(fd)
    if got >= 0:
        s.n = <u32>got          # the file has become shorter: what is left of it
    return 0 if got >= 0 else -1


cdef i64 store_resume(store_t* st, seg_t* seg, u32 pos, u32 passed, u32* found) noexcept nogil:
    """The position behind junk at `pos` where records go on, and how many (`found`); the end of the
    data when none can be found. `passed` records came before. -1 with errno when it is unreadable.

    Damage is noted for the log; zeros up to the end are none. Cost: about 2 ns per byte behind."""
    cdef salvage_t s
    cdef u32 end = st.stage_at if seg is st.wseg else seg.size
    cdef u32 most = <u32>-1, at = 0, last
    cdef i64 resumed
    cdef int rc
    memset(&s, 0, sizeof(salvage_t))
    found[0] = 0
    if pos >= end:
        return end
    if seg.written > passed:
        most = seg.written - passed     # the junk may be the end of a record that was read short
    if st.loop.sums.n_bad:
        resumed = store_pass_spoiled(st, seg, pos, end, most, found)
        if resumed:
            return resumed
    s.n = end - pos
    rc = salvage_read(st, seg, pos, &s)
    if rc > 0:
        store_note_gap(st, seg, pos, end)
        return end
    if rc < 0:
        free(s.data)
        free(s.starts)
        return -1
    last = s.n
    while last and s.data[last - 1] == 0:
        last -= 1
    if last:
        at = salvage_search(&s, last, most, found)
        store_note_gap(st, seg, pos, pos + (at if found[0] else last))
    free(s.data)
    free(s.starts)
    return pos + at if found[0] else end


cdef void segment_keep(store_t* st, u32 id) noexcept nogil:
    """Give a damaged segment's file a name that nobody loads, for an operator to look at."""
    cdef char path[PATH_MAX_BYTES]
    cdef char kept[PATH_MAX_BYTES + 16]
    cdef int i
    segment_path(st, b"msgs", id, path)
    snprintf(kept, sizeof(kept), b"%s.damaged", path)
    for i in range(1, MAX_KEPT):
        if access(kept, F_OK):
            break
        snprintf(kept, sizeof(kept), b"%s.damaged.%d", path, i)
    file_rename(st.loop, path, kept)
