# Deliver: a stored record as basic.deliver in a link's output.
#
# Called by way of protocol_t, once per message.
# Source: AMQP 0-9-1 specification, section 4.2.6; docs/consumers.md.


# hot
cdef inline u8* deliver_head(u8* p, const consumer_t* k, const rec_t* r, u64 tag) noexcept nogil:
    """The frame of basic.deliver at p; returns the end."""
    cdef u32 tag_len = k.tag[0]
    p = frame_head(p, FRAME_METHOD, k.chan.id, 14 + tag_len + r.names_len)
    put_be32(p, BASIC_DELIVER)
    if tag_len < 32:            # what follows is longer: the rest of these is overwritten
        memcpy(p + 4, k.tag, 32)
    else:
        memcpy(p + 4, k.tag, 1 + tag_len)
    p += 5 + tag_len
    put_be64(p, tag)
    p[8] = r.redelivered
    memcpy(p + 9, r.names, r.names_len)
    p += 9 + r.names_len
    p[0] = FRAME_END
    return p + 1


# hot
cdef bint amqp_deliver(consumer_t* k, rec_t* r, u64 tag) noexcept nogil:
    """basic.deliver with its content into the link's output. False when the link can take no more,
    or its client never takes this one: its session is told then.

    Cost: 10 ns and 0.1 ns per byte for what has no headers, fits a frame and the output."""
    cdef link_t* l = k.chan.link
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD
    cdef u32 n = r.props_len, body_len, most
    cdef u8* p
    if r.headers_at or r.body == NULL or r.body_len > chunk:
        return amqp_deliver_any(k, r, tag)
    body_len = <u32>r.body_len
    most = n if r.extra == NULL else n + 4 + r.extra_len
    if 12 + most > chunk:
        return amqp_deliver_any(k, r, tag)
    p = link_room_at_hand(l, <u64>k.tag[0] + r.names_len + most + body_len + DELIVERY_BYTES)
    if p == NULL:
        return amqp_deliver_any(k, r, tag)
    p = deliver_head(p, k, r, tag)
    props_to_wire(p + 19, r)
    if r.extra != NULL:
        n = props_add_header(p + 19, n, r.extra, r.extra_len)
    p = frame_head(p, FRAME_HEADER, k.chan.id, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    if body_len:
        p = frame_head(p, FRAME_BODY, k.chan.id, body_len)
        memcpy(p, r.body, body_len)
        p += body_len
        p[0] = FRAME_END
        p += 1
    link_wrote(l, p)
    return True


cdef bint amqp_deliver_any(consumer_t* k, rec_t* r, u64 tag) noexcept nogil:
    """amqp_deliver for whatever record, and an output that may be full."""
    cdef link_t* l = k.chan.link
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD
    cdef u64 need = <u64>12 + k.tag[0] + 10 + r.names_len + content_size(r, chunk)
    cdef rest_t* rest = NULL
    cdef u8* p
    record_find_bcc(r)
    if not header_fits(r, chunk):
        k.chan.is_oversized = l.is_oversized = True
        return False
    if not link_is_clear_for(l, need):
        return False
    if not link_may_hold(l, need):
        k.wants = need
        return False
    if record_has_far_body(r):
        rest = rest_new(l, k.queue, r)
        if rest == NULL:
            return False
    p = link_room(l, need)
    if p == NULL:
        if rest != NULL:
            rest_free(rest)
        return False
    p = content_write(deliver_head(p, k, r, tag), k.chan.id, r, chunk)
    link_wrote(l, p)
    if rest != NULL:
        rest.channel = k.chan.id
        link_add_rest(l, rest)
    return True
