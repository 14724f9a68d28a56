# Shared: what a member of a shared subscription has begun to receive, when its connection ends, and
# at a start behind a kill.
#
# With QoS 1 it goes to another member. With QoS 2 it is this member's: if the message went on, two
# clients could have it. So it moves to the queue of the session, with its packet id, and is sent
# again when the client comes back, or is gone with the session. Like all that moves it is deleted
# here once it is safe there. In the session it says where it was, by which a start knows what was
# moved already (session_taken.pyx). Called by protocol.pyx and the door.
# Source: MQTT 5.0 section 4.8.2, [MQTT-4.8.2-4] and [MQTT-4.8.2-5].

cdef enum:
    SHARED_KEPT = 1024          # messages of one connection: others have to wait for it


cdef inline bint shared_moves(const queue_t* q, u64 size) noexcept nogil:
    """Whether a message of q, which others have, too, moves to the session that is sent it."""
    return (q.deliver == mqtt_queue_deliver and q.is_durable and q.levels == NULL
            and size <= LARGE_RECORD)


cdef bint shared_read(mqtt_t* s, queue_t* q, u32 id, u32 pos, rec_t* rec,
                      publish_t* m) noexcept nogil:
    """Read a message that was sent. False when it is not there."""
    cdef store_t* st = q.store
    cdef seg_t* seg = store_segment(st, id)
    if seg == NULL or seg.id != id or pos >= seg.size:
        return False
    if store_read(st, &q.loop.pool, store_window(st), seg, pos, 4096, rec) != 1:
        return False
    if record_has_far_body(rec):
        return False
    rec.level = 0
    rec.redelivered = True
    if names_are_mqtt(rec.names):
        rec_publish(rec, q.loop.now_ms, m)      # what was sent does not expire
        return True
    return foreign_read(s, q, rec, m, True) == FOREIGN_READ


cdef bint shared_give(queue_t* q, const publish_t* m, const origin_t* origin) noexcept nogil:
    """Store a message in the queue of its session. Whether that has taken it. `origin`: where it
    was, NULL: nobody will ask."""
    cdef u8 ids[8]
    cdef u32 n = m.topic_len if m.topic_len < 255 else 255, ids_len = 0
    cdef msg_t into
    cdef u8* names = <u8*>malloc(MQTT_EXCHANGE_LEN + 1 + n + publish_props_size(m, sizeof(ids)))
    cdef u8* p
    cdef int rc
    if names == NULL:
        return False
    p = put_slice(names, MQTT_EXCHANGE, MQTT_EXCHANGE_LEN)
    p[0] = <u8>n
    p = put_slice(p + 1, m.topic, n)
    if origin != NULL and origin.subscription:
        ids[0] = PROPERTY_SUBSCRIPTION_ID
        ids_len = <u32>(varint_put(ids + 1, origin.subscription) - ids)
    publish_put_props(p, m, ids, ids_len, 2, m.is_retained, &into,
                      origin if origin != NULL and origin.key else NULL)
    into.exchange = NULL
    into.names = names
    into.names_len = <u32>(p - names)
    into.body = m.body
    into.body_len = m.body_len
    into.size = RECORD_FIXED - 2 + into.names_len + into.props_len + m.body_len
    rc = queue_append(q, &into)
    free(names)
    return rc == APPENDED


cdef bint shared_move(mqtt_t* s, queue_t* q, const publish_t* m, const origin_t* origin,
                      packet_t* p) noexcept nogil:
    """Have the session keep a message of q with the id of p. Whether it has: then it is to be
    deleted in q, see shared_moved."""
    cdef loop_t* loop = q.loop
    cdef store_t* to
    cdef u32 before, pos
    cdef bint is_taken
    if queue_cannot_take(s.queue):      # one that is closed has no segment
        return False
    to = queue_own_store(s.queue)
    if to == NULL:
        return False
    loop_begin_move(loop, q)
    if loop_expect_takers(loop, 1):
        return False
    before, pos = to.wseg.id, to.wseg.size
    if to.is_durable:
        loop_note_taker(loop, s.queue)
    loop.is_moving = True       # a delivery could move what is read here
    is_taken = shared_give(s.queue, m, origin)
    loop.is_moving = False
    if not is_taken:
        return False
    if to.wseg.id != before or pos < SEGMENT_HEADER:
        pos = SEGMENT_HEADER    # it has begun a segment
    p.tag = 0
    returned_add(s.session, to.wseg.id, pos, p.id)
    session_note(s, SESSION_SENT, p.id, sent_where(to.wseg.id, p.qos), pos)
    return True


cdef void shared_moved(queue_t* q, const spot_t* at) noexcept nogil:
    """Delete in q what was moved, once it is safe, or ends with its session; and have a later sync
    cover that it is deleted, before PUBREL is said, or the log forgets the session, from when on no
    start looks for it."""
    if q.loop.n_takers == 0:
        queue_want_acks(q, q.store)
    queue_delete_moved(q, at)
    if q.moves != NULL and q.moves.is_held:
        q.moves.is_awaited = True


# ---- a connection ends ---------------------------------------------------------------------------

cdef bint shared_keep(mqtt_t* s, unacked_t* u, packet_t* p) noexcept nogil:
    """Keep what a member was being sent with QoS 2 for it. Whether it is settled by that; else it
    goes back. There is room to note its id."""
    cdef chan_t* c = s.chan
    cdef queue_t* q = u.queue
    cdef consumer_t* k = u.consumer
    cdef rec_t rec
    cdef publish_t m
    cdef origin_t origin
    cdef spot_t at
    if p.qos != 2 or k == NULL or not shared_moves(q, u.size) or q.is_deleted or q.is_closed:
        return False
    if s.n_kept == SHARED_KEPT or not shared_read(s, q, u.seg, u.pos, &rec, &m):
        return False
    memset(&origin, 0, sizeof(origin_t))
    if session_is_kept(s):
        s.log.origin(s.log, q, &rec, &origin)
    origin.subscription = consumer_subscription_id(k)
    if s.queue.is_deleted:
        loop_begin_move(q.loop, q)      # it ends with its session, and goes nowhere
        p.tag = 0                       # with which the log forgets the id, and not before
    elif not shared_move(s, q, &m, &origin, p):
        return False
    at = spot_of(&rec, MOVE_ORDERED)
    shared_moved(q, &at)
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


# ---- a start behind a kill -----------------------------------------------------------------------

cdef bint shared_find(mqtt_t* s, queue_t* q, const origin_t* origin, rec_t* rec,
                      publish_t* m) noexcept nogil:
    """Read the message that q has at a place, if it is that one, and ready."""
    cdef seg_t* seg
    cdef origin_t found
    if q.is_deleted or q.is_closed or not shared_moves(q, 0) or q.ready == 0:
        return False
    seg = store_segment(q.store, origin.seg)
    if seg == NULL or not store_is_ahead(q.store, origin.seg, origin.pos) or segment_has_deleted(
            seg, origin.pos) or not shared_read(s, q, origin.seg, origin.pos, rec, m):
        return False
    s.log.origin(s.log, q, rec, &found)
    return is_same_origin(&found, origin)


cdef bint shared_hide(queue_t* q, const rec_t* rec) noexcept nogil:
    """Have nobody get a message of q, which is ready. Whether there was memory: else it stays."""
    if segment_push_deleted(store_segment(q.store, rec.seg), rec.pos):
        return False
    store_forget_due(q.store, rec.seg, rec.pos)
    queue_uncount(q, q.store, rec.size)
    return True


cdef bint shared_take_out(queue_t* q, const rec_t* rec) noexcept nogil:
    """A message of q, which is ready, is moved. Whether there was memory: else it stays."""
    cdef spot_t at = spot_of(rec, MOVE_ORDERED)
    if not shared_hide(q, rec):
        return False
    shared_moved(q, &at)
    queue_touch(q)
    return True


cdef void shared_hold_back(mqtt_t* s, queue_t* q, const origin_t* origin) noexcept nogil:
    """A member was being sent what q has there, and its session cannot be read: another start may
    find out which of them has it, and until then nobody gets it. Its file stays as it is."""
    cdef rec_t rec
    cdef publish_t m
    if shared_find(s, q, origin, &rec, &m):
        shared_hide(q, &rec)


cdef bint shared_drop(mqtt_t* s, queue_t* q, const origin_t* origin) noexcept nogil:
    """A member was being sent what q has there, and its session has ended: so has the message, as
    q's file says when this returns. Whether it was there."""
    cdef rec_t rec
    cdef publish_t m
    if not shared_find(s, q, origin, &rec, &m):
        return False
    loop_begin_move(q.loop, q)          # nobody takes it
    if shared_take_out(q, &rec) and store_flush_acks(q.store):
        queue_failed(q)
    return True


cdef bint moved_is_at(queue_t* q, u32 id, u32 pos, const origin_t* origin) noexcept nogil:
    """Whether a message that was moved stands at that place of its session's queue."""
    cdef store_t* st = q.store
    cdef seg_t* seg = store_segment(st, id)
    cdef rec_t rec
    cdef origin_t found
    if seg == NULL or seg.id != id or pos < SEGMENT_HEADER or pos >= seg.size:
        return False
    return (store_read(st, &q.loop.pool, store_window(st), seg, pos, 4096, &rec) == 1
            and rec_origin(&rec, &found) and is_same_origin(&found, origin))


cdef bint shared_restore(mqtt_t* s, queue_t* q, u16 id, u32 seg, u32 pos,
                         const origin_t* origin) noexcept nogil:
    """A start has found that a member was being sent with an id what was at its origin, in q; NULL:
    that is not there any more. Have its session go on with it: it is at (seg, pos), or moves there
    now. False when nobody has it: then its client has said PUBREC. There is room to note the id."""
    cdef rec_t rec
    cdef publish_t m
    cdef packet_t* p
    cdef bint is_there = q != NULL and shared_find(s, q, origin, &rec, &m)
    if pos == 0 and not is_there:
        return False
    p = packets_add(&s.session.sent, id)
    p.state = PACKET_SENT
    p.qos = 2
    if pos:
        returned_add(s.session, seg, pos, id)
        session_note(s, SESSION_SENT, id, seg | SENT_TWICE, pos)
        if is_there:            # the move was begun
            loop_begin_move(q.loop, q)
            if loop_expect_takers(q.loop, 1) == 0:
                s.queue.store.is_unsynced = True
                loop_note_taker(q.loop, s.queue)
                shared_take_out(q, &rec)
        return True
    if shared_move(s, q, &m, origin, p):
        shared_take_out(q, &rec)
        return True
    packets_remove(&s.session.sent, p)
    return False
