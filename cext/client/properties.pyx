# Properties: those of a message to Python and back, in the form of a content header: flags, then
# the values of those that are set, in the order of PROPERTY_NAMES.
# Source: AMQP 0-9-1 specification, sections 1.8 and 4.2.6.1.

PROPERTY_NAMES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id",
    "reply_to", "expiration", "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)


def encode_properties(dict properties):
    """Write properties by name; None is the same as none. Raises: ValueNotEncodable."""
    cdef buf_t b
    cdef u16 flags = 0
    cdef int n_left = 0
    memset(&b, 0, sizeof(b))
    for value in properties.values():
        if value is not None:
            n_left += 1
    try:
        put_u16(&b, 0)
        for i, name in enumerate(PROPERTY_NAMES):
            if n_left == 0:
                break
            value = properties.get(name)
            if value is None:
                continue
            n_left -= 1
            flags |= <u16>(0x8000 >> i)
            put_property(&b, i, value)
        if n_left:
            unknown = sorted(set(properties) - set(PROPERTY_NAMES))
            raise ValueNotEncodable(f"no property of a message: {', '.join(unknown)}")
        put_be16(b.p, flags)
        return buf_bytes(&b)
    finally:
        buf_free(&b)


cdef int put_property(buf_t* b, int which, object value) except -1:
    if which == 2:
        if not hasattr(value, "items"):
            raise ValueNotEncodable(f"headers are {type(value).__name__}, a table is wanted")
        return put_table(b, value, 1)
    if which == 3 or which == 4:
        if not isinstance(value, int) or not 0 <= value <= 255:
            raise ValueNotEncodable(f"{PROPERTY_NAMES[which]} {value!r} is not 0 to 255")
        return put_u8(b, value)
    if which == 9:
        return put_u64(b, seconds_of(value))
    if which == 7 and isinstance(value, (int, float)):
        value = str(int(value))
    return put_short(b, value)


cdef dict properties_of(bytes raw):
    """Properties by name. Raises: ProtocolViolation."""
    cdef const u8* p = <const u8*>PyBytes_AS_STRING(raw)
    cdef u64 n = PyBytes_GET_SIZE(raw), at = 2, size
    cdef u32 flags
    cdef dict found = {}
    if n < 2:
        raise ProtocolViolation("properties are cut short")
    flags = be16(p)
    if flags & 3:
        raise ProtocolViolation("properties with flags that AMQP does not know")
    for i, name in enumerate(PROPERTY_NAMES):
        if not flags & (0x8000 >> <int>i):
            continue
        size = 4 if i == 2 else 8 if i == 9 else 1
        if at + size > n:
            raise ProtocolViolation("properties are cut short")
        if i == 2 or not (i == 3 or i == 4 or i == 9):
            at += size
            size = be32(p + at - 4) if i == 2 else p[at - 1]
            if size > n - at:
                raise ProtocolViolation("properties are cut short")
            found[name] = table_of(p + at, size, 1) if i == 2 else text_of(p + at, size)
        elif i == 9:
            found[name] = moment_of(p + at)
        else:
            found[name] = p[at]
        at += size
    return found


def decode_properties(bytes raw):
    """Read properties by name. Raises: ProtocolViolation."""
    return properties_of(raw)
