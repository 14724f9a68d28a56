# Connect: where the fields of a CONNECT are. What they say is judged by lavinmq/mqtt/connect.py.
#
# Each length is compared with what is left, and each text has to be one. No field is copied here.
# Source: the standard, section 3.1.

cdef enum connect_flag:         # the fields behind the client identifier that there are
    CONNECT_WILL = 0x04
    CONNECT_PASSWORD = 0x40
    CONNECT_USER_NAME = 0x80

cdef struct connect_t:          # slices of the packet; NULL = there is no such field
    slice_t protocol
    slice_t properties          # without their length
    slice_t client_id
    slice_t will_properties     # the same
    slice_t will_topic
    slice_t will_payload
    slice_t user_name
    slice_t password
    u32 keep_alive_s
    u8 level
    u8 flags


cdef bint take_bytes(slice_t* left, u64 n, slice_t* field) noexcept nogil:
    """Take n bytes from the front. Whether there are as many."""
    if n > left.n:
        return False
    field.p = left.p
    field.n = <u32>n
    left.p += n
    left.n -= <u32>n
    return True


cdef bint take_binary(slice_t* left, slice_t* field) noexcept nogil:
    """Take bytes behind their length of two bytes."""
    return take_bytes(left, 2, field) and take_bytes(left, be16(field.p), field)


cdef const char* take_text(slice_t* left, slice_t* field) noexcept nogil:
    """Take a text behind its length. NULL, or what is wrong."""
    if not take_binary(left, field):
        return b"the packet ends in the middle of a field"
    if not mqtt_text_is_valid(field.p, field.n):
        return b"a text is not UTF-8, or has U+0000 in it"
    return NULL


cdef const char* take_properties(slice_t* left, slice_t* field) noexcept nogil:
    """Take properties behind their length. NULL, or what is wrong."""
    cdef u32 size
    cdef int k = varint_read(left.p, left.n, &size)
    if k == 0:
        return b"the packet ends in the middle of a field"
    if k < 0 or (k > 1 and left.p[k - 1] == 0):
        return b"a variable byte integer has more bytes than it may"
    take_bytes(left, <u64>k, field)
    if not take_bytes(left, size, field):
        return b"a block is longer than the packet"
    return NULL


cdef const char* connect_read(slice_t left, connect_t* c) noexcept nogil:
    """Find the fields of a CONNECT in what is behind its fixed header. NULL, or what is wrong: then
    there are those before; `protocol` is NULL if not even the level is there."""
    cdef const char* wrong = NULL
    cdef slice_t head
    memset(c, 0, sizeof(connect_t))
    if not take_binary(&left, &c.protocol) or not take_bytes(&left, 1, &head):
        c.protocol = no_slice()
        return b"the packet ends in the middle of a field"
    c.level = head.p[0]
    if not take_bytes(&left, 3, &head):
        return b"the packet ends in the middle of a field"
    c.flags = head.p[0]
    c.keep_alive_s = be16(head.p + 1)
    if c.level == 5:
        wrong = take_properties(&left, &c.properties)
    if wrong == NULL:
        wrong = take_text(&left, &c.client_id)
    if wrong == NULL and c.flags & CONNECT_WILL:
        wrong = will_read(&left, c)
    if wrong == NULL and c.flags & CONNECT_USER_NAME:
        wrong = take_text(&left, &c.user_name)
    if wrong == NULL and c.flags & CONNECT_PASSWORD and not take_binary(&left, &c.password):
        wrong = b"the packet ends in the middle of a field"
    if wrong == NULL and left.n:
        wrong = b"there is more behind the end of CONNECT"
    return wrong


cdef const char* will_read(slice_t* left, connect_t* c) noexcept nogil:
    """The part of it that is about the will."""
    cdef const char* wrong = NULL
    if c.level == 5:
        wrong = take_properties(left, &c.will_properties)
    if wrong == NULL:
        wrong = take_text(left, &c.will_topic)
    if wrong == NULL and not take_binary(left, &c.will_payload):
        wrong = b"the packet ends in the middle of a field"
    return wrong
