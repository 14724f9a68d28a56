# History: the newest messages of an exchange, for destinations that are bound later.
#
# Routing takes a history as it takes a queue, so that whatever publishes (a client, a transaction,
# a dead letter, another exchange) fills it in the same way. It has no files: a message is one block
# of memory, and the oldest goes when there are too many, or too many bytes. Nobody has received
# what is only kept, so it counts as unroutable. Called by through.pyx, features.pyx and replay.pyx.
# Source: documentation of RabbitMQ's exchange x-recent-history.

cdef enum:
    KEEP_UNITS = 5              # of work, to keep a message or to let go of one
    BLOCK_COST = 16             # bytes that malloc takes for itself


cdef history_t* history_new(loop_t* loop, u32 most) noexcept nogil:
    """Room for so many messages, MAX_HISTORY at most. NULL when out of memory."""
    cdef history_t* h = <history_t*>calloc(1, sizeof(history_t))
    if h != NULL:
        h.loop = loop
        h.most = most if most < MAX_HISTORY else MAX_HISTORY
    return h


cdef void history_free(history_t* h) noexcept nogil:
    """Let go of all; h may be NULL. The bounds make that at most 32 MiB."""
    if h == NULL:
        return
    while h.first != h.next:
        history_drop(h)
    free(h.items)
    free(h)


cdef inline u32 history_count(const history_t* h) noexcept nogil:
    return <u32>(h.next - h.first)


cdef inline kept_t* history_at(const history_t* h, u64 number) noexcept nogil:
    return h.items[number & (h.cap - 1)]


cdef inline u64 kept_size(const kept_t* kept) noexcept nogil:
    return (BLOCK_COST + sizeof(kept_t) + <u64>kept.names_len + kept.props_len + kept.body_len)


cdef bint history_wants(const msg_t* m) noexcept nogil:
    """Whether a message is kept: no large one, and none with `x-recent-history-no-store`."""
    cdef const u8* entry
    if m.body_len + m.props_len + m.names_len + RECORD_FIXED > LARGE_RECORD:
        return False
    if m.headers_at == 0:
        return True
    entry = table_find(m.props + m.headers_at + 4, be32(m.props + m.headers_at),
                       <const u8*>b"x-recent-history-no-store", 25)
    return entry == NULL or entry[26] != c't' or entry[27] == 0


cdef void history_drop(history_t* h) noexcept nogil:
    """Let go of the oldest, which is there."""
    cdef kept_t* kept = history_at(h, h.first)
    h.bytes -= kept_size(kept)
    h.loop.history_budget.used -= kept_size(kept)
    h.loop.work += KEEP_UNITS
    h.first += 1
    free(kept)


cdef bint history_grow(history_t* h) noexcept nogil:
    """Have room for one more. False when out of memory."""
    cdef u32 cap = h.cap * 2 if h.cap else 8
    cdef kept_t** items
    cdef u64 i
    if history_count(h) < h.cap:
        return True
    items = <kept_t**>malloc(cap * sizeof(kept_t*))
    if items == NULL:
        return False
    for i in range(h.first, h.next):
        items[i & (cap - 1)] = history_at(h, i)
    free(h.items)
    h.items = items
    h.cap = cap
    return True


cdef int history_append(history_t* h, const msg_t* m) noexcept nogil:
    """queue_append for a history. What finds no memory is not kept. APPEND_KEPT.

    What is replayed from here, or from an exchange that gets it from here, does not come back:
    a ring of such exchanges would never be through."""
    cdef budget_t* budget = &h.loop.history_budget
    cdef kept_t* kept
    cdef u8* p
    cdef u64 size = m.names_len + m.props_len + m.body_len
    cdef u64 need = BLOCK_COST + sizeof(kept_t) + size
    if h.most == 0:
        if h.sample != NULL:
            sample_take(h.sample, m, h.loop.now_ms)
        return APPEND_KEPT
    if h.loop.is_replaying and h.n_replays:
        return APPEND_KEPT
    while history_count(h) and (history_count(h) >= h.most or h.bytes + need > MAX_HISTORY_BYTES
                                or budget.used + need > budget.most):
        history_drop(h)
    if budget.used + need > budget.most or not history_grow(h):
        return APPEND_KEPT
    kept = <kept_t*>malloc(sizeof(kept_t) + size)
    if kept == NULL:
        return APPEND_KEPT
    kept.names_len = m.names_len
    kept.props_len = m.props_len
    kept.body_len = <u32>m.body_len
    p = <u8*>(kept + 1)
    memcpy(p, m.names, m.names_len)
    memcpy(p + m.names_len, m.props, m.props_len)
    if m.body_len:
        memcpy(p + m.names_len + m.props_len, m.body, m.body_len)
    h.items[h.next & (h.cap - 1)] = kept
    h.next += 1
    h.bytes += need
    budget.used += need
    h.loop.work += KEEP_UNITS
    return APPEND_KEPT
