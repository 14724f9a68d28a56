# Table JSON: a field table as JSON text, for the API, in portions.
#
# A table of 128 KiB may hold 60 000 values, of which Python makes objects for 5 to 30 ms. Here they
# are written as text one after the other, from a cursor that can stop behind each of them.
#
#   integers, text, arrays, tables, void    what JSON has for them; an entry that is there twice
#                                           comes twice, and readers take the last one
#   boolean     true, false                 f, d    the shortest number that reads back as the same
#   x           base64                              double; null when it is not finite
#   T           RFC 3339; a number when no  D       its exact digits
#               year of four digits has it
#
# A byte of a key or a text that is not UTF-8 is \udcXX, as Python's surrogateescape has it.
# Source: docs/http-api.md; grammar of tables: lavinmq/fieldtable.py.

cdef enum:
    JSON_DEPTH = TABLE_DEPTH + 2    # the check of what comes in allows one level more
    FIRST_SECOND = -62135596800     # of the year 1
    LAST_SECOND = 253402300799      # of the year 9999

    JSON_DONE = 0
    JSON_MORE = 1
    JSON_BAD = -1               # no table; NO_MEMORY is the other failure

cdef struct table_json_t:
    const u8* p
    u64 at
    u32 depth                   # tables and arrays that are open
    u64[JSON_DEPTH] ends        # of each of them
    bint[JSON_DEPTH] is_array
    bint is_first               # nothing is written yet in the innermost one


cdef int table_json_open(table_json_t* t, buf_t* out, u64 n, bint is_array) noexcept nogil:
    """Go into the n bytes of a table or array where the cursor is."""
    if t.depth == JSON_DEPTH:
        return JSON_BAD
    t.ends[t.depth] = t.at + n
    t.is_array[t.depth] = is_array
    t.depth += 1
    t.is_first = True
    return buf_put_byte(out, c'[' if is_array else c'{')


cdef int digits_put(buf_t* out, u32 value, u32 n, u8 behind) noexcept nogil:
    """Append a number of n digits, and a character behind it."""
    cdef u8[8] text
    cdef u32 i
    for i in range(n):
        text[n - 1 - i] = <u8>(c'0' + value % 10)
        value //= 10
    text[n] = behind
    return buf_put(out, text, n + 1)


cdef int time_put(buf_t* out, i64 seconds) noexcept nogil:
    """Append a time since 1970 as quoted text: "2026-01-31T12:00:00Z"; else as a number.

    Source: Hinnant, chrono-compatible low-level date algorithms, civil_from_days."""
    cdef u64 days, era, day, year, month
    cdef u32 rest
    if seconds < FIRST_SECOND or seconds > LAST_SECOND:
        return signed_put(out, seconds)
    rest = <u32>(<u64>(seconds - FIRST_SECOND) % 86400)
    days = <u64>(seconds - FIRST_SECOND) // 86400 + 306     # since March 1st of the year 0
    era = days // 146097
    days %= 146097
    year = (days - days // 1460 + days // 36524 - days // 146096) // 365
    day = days - (365 * year + year // 4 - year // 100)
    month = (5 * day + 2) // 153                            # 0 = March
    day = day - (153 * month + 2) // 5 + 1
    year += era * 400 + (month >= 10)
    month = month + 3 if month < 10 else month - 9
    return (buf_put_byte(out, c'"')
            or digits_put(out, <u32>year, 4, c'-') or digits_put(out, <u32>month, 2, c'-')
            or digits_put(out, <u32>day, 2, c'T') or digits_put(out, rest // 3600, 2, c':')
            or digits_put(out, rest // 60 % 60, 2, c':') or digits_put(out, rest % 60, 2, c'Z')
            or buf_put_byte(out, c'"'))


cdef int table_json_scalar(buf_t* out, const u8* value, u64 size, u32* units) noexcept nogil:
    """Append a value that is no table or array, its type octet first."""
    cdef u8 kind = value[0]
    cdef header_number_t number
    cdef u64 n_repaired = 0
    if kind == c'S':
        return json_text_put(out, value + 5, size - 5, ESCAPE_KEEP, &n_repaired)
    if kind == c'x':
        return base64_put(out, value + 5, size - 5)
    if kind == c'V':
        return buf_put(out, b"null", 4)
    if kind == c't':
        return buf_put(out, b"true", 4) if value[1] else buf_put(out, b"false", 5)
    if kind == c'T':
        units[0] += 10
        return time_put(out, <i64>be64(value + 1))
    if kind == c'D':
        return decimal_put(out, value[1], <i32>be32(value + 2))
    header_number(value, &number)
    if kind != c'f' and kind != c'd':
        return signed_put(out, number.whole)
    units[0] += 150
    if not isfinite(number.real):
        return buf_put(out, b"null", 4)
    return real_put(out, number.real, False)


cdef int table_json_next(table_json_t* t, buf_t* out, u32* units) noexcept nogil:
    """Append what is next: an end, or an entry up to the brackets of its value. What it took is
    added to `units`. JSON_MORE, JSON_DONE or what is wrong. The cursor is within a table."""
    cdef u64 left = t.ends[t.depth - 1] - t.at, size, key = 0
    cdef bint is_array = t.is_array[t.depth - 1]
    cdef const u8* p = t.p + t.at
    cdef u64 n_repaired = 0
    cdef int rc = 0
    if left == 0:
        t.depth -= 1
        t.is_first = False
        rc = buf_put_byte(out, c']' if is_array else c'}')
        return rc or (JSON_MORE if t.depth else JSON_DONE)
    if not t.is_first:
        rc = buf_put_byte(out, c',')
    t.is_first = False
    if not is_array:
        if <u64>p[0] + 2 > left:
            return JSON_BAD
        key = <u64>p[0] + 1
        rc = (rc or json_text_put(out, p + 1, key - 1, ESCAPE_KEEP, &n_repaired)
              or buf_put_byte(out, c':'))
        p += key
        t.at += key
    size = value_size(p, left - key)
    if size == 0:
        return JSON_BAD
    units[0] += 3 + <u32>(key // 2)
    if p[0] == c'F' or p[0] == c'A':
        t.at += 5
        return rc or table_json_open(t, out, size - 5, p[0] == c'A') or JSON_MORE
    units[0] += <u32>(size // 2)
    t.at += size
    return rc or table_json_scalar(out, p, size, units) or JSON_MORE


cdef int table_json_begin(table_json_t* t, buf_t* out, const u8* p, u64 n) noexcept nogil:
    """Begin with the table whose content is the n bytes at p."""
    memset(t, 0, sizeof(table_json_t))
    t.p = p
    return table_json_open(t, out, n, False)


cdef int table_json_some(table_json_t* t, buf_t* out, u32 most) noexcept nogil:
    """Append values until they took so many units of 10 ns. As table_json_next."""
    cdef u32 units = 0
    cdef int rc = JSON_MORE
    while rc == JSON_MORE and units < most:
        rc = table_json_next(t, out, &units)
    return rc
