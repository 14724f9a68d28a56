# Give: a PUBLISH to one of the queues that it goes to; and whether one of them refuses it.
#
# QoS 0 goes straight into the output of a client that has nothing else waiting and is not slow. The
# rest is stored in the queue of the session. Called by publish.pyx.
# Source: docs/mqtt.md; the standard, section 3.3.

cdef enum:
    BUSY_BYTES = 65536          # that wait for a client from which on its publishers slow down
    BUSY_NS = 100000000         # unless it has not read for so long
    BUSY_SHARE = 1048576        # bytes for busy clients after which a publisher waits a moment


cdef bint mqtt_compose(mqtt_t* s, u64 n) noexcept nogil:
    """Have a buffer for n bytes of a record. Whether there was memory."""
    cdef u8* grown
    if n <= s.cap_composed:
        return True
    if n >> 31:
        return False
    grown = <u8*>malloc(n + 64)
    if grown == NULL:
        return False
    free(s.composed)
    s.composed = grown
    s.cap_composed = <u32>n + 64
    return True


# hot
cdef bint give_direct(queue_t* q, const publish_t* m, const u8* ids, u32 ids_len,
                      bint is_retained) noexcept nogil:
    """Send m with QoS 0 to a client of q at once. False when it has to wait for others. Cost: 20 ns
    and 0.1 ns per byte."""
    cdef consumer_t* k = q.able
    cdef publish_t out
    cdef int rc
    if k == NULL:
        k = queue_wake(q)
    if q.ready or k == NULL or q.is_paused or q.n_orphans or q.sample != NULL:
        return False
    if not consumer_is_able(k) or k.chan.link.mqtt == NULL or m.body_len > LARGE_RECORD:
        return False
    out = m[0]
    out.qos = 0
    out.is_dup = False
    out.is_retained = is_retained
    out.ids = ids
    out.ids_len = ids_len
    rc = publish_write(k, NULL, &out)
    if rc == WRITE_LATER:
        return False
    if rc == WRITE_TOO_LARGE:
        k.chan.link.mqtt.session.n_dropped += 1
        return True
    q.n_published += 1
    q.n_delivered_no_ack += 1
    k.chan.tally.deliver_no_ack += 1
    q.able = k.next
    return True


cdef inline bint qos0_is_dropped(queue_t* q) noexcept nogil:
    """Whether a message of QoS 0 is too much for q: nobody is there, or too slow."""
    if q.n_consumers and q.ready_bytes < QOS0_BYTES:
        return False
    if q.session != NULL:
        q.session.n_dropped += 1
    return True


cdef bint session_is_busy(const queue_t* q) noexcept nogil:
    """Whether the client of q is reading what waits for it. One that does not read holds nobody
    back."""
    cdef const link_t* l = q.session.link if q.session != NULL else NULL
    return l != NULL and q.loop.now_ns - l.wire.last_sent_ns < BUSY_NS


# hot
cdef inline void msg_plain(msg_t* into, u8 qos) noexcept nogil:
    """Properties that say no more than the QoS."""
    into.props_len = 3          # as below: no compiler knows that these are plain
    msg_note_plain(into, MQTT_PLAIN + 3 * qos, 3)


# hot
cdef inline bint fold_compose(mqtt_t* s, const publish_t* m, const fold_t* f, u32 ids_len, u8 qos,
                              bint is_retained, msg_t* into) noexcept nogil:
    """The record of m for the session of f. Whether there was memory."""
    if publish_is_plain(m, f):
        msg_plain(into, qos)
    elif not mqtt_compose_record(s, m, f, ids_len, qos, is_retained, into):
        return False
    into.exchange = NULL
    into.names = s.names
    into.names_len = MQTT_EXCHANGE_LEN + 1 + s.names[MQTT_EXCHANGE_LEN]
    into.body = m.body
    into.body_len = m.body_len
    into.size = RECORD_FIXED - 2 + into.names_len + into.props_len + m.body_len
    return True


# hot
cdef int fold_give(link_t* l, mqtt_t* s, const publish_t* m, fold_t* f) noexcept nogil:
    """Send or store m for one session. PUBLISHED, or PUBLISH_TURN when the portion is over in the
    midst of it. Cost: 20 ns direct, 30 ns stored."""
    cdef queue_t* q = f.queue
    cdef u8 qos = m.qos if m.qos < f.qos else f.qos
    cdef bint is_retained = m.is_retained and f.keeps_retain
    cdef u32 ids_len = 0
    cdef msg_t into
    if q.is_deleted:
        return PUBLISHED
    if f.is_amqp:
        return bridge_give(l, s, m, f)
    if f.ids_at:
        if not mqtt_compose(s, <u64>s.n_ids * 5):
            s.stored.is_refused = True
            return PUBLISHED
        ids_len = fold_put_ids(s, f, s.composed)
    if qos == 0:
        if give_direct(q, m, s.composed, ids_len, is_retained):
            s.stored.n += 1
            return PUBLISHED
        if qos0_is_dropped(q):
            return PUBLISHED
    if not fold_compose(s, m, f, ids_len, qos, is_retained, &into):
        s.stored.is_refused = True
        return PUBLISHED
    if q.ready_bytes > BUSY_BYTES and session_is_busy(q):
        l.crowd_bytes += <u32>m.body_len + 64
    if into.size > LARGE_RECORD and s.chan.job != NULL:
        return fold_store_large(l, s, q, &into, qos)
    channel_store(s.chan, q, &into, qos != 0 and s.chan.is_confirm, False, &s.stored)
    return PUBLISHED


cdef bint mqtt_compose_record(mqtt_t* s, const publish_t* m, const fold_t* f, u32 ids_len, u8 qos,
                              bint is_retained, msg_t* into) noexcept nogil:
    """Properties of a record that says more than its QoS. Whether there was memory."""
    cdef u64 ids_room = <u64>s.n_ids * 5 if ids_len else 0
    if not mqtt_compose(s, ids_room + publish_props_size(m, ids_len)):
        return False
    if ids_len:
        fold_put_ids(s, f, s.composed)      # the buffer may be another one
    publish_put_props(s.composed + ids_room, m, s.composed, ids_len, qos, is_retained, into)
    return True


cdef int fold_store_large(link_t* l, mqtt_t* s, queue_t* q, msg_t* into, u8 qos) noexcept nogil:
    """Store a large message by way of a file that is written in pieces."""
    cdef chan_t* c = s.chan
    if not publish_write_ahead(c, q, into):
        return PUBLISH_TURN
    l.loop.ahead = &c.job.ahead
    channel_store(c, q, into, qos != 0 and c.is_confirm, False, &s.stored)
    l.loop.ahead = NULL
    publish_drop_files(c.job)
    return PUBLISHED


# ---- refused before any queue has it -------------------------------------------------------------

cdef bint any_fold_is_closed(const mqtt_t* s) noexcept nogil:
    cdef u32 i
    for i in range(s.n_folds):
        if s.folds[i].queue.is_closed and not s.folds[i].queue.is_deleted:
            return True
    return False


cdef bint fold_refuses(mqtt_t* s, const publish_t* m, const fold_t* f) noexcept nogil:
    """Whether the queue of f is full and refuses m, as of now: its clients have their chance once,
    and could make room if they had it again. Where it dies by a policy, it does."""
    cdef queue_t* q = f.queue
    cdef u8 qos = m.qos if m.qos < f.qos else f.qos
    cdef u32 ids_len = 0
    cdef msg_t into
    if q.is_deleted or q.features == NULL or q.features.overflow == DROP_HEAD:
        return False
    if q.stream != NULL or q.releases != NULL or q.history != NULL:
        return False
    if f.is_amqp:
        if s.crossing == NULL or s.crossing.letter.size == 0:
            return False
        into = s.crossing.letter
    else:
        if qos == 0 and (q.ready == 0 or not q.n_consumers or q.ready_bytes >= QOS0_BYTES):
            return False            # it is sent at once, or dropped
        if f.ids_at:
            if not mqtt_compose(s, <u64>s.n_ids * 5):
                return False
            ids_len = fold_put_ids(s, f, s.composed)
        if not fold_compose(s, m, f, ids_len, qos, m.is_retained and f.keeps_retain, &into):
            return False
    if q.dedup != NULL and dedup_seen(q.dedup, &into, q.loop.now_ms):
        return False
    if not queue_stays_full(q, into.size):
        return False
    queue_refuse(q, &into)
    return True


cdef bint any_fold_refuses(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """Whether a queue that m goes to is full and refuses it, which `stored` says then: no other one
    gets m, which is to be retained, too."""
    cdef u32 i
    cdef bint is_refused = False
    if s.n_own < s.n_folds and not letter_compose(s, m) and s.crossing != NULL:
        s.crossing.letter.size = 0
    for i in range(s.n_folds):
        if fold_refuses(s, m, &s.folds[i]):
            is_refused = True
    l.loop.work += s.n_folds
    if is_refused:
        s.stored.is_overflowed = True
        if l.loop.over != NULL:
            loop_enforce(l.loop)
    return is_refused
