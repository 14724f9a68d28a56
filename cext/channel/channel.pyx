# Channel: deliveries that wait to be settled, credit, and the confirm sequence of one channel.
#
# What waits to be settled is in a ring (queue/unacked.pyx). Called by whatever speaks a protocol,
# and by the door. Longer than 500 lines: all ways of settling go over one ring in one way.
# Source: docs/consumers.md, docs/architecture.md.


# ---- settling ------------------------------------------------------------------------------------

cdef enum settle_result:
    SETTLED = 0
    SETTLE_TURN = 1             # the portion is over: to be called again
    SETTLE_UNKNOWN = -1         # the tag is not outstanding (406)

cdef enum:
    SETTLE_LOOK = 64            # settlements between two looks at the portion


# hot
cdef inline void channel_settle_one(chan_t* c, unacked_t* u, bint requeue,
                                    bint is_ack) noexcept nogil:
    """Settle one delivery and give the credit back. Cost: 8 ns."""
    cdef queue_t* q = u.queue
    cdef consumer_t* k = u.consumer
    cdef bint was_full = c.global_prefetch != 0 and c.global_unacked >= c.global_prefetch
    lmq_assert(q != NULL and c.n_unacked > 0)
    if is_ack:
        q.n_acked += 1
    else:
        q.n_rejected += 1
    queue_settle(q, u, requeue, is_ack)
    u.queue = NULL
    c.n_unacked -= 1
    if k != NULL:
        k.unacked -= 1
        c.global_unacked -= 1
        if was_full:
            channel_wake_consumers(c)
        else:
            consumer_credit(k)
        consumer_unref(k)
    queue_unref(q)


# hot
cdef inline void channel_trim(chan_t* c) noexcept nogil:
    """Advance over settled tags at the ring's start."""
    while c.first_tag < c.next_tag and c.ring[c.first_tag & (c.ring_cap - 1)].queue == NULL:
        c.first_tag += 1


cdef void link_drop_rings(link_t* l) noexcept nogil:
    """Free large rings that are empty. Once in a while, not at each ack: a consumer with a large
    prefetch fills its ring again at once."""
    cdef chan_t* c
    cdef u32 i
    for i in range(l.cap_chans):
        c = l.chans[i]
        if c != NULL and c.first_tag == c.next_tag and c.ring_cap > 4096:
            free(c.ring)
            c.ring = NULL
            c.ring_cap = 0


cdef void channel_trim_old(chan_t* c, u32 n_settled) noexcept nogil:
    """n_settled entries of the list of old ones were settled: close the gaps when half of it is
    gaps, so that a settlement costs O(1) on average."""
    cdef u32 i, kept = 0
    while c.old_at < c.n_old and c.old[c.old_at].queue == NULL:
        c.old_at += 1
    c.n_old_settled += n_settled
    if c.n_old_settled < c.n_old - c.n_old_settled:
        return
    for i in range(c.old_at, c.n_old):
        if c.old[i].queue != NULL:
            c.old[kept] = c.old[i]
            kept += 1
    c.n_old = kept
    c.old_at = c.n_old_settled = 0
    if kept == 0:
        free(c.old)
        c.old = NULL
        c.cap_old = 0


# hot
cdef inline int channel_settle(chan_t* c, u64 tag, bint multiple, bint requeue,
                               bint is_ack) noexcept nogil:
    """ack, nack or reject from the client. A settle_result.

    Cost: 8 ns per message settled."""
    cdef u32 before = c.n_unacked
    cdef int rc = channel_settle_tag(c, tag, multiple, requeue, is_ack)
    if is_ack:
        c.tally.ack += before - c.n_unacked
    else:
        c.tally.reject += before - c.n_unacked
    return rc


# hot
cdef int channel_settle_tag(chan_t* c, u64 tag, bint multiple, bint requeue,
                            bint is_ack) noexcept nogil:
    """channel_settle without counting."""
    cdef unacked_t* u
    if multiple:
        return channel_settle_up_to(c, tag, requeue, is_ack)
    u = channel_find(c, tag)
    if u == NULL:
        return SETTLE_UNKNOWN
    channel_settle_one(c, u, requeue, is_ack)
    if tag < c.first_tag:
        channel_trim_old(c, 1)
    elif tag == c.first_tag:
        channel_trim(c)
    return SETTLED


# hot
cdef int channel_settle_up_to(chan_t* c, u64 tag, bint requeue, bint is_ack) noexcept nogil:
    """Settle all up to a tag, 0 for what is outstanding now, oldest first. When the portion is over
    in the midst of it, the same call goes on where it was."""
    cdef loop_t* loop = c.link.loop
    cdef unacked_t* u
    cdef u32 n = 0, n_old = 0
    if c.settle_until == 0:
        if tag and channel_find(c, tag) == NULL:
            return SETTLE_UNKNOWN
        c.settle_until = tag if tag else c.next_tag - 1
    while c.old_at < c.n_old and c.old[c.old_at].tag <= c.settle_until:
        if n == SETTLE_LOOK:
            channel_trim_old(c, n_old)
            return SETTLE_TURN
        u = &c.old[c.old_at]
        c.old_at += 1
        if u.queue == NULL:
            continue
        channel_settle_one(c, u, requeue, is_ack)
        n_old += 1
        n += 1
        if n == SETTLE_LOOK and not loop_spent(loop, SETTLE_LOOK * SETTLE_UNITS):
            n = 0
    if n_old:
        channel_trim_old(c, n_old)
    while c.first_tag <= c.settle_until:
        if n == SETTLE_LOOK:
            return SETTLE_TURN
        u = &c.ring[c.first_tag & (c.ring_cap - 1)]
        c.first_tag += 1
        if u.queue == NULL:
            continue
        channel_settle_one(c, u, requeue, is_ack)
        n += 1
        if n == SETTLE_LOOK and not loop_spent(loop, SETTLE_LOOK * SETTLE_UNITS):
            n = 0
    channel_trim(c)
    c.settle_until = 0
    return SETTLED


cdef void channel_settle_all(chan_t* c, bint requeue, bint is_ack) noexcept nogil:
    """Settle everything outstanding, in one go: there is little, or no memory for more."""
    cdef u32 i
    cdef unacked_t* u
    for i in range(c.n_old):
        if c.old[i].queue != NULL:
            channel_settle_one(c, &c.old[i], requeue, is_ack)
    c.n_old = c.old_at = c.n_old_settled = 0
    while c.first_tag < c.next_tag:
        u = &c.ring[c.first_tag & (c.ring_cap - 1)]
        if u.queue != NULL:
            channel_settle_one(c, u, requeue, is_ack)
        c.first_tag += 1
    channel_trim(c)


cdef void channel_requeue(chan_t* c) noexcept nogil:
    """basic.recover with requeue: all but what a transaction is about to settle."""
    cdef u32 i, n = 0
    cdef u64 tag = c.first_tag
    cdef unacked_t* u
    if c.n_tx_settles == 0:
        channel_orphan(c)
        return
    for i in range(c.old_at, c.n_old):
        if c.old[i].queue != NULL and not c.old[i].is_tx_settled:
            channel_settle_one(c, &c.old[i], True, False)
            n += 1
    if c.n_old:
        channel_trim_old(c, n)
    while tag < c.next_tag:
        u = &c.ring[tag & (c.ring_cap - 1)]
        if u.queue != NULL and not u.is_tx_settled:
            channel_settle_one(c, u, True, False)
        tag += 1
    channel_trim(c)


cdef int channel_recover(chan_t* c) noexcept nogil:
    """basic.recover without requeue: deliveries go once more to their consumers, with new tags;
    what was taken by basic.get, or by a consumer that has gone, is requeued. 0, or -1 out of
    memory."""
    cdef u32 i, n = 0
    cdef u64 tag
    cdef unacked_t* u
    cdef unacked_t* all_ = <unacked_t*>malloc((c.n_unacked + 1) * sizeof(unacked_t))
    if all_ == NULL:
        return -1
    for i in range(c.n_old):
        if c.old[i].queue != NULL:
            all_[n] = c.old[i]
            n += 1
    tag = c.first_tag
    while tag < c.next_tag:
        u = &c.ring[tag & (c.ring_cap - 1)]
        if u.queue != NULL:
            all_[n] = u[0]
            n += 1
        tag += 1
    c.n_old = c.old_at = c.n_old_settled = 0
    c.n_unacked = n
    c.first_tag = c.next_tag
    for i in range(n):
        if not channel_redeliver(c, &all_[i]):
            channel_settle_one(c, &all_[i], True, False)
    free(all_)
    return 0


cdef bint channel_redeliver(chan_t* c, unacked_t* u) noexcept nogil:
    """Deliver an unacked message again to its consumer. False when that is not possible."""
    cdef queue_t* q = u.queue
    cdef consumer_t* k = u.consumer
    cdef store_t* st
    cdef seg_t* seg
    cdef rec_t rec
    if k == NULL or k.is_cancelled or q.is_deleted or q.is_closed or c.link.wire.is_blocked:
        return False
    if q.is_paused or q.n_orphans:
        return False
    st = queue_level(q, u.level)
    seg = store_segment(st, u.seg)
    if seg == NULL or store_read(st, &q.loop.pool, store_window(st), seg, u.pos, 16384, &rec) != 1:
        return False
    rec.level = u.level
    rec.extra = NULL
    rec.seq = u.seq
    if q.features != NULL and q.features.delivery_limit >= 0:
        queue_tell_count(q, &rec)
    if k.reader != NULL:
        stream_tell_offset(q.stream, k.reader, k.reader.slots[u.seq].offset, &rec)
    rec.redelivered = True
    if not channel_has_room(c, False) or not c.link.protocol.deliver(k, &rec, c.next_tag):
        return False
    channel_push(c, q, k, &rec)
    q.n_redelivered += 1
    c.tally.redeliver += 1
    queue_touch(q)              # a large window goes at the end of the tick
    q.refs -= 1                 # channel_push has counted it once more
    k.refs -= 1
    c.n_unacked -= 1
    return True


# ---- time-outs and queues that start again -------------------------------------------------------

cdef enum overdue_result:
    OVERDUE_NONE = 0
    OVERDUE = 1
    OVERDUE_MORE = 2            # not all were looked at: the same call goes on with the next ones


cdef enum:
    OVERDUE_LOOK = 8192         # deliveries of a link in a turn: 0.1 ms, far from the caches


cdef int unacked_overdue(const chan_t* c, const unacked_t* u) noexcept nogil:
    """Whether u is unacked for longer than its queue allows; -1 when so short that those behind it
    cannot be either.

    The clock counts whole tenths: one is taken off, so that nobody is early."""
    cdef const queue_t* q = u.queue
    cdef const loop_t* loop = c.link.loop
    cdef u64 age_ms
    if q == NULL or loop.now_ds == u.delivered_ds:
        return 0 if q == NULL else -1
    age_ms = <u64>(loop.now_ds - u.delivered_ds - 1) * 100
    if age_ms < loop.shortest_timeout_ms:
        return -1
    return q.timeout_ms != 0 and age_ms >= q.timeout_ms and not (q.is_deleted or q.is_closed)


cdef int channel_overdue(chan_t* c, u32* left) noexcept nogil:
    """Whether any delivery of the channel is overdue, an overdue_result. Later ones are younger,
    but those of patient queues may be before them. left: how many may be looked at."""
    cdef u32 i = max(c.old_at, channel_old_from(c, c.timed_tag))
    cdef u64 tag
    cdef int rc = 0
    while i < c.n_old and rc == 0 and left[0]:
        rc = unacked_overdue(c, &c.old[i])
        c.timed_tag = c.old[i].tag + 1
        i += 1
        left[0] -= 1
    tag = max(c.first_tag, c.timed_tag)
    while i == c.n_old and tag < c.next_tag and rc == 0 and left[0]:
        rc = unacked_overdue(c, &c.ring[tag & (c.ring_cap - 1)])
        tag += 1
        c.timed_tag = tag
        left[0] -= 1
    if rc == 0 and (i < c.n_old or tag < c.next_tag):
        return OVERDUE_MORE
    c.timed_tag = 0
    return OVERDUE if rc > 0 else OVERDUE_NONE


cdef bint link_may_be_overdue(const link_t* l) noexcept nogil:
    """Whether it is time to look for a delivery that one of the link's channels holds for too long:
    what was not there at the last look is too young for it."""
    cdef const loop_t* loop = l.loop
    if loop.shortest_timeout_ms == 0 or not l.is_holder or loop.now_ds == l.held_ds:
        return False
    if <u64>(loop.now_ds - l.held_ds - 1) * 100 < loop.shortest_timeout_ms:
        return False
    if l.overdue_look_ns == 0:          # never yet: the clock may have begun just now, too
        return True
    return loop.now_ns - l.overdue_look_ns >= loop.overdue_pause_ns - LOOK_SLOT_NS


cdef void channel_note_oldest(const chan_t* c) noexcept nogil:
    """The link holds a delivery that is as old as the channel's oldest."""
    cdef u32 oldest_ds
    if c.old_at < c.n_old:
        oldest_ds = c.old[c.old_at].delivered_ds
    elif c.first_tag < c.next_tag:
        oldest_ds = c.ring[c.first_tag & (c.ring_cap - 1)].delivered_ds
    else:
        return
    if oldest_ds < c.link.held_ds:
        c.link.held_ds = oldest_ds


cdef void channel_leave_queue(chan_t* c, queue_t* q, queue_t* ghost) noexcept nogil:
    """Deliveries of q become those of a deleted queue: settling them will do nothing."""
    cdef u32 i
    cdef u64 tag = c.first_tag
    cdef unacked_t* u
    for i in range(c.old_at, c.n_old):
        if c.old[i].queue == q:
            c.old[i].queue = ghost
            ghost.refs += 1
            queue_unref(q)
    while tag < c.next_tag:
        u = &c.ring[tag & (c.ring_cap - 1)]
        if u.queue == q:
            u.queue = ghost
            ghost.refs += 1
            queue_unref(q)
        tag += 1


# ---- consumers -----------------------------------------------------------------------------------

cdef void channel_wake_consumers(chan_t* c) noexcept nogil:
    """Credit, flow or the link changed: let the channel's consumers back into their rings."""
    cdef consumer_t* k = c.consumers
    while k != NULL:
        consumer_join_ring(k)
        k = k.chan_next


cdef void link_wake_consumers(link_t* l) noexcept nogil:
    """The link takes output again: channel_wake_consumers for all of its channels."""
    cdef chan_t* c = l.sparse
    cdef u32 i
    for i in range(l.cap_chans):
        if l.chans[i] != NULL:
            channel_wake_consumers(l.chans[i])
    while c != NULL:
        channel_wake_consumers(c)
        c = c.sparse_next


cdef void link_stop_deliveries(link_t* l) noexcept nogil:
    """Nothing more is delivered on any channel."""
    cdef chan_t* c = l.sparse
    cdef u32 i
    for i in range(l.cap_chans):
        if l.chans[i] != NULL:
            l.chans[i].is_flow_stopped = True
    while c != NULL:
        c.is_flow_stopped = True
        c = c.sparse_next


cdef consumer_t* channel_add_consumer(chan_t* c, queue_t* q, const u8* tag, u32 tag_len,
                                      bint no_ack, int priority) noexcept nogil:
    """A consumer of that name. It gets nothing before channel_start_consumer."""
    cdef consumer_t* k = NULL
    cdef size_t size = sizeof(consumer_t)
    if 1 + tag_len + TAG_ROOM > sizeof(k.tag):
        size += 1 + tag_len + TAG_ROOM - sizeof(k.tag)
    k = <consumer_t*>calloc(1, size)
    if k == NULL:
        return NULL
    k.queue = q
    k.chan = c
    k.is_no_ack = no_ack
    k.priority = priority
    k.prefetch = c.prefetch
    k.refs = 1
    k.tag[0] = <u8>tag_len
    memcpy(k.tag + 1, tag, tag_len)
    k.chan_next = c.consumers
    if c.consumers != NULL:
        c.consumers.chan_prev = k
    c.consumers = k
    q.refs += 1
    q.n_consumers += 1
    q.is_ranked = q.is_ranked or priority != 0
    return k


cdef void channel_start_consumer(consumer_t* k) noexcept nogil:
    """Let deliveries begin, unless it was cancelled meanwhile."""
    k.is_started = not k.is_cancelled
    consumer_join_ring(k)


cdef void channel_remove_consumer(consumer_t* k) noexcept nogil:
    """Take a consumer out of ring and channel. Its deliveries stay unacked on the channel."""
    if k.chan_next != NULL:
        k.chan_next.chan_prev = k.chan_prev
    if k.chan_prev != NULL:
        k.chan_prev.chan_next = k.chan_next
    else:
        k.chan.consumers = k.chan_next
    k.is_cancelled = True
    k.is_started = False
    consumer_leave_ring(k)
    reader_detach(k)
    k.queue.n_consumers -= 1
    consumer_unref(k)


# ---- life ----------------------------------------------------------------------------------------

# hot
cdef inline chan_t* link_channel(const link_t* l, u32 id) noexcept nogil:
    """The link's channel of that id, or NULL. Cost: 1 ns."""
    cdef chan_t* c = l.sparse
    if id < l.cap_chans:
        return l.chans[id]
    while c != NULL and c.id != id:
        c = c.sparse_next
    return c


cdef int link_add_channel(link_t* l, chan_t* c) noexcept nogil:
    """Make c known by its id. 0, or -1 out of memory."""
    cdef chan_t** grown
    cdef u32 cap = l.cap_chans if l.cap_chans else 2
    if c.id >= DENSE_CHANNELS:
        c.sparse_next = l.sparse
        l.sparse = c
        return 0
    while cap <= c.id:
        cap *= 2
    if cap > l.cap_chans:
        grown = <chan_t**>realloc(l.chans, cap * sizeof(chan_t*))
        if grown == NULL:
            return -1
        memset(grown + l.cap_chans, 0, (cap - l.cap_chans) * sizeof(chan_t*))
        l.chans = grown
        l.cap_chans = cap
    l.chans[c.id] = c
    return 0


cdef void link_remove_channel(link_t* l, chan_t* c) noexcept nogil:
    """Forget c; it is not freed."""
    cdef chan_t** at = &l.sparse
    if c.id < l.cap_chans:
        l.chans[c.id] = NULL
        return
    while at[0] != c:
        at = &at[0].sparse_next
    at[0] = c.sparse_next


cdef chan_t* channel_new(link_t* l, u16 id, u32 prefetch) noexcept nogil:
    cdef chan_t* c = <chan_t*>calloc(1, sizeof(chan_t))
    if c == NULL:
        return NULL
    c.link = l
    c.id = id
    c.prefetch = prefetch
    if l.wire.fd >= 0:               # else somebody waits for each publish
        c.targets.pause = route_pause
        c.targets.pauser = l.loop
    c.first_tag = c.next_tag = 1
    if l.vhost != NULL:
        tally_join(c, l.vhost)
    return c


cdef bint channel_has_names(chan_t* c) noexcept nogil:
    """Have room for the names of a content that is assembled: most channels never need it. Whether
    there was memory."""
    if c.names == NULL:
        c.names = <u8*>malloc(NAMES_SIZE)
    return c.names != NULL


cdef void channel_reset_content(chan_t* c) noexcept nogil:
    """Forget the content being assembled; large buffers do not stay."""
    c.content = CONTENT_NONE
    c.body_have = 0
    if c.body_cap > 65536:
        link_free(c.link, c.body, c.body_cap)
        c.body = NULL
        c.body_cap = 0
    if c.props_cap > 4096:
        link_give(c.link, c.props_cap)
        free(c.props)
        c.props = NULL
        c.props_cap = 0


cdef void channel_free(chan_t* c) noexcept nogil:
    """Requeue what is unsettled and free the channel. Its consumers must be gone."""
    tx_finish(c)
    channel_orphan(c)
    tx_forget(c)
    tally_leave(c)
    loop_forget_channel(c.link.loop, c)
    free(c.ring)
    free(c.old)
    free(c.names)
    free(c.route_names)
    free(c.reply_address)
    link_give(c.link, c.props_cap)
    free(c.props)
    link_free(c.link, c.body, c.body_cap)
    publish_drop(c)
    channel_pass_none(c)
    targets_free(&c.targets)
    lmq_poison(c, sizeof(chan_t))
    free(c)
