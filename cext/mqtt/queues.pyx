# Queues: a client of MQTT takes messages from a queue or a stream that consumers of AMQP share.
#
# It is a consumer of that queue like others; this is how its link gets what the queue delivers
# (protocol_t). With QoS 0 nothing is acknowledged; else a message leaves the queue by PUBACK or
# PUBREC, and goes back to it, for whoever is next, when the connection ends.
# Called by queue/deliver.pyx, stream/stream.pyx and protocol.pyx. Source: docs/mqtt.md.


cdef inline u8* consumer_taken(consumer_t* k) noexcept nogil:
    """What is in the room behind a consumer's tag: its QoS, then its identifier."""
    return k.tag + 1 + k.tag[0]


cdef bint mqtt_deliver(consumer_t* k, rec_t* rec, u64 tag) noexcept nogil:
    """A record as a PUBLISH. False when the link takes no more for now; or ever, of one that is too
    large for its client, which is told then."""
    cdef link_t* l = k.chan.link
    cdef mqtt_t* s = l.mqtt
    cdef publish_t m
    cdef packet_t* p = NULL
    cdef const u8* taken = consumer_taken(k)
    cdef u8 ids[8]
    cdef u64 start = link_output_end(l)
    cdef int rc
    if foreign_read(s, k.queue, rec, &m, False):
        return False
    m.qos = 0 if k.is_no_ack else taken[0]
    if be32(taken + 1):
        ids[0] = PROPERTY_SUBSCRIPTION_ID
        m.ids = ids
        m.ids_len = <u32>(varint_put(ids + 1, be32(taken + 1)) - ids)
    if m.qos:
        if not packets_have_room(&s.session.sent) or (m.qos == 2 and not acks_have_room(s)):
            return False
        m.id = session_next_id(s.session)
        if m.id == 0:
            return False
        p = packets_add(&s.session.sent, m.id)
    rc = publish_write(k, rec, &m)
    if rc != WRITTEN:
        if p != NULL:
            packets_remove(&s.session.sent, p)
        if rc == WRITE_TOO_LARGE:
            s.session.n_dropped += 1
            k.chan.is_oversized = l.is_oversized = True
        return False
    if p != NULL:
        p.tag = tag
        p.state = PACKET_SENT
        p.qos = m.qos
        if k.reader == NULL:
            rec.seq = m.id
        if m.qos == 2 and session_is_kept(s):
            sent_hold(s, k.queue, rec, m.id, 0, start)
    return True


cdef void sent_elsewhere(mqtt_t* s, packet_t* p) noexcept nogil:
    """The connection ends, and the message of p goes back to a queue that others have, too. Its id
    is free; but of QoS 2 its client may have it, and is asked to let go of it first."""
    if p.qos != 2:
        packets_remove(&s.session.sent, p)
        return
    p.state = PACKET_RELEASED
    p.tag = 0
    session_note(s, SESSION_REC, p.id, 0, 0)


cdef void shared_forget(mqtt_t* s) noexcept nogil:
    """The connection ends, and all that goes back to the session has been noted: what is left goes
    back to other queues."""
    cdef packets_t* sent = &s.session.sent
    cdef u32 i = 0
    while i < sent.cap:
        if sent.slots[i].id and sent.slots[i].state == PACKET_SENT and sent.slots[i].tag:
            sent_elsewhere(s, &sent.slots[i])       # another one may be in its slot now
        else:
            i += 1
