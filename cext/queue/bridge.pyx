# Bridge: how a topic exchange of AMQP and the exchange of MQTT share topics.
#
# A topic is a routing key with '/' and '.' exchanged, so that nothing is lost either way: `a.b/c`
# is `a/b.c`, and back. Routing through an exchange with a bridge goes on at that of MQTT, as if it
# were bound to it; what is found there are subscriptions, and their sessions are targets like other
# queues. So confirms, transactions, dead letters, limits and portions are theirs, too. A message is
# stored as AMQP has it; mqtt/bridge.pyx says what a client of MQTT gets of it, and has the way
# back. What MQTT has published does not come back to it. Called by through.pyx and mqtt/.
# Source: docs/mqtt.md.

cdef enum:
    QOS0_BYTES = 8388608        # that may wait in a queue when one of QoS 0 comes


cdef void topic_swap(u8* p, const u8* from_, u32 n) noexcept nogil:
    """Write a topic as a routing key, or the other way, at p, which may be from_."""
    cdef u32 i
    for i in range(n):
        p[i] = c'.' if from_[i] == c'/' else c'/' if from_[i] == c'.' else from_[i]


cdef inline bint names_are_mqtt(const u8* names) noexcept nogil:
    """Whether a message was published by MQTT: its key is a topic, and its headers are those of
    mqtt/record.pyx."""
    return names[0] == 12 and same_bytes(names + 1, <const u8*>b"mqtt.default", 12)


cdef bint key_crosses(const u8* p, u32 n) noexcept nogil:
    """Whether a routing key is a topic on the other side: not empty, valid text, without wildcards;
    and not one of the broker's own."""
    cdef u64 at = 0
    cdef int step
    if n == 0 or p[0] == c'$':
        return False
    while at < n:
        if p[at] == 0 or p[at] == c'+' or p[at] == c'#':
            return False
        step = utf8_step(p + at, n - at)
        if step < 0:
            return False
        at += <u64>step
    return True


cdef bint props_are_persistent(const u8* props) noexcept nogil:
    """Whether properties in wire order ask for the disk, which is QoS 1."""
    return (be16(props) & FLAG_DELIVERY_MODE != 0
            and props[props_place(props, FLAG_DELIVERY_MODE)] == 2)


cdef int bridge_match(const exchange_t* x, const msg_t* m, targets_t* out) noexcept nogil:
    """Append the subscriptions at x, the exchange of MQTT, that the routing key of m matches there.
    What match_route returns; as that, it may be called again."""
    cdef const u8* key = m.names + m.names[0] + 1
    cdef u8 topic[256]
    if not out.cursor.is_begun and not key_crosses(key + 1, key[0]):
        return 0
    topic_swap(topic, key + 1, key[0])
    return filters_route(x.match, topic, key[0], out)


cdef u32 bridge_take(targets_t* out, const subscription_t* sub, const msg_t* m,
                     u32 n) noexcept nogil:
    """Have the session of a subscription among the first n targets, which are queues, if it gets m.
    How many there are. As for any of QoS 0, its client has to be there, and not too slow."""
    cdef queue_t* q = <queue_t*>sub.queue
    if sub.is_apart or q.dest.is_gone or q.is_deleted:
        return n
    if q.fold_at < n and out.items[q.fold_at] == &q.dest:
        return n
    if sub.qos == 0 or not props_are_persistent(m.props):
        if q.n_consumers == 0 or q.ready_bytes >= QOS0_BYTES:
            if q.session != NULL:
                q.session.n_dropped += 1
            return n
    q.fold_at = n
    out.items[n] = &q.dest
    return n + 1
