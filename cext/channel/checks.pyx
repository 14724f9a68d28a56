# Checks: whether the properties of a message are well formed, and may be this client's.
#
# Messages are stored with properties in the form of AMQP, whatever their publisher speaks; errors
# are those of walk_error. Source: docs/protocol.md, what is refused.


cdef u32 expiration_error(const u8* text) noexcept nogil:
    """0 when a short string is a number of milliseconds that fits a signed 32-bit integer."""
    cdef u32 n = text[0], i = 0
    cdef bint negative = False
    cdef u64 value = 0
    while i < n and (text[1 + i] == c' ' or text[1 + i] == c'\t'):
        i += 1
    if i < n and (text[1 + i] == c'+' or text[1 + i] == c'-'):
        negative = text[1 + i] == c'-'
        i += 1
    if i == n:
        return ERROR_EXPIRATION
    while i < n:
        if text[1 + i] < c'0' or text[1 + i] > c'9':
            return ERROR_EXPIRATION
        value = value * 10 + (text[1 + i] - c'0')
        if value >> 32:
            return ERROR_EXPIRATION
        i += 1
    if negative and value:
        return ERROR_EXPIRATION_NEGATIVE
    return ERROR_EXPIRATION if value > 0x7FFFFFFF else 0


cdef u32 props_error(link_t* l, const u8* props, u32 len, msg_t* m) noexcept nogil:
    """Check the properties of a content header and note where they are in m; 0 or a walk_error.

    Cost: 2 ns without headers, expiration and user-id."""
    cdef props_t found
    cdef const u8* user_id
    cdef int rc
    if msg_note_plain(m, props, len):
        return 0
    rc = props_walk(props, len, True, &found)
    if rc < 0:
        return ERROR_PROPERTY_FLAGS
    if rc == 0:
        return ERROR_SHORT_PAYLOAD
    if found.len != len:
        return ERROR_LONG_PAYLOAD
    msg_note_props(m, props, &found)
    if found.headers_at:
        if not table_is_valid(props + found.headers_at + 4, found.headers_len, 0):
            return ERROR_HEADERS_TABLE
        rc = <int>copies_error(m, l.loop.max_copies)
        if rc:
            return <u32>rc
    if found.expiration_at:
        rc = <int>expiration_error(props + found.expiration_at)
        if rc:
            return <u32>rc
    if found.user_id_at and not l.is_impersonator:
        user_id = props + found.user_id_at
        if user_id[0] != l.user_len or not same_bytes(user_id + 1, l.user, l.user_len):
            return ERROR_USER_ID
    return 0
