# MQTT restore: what a start does with packet ids that sessions had in use when the broker ended.
#
# Called by lavinmq/mqtt/sessions.py.


def mqtt_restore(Queue queue not None, list received not None, list sent not None,
                 list released not None) -> list:
    """Have a session go on with packet ids that it had before a restart.

    Args: `received`, ids of the client's messages of QoS 2 whose PUBREL is awaited; `sent`, (id,
    segment, position) of messages that were in flight, of QoS 2 with SENT_TWICE in the segment;
    `released`, ids whose PUBCOMP is awaited.

    Returns: ids of messages of QoS 2 that are not in the queue's files, or were another queue's:
    they are released, which the log has to know before another message comes to their place. Of a
    queue that cannot be read nobody knows: an operator may mend it."""
    cdef u32 seg
    cdef u8 qos
    cdef list gone = []
    cdef session_t* s = queue_session(queue.q)
    if s == NULL or returned_reserve(s, <u32>len(sent)):
        raise MemoryError()
    queue.q.deliver = mqtt_queue_deliver
    for id in received:
        restore_packet(&s.received, id, PACKET_RECEIVED)
    for id in released:
        restore_packet(&s.sent, id, PACKET_RELEASED)
    for id, seg, pos in sent:
        qos = 2 if seg & SENT_TWICE else 1
        if qos == 2 and not queue.q.is_closed and not store_reaches(
                queue.q.store, seg & ~SENT_TWICE, pos):
            restore_packet(&s.sent, id, PACKET_RELEASED)
            gone.append(id)
        elif (restore_packet(&s.sent, id, PACKET_SENT, qos)
                and returned_find(s, seg & ~SENT_TWICE, pos) == NULL):
            returned_add(s, seg & ~SENT_TWICE, pos, id)
    return gone


cdef bint store_reaches(const store_t* st, u32 seg, u32 pos) noexcept nogil:
    """Whether a place is in front of the end, where no message comes to any more."""
    return seg and st.n_segs and (seg < st.wseg.id or (seg == st.wseg.id and pos < st.wseg.size))


cdef bint restore_packet(packets_t* t, u16 id, u8 state, u8 qos=2) except -1:
    """Whether the id is valid, and was not there."""
    cdef packet_t* p
    if id == 0 or packets_find(t, id) != NULL:
        return False
    if not packets_have_room(t):
        raise MemoryError()
    p = packets_add(t, id)
    p.state = state
    p.qos = qos
    return True


def mqtt_restore_taken(Queue queue not None, Exchange exchange not None, SessionSink log not None,
                       list taken not None, dict sources not None) -> list:
    """Have a session go on with messages of shared subscriptions that its client was being sent.

    Args: `exchange`, of FILTERS; `log`, that of the session; `taken`, what SessionLog.taken says;
    `sources`, queues of shared subscriptions by SessionLog.key.

    Returns: ids of messages that are nowhere, which are released, as by mqtt_restore."""
    cdef mqtt_t s
    cdef origin_t origin
    cdef u32 seg, pos
    cdef Queue source
    cdef list gone = []
    cdef dict moved = moved_last(queue.q)
    restore_begin(&s, exchange, log)
    s.queue = queue.q
    s.session = queue_session(queue.q)
    if s.session == NULL or returned_reserve(s.session, <u32>len(taken)):
        raise MemoryError()
    queue.q.deliver = mqtt_queue_deliver
    loop_clock(queue.q.loop)
    for id, seg, pos, origin.key, origin.mark, origin.seg, origin.pos, origin.subscription in taken:
        if not packets_have_room(&s.session.sent):
            raise MemoryError()
        seg &= ~<u32>SENT_TWICE
        source = sources.get(origin.key)
        if source is not None:
            source.q.deliver = mqtt_queue_deliver
        if queue.q.is_closed:           # a later start may read it
            if (restore_packet(&s.session.sent, id, PACKET_SENT) and pos
                    and returned_find(s.session, seg, pos) == NULL):
                returned_add(s.session, seg, pos, id)
            if source is not None:
                shared_hold_back(&s, source.q, &origin)
            continue
        if not moved_is_at(queue.q, seg, pos, &origin):
            seg, pos = moved.get((origin.key, origin.mark, origin.seg, origin.pos), (0, 0))
        if pos == 0 and source is not None and source.q.is_closed:
            restore_packet(&s.session.sent, id, PACKET_SENT)    # a later start may read it
        elif packets_find(&s.session.sent, id) == NULL and not shared_restore(
                &s, source.q if source is not None else NULL, id, seg, pos, &origin):
            restore_packet(&s.session.sent, id, PACKET_RELEASED)
            gone.append(id)
    bridge_free(&s)
    if queue.loop.t.over != NULL:
        loop_enforce(&queue.loop.t)
    queue.loop.kick()
    return gone


cdef void restore_begin(mqtt_t* s, Exchange exchange, SessionSink log):
    """A client that is not there, by which messages of shared subscriptions are read."""
    memset(s, 0, sizeof(mqtt_t))
    s.version = 5
    s.is_persistent = True
    s.exchange = &exchange.t
    s.log = log.t


def mqtt_drop_taken(Exchange exchange not None, SessionSink log not None, list taken not None,
                    dict sources not None) -> bool:
    """Have messages of shared subscriptions end with a session that has, whose client was being
    sent them. Args: those of mqtt_restore_taken.

    Returns: whether any was there: their files, which a sync has to cover yet, say that it is
    deleted."""
    cdef mqtt_t s
    cdef origin_t origin
    cdef Queue source
    cdef bint has_any = False
    restore_begin(&s, exchange, log)
    for _, _, _, origin.key, origin.mark, origin.seg, origin.pos, origin.subscription in taken:
        source = sources.get(origin.key)
        if source is not None:
            source.q.deliver = mqtt_queue_deliver
            has_any = shared_drop(&s, source.q, &origin) or has_any
    bridge_free(&s)
    return has_any


cdef dict moved_last(queue_t* q):
    """Places in the queue of a session of messages that were moved to it, by their origins: those
    of its last two segments, for the log has told of earlier ones."""
    cdef store_t* st = q.store
    cdef seg_t* seg
    cdef rec_t rec
    cdef origin_t origin
    cdef u32 i, pos, n
    cdef dict found = {}
    for i in range(st.n_segs - 2 if st.n_segs > 2 else 0, st.n_segs):
        seg = st.segs[i]
        pos, n = SEGMENT_HEADER, 0
        while store_walk(st, &q.loop.pool, seg, &pos, n, &rec) == 1:
            if rec_origin(&rec, &origin):
                found[origin.key, origin.mark, origin.seg, origin.pos] = seg.id, pos
            pos += rec.size
            n += 1
    return found
