# Transaction: publishes and settlements of a channel in tx mode, kept until commit or rollback.
#
# A kept publish is one block of memory with its slices behind the struct, but for the body of a
# large one, which stays where it was received; a settlement is its tag.
# Whether a tag exists is checked when it comes, whether an exchange may be published to both then
# and before a commit changes anything, so that a commit either happens whole or not at all.
# A commit is done in portions: all is looked at, then all is carried out; the link is paused
# meanwhile. Publishes come first. What is settled goes when they are on disk, so that a loss of
# power never takes both, and the commit is answered when that is on disk, too; what it rejects is a
# dead letter on disk before that, a large one by way of haul.pyx. Publishes come to their end, and
# so do settlements, also when the channel goes; one that goes between them, while the disk is
# waited for, settles nothing.
# Called by amqp.pyx, publish.pyx, channel.pyx and link.pyx. Source: docs/durability.md.

cdef enum:
    MAX_TX_BYTES = 268435456    # of one transaction's publishes

cdef enum tx_settle_result:
    TX_SETTLED = 0
    TX_UNKNOWN_TAG = -1
    TX_ALREADY_SETTLED = -2
    TX_NO_MEMORY = -3


cdef enum tx_result:            # of a portion of a commit
    TX_COMMITTED = 0
    TX_MORE = 1                 # it goes on in the next turn
    TX_ASKS = 2                 # Python is to be asked something, and then it goes on
    TX_BAD_HEADER = 3           # nothing has been carried out, and so on
    TX_MEETS_CLOSED = 4
    TX_IS_TOO_MUCH = 5
    TX_DISK = 6                 # it goes on when all so far is on disk

cdef enum:
    TX_UNITS = 10               # of work, for looking at a publish, or carrying it out
    TX_SMALL = 65536            # bytes of publishes that are carried out in one turn,
    TX_STEPS = 1024             # if they are not more copies than that
    FORGOTTEN_AT_ONCE = 1024    # publishes; of more, most are freed later


cdef int tx_keep_publish(chan_t* c, const msg_t* m) noexcept nogil:
    """Keep m until commit. PUBLISHED, PUBLISH_MISS, PUBLISH_TX_TOO_LARGE or PUBLISH_NO_MEMORY."""
    cdef bint is_taken = m.body_len > LARGE_RECORD and m.body == c.body     # and not copied
    cdef u64 size = sizeof(tx_publish_t) + m.names_len + m.props_len
    cdef tx_publish_t* kept
    cdef exchange_t* x = link_known(c.link, m.names + 1, m.names[0])
    cdef u8* p
    if x == NULL and channel_has_route(c, m.names, m.names_len):
        x = c.route_exchange
    if x == NULL:
        x = link_allowed(c.link, m.names)
    if x == NULL:
        return PUBLISH_MISS
    if c.tx_bytes + size > MAX_TX_BYTES:                    # one message alone is never too much
        return PUBLISH_TX_TOO_LARGE
    if not is_taken:
        size += m.body_len
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
    kept.body = NULL
    kept.body_cap = 0
    p = <u8*>kept + sizeof(tx_publish_t)
    memcpy(p, m.names, m.names_len)
    memcpy(p + m.names_len, m.props, m.props_len)
    if is_taken:
        kept.body = c.body
        kept.body_cap = c.body_cap
        c.body = NULL
        c.body_cap = 0
    elif m.body_len:
        memcpy(p + m.names_len + m.props_len, m.body, m.body_len)
    if c.tx_last == NULL:
        c.tx_first = kept
    else:
        c.tx_last.next = kept
    c.tx_last = kept
    c.tx_bytes += size + kept.body_cap
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


cdef bint tx_message(chan_t* c, const tx_publish_t* kept, msg_t* m) noexcept nogil:
    """Fill m from a kept publish; False when that is not possible."""
    m.exchange = kept.exchange
    m.names = <const u8*>kept + sizeof(tx_publish_t)
    m.names_len = kept.names_len
    m.body = m.names + kept.names_len + kept.props_len
    if kept.body != NULL:
        m.body = kept.body
    m.body_len = kept.body_len
    return props_error(c.link, m.names + kept.names_len, kept.props_len, m) == 0


cdef bint queue_has_no_room(queue_t* q, u64 size, u64 plan) noexcept nogil:
    """Note that a commit would add a message to q; whether q refuses publishes and is full then."""
    cdef features_t* r = q.features
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


cdef int tx_look(chan_t* c, tx_publish_t* kept) noexcept nogil:
    """Whether a kept publish can be carried out: 0, or the tx_result that stands against it. What
    consumers might take between them does not count."""
    cdef link_t* l = c.link
    cdef const u8* names = <const u8*>kept + sizeof(tx_publish_t)
    cdef exchange_t* x
    cdef msg_t m
    cdef queue_t* q
    cdef u32 i
    cdef int rc
    if kept.epoch != l.vhost.epoch:
        # What the link has learned is noted with the publish: itself it remembers a little only.
        x = link_known(l, names + 1, names[0])
        if x == NULL:
            x = link_allowed(l, names)
        if x == NULL:
            link_ask_publish(l, names)
            return TX_ASKS
        kept.exchange = x
        rc = publish_ask(l, &m) if tx_message(c, kept, &m) else ASK_NOTHING
        if rc == ASK_NO_MEMORY:
            return TX_NO_MEMORY
        if rc != ASK_NOTHING:
            return TX_ASKS
        kept.epoch = l.vhost.epoch
    if not tx_message(c, kept, &m):
        return 0
    rc = channel_route(c, &m)
    if rc == PUBLISH_TURN:
        return TX_MORE
    if rc == PUBLISH_BAD_HEADER:
        return TX_BAD_HEADER
    if rc != PUBLISHED:
        return 0
    if l.loop.n_closed and any_target_is_closed(c):
        return TX_MEETS_CLOSED
    m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
    for i in range(c.targets.n):
        q = <queue_t*>c.targets.items[i]
        if queue_has_no_room(q, m.size, c.tx_plan):
            return TX_IS_TOO_MUCH
    l.loop.work += c.targets.n
    return 0


cdef int tx_look_on(chan_t* c) noexcept nogil:
    """Look at what is left to look at: 0 when all of it can be carried out."""
    cdef loop_t* loop = c.link.loop
    cdef unacked_t* u
    cdef int rc
    while c.tx_settled < c.n_tx_settles:
        u = channel_find(c, c.tx_settles[c.tx_settled].tag)
        if u != NULL and c.tx_settles[c.tx_settled].requeue:
            queue_has_no_room(u.queue, u.size, c.tx_plan)       # those are never refused
        c.tx_settled += 1
        if loop_spent(loop, 1):
            return TX_MORE
    while c.tx_at != NULL:
        rc = tx_look(c, c.tx_at)
        if rc:
            return rc
        c.tx_at = c.tx_at.next
        if loop_spent(loop, TX_UNITS):
            return TX_MORE
    return 0


cdef void tx_free_publish(loop_t* loop, tx_publish_t* kept) noexcept nogil:
    """It is over, or forgotten."""
    if kept.body != NULL:
        loop_free(loop, kept.body, kept.body_cap, 0)
    free(kept)


cdef struct forgotten_t:
    job_t job                   # must stay first
    tx_publish_t* first


cdef bint forgotten_step(loop_t* loop, job_t* job) noexcept nogil:
    """Free some of the publishes that a rollback has forgotten. False when all are."""
    cdef forgotten_t* f = <forgotten_t*>job
    cdef tx_publish_t* kept
    while f.first != NULL:
        kept = f.first
        f.first = kept.next
        tx_free_publish(loop, kept)
        if loop_spent(loop, 4):
            break
    if f.first != NULL:
        return True
    free(f)
    return False


cdef void tx_forget_publishes(chan_t* c) noexcept nogil:
    """Free what was kept: here as long as it is little, the others by a job."""
    cdef tx_publish_t* kept
    cdef forgotten_t* f
    cdef u32 n = 0
    while c.tx_first != NULL:
        if n == FORGOTTEN_AT_ONCE:
            f = <forgotten_t*>calloc(1, sizeof(forgotten_t))
            if f != NULL:
                f.job.step = forgotten_step
                f.first = c.tx_first
                c.tx_first = NULL
                loop_add_job(c.link.loop, &f.job)
                break
        kept = c.tx_first
        c.tx_first = kept.next
        tx_free_publish(c.link.loop, kept)
        n += 1
    c.tx_last = c.tx_at = NULL


cdef int tx_publish_next(chan_t* c) noexcept nogil:
    """Carry out the first of the kept publishes. An exchange that has been deleted since all was
    looked at takes it as if before that. PUBLISHED or PUBLISH_TURN."""
    cdef loop_t* loop = c.link.loop
    cdef tx_publish_t* kept = c.tx_first
    cdef const u8* names = <const u8*>kept + sizeof(tx_publish_t)
    cdef vhost_t* v = c.link.vhost
    cdef msg_t m
    cdef int rc = PUBLISHED
    if kept.epoch != v.epoch:
        kept.exchange = vhost_exchange(v, names + 1, names[0])
        kept.epoch = v.epoch
    c.publish_flags = kept.flags
    if (kept.exchange != NULL or c.job != NULL) and tx_message(c, kept, &m):
        c.is_tx = False             # now it is a real one
        loop.is_committing = c.tx_is_late
        rc = channel_publish(c, &m)
        loop.is_committing = False
        c.is_tx = True
        if rc == PUBLISHED:
            loop.work += <u32>(m.size >> UNIT_SHIFT)
    if rc == PUBLISH_TURN:
        return rc
    c.tx_first = kept.next
    tx_free_publish(c.link.loop, kept)
    return PUBLISHED


cdef void tx_settle_kept(chan_t* c, const tx_settle_t* settle) noexcept nogil:
    """Carry out a settlement, and have the next sync cover what it deletes."""
    cdef unacked_t* u = channel_find(c, settle.tag)
    cdef queue_t* q
    cdef u64 n_hauls
    if u == NULL:
        return
    q = u.queue
    q.refs += 1
    n_hauls = q.moves.n_hauls if q.moves != NULL else 0
    if not settle.requeue:
        queue_want_acks(q, queue_level(q, u.level))
    channel_settle(c, settle.tag, False, settle.requeue, settle.is_ack)
    if not settle.is_ack and not q.is_closed and not q.is_deleted and queue_has_moves(q):
        q.moves.is_awaited = c.tx_has_buried = True
        if q.moves.n_hauls != n_hauls and tx_await_haul(c, q):
            c.is_refused = True
    queue_unref(q)


cdef int tx_await_haul(chan_t* c, queue_t* q) noexcept nogil:
    """A large message of q is to go elsewhere: the commit waits for it. 0, or -1 out of memory."""
    cdef tx_haul_t* h
    q.moves.hauls_awaited = q.moves.n_hauls
    if c.n_tx_hauls and c.tx_hauls[c.n_tx_hauls - 1].queue == q:
        c.tx_hauls[c.n_tx_hauls - 1].until = q.moves.n_hauls
        return 0
    if c.n_tx_hauls == c.cap_tx_hauls:
        h = <tx_haul_t*>realloc(c.tx_hauls, (<u64>c.cap_tx_hauls * 2 + 4) * sizeof(tx_haul_t))
        if h == NULL:
            return -1
        c.tx_hauls = h
        c.cap_tx_hauls = c.cap_tx_hauls * 2 + 4
    h = &c.tx_hauls[c.n_tx_hauls]
    c.n_tx_hauls += 1
    h.queue = q
    h.until = q.moves.n_hauls
    q.refs += 1
    return 0


cdef bint tx_awaits_hauls(chan_t* c) noexcept nogil:
    """Whether large messages are on their way. What could not go counts as gone: it stays where it
    was."""
    cdef tx_haul_t* h
    while c.n_tx_hauls:
        h = &c.tx_hauls[c.n_tx_hauls - 1]
        if not h.queue.is_deleted and not h.queue.is_closed and h.queue.moves.n_hauled < h.until:
            return True
        c.n_tx_hauls -= 1
        queue_unref(h.queue)
    tx_forget_hauls(c)
    return False


cdef void tx_forget_hauls(chan_t* c) noexcept nogil:
    """Wait for no large message any more."""
    while c.n_tx_hauls:
        c.n_tx_hauls -= 1
        queue_unref(c.tx_hauls[c.n_tx_hauls].queue)
    free(c.tx_hauls)
    c.tx_hauls = NULL
    c.cap_tx_hauls = 0


cdef int tx_bury(chan_t* c) noexcept nogil:
    """Dead letters have been sent: TX_DISK when all have come, TX_MORE while one is on its way: of
    that no part is of use on the disk, and every turn would have one synced."""
    return TX_MORE if tx_awaits_hauls(c) else TX_DISK


cdef int tx_carry_out(chan_t* c) noexcept nogil:
    """Publishes in order, then settlements in order. TX_COMMITTED, TX_MORE or TX_DISK."""
    cdef loop_t* loop = c.link.loop
    # A small one is not torn by the end of a turn: all that a queue gets of it is in one write.
    cdef u32 n_left = TX_STEPS if c.tx_bytes <= TX_SMALL else 0
    while c.tx_first != NULL:
        if (tx_publish_next(c) == PUBLISH_TURN or loop_spent(loop, TX_UNITS)) and n_left == 0:
            return TX_MORE
        n_left -= n_left != 0
    if c.tx_phase == TX_CARRIES_OUT and c.tx_has_published and c.n_tx_settles:
        c.tx_phase = TX_WAITS
        return TX_DISK
    c.tx_phase = TX_SETTLES
    while c.tx_settled < c.n_tx_settles:
        tx_settle_kept(c, &c.tx_settles[c.tx_settled])
        c.tx_settled += 1
        if loop_spent(loop, 4):
            return TX_MORE
    c.n_tx_settles = 0
    if c.tx_has_buried:
        c.tx_phase = TX_BURIES
        return tx_bury(c)
    tx_forget(c)
    return TX_COMMITTED


cdef int tx_commit(chan_t* c) noexcept nogil:
    """Commit, or go on with it. A tx_result; after TX_MORE and TX_ASKS this has to be
    called again, or tx_forget; so after TX_DISK, when all that was stored is on disk."""
    cdef loop_t* loop = c.link.loop
    cdef int rc
    if c.tx_phase == TX_KEEPS:
        c.tx_phase = TX_LOOKS
        c.tx_at = c.tx_first
        c.tx_settled = 0
        c.tx_is_late = False
        loop.n_plans += 1
        c.tx_plan = loop.n_plans
    if c.tx_phase == TX_LOOKS:
        rc = tx_look_on(c)
        if rc:
            c.tx_is_late = True
            if rc != TX_MORE and rc != TX_ASKS:
                c.tx_phase = TX_KEEPS
            return rc
        c.tx_phase = TX_CARRIES_OUT
        c.tx_has_published = c.tx_first != NULL
        c.tx_has_buried = False
        c.tx_settled = 0
        c.is_overflowed = c.is_refused = False
        if loop_spent(loop, 0):
            c.tx_is_late = True
            return TX_MORE
    elif c.tx_phase == TX_WAITS:
        c.tx_phase = TX_SETTLES
    elif c.tx_phase == TX_BURIES:
        if c.tx_hauls != NULL:
            return tx_bury(c)
        c.tx_has_buried = False
    rc = tx_carry_out(c)
    if rc == TX_MORE:
        c.tx_is_late = True
    return rc


cdef void tx_finish(chan_t* c) noexcept nogil:
    """The channel goes: the publishes of a commit come to their end, and so do its settlements. If
    it waits for the disk in between, they stay undone: what is forgotten now might be lost."""
    while c.tx_phase == TX_CARRIES_OUT or c.tx_phase == TX_SETTLES:
        loop_begin_portion(c.link.loop, PORTION_NS)
        c.link.loop.make_owed_ns = 0        # no tick comes in between
        tx_carry_out(c)


cdef void tx_forget(chan_t* c) noexcept nogil:
    """Rollback, or what is left after a commit: forget all that is kept."""
    cdef unacked_t* u
    cdef u32 i
    for i in range(c.n_tx_settles):
        u = channel_find(c, c.tx_settles[i].tag)
        if u != NULL:
            u.is_tx_settled = False
    tx_forget_publishes(c)
    c.tx_phase = TX_KEEPS
    tx_forget_hauls(c)
    link_give(c.link, c.tx_bytes)
    c.tx_bytes = 0
    free(c.tx_settles)
    c.tx_settles = NULL
    c.n_tx_settles = c.cap_tx_settles = 0
    c.tx_until = 0
