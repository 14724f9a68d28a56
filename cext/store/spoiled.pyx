# Spoiled: where reading goes on in a segment, behind blocks that are not what was written.
#
# Nothing of them is believed but where records begin, and that only if each leads to the next one,
# up to the end of the data: then those alone are lost that a bad block has a part of. Else reading
# goes on behind the last bad block, by the rules of chain.pyx. The file is not changed.
# Called by salvage.pyx, for a broker that has no peers. Source: docs/integrity.md.


cdef inline bint is_spoiled(const u8* bad, u64 start, u64 end) noexcept nogil:
    """Whether a bad block has a part of some bytes; both count from where the first block begins.
    """
    cdef u64 i
    for i in range(start // SUM_BLOCK, (end + SUM_BLOCK - 1) // SUM_BLOCK):
        if bad[i >> 3] >> (i & 7) & 1:
            return True
    return False


cdef u32 spoiled_walk(const u8* data, u32 n, u32 at, const u8* bad, u32* found) noexcept nogil:
    """Walk to the end from a record that is lost. Where the next one is that is not, and how many
    there are from there on; 0: one does not lead to the next."""
    cdef rec_t rec
    cdef u32 to = 0
    found[0] = 0
    while at < n:
        if record_parse(data + at, n - at, &rec) != 1:
            while at < n and data[at] == 0:     # nothing comes behind
                at += 1
            return (to if to else n) if at == n else 0
        if to == 0 and not is_spoiled(bad, at, at + <u64>rec.size):
            to = at
        found[0] += to != 0
        at += rec.size
    return to if to else n


cdef u32 spoiled_search(u8* data, u32 n, u32 at, const u8* bad, u32 most,
                        u32* found) noexcept nogil:
    """Where records go on behind the last bad block; n: nowhere. -1 as u32: out of memory."""
    cdef salvage_t s
    cdef u32 last = at - at % SUM_BLOCK
    while last < n:
        if is_spoiled(bad, last, last + 1):
            at = last + SUM_BLOCK
        last += SUM_BLOCK
    if at >= n:
        return n
    memset(&s, 0, sizeof(salvage_t))
    s.data, s.n, s.oldest_ms = data + at, n - at, OLDEST_MS
    s.starts = <u8*>calloc(1, (s.n >> 3) + 1)
    if s.starts == NULL:
        set_errno(ENOMEM)
        return <u32>-1
    last = s.n
    while last and s.data[last - 1] == 0:
        last -= 1
    at += salvage_search(&s, last, most, found) if last else s.n
    free(s.starts)
    return at if found[0] else n


cdef i64 store_pass_spoiled(store_t* st, seg_t* seg, u32 pos, u32 end, u32 most,
                            u32* found) noexcept nogil:
    """As store_resume, if blocks from pos on are bad; 0: none is. -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef const char* below = segment_below(st, seg.id, path)
    cdef u32 base = pos - pos % SUM_BLOCK, n = end - base, to
    cdef u64 key, good = n, n_read
    cdef bint is_news = False
    cdef u8* data = NULL
    cdef u8* bad = NULL
    cdef i64 got = -1
    cdef int fd
    if below == NULL or n > SALVAGE_MAX:
        return 0
    key = sum_key(below)
    n_read = sums_covered(st.loop.sums, key)
    n_read = n_read - base if n_read > base + <u64>n else n     # the last block may be longer
    fd = segment_open(st, b"msgs", seg.id, O_RDONLY)
    if fd < 0:
        return -1
    data = <u8*>malloc(n_read + 1)
    bad = <u8*>calloc(1, n_read // SUM_BLOCK // 8 + 2)
    if data != NULL and bad != NULL:
        got = read_at(fd, data, n_read, base)
    close_failed(fd)
    if got >= 0:
        n = n if n < got else <u32>got
        good = sums_compare(st.loop.sums, key, data, base, <u64>got, bad, &is_news)
    to = n
    if got >= 0 and good < <u64>got:
        to = spoiled_walk(data, n, pos - base, bad, found)
        if to == 0:
            found[0] = 0
            to = spoiled_search(data, n, pos - base, bad, most, found)
    free(bad)
    free(data)
    if got < 0 or to == <u32>-1:
        return -1
    if good >= <u64>got:
        return 0
    if is_news:
        sums_report(st.loop.sums, below)
    store_note_gap(st, seg, pos, base + to if found[0] else end)
    return base + to if found[0] else end
