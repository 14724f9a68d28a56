# Retained give: retained messages to one session, because of a new subscription, in portions.
#
# They are read from their files, and go to the client or its queue like any other message. While
# the client does not read, and its queue holds much for it, the rest waits. Called by the door.

cdef enum give_result:
    GIVE_OVER = 0
    GIVE_MORE = 1               # the portion is over
    GIVE_WAIT = 2               # its client is slow
    GIVE_NO_MEMORY = -1

cdef enum:
    GIVE_BYTES = 1048576        # ready in its queue, above which the rest waits
    GIVE_UNITS = 20             # of work, for each of them

cdef struct rgift_t:            # retained messages on their way to a session
    rwalk_t walk
    mqtt_t publisher            # nobody's
    fold_t fold
    fold_id_t id
    u32 since                   # puts when it subscribed: what came later went to it as it came
    i64 since_ms                # and when: what is put anew by the cleaning has its old time


cdef int rgift_begin(rgift_t* g, rstore_t* rs, const u8* filter, u32 n, queue_t* q, u8 granted,
                     u32 subscription_id, u32 since, i64 since_ms) noexcept nogil:
    """0, or GIVE_NO_MEMORY. Ends with rgift_end. The queue is held."""
    memset(g, 0, sizeof(rgift_t))
    if rwalk_begin(&g.walk, rs, filter, n):
        return GIVE_NO_MEMORY
    g.publisher.chan = channel_new(&rs.log.loop.nowhere, 1, 0)
    if g.publisher.chan == NULL:
        rwalk_end(&g.walk)
        return GIVE_NO_MEMORY
    g.fold.queue = q
    g.fold.qos = granted
    g.fold.keeps_retain = True
    g.since = since
    g.since_ms = since_ms
    q.refs += 1
    if subscription_id:
        g.id.id = subscription_id
        g.publisher.ids = &g.id
        g.publisher.n_ids = 1
        g.fold.ids_at = 1
    return 0


cdef void rgift_end(rgift_t* g) noexcept nogil:
    """Idempotent."""
    rwalk_end(&g.walk)
    if g.publisher.chan == NULL:
        return
    free(g.publisher.names)
    free(g.publisher.composed)
    channel_free(g.publisher.chan)
    g.publisher.chan = NULL
    queue_unref(g.fold.queue)


cdef inline bint gift_waits(const queue_t* q) noexcept nogil:
    return q.ready_bytes > GIVE_BYTES and q.n_consumers != 0


cdef int rgift_some(rgift_t* g, loop_t* loop) noexcept nogil:
    """Give some more: a give_result."""
    cdef queue_t* q = g.fold.queue
    cdef link_t* nowhere = &loop.nowhere
    cdef rfound_t found
    cdef publish_t m
    cdef int rc
    memset(&m, 0, sizeof(publish_t))
    m.is_retained = True
    while not q.is_deleted and not q.is_closed:
        if gift_waits(q):
            return GIVE_WAIT
        rc = rwalk_next(&g.walk, loop, &found)
        if rc == RWALK_LATER:
            return GIVE_MORE
        if rc != RWALK_FOUND:
            return GIVE_OVER if rc == RWALK_OVER else GIVE_NO_MEMORY
        if <i32>(found.put - g.since) > 0 and found.at_ms >= g.since_ms:
            if loop_spent(loop, GIVE_UNITS):
                return GIVE_MORE
            continue
        m.topic = found.topic
        m.topic_len = found.topic_len
        m.body = found.payload
        m.body_len = found.payload_len
        m.props = found.props
        m.props_len = found.props_len
        m.qos = found.qos
        m.has_expiry = found.expires_ms != 0
        if m.has_expiry:
            m.expiry_s = <u32>((found.expires_ms - loop.now_ms + 999) // 1000)
        if not mqtt_keep_names(&g.publisher, &m):
            return GIVE_NO_MEMORY
        fold_give(nowhere, &g.publisher, &m, &g.fold)
        if loop.over != NULL:
            loop_enforce(loop)
        if loop_spent(loop, GIVE_UNITS + <u32>(m.body_len >> UNIT_SHIFT)):
            return GIVE_MORE
    return GIVE_OVER
