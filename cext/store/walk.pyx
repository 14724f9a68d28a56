# Walk: a way through a store that leaves it as it is, with a window of its own.
#
# It begins where a record does: at the cursor, at the beginning of a segment, or where the last
# step ended in the file. What is in memory only may be taken back meanwhile and other messages come
# to stand there, so such a place is not kept. What the kernel would have to read from the disk is
# said (WALK_COLD): a thread asks for it first. Called by door/browse.pyx and chosen.pyx.
cdef extern from *:
    """
    #include <errno.h>
    #include <sys/uio.h>
    #ifndef RWF_NOWAIT
    #define RWF_NOWAIT 0x00000008
    #endif
    /* Read what is in the page cache, which may be nothing; -1 where none can be asked. */
    static ssize_t lmq_read_cached(int fd, void *p, size_t n, long long at) {
        struct iovec part = { p, n };
        ssize_t n_read = preadv2(fd, &part, 1, at, RWF_NOWAIT);
        return n_read < 0 && errno == EAGAIN ? 0 : n_read;
    }
    """
    i64 read_cached "lmq_read_cached"(int fd, void* p, u64 n, i64 at) noexcept nogil

cdef enum walk_result:
    WALK_FOUND = 1
    WALK_END = 0                # of the segment, or of what can be read of it
    WALK_COLD = -1
    WALK_FAILED = -2

cdef struct walk_t:             # a place in a store, and what was read there
    window_t window
    u32 seg                     # 0 = it has not begun
    u32 pos                     # a record begins there
    u32 from_pos                # those before it are passed over
    u32 n_fillers               # of the segment, when it was last there
    flag_t is_warm              # what comes next was read by a thread a moment ago


# ---- reading -------------------------------------------------------------------------------------

cdef inline int walk_result_of(int rc) noexcept nogil:
    """Of what store_fill_window has said; what is given up cannot be read."""
    return WALK_FOUND if rc == 0 else (WALK_END if rc == -1 else WALK_FAILED)


cdef int walk_fill(walk_t* w, store_t* st, seg_t* seg, u32 pos, u32 need) noexcept nogil:
    """Have `need` bytes of a segment's file in the window, and more when they are at hand."""
    cdef u32 limit = st.flushed if seg is st.wseg else seg.size
    cdef u32 want
    cdef window_t* v = &w.window
    cdef span_t span
    cdef i64 got = -1
    if need > limit - pos:
        return WALK_END
    if not w.is_warm:
        span_set(&span, st, seg.id, pos, need, BLOCK_SIZE, limit)
        want = span.most - span.at
        if window_file(v, st, seg.id) < 0:
            return WALK_FAILED
        if v.buf == NULL or v.cap < want:
            buffer_give(&st.loop.pool, v.buf, v.cap)
            v.len = 0
            v.cap = want if want > BLOCK_SIZE else BLOCK_SIZE
            v.buf = block_take(&st.loop.pool) if v.cap == BLOCK_SIZE else <u8*>malloc(v.cap)
            if v.buf == NULL:
                v.cap = 0
                return WALK_FAILED
        v.len = 0
        got = read_cached(v.fd, v.buf, want, span.at)
        if got >= 0:
            if got < <i64>(span.most - span.at if span.key else span.least - span.at):
                return WALK_COLD        # only whole blocks can be compared
            return walk_result_of(window_take(v, st, seg.id, &span, <u32>got, limit))
    w.is_warm = False           # or the file system cannot tell
    return walk_result_of(store_fill_window(st, &st.loop.pool, v, seg, pos, need, BLOCK_SIZE))


cdef int walk_read(walk_t* w, store_t* st, seg_t* seg, u32 pos, rec_t* rec) noexcept nogil:
    """Slice the record at pos; of a large one the body stays in the file."""
    cdef window_t* v = &w.window
    cdef u32 limit, need, avail = 0
    cdef int rc
    if pos >= seg.size:
        return WALK_END
    rec.seg = seg.id
    rec.pos = pos
    rec.extra = NULL
    rec.extra_len = 0
    if seg is st.wseg and pos >= st.stage_at:
        rc = record_parse(st.stage + (pos - st.stage_at), seg.size - pos, rec)
        return WALK_FOUND if rc == 1 else WALK_END
    if seg is st.wseg and pos >= st.flushed:
        return WALK_END
    limit = (st.flushed if seg is st.wseg else seg.size) - pos
    rec.size = 1
    if v.len and v.seg == seg.id and v.at <= pos and pos < v.at + v.len:
        avail = v.at + v.len - pos
    while True:
        if avail:
            rc = record_parse(v.buf + (pos - v.at), avail, rec)
            if rc == 1:
                return WALK_FOUND if rec.size <= limit else WALK_END
            if rc == 0 and record_is_far(rec):
                rc = record_stays(st, rec, limit)
                return WALK_FOUND if rc == 1 else walk_result_of(rc)
            if rc < 0:
                return WALK_END
        if avail >= limit:
            return WALK_END
        need = rec.size if rec.size > avail else avail + 1
        rc = walk_fill(w, st, seg, pos, need if need < limit else limit)
        if rc != WALK_FOUND:
            return rc
        avail = v.at + v.len - pos


cdef void walk_drop(walk_t* w, loop_t* loop) noexcept nogil:
    window_drop(&w.window, &loop.pool)


cdef seg_t* walk_enter(walk_t* w, store_t* st) noexcept nogil:
    """The segment to go on in, from the cursor on at most; NULL: there are no more."""
    cdef seg_t* seg
    cdef u32 i
    if st.n_segs == 0:
        return NULL
    if w.seg < st.rseg.id or (w.seg == st.rseg.id and w.from_pos <= st.rpos):
        w.seg = st.rseg.id
        w.pos = w.from_pos = st.rpos
        w.n_fillers = st.rseg.n_fillers
        return st.rseg
    i = store_index(st, w.seg)
    if i == st.n_segs:
        return NULL
    seg = st.segs[i]
    if seg.id != w.seg:
        w.seg = seg.id
        w.pos = w.from_pos = SEGMENT_HEADER
    elif w.pos == 0 or seg.n_fillers != w.n_fillers or w.pos > seg.size:
        w.pos = st.rpos if seg is st.rseg else SEGMENT_HEADER
    w.n_fillers = seg.n_fillers
    return seg


cdef void walk_next(walk_t* w, store_t* st) noexcept nogil:
    """Go to the beginning of the next segment."""
    w.seg += 1
    w.pos = w.from_pos = SEGMENT_HEADER


cdef void walk_rest(walk_t* w, const store_t* st) noexcept nogil:
    """Others have their turn: keep a place where a record begins in any case."""
    w.from_pos = w.pos if w.pos > w.from_pos else w.from_pos
    if w.seg == st.wseg.id:
        if w.pos > st.flushed:
            w.pos = st.flushed
        if w.window.seg == w.seg:
            w.window.len = 0        # it may grow


cdef bint segment_has_deleted(const seg_t* seg, u32 pos) noexcept nogil:
    """Whether the cursor is to skip that record. Cost: 0.4 ns for each such one."""
    cdef u32 i
    for i in range(seg.n_deleted):
        if seg.deleted[i] == pos:
            return True
    return False


cdef u64 record_digest(const rec_t* rec) noexcept nogil:
    """By which a message is known again at its place: all of it, of a large one its head."""
    cdef u64 head = rec.size - rec.body_len
    if rec.size > LARGE_RECORD:
        return hash_bytes(rec.names - 8, head, rec.size)
    return hash_bytes(rec.names - 8, rec.size, rec.size)
