# Sample: some of the messages that pass an exchange or a queue, for who follows them live.
#
# It is a place in front of which messages pass, and an eye that is open for moments: an exchange
# takes it for one more destination, and a queue takes the long way as for its features, until
# it has what is wanted until the next look; then it closes by itself, and messages go as they would if
# nobody followed. How many have passed meanwhile is what the exchange or queue counts anyway. What
# an exchange does not count as published there (it comes by another one, or has died) is counted
# here, one by one. Called by what appends to a queue or a history, by through.pyx and the door.
# Source: decisions 0082 and 0058.

cdef inline u64 sample_counted(const sample_t* s) noexcept nogil:
    """What the queue or exchange that is followed has counted; 0 when none is."""
    if s.queue != NULL:
        return s.queue.n_published
    return s.exchange.n_in if s.exchange != NULL else 0


cdef u64 sample_unseen(const sample_t* s) noexcept nogil:
    """What has passed since it was closed."""
    if s.is_open or (s.queue == NULL and s.exchange == NULL):
        return 0
    return sample_counted(s) - s.closed_at


cdef bint sample_wants(const exchange_t* x, bint is_counted) noexcept nogil:
    """Whether what goes through x, which is followed, comes by its sample; `is_counted`: x has
    counted it."""
    return not is_counted or x.followed.history.sample.is_open


cdef void exchange_note_plain(exchange_t* x) noexcept nogil:
    """Have publishes take the short way if nothing about x asks for another."""
    x.is_plain = (x.n_exchanges == 0 and x.alternate == NULL and x.delayed == NULL
                  and x.history == NULL and (x.followed == NULL or not sample_wants(x, True)))


cdef void sample_open(sample_t* s) noexcept nogil:
    """Have what passes come by, if anything is followed."""
    if s.is_open or (s.queue == NULL and s.exchange == NULL):
        return
    s.n_seen += sample_unseen(s)
    s.is_open = True
    if s.queue != NULL:
        s.queue.sample = s
        queue_note_special(s.queue)
    else:
        s.exchange.version += 1         # routes that channels keep lead past it
        exchange_note_plain(s.exchange)


cdef void sample_close(sample_t* s) noexcept nogil:
    """The opposite. An exchange that has messages wait counts them before they pass, so what passes
    is counted here all the time."""
    if not s.is_open or (s.exchange != NULL and s.exchange.delayed != NULL):
        return
    s.closed_at = sample_counted(s)
    s.is_open = False
    if s.queue != NULL:
        s.queue.sample = NULL
        queue_note_special(s.queue)
    else:
        s.exchange.version += 1
        exchange_note_plain(s.exchange)


cdef void sample_free(sample_t* s) noexcept nogil:
    """Let go of what was not fetched."""
    cdef taken_t* each
    while s.first != NULL:
        each = s.first
        s.first = each.next
        free(each)
    s.last = NULL


cdef u32 sample_props(u8* p, const msg_t* m) noexcept nogil:
    """Copy the properties, without what no client gets. Returns their bytes."""
    cdef const u8* entry
    cdef u32 at
    memcpy(p, m.props, m.props_len)
    if m.headers_at == 0:
        return m.props_len
    entry = table_find(m.props + m.headers_at + 4, be32(m.props + m.headers_at),
                       <const u8*>b"BCC", 3)
    if entry == NULL:
        return m.props_len
    at = <u32>(entry - m.props)
    return props_cut(p, m.props_len, m.headers_at, at,
                     <u32>entry_size(entry, m.props_len - at))


cdef void sample_take(sample_t* s, const msg_t* m, i64 now_ms) noexcept nogil:
    """A message passes. Of a large one the body is left out: it is on its way in pieces."""
    cdef taken_t* taken
    cdef u32 body_len = s.most_body if m.body_len > s.most_body else <u32>m.body_len
    cdef u64 need
    cdef u8* p
    s.n_seen += 1
    if s.left == 0:
        return
    if m.size > LARGE_RECORD or m.body == NULL:
        body_len = 0
    need = sizeof(taken_t) + <u64>m.names_len + m.props_len + body_len
    if need > s.room:
        return
    taken = <taken_t*>malloc(need)
    if taken == NULL:
        return
    s.left -= 1
    s.room -= need
    taken.next = NULL
    taken.at_ms = now_ms
    taken.size = m.body_len
    taken.names_len = m.names_len
    taken.body_len = body_len
    p = <u8*>(taken + 1)
    memcpy(p, m.names, m.names_len)
    taken.props_len = sample_props(p + m.names_len, m)
    if body_len:
        memcpy(p + m.names_len + taken.props_len, m.body, body_len)
    if s.last == NULL:
        s.first = taken
    else:
        s.last.next = taken
    s.last = taken
    if s.left == 0:
        sample_close(s)
