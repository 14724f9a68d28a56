# Retained: the last message of each topic that was published to be kept, one store for a vhost.
#
#   entry     put, removal or import, in a log (log.pyx)
#   put       kind:u8 (1) qos:u8 topic_len:u16 props_len:u32 at:i64 expires:i64 topic props payload
#   removal   kind:u8 (2) 0:u8 topic_len:u16 topic
#   import    kind:u8 (3) 0:u24 0:u32 stamp:i64 at:i64    what LavinMQ has kept was taken over: the
#                                                       time of its index in nanoseconds, and when
#
# Little-endian; `at` and `expires` are Unix milliseconds, 0 = never; `props` is a property block of
# MQTT 5 as it came, without its length. The last entry of a topic counts. In memory are topics and
# places alone: a table by hash, and the tree in their order (topic_tree.pyx). A put is staged, and
# refused afterwards when the tick cannot write it: all is then as it was before.
# Longer than 500 lines: what is put, where it is known and its undoing change together.
# Bytes that do not count any more go with the oldest file, whose last entries are put anew
# (retained_clean.pyx). Called by the door and by who publishes, on the loop. Decision 0087.

cdef enum retained_layout:
    RETAINED_PUT = 1
    RETAINED_REMOVED = 2
    RETAINED_IMPORT = 3
    RETAINED_FIXED = 24         # of a put
    RETAINED_GONE = 4           # of a removal
    RETAINED_IMPORT_SIZE = 24

cdef enum:
    HINT_MOST = 256             # bytes of a topic: hashing a long one takes longer than that
    RETAINED_MOST = 8388608     # bytes of a body: more would hold up the others
    N_WINDOWS = 8
    WINDOW_BYTES = 32768        # of them: together a block of the pool
    GONE_UNITS = 6              # of work, to free a message


# ---- what is known -------------------------------------------------------------------------------

cdef void retained_set(rstore_t* rs, rmsg_t* msg, u32 file, u32 pos, u32 size,
                       u32 expires_s) noexcept nogil:
    """Where the message of a topic is from now on; a size of 0: nowhere."""
    cdef u32 was = mlog_padded(msg.size) if msg.size else 0
    cdef u32 now = mlog_padded(size) if size else 0
    if was:
        mlog_add_stale(&rs.log, msg.file, was)
    if now and msg.size == 0:
        rs.n += 1
    elif now == 0 and was:
        rs.n -= 1
    rs.live += now
    rs.live -= was
    msg.file = file
    msg.pos = pos
    msg.size = size
    msg.expires_s = expires_s


# ---- what is staged ------------------------------------------------------------------------------

cdef int retained_reserve_undo(rstore_t* rs) noexcept nogil:
    """Room to remember one more change. 0, or -1 out of memory."""
    cdef void* grown
    if rs.n_undo == rs.cap_undo:
        grown = realloc(rs.undo, (rs.cap_undo * 2 + 16) * sizeof(rundo_t))
        if grown == NULL:
            return -1
        rs.undo = <rundo_t*>grown
        rs.cap_undo = rs.cap_undo * 2 + 16
    if rs.n_news == rs.cap_news:
        grown = realloc(rs.news, (rs.cap_news * 2 + 16) * sizeof(rmsg_t*))
        if grown == NULL:
            return -1
        rs.news = <rmsg_t**>grown
        rs.cap_news = rs.cap_news * 2 + 16
    return 0


cdef void retained_stage(rstore_t* rs, rmsg_t* msg, u32 file, u32 pos, u32 size,
                         u32 expires_s) noexcept nogil:
    """retained_set, until the stage is settled; there is room to remember what was."""
    cdef rundo_t* undo = &rs.undo[rs.n_undo]
    undo.msg = msg
    undo.file = msg.file
    undo.pos = msg.pos
    undo.size = msg.size
    undo.expires_s = msg.expires_s
    rs.n_undo += 1
    if (msg.size == 0 or size == 0) and not msg.is_new:
        msg.is_new = True
        rs.news[rs.n_news] = msg
        rs.n_news += 1
    retained_set(rs, msg, file, pos, size, expires_s)


cdef void retained_unset(rstore_t* rs, const rundo_t* undo) noexcept nogil:
    """Take back one change: the entry of before counts again. What the last file has lost by all of
    them the log knows."""
    cdef rmsg_t* msg = undo.msg
    retained_set(rs, msg, undo.file, undo.pos, undo.size, undo.expires_s)
    if undo.size:
        mlog_add_stale(&rs.log, undo.file, -<i64>mlog_padded(undo.size))


cdef void retained_settle(mlog_t* log, bint is_written) noexcept nogil:
    """What was staged is written, or never will be."""
    cdef rstore_t* rs = <rstore_t*>log
    cdef rmsg_t* msg
    cdef u32 i
    if not is_written:
        rs.has_failed = True
        for i in range(<u32>N_WINDOWS):
            rs.windows[i].len = 0
        while rs.n_undo:
            rs.n_undo -= 1
            retained_unset(rs, &rs.undo[rs.n_undo])
    rs.n_undo = 0
    for i in range(rs.n_news):
        msg = rs.news[i]
        msg.is_new = False
        if msg.size == 0:
            retained_forget(rs, msg)
    rs.n_news = 0


# ---- changes -------------------------------------------------------------------------------------

cdef inline u32 retained_seconds(i64 expires_ms) noexcept nogil:
    """Unix seconds of an expiry, rounded up: it is looked at when the message is read, too."""
    if expires_ms <= 0:
        return 0
    expires_ms = (expires_ms + 999) // 1000
    return <u32>(expires_ms if expires_ms < <i64>0xffffffff else <i64>0xffffffff)


cdef void retained_write(u8* p, const rfound_t* m) noexcept nogil:
    """The body of a put."""
    p[0] = RETAINED_PUT
    p[1] = m.qos
    p[2] = <u8>m.topic_len
    p[3] = <u8>(m.topic_len >> 8)
    put_le32(p + 4, m.props_len)
    put_le64(p + 8, <u64>m.at_ms)
    put_le64(p + 16, <u64>m.expires_ms)
    memcpy(p + RETAINED_FIXED, m.topic, m.topic_len)
    memcpy(p + RETAINED_FIXED + m.topic_len, m.props, m.props_len)
    memcpy(p + RETAINED_FIXED + m.topic_len + m.props_len, m.payload, m.payload_len)


# hot
cdef int retained_put(rstore_t* rs, const rfound_t* m) noexcept nogil:
    """Keep m in the place of what its topic had. 0, or -1 with errno: nothing has changed.

    It is written at the end of the tick; whoever is to be told that it is safe calls
    mlog_want_sync, too. Topics have 1 to 65 535 bytes. Cost: 1 us with a million topics."""
    cdef u64 size = <u64>RETAINED_FIXED + m.topic_len + m.props_len + m.payload_len
    cdef rmsg_t* msg
    cdef u32 pos, hash
    cdef u8* p
    if size > RETAINED_MOST:
        set_errno(EFBIG)
        return -1
    p = mlog_begin(&rs.log, <u32>size)
    if p == NULL:
        return -1
    hash = retained_hash(rs, m.topic, m.topic_len)
    msg = retained_find_hashed(rs, m.topic, m.topic_len, hash)
    if retained_reserve_undo(rs) == 0 and msg == NULL:
        msg = retained_make(rs, m.topic, m.topic_len, hash)
    if msg == NULL or rs.n_undo == rs.cap_undo or rs.n_news == rs.cap_news:
        set_errno(ENOMEM)
        return -1
    pos = mlog_position(&rs.log)
    retained_write(p, m)
    mlog_end(&rs.log, <u32>size)
    rs.n_puts += 1
    msg.put = rs.n_puts
    retained_stage(rs, msg, mlog_last(&rs.log).number, pos, <u32>size,
                   retained_seconds(m.expires_ms))
    return 0


# hot
cdef int retained_remove(rstore_t* rs, const u8* topic, u32 n) noexcept nogil:
    """Forget the message of a topic. 1 when there was one, 0, or -1 with errno: nothing has
    changed."""
    cdef rmsg_t* msg = retained_find(rs, topic, n)
    cdef u8* p
    if msg == NULL or msg.size == 0:
        return 0
    p = mlog_begin(&rs.log, RETAINED_GONE + n)
    if p == NULL:
        return -1
    # To begin it may have written or taken back what was staged.
    msg = retained_find(rs, topic, n)
    if msg == NULL or msg.size == 0:
        return 0
    if retained_reserve_undo(rs):
        set_errno(ENOMEM)
        return -1
    p[0] = RETAINED_REMOVED
    p[1] = 0
    p[2] = <u8>n
    p[3] = <u8>(n >> 8)
    memcpy(p + RETAINED_GONE, topic, n)
    mlog_end(&rs.log, RETAINED_GONE + n)
    mlog_last(&rs.log).stale += mlog_padded(RETAINED_GONE + n)
    retained_stage(rs, msg, 0, 0, 0, 0)
    return 1


cdef int retained_sink_put(retained_t* sink, const publish_t* m) noexcept nogil:
    """Keep what was published, or forget it when it is empty. 0, or -1 with errno."""
    cdef rstore_t* rs = (<retained_sink_t*>sink).store
    cdef rfound_t found
    if rs.lines == NULL:
        set_errno(ENOENT)
        return -1
    if m.qos:
        mlog_want_sync(&rs.log)
    if m.body_len == 0:
        return -1 if retained_remove(rs, m.topic, m.topic_len) < 0 else 0
    if m.body_len > RETAINED_MOST:
        set_errno(EFBIG)
        return -1
    found.topic = m.topic
    found.topic_len = m.topic_len
    found.qos = m.qos
    found.props = m.props
    found.props_len = m.props_len
    found.payload = m.body
    found.payload_len = <u32>m.body_len
    found.at_ms = rs.log.loop.now_ms
    found.expires_ms = found.at_ms + <i64>m.expiry_s * 1000 if m.has_expiry else 0
    return retained_put(rs, &found)


# hot
cdef void retained_sink_hint(retained_t* sink, const u8* topic, u32 n) noexcept nogil:
    """Have the line of a topic fetched, and the message of the topic of the hint before."""
    cdef rstore_t* rs = (<retained_sink_t*>sink).store
    cdef const rline_t* line
    cdef u32 i
    if rs.lines == NULL or n > HINT_MOST:
        return
    line = retained_line(rs, rs.hinted)
    for i in range(line_own(line)):
        if line.hashes[i] == rs.hinted:
            prefetch(line.msgs[i])
    rs.hinted = retained_hash(rs, topic, n)
    prefetch(retained_line(rs, rs.hinted))


cdef int retained_note_import(rstore_t* rs, i64 stamp, i64 at_ms) noexcept nogil:
    """What LavinMQ has kept is taken over, as of this time of its index. 0, or -1 with errno."""
    cdef u8* p = mlog_begin(&rs.log, RETAINED_IMPORT_SIZE)
    if p == NULL:
        return -1
    put_le64(p, RETAINED_IMPORT)
    put_le64(p + 8, <u64>stamp)
    put_le64(p + 16, <u64>at_ms)
    mlog_end(&rs.log, RETAINED_IMPORT_SIZE)
    mlog_last(&rs.log).stale += mlog_padded(RETAINED_IMPORT_SIZE)
    rs.imported_ns = stamp
    rs.imported_at_ms = at_ms
    return 0


# ---- reading -------------------------------------------------------------------------------------

cdef bint retained_parse(const u8* p, u32 n, rfound_t* found) noexcept nogil:
    """Take a body of n bytes apart; False when it is no put."""
    cdef u64 used
    if n < RETAINED_FIXED or p[0] != RETAINED_PUT:
        return False
    found.qos = p[1]
    found.topic_len = <u32>p[2] | <u32>p[3] << 8
    found.props_len = le32(p + 4)
    found.at_ms = <i64>le64(p + 8)
    found.expires_ms = <i64>le64(p + 16)
    used = <u64>RETAINED_FIXED + found.topic_len + found.props_len
    if used > n or found.topic_len == 0 or found.qos > 2:
        return False
    found.topic = p + RETAINED_FIXED
    found.props = found.topic + found.topic_len
    found.payload = found.props + found.props_len
    found.payload_len = <u32>(n - used)
    return True


cdef int retained_take(mlog_t* log, u32 file, u32 pos, const u8* p, u32 n) noexcept nogil:
    """An entry that is found at the start. 0, or -1 out of memory."""
    cdef rstore_t* rs = <rstore_t*>log
    cdef rfound_t found
    cdef rmsg_t* msg
    cdef u32 topic_len, hash
    if retained_parse(p, n, &found):
        hash = retained_hash(rs, found.topic, found.topic_len)
        msg = retained_find_hashed(rs, found.topic, found.topic_len, hash)
        if msg == NULL:
            msg = retained_make(rs, found.topic, found.topic_len, hash)
        if msg == NULL:
            return -1
        retained_set(rs, msg, file, pos, n, retained_seconds(found.expires_ms))
        return 0
    mlog_add_stale(log, file, mlog_padded(n))
    if n >= RETAINED_IMPORT_SIZE and p[0] == RETAINED_IMPORT:
        rs.imported_ns = <i64>le64(p + 8)
        rs.imported_at_ms = <i64>le64(p + 16)
        return 0
    if n < RETAINED_GONE or p[0] != RETAINED_REMOVED:
        return 0                # of a later release
    topic_len = <u32>p[2] | <u32>p[3] << 8
    if topic_len <= n - RETAINED_GONE:
        msg = retained_find(rs, p + RETAINED_GONE, topic_len)
        if msg != NULL:
            retained_set(rs, msg, 0, 0, 0, 0)
            retained_forget(rs, msg)
    return 0


cdef rmsg_t* line_below(const rline_t* line, u32 floor) noexcept nogil:
    """A message that only a file below a number has, NULL: there is none."""
    cdef u32 i
    while line != NULL:
        for i in range(line_own(line)):
            if line.msgs[i].file < floor:
                return line.msgs[i]
        line = line_further(line)
    return NULL


cdef void retained_drop_below(rstore_t* rs, u32 floor) noexcept nogil:
    """Forget what only files below a number have: a start is over."""
    cdef rmsg_t* msg
    cdef u32 at
    for at in range(rs.n_lines):
        msg = line_below(lines_at(rs.lines, at), floor)
        while msg != NULL:
            retained_set(rs, msg, 0, 0, 0, 0)
            retained_forget(rs, msg)
            msg = line_below(lines_at(rs.lines, at), floor)


cdef i64 retained_read(rstore_t* rs, u32 file, u32 pos, u8* p, u32 n) noexcept nogil:
    """Read n bytes of a file. What read_at returns."""
    cdef mlog_file_t* f = mlog_file(&rs.log, file)
    cdef int fd
    if f == NULL:
        return -1
    fd = mlog_open_file(&rs.log, f)
    if fd < 0:
        return -1
    return read_at(fd, p, n, pos)


cdef const u8* retained_window(rstore_t* rs, u32 file, u32 pos, u32 size) noexcept nogil:
    """The whole entry of `size` bytes, less than a window, that stands there. NULL when it cannot
    be read."""
    cdef rwindow_t* w
    cdef u8* buf
    cdef i64 got
    cdef u32 i
    for i in range(<u32>N_WINDOWS):
        w = &rs.windows[i]
        if w.file == file and w.at <= pos and pos + size <= w.at + w.len:
            return rs.block + i * WINDOW_BYTES + (pos - w.at)
    i = rs.next_window
    rs.next_window = (i + 1) % N_WINDOWS
    w = &rs.windows[i]
    buf = rs.block + i * WINDOW_BYTES
    w.len = 0
    got = retained_read(rs, file, pos, buf, WINDOW_BYTES)
    if got < size:
        return NULL
    w.file = file
    w.at = pos
    w.len = <u32>got
    return buf


cdef int retained_load(rwalk_t* walk, const rmsg_t* msg, rfound_t* found) noexcept nogil:
    """Read a message. 1, or 0 when its entry is damaged or cannot be read."""
    cdef rstore_t* rs = walk.store
    cdef u32 size = MLOG_HEAD + msg.size
    cdef mlog_file_t* last = mlog_last(&rs.log)
    cdef const u8* p
    cdef u8* grown
    if msg.file == last.number and msg.pos >= last.size:
        p = rs.log.stage + (msg.pos - last.size)
    elif size <= WINDOW_BYTES:
        p = retained_window(rs, msg.file, msg.pos, size)
    else:
        if walk.cap_buf < size:
            grown = <u8*>realloc(walk.buf, size)
            if grown == NULL:
                return 0
            walk.buf = grown
            walk.cap_buf = size
        p = walk.buf
        if retained_read(rs, msg.file, msg.pos, walk.buf, size) < size:
            p = NULL
    if (p == NULL or mlog_parse(&rs.log, msg.file, msg.pos, p, size) == 0
            or not retained_parse(p + MLOG_HEAD, msg.size, found)):
        rs.n_lost += 1
        rs.log.is_news = rs.log.loop.is_news = True
        return 0
    found.put = msg.put
    return 1


# ---- the end -------------------------------------------------------------------------------------

cdef struct rgone_t:            # retained messages of a store that is no more
    job_t job                   # must stay first
    rline_t** lines
    u32 n_lines
    u32 at                      # those before it are empty
    u32 n_segments
    rtree_t* node               # of the tree, the next one to go
    rtree_t* below              # the first on the level below


cdef inline void rgone_level(rgone_t* g, rtree_t* first) noexcept nogil:
    """The nodes of a level go next; they are linked, and the one below begins with a child."""
    g.node = first
    g.below = first.children[0] if first != NULL and first.height else NULL


cdef bint rgone_some(loop_t* loop, rgone_t* g) noexcept nogil:
    """Free some. Whether there is more."""
    cdef rline_t* line
    cdef rline_t* further
    cdef rtree_t* node
    cdef u32 i
    while g.at < g.n_lines:
        line = lines_at(g.lines, g.at)
        for i in range(line_own(line)):
            free(line.msgs[i])
        further = line_further(line)
        if further != NULL:
            line[0] = further[0]
            free(further)
        else:
            g.at += 1
        if loop_spent(loop, LINE_MSGS * GONE_UNITS):
            return True
    while g.node != NULL:
        node = g.node
        g.node = node.next
        free(node)
        if g.node == NULL:
            rgone_level(g, g.below)
        if loop_spent(loop, GONE_UNITS):
            return True
    while g.n_segments:
        g.n_segments -= 1
        loop_free(loop, <u8*>g.lines[g.n_segments], SEGMENT_LINES * sizeof(rline_t), 0)
        if loop_look(loop):
            return True
    free(g.lines)
    return False


cdef bint rgone_step(loop_t* loop, job_t* job) noexcept nogil:
    if rgone_some(loop, <rgone_t*>job):
        return True
    free(job)
    return False


cdef void retained_free(rstore_t* rs) noexcept nogil:
    """Free all messages, in turns: there may be millions."""
    cdef loop_t* loop = rs.log.loop
    cdef rgone_t whole
    cdef rgone_t* g = <rgone_t*>calloc(1, sizeof(rgone_t))
    if g == NULL:
        memset(&whole, 0, sizeof(rgone_t))
        g = &whole
    g.job.step = rgone_step
    g.lines = rs.lines
    g.n_lines = rs.n_lines
    g.n_segments = ((rs.cap_lines - 1) >> SEGMENT_SHIFT) + 1
    rgone_level(g, rs.root)
    rs.lines = NULL
    rs.root = rs.recent = NULL
    if g != &whole:
        loop_add_job(loop, &g.job)
    else:
        while rgone_some(loop, g):
            pass


cdef void retained_release(rstore_t* rs) noexcept nogil:
    """Let go of all, of memory in turns; the files stay as they are. Idempotent."""
    if rs.lines == NULL:
        return
    retained_free(rs)
    if rs.block != NULL:
        block_give(&rs.log.loop.pool, rs.block)
    free(rs.undo)
    free(rs.news)
    free(rs.clean_buf)
    mlog_release(&rs.log)
    rs.block = NULL
    rs.undo = NULL
    rs.news = NULL
    rs.clean_buf = NULL
    rs.n = rs.n_nodes = rs.n_undo = rs.n_news = rs.cap_undo = rs.cap_news = 0
