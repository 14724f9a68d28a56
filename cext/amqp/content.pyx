# Content: what is published and split over reads or frames.
#
# What does not lie back to back in one read is assembled in the channel, and then published by the
# same call. Called by amqp.pyx. Source: AMQP 0-9-1 specification, section 4.2.6.


cdef int walk_fail(link_t* l, u32 error, u16 channel, u32 method, u64 a, u64 b) noexcept nogil:
    l.loop.ev_len = error
    l.loop.ev_channel = channel
    l.loop.ev_method = method
    l.loop.ev_a = a
    l.loop.ev_b = b
    return WALK_ERROR


cdef bint asks_direct_reply(const msg_t* m) noexcept nogil:
    """Whether reply-to names one of the pseudo-queues of direct reply-to."""
    cdef const u8* text = m.props + m.reply_to_at
    if m.reply_to_at == 0:
        return False
    return ((text[0] == 21 and same_bytes(text + 1, <const u8*>b"amq.rabbitmq.reply-to", 21))
            or (text[0] == 19 and same_bytes(text + 1, <const u8*>b"amq.direct.reply-to", 19)))


# ---- content that is split over reads or frames --------------------------------------------------

cdef int content_begin(chan_t* c, const u8* names, u32 names_len) noexcept nogil:
    if not channel_has_names(c):
        return walk_fail(c.link, ERROR_NO_MEMORY, c.id, BASIC_PUBLISH, 0, 0)
    memcpy(c.names, names, names_len)
    c.names_len = names_len
    c.content = CONTENT_HEADER
    return WALK_DONE


cdef int publish_fail(chan_t* c, int rc) noexcept nogil:
    """The error for a publish that channel_publish could not take."""
    if rc == PUBLISH_TX_TOO_LARGE:
        return walk_fail(c.link, ERROR_TX_TOO_LARGE, c.id, BASIC_PUBLISH, MAX_TX_BYTES, 0)
    if rc == PUBLISH_BAD_HEADER:
        return walk_fail(c.link, ERROR_HASH_HEADER, c.id, BASIC_PUBLISH, 0, 0)
    return walk_fail(c.link, ERROR_NO_MEMORY, c.id, BASIC_PUBLISH, 0, 0)


cdef int publish_miss(chan_t* c, int rc) noexcept nogil:
    """The event for a publish about which something is to be asked, by the ask_result."""
    if rc == ASK_NO_MEMORY:
        return publish_fail(c, PUBLISH_NO_MEMORY)
    c.link.loop.ev_channel = c.id
    return WALK_MISS


cdef int content_publish(chan_t* c, const u8* body) noexcept nogil:
    """The content is complete: publish it from the channel's buffers."""
    cdef msg_t m
    cdef int rc
    m.exchange = NULL
    m.names = c.names
    m.names_len = c.names_len
    m.body = body
    m.body_len = c.body_len
    rc = <int>props_error(c.link, c.props, c.props_len, &m)     # once more, for the offsets only
    if m.headers_at and (m.is_special or has_copies(&m)):
        rc = publish_ask(c.link, &m)
        if rc != ASK_NOTHING:
            return publish_miss(c, rc)
    rc = channel_publish(c, &m)
    if rc == PUBLISH_MISS:
        link_ask_publish(c.link, c.names)
        return publish_miss(c, ASK_PYTHON)
    if rc == PUBLISH_TURN:
        return WALK_TURN
    channel_reset_content(c)
    return WALK_DONE if rc == PUBLISHED else publish_fail(c, rc)


cdef int content_reserve_props(chan_t* c, u32 len) noexcept nogil:
    """Make room for so many bytes of properties. 0, or -1 out of memory."""
    cdef u8* grown
    if len > c.props_cap:
        grown = <u8*>realloc(c.props, len)
        if grown == NULL:
            return -1
        link_take(c.link, len - c.props_cap)
        c.props = grown
        c.props_cap = len
    return 0


cdef int content_set_reply_to(chan_t* c, u32 at) noexcept nogil:
    """Replace the reply-to property by the channel's reply address. 0, or -1 out of memory."""
    cdef u32 old = 1 + c.props[at], new = 1 + c.reply_address[0]
    cdef u32 len = c.props_len - old + new
    if content_reserve_props(c, len):
        return -1
    memmove(c.props + at + new, c.props + at + old, c.props_len - at - old)
    memcpy(c.props + at, c.reply_address, new)
    c.props_len = len
    return 0


cdef int content_stamp(chan_t* c) noexcept nogil:
    """Add the time as the timestamp property. 0, or -1 out of memory."""
    cdef u32 at = props_place(c.props, FLAG_TIMESTAMP), len = c.props_len + 8
    if content_reserve_props(c, len):
        return -1
    memmove(c.props + at + 8, c.props + at, c.props_len - at)
    put_be64(c.props + at, <u64>(c.link.loop.now_ms // 1000))
    put_be16(c.props, <u16>(be16(c.props) | FLAG_TIMESTAMP))
    c.props_len = len
    return 0


cdef int content_header(chan_t* c, const u8* payload, u32 size) noexcept nogil:
    cdef link_t* l = c.link
    cdef msg_t m
    cdef u32 error, method
    cdef u8* grown
    if c.content != CONTENT_HEADER:
        return walk_fail(l, ERROR_UNEXPECTED_HEADER, c.id, 0, 0, 0)
    if size < 14:
        return walk_fail(l, ERROR_SHORT_PAYLOAD, c.id, 0, 0, 0)
    if be16(payload) != BASIC_CLASS:
        return walk_fail(l, ERROR_UNEXPECTED_HEADER, c.id, 0, 0, 0)
    error = props_error(l, payload + 12, size - 12, &m)
    if error:
        l.loop.ev_data = payload + 12
        method = BASIC_PUBLISH if error in (ERROR_CC, ERROR_BCC, ERROR_COPIES) else 0
        if error == ERROR_COPIES:
            return walk_fail(l, error, c.id, method, l.loop.max_copies, 0)
        return walk_fail(l, error, c.id, method, be16(payload + 12), size - 12)
    c.body_len = be64(payload + 4)
    if c.body_len > l.max_message_size:
        return walk_fail(l, ERROR_MESSAGE_SIZE, c.id, 0, c.body_len, l.max_message_size)
    if size - 12 > c.props_cap:
        if not link_may_take(l, size - 12 - c.props_cap):
            return walk_fail(l, ERROR_LARGE, c.id, BASIC_PUBLISH, c.body_len, 0)
        grown = <u8*>realloc(c.props, size - 12)
        if grown == NULL:
            return walk_fail(l, ERROR_NO_MEMORY, c.id, BASIC_PUBLISH, 0, 0)
        link_take(l, size - 12 - c.props_cap)
        c.props = grown
        c.props_cap = size - 12
    memcpy(c.props, payload + 12, size - 12)
    c.props_len = size - 12
    if asks_direct_reply(&m):
        if c.reply_address == NULL:
            return walk_fail(l, ERROR_NO_REPLY_CONSUMER, c.id, 0, 0, 0)
        if content_set_reply_to(c, m.reply_to_at):
            return walk_fail(l, ERROR_NO_MEMORY, c.id, BASIC_PUBLISH, 0, 0)
    if l.loop.is_stamping and m.stamp_at == 0 and content_stamp(c):
        return walk_fail(l, ERROR_NO_MEMORY, c.id, BASIC_PUBLISH, 0, 0)
    c.content = CONTENT_BODY
    c.body_have = 0
    # Nothing is read from it, but memcpy may not be given NULL.
    return content_publish(c, c.names) if c.body_len == 0 else WALK_DONE


cdef int content_body(chan_t* c, const u8* payload, u32 size) noexcept nogil:
    cdef link_t* l = c.link
    cdef u64 cap
    cdef u8* grown
    if c.content != CONTENT_BODY:
        return walk_fail(l, ERROR_UNEXPECTED_BODY, c.id, 0, 0, 0)
    if size > c.body_len - c.body_have:
        return walk_fail(l, ERROR_BODY_TOO_LONG, c.id, BASIC_PUBLISH, c.body_have + size,
                         c.body_len)
    if c.body_have == 0 and size == c.body_len:
        return content_publish(c, payload)
    if c.body_have + size > c.body_cap:     # grows with what has come, not with what was announced
        cap = (c.body_have + size) * 2
        if cap > c.body_len or c.body_len <= 1048576:
            cap = c.body_len
        if not link_may_take(l, cap - c.body_cap):
            return walk_fail(l, ERROR_LARGE, c.id, BASIC_PUBLISH, c.body_len, 0)
        grown = <u8*>realloc(c.body, cap)
        if grown == NULL:
            return walk_fail(l, ERROR_NO_MEMORY, c.id, BASIC_PUBLISH, 0, 0)
        link_take(l, cap - c.body_cap)
        c.body = grown
        c.body_cap = cap
    if size:                # else there may be no buffer yet
        memcpy(c.body + c.body_have, payload, size)
    c.body_have += size
    return content_publish(c, c.body) if c.body_have == c.body_len else WALK_DONE
