# Ahead: a large message is written ahead, in pieces, into a file that then becomes a segment.
#
# One message of 128 MiB would hold up everybody else for as long as it takes to copy it. So it goes
# piece by piece into `tmp.msgs.N` beside the segments of its queue, over as many turns as it needs:
# nobody sees it there, and whatever else happens to the queue meanwhile goes on. Once it is whole
# it is appended like any other message (rules.pyx, stream.pyx), but the bytes are there already:
# the write segment is finished, and the file gets the name of the next one (decision 0047). Until
# then its record has no time, which means: no record. A start removes such files.
# Called by route.pyx and queue.pyx.

cdef extern from "<stdio.h>" nogil:
    int c_rename "rename"(const char* old, const char* new)

cdef enum:
    AHEAD_PIECE = 131072        # bytes that are written at once
    AHEAD_CALM_NS = 1000000000  # after one of them, in which any sync may have to wait for them

cdef enum ahead_result:
    AHEAD_WHOLE = 0
    AHEAD_TURN = 1              # the portion is over: to be called again
    AHEAD_FAILED = -1           # errno says why, and there is no file any more


cdef void ahead_drop(ahead_t* a) noexcept nogil:
    """Remove the file, if there is one that has not become a segment. errno stays."""
    cdef int error = errno
    if a.is_begun:
        unlink(a.path)
        close_behind(a.fd)
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
            unlink(path)
            c_close(a.fd)
            set_errno(ENOMEM)
        return -1
    memcpy(a.path, path, strlen(path) + 1)
    a.is_begun = True
    a.queue = q
    a.store = st
    a.breaks = q.n_breaks
    a.head_len = head_len
    a.written = 0
    put_le32(head, SCHEMA_VERSION)
    record_write(head + SEGMENT_HEADER, m, 0)
    rc = write_at(a.fd, head, SEGMENT_HEADER + head_len, 0)
    free(head)
    return rc


cdef int ahead_write(ahead_t* a, queue_t* q, store_t* st, const msg_t* m) noexcept nogil:
    """Write some of m for a store of q: one piece at least. An ahead_result.

    Cost: 1 ns per byte."""
    cdef loop_t* loop = q.loop
    cdef u64 n
    if a.is_begun and (a.queue != q or a.store != st or a.breaks != q.n_breaks):
        ahead_drop(a)               # a queue that was started again has forgotten it
    if not a.is_begun and ahead_begin(a, q, st, m):
        ahead_drop(a)
        return AHEAD_FAILED
    while a.written < m.body_len:
        n = m.body_len - a.written
        n = AHEAD_PIECE if n > AHEAD_PIECE else n
        if write_at(a.fd, m.body + a.written, n, SEGMENT_HEADER + <i64>(a.head_len + a.written)):
            ahead_drop(a)
            return AHEAD_FAILED
        a.written += n
        if loop_look(loop) and a.written < m.body_len:
            break
    if loop.inline_from_ns < loop.look_ns + AHEAD_CALM_NS:
        loop.inline_from_ns = loop.look_ns + AHEAD_CALM_NS
    return AHEAD_WHOLE if a.written == m.body_len else AHEAD_TURN


cdef int queue_take_ahead(queue_t* q, store_t* st, ahead_t* a) noexcept nogil:
    """Append the message of a whole file: let it be the write segment. 0, or -1 with errno; the
    file is dropped then."""
    cdef char path[PATH_MAX_BYTES]
    cdef u8 stamp[8]
    cdef seg_t* seg
    if st.wseg.size != SEGMENT_HEADER and queue_roll(q, st):
        return -1
    seg = st.wseg
    segment_path(st, b"msgs", seg.id, path)
    put_le64(stamp, <u64>q.loop.now_ms)
    if write_at(a.fd, stamp, 8, SEGMENT_HEADER) or c_rename(a.path, path):
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
