# Replies: what a client is told of its publishes, and that we are there.
#
# Called by way of protocol_t. Source: AMQP 0-9-1 specification, section 4.2; docs/protocol.md.


cdef bint confirm_write(chan_t* c, u32 method, u64 seq, bint multiple) noexcept nogil:
    """basic.ack or basic.nack. Whether there was room."""
    cdef u8* p = link_room(c.link, 21)
    if p == NULL:
        return False
    p = frame_head(p, FRAME_METHOD, c.id, 13)
    put_be32(p, method)
    put_be64(p + 4, seq)
    p[12] = multiple
    p[13] = FRAME_END
    link_wrote(c.link, p + 14)
    return True


cdef bint amqp_confirm(chan_t* c, u64 seq, bint is_ack) noexcept nogil:
    """basic.ack, or basic.nack, with multiple."""
    return confirm_write(c, BASIC_ACK if is_ack else BASIC_NACK, seq, True)


cdef bint amqp_refuse(chan_t* c) noexcept nogil:
    """basic.nack for the last publish."""
    return confirm_write(c, BASIC_NACK, c.publish_seq, False)


cdef void amqp_heartbeat(link_t* l) noexcept nogil:
    cdef u8* p = link_room(l, 8)
    if p == NULL:
        return
    p = frame_head(p, FRAME_HEARTBEAT, 0, 0)
    p[0] = FRAME_END
    link_wrote(l, p + 1)


cdef void amqp_piece_begin(u8* p, u16 channel, u32 size) noexcept nogil:
    frame_head(p, FRAME_BODY, channel, size)


cdef void amqp_piece_end(u8* p) noexcept nogil:
    p[0] = FRAME_END


cdef int amqp_give_back(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil:
    """basic.return with its content. 0, or -1 out of memory. The body of a large message that c has
    assembled is gone then: this is the last that is done for a publish."""
    cdef link_t* l = c.link
    cdef u32 text_len = <u32>strlen(text), chunk = l.frame_max - FRAME_OVERHEAD, n, bcc_len
    cdef bint is_sent_later = m.body_len > LARGE_RECORD and m.body == c.body
    cdef u64 left = m.body_len if not is_sent_later else 0
    cdef u64 frames = (left + chunk - 1) / chunk
    cdef const u8* body = m.body
    cdef rest_t* rest = NULL
    cdef u8* p = link_room(l, 48 + text_len + m.names_len + m.props_len
                           + frames * FRAME_OVERHEAD + left)
    if p != NULL and is_sent_later:
        rest = rest_of_content(c)
    if p == NULL or (is_sent_later and rest == NULL):
        return -1
    p = frame_head(p, FRAME_METHOD, c.id, 7 + text_len + m.names_len)
    put_be32(p, BASIC_RETURN)
    put_be16(p + 4, code)
    p[6] = <u8>text_len
    memcpy(p + 7, text, text_len)
    memcpy(p + 7 + text_len, m.names, m.names_len)
    p += 7 + text_len + m.names_len
    p[0] = FRAME_END
    p += 1
    n = m.props_len
    memcpy(p + 19, m.props, n)
    if m.bcc_at:
        bcc_len = <u32>entry_size(m.props + m.bcc_at, m.props_len - m.bcc_at)
        n = props_cut(p + 19, n, m.headers_at, m.bcc_at, bcc_len)
    p = frame_head(p, FRAME_HEADER, c.id, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, m.body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    while left:
        n = chunk if left > chunk else <u32>left
        p = frame_head(p, FRAME_BODY, c.id, n)
        memcpy(p, body, n)
        p[n] = FRAME_END
        p += n + 1
        body += n
        left -= n
    link_wrote(l, p)
    if rest != NULL:
        link_add_rest(l, rest)
    return 0
