# Deliver: gives the messages in the queue of a session, or of a shared subscription, to clients.
#
# A queue of MQTT has this as its `deliver`. What goes out with QoS 0 is settled at once; the others
# get a packet id, and are settled by PUBACK or PUBREC. What had gone back keeps its id and says so.
# Source: docs/mqtt.md; the standard, sections 4.3 and 4.9.

cdef enum:
    SHARED_TAG = 1              # first byte of the tag of a member of a shared subscription


cdef inline u8 consumer_granted(const consumer_t* k) noexcept nogil:
    """The highest QoS that k gets: of a session's queue any, for that was decided before."""
    return k.tag[2] if k.tag[0] == 6 and k.tag[1] == SHARED_TAG else 2


cdef inline u32 consumer_subscription_id(const consumer_t* k) noexcept nogil:
    return be32(k.tag + 3) if k.tag[0] == 6 and k.tag[1] == SHARED_TAG else 0


cdef bint session_note(mqtt_t* s, u8 change, u16 id, u32 seg, u32 pos) noexcept nogil:
    """Have a session that outlives its connection keep a change of its ids. Whether it will."""
    return (s.log == NULL or not s.is_persistent
            or s.log.note(s.log, s.queue, change, id, seg, pos) == 0)


cdef inline u32 sent_where(u32 seg, u8 qos) noexcept nogil:
    """A segment as the log has it of a message that is sent."""
    return seg | SENT_TWICE if qos == 2 else seg


cdef void returned_gone(session_t* s, packet_t* p) noexcept nogil:
    """A message that had gone back is not in its queue any more. The id of one of QoS 2 is not free
    for that: its client may have it, and have said so, and would take the next message with that id
    for the same. It is asked to let go of it, now or when it comes."""
    if p.qos != 2:
        packets_remove(&s.sent, p)
        return
    p.state = PACKET_RELEASED
    if s.link != NULL and s.link.mqtt != NULL:
        s.link.mqtt.chan.global_unacked += 1
        queue_want_acks(s.link.mqtt.queue, s.link.mqtt.queue.store)
        release_note(s.link.mqtt, p.id)


cdef void session_forget_returned(session_t* s) noexcept nogil:
    """The queue is empty: what had gone back was dropped there, or its PUBREC was not noted."""
    cdef returned_t* returned = s.returned
    cdef u32 i, n = s.cap_returned
    cdef packet_t* p
    s.returned = NULL
    s.cap_returned = s.n_returned = 0
    for i in range(n):
        if returned[i].id:
            p = packets_find(&s.sent, returned[i].id)
            if p != NULL and p.tag == 0 and p.state == PACKET_SENT:
                returned_gone(s, p)
    free(returned)


cdef bint deliver_id(mqtt_t* s, queue_t* q, const rec_t* rec, publish_t* m) noexcept nogil:
    """Give m its packet id. False when all are in use."""
    cdef returned_t* r
    if s.session.n_returned and q == s.queue:       # after a restart nothing is requeued
        r = returned_find(s.session, rec.seg, rec.pos)
        if r != NULL:
            m.id = r.id
            m.is_dup = True
            return True
    m.id = session_next_id(s.session)
    return m.id != 0


cdef void deliver_note(consumer_t* k, mqtt_t* s, queue_t* q, rec_t* rec,
                       const publish_t* m) noexcept nogil:
    """m is written and waits to be acknowledged; there is room to note it."""
    cdef packet_t* p
    cdef returned_t* r
    if m.is_dup:
        r = returned_find(s.session, rec.seg, rec.pos)
        if r != NULL:
            returned_remove(s.session, r)
        p = packets_find(&s.session.sent, m.id)
        if p == NULL:
            p = packets_add(&s.session.sent, m.id)
    else:
        p = packets_add(&s.session.sent, m.id)
        if q == s.queue and m.qos == 1:
            session_note(s, SESSION_SENT, m.id, rec.seg, rec.pos)
    p.tag = k.chan.next_tag
    p.state = PACKET_SENT
    p.qos = m.qos
    rec.seq = m.id
    channel_push(k.chan, q, k, rec)


cdef void deliver_drop(consumer_t* k, queue_t* q, const rec_t* rec) noexcept nogil:
    """Its client never gets it: it is too large for it, or its time is over."""
    cdef mqtt_t* s = k.chan.link.mqtt
    cdef returned_t* r = NULL
    cdef packet_t* p
    if q == s.queue and s.session.n_returned:
        r = returned_find(s.session, rec.seg, rec.pos)
    if r != NULL:
        p = packets_find(&s.session.sent, r.id)
        if p != NULL:
            if p.qos != 2:
                session_note(s, SESSION_DONE, p.id, 0, 0)
            returned_gone(s.session, p)
        returned_remove(s.session, r)
    s.session.n_dropped += 1
    queue_take(q, rec, True)


# hot
cdef bint deliver_one(consumer_t* k, queue_t* q, rec_t* rec) noexcept nogil:
    """Give the record that is next to k. False when nothing more can be delivered for now."""
    cdef mqtt_t* s = k.chan.link.mqtt
    cdef u8 ids[8]
    cdef publish_t m
    cdef u8 granted = consumer_granted(k)
    cdef bint is_held
    cdef u64 start = 0
    cdef int rc
    if not names_are_mqtt(rec.names):
        rc = foreign_read(s, q, rec, &m, True)
        if rc == FOREIGN_LATER:
            consumer_put_off(k)
            return True
        if rc:
            deliver_drop(k, q, rec)
            return True
    elif (not rec_publish(rec, q.loop.now_ms, &m)
            and not queue_has_sent(q, rec.seg, rec.pos)):
        deliver_drop(k, q, rec)
        return True
    m.qos = m.qos if m.qos < granted else granted
    if k.tag[0] and consumer_subscription_id(k):
        ids[0] = PROPERTY_SUBSCRIPTION_ID
        m.ids = ids
        m.ids_len = <u32>(varint_put(ids + 1, consumer_subscription_id(k)) - ids)
    if m.qos and not deliver_id(s, q, rec, &m):
        consumer_leave_ring(k)
        return True
    if m.qos and not (channel_has_room(k.chan, False) and packets_have_room(&s.session.sent)):
        consumer_put_off(k)
        return True
    is_held = m.qos == 2 and session_is_kept(s)
    if is_held:
        start = link_output_end(k.chan.link)
        if not acks_have_room(s):
            consumer_put_off(k)
            return True
    rc = publish_write(k, rec, &m)
    if rc == WRITE_TOO_LARGE:
        deliver_drop(k, q, rec)
        return True
    if rc == WRITE_LATER:
        consumer_put_off(k)
        return True
    if is_held:
        sent_hold(s, q, rec, m.id, consumer_subscription_id(k), start)
    queue_take(q, rec, m.qos == 0)
    if rec.redelivered:
        k.chan.tally.redeliver += 1
    if m.qos == 0:
        q.n_delivered_no_ack += 1
        k.chan.tally.deliver_no_ack += 1
    else:
        q.n_delivered += 1
        k.chan.tally.deliver += 1
        k.unacked += 1
        k.chan.global_unacked += 1
        deliver_note(k, s, q, rec, &m)
    if q.able == k:
        q.able = k.next
    return True


cdef enum:
    AGAIN_BYTES = 512           # for a message that has come back, out of a heap of 65 535


# hot
cdef bint mqtt_queue_deliver(queue_t* q) noexcept nogil:
    """queue_deliver of a queue of MQTT. Whether the budget ended before the work. Cost: 30 ns per
    message."""
    cdef i64 left = DELIVER_BUDGET
    cdef bint is_more = False
    cdef rec_t rec
    cdef consumer_t* k
    if q.is_paused or q.n_orphans:
        return False
    if q.is_asleep and q.ready:
        queue_wake(q)
    while q.ready:
        k = queue_taker(q)
        if k == NULL:
            break
        if left <= 0:
            is_more = True
            break
        if queue_next(q, &rec) != 1:
            break
        left -= rec.size + 64
        if rec.redelivered:
            left -= AGAIN_BYTES
        if not deliver_one(k, q, &rec):
            break
    if q.ready == 0 and q.session != NULL and q.session.n_returned and not q.is_closed:
        session_forget_returned(q.session)
    q.loop.work += <u32>((DELIVER_BUDGET - left) >> 5)
    return is_more
