# Deliver: gives the ready messages of a queue to its consumers, whatever their clients speak.
#
# Called by tick.pyx and features.pyx; by those who deliver otherwise, for a consumer.


# hot
cdef bint queue_deliver(queue_t* q) noexcept nogil:
    """Give ready messages to able consumers in turn.
    Returns whether the budget ended before the work."""
    cdef i64 budget = DELIVER_BUDGET
    cdef bint is_more
    if q.deliver != NULL:
        return q.deliver(q)
    is_more = queue_deliver_within(q, &budget)
    q.loop.work += <u32>((DELIVER_BUDGET - budget) >> 5)
    return is_more


# hot
cdef inline consumer_t* queue_taker(queue_t* q) noexcept nogil:
    """The consumer whose turn it is, NULL: none can take a message. Who no longer can leaves the
    ring."""
    while q.able != NULL and not consumer_is_able(q.able):
        consumer_leave_ring(q.able)
    return q.able


cdef void consumer_put_off(consumer_t* k) noexcept nogil:
    """Its link takes no more for now: it leaves the ring until that is writable, or has its output
    on disk. Any other has no memory, for large messages of others fill it: it tries again later."""
    consumer_leave_ring(k)
    if k.chan.link.is_held:
        k.chan.link.is_full = True
    elif not k.chan.link.wire.is_blocked and not k.is_patient:
        loop_add_patient(k.queue.loop, k)


# hot
cdef inline bint queue_deliver_within(queue_t* q, i64* left) noexcept nogil:
    """queue_deliver with a budget of bytes, each message counting 64 more.

    Cost: 25 ns per message."""
    cdef rec_t rec
    cdef consumer_t* k
    cdef chan_t* c
    if q.is_paused or q.n_orphans:
        return False
    while q.ready:
        k = queue_taker(q)
        if k == NULL:
            return False
        if left[0] <= 0:
            return True
        if queue_next(q, &rec) != 1:
            return False
        c = k.chan
        if not channel_has_room(c, k.is_no_ack):
            consumer_put_off(k)
            continue
        if not c.link.protocol.deliver(k, &rec, c.next_tag):
            if c.is_oversized:
                consumer_leave_ring(k)          # its client never takes this one
            else:
                consumer_put_off(k)
            continue
        left[0] -= rec.size + 64
        queue_take(q, &rec, k.is_no_ack)
        if rec.redelivered:
            c.tally.redeliver += 1
        if k.is_no_ack:
            q.n_delivered_no_ack += 1
            c.tally.deliver_no_ack += 1
            channel_skip_tag(c)
        else:
            q.n_delivered += 1
            c.tally.deliver += 1
            k.unacked += 1
            c.global_unacked += 1
            channel_push(c, q, k, &rec)
        if q.able == k:
            q.able = k.next
    return False
