# Hold: a PUBLISH of QoS 2 leaves when its packet id is on disk, if the session outlives its client.
#
# Its client holds the id until PUBREL, and takes whatever comes with it for the same message. So
# after a loss of power that message has to come with that id, and no other one. The log of sessions
# is told of both, and what is in the output of the link from there on is held until a sync covers
# it. A number of the channel's confirms stands for that (acks.pyx): it goes with the batch of
# everybody else's confirms. What is written while that batch is on its way is held for the next
# one, so there are two parts at most. Called by deliver.pyx, queues.pyx, acks.pyx and protocol.pyx.
# Decision 0140.


cdef inline bint session_is_kept(const mqtt_t* s) noexcept nogil:
    """Whether what its client may know of ids has to survive a loss of power."""
    return s.log != NULL and s.is_persistent


cdef bint sent_note(mqtt_t* s, queue_t* q, const rec_t* rec, u16 id,
                    u32 subscription) noexcept nogil:
    """Have the log say where the message is that goes out with an id. Whether it will. What came
    from a queue that consumers of AMQP share may go to another client later: its id alone is kept.
    So is that of one of a shared subscription that nobody would move."""
    cdef origin_t origin
    if q == s.queue:
        return session_note(s, SESSION_SENT, id, sent_where(rec.seg, 2), rec.pos)
    if not shared_moves(q, rec.size):
        return session_note(s, SESSION_SENT, id, SENT_TWICE, 0)
    s.log.origin(s.log, q, rec, &origin)
    origin.subscription = subscription
    return s.log.take(s.log, s.queue, id, &origin) == 0


cdef void sent_hold(mqtt_t* s, queue_t* q, const rec_t* rec, u16 id, u32 subscription,
                    u64 start) noexcept nogil:
    """The PUBLISH of a record of q is written, from `start` of all output on. There is room for a
    number."""
    cdef chan_t* c = s.chan
    cdef link_t* l = c.link
    cdef bint is_noted = sent_note(s, q, rec, id, subscription)
    if (l.loop.sync and q.deliver == mqtt_queue_deliver and q.is_durable
            and not q.is_sync_wanted):
        loop_want_sync(l.loop, q)           # no other message comes to that place
    if is_noted and not l.loop.sync:
        return
    if s.held_seq == 0 or (c.is_in_batch and s.held_seq <= c.batch_seq):
        if s.held_seq == 0:
            l.is_held = True
            l.held_at = start
        s.held_at = start
        ack_note(s, PACKET_PUBLISH, 0, 0)
        s.held_seq = c.publish_seq
    c.needs_sync = True
    c.is_refused = c.is_refused or not is_noted


cdef void hold_end(link_t* l, mqtt_t* s, u64 seq) noexcept nogil:
    """What is held by numbers up to seq may be sent. The caller sees to that it is."""
    if s.held_seq > seq:
        l.held_at = s.held_at
    else:
        l.is_held = False
        s.held_seq = 0
    if l.is_full:
        l.is_full = False
        link_wake_consumers(l)
    if l.rests != NULL and not l.wire.has_writer:
        loop_drop_job(l.loop, &l.rests.job)
        loop_add_job(l.loop, &l.rests.job)
    elif l.stops & STOP_CHOKED:
        link_await_room(l, False)


cdef void link_drop_held(link_t* l) noexcept nogil:
    """The session ends: what is held is not sent, for its messages go back to their queues."""
    cdef u64 end = link_output_end(l), n
    if not l.is_held:
        return
    l.is_held = False
    l.mqtt.held_seq = 0
    n = end - l.held_at if end > l.held_at else 0
    if not link_take_back(l, n):
        link_drop_rests(l)
        link_drop_output(l)
        link_await_room(l, True)
