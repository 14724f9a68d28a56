# Ahead: a large message is written ahead, in pieces, into a file that then becomes a segment.
#
# One message of 128 MiB would hold up everybody else for as long as it takes to copy it. So it goes
# piece by piece into `tmp.msgs.N` beside the segments of its queue, over as many turns as it needs:
# nobody sees it there, and whatever else happens to the queue meanwhile goes on. Once it is whole
# it is appended like any other message (features.pyx, stream.pyx), but the bytes are there already:
# the write segment is finished, and the file gets the name of the next one (decision 0047). Until
# then its record has no time, which means: no record. A start removes such files.
# Called by publish_job.pyx, haul.pyx and queue.pyx.

cdef enum:
    AHEAD_PIECE = 131072        # bytes that are written at once
    AHEAD_CALM_NS = 1000000000  # after one of them, in which any sync may have to wait for them

cdef enum ahead_result:
    AHEAD_WHOLE = 0
    AHEAD_TURN = 1              # the portion is over: to be called again
    AHEAD_FAILED = -1           # errno says why, and there is no file any more
    AHEAD_UNREADABLE = -2       # the same, because the body cannot be read where it is


cdef void ahead_drop(ahead_t* a) noexcept nogil:
    """Remove the file, if there is one that has not become a segment. errno stays."""
    cdef int error = errno
    if a.is_begun:
        if a.fd >= 0:
            file_unlink(a.loop, a.path)
            close_behind(a.fd)
        else:
            file_remove(a.loop, a.path)
        free(a.path)
        memset(a, 0, sizeof(ahead_t))
        set_errno(error)


cdef int ahead_begin(ahead_t* a, queue_t* q, store_t* st, const msg_t* m) noexcept nogil:
    """Make the file, with all of the record but its time and its body. 0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    cdef loop_t* loop = q.loop
    cdef u32 head_len = <u32>(m.size - m.body_len)
    cdef u8* head = <u8*>malloc(SEGMENT_HEADER + head_len)
    cdef int rc
    if head == NULL:
        return -1
    loop.n_aheads += 1
    segment_path(st, b"tmp.msgs", loop.n_aheads, path)
    a.path = <char*>malloc(strlen(path) + 1)
    a.fd = segment_open(st, b"tmp.msgs", loop.n_aheads, O_RDWR | O_CREAT | O_TRUNC)
    if a.path == NULL or a.fd < 0:
        free(head)
        free(a.path)
        a.path = NULL
        if a.fd >= 0:
            file_unlink(loop, path)
            c_close(a.fd)
            set_errno(ENOMEM)
        return -1
    memcpy(a.path, path, strlen(path) + 1)
    a.is_begun = True
    a.loop = loop
    a.queue = q
    a.store = st
    a.breaks = q.n_breaks
    a.head_len = head_len
    a.written = 0
    put_le32(head, SCHEMA_VERSION)
    record_write(head + SEGMENT_HEADER, m, 0)
    rc = file_write(loop, path, CHANGE_APPEND, a.fd, head, SEGMENT_HEADER + head_len, 0)
    free(head)
    return rc


cdef bint body_open(body_t* body) noexcept nogil:
    """Have a descriptor of the file that has it. False when no file has it, or with errno."""
    cdef const store_t* st
    if body.fd < 0:
        st = queue_level(body.queue, body.spot.level)
        if body.spot.seg != st.wseg.id or body.spot.pos < st.flushed:
            body.fd = store_open_body(<store_t*>st, body.spot.seg)
            body.proof = proof_new(st, body.spot.seg, body.spot.pos + <u64>body.head_len,
                                   body.spot.size - body.head_len)
    return body.fd >= 0


cdef const u8* body_piece(body_t* body, u64 at, u64 n, u8* buf) noexcept nogil:
    """n bytes of a body from `at` on: where they are in memory, or read to buf. NULL with errno."""
    cdef store_t* st
    cdef i64 got
    if body.p != NULL:
        return body.p + at
    if body.fd < 0:
        st = queue_level(body.queue, body.spot.level)
        if body.spot.seg == st.wseg.id and body.spot.pos >= st.flushed:     # there was no room
            return st.stage + (body.spot.pos - st.stage_at) + body.head_len + at
        if not body_open(body):
            return NULL
    if body.proof != NULL and at == 0:
        body.proof.right = 0            # it is read for each queue
    at += body.spot.pos + <u64>body.head_len
    if proof_holds(body.proof, body.fd, at, n):
        return NULL
    got = read_at(body.fd, buf, n, <i64>at)
    if got == <i64>n:
        return buf
    if got >= 0:
        set_errno(EIO)
    return NULL


cdef int ahead_write(ahead_t* a, queue_t* q, store_t* st, const msg_t* m,
                     body_t* body) noexcept nogil:
    """Write some of m for a store of q: one piece at least. An ahead_result. `body` says where the
    body of m is when m does not.

    Cost: 1 ns per byte."""
    cdef loop_t* loop = q.loop
    cdef u8* buf = NULL
    cdef int rc
    if a.is_begun and (a.queue != q or a.store != st or a.breaks != q.n_breaks):
        ahead_drop(a)               # a queue that was started again has forgotten it
    if not a.is_begun and ahead_begin(a, q, st, m):
        ahead_drop(a)
        return AHEAD_FAILED
    if body != NULL and body.p == NULL:
        buf = block_take(&loop.pool)
        if buf == NULL:
            ahead_drop(a)
            return AHEAD_FAILED
    rc = ahead_write_pieces(a, loop, m, body, buf)
    if buf != NULL:
        buffer_give(&loop.pool, buf, BLOCK_SIZE)
    if rc < 0:
        ahead_drop(a)
    if loop.inline_from_ns < loop.look_ns + AHEAD_CALM_NS:
        loop.inline_from_ns = loop.look_ns + AHEAD_CALM_NS
    return rc


cdef int ahead_write_pieces(ahead_t* a, loop_t* loop, const msg_t* m, body_t* body,
                            u8* buf) noexcept nogil:
    """Write until the portion is over, one piece at least. An ahead_result."""
    cdef const u8* piece
    cdef u64 n
    while a.written < m.body_len:
        n = m.body_len - a.written
        n = AHEAD_PIECE if n > AHEAD_PIECE else n
        piece = m.body + a.written if body == NULL else body_piece(body, a.written, n, buf)
        if piece == NULL:
            return AHEAD_UNREADABLE
        if file_write(loop, a.path, CHANGE_APPEND, a.fd, piece, n,
                      SEGMENT_HEADER + <i64>(a.head_len + a.written)):
            return AHEAD_FAILED
        a.written += n
        if loop_look(loop) and a.written < m.body_len:
            return AHEAD_TURN
    return AHEAD_WHOLE


cdef void ahead_rest(ahead_t* a) noexcept nogil:
    """Keep a whole file without its descriptor: others are to be written first."""
    if a.is_begun and a.fd >= 0:
        close_behind(a.fd)
        a.fd = -1


cdef int queue_take_ahead(queue_t* q, store_t* st, ahead_t* a) noexcept nogil:
    """Append the message of a whole file: let it be the write segment. 0, or -1 with errno; the
    file is dropped then."""
    cdef char path[PATH_MAX_BYTES]
    cdef u8 stamp[8]
    cdef seg_t* seg
    if st.wseg.size != SEGMENT_HEADER and queue_roll(q, st):
        return -1
    seg = st.wseg
    if a.fd < 0:
        a.fd = file_open(q.loop, a.path, O_RDWR)
        if a.fd < 0:
            return store_failed(st, FILE_MSGS, seg.id)
    segment_path(st, b"msgs", seg.id, path)
    put_le64(stamp, <u64>q.loop.now_ms)
    if (file_write(q.loop, a.path, CHANGE_PATCH, a.fd, stamp, 8, SEGMENT_HEADER)
            or file_rename(q.loop, a.path, path)):
        return store_failed(st, FILE_MSGS, seg.id)
    if st.wfd >= 0:                 # of a file without records that was there
        c_close(st.wfd)
    if st.window != NULL:
        window_forget(st.window, seg.id)
    st.wfd = a.fd
    seg.size = SEGMENT_HEADER + a.head_len + <u32>a.written
    seg.count = 1
    st.flushed = st.stage_at = seg.size
    st.synced = SEGMENT_HEADER
    st.reserved = 0
    st.is_unsynced = st.is_large_unsynced = st.is_dir_unsynced = True
    free(a.path)
    memset(a, 0, sizeof(ahead_t))
    return 0
