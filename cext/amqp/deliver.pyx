# Deliver: turns stored records into frames in a link's output block, and runs a queue's deliveries.
#
# The block is that of output.pyx: one for each link. Source: amqp reference sections 2 and 14.

cdef enum frame_type:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    DELIVERY_BYTES = 10 + 12 + 2 * FRAME_OVERHEAD    # frames of a delivery, besides what varies

cdef enum hot_method:           # class << 16 | method
    BASIC_PUBLISH = 0x3C0028
    BASIC_RETURN = 0x3C0032
    BASIC_DELIVER = 0x3C003C
    BASIC_GET_OK = 0x3C0047
    BASIC_ACK = 0x3C0050
    BASIC_REJECT = 0x3C005A
    BASIC_NACK = 0x3C0078
    BASIC_CLASS = 60


# ---- frames --------------------------------------------------------------------------------------

# hot
cdef inline u8* frame_head(u8* p, u8 frame_type, u16 channel, u32 size) noexcept nogil:
    p[0] = frame_type
    put_be16(p + 1, channel)
    put_be32(p + 3, size)
    return p + 7


# hot
cdef inline u8* content_write(u8* p, u16 channel, const rec_t* r, u32 chunk) noexcept nogil:
    """Header frame and body frames of a stored record at p; returns the end. A far body is left
    to a rest."""
    cdef u64 left = r.body_len if r.body != NULL else 0
    cdef const u8* body = r.body
    cdef u32 n = r.props_len
    props_to_wire(p + 19, r)
    if r.bcc_len:
        n = props_cut(p + 19, n, r.headers_at, r.bcc_at, r.bcc_len)
    if r.extra != NULL:
        n = props_add_header(p + 19, n, r.extra, r.extra_len)
    p = frame_head(p, FRAME_HEADER, channel, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, r.body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    while left:
        n = chunk if left > chunk else <u32>left
        p = frame_head(p, FRAME_BODY, channel, n)
        memcpy(p, body, n)
        p[n] = FRAME_END
        p += n + 1
        body += n
        left -= n
    return p


# hot
cdef inline u64 content_size(const rec_t* r, u32 chunk) noexcept nogil:
    """Bytes that content_write will write, or a few more."""
    cdef u64 body_len = r.body_len if r.body != NULL else 0
    cdef u64 frames = 1 if body_len <= chunk else (body_len + chunk - 1) / chunk
    cdef u64 extra = 4 + r.extra_len if r.extra != NULL else 0
    return FRAME_OVERHEAD + 12 + r.props_len + extra + frames * FRAME_OVERHEAD + body_len


# hot
cdef inline bint header_fits(const rec_t* r, u32 chunk) noexcept nogil:
    """Whether the header frame of a record is not larger than the client takes."""
    return 12 + r.props_len - r.bcc_len + (4 + r.extra_len if r.extra != NULL else 0) <= chunk


# hot
cdef inline u8* deliver_head(u8* p, const consumer_t* k, const rec_t* r, u64 tag) noexcept nogil:
    """The frame of basic.deliver at p; returns the end."""
    memcpy(p, k.template, k.template_len)
    put_be32(p + 3, k.template_len - 7 + 9 + r.names_len)
    p += k.template_len
    put_be64(p, tag)
    p[8] = r.redelivered
    memcpy(p + 9, r.names, r.names_len)
    p += 9 + r.names_len
    p[0] = FRAME_END
    return p + 1


# hot
cdef inline bint deliver_write(consumer_t* k, rec_t* r, u64 tag) noexcept nogil:
    """basic.deliver with its content into the link's output. False when the link can take no more,
    or its client never takes this one: its session is told then.

    Cost: 10 ns and 0.1 ns per byte for what has no headers, fits a frame and the output."""
    cdef link_t* l = k.chan.link
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD
    cdef u32 n = r.props_len, body_len, most
    cdef u8* p
    if r.headers_at or r.body == NULL or r.body_len > chunk:
        return deliver_write_any(k, r, tag)
    body_len = <u32>r.body_len
    most = n if r.extra == NULL else n + 4 + r.extra_len
    if 12 + most > chunk:
        return deliver_write_any(k, r, tag)
    p = link_room_at_hand(l, <u64>k.template_len + r.names_len + most + body_len + DELIVERY_BYTES)
    if p == NULL:
        return deliver_write_any(k, r, tag)
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


cdef bint deliver_write_any(consumer_t* k, rec_t* r, u64 tag) noexcept nogil:
    """deliver_write for whatever record, and an output that may be full."""
    cdef link_t* l = k.chan.link
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD
    cdef u64 need = k.template_len + 10 + r.names_len + content_size(r, chunk)
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


# hot
cdef bint queue_deliver(queue_t* q) noexcept nogil:
    """Give ready messages to able consumers in turn.
    Returns whether the budget ended before the work."""
    cdef i64 budget = DELIVER_BUDGET
    cdef bint is_more = queue_deliver_within(q, &budget)
    q.loop.work += <u32>((DELIVER_BUDGET - budget) >> 5)
    return is_more


# hot
cdef inline bint queue_deliver_within(queue_t* q, i64* left) noexcept nogil:
    """queue_deliver with a budget of bytes, each message counting 64 more.

    Cost: 25 ns per message."""
    cdef rec_t rec
    cdef consumer_t* k
    cdef chan_t* c
    if q.is_paused or q.n_orphans:
        return False
    while q.ready and q.able != NULL:
        k = q.able
        if not consumer_is_able(k):
            consumer_leave_ring(k)
            continue
        if left[0] <= 0:
            return True
        if queue_next(q, &rec) != 1:
            return False
        c = k.chan
        if not deliver_write(k, &rec, c.next_tag):
            consumer_leave_ring(k)
            if not c.link.wire.is_blocked and not k.is_patient and not c.is_oversized:
                loop_add_patient(q.loop, k)     # large messages of others fill the memory
            continue
        left[0] -= rec.size + 64
        queue_take(q, &rec, k.is_no_ack)
        if rec.redelivered:
            c.tally.redeliver += 1
        if k.is_no_ack:
            q.n_delivered_no_ack += 1
            c.tally.deliver_no_ack += 1
            channel_skip_tag(c)
        else:
            q.n_delivered += 1
            c.tally.deliver += 1
            k.unacked += 1
            c.global_unacked += 1
            if channel_push(c, q, k, &rec):
                queue_failed(q)
                return False
        if q.able == k:
            q.able = k.next
    return False
