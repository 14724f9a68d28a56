# Arrow headers: field tables as text, for map<string,string> and for lossless JSON.
#
# Form of headers_json (decision 0020). Each value is an object with one member, named by the type
# letter of the wire, so that the same table can be made again, byte by byte:
#
#   table  = { "key": value, ... }      all entries in their order, doubles too
#   value  = {"t": true|false}          boolean; a byte that is neither 1 nor 0 as a number
#          | {"b"|"B"|"s"|"u"|"U"|"I"|"i"|"l"|"L"|"T": integer}
#          | {"f"|"d": number}          shortest one that reads back as the same bits; never whole
#          | {"f"|"d": "hex"}           not finite: its 4 or 8 bytes
#          | {"D": [scale, digits]}     decimal
#          | {"S": "text"} | {"x": "base64"} | {"V": null} | {"A": [value, ...]} | {"F": table}
#
# A byte of a key or of S that is not UTF-8 is \udcXX (Python's surrogateescape). A table that is
# none (cut short, unknown letter, nested deeper than 64) is one string: its bytes in base64.
#
# In the map, scalars are plain text, void is null, and tables, arrays and byte strings are plain
# JSON: {"a":1}, [true,"x"], "base64". Grammar of tables: lavinmq/fieldtable.py.

cdef enum:
    NOT_A_TABLE = -1
    # Text is at most 8 times as long as a table: of this one it fits in one column.
    TABLE_LARGEST = 0x0FFFFFFF

cdef struct table_text_t:
    bint is_typed               # headers_json, or plain JSON
    u64 n_repaired              # strings that were not UTF-8 and lost something


cdef inline int field_extent(const u8* p, u64 n, u64* start, u64* size) noexcept nogil:
    """Find the content of the value whose type letter is at p. 0, or NOT_A_TABLE."""
    cdef u64 whole = value_size(p, n)
    if whole == 0:
        return NOT_A_TABLE
    start[0] = value_head(p[0])
    size[0] = whole - start[0]
    return 0


cdef i64 field_integer(u8 kind, const u8* p) noexcept nogil:
    if kind == c'b':
        return <i8>p[0]
    if kind == c'B' or kind == c't':
        return p[0]
    if kind == c's' or kind == c'U':
        return <i16>be16(p)
    if kind == c'u':
        return be16(p)
    if kind == c'I':
        return <i32>be32(p)
    if kind == c'i':
        return be32(p)
    return <i64>be64(p)


cdef double field_real(u8 kind, const u8* p) noexcept nogil:
    cdef u32 narrow
    cdef u64 wide
    cdef float single
    cdef double value
    if kind == c'f':
        narrow = be32(p)
        memcpy(&single, &narrow, 4)
        return single
    wide = be64(p)
    memcpy(&value, &wide, 8)
    return value


cdef int json_real_put(buf_t* out, u8 kind, const u8* p, bint is_typed) noexcept nogil:
    cdef double value = field_real(kind, p)
    cdef int i, size = 4 if kind == c'f' else 8
    if isfinite(value):
        return real_put(out, value, kind == c'f')
    if buf_room(out, 32):
        return NO_MEMORY
    buf_put_byte(out, c'"')
    if is_typed:
        for i in range(size):
            buf_put_byte(out, HEX_DIGITS[p[i] >> 4])
            buf_put_byte(out, HEX_DIGITS[p[i] & 15])
    else:
        real_put(out, value, kind == c'f')
    return buf_put_byte(out, c'"')


cdef int json_decimal_put(buf_t* out, const u8* p, bint is_typed) noexcept nogil:
    if not is_typed:
        return decimal_put(out, p[0], <i32>be32(p + 1))
    if buf_put_byte(out, c'[') or integer_put(out, p[0], False) or buf_put_byte(out, c','):
        return NO_MEMORY
    return signed_put(out, <i32>be32(p + 1)) or buf_put_byte(out, c']')


cdef int json_content_put(
    buf_t* out, u8 kind, const u8* p, u64 n, int depth, table_text_t* how
) noexcept nogil:
    """Append the content of one value. 0, NOT_A_TABLE or NO_MEMORY."""
    if kind == c'S':
        return json_text_put(
            out, p, n, ESCAPE_KEEP if how.is_typed else ESCAPE_REPLACE, &how.n_repaired
        )
    if kind == c'x':
        return base64_put(out, p, n)
    if kind == c'F':
        return json_table_put(out, p, n, depth + 1, how)
    if kind == c'A':
        return json_array_put(out, p, n, depth + 1, how)
    if kind == c'V':
        return buf_put(out, b"null", 4)
    if kind == c't' and (p[0] < 2 or not how.is_typed):
        return buf_put(out, b"true", 4) if p[0] else buf_put(out, b"false", 5)
    if kind == c'f' or kind == c'd':
        return json_real_put(out, kind, p, how.is_typed)
    if kind == c'D':
        return json_decimal_put(out, p, how.is_typed)
    return signed_put(out, field_integer(kind, p))


cdef int json_value_put(
    buf_t* out, const u8* p, u64 n, u64* at, int depth, table_text_t* how
) noexcept nogil:
    """Append the value whose type letter is at p[at], and move on. 0 or what is wrong."""
    cdef u64 start, size
    cdef const u8* value = p + at[0]
    cdef int rc = field_extent(value, n - at[0], &start, &size)
    if rc:
        return rc
    at[0] += start + size
    if not how.is_typed:
        return json_content_put(out, value[0], value + start, size, depth, how)
    if buf_room(out, 8):
        return NO_MEMORY
    buf_put(out, b'{"', 2)
    buf_put_byte(out, value[0])
    buf_put(out, b'":', 2)
    rc = json_content_put(out, value[0], value + start, size, depth, how)
    return rc or buf_put_byte(out, c'}')


cdef int json_array_put(
    buf_t* out, const u8* p, u64 n, int depth, table_text_t* how
) noexcept nogil:
    cdef u64 at = 0
    cdef int rc
    if depth > TABLE_DEPTH:
        return NOT_A_TABLE
    rc = buf_put_byte(out, c'[')
    while rc == 0 and at < n:
        rc = (buf_put_byte(out, c',') if at else 0) or json_value_put(out, p, n, &at, depth, how)
    return rc or buf_put_byte(out, c']')


cdef int json_table_put(
    buf_t* out, const u8* p, u64 n, int depth, table_text_t* how
) noexcept nogil:
    """Append the table whose content is the n bytes at p. 0, NOT_A_TABLE or NO_MEMORY."""
    cdef u64 at = 0, key
    cdef int rc
    cdef escape_mode mode = ESCAPE_KEEP if how.is_typed else ESCAPE_REPLACE
    if depth > TABLE_DEPTH:
        return NOT_A_TABLE
    rc = buf_put_byte(out, c'{')
    while rc == 0 and at < n:
        if p[at] >= n - at:
            return NOT_A_TABLE
        key = at + 1
        rc = buf_put_byte(out, c',') if at else 0
        at = key + p[at]
        rc = rc or json_text_put(out, p + key, at - key, mode, &how.n_repaired)
        rc = rc or buf_put_byte(out, c':')
        rc = rc or json_value_put(out, p, n, &at, depth, how)
    return rc or buf_put_byte(out, c'}')


cdef int headers_json_put(buf_t* out, const u8* p, u64 n) noexcept nogil:
    """Append headers_json of a table with this content. 0, or NO_MEMORY."""
    cdef u64 before = out.n
    cdef table_text_t how
    cdef int rc
    how.is_typed = True
    how.n_repaired = 0
    rc = json_table_put(out, p, n, 1, &how)
    if rc == NOT_A_TABLE:
        out.n = before
        rc = base64_put(out, p, n)
    return rc


cdef int map_text_put(
    buf_t* out, u8 kind, const u8* p, u64 n, table_text_t* how
) noexcept nogil:
    """Append the value of a map's entry: plain text, or JSON of what has parts."""
    if kind == c'S':
        return text_put(out, p, n, &how.n_repaired)
    if kind == c'f' or kind == c'd':
        return real_put(out, field_real(kind, p), kind == c'f')
    return json_content_put(out, kind, p, n, 1, how)
