# Methods: the rare ones to frames and back, by the form of their arguments.
#
# A form has a letter per argument: B octet, H short, L long, Q longlong, s short string, S long
# string (read as bytes), T table, b bit. Bits side by side share octets, the first in the lowest
# bit. The table of methods and forms is lavinmq/client/methods.py.


def encode_method(int channel, u32 method, str form, *values):
    """Make a frame of a method.

    Args: method: class id << 16 | method id. Raises: ValueNotEncodable.
    """
    cdef buf_t b
    cdef u8 bits = 0
    cdef int n_bits = 0
    memset(&b, 0, sizeof(b))
    if len(form) != len(values):
        raise ValueNotEncodable(f"{len(values)} values for {len(form)} arguments")
    try:
        put_u8(&b, FRAME_METHOD)
        put_u16(&b, <u16>channel)
        put_u32(&b, 0)
        put_u32(&b, method)
        for kind, value in zip(form, values):
            if kind == "b":
                if n_bits == 8:
                    put_u8(&b, bits)
                    bits = 0
                    n_bits = 0
                bits |= <u8>((1 if value else 0) << n_bits)
                n_bits += 1
                continue
            if n_bits:
                put_u8(&b, bits)
                bits = 0
                n_bits = 0
            put_argument(&b, kind, value)
        if n_bits:
            put_u8(&b, bits)
        put_be32(b.p + 3, <u32>(b.n - 7))
        put_u8(&b, FRAME_END)
        return buf_bytes(&b)
    finally:
        buf_free(&b)


cdef int put_argument(buf_t* b, str kind, object value) except -1:
    if kind == "s":
        return put_short(b, value)
    if kind == "S":
        return put_long(b, value)
    if kind == "T":
        return put_table(b, value or {}, 1)
    if not isinstance(value, int):
        raise ValueNotEncodable(f"{type(value).__name__} where a number is wanted")
    try:
        if kind == "B":
            return put_u8(b, value)
        if kind == "H":
            return put_u16(b, value)
        if kind == "L":
            return put_u32(b, value)
        return put_u64(b, value)
    except OverflowError:
        raise ValueNotEncodable(f"number {value} does not fit its field") from None


def decode_method(bytes payload, str form):
    """Read the arguments behind the ids of a method. Raises: ProtocolViolation."""
    cdef const u8* p = <const u8*>PyBytes_AS_STRING(payload)
    cdef u64 at = 4, n = PyBytes_GET_SIZE(payload), size
    cdef int n_bits = 0
    cdef list values = []
    for kind in form:
        if kind == "b":
            if n_bits % 8 == 0:
                at += 1
            if at > n:
                raise ProtocolViolation("a method is cut short")
            values.append((p[at - 1] >> (n_bits % 8)) & 1 != 0)
            n_bits += 1
            continue
        n_bits = 0
        size = {"B": 1, "H": 2, "L": 4, "Q": 8, "s": 1, "S": 4, "T": 4}[kind]
        if at + size > n:
            raise ProtocolViolation("a method is cut short")
        if kind == "B":
            values.append(p[at])
        elif kind == "H":
            values.append(be16(p + at))
        elif kind == "L":
            values.append(be32(p + at))
        elif kind == "Q":
            values.append(be64(p + at))
        else:
            at += size
            size = p[at - 1] if kind == "s" else be32(p + at - 4)
            if size > n - at:
                raise ProtocolViolation("a method is cut short")
            if kind == "s":
                values.append(text_of(p + at, size))
            elif kind == "S":
                values.append(payload[at:at + size])
            else:
                values.append(table_of(p + at, size, 1))
        at += size
    return tuple(values)
