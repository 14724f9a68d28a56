# Retained table: from a topic to its retained message, by hash.
#
# A line of the processor's cache has five hashes and messages, so that whoever looks for a topic
# touches one line, and of the messages, each of which is far in memory, only the one that is meant.
# Lines come one by one (linear hashing): none of a million has to be moved at once. Called by
# retained.pyx. Decision 0134.

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void* p) nogil

cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void** p, size_t align, size_t n)

cdef extern from "<sys/mman.h>" nogil:
    enum:
        MADV_HUGEPAGE

cdef enum:
    FIRST_LINES = 64
    SEGMENT_SHIFT = 15          # lines of a segment, as a power of two: 2 MiB
    SEGMENT_LINES = 1 << 15
    LINE_MSGS = 5
    LINE_LONG = 6               # `n` of a line that is full and goes on in a further one
    SPLITS_AHEAD = 4            # lines that are fetched from far in memory before they are split


cdef inline u64 rmsg_size(u32 topic_len) noexcept nogil:
    """What it takes of memory, with the C library's part."""
    return (sizeof(rmsg_t) + topic_len + 8 + 15) & ~<u64>15


cdef rline_t* lines_make(u32 n) noexcept nogil:
    """Memory for lines, not cleared; NULL without. That of a whole segment is one large page: what
    is looked for is anywhere in the table, and finding each small page would take as long again."""
    cdef u64 size = n * sizeof(rline_t)
    cdef void* p
    if posix_memalign(&p, size if n == SEGMENT_LINES else sizeof(rline_t), size):
        return NULL
    if n == SEGMENT_LINES:
        madvise(p, size, MADV_HUGEPAGE)
    return <rline_t*>p


cdef int retained_init(rstore_t* rs) noexcept nogil:
    """The rest is zeros. 0, or -1 out of memory."""
    rs.lines = <rline_t**>malloc(sizeof(rline_t*))
    if rs.lines == NULL:
        return -1
    rs.lines[0] = lines_make(FIRST_LINES)
    if rs.lines[0] == NULL:
        free(rs.lines)
        rs.lines = NULL
        return -1
    memset(rs.lines[0], 0, FIRST_LINES * sizeof(rline_t))
    rs.n_lines = rs.cap_lines = FIRST_LINES
    rs.cap_segments = 1
    rs.mask = FIRST_LINES - 1
    rs.bytes = sizeof(rstore_t) + FIRST_LINES * sizeof(rline_t)
    rs.log.kind = MLOG_RETAINED
    rs.log.fd = -1
    rs.log.next_number = 1
    rs.log.settle = retained_settle
    return 0


cdef inline rline_t* lines_at(rline_t** lines, u32 at) noexcept nogil:
    return &lines[at >> SEGMENT_SHIFT][at & (SEGMENT_LINES - 1)]


cdef inline rline_t* retained_line(const rstore_t* rs, u32 hash) noexcept nogil:
    """The line of a hash."""
    cdef u32 at = hash & rs.mask
    return lines_at(rs.lines, at if at < rs.n_lines else at & (rs.mask >> 1))


cdef inline u32 line_own(const rline_t* line) noexcept nogil:
    """How many messages stand in a line itself."""
    return line.n if line.n <= LINE_MSGS else LINE_MSGS - 1


cdef inline rline_t* line_further(const rline_t* line) noexcept nogil:
    """The line in which a long one goes on, else NULL."""
    return <rline_t*>line.msgs[LINE_MSGS - 1] if line.n == LINE_LONG else NULL


cdef int line_put(rline_t* line, rmsg_t* msg, u32 hash, rline_t** spare) noexcept nogil:
    """Add a message. 0, or -1 out of memory. A further line is one of `spare`, if there is any."""
    cdef rline_t* further
    while line.n == LINE_LONG:
        line = line_further(line)
    if line.n == LINE_MSGS:
        further = spare[0]
        if further != NULL:
            spare[0] = <rline_t*>further.msgs[0]
        else:
            further = <rline_t*>malloc(sizeof(rline_t))
            if further == NULL:
                return -1
        further.msgs[0] = line.msgs[LINE_MSGS - 1]
        further.hashes[0] = line.hashes[LINE_MSGS - 1]
        further.n = 1
        line.msgs[LINE_MSGS - 1] = <rmsg_t*>further
        line.n = LINE_LONG
        line = further
    line.msgs[line.n] = msg
    line.hashes[line.n] = hash
    line.n += 1
    return 0


cdef void line_take(rline_t* line, const rmsg_t* msg) noexcept nogil:
    """Take out a message that is there: the last one of all comes to its place."""
    cdef rline_t* found = NULL
    cdef rline_t* before = NULL
    cdef u32 i, at = 0
    while True:
        for i in range(line_own(line)):
            if line.msgs[i] == msg:
                found = line
                at = i
        if line.n != LINE_LONG:
            break
        before = line
        line = line_further(line)
    lmq_assert(found != NULL)
    line.n -= 1
    found.msgs[at] = line.msgs[line.n]
    found.hashes[at] = line.hashes[line.n]
    if before != NULL and line.n == 1:
        before.msgs[LINE_MSGS - 1] = line.msgs[0]
        before.hashes[LINE_MSGS - 1] = line.hashes[0]
        before.n = LINE_MSGS
        free(line)


cdef inline u32 retained_hash(const rstore_t* rs, const u8* topic, u32 n) noexcept nogil:
    return <u32>hash_bytes(topic, n, rs.seed)


cdef inline rmsg_t* retained_find(const rstore_t* rs, const u8* topic, u32 n) noexcept nogil:
    """The message of a topic, also one that is staged to go; NULL when there is none."""
    return retained_find_hashed(rs, topic, n, retained_hash(rs, topic, n))


# hot
cdef rmsg_t* retained_find_hashed(const rstore_t* rs, const u8* topic, u32 n,
                                  u32 hash) noexcept nogil:
    """The same. No message of another hash is looked at: each is far in memory."""
    cdef const rline_t* line = retained_line(rs, hash)
    cdef rmsg_t* msg
    cdef u32 i
    while line != NULL:
        for i in range(line_own(line)):
            msg = line.msgs[i]
            if (line.hashes[i] == hash and msg.topic_len == n
                    and same_bytes(msg.topic, topic, n)):
                return msg
        line = line_further(line)
    return NULL


cdef int retained_add_line(rstore_t* rs) noexcept nogil:
    """Room for one more line. 0, or -1 out of memory."""
    cdef u32 segment = rs.n_lines >> SEGMENT_SHIFT
    cdef rline_t* made
    cdef void* grown
    if rs.n_lines < rs.cap_lines:
        return 0
    if segment == rs.cap_segments:
        grown = realloc(rs.lines, 2 * <u64>segment * sizeof(rline_t*))
        if grown == NULL:
            return -1
        rs.lines = <rline_t**>grown
        rs.cap_segments = 2 * segment
    made = lines_make(SEGMENT_LINES if segment else 2 * rs.cap_lines)
    if made == NULL:
        return -1
    if segment == 0:                # the first one grows until it is as long as all others
        memcpy(made, rs.lines[0], rs.n_lines * sizeof(rline_t))
        free(rs.lines[0])
    rs.lines[segment] = made
    rs.cap_lines += SEGMENT_LINES if segment else rs.cap_lines
    return 0


cdef void retained_split(rstore_t* rs) noexcept nogil:
    """Add a line, which takes its share of one that was there before: so no publish has to wait
    until a million topics are in new lines. Without memory they get longer."""
    cdef u32 added = rs.n_lines, i
    cdef rline_t* old
    cdef rline_t* line
    cdef rline_t* spare = NULL
    cdef rline_t held
    if retained_add_line(rs):
        return
    rs.n_lines = added + 1
    if added > rs.mask:
        rs.mask = rs.mask * 2 + 1
    rs.bytes += sizeof(rline_t)
    lines_at(rs.lines, added).n = 0
    old = lines_at(rs.lines, added & (rs.mask >> 1))
    prefetch(old + SPLITS_AHEAD)
    held = old[0]
    old.n = 0
    # What is left of a line is never more than what has gone through it, so there is always a spare
    # one where a further line is needed.
    while True:
        line = line_further(&held)
        for i in range(line_own(&held)):
            line_put(retained_line(rs, held.hashes[i]), held.msgs[i], held.hashes[i], &spare)
        if line == NULL:
            break
        held = line[0]
        line.msgs[0] = <rmsg_t*>spare
        spare = line
    while spare != NULL:
        line = spare
        spare = <rline_t*>line.msgs[0]
        free(line)


cdef rmsg_t* retained_make(rstore_t* rs, const u8* topic, u32 n, u32 hash) noexcept nogil:
    """A place for a topic that has none; NULL out of memory."""
    cdef rmsg_t* msg
    cdef rline_t* spare = NULL
    if 2 * <u64>rs.n_nodes >= LINE_MSGS * <u64>rs.n_lines:     # they are half full then
        retained_split(rs)
    msg = <rmsg_t*>malloc(sizeof(rmsg_t) + n)
    if msg == NULL:
        return NULL
    memset(msg, 0, sizeof(rmsg_t))
    memcpy(msg.topic, topic, n)
    msg.topic_len = <u16>n
    if tree_add(rs, msg):
        free(msg)
        return NULL
    if line_put(retained_line(rs, hash), msg, hash, &spare):
        tree_remove(rs, msg)
        free(msg)
        return NULL
    rs.n_nodes += 1
    rs.bytes += rmsg_size(n)
    return msg


cdef void retained_forget(rstore_t* rs, rmsg_t* msg) noexcept nogil:
    """Nothing is kept of its topic any more."""
    line_take(retained_line(rs, retained_hash(rs, msg.topic, msg.topic_len)), msg)
    tree_remove(rs, msg)
    rs.n_nodes -= 1
    rs.bytes -= rmsg_size(msg.topic_len)
    lmq_poison(msg, sizeof(rmsg_t))
    free(msg)
