# Reserve: filling written ahead of a segment's data, so that a short sync changes neither the
# file's length nor its blocks, which is half of what it costs (decision 0010).
#
# The filling is a pattern of 16 bytes that follows from the segment's first bytes: every reader
# knows it. Data that is written over it ends in eight zeros, where older readers stop. A sector
# that a crash has left unwritten still begins with the pattern: that is how a torn record is told
# from a whole one, which nothing else in this format allows. Called by store, tick and load.pyx.
cdef enum:
    PATTERN = 16                # divides SECTOR, so that each sector begins with it
    PATTERN_FROM = 64           # bytes of the segment that it follows from
    SECTOR = 512                # what a disk writes whole or not at all
    BACKWARD = 4096             # how far is read at once in search of the filling's beginning
    TERMINATOR = 8              # a timestamp of zero
    RESERVE_FROM = 4096         # shorter segments have none, and none is longer than its data
    RESERVE_STEP = 131072       # nor does one whose syncs are larger: they gain nothing
    RESERVE_SYNCS = 64          # for so many more syncs like the last one,
    RESERVE_LEAST = 65536       # but not less than this
    RESERVE_MOST = 1048576      # and not more
    RESERVE_QUEUES = 16         # nor when more queues are synced at once: it would hold up the loop

cdef u8 ZEROS[TERMINATOR + PATTERN]
memset(ZEROS, 0, TERMINATOR + PATTERN)


cdef inline u64 pattern_mix(u64 h) noexcept nogil:
    h = (h ^ h >> 32) * <u64>0xD6E8FEB86659FD93
    h = (h ^ h >> 32) * <u64>0xD6E8FEB86659FD93
    return h ^ h >> 32


cdef int reserve_pattern(int fd, u8* pattern) noexcept nogil:
    """The pattern of the segment in fd; no byte of it is zero. 0, or -1: too short, or errno."""
    cdef u8 first[PATTERN_FROM]
    cdef u64 h = 0
    cdef int i
    if read_at(fd, first, PATTERN_FROM, 0) != PATTERN_FROM:
        return -1
    for i in range(0, PATTERN_FROM, 8):
        h = pattern_mix(h + le64(first + i) + 1)
    put_le64(pattern, h | <u64>0x8080808080808080)
    put_le64(pattern + 8, pattern_mix(h + 1) | <u64>0x8080808080808080)
    return 0


# ---- writing -------------------------------------------------------------------------------------

cdef inline u32 store_zeros(const store_t* st, u32 end) noexcept nogil:
    """How many zeros stand behind data that ends at `end`: a terminator, or up to the end of
    filling of which less than a whole pattern would be left to recognize it by."""
    cdef u32 n = st.reserved - end
    return n if TERMINATOR < n < TERMINATOR + PATTERN and end < st.reserved else TERMINATOR


cdef int store_write_over(store_t* st, const u8* p, u32 n, u32 at) noexcept nogil:
    """Write n bytes over filling, and zeros behind them. Returns 0, or -1 with errno set.

    In rising order: who reads the file meanwhile (lavinmq/spark/segment_scan.py) takes a last
    record for whole when its end is filling no more."""
    cdef u32 zeros = store_zeros(st, at + n)
    if segment_write_two(st, st.wseg.id, st.wfd, p, n, ZEROS, zeros, at):
        return -1
    if st.reserved < at + n + zeros:
        st.reserved = at + n + zeros
    return 0


cdef int reserve_fill(store_t* st, u8* block, u32 start, u32 end) noexcept nogil:
    """Write filling from start to end, by way of `block`; the first one begins with a terminator.
    0, or -1."""
    cdef u8 pattern[PATTERN]
    cdef u32 i, n, done
    if reserve_pattern(st.wfd, pattern):
        return -1
    while start < end:
        n = BLOCK_SIZE if end - start > BLOCK_SIZE else end - start
        for i in range(PATTERN if n > PATTERN else n):
            block[i] = pattern[(start + i) % PATTERN]
        done = PATTERN
        while done < n:
            memcpy(block + done, block, done if done < n - done else n - done)
            done *= 2
        if start == st.flushed:
            memcpy(block, ZEROS, TERMINATOR)
        if segment_write(st, b"msgs", st.wseg.id, CHANGE_APPEND, st.wfd, block, n, start):
            return -1
        start += n
    return 0


cdef void store_reserve(store_t* st, pool_t* pool) noexcept nogil:
    """Write ahead of the data that is about to be synced, if the syncs of this store are short and
    what is there will not do for another one. A failure is not worth telling: a real lack of room
    shows in the next write of data."""
    cdef u32 step = st.flushed - st.synced
    cdef u32 start = st.reserved if st.reserved else st.flushed
    cdef u64 size
    cdef u64 end
    cdef u8* block
    st.synced = st.flushed
    if step > RESERVE_STEP or st.flushed < RESERVE_FROM or st.loop.n_snapshots:
        return
    if st.loop.copies != NULL:
        return                          # it would cost each copy twice the bytes
    if st.flushed + <u64>step + TERMINATOR <= st.reserved:
        return
    size = <u64>step * RESERVE_SYNCS
    size = RESERVE_LEAST if size < RESERVE_LEAST else size
    size = RESERVE_MOST if size > RESERVE_MOST else size
    size = st.flushed if size > st.flushed else size
    end = st.flushed + size
    end -= end % SECTOR                 # a sector of filling is whole, or was written over
    end = st.segment_size if end > st.segment_size else end
    if end <= st.flushed + <u64>step + TERMINATOR:
        return                          # the segment is nearly full
    block = block_take(pool)
    if block == NULL:
        return
    if reserve_fill(st, block, start, <u32>end):
        store_cut(st)
    else:
        st.reserved = <u32>end
    block_give(pool, block)


# ---- reading after a crash -----------------------------------------------------------------------

cdef bint record_is_torn(int fd, const rec_t* rec, const u8* pattern) noexcept nogil:
    """Whether a sector that the record reaches into was never written over.

    Of the last sector the record may have a few bytes only: what is behind them in the file tells
    a pattern from bytes that happen to look like its beginning."""
    cdef const u8* p = rec.names - 8
    cdef u8 whole[PATTERN]
    cdef u64 at = SECTOR - rec.pos % SECTOR, left
    cdef i64 got
    if rec.body == NULL:
        return body_is_torn(fd, rec, pattern)
    while at < rec.size:
        left = rec.size - at
        if memcmp(p + at, pattern, left if left < PATTERN else PATTERN) == 0:
            if left >= PATTERN:
                return True
            got = read_at(fd, whole, PATTERN, rec.pos + <i64>at)
            return got > <i64>left and memcmp(whole, pattern, <size_t>got) == 0
        at += SECTOR
    return False


cdef bint body_is_torn(int fd, const rec_t* rec, const u8* pattern) noexcept nogil:
    """record_is_torn for a record whose body is in its file only. What cannot be read is not."""
    cdef u8 buf[BACKWARD]
    cdef u64 at = rec.pos + SECTOR - rec.pos % SECTOR, end = rec.pos + <u64>rec.size
    cdef u64 left
    cdef u32 i
    cdef i64 got
    while at < end:
        got = read_at(fd, buf, BACKWARD, at)
        if got <= 0:
            return False
        i = 0
        while i < got and at + i < end:
            left = <u64>got - i
            if memcmp(buf + i, pattern, left if left < PATTERN else PATTERN) == 0:
                return end - at - i < left or left >= PATTERN
            i += SECTOR
        at += <u64>got
    return False


cdef i64 filling_start(int fd, u32 size, const u8* pattern) noexcept nogil:
    """Where the filling at the end of a segment of `size` bytes begins; `size` when there is none.
    -1 with errno. Less than a whole pattern is no filling: data may happen to end like that."""
    cdef u8 buf[BACKWARD]
    cdef u32 end = size, n = 0
    cdef i64 got
    while n == 0 and end > SEGMENT_HEADER:
        n = end % BACKWARD if end % BACKWARD else BACKWARD
        got = read_at(fd, buf, n, end - n)
        if got < 0:
            return -1
        if got != n:
            break
        while n and buf[n - 1] == pattern[(end - 1) % PATTERN]:
            n -= 1
            end -= 1
    return end if size - end >= PATTERN else size


cdef int store_blank(store_t* st, const seg_t* seg, u32 pos) noexcept nogil:
    """Make the record at pos none, for good. 0, or -1 with errno."""
    cdef int fd = segment_open(st, b"msgs", seg.id, O_RDWR)
    cdef int rc
    if fd < 0:
        return -1
    rc = segment_write(st, b"msgs", seg.id, CHANGE_PATCH, fd, ZEROS, TERMINATOR, pos)
    segment_touched(st, b"msgs", seg.id, CHANGE_PATCH, pos, pos + <i64>TERMINATOR)
    close_failed(fd)
    store_forget_window(st)
    return rc
