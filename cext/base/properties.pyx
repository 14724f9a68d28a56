# Properties: those of a message in wire order, with other headers.
# Source: AMQP 0-9-1 specification, section 4.2.6.1.


cdef u32 props_with_headers(u8* out, const u8* props, u32 len, const u8* table,
                            u32 table_len) noexcept nogil:
    """Copy properties in wire order with another headers table and without expiration; returns
    their length."""
    cdef u32 flags = be16(props), at = 2, bit = 0x8000, n
    cdef u8* p = out + 2
    put_be16(out, <u16>((flags | FLAG_HEADERS) & ~FLAG_EXPIRATION))
    while bit >= 4:
        if bit == FLAG_HEADERS:
            put_be32(p, table_len)
            p = put_slice(p + 4, table, table_len)
            if flags & bit:
                at += 4 + be32(props + at)
        elif flags & bit:
            n = 1 + props[at]
            if bit == FLAG_DELIVERY_MODE or bit == FLAG_PRIORITY:
                n = 1
            elif bit == FLAG_TIMESTAMP:
                n = 8
            if bit != FLAG_EXPIRATION:
                p = put_slice(p, props + at, n)
            at += n
        bit >>= 1
    lmq_assert(at == len)
    return <u32>(p - out)


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
