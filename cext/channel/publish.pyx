# Publish: a message into the queues that it was routed to, and what its publisher is to be told.
#
# What takes long goes on in publish_job.pyx.
# Source: docs/architecture.md, life of a published message.

cdef enum publish_result:
    PUBLISHED = 0
    PUBLISH_MISS = 1            # ask Python about the exchange
    PUBLISH_TX_TOO_LARGE = 2
    PUBLISH_BAD_HEADER = 3      # the header to hash on is no string
    PUBLISH_TURN = 4            # the portion is over: the same message again goes on
    PUBLISH_NO_MEMORY = -1

cdef enum:
    TARGET_UNITS = 10           # of work, for each queue that takes a message
    LONG_TARGETS = 64           # so many queues, and the clock is looked at between them


cdef bint any_target_is_able(const chan_t* c) noexcept nogil:
    """Whether a matched queue has a consumer that can take a message now (immediate), or the
    message is to wait, so that nobody can tell yet."""
    cdef u32 i
    for i in range(c.targets.n):
        if (<queue_t*>c.targets.items[i]).releases != NULL:
            return True
        if queue_has_able(<queue_t*>c.targets.items[i]):
            return True
    return False


cdef bint any_target_is_closed(const chan_t* c) noexcept nogil:
    """Whether a matched queue cannot take a message."""
    cdef u32 i
    for i in range(c.targets.n):
        if (<queue_t*>c.targets.items[i]).is_closed:
            return True
    return False


cdef inline bint publisher_is_told(const chan_t* c) noexcept nogil:
    """Whether somebody waits to hear that a publish is safe: by a confirm, or as a commit does."""
    return c.is_confirm or c.tx_last != NULL


cdef inline void queue_miss(queue_t* q) noexcept nogil:
    """A closed queue does not get a message, and its publisher did not want to know."""
    q.n_missed += 1
    if q.n_missed == 1:
        q.loop.is_news = True


# hot
cdef inline void channel_want_sync(chan_t* c, queue_t* q) noexcept nogil:
    """What c waits for, a confirm or a commit, waits for what q has been given."""
    cdef loop_t* loop = c.link.loop
    if publisher_is_told(c) and q.is_durable:
        c.needs_sync = True
        if loop.sync and not q.is_sync_wanted:
            loop_want_sync(loop, q)


cdef void channel_return(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil:
    """Nobody has got m, and its client wants to know. The body of a large message that c has
    assembled is gone then: this is the last that is done for a publish."""
    if c.link.wire.fd >= 0 and c.link.protocol.give_back(c, m, code, text) == 0:
        c.tally.return_unroutable += 1


cdef bint channel_drop_duplicate(chan_t* c, bint is_durable) noexcept nogil:
    """The exchange has taken this message before; `is_durable`: into a durable queue. The confirm
    of the second one says that the first one is safe, so it waits for whatever first ones went to,
    of which bindings of today tell nothing. False when that may be lost: then it is nacked."""
    c.route_exchange.n_dedup += 1
    if not is_durable or not publisher_is_told(c):
        return True
    c.needs_sync = True
    return loop_collect_owed(c.link.loop)


cdef bint publish_is_duplicate(chan_t* c, const msg_t* m, bint* is_nacked) noexcept nogil:
    """Whether the exchange, which drops duplicates, has taken this message before: then it is
    dropped here, and perhaps nacked."""
    cdef exchange_t* x = c.route_exchange
    cdef u32 seen = dedup_seen(x.dedup, m, c.link.loop.now_ms)
    c.link.loop.work += DEDUP_UNITS
    if x.storing != NULL and is_being_stored(x, m):
        x.n_dedup += 1
        is_nacked[0] = True     # nobody knows yet whether the first one will be safe
        c.is_refused = c.is_refused or (publisher_is_told(c) and not c.is_confirm)
        return True
    if seen == 0:
        return False
    is_nacked[0] = not channel_drop_duplicate(c, x.dedup.entries[seen].is_kept)
    if is_nacked[0]:
        c.is_refused = c.is_refused or not c.is_confirm
    elif c.publish_flags & 2:
        channel_return(c, m, 313, b"NO_CONSUMERS")
    elif c.publish_flags & 1:
        channel_return(c, m, 312, b"NO_ROUTE")
    return True


# hot
cdef inline void channel_store(chan_t* c, queue_t* q, const msg_t* m, bint is_told, bint is_owing,
                               stored_t* stored) noexcept nogil:
    """Store m in one of its queues, and note what came of it. `is_told`: see publisher_is_told;
    `is_owing`: its exchange drops duplicates, see queue_owe_sync."""
    cdef int rc
    if q.is_closed:
        stored.is_refused = True
        if not is_told:
            queue_miss(q)
        return
    if is_told:
        channel_want_sync(c, q)
    rc = queue_append(q, m)
    if rc == APPENDED:
        stored.n += 1
        if (is_told or is_owing) and q.is_durable:
            stored.is_durable = True
        if is_owing:
            queue_owe_sync(q)
    elif rc == APPEND_REFUSED:
        stored.is_overflowed = True
    elif rc == APPEND_FAILED:
        stored.is_refused = True
    if q.is_crowded:
        c.link.crowd_bytes += <u32>m.size


# hot
cdef inline void publish_end(chan_t* c, exchange_t* x, const msg_t* m,
                             const stored_t* stored) noexcept nogil:
    """m is stored wherever that was possible. x is NULL when it has gone meanwhile."""
    c.is_refused = c.is_refused or (stored.is_refused and publisher_is_told(c))
    if x != NULL:
        x.n_out += stored.n
        # What is refused anywhere is nacked: it must be able to come again.
        if (x.dedup != NULL and stored.n and not stored.is_refused
                and not stored.is_overflowed):
            dedup_remember(x.dedup, m, c.link.loop.now_ms, stored.is_durable)
    if stored.n == 0 and not stored.is_overflowed:
        if x != NULL:
            x.n_unroutable += 1
        if c.publish_flags & 1:
            channel_return(c, m, 312, b"NO_ROUTE")


# hot
cdef inline int publish_confirm(chan_t* c, bint is_overflowed, bint is_nacked) noexcept nogil:
    """The publish is over: note that it is to be confirmed. PUBLISHED."""
    cdef loop_t* loop = c.link.loop
    if c.is_confirm:
        c.publish_seq += 1
        if is_overflowed or is_nacked:
            channel_refuse(c)
        elif not c.is_in_confirms:
            loop_want_confirm(loop, c)
    c.is_overflowed = c.is_overflowed or is_overflowed
    if loop.over != NULL:
        loop_enforce(loop)
    return PUBLISHED


# hot
cdef int channel_publish(chan_t* c, msg_t* m) noexcept nogil:
    """Route m, store it in every queue, note the confirm. PUBLISH_TURN when this turn is over: the
    same message again goes on. The caller charges for the bytes of the message.
    Cost: 20 ns and 12 ns per further queue."""
    cdef exchange_t* x
    cdef queue_t* q
    cdef int rc
    if c.is_tx:
        return tx_keep_publish(c, m)
    if c.job != NULL and c.job.phase == PUBLISH_STORES:
        return publish_go_on(c, m)
    rc = channel_route(c, m)
    if rc:
        return rc
    x = c.route_exchange
    x.n_in += 1
    c.tally.publish += 1
    m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
    if c.targets.n != 1 or x.dedup != NULL or c.publish_flags & 2 or m.size > LARGE_RECORD:
        return channel_store_all(c, x, m)
    q = <queue_t*>c.targets.items[0]
    if q.is_closed:
        return channel_store_all(c, x, m)
    channel_want_sync(c, q)
    rc = queue_append(q, m)
    if q.is_crowded:
        c.link.crowd_bytes += <u32>m.size
    if rc != APPENDED:
        return publish_not_stored(c, x, m, rc)
    x.n_out += 1
    return publish_confirm(c, False, False)


cdef int publish_not_stored(chan_t* c, exchange_t* x, const msg_t* m, int rc) noexcept nogil:
    """The one queue of m did not take it. PUBLISHED."""
    cdef stored_t stored
    memset(&stored, 0, sizeof(stored_t))
    stored.is_overflowed = rc == APPEND_REFUSED
    stored.is_refused = rc == APPEND_FAILED
    publish_end(c, x, m, &stored)
    return publish_confirm(c, stored.is_overflowed, False)


# hot
cdef int channel_store_all(chan_t* c, exchange_t* x, msg_t* m) noexcept nogil:
    """Store m, which is routed, in any number of queues. What channel_publish returns."""
    cdef loop_t* loop = c.link.loop
    cdef stored_t stored
    cdef bint is_nacked = False, is_told = publisher_is_told(c), is_owing = x.dedup != NULL
    cdef u32 i, units
    memset(&stored, 0, sizeof(stored_t))
    if is_owing and publish_is_duplicate(c, m, &is_nacked):
        pass
    elif c.publish_flags & 2 and not any_target_is_able(c):
        channel_return(c, m, 313, b"NO_CONSUMERS")
    elif loop.n_closed and is_told and any_target_is_closed(c):
        # Refused before any queue has it, so that it does not come twice when it comes again.
        is_nacked = True
        c.is_refused = c.is_refused or not c.is_confirm
    else:
        if c.targets.n > 1 or m.size > LARGE_RECORD:
            units = TARGET_UNITS + <u32>(m.size >> UNIT_SHIFT)
            if publish_is_long(c, units) and publish_hold(c, m):
                return publish_go_on(c, m)
            loop.work += c.targets.n * units
        for i in range(c.targets.n):
            channel_store(c, <queue_t*>c.targets.items[i], m, is_told, is_owing, &stored)
        publish_end(c, x, m, &stored)
    return publish_confirm(c, stored.is_overflowed, is_nacked)
