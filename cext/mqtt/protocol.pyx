# Protocol: MQTT as the rest of the broker calls it, and the life of what a link of it has.


cdef void mqtt_heartbeat(link_t* l) noexcept nogil:
    """A server of MQTT does not ping."""


cdef void mqtt_piece_begin(u8* p, u16 channel, u32 size) noexcept nogil:
    """Nothing stands before a piece of a body."""


cdef void mqtt_piece_end(u8* p) noexcept nogil:
    """Nor behind it."""


cdef void mqtt_protocol(protocol_t* p) noexcept nogil:
    """Fill the table."""
    p.walk = mqtt_walk
    p.frame_size = mqtt_frame_size
    p.deliver = mqtt_deliver
    p.confirm = mqtt_confirm
    p.refuse = mqtt_refuse
    p.give_back = mqtt_give_back
    p.heartbeat = mqtt_heartbeat
    p.piece_begin = mqtt_piece_begin
    p.piece_end = mqtt_piece_end


# ---- life ----------------------------------------------------------------------------------------

cdef void mqtt_note_returned(mqtt_t* s, unacked_t* u) noexcept nogil:
    """A delivery goes back: its session keeps the id for it. One of a shared subscription goes to
    another member, which gives it its own, or moves to the session."""
    cdef packet_t* p
    if u.queue == NULL:
        return
    p = packets_find(&s.session.sent, <u16>u.seq)
    if p == NULL or p.tag != u.tag:
        return
    if u.queue != s.queue and shared_keep(s, u, p):
        return
    if u.queue != s.queue or u.queue.is_deleted:
        packets_remove(&s.session.sent, p)
        return
    p.tag = 0
    returned_add(s.session, u.seg, u.pos, p.id)


cdef void mqtt_return(mqtt_t* s) noexcept nogil:
    """Everything unacked goes back to its queue: note which ids it had."""
    cdef chan_t* c = s.chan
    cdef u64 tag = c.first_tag
    cdef u32 i
    if returned_reserve(s.session, c.n_unacked):
        return
    if c.n_unacked and s.queue.may_expire:
        queue_level(s.queue, 0).tail_due_ms = NEVER     # they stay, however due those behind are
    for i in range(c.old_at, c.n_old):
        mqtt_note_returned(s, &c.old[i])
    while tag < c.next_tag:
        mqtt_note_returned(s, &c.ring[tag & (c.ring_cap - 1)])
        tag += 1
    shared_forget(s)


cdef void mqtt_free(mqtt_t* s) noexcept nogil:
    """Its channel is still there, and its consumers are gone."""
    cdef u32 i
    for i in range(s.alias_maximum_in if s.aliases != NULL else 0):
        free(s.aliases[i].topic)
    free(s.aliases)
    for i in range(s.n_out_topics):
        free(s.out_topics[i])
    free(s.out_topics)
    mqtt_drop_folds(s)
    free(s.acks)
    free(s.names)
    free(s.folds)
    free(s.ids)
    free(s.scratch)
    free(s.composed)
    bridge_free(s)
    free(s)


cdef void mqtt_leave(link_t* l) noexcept nogil:
    """The connection ends: what its session has to know is noted. Its channel goes next."""
    cdef mqtt_t* s = l.mqtt
    if s == NULL:
        return
    if s.large_bytes:
        mqtt_large_is_over(l, s)
    while s.chan.consumers != NULL:
        channel_remove_consumer(s.chan.consumers)
    mqtt_return(s)
    if s.session.link == l:
        s.session.link = NULL
    l.mqtt = NULL
    mqtt_free(s)
