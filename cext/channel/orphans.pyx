# Orphans: deliveries that their channel has left unsettled go back to their queues, in portions.
#
# A channel that ends may hold any number of deliveries. A few are requeued at once; more are taken
# from it as a whole and requeued by a job of the loop, by rising tag. Until the last one is back
# its queue delivers nothing: consumers would get younger messages first. Called by channel.pyx.

cdef enum:
    ORPHANS_AT_ONCE = 1024      # that are requeued at once
    ORPHANS_LOOK = 64           # between two looks at the portion
    SETTLE_UNITS = 6            # of work for each

cdef struct orphans_t:
    job_t job                   # must stay first
    chan_t chan                 # nobody's: only its unsettled deliveries count


cdef inline unacked_t* channel_first_unacked(chan_t* c) noexcept nogil:
    """The unsettled delivery with the lowest tag, or NULL. Forgets the settled ones before it."""
    while c.old_at < c.n_old:
        if c.old[c.old_at].queue != NULL:
            return &c.old[c.old_at]
        c.old_at += 1
    channel_trim(c)
    return &c.ring[c.first_tag & (c.ring_cap - 1)] if c.first_tag < c.next_tag else NULL


cdef void channel_await_orphans(chan_t* c, u64 below) noexcept nogil:
    """Have the queues of all deliveries of c wait until these are back."""
    cdef u64 tag = c.first_tag
    cdef u32 i
    for i in range(c.old_at, c.n_old):
        if c.old[i].queue != NULL:
            c.old[i].queue.n_orphans += 1
    while tag < below:
        if c.ring[tag & (c.ring_cap - 1)].queue != NULL:
            c.ring[tag & (c.ring_cap - 1)].queue.n_orphans += 1
        tag += 1


cdef bint orphans_step(loop_t* loop, job_t* job) noexcept nogil:
    """Requeue some. False when all are back."""
    cdef orphans_t* o = <orphans_t*>job
    cdef unacked_t* u
    cdef queue_t* q
    cdef u32 n = 0
    while True:
        u = channel_first_unacked(&o.chan)
        if u == NULL:
            break
        q = u.queue
        q.n_orphans -= 1
        channel_settle_one(&o.chan, u, True, False)
        n += 1
        if n % ORPHANS_LOOK == 0 and loop_spent(loop, ORPHANS_LOOK * SETTLE_UNITS):
            if loop.over != NULL:
                loop_enforce(loop)
            return True
    if loop.over != NULL:
        loop_enforce(loop)
    loop.n_orphans -= 1
    free(o.chan.ring)
    free(o.chan.old)
    free(o)
    return False


cdef void channel_orphan(chan_t* c) noexcept nogil:
    """Requeue all that c has not settled: at once when it is little, or for want of memory, else by
    a job. A queue touched here delivers in the next tick at the earliest."""
    cdef loop_t* loop = c.link.loop
    cdef orphans_t* o = NULL
    c.settle_until = 0
    if c.n_unacked > ORPHANS_AT_ONCE:
        o = <orphans_t*>calloc(1, sizeof(orphans_t))
    if o == NULL:
        channel_settle_all(c, True, False)
        return
    channel_await_orphans(c, c.next_tag)
    o.job.step = orphans_step
    o.chan.link = &loop.nowhere
    o.chan.ring = c.ring
    o.chan.ring_cap = c.ring_cap
    o.chan.first_tag = c.first_tag
    o.chan.next_tag = c.next_tag
    o.chan.old = c.old
    o.chan.n_old = c.n_old
    o.chan.old_at = c.old_at
    o.chan.n_unacked = c.n_unacked
    o.chan.global_unacked = c.global_unacked
    c.ring = NULL
    c.old = NULL
    c.ring_cap = c.n_old = c.cap_old = c.old_at = c.n_old_settled = 0
    c.n_unacked = c.global_unacked = 0
    c.first_tag = c.next_tag
    loop.n_orphans += 1
    loop_add_job(loop, &o.job)


cdef void queue_await_orphans(queue_t* q) noexcept nogil:
    """Have all deliveries back that are on their way to q, before it is written out."""
    while q.n_orphans and q.loop.jobs != NULL:
        loop_step_job(q.loop)
