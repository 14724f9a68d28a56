# Values: field tables to Python and back.
#
# Reading never passes the end of what came: base/table.pyx measures each value first. Text that is
# not UTF-8 passes both ways as it is (surrogateescape). Nesting is bounded both ways.
#
#   Python    bool  int      float  str  bytes  datetime  Decimal  list  dict  None
#   written   t     I or l   d      S    x      T         D        A     F     V
#   read      t     bBsuIilL f d    S    x      T         D        A     F     V   (U as s)
# Source: docs/protocol.md; AMQP 0-9-1 specification, section 4.2.5.5.
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_DecodeUTF8

from datetime import datetime, timezone
from decimal import Decimal


cdef inline object text_of(const u8* p, u64 n):
    return PyUnicode_DecodeUTF8(<const char*>p, <Py_ssize_t>n, "surrogateescape")


cdef double real_of(const u8* p) noexcept:
    cdef u64 bits = be64(p)
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef double single_of(const u8* p) noexcept:
    cdef u32 bits = be32(p)
    cdef float value
    memcpy(&value, &bits, 4)
    return value


cdef object moment_of(const u8* p):
    """A time; one that `datetime` cannot hold stays a number of seconds."""
    cdef u64 seconds = be64(p)
    if seconds > 253402300799:  # the end of the year 9999
        return seconds
    return datetime.fromtimestamp(seconds, timezone.utc)


cdef object value_of(const u8* p, u64 size, int depth):
    """The value of `size` bytes, its type first, that `value_size` has found at p."""
    cdef u8 kind = p[0]
    p += 1
    if kind == c'S':
        return text_of(p + 4, size - 5)
    if kind == c't':
        return p[0] != 0
    if kind == c'I':
        return <i32>be32(p)
    if kind == c'l' or kind == c'L':
        return <i64>be64(p)
    if kind == c'i':
        return be32(p)
    if kind == c'F':
        return table_of(p + 4, size - 5, depth + 1)
    if kind == c'A':
        return array_of(p + 4, size - 5, depth + 1)
    if kind == c'T':
        return moment_of(p)
    if kind == c'd':
        return real_of(p)
    if kind == c'f':
        return single_of(p)
    if kind == c'x':
        return PyBytes_FromStringAndSize(<const char*>p + 4, <Py_ssize_t>(size - 5))
    if kind == c'b':
        return <i8>p[0]
    if kind == c'B':
        return p[0]
    if kind == c's' or kind == c'U':
        return <i16>be16(p)
    if kind == c'u':
        return be16(p)
    if kind == c'D':
        return Decimal(<i32>be32(p + 1)).scaleb(-<int>p[0])
    return None


cdef dict table_of(const u8* p, u64 n, int depth):
    """The content of a table. Raises: ProtocolViolation."""
    cdef dict table = {}
    cdef u64 size, key
    if depth > TABLE_DEPTH:
        raise ProtocolViolation("a table is nested too deeply")
    while n:
        size = entry_size(p, n)
        if size == 0:
            raise ProtocolViolation("a table is cut short, or has a value of an unknown type")
        key = p[0]
        table[text_of(p + 1, key)] = value_of(p + 1 + key, size - 1 - key, depth)
        p += size
        n -= size
    return table


cdef list array_of(const u8* p, u64 n, int depth):
    """The content of an array. Raises: ProtocolViolation."""
    cdef list array = []
    cdef u64 size
    if depth > TABLE_DEPTH:
        raise ProtocolViolation("an array is nested too deeply")
    while n:
        size = value_size(p, n)
        if size == 0:
            raise ProtocolViolation("an array is cut short, or has a value of an unknown type")
        array.append(value_of(p, size, depth))
        p += size
        n -= size
    return array


# ---- writing

cdef int put(buf_t* b, const void* p, u64 n) except -1:
    if buf_put(b, p, n):
        raise MemoryError
    return 0


cdef int put_u8(buf_t* b, u8 value) except -1:
    return put(b, &value, 1)


cdef int put_u16(buf_t* b, u16 value) except -1:
    cdef u8[2] raw
    put_be16(raw, value)
    return put(b, raw, 2)


cdef int put_u32(buf_t* b, u32 value) except -1:
    cdef u8[4] raw
    put_be32(raw, value)
    return put(b, raw, 4)


cdef int put_u64(buf_t* b, u64 value) except -1:
    cdef u8[8] raw
    put_be64(raw, value)
    return put(b, raw, 8)


cdef bytes utf8_of(object value):
    """The bytes of a text; of one that came as bytes, those."""
    if isinstance(value, str):
        try:
            return PyUnicode_AsUTF8String(value)
        except UnicodeEncodeError:
            try:
                return value.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError as error:
                raise ValueNotEncodable(f"text is not UTF-8: {error.reason}") from None
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise ValueNotEncodable(f"{type(value).__name__} where text is wanted")


cdef int put_short(buf_t* b, object value) except -1:
    """A short string: at most 255 bytes."""
    cdef bytes raw = utf8_of(value)
    cdef Py_ssize_t n = PyBytes_GET_SIZE(raw)
    if n > 255:
        raise TooLarge(f"a short string of {n} bytes; AMQP allows 255")
    put_u8(b, <u8>n)
    return put(b, PyBytes_AS_STRING(raw), n)


cdef int put_long(buf_t* b, object value) except -1:
    """A long string: its length in 32 bits."""
    cdef bytes raw = utf8_of(value)
    if PyBytes_GET_SIZE(raw) > 0x7FFFFFFF:
        raise TooLarge("a string of more than 2 GiB")
    put_u32(b, <u32>PyBytes_GET_SIZE(raw))
    return put(b, PyBytes_AS_STRING(raw), PyBytes_GET_SIZE(raw))


cdef int put_integer(buf_t* b, object value) except -1:
    if -0x80000000 <= value <= 0x7FFFFFFF:
        put_u8(b, c'I')
        return put_u32(b, <u32><i32>value)
    if not -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF:
        raise ValueNotEncodable("an integer of more than 64 bits")
    put_u8(b, c'l')
    return put_u64(b, <u64><i64>value)


cdef int put_real(buf_t* b, double value) except -1:
    cdef u64 bits
    memcpy(&bits, &value, 8)
    put_u8(b, c'd')
    return put_u64(b, bits)


cdef int put_decimal(buf_t* b, object value) except -1:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int) or not -255 <= exponent <= 0:
        raise ValueNotEncodable(f"decimal {value} has no form in AMQP")
    number = int(value.scaleb(-exponent))
    if not -0x80000000 <= number <= 0x7FFFFFFF:
        raise ValueNotEncodable(f"decimal {value} has too many digits")
    put_u8(b, c'D')
    put_u8(b, <u8>-exponent)
    return put_u32(b, <u32><i32>number)


cdef u64 seconds_of(object value) except? 0xFFFFFFFFFFFFFFFF:
    """Seconds since 1970 of a datetime or of a number. Raises: ValueNotEncodable."""
    if isinstance(value, datetime):
        value = value.timestamp()
    try:
        is_early, seconds = value < 0, int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueNotEncodable(f"{value!r} is no time") from None
    if is_early:
        raise ValueNotEncodable("a time before 1970")
    if seconds > 0xFFFFFFFFFFFFFFFF:
        raise ValueNotEncodable("a time that is too late for 64 bits")
    return seconds


cdef int put_value(buf_t* b, object value, int depth) except -1:
    """Type letter and bytes of one value. Raises: ValueNotEncodable."""
    if value is None:
        return put_u8(b, c'V')
    if isinstance(value, str):
        put_u8(b, c'S')
        return put_long(b, value)
    if isinstance(value, bool):
        put_u8(b, c't')
        return put_u8(b, 1 if value else 0)
    if isinstance(value, int):
        return put_integer(b, value)
    if isinstance(value, float):
        return put_real(b, value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        put_u8(b, c'x')
        return put_long(b, value)
    if isinstance(value, datetime):
        put_u8(b, c'T')
        return put_u64(b, seconds_of(value))
    if isinstance(value, Decimal):
        return put_decimal(b, value)
    if isinstance(value, (list, tuple)):
        put_u8(b, c'A')
        return put_array(b, value, depth + 1)
    if hasattr(value, "items"):
        put_u8(b, c'F')
        return put_table(b, value, depth + 1)
    raise ValueNotEncodable(f"{type(value).__name__} has no type in a table of AMQP")


cdef int put_array(buf_t* b, object values, int depth) except -1:
    cdef u64 at = b.n
    if depth > TABLE_DEPTH:
        raise TooLarge("an array is nested too deeply")
    put_u32(b, 0)
    for value in values:
        put_value(b, value, depth)
    put_be32(b.p + at, <u32>(b.n - at - 4))
    return 0


cdef int put_table(buf_t* b, object table, int depth) except -1:
    """A table with its length. Raises: ValueNotEncodable."""
    cdef u64 at = b.n
    if depth > TABLE_DEPTH:
        raise TooLarge("a table is nested too deeply")
    put_u32(b, 0)
    for key, value in table.items():
        put_short(b, key)
        put_value(b, value, depth)
    put_be32(b.p + at, <u32>(b.n - at - 4))
    return 0


cdef bytes buf_bytes(buf_t* b):
    return PyBytes_FromStringAndSize(<const char*>b.p, <Py_ssize_t>b.n)


def encode_table(table):
    """Write a mapping as a field table, its length first. Raises: ValueNotEncodable."""
    cdef buf_t b
    memset(&b, 0, sizeof(b))
    try:
        put_table(&b, table, 1)
        return buf_bytes(&b)
    finally:
        buf_free(&b)


def decode_table(bytes data):
    """Read a field table that is all of `data`, its length first. Raises: ProtocolViolation."""
    cdef const u8* p = <const u8*>PyBytes_AS_STRING(data)
    if len(data) < 4 or be32(p) != len(data) - 4:
        raise ProtocolViolation("a table of another length than it says")
    return table_of(p + 4, len(data) - 4, 1)
