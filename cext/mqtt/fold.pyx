# Fold: from the subscriptions that a topic matches to one entry for each session.
#
# A session that matches through several filters gets one copy, with the highest QoS that it was
# granted and all of its identifiers. The folds of the last topic are kept until a binding changes.
# Source: docs/mqtt.md; the standard, section 3.3.4.


cdef bint folds_grow(mqtt_t* s) noexcept nogil:
    cdef u32 cap = s.cap_folds * 2 if s.cap_folds else 4
    cdef void* grown = realloc(s.folds, cap * sizeof(fold_t))
    if grown == NULL:
        return False
    s.folds = <fold_t*>grown
    s.cap_folds = cap
    return True


cdef bint fold_add_id(mqtt_t* s, fold_t* f, u32 id) noexcept nogil:
    """Whether there was memory."""
    cdef void* grown
    cdef u32 cap
    if s.n_ids == s.cap_ids:
        cap = s.cap_ids * 2 if s.cap_ids else 4
        grown = realloc(s.ids, cap * sizeof(fold_id_t))
        if grown == NULL:
            return False
        s.ids = <fold_id_t*>grown
        s.cap_ids = cap
    s.ids[s.n_ids].id = id
    s.ids[s.n_ids].next = f.ids_at
    s.n_ids += 1
    f.ids_at = s.n_ids
    return True


# hot
cdef inline bint fold_add(mqtt_t* s, const subscription_t* sub) noexcept nogil:
    """Whether there was memory. Cost: 5 ns and the touch of the queue."""
    cdef queue_t* q = <queue_t*>sub.queue
    cdef fold_t* f
    if q.dest.is_gone or q.is_deleted or (sub.is_no_local and q == s.queue):
        return True
    if q.fold_at < s.n_folds and s.folds[q.fold_at].queue == q:
        f = &s.folds[q.fold_at]
        if sub.qos > f.qos:
            f.qos = sub.qos
        f.keeps_retain = f.keeps_retain or sub.keeps_retain
    else:
        if s.n_folds == s.cap_folds and not folds_grow(s):
            return False
        q.fold_at = s.n_folds
        f = &s.folds[s.n_folds]
        f.queue = q
        f.ids_at = 0
        f.qos = sub.qos
        f.keeps_retain = sub.keeps_retain
        f.is_amqp = False
        s.n_folds += 1
    return sub.id == 0 or fold_add_id(s, f, sub.id)


cdef u32 fold_put_ids(const mqtt_t* s, const fold_t* f, u8* out) noexcept nogil:
    """The identifiers of f as properties, 5 bytes each at most. Their length."""
    cdef u32 at = f.ids_at
    cdef u8* p = out
    while at:
        p[0] = PROPERTY_SUBSCRIPTION_ID
        p = varint_put(p + 1, s.ids[at - 1].id)
        at = s.ids[at - 1].next
    return <u32>(p - out)


# hot
cdef inline bint mqtt_has_route(const link_t* l, const mqtt_t* s,
                                const publish_t* m) noexcept nogil:
    """Whether the folds are those of the topic of m. Cost: 2 ns."""
    return (s.topic_len == m.topic_len and s.route_version == s.exchange.binding_version
            and s.route_epoch == link_epoch(l)
            and same_bytes(s.names + MQTT_EXCHANGE_LEN + 1, m.topic, m.topic_len))


cdef inline u64 link_epoch(const link_t* l) noexcept nogil:
    return l.vhost.epoch if l.vhost != NULL else 0


cdef bint mqtt_keep_names(mqtt_t* s, const publish_t* m) noexcept nogil:
    """Have exchange and key of m as they stand in a record. Whether there was memory."""
    cdef u32 n = m.topic_len if m.topic_len < 255 else 255
    cdef u8* grown
    if MQTT_EXCHANGE_LEN + 1 + n > s.cap_names:
        grown = <u8*>realloc(s.names, MQTT_EXCHANGE_LEN + 1 + n + 16)
        if grown == NULL:
            return False
        s.names = grown
        s.cap_names = MQTT_EXCHANGE_LEN + 1 + n + 16
        memcpy(s.names, MQTT_EXCHANGE, MQTT_EXCHANGE_LEN)
    s.names[MQTT_EXCHANGE_LEN] = <u8>n
    memcpy(s.names + MQTT_EXCHANGE_LEN + 1, m.topic, n)
    return True


# hot
cdef int mqtt_route(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """Fill the folds with the sessions that get m. PUBLISHED, PUBLISH_NO_MEMORY, or PUBLISH_TURN
    when this turn is over: the same message again goes on. Cost: 3 ns for the last topic, else one
    match and 5 ns for each subscription."""
    cdef loop_t* loop = l.loop
    cdef targets_t* out = &s.chan.targets
    cdef u32 i
    cdef int rc
    if s.phase == MQTT_CROSSES and bridge_goes_on(l, s):
        return bridge_route(l, s, m)
    if s.phase == MQTT_ROUTES and s.route_version == s.exchange.binding_version:
        targets_resume(out, &loop.reached)
    else:
        targets_begin(out, &loop.reached)
    out.look = loop.match_look
    s.topic_len = 0
    s.route_version = s.exchange.binding_version
    s.phase = MQTT_BEGINS
    rc = filters_route(s.exchange.match, m.topic, m.topic_len, out)
    loop.work += out.work
    out.work = 0
    if rc == MATCH_TIRED:
        s.phase = MQTT_ROUTES
        return PUBLISH_TURN
    cursor_reset(out)
    s.n_folds = s.n_ids = s.n_histories = 0
    if rc or not mqtt_keep_names(s, m):
        return PUBLISH_NO_MEMORY
    for i in range(out.n):
        if not fold_add(s, <subscription_t*>out.items[i]):
            return PUBLISH_NO_MEMORY
    loop.work += out.n
    s.n_own = s.n_folds
    if m.topic_len <= 255:
        s.topic_len = m.topic_len
        s.route_epoch = link_epoch(l)
    if s.exchange.bridge != NULL and s.crosses and bridge_is_used(s.exchange.bridge):
        return bridge_route(l, s, m)
    return PUBLISHED
