# Retained walk: the messages whose topics a filter matches, in the order of their topics, in
# portions.
#
# A filter matches a topic or says behind it where the next one may be: with that the walk goes
# through the tree in jumps, so it looks at few more topics than it finds, wherever the wildcards
# are. A place is a topic, not a node: what is put and removed meanwhile does not matter. Levels
# are compared as bytes. Topics that begin with '$' are not matched by a wildcard at the first
# level, and `a/#` matches `a`. A filter is valid when it comes here. Called by the door and by
# subscriptions.
# Source: MQTT 5.0 section 4.7.

cdef enum:
    WALK_UNITS = 10             # of work, for a topic that is looked at
    WALK_STEPS = 4              # to the next topics that cost less than a jump
    FOUND_UNITS = 40            # for one that is read

cdef enum rwalk_result:
    RWALK_OVER = 0
    RWALK_FOUND = 1
    RWALK_LATER = 2              # the portion is over
    RWALK_NO_MEMORY = -1


# ---- filters -------------------------------------------------------------------------------------

cdef inline u32 walk_level_end(const u8* p, u32 at, u32 n) noexcept nogil:
    """Where the level that begins at `at` ends."""
    while at < n and p[at] != c'/':
        at += 1
    return at


cdef bint walk_reserve(rwalk_t* w, u64 n) noexcept nogil:
    """Room for a place of n bytes. False out of memory."""
    cdef u8* grown
    if n <= w.cap_at:
        return True
    grown = <u8*>realloc(w.at, n * 2)
    if grown == NULL:
        return False
    w.at = grown
    w.cap_at = <u32>(n * 2)
    return True


cdef int walk_go(rwalk_t* w, const u8* p, u32 n, const u8* more, u32 n_more,
                 int last) noexcept nogil:
    """Go on at the topic of n bytes, n_more others and, unless it is negative, one more. 0, or
    RWALK_NO_MEMORY."""
    if not walk_reserve(w, <u64>n + n_more + 1):
        return RWALK_NO_MEMORY
    if n:                               # the first topic is of nothing, and nowhere
        memmove(w.at, p, n)
    if n_more:
        memcpy(w.at + n, more, n_more)
    w.at_len = n + n_more
    if last >= 0:
        w.at[w.at_len] = <u8>last
        w.at_len += 1
    w.version = 0
    return 0


cdef int walk_behind_literal(rwalk_t* w, const u8* t, u32 n, u32 at, u32 level, u32 end,
                             u32 plus_end) noexcept nogil:
    """The topic has another level at `at` than the filter at `level` up to `end`: where is the next
    one that has it? 0, RWALK_NO_MEMORY, or 1: nowhere."""
    cdef const u8* word = w.filter + level
    cdef u32 len_word = end - level, rest = n - at
    cdef int rc = topic_order(t + at, rest, word, len_word)
    if rc < 0:
        return walk_go(w, t, at, word, len_word, -1)
    if end < w.filter_len and rest > len_word and memcmp(t + at, word, len_word) == 0 and (
            t[at + len_word] < c'/'):
        return walk_go(w, t, at, word, len_word, c'/')
    return walk_behind_plus(w, t, plus_end)


cdef int walk_behind_plus(rwalk_t* w, const u8* t, u32 plus_end) noexcept nogil:
    """No more topics with what stands before the end of the last level that a '+' has matched, and
    there: another value for it. 0, RWALK_NO_MEMORY, or 1: there is no '+'."""
    if plus_end == <u32>-1:
        w.is_over = True
        return 1
    return walk_go(w, t, plus_end, NULL, 0, c'/' + 1)


cdef int walk_match(rwalk_t* w, const u8* t, u32 n) noexcept nogil:
    """Whether the filter matches a topic: RWALK_FOUND; else 0, and the walk goes on where the next
    one may be, or is over. Or RWALK_NO_MEMORY. Cost: 3 ns for a level and 1 ns for a byte."""
    cdef const u8* f = w.filter
    cdef u32 level = 0, at = 0, end, topic_end, plus_end = <u32>-1
    cdef bint is_plus
    if t[0] == c'$' and (f[0] == c'#' or (f[0] == c'+' and (w.filter_len == 1 or f[1] == c'/'))):
        return walk_go(w, NULL, 0, NULL, 0, c'$' + 1)
    while True:
        end = walk_level_end(f, level, w.filter_len)
        if end - level == 1 and f[level] == c'#':
            return RWALK_FOUND
        topic_end = walk_level_end(t, at, n)
        is_plus = end - level == 1 and f[level] == c'+'
        if is_plus:
            plus_end = topic_end
        elif end - level != topic_end - at or not same_bytes(f + level, t + at, end - level):
            return -1 if walk_behind_literal(w, t, n, at, level, end, plus_end) < 0 else 0
        if end == w.filter_len:
            if topic_end == n:
                return RWALK_FOUND
            return -1 if walk_behind_plus(w, t, topic_end if is_plus else plus_end) < 0 else 0
        level = end + 1
        if topic_end == n:
            if w.filter_len - level == 1 and f[level] == c'#':
                return RWALK_FOUND
            # Topics that go on with less than '/' have another last level, which '+' matches, too.
            return walk_go(w, t, n, NULL, 0, 0 if is_plus else c'/')
        at = topic_end + 1


# ---- the walk ------------------------------------------------------------------------------------

cdef int rwalk_begin(rwalk_t* w, rstore_t* rs, const u8* filter, u32 n) noexcept nogil:
    """Begin with a filter of 1 to 65 535 bytes. 0, or RWALK_NO_MEMORY. Ends with rwalk_end."""
    cdef u32 literal = 0, i
    memset(w, 0, sizeof(rwalk_t))
    w.filter = <u8*>malloc(n)
    if w.filter == NULL or (rs.block == NULL and not retained_take_block(rs)):
        free(w.filter)
        w.filter = NULL
        return RWALK_NO_MEMORY
    memcpy(w.filter, filter, n)
    w.filter_len = n
    w.store = rs
    rs.n_walks += 1
    for i in range(n):
        if filter[i] == c'+' or filter[i] == c'#':
            break
        literal = i + 1
    # `a/#` matches `a`, too.
    if literal < n and literal and filter[literal] == c'#':
        literal -= 1
    if walk_go(w, filter, literal, NULL, 0, -1):
        rwalk_end(w)
        return RWALK_NO_MEMORY
    return 0


cdef bint retained_take_block(rstore_t* rs) noexcept nogil:
    rs.block = block_take(&rs.log.loop.pool)
    memset(rs.windows, 0, sizeof(rs.windows))
    return rs.block != NULL


cdef void rwalk_end(rwalk_t* w) noexcept nogil:
    """Idempotent."""
    cdef rstore_t* rs = w.store
    free(w.filter)
    free(w.at)
    free(w.buf)
    w.filter = w.at = w.buf = NULL
    w.is_over = True
    w.store = NULL
    if rs == NULL:
        return
    rs.n_walks -= 1
    if rs.n_walks == 0:
        block_give(&rs.log.loop.pool, rs.block)
        rs.block = NULL
        mlog_rest(&rs.log)


cdef rmsg_t* rwalk_here(rwalk_t* w) noexcept nogil:
    """The first message at the walk's place or behind it, NULL when there is none."""
    if w.version != w.store.version + 1:
        tree_seek(w.store, w.at, w.at_len, &w.leaf, &w.index)
        w.version = w.store.version + 1
    if w.leaf == NULL:
        return NULL
    return w.leaf.keys[w.index]


cdef void rwalk_step(rwalk_t* w) noexcept nogil:
    """To the place behind."""
    w.index += 1
    if w.index == w.leaf.n:
        w.leaf = w.leaf.next
        w.index = 0


cdef bint rwalk_reaches(rwalk_t* w, const rmsg_t* msg) noexcept nogil:
    """After a jump: whether a few steps from msg lead where it goes. Else it is looked for."""
    cdef u32 _i
    if w.version != 0:
        return True
    for _i in range(<u32>WALK_STEPS):
        rwalk_step(w)
        if w.leaf == NULL:
            break
        msg = w.leaf.keys[w.index]
        if topic_order(msg.topic, msg.topic_len, w.at, w.at_len) >= 0:
            break
    else:
        return False
    w.version = w.store.version + 1
    return True


cdef int rwalk_next(rwalk_t* w, loop_t* loop, rfound_t* found) noexcept nogil:
    """The next message, which is read: a rwalk_result. What is found is there until the store or
    the walk is used again."""
    cdef rmsg_t* msg
    cdef u32 now_s = <u32>(loop.now_ms // 1000)
    cdef bint is_late = False           # one is looked at in any case
    cdef int rc
    while not w.is_over:
        msg = rwalk_here(w)
        if msg == NULL:
            w.is_over = True
            break
        if is_late:
            return RWALK_LATER if walk_stay(w, msg) else RWALK_NO_MEMORY
        is_late = loop_spent(loop, WALK_UNITS + (<u32>msg.topic_len >> 2))
        rc = walk_match(w, msg.topic, msg.topic_len)
        if rc < 0:
            return RWALK_NO_MEMORY
        if rc == 0:
            rwalk_reaches(w, msg)
            continue
        # The next topic is at least this one and a byte of 0, which none has.
        if walk_go(w, msg.topic, msg.topic_len, NULL, 0, 0):
            return RWALK_NO_MEMORY
        rwalk_step(w)
        w.version = w.store.version + 1
        if msg.size == 0 or (msg.expires_s and msg.expires_s <= now_s):
            continue
        loop.work += FOUND_UNITS + (msg.size >> UNIT_SHIFT)
        if retained_load(w, msg, found):
            if found.expires_ms and found.expires_ms <= loop.now_ms:
                continue
            return RWALK_FOUND
    return RWALK_OVER


cdef bint walk_stay(rwalk_t* w, const rmsg_t* msg) noexcept nogil:
    """This one is looked at in the next portion. False out of memory."""
    cdef u64 version = w.version
    if walk_go(w, msg.topic, msg.topic_len, NULL, 0, -1):
        return False
    w.version = version
    return True
