# Text: UTF-8 that is made valid, and the pieces of JSON.
#
# Peers may send anything as a string, and JSON, Arrow and Spark take UTF-8 only. What is not UTF-8
# becomes U+FFFD, one for each maximal part of a sequence, as Python's `decode(errors="replace")`
# does, or stays what it was (escape_mode). Shared with the compiled module of Spark's tasks.
from libc.math cimport isfinite, isnan
from libc.stdio cimport snprintf
from libc.stdlib cimport strtod, strtof

cdef enum escape_mode:          # what becomes of bytes that are not UTF-8
    ESCAPE_REPLACE              # U+FFFD
    ESCAPE_KEEP                 # \udcXX for each byte XX: Python's surrogateescape, reversible

cdef const char* HEX_DIGITS = b"0123456789abcdef"
cdef const char* BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef inline bint text_is_ascii(const u8* p, u64 n) noexcept nogil:
    cdef u64 high = 0
    while n >= 8:
        high |= le64(p)
        p += 8
        n -= 8
    while n:
        high |= p[0]
        p += 1
        n -= 1
    return high & 0x8080808080808080ULL == 0


cdef inline int utf8_step(const u8* p, u64 n) noexcept nogil:
    """The bytes of the character at p, 1 to 4; or minus those of the bad sequence there, -1 to -3.
    There is at least one byte."""
    cdef u8 lead = p[0], low = 0x80, high = 0xBF
    cdef int follow, i
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return -1
    if lead < 0xE0:
        follow = 1
    elif lead < 0xF0:
        follow = 2
        if lead == 0xE0:
            low = 0xA0
        elif lead == 0xED:
            high = 0x9F
    else:
        follow = 3
        if lead == 0xF0:
            low = 0x90
        elif lead == 0xF4:
            high = 0x8F
    for i in range(1, follow + 1):
        if <u64>i >= n or p[i] < low or p[i] > high:
            return -i
        low, high = 0x80, 0xBF
    return follow + 1


cdef int text_repair(buf_t* out, const u8* p, u64 n, u64* n_repaired) noexcept nogil:
    """Append text that is not ASCII; count it when it is not UTF-8. 0, or NO_MEMORY."""
    cdef u64 at = 0
    cdef int step
    cdef bint is_bad = False
    if buf_room(out, 3 * n):
        return NO_MEMORY
    while at < n:
        step = utf8_step(p + at, n - at)
        if step > 0:
            memcpy(out.p + out.n, p + at, step)
            out.n += step
            at += step
        else:
            memcpy(out.p + out.n, b"\xef\xbf\xbd", 3)
            out.n += 3
            at -= step
            is_bad = True
    n_repaired[0] += is_bad
    return 0


# hot
cdef inline int text_put(buf_t* out, const u8* p, u64 n, u64* n_repaired) noexcept nogil:
    """Append text as valid UTF-8. 0, or NO_MEMORY. Cost: 5 ns when it is short and ASCII."""
    if not text_is_ascii(p, n):
        return text_repair(out, p, n, n_repaired)
    return buf_put(out, p, n)


cdef int json_escape_put(buf_t* out, u8 byte, bint is_kept_byte) noexcept nogil:
    """Append \\u00XX for a character below 32, or \\udcXX for a byte that is to be kept."""
    cdef u8[6] text
    memcpy(text, b"\\udc" if is_kept_byte else b"\\u00", 4)
    text[4] = HEX_DIGITS[byte >> 4]
    text[5] = HEX_DIGITS[byte & 15]
    return buf_put(out, text, 6)


cdef int json_text_put(
    buf_t* out, const u8* p, u64 n, escape_mode mode, u64* n_repaired
) noexcept nogil:
    """Append a JSON string with its quotes. 0, or NO_MEMORY."""
    cdef u64 at = 0
    cdef int step, rc
    cdef bint is_bad = False
    if buf_room(out, n + 2) or buf_put_byte(out, c'"'):
        return NO_MEMORY
    while at < n:
        step = utf8_step(p + at, n - at)
        if step == 1 and p[at] < 0x20:
            rc = json_escape_put(out, p[at], False)
        elif step == 1 and (p[at] == c'"' or p[at] == c'\\'):
            rc = buf_put_byte(out, c'\\') or buf_put_byte(out, p[at])
        elif step > 0:
            rc = buf_put(out, p + at, step)
        elif mode == ESCAPE_KEEP:
            rc = json_escape_put(out, p[at], True)
            step = 1
        else:
            rc = buf_put(out, b"\xef\xbf\xbd", 3)
            step = -step
            is_bad = True
        if rc:
            return rc
        at += step
    n_repaired[0] += is_bad
    return buf_put_byte(out, c'"')


cdef int base64_put(buf_t* out, const u8* p, u64 n) noexcept nogil:
    """Append bytes as quoted base64, padded. 0, or NO_MEMORY."""
    cdef u64 at = 0
    cdef u32 group
    cdef u8* to
    if buf_room(out, (n + 2) // 3 * 4 + 2):
        return NO_MEMORY
    to = out.p + out.n
    to[0] = c'"'
    to += 1
    while at < n:
        group = <u32>p[at] << 16
        if n - at > 1:
            group |= <u32>p[at + 1] << 8
        if n - at > 2:
            group |= p[at + 2]
        to[0] = BASE64[group >> 18]
        to[1] = BASE64[group >> 12 & 63]
        to[2] = BASE64[group >> 6 & 63] if n - at > 1 else c'='
        to[3] = BASE64[group & 63] if n - at > 2 else c'='
        to += 4
        at += 3
    to[0] = c'"'
    out.n = to + 1 - out.p
    return 0


cdef int integer_put(buf_t* out, u64 value, bint is_negative) noexcept nogil:
    """Append an integer, given by its magnitude."""
    cdef u8[24] digits
    cdef int at = 24
    while True:
        at -= 1
        digits[at] = c'0' + <u8>(value % 10)
        value //= 10
        if value == 0:
            break
    if is_negative:
        at -= 1
        digits[at] = c'-'
    return buf_put(out, digits + at, 24 - at)


cdef int signed_put(buf_t* out, i64 value) noexcept nogil:
    # The negation is unsigned: the least integer has no positive counterpart.
    return integer_put(out, 0 - <u64>value if value < 0 else <u64>value, value < 0)


cdef int decimal_put(buf_t* out, u8 scale, i32 digits) noexcept nogil:
    """Append digits / 10 ** scale as exact text: -5, 2 is -0.05."""
    cdef char[16] text
    cdef u32 size = <u32>(0 - <u32>digits if digits < 0 else <u32>digits)
    cdef int n = snprintf(text, 16, b"%u", size)
    cdef int whole = n - scale
    if digits < 0 and buf_put_byte(out, c'-'):
        return NO_MEMORY
    if scale == 0:
        return buf_put(out, text, n)
    if buf_room(out, scale + 16):
        return NO_MEMORY
    if whole <= 0:
        memcpy(out.p + out.n, b"0.", 2)
        memset(out.p + out.n + 2, c'0', -whole)
        out.n += 2 - whole
        return buf_put(out, text, n)
    buf_put(out, text, whole)
    buf_put_byte(out, c'.')
    return buf_put(out, text + whole, scale)


cdef int real_put(buf_t* out, double value, bint is_single) noexcept nogil:
    """Append the shortest decimal that reads back as the same finite float32 or float64; it always
    has a point or an exponent. Otherwise NaN, Infinity or -Infinity."""
    cdef char[40] text
    cdef int n, i, precision = 6 if is_single else 15
    cdef bint is_whole = True
    if isnan(value):
        return buf_put(out, b"NaN", 3)
    if not isfinite(value):
        return buf_put(out, b"-Infinity", 9) if value < 0 else buf_put(out, b"Infinity", 8)
    while True:
        n = snprintf(text, 40, b"%.*g", precision, value)
        if precision >= (9 if is_single else 17):
            break
        if (strtof(text, NULL) == <float>value) if is_single else (strtod(text, NULL) == value):
            break
        precision += 1
    for i in range(n):
        if text[i] == c'e':
            is_whole = False
        elif not (c'0' <= text[i] <= c'9' or text[i] == c'-' or text[i] == c'+'):
            text[i] = c'.'      # whatever the locale writes
            is_whole = False
    if buf_put(out, text, n):
        return NO_MEMORY
    return buf_put(out, b".0", 2) if is_whole else 0
