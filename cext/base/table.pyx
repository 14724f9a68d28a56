# Table: walks the field tables and arrays of peers, value by value, never past their end.
#
# A value is addressed at its type octet and includes it; an entry of a table is its key, a short
# string, and the value behind it. Both are measured against the bytes that are there: 0 bytes means
# that no whole one of a known type is. Whoever walks a table ends where that is answered.
# Shared with the compiled module of Spark's tasks; what only the broker asks of tables is in
# fields.pyx. Source: AMQP 0-9-1 specification, section 4.2.5.5.

cdef enum:
    TABLE_DEPTH = 64            # tables and arrays inside each other


# hot
cdef inline u64 value_head(u8 kind) noexcept nogil:
    """Bytes before the content of a value of that type: the type itself, and the length if any."""
    return 5 if kind == c'S' or kind == c'F' or kind == c'A' or kind == c'x' else 1


# hot
cdef inline u64 value_size(const u8* p, u64 n) noexcept nogil:
    """Bytes of the value at p, 0 when it is cut or of no known type. Does not look into tables and
    arrays. Cost: 2 ns."""
    cdef u64 size
    cdef u8 kind
    if n == 0:
        return 0
    kind = p[0]
    if kind == c'S' or kind == c'F' or kind == c'A' or kind == c'x':
        if n < 5:
            return 0
        size = 5 + <u64>be32(p + 1)
    elif kind == c't' or kind == c'b' or kind == c'B':
        size = 2
    elif kind == c's' or kind == c'u' or kind == c'U':
        size = 3
    elif kind == c'I' or kind == c'i' or kind == c'f':
        size = 5
    elif kind == c'l' or kind == c'L' or kind == c'd' or kind == c'T':
        size = 9
    elif kind == c'D':
        size = 6
    elif kind == c'V':
        size = 1
    else:
        return 0
    return size if size <= n else 0


# hot
cdef inline u64 entry_size(const u8* p, u64 n) noexcept nogil:
    """Bytes of the table entry at p, its key first; 0 when no whole one is there."""
    cdef u64 key, size
    if n < 2 or <u64>p[0] + 2 > n:
        return 0
    key = 1 + <u64>p[0]
    size = value_size(p + key, n - key)
    return key + size if size else 0
