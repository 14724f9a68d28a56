# Queue: one queue's counters, its ring of able consumers, append, settle, and its part of a tick.
#
# A queue_t lives until its owner and the last unacked delivery have let go of it (`refs`), so
# settling a delivery of a deleted queue is harmless. A consumer is in the ring exactly while it can
# take a message; whoever takes or gives credit moves it. Called by route, channel, deliver, amqp
# and loop.
# Source: architecture sections 5 to 8.


# ---- life ----------------------------------------------------------------------------------------

cdef void queue_unref(queue_t* q) noexcept nogil:
    lmq_assert(q.refs > 0)
    q.refs -= 1
    if q.refs == 0:
        lmq_poison(q, sizeof(queue_t))
        free(q)


# ---- a disk that refuses -------------------------------------------------------------------------

cdef bint is_no_room(int error) noexcept nogil:
    """Whether waiting can help: no space, no descriptors, no memory."""
    return (error == ENOSPC or error == EDQUOT or error == EFBIG or error == ENOMEM
            or error == EMFILE or error == ENFILE or error == EAGAIN)


cdef void queue_failed(queue_t* q) noexcept nogil:
    """A call of the store failed, errno says why: wait for room, or close this queue."""
    q.store.write_error = errno if errno else EIO
    if is_no_room(q.store.write_error):
        queue_stick(q)
    else:
        queue_break(q)


cdef void queue_stick(queue_t* q) noexcept nogil:
    """No room: records wait in memory, publishers are held and confirms withheld, until a later
    attempt succeeds."""
    q.loop.is_held = True
    if q.is_stuck or q.is_closed or q.is_deleted:
        return
    q.is_stuck = True
    q.stuck_next = q.loop.stuck
    q.loop.stuck = q
    q.loop.is_news = True


cdef void queue_unstick(queue_t* q) noexcept nogil:
    """All is written, or the queue goes."""
    cdef queue_t** at = &q.loop.stuck
    if not q.is_stuck:
        return
    while at[0] != q:
        at = &at[0].stuck_next
    at[0] = q.stuck_next
    q.is_stuck = False
    q.loop.is_held = q.loop.is_low or q.loop.stuck != NULL
    q.loop.is_news = True


cdef void queue_break(queue_t* q) noexcept nogil:
    """The disk is broken under this queue: it is closed, the others go on. What its files hold is
    read again at the next start; unconfirmed publishes that may be lost are refused."""
    cdef loop_t* loop = q.loop
    cdef u32 i
    if q.is_closed:
        return
    q.is_closed = q.is_broken = True
    loop.n_breaks += 1
    loop.is_news = True
    for i in range(loop.n_confirms):
        if loop.confirms[i].needs_sync:
            loop.confirms[i].is_refused = True
    q.ready = q.ready_bytes = q.unacked = q.unacked_bytes = 0
    store_abandon(&q.store, &loop.pool)
    queue_unstick(q)


# hot
cdef inline void queue_touch(queue_t* q) noexcept nogil:
    """Have the tick look at this queue."""
    if not q.is_in_tick:
        q.is_in_tick = True
        q.refs += 1
        q.tick_next = q.loop.tick_queues
        q.loop.tick_queues = q


# ---- publishing ----------------------------------------------------------------------------------

cdef int queue_roll(queue_t* q) noexcept nogil:
    """Start a new segment; old data that a confirm waits for stays on the list to sync."""
    cdef store_t* st = &q.store
    if store_flush(st):
        return -1
    if q.is_sync_wanted and queue_hand_over_file(q):
        return -1
    return store_roll(st)


cdef int queue_append_slow(queue_t* q, const msg_t* m) noexcept nogil:
    """Make room for m and append it, in memory when the disk has none. Returns 0, or -1 when
    the queue is closed or there is no memory."""
    cdef store_t* st = &q.store
    cdef int rc
    if st.n_segs == 0 and store_begin(st):
        return -1
    if not q.is_stuck:
        rc = 0
        if st.wseg.count and st.wseg.size + m.size > st.segment_size:
            rc = queue_roll(q)
        if rc == 0:
            rc = store_room(st, &q.loop.pool, m.size)
        if rc > 0:
            rc = store_write_large(st, m, q.loop.now_ms)
            if rc == 0:
                return 0
        if rc < 0:
            queue_failed(q)
            if q.is_closed:
                return -1
    if (st.wseg.size + m.size) >> 32 or store_grow_stage(st, &q.loop.pool, m.size):
        return -1
    store_write(st, m, q.loop.now_ms)
    return 0


# hot
cdef inline int queue_append(queue_t* q, const msg_t* m) noexcept nogil:
    """Store m. Returns 0, or -1 when it was not stored: the queue is closed now, or memory is full.

    Cost: 15 ns for a small message into a warm stage."""
    cdef store_t* st = &q.store
    cdef u32 end = st.wseg.size
    lmq_assert(st.stage_at <= st.flushed and st.flushed <= end)
    if end + m.size <= st.segment_size and end - st.stage_at + m.size <= st.stage_cap:
        store_write(st, m, q.loop.now_ms)
    elif queue_append_slow(q, m):
        return -1
    q.ready += 1
    q.ready_bytes += m.size
    q.n_published += 1
    queue_touch(q)
    return 0


# ---- consumers -----------------------------------------------------------------------------------

# hot
cdef inline bint consumer_is_able(const consumer_t* k) noexcept nogil:
    """Whether k could take one more message now."""
    cdef chan_t* c = k.chan
    if k.is_cancelled or c.is_flow_stopped or c.link.is_blocked:
        return False
    if k.is_no_ack:
        return True
    if k.prefetch and k.unacked >= k.prefetch:
        return False
    return c.global_prefetch == 0 or c.global_unacked < c.global_prefetch


cdef void consumer_leave_ring(consumer_t* k) noexcept nogil:
    cdef queue_t* q = k.queue
    if not k.is_able:
        return
    k.is_able = False
    if k.next == k:
        q.able = NULL
        return
    k.prev.next = k.next
    k.next.prev = k.prev
    if q.able == k:
        q.able = k.next


# hot
cdef inline void consumer_join_ring(consumer_t* k) noexcept nogil:
    """Enter the ring at its end when k is able and not in it; wakes the queue."""
    cdef queue_t* q = k.queue
    cdef consumer_t* head
    if k.is_able or q.is_deleted or q.is_closed or not consumer_is_able(k):
        return
    k.is_able = True
    k.wants = 0
    head = q.able
    if head == NULL:
        k.next = k.prev = k
        q.able = k
    else:
        k.prev = head.prev
        k.next = head
        head.prev.next = k
        head.prev = k
    if q.ready:
        queue_touch(q)


# hot
cdef inline void consumer_credit(consumer_t* k) noexcept nogil:
    """A delivery of k was settled. A consumer with a large prefetch that has nearly all of it in
    its hands is refilled in batches of an eighth, or after a millisecond: less work for all."""
    if k.is_able:
        return
    if k.prefetch < BATCH_PREFETCH or k.unacked <= k.prefetch - k.prefetch // 8:
        consumer_join_ring(k)
    elif not k.is_patient and loop_add_patient(k.queue.loop, k):
        consumer_join_ring(k)


cdef void consumer_unref(consumer_t* k) noexcept nogil:
    lmq_assert(k.refs > 0)
    k.refs -= 1
    if k.refs == 0:
        queue_unref(k.queue)
        lmq_poison(k, sizeof(consumer_t))
        free(k)


# ---- taking and settling -------------------------------------------------------------------------

cdef void queue_apply_miscount(queue_t* q) noexcept nogil:
    """The walk over a segment has corrected its count: correct the queue's."""
    cdef i64 ready = <i64>q.ready + q.store.miscount
    q.store.miscount = 0
    q.ready = <u64>ready if ready > 0 else 0


cdef void queue_reconcile(queue_t* q) noexcept nogil:
    """By the counters the queue is empty, but the cursor has segments before it: records win."""
    cdef store_t* st = &q.store
    cdef rec_t rec
    while q.ready == 0 and st.n_requeued == 0 and st.rseg is not st.wseg:
        store_recount(st, &q.loop.pool)
        queue_apply_miscount(q)
        if q.ready or store_peek(st, &q.loop.pool, &rec) != -1:
            break
        q.loop.is_news = True
        if store_skip_junk(st) < 0:
            break
    queue_apply_miscount(q)
    if q.ready and q.ready_bytes == 0:
        q.ready_bytes = q.ready * RECORD_FIXED


# hot
cdef int queue_peek(queue_t* q, rec_t* rec) noexcept nogil:
    """The record to deliver next, or 0 when none can be read.
    Junk on the way is dropped and counted.

    Cost: 6 ns."""
    cdef store_t* st = &q.store
    cdef i64 lost
    cdef u64 bytes_lost
    cdef int rc
    while True:
        rc = store_peek(st, &q.loop.pool, rec)
        if st.miscount:
            queue_apply_miscount(q)
        if rc == 1:
            return 1
        if rc == -2:
            st.error = errno if errno else EIO
            q.loop.is_news = True
            return 0
        if rc == 0:             # the counter and the records part: the records are right
            q.ready = q.ready_bytes = 0
            return 0
        if rc == -3:
            rec.size = 0
            store_pop_requeued(st)
            st.lost += 1
            lost = 1
            bytes_lost = 0
        else:
            bytes_lost = st.rpos
            lost = store_skip_junk(st)
            bytes_lost = st.rpos - bytes_lost
            if st.miscount:
                queue_apply_miscount(q)
        q.loop.is_news = True
        if lost < 0:
            st.error = errno if errno else EIO
            return 0
        q.ready -= <u64>lost if <u64>lost < q.ready else q.ready
        q.ready_bytes -= bytes_lost if bytes_lost < q.ready_bytes else q.ready_bytes
        if q.ready == 0:
            q.ready_bytes = 0
            return 0


# hot
cdef inline void queue_take(queue_t* q, const rec_t* rec, bint is_no_ack) noexcept nogil:
    """The peeked record leaves the ready ones: deleted at once, or unacked from now on."""
    store_take(&q.store, rec)
    q.ready -= 1 if q.ready else 0
    q.ready_bytes -= rec.size if rec.size < q.ready_bytes else q.ready_bytes
    if rec.redelivered:
        q.n_redelivered += 1
    if is_no_ack:
        if store_delete(&q.store, rec.seg, rec.pos):
            queue_failed(q)
    else:
        q.unacked += 1
        q.unacked_bytes += rec.size


# hot
cdef inline void queue_settle(queue_t* q, const unacked_t* u, bint requeue) noexcept nogil:
    """An unacked delivery is acked or discarded (requeue false), or goes back to its place."""
    if q.is_deleted or q.is_closed:
        return
    lmq_assert(q.unacked > 0 and q.unacked_bytes >= u.size)
    q.unacked -= 1
    q.unacked_bytes -= u.size
    if requeue:
        if store_requeue(&q.store, u.seg, u.pos):
            queue_failed(q)
            return
        q.ready += 1
        q.ready_bytes += u.size
    elif store_delete(&q.store, u.seg, u.pos):
        queue_failed(q)
    queue_touch(q)


cdef u64 queue_purge(queue_t* q) noexcept nogil:
    """Delete all ready messages; returns how many.
    At most one segment is walked, the others go whole."""
    cdef store_t* st = &q.store
    cdef u64 purged = q.ready
    cdef rec_t rec
    cdef int rc
    if q.is_closed:
        return 0
    while st.n_requeued:
        store_delete(st, st.requeued[0].seg, st.requeued[0].pos)
        store_pop_requeued(st)
    if st.rseg is not st.wseg and store_drop_after_cursor(st):
        queue_failed(q)
        return 0
    while True:
        rc = store_peek(st, &q.loop.pool, &rec)
        if rc == -1 and store_skip_junk(st) >= 0:
            q.loop.is_news = True
            continue
        if rc != 1:
            break
        store_take(st, &rec)
        store_delete(st, rec.seg, rec.pos)
    q.ready = q.ready_bytes = 0
    queue_touch(q)
    return purged


# ---- end of the tick -----------------------------------------------------------------------------

cdef void queue_measure_crowd(queue_t* q) noexcept nogil:
    """Consumers first: while fast consumers are busy with a backlog, their publishers wait
    a moment (decision 0004). Those that take less than TRIAL_BYTES in TRIAL_NS hold nobody back."""
    cdef loop_t* loop = q.loop
    cdef bint was_crowded = q.is_crowded
    cdef u64 progress, taken
    if q.ready_bytes <= CROWD_BYTES or q.ready == 0 or q.n_consumers == 0 or q.able != NULL:
        q.is_crowded = False
    elif loop.now_ns >= q.slow_until_ns:
        progress = q.n_acked + q.n_rejected + q.n_delivered_no_ack
        if not was_crowded:
            q.is_crowded = True
            q.trial_ns = loop.now_ns
            q.trial_progress = progress
            q.trial_looks = 0
        elif loop.now_ns - q.trial_ns > TRIAL_NS and q.trial_looks >= TRIAL_LOOKS:
            taken = (progress - q.trial_progress) * (q.ready_bytes // q.ready)
            if taken >= TRIAL_BYTES:
                q.slow_ns = 0
            else:
                q.slow_ns = SLOW_NS if q.slow_ns == 0 else q.slow_ns * 2
                if q.slow_ns > SLOW_MAX_NS:
                    q.slow_ns = SLOW_MAX_NS
                q.slow_until_ns = loop.now_ns + q.slow_ns
                q.is_crowded = False
            q.trial_ns = loop.now_ns
            q.trial_progress = progress
            q.trial_looks = 0
        q.trial_looks += 1
    if was_crowded and not q.is_crowded:
        loop.is_release_due = True


cdef void queue_retry(queue_t* q) noexcept nogil:
    """A transient queue that found no room: its tail goes to the file now, or goes on waiting."""
    if store_flush(&q.store):
        queue_failed(q)
        return
    store_drop_stage(&q.store, &q.loop.pool)
    q.store.write_error = 0
    queue_unstick(q)


cdef void queue_end_tick(queue_t* q) noexcept nogil:
    """What was staged goes to the file (durable) or stays; an empty queue gives memory back.

    Cost: a pwrite per tick and durable queue that still holds what it was given."""
    cdef store_t* st = &q.store
    cdef pool_t* pool = &q.loop.pool
    if q.is_deleted or q.is_closed:
        return
    if q.ready == 0 and st.rseg is not st.wseg:
        queue_reconcile(q)
    if q.ready == 0 and q.unacked == 0:
        store_take_back(st)
        store_drop_stage(st, pool)
        store_drop_window(st, pool)
    if st.win_cap > BLOCK_SIZE:         # what it held has been written to a link, or has to wait
        store_drop_window(st, pool)
    if not st.is_durable:
        if q.is_stuck:
            queue_retry(q)
        return
    if store_flush(st) or store_flush_acks(st):
        queue_failed(q)
        return
    if q.is_stuck:
        st.write_error = 0
        queue_unstick(q)
    if q.loop.n_queues > KEEP_FILES_QUEUES and not q.is_sync_wanted:
        store_close_files(st)
    if st.stage != NULL and (q.n_consumers == 0 or st.rseg is not st.wseg or st.rpos < st.stage_at):
        store_drop_stage(st, pool)      # nobody reads from it: the file has it all
