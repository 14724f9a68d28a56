# AMQP: walks the frames of one read. publish, ack, nack and reject are done here, everything else
# is an event for Python.
#
# The straight path handles a publish whose method, header and body frame lie back to back in the
# input; what is split or larger than a frame is assembled in the channel and then makes the same
# call. The walker stops at each event and is called again behind it, so the order of frames is
# kept. Every length is checked against the bytes that are there before it is used.
# Source: AMQP 0-9-1 specification, section 4.2; docs/protocol.md, docs/architecture.md.


cdef enum method_id:
    CHANNEL_OPEN = 0x14000A
    CHANNEL_CLOSE = 0x140028
    CHANNEL_CLOSE_OK = 0x140029
    CONNECTION_CLASS = 10

cdef enum:
    HANDSHAKE_FRAME_MAX = 8192
    FRAME_UNITS = 2             # of work, besides what is done for the frame


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

cdef u64 amqp_frame_size(const link_t* l, const u8* p, u64 n) noexcept nogil:
    """Bytes of the frame, or the protocol header, that begins at p; 0 = not known yet."""
    if l.state == LINK_HEADER:
        return 8
    return <u64>be32(p + 3) + FRAME_OVERHEAD if n >= 7 else 0


cdef int walk_header(link_t* l, const u8* buf, u64 n, u64* used) noexcept nogil:
    """What a connection begins with: eight bytes, or fewer that cannot be ours."""
    used[0] = 0
    if n < 8 and same_bytes(buf, <const u8*>b"AMQP", n if n < 4 else 4):
        return WALK_DONE
    l.loop.ev_data = buf
    l.loop.ev_len = <u32>n if n < 8 else 8
    used[0] = l.loop.ev_len
    return WALK_HEADER


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
    if l.state == LINK_HEADER:
        return walk_header(l, buf, n, used)
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
                        l.loop.ev_channel = id
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
            l.loop.ev_data = p
            l.loop.ev_len = size
            l.loop.ev_channel = id
            l.loop.ev_method = method
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
