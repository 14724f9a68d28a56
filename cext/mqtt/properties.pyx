# Properties: numbers of variable length, text, and the properties of a PUBLISH of version 5.
#
# A client's PUBLISH may carry seven of them, each once but for user properties. What is about
# this hop, alias and expiry, is taken out; the others are kept as they came, and forwarded so.
# Source: the standard, sections 1.5, 2.2.2 and 3.3.2.3.

cdef extern from *:
    """
    #define EACH_BYTE 0x0101010101010101ull
    """
    u64 EACH_BYTE               # a word of ones

cdef enum reason_code:
    REASON_SUCCESS = 0x00
    REASON_NO_SUBSCRIBERS = 0x10
    REASON_UNSPECIFIED = 0x80
    REASON_MALFORMED = 0x81
    REASON_PROTOCOL = 0x82
    REASON_NOT_AUTHORIZED = 0x87
    REASON_TOPIC = 0x90
    REASON_ID_NOT_FOUND = 0x92
    REASON_RECEIVE_MAXIMUM = 0x93
    REASON_ALIAS = 0x94
    REASON_TOO_LARGE = 0x95
    REASON_QUOTA = 0x97

cdef enum property_id:
    PROPERTY_FORMAT = 1
    PROPERTY_EXPIRY = 2
    PROPERTY_CONTENT_TYPE = 3
    PROPERTY_RESPONSE_TOPIC = 8
    PROPERTY_CORRELATION = 9
    PROPERTY_SUBSCRIPTION_ID = 11
    PROPERTY_REASON_STRING = 31
    PROPERTY_ALIAS = 35
    PROPERTY_USER = 38


# ---- numbers and text ----------------------------------------------------------------------------

# hot
cdef inline int varint_read(const u8* p, u64 n, u32* value) noexcept nogil:
    """The number of variable length at p: how many bytes it has; 0 when it is cut, -1 when it has
    more than four. Cost: 1 ns."""
    cdef u32 result, shift = 7
    cdef int i = 1
    if n == 0:
        return 0
    result = p[0] & 127
    while p[i - 1] & 128:
        if i == 4:
            return -1
        if <u64>i == n:
            return 0
        result |= <u32>(p[i] & 127) << shift
        shift += 7
        i += 1
    value[0] = result
    return i


# hot
cdef inline u32 varint_size(u32 value) noexcept nogil:
    return 1 if value < 128 else 2 if value < 16384 else 3 if value < 2097152 else 4


# hot
cdef inline u8* varint_put(u8* p, u32 value) noexcept nogil:
    while value >= 128:
        p[0] = <u8>(value | 128)
        value >>= 7
        p += 1
    p[0] = <u8>value
    return p + 1


cdef bint mqtt_text_is_valid(const u8* p, u64 n) noexcept nogil:
    """Whether n bytes are UTF-8 without U+0000. Cost: 1 ns per byte, less when it is ASCII."""
    cdef u64 at = 0
    cdef int step
    while at < n:
        if p[at] == 0:
            return False
        step = utf8_step(p + at, n - at)
        if step < 0:
            return False
        at += <u64>step
    return True


cdef inline u64 has_byte(u64 word, u8 value) noexcept nogil:
    """0 when no byte of a word is that one: what is 0 borrows from its high bit."""
    word ^= EACH_BYTE * value
    return (word - EACH_BYTE) & ~word & (EACH_BYTE << 7)


cdef inline u64 plain_topic_bytes(const u8* p, u64 n) noexcept nogil:
    """How many of n bytes are ASCII, and neither 0 nor a wildcard, as far as words go."""
    cdef u64 at = 0, word
    while at + 8 <= n:
        word = le64(p + at)
        if (word & (EACH_BYTE << 7) or has_byte(word, 0) or has_byte(word, c'+')
                or has_byte(word, c'#')):
            break
        at += 8
    return at


# hot
cdef bint topic_is_valid(const u8* p, u64 n) noexcept nogil:
    """Whether n bytes are a topic: valid text, not empty, without wildcards. Cost: 0.2 ns per byte
    of ASCII."""
    cdef u64 i
    if n == 0:
        return False
    i = plain_topic_bytes(p, n)
    p += i
    n -= i
    if not mqtt_text_is_valid(p, n):
        return False
    for i in range(n):
        if p[i] == c'+' or p[i] == c'#':
            return False
    return True


# ---- properties of a PUBLISH ---------------------------------------------------------------------

cdef enum:
    PUBLISH_MOST_PROPERTIES = 524288    # bytes

cdef i64 property_size(const u8* p, u64 n) noexcept nogil:
    """Bytes of the property at p, which a PUBLISH may have: its id, and what follows; -1 when it is
    cut or of another kind."""
    cdef u64 size = 0, second
    cdef u32 value
    cdef int k
    if p[0] == PROPERTY_FORMAT:
        size = 2
    elif p[0] == PROPERTY_EXPIRY:
        size = 5
    elif p[0] == PROPERTY_ALIAS:
        size = 3
    elif p[0] == PROPERTY_SUBSCRIPTION_ID:
        k = varint_read(p + 1, n - 1, &value)
        size = 1 + <u64>k if k > 0 else n + 1
    elif (p[0] == PROPERTY_CONTENT_TYPE or p[0] == PROPERTY_RESPONSE_TOPIC
            or p[0] == PROPERTY_CORRELATION or p[0] == PROPERTY_USER):
        size = 3 + <u64>be16(p + 1) if n >= 3 else n + 1
        if p[0] == PROPERTY_USER:
            second = size + 2
            size = second + be16(p + size) if second <= n else n + 1
    return <i64>size if size and size <= n else -1


cdef u32 property_error(const u8* p, u64 size) noexcept nogil:
    """0, or why the value of a property is refused, a reason_code."""
    cdef u32 n
    if p[0] == PROPERTY_FORMAT:
        return 0 if p[1] <= 1 else <u32>REASON_PROTOCOL
    if p[0] == PROPERTY_EXPIRY or p[0] == PROPERTY_ALIAS or p[0] == PROPERTY_CORRELATION:
        return 0
    n = be16(p + 1)
    if p[0] == PROPERTY_RESPONSE_TOPIC:
        return 0 if topic_is_valid(p + 3, n) else <u32>REASON_PROTOCOL
    if not mqtt_text_is_valid(p + 3, n):
        return REASON_MALFORMED
    if p[0] == PROPERTY_USER and not mqtt_text_is_valid(p + 5 + n, size - 5 - n):
        return REASON_MALFORMED
    return 0


cdef u32 publish_properties(mqtt_t* s, publish_t* m, const u8* p, u32 n, u32* alias) noexcept nogil:
    """Read n bytes of properties into m; *alias is that of its topic, 0 = none. 0 or a reason_code.

    What is forwarded stays where it is if nothing has to be taken out of its midst, else it is put
    together in the scratch. Cost: 3 ns per property."""
    cdef const u8* end = p + n
    cdef u64 seen = 0, left
    cdef u32 kept = 0, error
    cdef i64 size
    alias[0] = 0
    m.props = p
    if n > PUBLISH_MOST_PROPERTIES:
        return REASON_QUOTA             # nobody else is served while they are read, and given
    if n > s.cap_scratch and not mqtt_scratch(s, n):
        return REASON_QUOTA
    while p < end:
        left = <u64>(end - p)
        size = property_size(p, left)
        if size < 0:
            return REASON_MALFORMED         # it is cut, or one of another packet
        if p[0] == PROPERTY_SUBSCRIPTION_ID:
            return REASON_PROTOCOL
        if p[0] != PROPERTY_USER and (seen >> p[0]) & 1:
            return REASON_PROTOCOL
        seen |= <u64>1 << p[0]
        error = property_error(p, <u64>size)
        if error:
            return error
        if p[0] == PROPERTY_EXPIRY:
            m.has_expiry = True
            m.expiry_s = be32(p + 1)
        elif p[0] == PROPERTY_ALIAS:
            alias[0] = be16(p + 1)
            if alias[0] == 0 or alias[0] > s.alias_maximum_in:
                return REASON_ALIAS
        else:
            memcpy(s.scratch + kept, p, <u64>size)
            kept += <u32>size
        p += size
    if kept:
        m.props = s.scratch
    m.props_len = kept
    return 0


cdef bint mqtt_scratch(mqtt_t* s, u64 n) noexcept nogil:
    """Have a scratch of n bytes. Whether there was memory."""
    cdef u8* grown
    if n <= s.cap_scratch:
        return True
    if n >> 31:
        return False
    grown = <u8*>realloc(s.scratch, n + 64)
    if grown == NULL:
        return False
    s.scratch = grown
    s.cap_scratch = <u32>n + 64
    return True
