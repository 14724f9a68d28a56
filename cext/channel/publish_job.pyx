# Publish job: a publish that goes on in another turn.
#
# Between them the exchange may be deleted, and queues: those that are left are held, so that their
# structs live. What is decided once was decided before the first queue took the message.


cdef bint is_being_stored(const exchange_t* x, const msg_t* m) noexcept nogil:
    """Whether a message with the key of m is on its way into the queues of x."""
    cdef const publish_job_t* job = x.storing
    cdef u64 key[2]
    if not dedup_key(x.dedup, m, key):
        return False
    while job != NULL and (job.key[0] != key[0] or job.key[1] != key[1]):
        job = job.storing_next
    return job != NULL


cdef bint publish_is_long(const chan_t* c, u32 units) noexcept nogil:
    """Whether the clock is to be looked at between the targets; each takes so many units, and any
    of them may have to write to its file first."""
    cdef u32 n = c.targets.n
    return n >= LONG_TARGETS or <u64>n * units > c.link.loop.look_units


cdef bint publish_hold(chan_t* c, const msg_t* m) noexcept nogil:
    """Have the targets last until all have taken the message. False when it cannot be put off, or
    there is no memory for it."""
    cdef exchange_t* x = c.route_exchange
    cdef u32 i
    if c.targets.pause == NULL:
        return False
    c.job = <publish_job_t*>calloc(1, sizeof(publish_job_t))
    if c.job == NULL:
        return False
    c.job.phase = PUBLISH_STORES
    c.job.is_owing = x.dedup != NULL
    c.job.epoch = c.route_epoch
    for i in range(c.targets.n):
        (<queue_t*>c.targets.items[i]).refs += 1
    c.link.loop.work += c.targets.n
    if x.dedup != NULL and dedup_key(x.dedup, m, c.job.key):
        c.job.storing_next = x.storing
        x.storing = c.job
    return True


cdef exchange_t* publish_exchange(const chan_t* c) noexcept nogil:
    """The exchange of c's job, or NULL when it has gone."""
    cdef vhost_t* v = c.link.vhost
    if c.job.epoch == v.epoch:
        return c.route_exchange
    if vhost_exchange(v, c.route_names + 1, c.route_names[0]) != c.route_exchange:
        return NULL
    return c.route_exchange


cdef bint publish_write_ahead(chan_t* c, queue_t* q, const msg_t* m) noexcept nogil:
    """Write m, which is large, into a file for q. False when the portion is over before it is
    whole; true also when there is to be no file: then it is stored, or refused, in one go."""
    cdef ahead_t* ahead = &c.job.ahead
    cdef store_t* st
    cdef int rc
    if q.is_closed or q.is_stuck or queue_refuses(q, m.size):
        return True
    st = queue_level_for(q, m)
    if st == NULL:
        return True
    rc = ahead_write(ahead, q, st, m, NULL)
    if rc < 0:
        store_failed(st, FILE_MSGS, st.wseg.id)
        queue_failed(q)
    elif rc == AHEAD_WHOLE:
        ahead.message = m
    return rc != AHEAD_TURN


cdef bint publish_dies(chan_t* c, queue_t* q, const msg_t* m) noexcept nogil:
    """Whether q is full, and has m, which is large, go to where dead letters go."""
    if c.job.haul != NULL:
        return True
    if q.is_closed or q.loop.is_committing or not bury_overflow(q, m):
        return False
    if q.able != NULL:
        queue_deliver_all(q)
    return bury_overflow(q, m)


cdef bint publish_bury(chan_t* c, queue_t* q, const msg_t* m) noexcept nogil:
    """Send m to where dead letters of q go. False when the portion is over before that is done. A
    dead letter that is refused is lost: its publisher has it."""
    cdef haul_t* h = c.job.haul
    cdef letter_t d
    cdef int rc
    if h == NULL:
        h = haul_of_content(q) if letter_of_refused(&d, q, m) else NULL
        if h == NULL:
            return True
        c.job.haul = h
        if not haul_add_letter(h, &d):
            return True
    h.body.p = m.body
    rc = haul_go_on(h)
    return rc != HAUL_TURN


cdef int publish_go_on(chan_t* c, msg_t* m) noexcept nogil:
    """Store m in the queues that have not got it yet. PUBLISHED or PUBLISH_TURN."""
    cdef loop_t* loop = c.link.loop
    cdef publish_job_t* job = c.job
    cdef u32 units
    cdef stored_t stored
    cdef queue_t* q
    m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
    units = TARGET_UNITS + <u32>(m.size >> UNIT_SHIFT)
    while job.at < c.targets.n:
        q = <queue_t*>c.targets.items[job.at]
        if store_is_blank(q.store) and loop_makes_enough(loop):
            loop_look(loop)
            return PUBLISH_TURN
        if not q.is_deleted:
            if m.size > LARGE_RECORD and publish_dies(c, q, m):
                if not publish_bury(c, q, m):
                    return PUBLISH_TURN
                job.stored.is_overflowed = True
            elif m.size > LARGE_RECORD and not publish_write_ahead(c, q, m):
                return PUBLISH_TURN
            else:
                loop.ahead = &job.ahead
                channel_store(c, q, m, publisher_is_told(c), job.is_owing, &job.stored)
                loop.ahead = NULL
        if m.size > LARGE_RECORD:
            publish_drop_files(job)
        job.at += 1
        queue_unref(q)
        if loop_spent(loop, units) and job.at < c.targets.n:
            return PUBLISH_TURN
    stored = job.stored
    # A sync may have covered the first queues already, and taken back what the channel wanted.
    c.needs_sync = c.needs_sync or (
        stored.is_durable and (c.is_confirm or c.tx_last != NULL))
    publish_end(c, publish_exchange(c), m, &stored)
    publish_drop(c)
    return publish_confirm(c, stored.is_overflowed, False)


cdef void publish_drop_files(publish_job_t* job) noexcept nogil:
    """What was written for the target at `job.at`, and is no segment, is not needed any more."""
    ahead_drop(&job.ahead)
    if job.haul != NULL:
        haul_free(job.haul)
        job.haul = NULL


cdef void publish_job_free(chan_t* c) noexcept nogil:
    publish_drop_files(c.job)
    free(c.job.asked)
    free(c.job)
    c.job = NULL


cdef void publish_drop(chan_t* c) noexcept nogil:
    """The publish is over, or never ends: let go of all that was kept for it."""
    cdef publish_job_t** at
    cdef exchange_t* x
    cdef u32 i
    if c.job == NULL:
        return
    if c.job.phase == PUBLISH_STORES:
        for i in range(c.job.at, c.targets.n):
            queue_unref(<queue_t*>c.targets.items[i])
        x = publish_exchange(c)
        if x != NULL:
            at = &x.storing
            while at[0] != NULL and at[0] != c.job:
                at = &at[0].storing_next
            if at[0] != NULL:
                at[0] = c.job.storing_next
    publish_job_free(c)
    c.targets.n = 0
    c.route_version = 0
    cursor_reset(&c.targets)
