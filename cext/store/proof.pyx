# Proof: what is read of a segment is compared with its sums, before anybody sees it.
#
# Blocks have sums, so whole ones are read where there are any (span_t). Bytes that differ are never
# given to anybody: a reader gets what is before them, and then an error. A broker without peers
# gives them up, as any damage (spoiled.pyx); a node that has peers waits: another one leads soon,
# whose files are whole. Of a large message the body is sent or copied in pieces, from a file that
# may be removed meanwhile: it has its sums with it (proof_t). Where no sums are known nothing is
# compared. Called by cursor.pyx, walk.pyx, and who reads the bodies of large messages.
# Source: docs/integrity.md.
from libc.errno cimport EBADMSG

cdef struct span_t:             # what is read of a segment for some bytes of it
    u64 key                     # of its file, 0 = nothing is known of it
    u32 at                      # from here on
    u32 wanted                  # bytes up to here are needed,
    u32 least                   # and so up to here,
    u32 most                    # and not more than up to here


cdef const char* segment_below(const store_t* st, u32 id, char* path) noexcept nogil:
    """The path of a segment's messages, below the data directory; NULL when nobody has sums."""
    cdef size_t n = st.loop.touched_root_len
    if st.loop.sums.n_files == 0:
        return NULL
    segment_path(st, b"msgs", id, path)
    return path + n + 1 if strlen(path) > n else NULL


cdef inline u32 block_end(u64 at, u64 end) noexcept nogil:
    """Where the block ends that holds the byte before `at`; `end` if it has less."""
    at = (at + SUM_BLOCK - 1) // SUM_BLOCK * SUM_BLOCK
    return <u32>(at if at < end else end)


cdef void span_set(span_t* s, const store_t* st, u32 id, u32 pos, u32 need, u32 wish,
                   u32 limit) noexcept nogil:
    """Which bytes to read, to have `need` from pos on, and about `wish`. `limit`: the file's end,
    as far as it has data."""
    cdef char path[PATH_MAX_BYTES]
    cdef const char* below = segment_below(st, id, path)
    cdef u64 end = <u64>pos + (wish if wish > need else need), file_end = limit
    cdef u32 covered = 0
    s.key = 0
    s.at = pos
    s.wanted = s.least = pos + need
    s.most = <u32>(end if end < limit else limit)
    if below != NULL:
        s.key = sum_key(below)
        covered = sums_covered(st.loop.sums, s.key)
    if pos >= covered:
        s.key = 0
        return
    file_end = covered if covered > limit else limit
    s.at = pos - pos % SUM_BLOCK
    s.least = block_end(s.least, file_end)
    s.most = block_end(s.most, file_end)
    if s.most - s.at > BLOCK_SIZE:
        s.most = s.at + BLOCK_SIZE if s.at + <u64>BLOCK_SIZE > s.least else s.least


cdef int segment_spoiled(const store_t* st) noexcept nogil:
    """What is to be read is not what was written. -1: it is given up, -2 with errno: it is not."""
    if not st.loop.sums.has_peers:
        return -1
    set_errno(EBADMSG)
    return -2


cdef int window_take(window_t* w, const store_t* st, u32 id, const span_t* s, u32 got,
                     u32 limit) noexcept nogil:
    """The window's buffer has so many bytes of a span: keep those that are right. 0 done, -1 torn
    or given up, -2 with errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef bint is_news = False
    cdef u32 good = got
    if s.key:
        good = <u32>sums_compare(st.loop.sums, s.key, w.buf, s.at, got, NULL, &is_news)
    if is_news:
        sums_report(st.loop.sums, segment_below(st, id, path))
    w.seg = id
    w.at = s.at
    w.len = good if good < limit - s.at else limit - s.at
    if s.wanted <= s.at + w.len:
        return 0
    return segment_spoiled(st) if good < got else -1


cdef int record_stays(const store_t* st, const rec_t* rec, u32 limit) noexcept nogil:
    """The body of a record stays in its file: whether it is there, as store_read says it."""
    cdef char path[PATH_MAX_BYTES]
    cdef const char* below
    if rec.size > limit:
        return -1
    if st.loop.sums.n_bad == 0:
        return 1
    below = segment_below(st, rec.seg, path)
    if below != NULL and sums_has_bad(st.loop.sums, sum_key(below), rec.pos,
                                      rec.pos + <u64>rec.size):
        return segment_spoiled(st)
    return 1


# ---- large bodies --------------------------------------------------------------------------------

cdef proof_t* proof_new(const store_t* st, u32 id, u64 at, u64 n) noexcept nogil:
    """The sums of n bytes of a segment from `at` on; NULL when there are none, or no memory."""
    cdef char path[PATH_MAX_BYTES]
    cdef sums_t* s = st.loop.sums
    cdef const char* below = segment_below(st, id, path)
    cdef u64 first = at // SUM_BLOCK, last = (at + n + SUM_BLOCK - 1) // SUM_BLOCK
    cdef summed_t* file
    cdef proof_t* proof = NULL
    cdef size_t n_path
    if below == NULL:
        return NULL
    n_path = strlen(below) + 1
    pthread_mutex_lock(&s.lock)
    file = sums_find(s, sum_key(below))
    if file != NULL and first < file.n_blocks:
        last = last if last < file.n_blocks else file.n_blocks
        n = last - first
        proof = <proof_t*>malloc(sizeof(proof_t) + <size_t>n * 5 + n_path)
        if proof != NULL:
            proof.table, proof.key = s, file.key
            proof.right, proof.covered = 0, file.covered
            proof.first, proof.n = <u32>first, <u32>n
            proof.states = <u8*>&proof.sums[n]
            proof.path = <char*>proof.states + n
            memcpy(proof.sums, &file.sums[first], n * 4)
            memcpy(proof.states, file.states + first, n)
            memcpy(proof.path, below, n_path)
    pthread_mutex_unlock(&s.lock)
    return proof


cdef int proof_holds(proof_t* proof, int fd, u64 at, u64 n) noexcept nogil:
    """Whether the blocks of n bytes from `at` on are right: 0, or -1 with errno. Bytes are asked
    for from the beginning to the end.

    They are read once more for it: 0.2 ns per byte."""
    cdef u64 start, have, end = at + n
    cdef u32 i
    cdef u8* block
    cdef int rc = 0
    if proof == NULL or end <= proof.right:
        return 0
    block = <u8*>malloc(SUM_BLOCK)
    if block == NULL:
        set_errno(ENOMEM)
        return -1
    start = (at if at > proof.right else proof.right) // SUM_BLOCK * SUM_BLOCK
    while start < end and rc == 0:
        i = <u32>(start // SUM_BLOCK) - proof.first
        if i >= proof.n:
            break
        have = proof.covered - start
        have = have if have < SUM_BLOCK else SUM_BLOCK
        if proof.states[i] != SUM_UNKNOWN:
            rc = proof_look(proof, i, fd, block, have, start)
        start += SUM_BLOCK
    free(block)
    if rc == 0:
        proof.right = start if start > end else end
    return rc


cdef int proof_look(proof_t* proof, u32 i, int fd, u8* block, u64 have, u64 start) noexcept nogil:
    cdef i64 got = read_at(fd, block, have, <i64>start)
    if got < 0:
        return -1
    if got == <i64>have and crc32(0, block, have) == proof.sums[i]:
        return 0
    if proof.table != NULL:
        if sums_has_changed(proof.table, proof.key, start // SUM_BLOCK):
            return 0                # what stands beside the body, while that was sent
        sums_spoil(proof.table, proof.key, start // SUM_BLOCK)
        sums_report(proof.table, proof.path)
    set_errno(EBADMSG)
    return -1
