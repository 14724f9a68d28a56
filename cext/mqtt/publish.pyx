# Publish: a PUBLISH of a client, or of the broker itself, to the sessions that it matches.
#
# Each gets it by give.pyx; what is stored is answered when it is on disk (acks.pyx). What takes
# long goes on in a later turn, with the queues that are left held.
# Source: docs/mqtt.md; the standard, section 3.3.

# ---- to all of them ------------------------------------------------------------------------------

cdef bint mqtt_hold_folds(mqtt_t* s, const publish_t* m) noexcept nogil:
    """Have the queues last until all have the message, which takes long. Whether there was
    memory."""
    cdef u32 i
    if m.body_len + 512 > LARGE_RECORD:
        s.chan.job = <publish_job_t*>calloc(1, sizeof(publish_job_t))
        if s.chan.job == NULL:
            return False
    for i in range(s.n_folds):
        s.folds[i].queue.refs += 1
    s.phase = MQTT_STORES
    return True


cdef void mqtt_let_go_folds(mqtt_t* s) noexcept nogil:
    cdef u32 i
    for i in range(s.n_folds):
        queue_unref(s.folds[i].queue)


cdef void mqtt_drop_folds(mqtt_t* s) noexcept nogil:
    """Let go of what a publish holds that never ends."""
    if s.phase == MQTT_STORES:
        mqtt_let_go_folds(s)
        s.topic_len = 0
        if s.chan.job != NULL:
            publish_drop(s.chan)
    s.phase = MQTT_BEGINS


# hot
cdef int mqtt_place(mqtt_t* s, const publish_t* m) noexcept nogil:
    """m is stored: note where, for the log of sessions. PUBLISHED or PUBLISH_NO_MEMORY."""
    cdef u32 i
    s.places = 0
    for i in range(s.n_folds):
        if (s.folds[i].qos or s.folds[i].is_amqp) and s.log.place(
                s.log, s.folds[i].queue, NULL, &s.places):
            return PUBLISH_NO_MEMORY
    if m.is_retained and s.retained != NULL and s.log.place(
            s.log, NULL, s.retained.log, &s.places):
        return PUBLISH_NO_MEMORY
    return PUBLISHED


# hot
cdef int mqtt_store(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """Give m to all folds that do not have it. PUBLISHED, or PUBLISH_TURN when this turn is over:
    the same message again goes on."""
    cdef loop_t* loop = l.loop
    cdef u32 units
    cdef int rc
    if s.phase != MQTT_STORES:
        s.at = 0
        if ((s.n_folds >= LONG_TARGETS or m.body_len + 512 > LARGE_RECORD)
                and s.chan.targets.pause != NULL and not mqtt_hold_folds(s, m)):
            return PUBLISH_NO_MEMORY
    if s.phase != MQTT_STORES:
        while s.at < s.n_folds:
            fold_give(l, s, m, &s.folds[s.at])
            s.at += 1
        if s.n_folds > 1:
            loop.work += s.n_folds * (TARGET_UNITS + <u32>(m.body_len >> UNIT_SHIFT))
        return mqtt_place(s, m) if m.qos == 2 and session_is_kept(s) else PUBLISHED
    units = TARGET_UNITS + <u32>(m.body_len >> UNIT_SHIFT)
    while s.at < s.n_folds:
        rc = fold_give(l, s, m, &s.folds[s.at])
        if rc == PUBLISH_TURN:
            return rc
        s.at += 1
        if loop_spent(loop, units) and s.at < s.n_folds:
            return PUBLISH_TURN
    if s.chan.job != NULL:
        publish_drop(s.chan)
    rc = mqtt_place(s, m) if m.qos == 2 and session_is_kept(s) else PUBLISHED
    mqtt_let_go_folds(s)
    s.phase = MQTT_BEGINS
    return rc


# hot
cdef int mqtt_publish_any(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """Route m and give it to all that it matches; `stored` says what came of it. PUBLISHED,
    PUBLISH_TURN or PUBLISH_NO_MEMORY. Cost: 15 ns and 20 or 30 ns for each session."""
    cdef exchange_t* x = s.exchange
    cdef int rc
    if s.phase != MQTT_STORES:
        if not mqtt_has_route(l, s, m):
            rc = mqtt_route(l, s, m)
            if rc:
                return rc
        x.n_in += 1
        memset(&s.stored, 0, sizeof(stored_t))
        if l.loop.n_closed and m.qos and any_fold_is_closed(s):
            s.stored.is_refused = True
            return PUBLISHED
        # Of QoS 0 nobody is told: whoever is there gets it.
        if m.is_retained and s.retained != NULL:
            if m.qos and any_fold_refuses(l, s, m):
                return PUBLISHED
            if s.retained.put(s.retained, m) and m.qos:
                s.stored.is_overflowed = True
                return PUBLISHED
        if s.n_own < s.n_folds:
            bridge_begin(s, m)
    rc = mqtt_store(l, s, m)
    if rc:
        return rc
    x.n_out += s.stored.n
    if s.n_folds == s.n_histories:
        x.n_unroutable += 1
    if l.loop.over != NULL:
        loop_enforce(l.loop)
    return PUBLISHED


# ---- of a client ---------------------------------------------------------------------------------

cdef int packet_fail(link_t* l, u32 reason, const char* text) noexcept nogil:
    """The packet, or what it asks for, is refused with a reason_code. WALK_BAD_PACKET."""
    l.loop.ev_method = reason
    l.loop.ev_data = <const u8*>text
    l.loop.ev_len = <u32>strlen(text)
    return WALK_BAD_PACKET


cdef int client_alias(mqtt_t* s, publish_t* m, u32 alias) noexcept nogil:
    """Note what an alias stands for, or take its topic. 0, or a reason_code."""
    cdef alias_t* a
    cdef u8* topic
    if s.aliases == NULL:
        s.aliases = <alias_t*>calloc(s.alias_maximum_in, sizeof(alias_t))
        if s.aliases == NULL:
            return REASON_QUOTA
    a = &s.aliases[alias - 1]
    if m.topic_len == 0:
        if a.topic == NULL:
            return REASON_PROTOCOL
        m.topic = a.topic
        m.topic_len = a.len
        return 0
    if a.len == m.topic_len and a.topic != NULL and same_bytes(a.topic, m.topic, a.len):
        return 0
    if not topic_is_valid(m.topic, m.topic_len):
        return REASON_TOPIC
    topic = <u8*>realloc(a.topic, m.topic_len)
    if topic == NULL:
        return REASON_QUOTA
    memcpy(topic, m.topic, m.topic_len)
    a.topic = topic
    a.len = m.topic_len
    return 0


cdef int client_may_publish(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """Whether the client may publish to the topic of m; -1: ask Python, -2 without memory."""
    cdef slice_t name, key
    cdef const answer_t* answer
    cdef u32 n
    if s.is_denied:
        s.is_denied = False
        s.n_denied += 1
        return 0
    if link_answers(l) == NULL:
        return -2
    name.p = <const u8*>b""
    name.n = 0
    key.p = m.topic
    key.n = m.topic_len
    n = answers_question(l.answers, ASK_PUBLISH, name, key, NULL)
    if n == 0:
        return -2
    answer = answers_find(l, n)
    if answer != NULL:
        s.crosses = answer.exchange != NULL
        return 1
    l.loop.ev_data = m.topic
    l.loop.ev_len = m.topic_len
    return -1


cdef int client_answer(link_t* l, mqtt_t* s, const publish_t* m, u32 reason) noexcept nogil:
    """The PUBLISH is over: have it answered. What the walk returns."""
    cdef packet_t* p
    if m.qos == 0:
        return WALK_DONE
    if reason >= 0x80 and s.version != 5 and reason != REASON_NOT_AUTHORIZED:
        return packet_fail(
            l, reason, b"a retained message has 8 MiB at most"
            if m.is_retained and m.body_len > RETAINED_MOST else b"a message cannot be stored")
    if m.qos == 2 and reason < 0x80:        # client_publish has asked for room
        p = packets_add(&s.session.received, m.id)
        p.state = PACKET_RECEIVED
        if not session_note(s, SESSION_RECEIVED, m.id, 0, s.places):
            packets_remove(&s.session.received, p)
            return packet_fail(l, REASON_QUOTA, b"a session cannot be stored")
        if s.log != NULL and s.is_persistent:
            s.chan.needs_sync = True
    ack_note(s, PACKET_PUBACK if m.qos == 1 else PACKET_PUBREC, m.id, <u8>reason)
    publish_count(s)
    return WALK_DONE


# hot
cdef int client_publish(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """A PUBLISH that is well-formed. What the walk returns."""
    cdef chan_t* c = s.chan
    cdef u32 reason = 0
    cdef int rc
    if m.qos:
        if (c.publish_seq - c.confirmed_seq >= 2 * ACKS_MAX     # with PUBRELs that wait, too
                or s.n_unanswered >= s.receive_maximum_in):
            return packet_fail(l, REASON_RECEIVE_MAXIMUM, b"more publishes than may be unanswered")
        if not acks_have_room(s):
            return packet_fail(l, REASON_QUOTA, b"no memory")
        if m.qos == 2 and s.phase == MQTT_BEGINS:
            if packets_find(&s.session.received, m.id) != NULL:
                if session_is_kept(s):
                    c.needs_sync = True             # it may be on its way to the disk
                ack_note(s, PACKET_PUBREC, m.id, 0)
                publish_count(s)
                return WALK_DONE
            if not packets_have_room(&s.session.received):
                return client_answer(l, s, m, REASON_QUOTA)
    if s.phase == MQTT_BEGINS:
        if s.checks_topics and not mqtt_has_route(l, s, m):
            rc = client_may_publish(l, s, m)
            if rc == -1:
                return WALK_TOPIC
            if rc <= 0:
                return client_answer(
                    l, s, m, REASON_NOT_AUTHORIZED if rc == 0 else <u32>REASON_QUOTA)
        s.n_published += 1
        c.tally.publish += 1
    c.is_confirm = m.qos != 0
    rc = mqtt_publish_any(l, s, m)
    if rc == PUBLISH_TURN:
        return WALK_TURN
    if rc:
        return packet_fail(l, REASON_QUOTA, b"no memory")
    if m.qos == 0:
        return WALK_DONE
    if m.is_retained and s.retained != NULL:
        c.needs_sync = True
    if s.stored.is_durable:
        c.needs_sync = True             # a sync may have covered the first queues already
    if s.stored.is_refused:
        reason = REASON_UNSPECIFIED
    elif s.stored.is_overflowed:
        reason = REASON_QUOTA
    elif s.n_folds == s.n_histories:
        reason = REASON_NO_SUBSCRIBERS
    return client_answer(l, s, m, reason)


# hot
cdef int publish_take(link_t* l, mqtt_t* s, u8 flags, const u8* p, u32 n) noexcept nogil:
    """A PUBLISH of n bytes behind its fixed header. What the walk returns. Cost: 10 ns before
    client_publish when the topic is the last one."""
    cdef publish_t m
    cdef u32 at, props_len = 0, alias = 0, reason
    cdef int k
    m.qos = (flags >> 1) & 3
    m.is_dup = (flags & 8) != 0
    m.is_retained = flags & 1
    m.has_expiry = False
    m.props_len = m.ids_len = 0
    m.id = 0
    if m.qos == 3 or (m.is_dup and m.qos == 0):
        return packet_fail(l, REASON_MALFORMED, b"flags of PUBLISH")
    if n < 2:
        return packet_fail(l, REASON_MALFORMED, b"PUBLISH is cut")
    m.topic = p + 2
    m.topic_len = be16(p)
    at = 2 + m.topic_len + (2 if m.qos else 0)
    if at > n:
        return packet_fail(l, REASON_MALFORMED, b"PUBLISH is cut")
    if m.qos:
        m.id = be16(p + at - 2)
        if m.id == 0:
            return packet_fail(l, REASON_PROTOCOL, b"packet identifier 0")
    if s.version == 5:
        k = varint_read(p + at, n - at, &props_len)
        if k <= 0 or <u64>at + k + props_len > n:
            return packet_fail(l, REASON_MALFORMED, b"properties of PUBLISH")
        at += <u32>k
        if props_len:
            reason = publish_properties(s, &m, p + at, props_len, &alias)
            if reason:
                return packet_fail(l, reason, b"properties of PUBLISH")
            at += props_len
            reason = <u32>client_alias(s, &m, alias) if alias else 0
            if reason:
                return packet_fail(l, reason, b"topic alias")
    m.body = p + at
    m.body_len = n - at
    # The last topic counts as the empty one when it is too long to be kept.
    if not (m.topic_len and mqtt_has_route(l, s, &m)) and not topic_is_valid(m.topic, m.topic_len):
        return packet_fail(l, REASON_TOPIC if m.topic_len else <u32>REASON_PROTOCOL, b"topic name")
    if l.loop.is_held and s.phase == MQTT_BEGINS:
        l.loop.ev_channel = 1
        return WALK_HELD
    return client_publish(l, s, &m)


# ---- of the broker -------------------------------------------------------------------------------

cdef bint mqtt_give_one(queue_t* q, const publish_t* m, u8 granted,
                        u32 subscription_id) noexcept nogil:
    """Give a message, which is retained as it says, to one session: of an earlier message that its
    new subscription is to get. Whether it was taken, by its client or its queue."""
    cdef mqtt_t s
    cdef fold_t f
    cdef chan_t* c
    cdef fold_id_t id
    cdef bint is_taken
    memset(&s, 0, sizeof(mqtt_t))
    c = channel_new(&q.loop.nowhere, 1, 0)
    if c == NULL:
        return False
    s.chan = c
    f.queue = q
    f.qos = granted
    f.keeps_retain = True
    f.is_amqp = False
    f.ids_at = 0
    if subscription_id:
        id.id = subscription_id
        id.next = 0
        s.ids = &id
        s.n_ids = 1
        f.ids_at = 1
    if mqtt_keep_names(&s, m):
        fold_give(&q.loop.nowhere, &s, m, &f)
    is_taken = s.stored.n != 0
    free(s.names)
    free(s.composed)
    channel_free(c)
    return is_taken
