# Shared: what a member of a shared subscription has begun to receive when its connection ends.
#
# With QoS 1 it goes to another member. With QoS 2 it is this member's: if the message went on, two
# clients could have it. So it moves to the queue of the session, with its packet id, and is sent
# again when the client comes back, or is gone with the session. Like all that moves it is deleted
# here once it is safe there. Called by protocol.pyx.
# Source: MQTT 5.0 section 4.8.2, [MQTT-4.8.2-4] and [MQTT-4.8.2-5].

cdef enum:
    SHARED_KEPT = 1024          # messages of one connection: others have to wait for it


cdef bint shared_read(mqtt_t* s, const unacked_t* u, rec_t* rec, publish_t* m) noexcept nogil:
    """Read an unacknowledged message. False when it is not there, or so large that it would hold
    others up."""
    cdef queue_t* q = u.queue
    cdef store_t* st = queue_level(q, u.level)
    cdef seg_t* seg = store_segment(st, u.seg)
    if seg == NULL or u.size > LARGE_RECORD:
        return False
    if store_read(st, &q.loop.pool, store_window(st), seg, u.pos, u.size, rec) != 1:
        return False
    if record_has_far_body(rec):
        return False
    rec.seg = u.seg
    rec.pos = u.pos
    rec.level = u.level
    rec.redelivered = True
    if names_are_mqtt(rec.names):
        rec_publish(rec, q.loop.now_ms, m)      # what was sent does not expire
        return True
    return foreign_read(s, q, rec, m, True) == FOREIGN_READ


cdef bint shared_move(mqtt_t* s, const unacked_t* u, packet_t* p) noexcept nogil:
    """Have the session keep a message that is in its own place no more. Whether it has."""
    cdef queue_t* q = u.queue
    cdef loop_t* loop = q.loop
    cdef store_t* to = &s.queue.store
    cdef rec_t rec
    cdef publish_t m
    cdef spot_t at
    cdef u32 before = to.wseg.id, pos = to.wseg.size
    cdef bint is_taken
    if s.queue.is_deleted or queue_cannot_take(s.queue) or not shared_read(s, u, &rec, &m):
        return False
    at = spot_of(&rec, MOVE_ORDERED)
    at.size = u.size
    loop_begin_move(loop, q)
    if loop_expect_takers(loop, 1):
        return False
    if to.is_durable:
        loop_note_taker(loop, s.queue)
    loop.is_moving = True       # a delivery could move what is read here
    is_taken = mqtt_give_one(s.queue, &m, 2, consumer_subscription_id(u.consumer))
    loop.is_moving = False
    if not is_taken:
        return False
    if to.wseg.id != before or pos < SEGMENT_HEADER:
        pos = SEGMENT_HEADER    # it has begun a segment
    p.tag = 0
    returned_add(s.session, to.wseg.id, pos, p.id)
    session_note(s, SESSION_SENT, p.id, sent_where(to.wseg.id, p.qos), pos)
    queue_delete_moved(q, &at)
    return True


cdef bint shared_keep(mqtt_t* s, unacked_t* u, packet_t* p) noexcept nogil:
    """Keep what a member was being sent with QoS 2 for it. Whether it is settled by that; else it
    goes back. There is room to note its id."""
    cdef chan_t* c = s.chan
    cdef queue_t* q = u.queue
    cdef consumer_t* k = u.consumer
    if p.qos != 2 or k == NULL or q.deliver != mqtt_queue_deliver or q.is_deleted or q.is_closed:
        return False
    if s.n_kept == SHARED_KEPT or not shared_move(s, u, p):
        return False
    s.n_kept += 1
    q.unacked -= 1
    q.unacked_bytes -= u.size
    queue_touch(q)
    u.queue = NULL
    c.n_unacked -= 1
    c.global_unacked -= 1
    k.unacked -= 1
    consumer_unref(k)
    queue_unref(q)
    return True
