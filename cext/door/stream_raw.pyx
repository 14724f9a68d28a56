# Stream raw: the records of a stream as they are stored, for those who read ranges of it in bulk.
#
# A block is a run of whole records that follow each other in one segment, with a head that tells
# the offset of the first. The walk over the bytes that were read finds where the last whole record
# ends, and leaves out damage. Of a record that is larger than a block the rest is asked for in
# pieces, so that nobody holds all of it. Readers are found anew for each block, by their offset.
# Called by lavinmq/http/api/streams.py. Source: docs/http-api.md, decision 0018.
#
#   block   offset:i64 count:u32 size:u32 records      little-endian; size: bytes of the records
#   record  as in record.pxd

cdef enum:
    RAW_HEAD = 16
    RAW_LESS = 2


cdef int reader_seek(queue_t* q, reader_t* r, i64 offset) noexcept nogil:
    """Stand on the message of an offset, or the first one that is left behind it, without reading
    it. READ_FOUND, READ_TIRED or READ_FAILED."""
    cdef rec_t rec
    cdef i64 worked = FIRST_TURN
    cdef int rc
    reader_go_to_offset(q, r, offset)
    r.end_offset = r.from_offset
    rc = reader_peek(q, r, BLOCK_SIZE, &worked, &rec)
    return READ_FOUND if rc == READ_END else rc


cdef int store_bytes(store_t* st, pool_t* pool, window_t* w, seg_t* seg, u32 pos, u32 most,
                     const u8** p, u32* n) noexcept nogil:
    """Up to `most` bytes of a segment, from memory or its file: valid until something is stored.

    1 done, RAW_LESS: what comes behind them is given up, -1 they are not there, -2 with errno."""
    cdef u32 limit = st.flushed if seg is st.wseg else seg.size
    cdef int rc, done = 1
    if seg is st.wseg and pos >= st.stage_at:
        n[0] = most if most < seg.size - pos else seg.size - pos
        p[0] = st.stage + (pos - st.stage_at)
        return 1
    most = most if most < limit - pos else limit - pos
    rc = store_fill_window(st, pool, w, seg, pos, most, most)
    if rc == -1:
        done = RAW_LESS
        rc = store_fill_window(st, pool, w, seg, pos, 1, most)
    if rc:
        return rc
    n[0] = w.at + w.len - pos if w.at + w.len - pos < most else most
    p[0] = w.buf + (pos - w.at)
    return done


cdef int records_measure(const u8* p, u32 n, u64 most, u32* used, u32* count,
                         u64* needed) noexcept nogil:
    """How many of up to `most` records at p are whole, and their bytes. 1 when there is one.

    Else 0 and the bytes that are needed for the first one, `count` is 1 if these are all of it; or
    -1, no record is there."""
    cdef rec_t rec
    cdef int rc = 0
    used[0] = count[0] = 0
    rec.body_len = NO_LIMIT
    while used[0] < n and count[0] < most:
        rc = record_parse(p + used[0], n - used[0], &rec)
        if rc != 1:
            break
        used[0] += rec.size
        count[0] += 1
    if count[0] or rc < 0:
        return 1 if count[0] else -1
    needed[0] = rec.size
    count[0] = rec.body_len != NO_LIMIT     # it has got as far as the size of the body
    return 0


cdef int reader_block(queue_t* q, reader_t* r, i64 end, u32 want, const u8** p, u32* used,
                      u32* count, u32* rest) noexcept nogil:
    """The records where the reader stands, and the bytes of the last one that do not fit.
    A read_result."""
    cdef store_t* st = q.store
    cdef seg_t* seg
    cdef rec_t rec
    cdef u64 needed = 0, most, left
    cdef u32 n = 0, room
    cdef bint is_whole
    cdef int rc
    while True:
        while r.seg is not st.wseg and (r.pos >= r.seg.size
                                        or r.offset - r.seg.first_offset >= r.seg.count):
            reader_enter(q, r, st.segs[store_index(st, r.seg.id + 1)])
        seg = r.seg
        if r.offset >= end or r.pos >= seg.size:
            return READ_END
        room = seg.size - r.pos
        most = <u64>(end - r.offset)
        left = seg.count - <u64>(r.offset - seg.first_offset)
        if seg is not st.wseg and most > left:
            most = left
        rc = store_bytes(st, &q.loop.pool, &r.window, seg, r.pos, want, p, &n)
        if rc == -2:
            return READ_FAILED
        is_whole = rc == 1
        if rc > 0:
            rc = records_measure(p[0], n, most, used, count, &needed)
        rest[0] = 0
        if rc == 1:
            return READ_FOUND
        if rc == 0 and is_whole and needed <= room and needed > n:
            rec.seg, rec.pos, rec.size = seg.id, r.pos, <u32>needed
            rc = record_stays(st, &rec, room)
            if rc == -2:
                return READ_FAILED
        if rc == 1:
            if not count[0]:                # so long are its properties
                want = <u32>needed
                continue
            used[0] = n
            rest[0] = <u32>needed - n
            return READ_FOUND
        if reader_skip_junk(q, r):
            return READ_FAILED


def raw_records(Queue queue not None, i64 offset, i64 end) -> tuple:
    """A block of the records from an offset on, below the offset `end`; about 256 KiB.

    Returns (block, where to go on, segment and position of the rest of its last record, bytes of
    that rest, which raw_rest gives). An empty block: there is nothing, or when the offset is the
    same, others have to have their turn first. Raises OSError."""
    cdef queue_t* q = queue.q
    cdef reader_t r
    cdef const u8* p
    cdef u8* to
    cdef u32 used = 0, count = 0, rest = 0
    cdef int rc
    if q.stream == NULL:
        raise TypeError("no stream")
    if q.is_deleted or q.is_closed or offset >= end:
        return b"", end, 0, 0, 0
    memset(&r, 0, sizeof(reader_t))
    r.window.fd = -1
    try:
        with nogil:
            rc = reader_seek(q, &r, offset)
            if rc == READ_FOUND:
                rc = reader_block(q, &r, end, BLOCK_SIZE, &p, &used, &count, &rest)
        if rc == READ_FAILED:
            raise os_error(q.store, "msgs", r.seg.id)
        if rc != READ_FOUND:
            return b"", offset if rc == READ_TIRED else end, 0, 0, 0
        block = PyBytes_FromStringAndSize(NULL, RAW_HEAD + <Py_ssize_t>used)
        to = <u8*>PyBytes_AS_STRING(block)
        put_le64(to, <u64>r.offset)
        put_le32(to + 8, count)
        put_le32(to + 12, used + rest)
        memcpy(to + RAW_HEAD, p, used)
        return block, r.offset + count, r.seg.id, r.pos + used, rest
    finally:
        window_drop(&r.window, &q.loop.pool)


def raw_rest(Queue queue not None, u32 seg_id, u32 pos, u32 n) -> object:
    """Up to n bytes of a segment, 256 KiB at most; None when it is gone. Raises OSError."""
    cdef queue_t* q = queue.q
    cdef seg_t* seg
    cdef window_t w
    cdef const u8* p
    cdef int rc
    if q.is_deleted or q.is_closed:
        return None
    seg = store_segment(q.store, seg_id)
    if seg == NULL or seg.id != seg_id or pos >= seg.size:
        return None
    memset(&w, 0, sizeof(window_t))
    w.fd = -1
    n = n if n < BLOCK_SIZE else BLOCK_SIZE
    try:
        rc = store_bytes(q.store, &q.loop.pool, &w, seg, pos, n, &p, &n)
        if rc == -2:
            raise os_error(q.store, "msgs", seg_id)
        return PyBytes_FromStringAndSize(<const char*>p, n) if rc > 0 else None
    finally:
        window_drop(&w, &q.loop.pool)


def raw_end(i64 offset) -> bytes:
    """The head that ends an answer: no records, and the offset to go on with."""
    cdef u8 head[RAW_HEAD]
    memset(head, 0, RAW_HEAD)
    put_le64(head, <u64>offset)
    return PyBytes_FromStringAndSize(<char*>head, RAW_HEAD)
