# Transaction: publishes and settlements of a channel in tx mode, kept until commit or rollback.
#
# A kept publish is one block of memory with its slices behind the struct; a settlement is its tag.
# Whether a tag exists is checked when it comes, whether an exchange may be published to both then
# and before a commit changes anything, so that a commit either happens whole or not at all.
# Called by amqp.pyx, route.pyx and link.pyx. Source: amqp reference section 13.

cdef enum:
    MAX_TX_BYTES = 268435456    # of one transaction's publishes

cdef enum tx_settle_result:
    TX_SETTLED = 0
    TX_UNKNOWN_TAG = -1
    TX_ALREADY_SETTLED = -2
    TX_NO_MEMORY = -3


cdef int tx_keep_publish(chan_t* c, const msg_t* m) noexcept nogil:
    """Keep m until commit. PUBLISHED, PUBLISH_MISS, PUBLISH_TX_TOO_LARGE or PUBLISH_NO_MEMORY."""
    cdef u64 size = sizeof(tx_publish_t) + m.names_len + m.props_len + m.body_len
    cdef tx_publish_t* kept
    cdef exchange_t* x = link_known(c.link, m.names + 1, m.names[0])
    cdef u8* p
    if x == NULL and channel_has_route(c, m.names, m.names_len):
        x = c.route_exchange
    if x == NULL:
        return PUBLISH_MISS
    if c.tx_bytes + size > MAX_TX_BYTES + m.body_len:       # one message alone is never too much
        return PUBLISH_TX_TOO_LARGE
    if not link_may_take(c.link, size):
        return PUBLISH_TX_TOO_LARGE
    kept = <tx_publish_t*>malloc(size)
    if kept == NULL:
        return PUBLISH_NO_MEMORY
    kept.next = NULL
    kept.exchange = x
    kept.epoch = c.link.vhost.epoch
    kept.flags = c.publish_flags
    kept.names_len = m.names_len
    kept.props_len = m.props_len
    kept.body_len = m.body_len
    p = <u8*>kept + sizeof(tx_publish_t)
    memcpy(p, m.names, m.names_len)
    memcpy(p + m.names_len, m.props, m.props_len)
    if m.body_len:
        memcpy(p + m.names_len + m.props_len, m.body, m.body_len)
    if c.tx_last == NULL:
        c.tx_first = kept
    else:
        c.tx_last.next = kept
    c.tx_last = kept
    c.tx_bytes += size
    link_take(c.link, size)
    return PUBLISHED


cdef int tx_keep_settle(chan_t* c, unacked_t* u, bint requeue, bint is_ack) noexcept nogil:
    cdef tx_settle_t* grown
    if c.n_tx_settles == c.cap_tx_settles:
        grown = <tx_settle_t*>realloc(
            c.tx_settles, (c.cap_tx_settles * 2 + 64) * sizeof(tx_settle_t))
        if grown == NULL:
            return TX_NO_MEMORY
        c.tx_settles = grown
        c.cap_tx_settles = c.cap_tx_settles * 2 + 64
    u.is_tx_settled = True
    c.tx_settles[c.n_tx_settles].tag = u.tag
    c.tx_settles[c.n_tx_settles].requeue = requeue
    c.tx_settles[c.n_tx_settles].is_ack = is_ack
    c.n_tx_settles += 1
    return TX_SETTLED


cdef int tx_settle(chan_t* c, u64 tag, bint multiple, bint requeue, bint is_ack) noexcept nogil:
    """Keep an ack, nack or reject until commit; a tx_settle_result."""
    cdef unacked_t* u
    cdef u64 at
    cdef u32 i
    if not (multiple and tag == 0):
        u = channel_find(c, tag)
        if u == NULL:
            return TX_UNKNOWN_TAG
        if u.is_tx_settled:
            return TX_ALREADY_SETTLED
        if not multiple:
            return tx_keep_settle(c, u, requeue, is_ack)
    else:
        tag = c.next_tag - 1
    if tag <= c.tx_until:
        return TX_SETTLED
    if c.tx_until < c.first_tag:
        for i in range(c.old_at, c.n_old):
            u = &c.old[i]
            if u.queue != NULL and u.tag <= tag and not u.is_tx_settled:
                if tx_keep_settle(c, u, requeue, is_ack):
                    return TX_NO_MEMORY
    at = c.first_tag if c.tx_until < c.first_tag else c.tx_until + 1
    c.tx_until = tag
    while at <= tag and at < c.next_tag:
        u = &c.ring[at & (c.ring_cap - 1)]
        if u.queue != NULL and not u.is_tx_settled:
            if tx_keep_settle(c, u, requeue, is_ack):
                return TX_NO_MEMORY
        at += 1
    return TX_SETTLED


cdef const u8* tx_unknown_exchange(chan_t* c) noexcept nogil:
    """The first exchange among the kept publishes that has to be asked about again, because
    something has changed since; NULL when none. What the link has learned meanwhile is noted with
    the publishes: the link itself remembers a few exchanges only."""
    cdef tx_publish_t* kept = c.tx_first
    cdef u64 epoch = c.link.vhost.epoch
    cdef const u8* names
    cdef exchange_t* x
    while kept != NULL:
        if kept.epoch != epoch:
            names = <const u8*>kept + sizeof(tx_publish_t)
            x = link_known(c.link, names + 1, names[0])
            if x == NULL:
                return names
            kept.exchange = x
            kept.epoch = epoch
        kept = kept.next
    return NULL


cdef bint tx_message(chan_t* c, const tx_publish_t* kept, msg_t* m) noexcept nogil:
    """Fill m from a kept publish; False when that is not possible."""
    m.exchange = kept.exchange
    m.names = <const u8*>kept + sizeof(tx_publish_t)
    m.names_len = kept.names_len
    m.body = m.names + kept.names_len + kept.props_len
    m.body_len = kept.body_len
    return props_error(c.link, m.names + kept.names_len, kept.props_len, m) == 0


cdef bint tx_has_bad_header(chan_t* c) noexcept nogil:
    """Whether a kept publish meets an exchange that hashes on a header of it which is no string.
    Those that cannot are not routed. All exchanges are known."""
    cdef tx_publish_t* kept = c.tx_first
    cdef exchange_t* x
    cdef msg_t m
    while kept != NULL:
        if tx_message(c, kept, &m):
            x = m.exchange
            if not (x.is_plain and x.has_key_routes):
                if channel_route(c, &m) == PUBLISH_BAD_HEADER:
                    return True
        kept = kept.next
    return False


cdef bint queue_has_no_room(queue_t* q, u64 size, u64 plan) noexcept nogil:
    """Note that a commit would add a message to q; whether q refuses publishes and is full then."""
    cdef rules_t* r = q.rules
    if r == NULL or r.overflow == DROP_HEAD:
        return False
    if r.planned_mark != plan:
        queue_deliver_all(q)        # as a publish would do
        r.planned_mark = plan
        r.planned = r.planned_bytes = 0
    r.planned += 1
    r.planned_bytes += size
    return (q.ready + r.planned > r.max_length or (
        r.max_bytes != NO_LIMIT and q.ready_bytes + r.planned_bytes >= r.max_bytes))


cdef bint tx_is_too_much(chan_t* c) noexcept nogil:
    """Whether a full queue would refuse one of the kept publishes: then none is carried out. What
    consumers might take between them does not count. All exchanges are known."""
    cdef tx_publish_t* kept = c.tx_first
    cdef unacked_t* u
    cdef queue_t* q
    cdef msg_t m
    cdef u32 i
    c.link.loop.n_plans += 1
    for i in range(c.n_tx_settles):
        u = channel_find(c, c.tx_settles[i].tag)
        if u != NULL and c.tx_settles[i].requeue:
            queue_has_no_room(u.queue, u.size, c.link.loop.n_plans)     # those are never refused
    while kept != NULL:
        if tx_message(c, kept, &m) and channel_route(c, &m) == PUBLISHED:
            m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
            for i in range(c.targets.n):
                q = <queue_t*>c.targets.items[i]
                if not q.is_closed and queue_has_no_room(q, m.size, c.link.loop.n_plans):
                    return True
        kept = kept.next
    return False


cdef void tx_apply(chan_t* c) noexcept nogil:
    """Commit: settlements in order, then publishes in order. All exchanges are known."""
    cdef tx_publish_t* kept
    cdef tx_settle_t* s
    cdef msg_t m
    cdef u32 i
    for i in range(c.n_tx_settles):
        s = &c.tx_settles[i]
        channel_settle(c, s.tag, False, s.requeue, s.is_ack)
    c.n_tx_settles = 0
    c.is_tx = False             # from here on publishes are real
    while c.tx_first != NULL:
        kept = c.tx_first
        c.tx_first = kept.next
        c.publish_flags = kept.flags
        if tx_message(c, kept, &m):
            channel_publish(c, &m)
        free(kept)
    c.is_tx = True
    tx_forget(c)


cdef void tx_forget(chan_t* c) noexcept nogil:
    """Rollback, or what is left after a commit: forget all that is kept."""
    cdef tx_publish_t* kept
    cdef unacked_t* u
    cdef u32 i
    for i in range(c.n_tx_settles):
        u = channel_find(c, c.tx_settles[i].tag)
        if u != NULL:
            u.is_tx_settled = False
    while c.tx_first != NULL:
        kept = c.tx_first
        c.tx_first = kept.next
        free(kept)
    c.tx_last = NULL
    link_give(c.link, c.tx_bytes)
    c.tx_bytes = 0
    free(c.tx_settles)
    c.tx_settles = NULL
    c.n_tx_settles = c.cap_tx_settles = 0
    c.tx_until = 0
