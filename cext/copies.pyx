# Copies: the CC and BCC headers of a message: further routing keys, the latter hidden from clients.
#
# Both are arrays of strings. Each exchange that a message comes to matches each string like a
# routing key; a queue that several of them reach gets one copy. BCC is stored and not delivered.
# Called by amqp.pyx (checks), route.pyx and deliver.pyx. Source: amqp reference section 8.


# ---- reading -------------------------------------------------------------------------------------

cdef bint is_string_array(const u8* value) noexcept nogil:
    """Whether a field value that is known to be valid, at its type, is an array of strings, or
    void, which counts as absent."""
    cdef u64 n, step
    if value[0] == c'V':
        return True
    if value[0] != c'A':
        return False
    n = be32(value + 1)
    value += 5
    while n:
        if value[0] != c'S':
            return False
        step = 5 + <u64>be32(value + 1)
        value += step
        n -= step
    return True


cdef i64 value_size(const u8* p, u64 avail, u8 kind) noexcept nogil:
    """Bytes of a field value, -1 when they are not there. Does not look into tables and arrays."""
    if kind != c'F' and kind != c'A':
        return field_size(p, avail, kind, 0)
    if avail < 4 or be32(p) > avail - 4:
        return -1
    return <i64>be32(p) + 4


cdef u64 entry_size(const u8* p, u64 avail) noexcept nogil:
    """Bytes of the table entry at p, its key first; 0 when no whole one is there."""
    cdef u64 key
    cdef i64 size
    if avail < 2:
        return 0
    key = 1 + p[0]
    if key + 1 > avail:
        return 0
    size = value_size(p + key + 1, avail - key - 1, p[key])
    return 0 if size < 0 else key + 1 + <u64>size


cdef const u8* table_find(const u8* p, u64 n, const u8* name, u64 name_len) noexcept nogil:
    """The entry of that name in the content of a table, at its key; NULL when there is none. What
    is not valid ends the search."""
    cdef u64 size = entry_size(p, n)
    while size:
        if p[0] == name_len and same_bytes(p + 1, name, name_len):
            return p
        p += size
        n -= size
        size = entry_size(p, n)
    return NULL


cdef inline bint has_copies(const msg_t* m) noexcept nogil:
    return m.cc_at != 0 or m.bcc_at != 0


cdef u32 copies_error(msg_t* m) noexcept nogil:
    """Note in m where CC and BCC are in its headers, which are valid, and check them; and whether
    it says where it goes when it dies. 0 or a walk_error. Cost: 3 ns per header."""
    cdef const u8* p = m.props + m.headers_at + 4
    cdef u64 n = m.headers_len
    cdef u64 size = entry_size(p, n)
    while size:
        if p[0] == 2 and m.cc_at == 0 and same_bytes(p + 1, <const u8*>b"CC", 2):
            m.cc_at = <u32>(p - m.props)
        elif p[0] == 3 and m.bcc_at == 0 and same_bytes(p + 1, <const u8*>b"BCC", 3):
            m.bcc_at = <u32>(p - m.props)
        elif p[0] == 22 and same_bytes(p + 1, <const u8*>b"x-dead-letter-exchange", 22):
            m.is_special = True
        p += size
        n -= size
        size = entry_size(p, n)
    if m.cc_at and not is_string_array(m.props + m.cc_at + 3):
        return ERROR_CC
    if m.bcc_at and not is_string_array(m.props + m.bcc_at + 4):
        return ERROR_BCC
    return 0


# ---- routing -------------------------------------------------------------------------------------

cdef int match_strings(match_t* match, const msg_t* m, const u8* value,
                       targets_t* out) noexcept nogil:
    """match_route for each string of the value of CC or BCC, at its type."""
    cdef u64 n, size
    cdef int rc
    if value[0] != c'A':
        return 0
    n = be32(value + 1)
    value += 5
    while n:
        size = be32(value + 1)
        rc = match_route(match, value + 5, <u32>size, m.props, m.headers_at, out)
        if rc:
            return rc
        value += 5 + size
        n -= 5 + size
    return 0


cdef int match_keys(match_t* match, const msg_t* m, targets_t* out) noexcept nogil:
    """Append what the routing key of m, its CC and BCC match. What match_route returns."""
    cdef const u8* key = m.names + m.names[0] + 1
    cdef int rc = match_route(match, key + 1, key[0], m.props, m.headers_at, out)
    if rc == 0 and m.cc_at:
        rc = match_strings(match, m, m.props + m.cc_at + 3, out)
    if rc == 0 and m.bcc_at:
        rc = match_strings(match, m, m.props + m.bcc_at + 4, out)
    return rc


# ---- hiding --------------------------------------------------------------------------------------

# hot
cdef inline void record_find_bcc(rec_t* r) noexcept nogil:
    """Note where the BCC entry of a record is. Cost: 3 ns per header, nothing without headers."""
    cdef const u8* entry
    r.bcc_at = r.bcc_len = 0
    if r.headers_at == 0 or r.headers_len < 5:
        return
    entry = table_find(r.props + r.headers_at + 4, r.headers_len, <const u8*>b"BCC", 3)
    if entry != NULL:
        r.bcc_at = <u32>(entry - r.props)
        r.bcc_len = <u32>entry_size(entry, r.props_len - r.bcc_at)


cdef u32 props_add_header(u8* p, u32 len, const u8* entry, u32 n) noexcept nogil:
    """Put entries, n bytes of them, at the end of the headers table of properties in wire order, in
    place of those of their names; with n = 0 only make sure that there is a table. There is room
    for n + 4 more bytes. Returns the new length."""
    cdef u32 flags = be16(p), at = 2, old, i = 0
    cdef const u8* there
    if flags & 0x8000:
        at += 1 + p[at]
    if flags & 0x4000:
        at += 1 + p[at]
    if not flags & FLAG_HEADERS:
        put_be16(p, <u16>(flags | FLAG_HEADERS))
        memmove(p + at + 4 + n, p + at, len - at)
        put_be32(p + at, n)
        memcpy(p + at + 4, entry, n)
        return len + 4 + n
    while i < n:
        there = table_find(p + at + 4, be32(p + at), entry + i + 1, entry[i])
        if there != NULL:
            old = <u32>entry_size(there, len - (there - p))
            len = props_cut(p, len, at, <u32>(there - p), old)
        i += <u32>entry_size(entry + i, n - i)
    old = be32(p + at)
    memmove(p + at + 4 + old + n, p + at + 4 + old, len - at - 4 - old)
    memcpy(p + at + 4 + old, entry, n)
    put_be32(p + at, old + n)
    return len + n


cdef u32 props_cut(u8* p, u32 len, u32 headers_at, u32 at, u32 n) noexcept nogil:
    """Take n bytes at `at` out of the headers table of properties in wire order; returns what is
    left of len."""
    memmove(p + at, p + at + n, len - at - n)
    put_be32(p + headers_at, be32(p + headers_at) - n)
    return len - n
