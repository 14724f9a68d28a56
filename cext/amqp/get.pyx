# Get: one message for who asks for it.
#
# Called by the door. Source: docs/protocol.md.

cdef enum get_result:
    GET_WRITTEN = 0
    GET_EMPTY = 1               # or the link takes nothing any more
    GET_HEADER = -1             # its header does not fit a frame of this client
    GET_NO_MEMORY = -2          # or no descriptor


cdef int amqp_get(chan_t* c, queue_t* q, bint no_ack) noexcept nogil:
    """Write get-ok with the next message of q."""
    cdef link_t* l = c.link
    cdef rec_t rec
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD, n
    cdef u64 need
    cdef rest_t* rest = NULL
    cdef u8* p
    if (q.is_deleted or q.is_closed or q.is_paused or q.n_orphans or q.ready == 0
            or q.stream != NULL or queue_next(q, &rec) != 1):
        return GET_EMPTY
    record_find_bcc(&rec)
    if not header_fits(&rec, chunk):
        queue_touch(q)
        return GET_HEADER
    need = 32 + rec.names_len + content_size(&rec, chunk)
    if not channel_has_room(c, no_ack) or (need > BLOCK_SIZE and not link_may_take(l, need)):
        queue_touch(q)
        return GET_NO_MEMORY
    if record_has_far_body(&rec):
        rest = rest_new(l, q, &rec)
        if rest == NULL:
            queue_touch(q)
            return GET_NO_MEMORY
        rest.channel = c.id
    p = link_room(l, need)
    if p == NULL:
        if rest != NULL:
            rest_free(rest)
        return GET_EMPTY
    queue_take(q, &rec, no_ack)
    c.tally.redeliver += rec.redelivered
    p = frame_head(p, FRAME_METHOD, c.id, 17 + rec.names_len)
    put_be32(p, BASIC_GET_OK)
    put_be64(p + 4, c.next_tag)
    p[12] = rec.redelivered
    memcpy(p + 13, rec.names, rec.names_len)
    p += 13 + rec.names_len
    n = <u32>q.ready if q.ready >> 32 == 0 else <u32>-1
    put_be32(p, n)
    p[4] = FRAME_END
    link_wrote(l, content_write(p + 5, c.id, &rec, chunk))
    if rest != NULL:
        link_add_rest(l, rest)
    queue_touch(q)
    if no_ack:
        q.n_get_no_ack += 1
        c.tally.get_no_ack += 1
        channel_skip_tag(c)
        return GET_WRITTEN
    q.n_get += 1
    c.tally.get += 1
    channel_push(c, q, NULL, &rec)
    return GET_WRITTEN
