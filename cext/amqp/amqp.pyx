# AMQP: walks the frames of one read. publish, ack, nack and reject are done here, everything else
# is an event for Python.
#
# The straight path handles a publish whose method, header and body frame lie back to back in the
# input; what is split or larger than a frame is assembled in the channel and then makes the same
# call. The walker stops at each event and is called again behind it, so the order of frames is
# kept. Every length is checked against the bytes that are there before it is used.
# Longer than 500 lines: the checks are a flat list, and the walk inlines them.
# Source: amqp reference sections 2, 4, 6, 11 and 15; architecture section 6.

cdef enum walk_event:
    WALK_DONE = 0               # all whole frames are used up
    WALK_METHOD = 1             # ev_data, ev_len: a method payload for Python
    WALK_MISS = 2               # ev_data, ev_len: a question for answers.pyx; the frame is kept
    WALK_ERROR = 3              # ev_len: one of walk_error
    WALK_CLOSE = 4              # not a legal frame here: drop the socket
    WALK_HELD = 5               # a publish has to wait for the disk; the frame is not used up
    WALK_TURN = 6               # the portion is over; the frame is not used up

cdef enum walk_error:           # the first ones close the connection
    ERROR_FRAME_SIZE = 1
    ERROR_FRAME_END = 2
    ERROR_FRAME_TYPE = 3
    ERROR_PROPERTY_FLAGS = 4
    ERROR_HEARTBEAT_SIZE = 5
    ERROR_HEARTBEAT_CHANNEL = 6
    ERROR_SHORT_PAYLOAD = 7
    ERROR_LONG_PAYLOAD = 8
    ERROR_HEADERS_TABLE = 9
    ERROR_BODY_TOO_LONG = 10
    ERROR_CONTENT_ON_CHANNEL_0 = 11
    ERROR_NO_MEMORY = 12
    ERROR_CHANNEL = 20          # from here on a channel is to blame
    ERROR_UNEXPECTED_METHOD = 21
    ERROR_UNEXPECTED_HEADER = 22
    ERROR_UNEXPECTED_BODY = 23
    ERROR_UNKNOWN_TAG = 24
    ERROR_MESSAGE_SIZE = 25
    ERROR_EXPIRATION = 26
    ERROR_EXPIRATION_NEGATIVE = 27
    ERROR_USER_ID = 28
    ERROR_NO_REPLY_CONSUMER = 29
    ERROR_TX_ALREADY_SETTLED = 30
    ERROR_TX_TOO_LARGE = 31
    ERROR_CC = 32
    ERROR_BCC = 33
    ERROR_LARGE = 34
    ERROR_HASH_HEADER = 35
    ERROR_COPIES = 36

cdef enum method_id:
    CHANNEL_OPEN = 0x14000A
    CHANNEL_CLOSE = 0x140028
    CHANNEL_CLOSE_OK = 0x140029
    CONNECTION_CLASS = 10

cdef enum:
    HANDSHAKE_FRAME_MAX = 8192
    FRAME_UNITS = 2             # of work, besides what is done for the frame


cdef int walk_fail(link_t* l, u32 error, u16 channel, u32 method, u64 a, u64 b) noexcept nogil:
    l.ev_len = error
    l.ev_channel = channel
    l.ev_method = method
    l.ev_a = a
    l.ev_b = b
    return WALK_ERROR


# ---- checks --------------------------------------------------------------------------------------

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


cdef bint asks_direct_reply(const msg_t* m) noexcept nogil:
    """Whether reply-to names one of the pseudo-queues of direct reply-to."""
    cdef const u8* text = m.props + m.reply_to_at
    if m.reply_to_at == 0:
        return False
    return ((text[0] == 21 and same_bytes(text + 1, <const u8*>b"amq.rabbitmq.reply-to", 21))
            or (text[0] == 19 and same_bytes(text + 1, <const u8*>b"amq.direct.reply-to", 19)))


# ---- content that is split over reads or frames --------------------------------------------------

cdef int content_begin(chan_t* c, const u8* names, u32 names_len) noexcept nogil:
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
    c.link.ev_channel = c.id
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


cdef int content_set_reply_to(chan_t* c, u32 at) noexcept nogil:
    """Replace the reply-to property by the channel's reply address. 0, or -1 out of memory."""
    cdef u32 old = 1 + c.props[at], new = 1 + c.reply_address_len
    cdef u32 len = c.props_len - old + new
    cdef u8* grown
    if len > c.props_cap:
        grown = <u8*>realloc(c.props, len)
        if grown == NULL:
            return -1
        link_take(c.link, len - c.props_cap)
        c.props = grown
        c.props_cap = len
    memmove(c.props + at + new, c.props + at + old, c.props_len - at - old)
    c.props[at] = c.reply_address_len
    memcpy(c.props + at + 1, c.reply_address, c.reply_address_len)
    c.props_len = len
    return 0


cdef int content_stamp(chan_t* c) noexcept nogil:
    """Add the time as the timestamp property. 0, or -1 out of memory."""
    cdef u32 at = props_place(c.props, FLAG_TIMESTAMP), len = c.props_len + 8
    cdef u8* grown
    if len > c.props_cap:
        grown = <u8*>realloc(c.props, len)
        if grown == NULL:
            return -1
        link_take(c.link, len - c.props_cap)
        c.props = grown
        c.props_cap = len
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
        l.ev_data = payload + 12
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
        if c.reply_address_len == 0:
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


# ---- the hot methods -----------------------------------------------------------------------------

# hot
cdef int walk_publish(link_t* l, chan_t* c, const u8* p, u32 size, u64 left,
                      u64* used) noexcept nogil:
    """basic.publish whose method payload is at p. `left` counts the bytes behind its frame, *used
    returns how many of those the straight path took. Cost: 10 ns before channel_publish."""
    cdef u32 name_len, names_len, header_size, body_size
    cdef const u8* h
    cdef const u8* b
    cdef msg_t m
    cdef int rc
    used[0] = 0
    if size < 9:
        return walk_fail(l, ERROR_SHORT_PAYLOAD, c.id, BASIC_PUBLISH, 0, 0)
    name_len = p[6]
    if 8 + name_len >= size:
        return walk_fail(l, ERROR_SHORT_PAYLOAD, c.id, BASIC_PUBLISH, 0, 0)
    names_len = 2 + name_len + p[7 + name_len]
    if 7 + names_len != size:
        if 7 + names_len > size:
            return walk_fail(l, ERROR_SHORT_PAYLOAD, c.id, BASIC_PUBLISH, 0, 0)
        return walk_fail(l, ERROR_LONG_PAYLOAD, c.id, BASIC_PUBLISH, p[7 + names_len], 0)
    if c.content != CONTENT_NONE:
        return walk_fail(l, ERROR_UNEXPECTED_METHOD, c.id, BASIC_PUBLISH, 0, 0)
    m.names = p + 6
    if channel_has_route(c, m.names, names_len):
        m.names = c.route_names
    elif link_known(l, p + 7, name_len) == NULL and link_allowed(l, p + 6) == NULL:
        link_ask_publish(l, p + 6)
        return publish_miss(c, ASK_PYTHON)
    c.publish_flags = p[size - 1] & 3
    h = p + size + 1
    if left < 22 or h[0] != FRAME_HEADER or be16(h + 1) != c.id:
        return content_begin(c, p + 6, names_len)
    header_size = be32(h + 3)
    if header_size < 14 or header_size > l.frame_max or left < header_size + FRAME_OVERHEAD:
        return content_begin(c, p + 6, names_len)
    m.body_len = be64(h + 11)
    b = h + header_size + FRAME_OVERHEAD
    if m.body_len:
        left -= header_size + FRAME_OVERHEAD
        if m.body_len > l.frame_max or left < m.body_len + FRAME_OVERHEAD:
            return content_begin(c, p + 6, names_len)
        body_size = be32(b + 3)
        if (b[0] != FRAME_BODY or be16(b + 1) != c.id or body_size != m.body_len
                or b[7 + body_size] != FRAME_END):
            return content_begin(c, p + 6, names_len)
    if (be16(h + 7) != BASIC_CLASS or h[7 + header_size] != FRAME_END
            or m.body_len > l.max_message_size):
        return content_begin(c, p + 6, names_len)
    if props_error(l, h + 19, header_size - 12, &m):
        return content_begin(c, p + 6, names_len)       # the assembly path reports it
    if m.reply_to_at and asks_direct_reply(&m):
        return content_begin(c, p + 6, names_len)       # the assembly path rewrites it
    if l.loop.is_stamping and m.stamp_at == 0:
        return content_begin(c, p + 6, names_len)       # and adds the time
    m.exchange = NULL
    m.names_len = names_len
    m.body = b + 7
    if m.headers_at and (m.is_special or has_copies(&m)):
        rc = publish_ask(l, &m)
        if rc != ASK_NOTHING:
            return publish_miss(c, rc)
    used[0] = header_size + FRAME_OVERHEAD
    if m.body_len:
        used[0] += m.body_len + FRAME_OVERHEAD
    rc = channel_publish(c, &m)                         # the exchange was known a moment ago
    if rc == PUBLISHED:
        return WALK_DONE
    return WALK_TURN if rc == PUBLISH_TURN else publish_fail(c, rc)


# hot
cdef int walk_settle(link_t* l, chan_t* c, u32 method, const u8* p, u32 size) noexcept nogil:
    """basic.ack, basic.nack or basic.reject. Cost: 3 ns before channel_settle."""
    cdef bint multiple = False, requeue = False
    cdef int rc
    if size != 13:
        if size < 13:
            return walk_fail(l, ERROR_SHORT_PAYLOAD, c.id, method, 0, 0)
        return walk_fail(l, ERROR_LONG_PAYLOAD, c.id, method, p[13], 0)
    if method == BASIC_REJECT:
        requeue = p[12] & 1
    else:
        multiple = p[12] & 1
        requeue = method == BASIC_NACK and p[12] & 2
    if c.is_tx:
        rc = tx_settle(c, be64(p + 4), multiple, requeue, method == BASIC_ACK)
        if rc == TX_ALREADY_SETTLED:
            return walk_fail(l, ERROR_TX_ALREADY_SETTLED, c.id, method, 0, 0)
    else:
        rc = channel_settle(c, be64(p + 4), multiple, requeue, method == BASIC_ACK)
    if rc == SETTLE_TURN:
        return WALK_TURN
    if rc:
        return walk_fail(l, ERROR_UNKNOWN_TAG, c.id, method, be64(p + 4), 0)
    if l.loop.over != NULL:
        loop_enforce(l.loop)
    return WALK_DONE


# ---- the walk ------------------------------------------------------------------------------------

# hot
cdef int amqp_walk(link_t* l, const u8* buf, u64 n, u64* used) noexcept nogil:
    """Walk the whole frames in n bytes at buf.
    Returns a walk_event; *used counts the bytes that are done. The caller charges for them.

    Cost: 4 ns per frame besides what the frame asks for."""
    cdef loop_t* loop = l.loop
    cdef u64 at = 0, more
    cdef u32 size, method
    cdef u8 kind
    cdef u16 id
    cdef const u8* p
    cdef chan_t* c
    cdef int rc
    l.wire.need = 0
    while n - at >= 7:
        p = buf + at
        used[0] = at
        if loop_spent(loop, FRAME_UNITS) and at:
            return WALK_TURN        # but the first is for getting on
        size = be32(p + 3)
        kind = p[0]
        id = be16(p + 1)
        if l.state == LINK_HANDSHAKE and (kind != FRAME_METHOD or size > HANDSHAKE_FRAME_MAX):
            return WALK_CLOSE
        if size > l.frame_max:
            used[0] = n         # nothing behind it can be trusted
            return walk_fail(l, ERROR_FRAME_SIZE, id, 0, size, l.frame_max)
        if n - at < <u64>size + FRAME_OVERHEAD:
            l.wire.need = size + FRAME_OVERHEAD
            break
        p += 7
        at += <u64>size + FRAME_OVERHEAD
        if p[size] != FRAME_END:
            used[0] = at
            method = be32(p) if kind == FRAME_METHOD and size >= 4 else 0
            return walk_fail(l, ERROR_FRAME_END, id, method, p[size], 0)
        used[0] = at
        c = link_channel(l, id)
        if kind == FRAME_METHOD:
            if size < 4:
                return walk_fail(l, ERROR_SHORT_PAYLOAD, id, 0, 0, 0)
            method = be32(p)
            if l.state == LINK_CLOSING and method >> 16 != CONNECTION_CLASS:
                continue
            if c != NULL and c.state == CHAN_CLOSING:
                if (method != CHANNEL_CLOSE and method != CHANNEL_CLOSE_OK
                        and method != CHANNEL_OPEN):
                    continue
            elif method == BASIC_PUBLISH:
                if c != NULL:
                    if l.loop.is_held and c.job == NULL:
                        used[0] = at - size - FRAME_OVERHEAD
                        l.ev_channel = id
                        return WALK_HELD
                    rc = walk_publish(l, c, p, size, n - at, &more)
                    if rc == WALK_MISS or rc == WALK_TURN:
                        used[0] = at - size - FRAME_OVERHEAD
                        return rc
                    at += more
                    used[0] = at
                    if rc:
                        return rc
                    continue
                if id:
                    continue        # not open: the publish is dropped, and its content with it
            elif method == BASIC_ACK or method == BASIC_NACK or method == BASIC_REJECT:
                if c != NULL:
                    rc = walk_settle(l, c, method, p, size)
                    if rc == WALK_TURN:
                        used[0] = at - size - FRAME_OVERHEAD
                    if rc:
                        return rc
                    continue
                if id:
                    continue        # a late settlement must not hurt the connection
            l.ev_data = p
            l.ev_len = size
            l.ev_channel = id
            l.ev_method = method
            return WALK_METHOD
        if kind == FRAME_HEADER or kind == FRAME_BODY:
            if (l.state == LINK_CLOSING or (c == NULL and id)
                    or (c != NULL and c.state == CHAN_CLOSING)):
                continue
            if c == NULL:
                return walk_fail(l, ERROR_CONTENT_ON_CHANNEL_0, id, 0, 0, 0)
            rc = content_header(c, p, size) if kind == FRAME_HEADER else content_body(c, p, size)
            if rc == WALK_MISS or rc == WALK_TURN:
                used[0] = at - size - FRAME_OVERHEAD
                if kind == FRAME_HEADER:
                    c.content = CONTENT_HEADER
                elif c.body_have == c.body_len:
                    c.body_have -= size
                return rc
            if rc:
                return rc
            continue
        if kind == FRAME_HEARTBEAT:
            if id:
                return walk_fail(l, ERROR_HEARTBEAT_CHANNEL, id, 0, 0, 0)
            if size:
                return walk_fail(l, ERROR_HEARTBEAT_SIZE, id, 0, size, 0)
            continue
        return walk_fail(l, ERROR_FRAME_TYPE, id, 0, kind, 0)
    used[0] = at
    return WALK_DONE
