# Sample: some of the messages that pass an exchange or a queue, for who follows them live.
#
# It is a place in front of which messages pass: an exchange takes it for one more destination, a
# queue takes the long way as for its rules. What is not followed pays nothing. Who follows says how
# many messages and bytes are kept until it fetches them; all others are only counted. Called by
# history.pyx and rules.pyx. Source: decision 0082.

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
