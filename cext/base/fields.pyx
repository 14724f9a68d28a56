# Fields: what the broker asks of field tables, and how it writes them.
#
# Tables are checked once, when they come in; all the same nothing here reads past their end
# (table.pyx). The slices that are given out live as long as the table.
# Source: AMQP 0-9-1 specification, section 4.2.5.5.

cdef struct slice_t:
    const u8* p                 # NULL = none
    u32 n

cdef struct header_number_t:    # in one spelling: whole ones as integers, whatever their type
    bint is_whole
    i64 whole
    double real


cdef slice_t no_slice() noexcept nogil:
    cdef slice_t s
    s.p = NULL
    s.n = 0
    return s


cdef slice_t short_slice(const u8* text) noexcept nogil:
    """The bytes of a short string; text may be NULL."""
    cdef slice_t s = no_slice()
    if text != NULL:
        s.p = text + 1
        s.n = text[0]
    return s


cdef bint is_same(slice_t a, const u8* b, u32 n) noexcept nogil:
    return a.p != NULL and a.n == n and same_bytes(a.p, b, n)


# ---- checking ------------------------------------------------------------------------------------

cdef u64 value_valid_size(const u8* p, u64 n, u32 depth) noexcept nogil:
    """value_size of a value that is valid inside, too, else 0. `depth` is that of what it is in."""
    cdef u64 size = value_size(p, n)
    if size == 0:
        return 0
    if p[0] == c'F' and not table_is_valid(p + 5, size - 5, depth + 1):
        return 0
    if p[0] == c'A' and not array_is_valid(p + 5, size - 5, depth + 1):
        return 0
    return size


cdef bint array_is_valid(const u8* p, u64 n, u32 depth) noexcept nogil:
    cdef u64 size
    if depth > TABLE_DEPTH:
        return False
    while n:
        size = value_valid_size(p, n, depth)
        if size == 0:
            return False
        p += size
        n -= size
    return True


cdef bint table_is_valid(const u8* p, u64 n, u32 depth) noexcept nogil:
    """Whether n bytes at p are the content of a field table, nested at most TABLE_DEPTH deep."""
    cdef u64 size, key
    if depth > TABLE_DEPTH:
        return False
    while n:
        key = 1 + <u64>p[0]
        if key + 1 > n:
            return False
        size = value_valid_size(p + key, n - key, depth)
        if size == 0:
            return False
        p += key + size
        n -= key + size
    return True


# ---- finding -------------------------------------------------------------------------------------

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


cdef slice_t table_value(const u8* table, u64 n, const char* name, u8 kind) noexcept nogil:
    """The value of an entry of that name and type (a string, an array), without its length."""
    cdef u32 name_len = <u32>strlen(name)
    cdef const u8* entry = table_find(table, n, <const u8*>name, name_len)
    cdef slice_t s = no_slice()
    if entry != NULL and entry[1 + name_len] == kind:
        s.n = be32(entry + 2 + name_len)
        s.p = entry + 6 + name_len
    return s


# ---- numbers -------------------------------------------------------------------------------------

# hot
cdef bint header_number(const u8* value, header_number_t* out) noexcept nogil:
    """Read a numeric value of any width; False for other types. Cost: 3 ns."""
    cdef u8 kind = value[0]
    cdef u32 bits32
    cdef u64 bits64
    cdef float single
    cdef double power
    cdef int _i
    out.is_whole = True
    if kind == c'I':
        out.whole = <int>be32(value + 1)
    elif kind == c'l' or kind == c'L':
        out.whole = <i64>be64(value + 1)
    elif kind == c'i':
        out.whole = be32(value + 1)
    elif kind == c's' or kind == c'U':
        out.whole = <short>be16(value + 1)
    elif kind == c'u':
        out.whole = be16(value + 1)
    elif kind == c'b':
        out.whole = <signed char>value[1]
    elif kind == c'B':
        out.whole = value[1]
    else:
        out.is_whole = False
        if kind == c'd':
            bits64 = be64(value + 1)
            memcpy(&out.real, &bits64, 8)
        elif kind == c'f':
            bits32 = be32(value + 1)
            memcpy(&single, &bits32, 4)
            out.real = single
        elif kind == c'D':
            power = 1.0
            for _i in range(value[1]):
                power *= 10
            out.real = <int>be32(value + 2) / power
        else:
            return False
        # Only inside this range is the conversion defined; NaN fails both comparisons.
        if out.real >= -9223372036854775808.0 and out.real < 9223372036854775808.0:
            out.whole = <i64>out.real
            out.is_whole = <double>out.whole == out.real
    return True


# ---- writing -------------------------------------------------------------------------------------

cdef u8* put_slice(u8* p, const u8* from_, u32 n) noexcept nogil:
    memcpy(p, from_, n)
    return p + n


cdef u8* put_name(u8* p, const char* name, u8 kind) noexcept nogil:
    """A key and the type of its value."""
    cdef u32 n = <u32>strlen(name)
    p[0] = <u8>n
    p = put_slice(p + 1, <const u8*>name, n)
    p[0] = kind
    return p + 1


cdef u8* put_text(u8* p, const u8* text, u32 n) noexcept nogil:
    put_be32(p, n)
    return put_slice(p + 4, text, n)
