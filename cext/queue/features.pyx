# Features: what a queue does with messages beyond handing them out: limits, TTL, priorities.
#
# Publishes to a queue with features, and messages that have some of their own, take the long way;
# all others never come by. A queue that has become too long goes on the loop's list and is held to
# its limits before anything else is done for the client: dead letters of one may be too many for
# another, so this is a list and not a recursion.
# Source: docs/policies.md.

cdef enum append_result:
    APPENDED = 0
    APPEND_FAILED = -1          # the queue is closed now, or memory is full
    APPEND_DUPLICATE = 1        # a message with its key is here already
    APPEND_REFUSED = 2          # the queue is full and refuses publishes
    APPEND_KEPT = 3             # an exchange keeps it, which is no place where it has arrived


cdef void features_free(features_t* r) noexcept nogil:
    if r != NULL:
        free(r.target)
        free(r.target_key)
        free(r)


# ---- publishing ----------------------------------------------------------------------------------

cdef inline bint queue_is_full(const queue_t* q, u64 size) noexcept nogil:
    """Whether a queue that refuses publishes has no room for one more."""
    return (q.ready >= q.features.max_length
            or (q.features.max_bytes != NO_LIMIT and q.ready_bytes + size >= q.features.max_bytes))


cdef inline bint queue_refuses(const queue_t* q, u64 size) noexcept nogil:
    """Whether a publish to q is refused for certain: no consumer can make room for it."""
    return (q.features != NULL and q.features.overflow != DROP_HEAD and q.stream == NULL
            and q.able == NULL and not q.loop.is_committing and queue_is_full(q, size))


cdef inline bint queue_is_too_long(const queue_t* q) noexcept nogil:
    return q.ready > q.features.max_length or q.ready_bytes > q.features.max_bytes


# hot
cdef inline store_t* queue_level_for(queue_t* q, const msg_t* m) noexcept nogil:
    """The store for a message by its priority; NULL when out of memory."""
    cdef u32 level = m.props[m.priority_at] if m.priority_at else 0
    if q.levels == NULL:
        return queue_own_store(q)
    level = level if level < q.levels.n else q.levels.n - 1
    if q.levels.stores[level] != NULL:
        return q.levels.stores[level]
    return queue_make_level(q, level)


cdef bint queue_stays_full(queue_t* q, u64 size) noexcept nogil:
    """Whether a queue that refuses publishes has no room for one more when its consumers have had
    their chance."""
    if not queue_is_full(q, size) or q.loop.is_committing:
        return False
    if q.able != NULL and not q.loop.is_moving:
        queue_deliver_all(q)
    return queue_is_full(q, size)


cdef void queue_refuse(queue_t* q, const msg_t* m) noexcept nogil:
    """m does not come into q, which is full: it dies where a policy says so."""
    if q.features.overflow == REJECT_PUBLISH_DLX and not q.loop.is_moving:
        loop_begin_move(q.loop, q)
        bury_refused(q, m)              # a dead letter that is refused is lost


cdef int queue_append_ruled(queue_t* q, const msg_t* m) noexcept nogil:
    """queue_append for a queue, or a message, with features."""
    cdef store_t* st
    cdef u32 pos
    if q.stream != NULL:
        return stream_append(q, m)
    if q.releases != NULL:
        return delayed_append(q, m)
    if q.history != NULL:
        return history_append(q.history, m)
    if q.dedup != NULL:
        q.loop.work += DEDUP_UNITS
        if dedup_seen(q.dedup, m, q.loop.now_ms):
            q.dedup.n_refused += 1
            return APPEND_DUPLICATE
    if q.features != NULL and q.features.overflow != DROP_HEAD and queue_stays_full(q, m.size):
        queue_refuse(q, m)
        return APPEND_REFUSED
    st = queue_level_for(q, m)
    if st == NULL:
        return APPEND_FAILED
    if m.expiration_at:
        queue_may_expire(q)
    if queue_append_to(q, st, m):
        return APPEND_FAILED
    if q.dedup != NULL:
        dedup_remember(q.dedup, m, q.loop.now_ms, q.is_durable)
        queue_owe_sync(q)
    queue_count_level(q, st, 1)
    q.may_bury = q.may_bury or m.is_special
    pos = st.wseg.size - <u32>m.size
    if m.expiration_at or q.may_expire:
        queue_note_deadline(q, st, m, pos)
    if q.due_ms <= q.loop.now_ms or (q.features != NULL and queue_is_too_long(q)):
        queue_want_limits(q)
    if q.sample != NULL:
        sample_take(q.sample, m, q.loop.now_ms)
    return APPENDED


cdef void queue_want_limits(queue_t* q) noexcept nogil:
    """Have loop_enforce look at q, after the others that wait for it."""
    cdef loop_t* loop = q.loop
    if not q.is_over:
        q.is_over = True
        q.refs += 1
        q.over_next = NULL
        if loop.over == NULL:
            loop.over = q
        else:
            loop.last_over.over_next = q
        loop.last_over = q


# ---- taking --------------------------------------------------------------------------------------

# hot
cdef inline int queue_next(queue_t* q, rec_t* rec) noexcept nogil:
    """queue_peek, without messages that are past their time. Cost: 1 ns more when none can be."""
    cdef int rc = queue_peek(q, rec)
    rec.extra = NULL
    if rc == 1 and (q.may_expire or q.features != NULL):
        return queue_next_ruled(q, rec)
    return rc


cdef int queue_next_ruled(queue_t* q, rec_t* rec) noexcept nogil:
    cdef int rc = 1
    cdef u32 n = 0
    while rc == 1:
        if q.may_expire and rec_deadline_ms(q, rec) < q.loop.now_ms:
            queue_drop(q, rec, DEAD_EXPIRED)
        elif queue_has_tried_enough(q, rec):
            queue_drop(q, rec, DEAD_DELIVERY_LIMIT)
        else:
            if q.features != NULL and q.features.delivery_limit >= 0:
                queue_tell_count(q, rec)
            elif counts_of(queue_level(q, rec.level).counts, rec.seg, rec.pos):
                rec.redelivered = True          # before the broker was started
            return 1
        n += 1
        if loop_spent(q.loop, DEATH_UNITS) and n >= DEATHS_AT_ONCE:
            queue_want_limits(q)         # whoever asks for messages is heard again after that
            return 0
        rc = queue_peek(q, rec) if q.ready else 0
        rec.extra = NULL
    return rc


cdef bint queue_has_tried_enough(queue_t* q, const rec_t* rec) noexcept nogil:
    """Whether a message was delivered more often than is allowed: so it was when the broker
    stopped, or more was allowed then."""
    cdef store_t* st = queue_level(q, rec.level)
    return (st.counts.n and q.features != NULL and q.features.delivery_limit >= 0
            and counts_of(st.counts, rec.seg, rec.pos) > <u64>q.features.delivery_limit)


cdef void queue_tell_count(queue_t* q, rec_t* rec) noexcept nogil:
    """Have the delivery say how often there was one before."""
    cdef u32 n = counts_of(queue_level(q, rec.level).counts, rec.seg, rec.pos)
    rec.extra = q.loop.count_header
    rec.extra_len = 0
    if n:
        put_be32(q.loop.count_header + COUNT_AT, n)
        rec.extra_len = COUNT_AT + 4
        rec.redelivered = True


cdef void queue_count_delivery(queue_t* q, const rec_t* rec) noexcept nogil:
    """A message was delivered that has to be acknowledged: its deliveries are limited."""
    cdef store_t* st = queue_level(q, rec.level)
    cdef u32 n = counts_of(st.counts, rec.seg, rec.pos) + 1
    if store_count(st, rec.seg, rec.pos, n):
        queue_failed(q)


# ---- giving back and discarding ------------------------------------------------------------------

cdef void queue_discard(queue_t* q, rec_t* rec, u32 reason) noexcept nogil:
    """A record that is neither ready nor unacked any more dies: it goes to where dead letters go,
    and out of its store when it is safe there."""
    cdef spot_t at = spot_of(rec, <u8>reason)
    loop_begin_move(q.loop, q)
    if q.may_bury or q.features != NULL:
        queue_end_move(q, &at, bury(q, rec, reason))
    else:
        queue_delete_moved(q, &at)


cdef void queue_drop(queue_t* q, rec_t* rec, u32 reason) noexcept nogil:
    """The record that queue_peek returned dies."""
    cdef store_t* st = queue_level(q, rec.level)
    store_take(st, rec)
    queue_uncount(q, st, rec.size)
    queue_discard(q, rec, reason)


cdef bint queue_settle_ruled(queue_t* q, store_t* st, const unacked_t* u, bint requeue,
                             bint is_ack) noexcept nogil:
    """What is special about a settlement. True when that was all of it."""
    cdef rec_t rec
    cdef seg_t* seg
    cdef spot_t at
    cdef u32 reason = DEAD_REJECTED
    cdef i64 own
    cdef int rc
    if is_ack:
        store_forget_count(st, u.seg, u.pos)
        return False
    if requeue:
        if not q.may_expire and (q.features == NULL or q.features.delivery_limit < 0):
            if q.features != NULL and q.features.overflow == DROP_HEAD:
                queue_want_limits(q)
            return False
    elif not q.may_bury and q.features == NULL:
        return False
    seg = store_segment(st, u.seg)
    if seg == NULL:
        return False
    rc = store_read(st, &q.loop.pool, store_window(st), seg, u.pos, 4096, &rec)
    rec.seg = u.seg
    rec.pos = u.pos
    rec.size = u.size
    rec.level = u.level
    rec.redelivered = True
    if rc == -2 and not requeue:        # it dies when it can be read again
        at = spot_of(&rec, <u8>reason)
        queue_park(q, &at, NULL)
        return True
    if rc != 1:
        return False
    if requeue:
        if q.may_expire and rec_deadline_ms(q, &rec) <= q.loop.now_ms:
            reason = DEAD_EXPIRED
        elif (q.features != NULL and q.features.delivery_limit >= 0
                and counts_of(st.counts, u.seg, u.pos) > <u64>q.features.delivery_limit):
            reason = DEAD_DELIVERY_LIMIT
        else:
            own = rec_own_deadline_ms(&rec)
            if own != NEVER:
                dues_push(st, own, u.seg, u.pos)
            if q.may_expire and rec_deadline_ms(q, &rec) < q.due_ms:
                queue_set_due(q, rec_deadline_ms(q, &rec))
            queue_want_limits(q)
            return False
    queue_discard(q, &rec, reason)
    return True


# ---- too long ------------------------------------------------------------------------------------

cdef bint queue_deliver_all(queue_t* q) noexcept nogil:
    """Let consumers take what they can now: that is neither refused nor dropped. False when the
    portion is over first."""
    while q.able != NULL and q.ready and queue_deliver(q):
        if loop_spent(q.loop, DELIVER_BUDGET >> UNIT_SHIFT):
            return False
    return True


cdef void queue_drop_head(queue_t* q) noexcept nogil:
    """Drop from the head until the queue is as long as it may be."""
    cdef rec_t rec
    cdef u32 reason
    cdef int rc
    while q.ready and queue_is_too_long(q):
        reason = DEAD_MAXLEN if q.ready > q.features.max_length else DEAD_MAXLENBYTES
        rc = queue_peek(q, &rec)
        if rc == PEEK_LATER:
            queue_want_limits(q)
        if rc != 1:
            break
        queue_drop(q, &rec, reason)
        if loop_spent(q.loop, DEATH_UNITS):
            queue_want_limits(q)         # and then the rest
            break


cdef void queue_drop_delivered(queue_t* q) noexcept nogil:
    """Drop heads that were delivered more often than is allowed now."""
    cdef rec_t rec
    cdef int rc
    while q.ready and queue_top(q).counts.n:
        rc = queue_peek(q, &rec)
        if rc == PEEK_LATER:
            queue_want_limits(q)
        if rc != 1 or not queue_has_tried_enough(q, &rec):
            break
        queue_drop(q, &rec, DEAD_DELIVERY_LIMIT)
        if loop_spent(q.loop, DEATH_UNITS):
            queue_want_limits(q)
            break


cdef void queue_enforce(queue_t* q) noexcept nogil:
    """Hold q to its limits, after its consumers had their chance; or begin with it."""
    if not queue_deliver_all(q):
        queue_want_limits(q)
        return
    if q.features != NULL:
        if q.features.overflow == DROP_HEAD and queue_is_too_long(q):
            queue_drop_head(q)
        if q.features.delivery_limit >= 0:
            queue_drop_delivered(q)
    if q.due_ms <= q.loop.now_ms:
        queue_expire(q, q.loop.now_ms)
    queue_touch(q)


cdef void loop_enforce(loop_t* loop) noexcept nogil:
    """Hold the queues on the list to their limits, one at least; their dead letters may add others.
    Queues that overflow into each other can make very much of it: what is left when the portion is
    over is done by the loop, so that no other client pays for it."""
    cdef queue_t* q
    while loop.over != NULL:
        q = loop.over
        loop.over = q.over_next
        q.is_over = False
        if not q.is_deleted and not q.is_closed:
            queue_enforce(q)
        queue_unref(q)
        if loop_spent(loop, DEATH_UNITS):
            break
    if loop.over == NULL:
        return
    if loop.over_rest == NULL:
        loop.over_rest = loop.over
    else:
        loop.last_over_rest.over_next = loop.over
    loop.last_over_rest = loop.last_over
    loop.over = NULL


cdef void loop_enforce_rest(loop_t* loop) noexcept nogil:
    """Go on with those for which a portion was not enough."""
    if loop.over_rest == NULL:
        return
    loop.last_over_rest.over_next = loop.over
    if loop.over == NULL:
        loop.last_over = loop.last_over_rest
    loop.over = loop.over_rest
    loop.over_rest = NULL
    loop_enforce(loop)
