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
        sent_elsewhere(s, p)
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
    if c.n_unacked and s.queue.may_expire and not s.queue.store.is_vacant:
        s.queue.store.tail_due_ms = NEVER       # they stay, however due those behind are
    for i in range(c.old_at, c.n_old):
        mqtt_note_returned(s, &c.old[i])
    while tag < c.next_tag:
        mqtt_note_returned(s, &c.ring[tag & (c.ring_cap - 1)])
        tag += 1
    shared_forget(s)


cdef void mqtt_leave_unsafe(mqtt_t* s) noexcept nogil:
    """Nobody will be told whether the last messages of QoS 2 that its client has sent are safe:
    have the log forget their ids if they are not."""
    cdef chan_t* c = s.chan
    cdef u64 seq = c.confirmed_seq + 1, until = c.link.loop.n_syncs
    cdef u32 ack
    cdef packet_t* p
    cdef bint has_any = False
    if not session_is_kept(s) or s.session.received.n == 0:
        return
    while seq <= c.publish_seq:
        ack = s.acks[seq & (s.cap_acks - 1)]
        if <u8>(ack >> 8) == PACKET_PUBREC and <u8>ack < 0x80:
            p = packets_find(&s.session.received, <u16>(ack >> 16))
            if p != NULL:
                p.tag = until if c.is_in_batch and seq <= c.batch_seq else until + 1
                has_any = True
        seq += 1
    if has_any:
        s.log.leave(s.log, s.queue, until + 1)


cdef void mqtt_free_work(mqtt_t* s) noexcept nogil:
    """Free all that one who is asleep does not have, but its channel, which is still there. Its
    consumers are gone."""
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


cdef bint mqtt_is_quiet(const link_t* l, const mqtt_t* s) noexcept nogil:
    """Whether nothing is under way of its client, and nothing has to be remembered of what was."""
    cdef const chan_t* c = s.chan
    cdef const consumer_t* k = s.consumer
    cdef const queue_t* q = s.queue
    if l.state != LINK_OPEN or l.stops or l.wire.n_left or l.rests != NULL or l.wire.is_blocked:
        return False
    if c.consumers != k or k.chan_next != NULL or k.refs != 1 or not k.is_able or q.able != k:
        return False                # it is served by other queues, too, or waits for something
    if c.n_unacked or c.global_unacked or c.publish_seq != c.confirmed_seq or c.job != NULL:
        return False
    if c.is_in_confirms or c.is_in_batch or c.is_oversized or s.phase != MQTT_BEGINS:
        return False
    if s.aliases != NULL or s.n_out_topics or s.n_unanswered or s.n_kept or s.large_bytes:
        return False
    if s.is_denied or s.is_failed or s.session.sent.n or s.session.n_returned:
        return False
    return (q.ready == 0 and q.n_orphans == 0 and q.deliver == mqtt_queue_deliver
            and q.n_consumers == 1 and not q.is_deleted and not q.is_closed)


cdef void mqtt_look(link_t* l) noexcept nogil:
    """Once in a while: a client of which nothing has been heard for some time, and which got
    nothing, falls asleep. Pings do not wake it."""
    cdef mqtt_t* s = l.mqtt
    cdef chan_t* c
    cdef u32 n_moved
    if s == NULL or s.chan == NULL:
        return
    n_moved = <u32>(s.n_published + s.queue.n_delivered + s.queue.n_delivered_no_ack)
    if n_moved != s.n_moved or not mqtt_is_quiet(l, s):
        s.n_moved = n_moved
        s.n_quiet = 0
        return
    s.n_quiet += 1
    if s.n_quiet < QUIET_LOOKS:
        return
    c = s.chan
    s.queue.refs += 1
    channel_remove_consumer(s.consumer)
    s.queue.n_consumers += 1        # for the others it is there
    s.queue.is_asleep = True
    mqtt_free_work(s)
    link_remove_channel(l, c)
    channel_free(c)
    free(l.chans)
    l.chans = NULL
    l.cap_chans = 0
    l.mqtt = mqtt_fall_asleep(s)


cdef void mqtt_leave(link_t* l) noexcept nogil:
    """The connection ends: what its session has to know is noted. Its channel goes next."""
    cdef mqtt_t* s = l.mqtt
    if s == NULL:
        return
    link_drop_held(l)
    if s.large_bytes:
        mqtt_large_is_over(l, s)
    if s.chan != NULL:
        while s.chan.consumers != NULL:
            channel_remove_consumer(s.chan.consumers)
        mqtt_leave_unsafe(s)
        mqtt_return(s)
        mqtt_free_work(s)
    else:
        s.queue.is_asleep = False
        s.queue.n_consumers -= 1
    if s.session.link == l:
        s.session.link = NULL
    if s.chan == NULL:
        queue_unref(s.queue)            # with it the session may go
    l.mqtt = NULL
    free(s)
