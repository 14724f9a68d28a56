# Queue: one queue's counters, its rings of able consumers, append, settle, and its part of a tick.
#
# A queue_t lives until its owner and the last unacked delivery have let go of it (`refs`), so
# settling a delivery of a deleted queue is harmless. A consumer is in the ring of its priority
# while it can take a message; whoever gives credit moves it there, and it leaves when it is met
# without. Called by route, channel, deliver, amqp and loop.
# Longer than 500 lines: what happens to a message in its queue stands in one place.
# Source: docs/architecture.md.


# ---- life ----------------------------------------------------------------------------------------

cdef queue_t* queue_new(loop_t* loop, u32 segment_size, bint is_durable, const char* dirname,
                        const char* basename, const u8* name, u32 name_len) noexcept nogil:
    """A queue to which nothing has come; its store is to be in the directory `basename` of
    `dirname`, which outlives it. `name` of at most 255 bytes, NULL = none needed. NULL when out of
    memory."""
    cdef u64 n = strlen(basename) + 1
    cdef store_t* vacant = vacant_store(loop, segment_size, is_durable)
    cdef queue_t* q
    cdef u8* text
    if vacant == NULL:
        return NULL
    q = <queue_t*>calloc(1, sizeof(queue_t) + n + name_len + 1)
    if q == NULL:
        return NULL
    q.loop = loop
    q.store = vacant
    q.dirname = dirname
    q.is_durable = is_durable
    q.refs = 1
    q.due_ms = NEVER
    memcpy(queue_basename(q), basename, n)
    if name != NULL:
        text = <u8*>queue_basename(q) + n
        text[0] = <u8>name_len
        memcpy(text + 1, name, name_len)
        q.name = text
    return q


cdef inline char* queue_basename(const queue_t* q) noexcept nogil:
    """What its directory is called."""
    return <char*>(q + 1)


cdef store_t* queue_own_store(queue_t* q) noexcept nogil:
    """The store of q, for what comes first. Until then it shares one with all queues that never
    held a message: of many queues most do not. Who has asked q for its store before asks again.
    NULL when out of memory."""
    cdef store_t* st = q.store
    if not st.is_vacant:
        return st
    st = <store_t*>malloc(sizeof(store_t))
    if st != NULL:
        st[0] = q.store[0]
        st.is_vacant = False
        st.dirname = q.dirname
        st.basename = queue_basename(q)
        q.store = st
        q.is_store_owner = True
    return st


cdef void queue_unref(queue_t* q) noexcept nogil:
    lmq_assert(q.refs > 0)
    q.refs -= 1
    if q.refs == 0:
        queue_shut(q, False)
        features_free(q.features)
        if q.moves != NULL:
            queue_forget_moves(q)
            free(q.moves.unsynced.items)
            free(q.moves.unwritten.items)
            free(q.moves.parked)
            free(q.moves.large.items)
            free(q.moves)
        if q.is_store_owner:
            free(q.store)
        free(q.levels)
        free(q.trial)
        stream_free(q.stream)
        history_free(q.history)
        session_free(q.session)
        lmq_poison(q, sizeof(queue_t))
        free(q)


cdef void queue_shut(queue_t* q, bint is_closed) noexcept nogil:
    """Close or open q; the loop counts those that are closed, so that publishes look for them only
    when there is any."""
    if q.is_closed != is_closed:
        q.is_closed = is_closed
        q.loop.n_closed += 1 if is_closed else -1


# ---- levels of a priority queue ------------------------------------------------------------------

cdef extern from *:
    """
    #define highest_bit(x) (63 - __builtin_clzll(x))
    """
    u32 highest_bit(u64 x) noexcept nogil


cdef levels_t* levels_new(u32 n, const char* dirname) noexcept nogil:
    """As many levels, all without a store, in a directory; NULL when out of memory."""
    cdef u64 size = sizeof(levels_t) + n * sizeof(store_t*)
    cdef levels_t* levels = <levels_t*>calloc(1, size + strlen(dirname) + 1)
    if levels != NULL:
        levels.n = n
        levels.stores = <store_t**>(levels + 1)
        levels.dirname = <char*>levels + size
        memcpy(levels.dirname, dirname, strlen(dirname))
    return levels


# hot
cdef inline store_t* queue_level(const queue_t* q, u32 level) noexcept nogil:
    """The store of one priority; of any other queue the only one."""
    return q.levels.stores[level] if q.levels != NULL else q.store


cdef inline u32 queue_levels(const queue_t* q) noexcept nogil:
    """How many levels there can be."""
    return q.levels.n if q.levels != NULL else 1


# hot
cdef inline store_t* queue_top(const queue_t* q) noexcept nogil:
    """The store that holds the next message: the highest level that is not empty."""
    cdef u32 i
    if q.levels == NULL:
        return q.store
    for i in range(4):
        if q.levels.filled[3 - i]:
            return q.levels.stores[(3 - i) * 64 + highest_bit(q.levels.filled[3 - i])]
    return q.store


cdef void queue_count_level(queue_t* q, store_t* st, i64 change) noexcept nogil:
    """The ready messages of a level have changed."""
    if q.levels == NULL:
        return
    st.ready = <u64>(<i64>st.ready + change) if <i64>st.ready + change > 0 else 0
    if st.ready:
        q.levels.filled[st.level >> 6] |= <u64>1 << (st.level & 63)
    else:
        q.levels.filled[st.level >> 6] &= ~(<u64>1 << (st.level & 63))


cdef void queue_clear_levels(queue_t* q) noexcept nogil:
    """No level has a ready message."""
    if q.levels != NULL:
        memset(q.levels.filled, 0, sizeof(q.levels.filled))


# hot
cdef inline void queue_uncount(queue_t* q, store_t* st, u32 size) noexcept nogil:
    """A message of that many bytes is not ready any more. Behind the last one nothing is left, also
    where a segment has bytes that are no message."""
    q.ready -= 1 if q.ready else 0
    q.ready_bytes = q.ready_bytes - size if q.ready and size < q.ready_bytes else 0
    if q.levels != NULL:
        queue_count_level(q, st, -1)


cdef enum:
    LEVEL_NAME = 16             # bytes of the name of a level's directory, with what ends it


cdef store_t* queue_make_level(queue_t* q, u32 level) noexcept nogil:
    """The store of a level, made at its first message; NULL when out of memory."""
    cdef store_t* st = q.levels.stores[level]
    cdef char* basename
    if st != NULL:
        return st
    st = <store_t*>malloc(sizeof(store_t) + LEVEL_NAME)
    if st == NULL:
        return NULL
    basename = <char*>(st + 1)
    snprintf(basename, LEVEL_NAME, b"prio.%03u", level)
    store_init(st, q.loop, q.store.dirname, basename, q.store.segment_size, q.is_durable)
    st.level = <u8>level
    st.is_nested = True
    q.levels.stores[level] = st
    q.loop.n_stores += 1
    return st


# ---- a disk that refuses -------------------------------------------------------------------------

cdef bint is_no_room(int error) noexcept nogil:
    """Whether waiting can help: no space, no descriptors, no memory."""
    return (error == ENOSPC or error == EDQUOT or error == EFBIG or error == ENOMEM
            or error == EMFILE or error == ENFILE or error == EAGAIN)


cdef bint can_wait_to_read(int error) noexcept nogil:
    """The same of what cannot be read. Others have what is spoiled here, and lead soon."""
    return is_no_room(error) or error == EBADMSG


cdef void queue_failed(queue_t* q) noexcept nogil:
    """A call of a store failed, errno says why: wait for room, or close this queue."""
    cdef int error = errno if errno else EIO
    cdef store_t* st = queue_own_store(q)
    if st != NULL:              # without memory nobody can be told of it
        st.write_error = error
    if is_no_room(error):
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


cdef inline bint loop_is_full(const loop_t* loop) noexcept nogil:
    """Whether something that is to be on disk before a confirm finds no room there."""
    return loop.stuck != NULL or loop.n_full_logs != 0


cdef inline void loop_look_held(loop_t* loop) noexcept nogil:
    """Find out whether publishers are held."""
    loop.is_held = loop.is_low or loop_is_full(loop)


cdef void queue_unstick(queue_t* q) noexcept nogil:
    """All is written, or the queue goes."""
    cdef queue_t** at = &q.loop.stuck
    if not q.is_stuck:
        return
    while at[0] != q:
        at = &at[0].stuck_next
    at[0] = q.stuck_next
    q.is_stuck = False
    loop_look_held(q.loop)
    q.loop.is_news = True


cdef bint queue_is_unsynced(const queue_t* q) noexcept nogil:
    """Whether data was written since a sync was last asked for."""
    cdef u32 i
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL and queue_level(q, i).is_unsynced:
            return True
    return False


cdef void queue_break(queue_t* q) noexcept nogil:
    """The disk is broken under this queue: it is closed, the others go on. What its files hold is
    read again at the next start; unconfirmed publishes that may be lost are refused."""
    cdef loop_t* loop = q.loop
    cdef u32 i
    if q.is_closed:
        return
    queue_shut(q, True)
    q.is_broken = True
    loop.n_breaks += 1
    q.n_breaks += 1
    if queue_is_unsynced(q):
        queue_note_owing(q)
    queue_forget_moves(q)
    loop_forget_new_keys(loop, q)
    loop.is_news = True
    for i in range(loop.n_confirms):
        if loop.confirms[i].needs_sync:
            loop.confirms[i].is_refused = True
    loop.has_lost = True
    q.ready = q.ready_bytes = q.unacked = q.unacked_bytes = 0
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL and not queue_level(q, i).is_vacant:
            queue_count_level(q, queue_level(q, i), -<i64>queue_level(q, i).ready)
            store_abandon(queue_level(q, i), &loop.pool)
    if q.stream != NULL:
        stream_abandon(q)
    queue_unstick(q)


cdef void queue_join_tick(queue_t* q) noexcept nogil:
    """The work that the tick will have with q belongs to the portion of whoever made it."""
    cdef loop_t* loop = q.loop
    q.is_in_tick = True
    q.refs += 1
    q.tick_next = loop.tick_queues
    loop.tick_queues = q
    loop.n_tick_queues += 1
    loop.owed_ns += loop.touch_ns
    loop.work += loop.touch_units


# hot
cdef inline void queue_touch(queue_t* q) noexcept nogil:
    """Have the tick look at this queue."""
    if not q.is_in_tick:
        queue_join_tick(q)


# ---- publishing ----------------------------------------------------------------------------------

cdef enum:
    SLOW_UNITS = 1000           # of work, for a message for which there is no room in memory


cdef int queue_roll(queue_t* q, store_t* st) noexcept nogil:
    """Start a new segment; old data that a confirm waits for, or may come to wait for, stays on the
    list to sync."""
    if store_flush(st):
        return -1
    if (q.is_sync_wanted or q.is_owing) and store_hand_over_file(st, q.loop):
        return -1
    return store_roll(st) if q.stream == NULL else stream_roll(q)


cdef int queue_append_slow(queue_t* q, store_t* st, const msg_t* m) noexcept nogil:
    """Make room for m and append it, in memory when the disk has none. Returns 0, or -1 when
    the queue is closed or there is no memory."""
    cdef int rc
    if st.is_vacant:
        st = queue_own_store(q)
    if st == NULL or (st.n_segs == 0 and store_begin(st)):
        return -1
    if not q.is_stuck:
        rc = 0
        q.loop.work += SLOW_UNITS
        if st.is_durable and st.flushed == SEGMENT_HEADER and st.wfd < 0 and q.able == NULL:
            loop_owe_file(q.loop)           # nobody is there to take it before the tick stores it
        if q.loop.ahead != NULL and q.loop.ahead.message == m:
            rc = queue_take_ahead(q, st, q.loop.ahead)
            if rc == 0:
                return 0
        elif st.wseg.count and st.wseg.size + m.size > st.segment_size:
            rc = queue_roll(q, st)
        if rc == 0:
            rc = store_room(st, &q.loop.pool, m.size)
        if rc > 0:
            rc = store_write_large(st, m, q.loop.now_ms)
            if rc == 0:
                return 0
        if rc < 0:
            queue_failed(q)
            if q.is_closed or (m.body == NULL and m.body_len):
                return -1           # of the latter all is in the file: whoever moves it tries again
    if (st.wseg.size + m.size) >> 32 or store_grow_stage(st, &q.loop.pool, m.size):
        return -1
    store_write(st, m, q.loop.now_ms)
    return 0


# hot
cdef inline int queue_append(queue_t* q, const msg_t* m) noexcept nogil:
    """Store m. Returns what `append_result` says.

    Cost: 15 ns for a small message into a warm stage."""
    if q.is_special or m.is_special:
        return queue_append_ruled(q, m)
    return queue_append_to(q, q.store, m)


# hot
cdef inline int queue_append_to(queue_t* q, store_t* st, const msg_t* m) noexcept nogil:
    """Store m in st, whatever its features. APPENDED or APPEND_FAILED."""
    cdef u32 end = st.wseg.size
    lmq_assert(st.stage_at <= st.flushed and st.flushed <= end)
    if end + m.size <= st.segment_size and end - st.stage_at + m.size <= st.stage_cap:
        store_write(st, m, q.loop.now_ms)
    elif queue_append_slow(q, st, m):
        return APPEND_FAILED
    q.ready += 1
    q.ready_bytes += m.size
    q.n_published += 1
    queue_touch(q)
    return APPENDED


# ---- consumers -----------------------------------------------------------------------------------

# hot
cdef inline bint consumer_is_able(const consumer_t* k) noexcept nogil:
    """Whether k could take one more message now."""
    cdef chan_t* c = k.chan
    if not k.is_started or c.is_flow_stopped or c.link.wire.is_blocked:
        return False
    if k.is_no_ack:
        return True
    if k.prefetch and k.unacked >= k.prefetch:
        return False
    return c.global_prefetch == 0 or c.global_unacked < c.global_prefetch


cdef bint queue_has_able(const queue_t* q) noexcept nogil:
    """Whether any consumer could take a message now."""
    cdef const consumer_t* head = q.able
    cdef const consumer_t* k
    if q.is_paused or q.n_orphans:
        return False
    if q.stream != NULL:
        return stream_has_able(q.stream)
    while head != NULL:
        k = head
        while not consumer_is_able(k):
            k = k.next
            if k == head:
                break
        else:
            return True
        head = q.lower if head == q.able else head.lower
    return False


cdef consumer_t** queue_lower_ring(queue_t* q, int priority) noexcept nogil:
    """Where among the lower rings the one of this priority is, or would be."""
    cdef consumer_t** at = &q.lower
    while at[0] != NULL and at[0].priority > priority:
        at = &at[0].lower
    return at


cdef void consumer_leave_ring(consumer_t* k) noexcept nogil:
    """Leave the ring; the last one of the highest leaves it to the next lower ring."""
    cdef queue_t* q = k.queue
    cdef consumer_t** at
    cdef consumer_t* heir
    if not k.is_able:
        return
    k.is_able = False
    if k.reader != NULL:
        reader_leave_ring(k)
        return
    heir = k.next if k.next != k else NULL
    k.prev.next = k.next
    k.next.prev = k.prev
    if q.able == k:
        q.able = heir
        if heir == NULL and q.lower != NULL:
            q.able = q.lower
            q.lower = q.able.lower
        return
    if q.able.priority == k.priority:
        return
    at = queue_lower_ring(q, k.priority)
    if at[0] != k:
        return
    at[0] = k.lower
    if heir != NULL:
        heir.lower = k.lower
        at[0] = heir


cdef void consumer_join_other_ring(consumer_t* k) noexcept nogil:
    """Enter the ring of k's priority, which is not the highest there is now."""
    cdef queue_t* q = k.queue
    cdef consumer_t** at
    k.next = k.prev = k
    if q.able == NULL:
        q.able = k
        return
    if k.priority > q.able.priority:
        q.able.lower = q.lower
        q.lower = q.able
        q.able = k
        return
    at = queue_lower_ring(q, k.priority)
    if at[0] != NULL and at[0].priority == k.priority:
        consumer_link(k, at[0])
        return
    k.lower = at[0]
    at[0] = k


cdef inline void consumer_link(consumer_t* k, consumer_t* head) noexcept nogil:
    """Become the last one of the ring with this head."""
    k.prev = head.prev
    k.next = head
    head.prev.next = k
    head.prev = k


# hot
cdef inline void consumer_join_ring(consumer_t* k) noexcept nogil:
    """Enter the ring at its end when k is able and not in it; wakes the queue."""
    cdef queue_t* q = k.queue
    if k.is_able or q.is_deleted or q.is_closed or not consumer_is_able(k):
        return
    k.is_able = True
    k.wants = 0
    if k.reader != NULL:
        reader_join_ring(k)
        return
    if q.able != NULL and q.able.priority == k.priority:
        consumer_link(k, q.able)
    else:
        consumer_join_other_ring(k)
    if q.ready:
        queue_touch(q)


# hot
cdef inline void consumer_credit(consumer_t* k) noexcept nogil:
    """A delivery of k was settled. A consumer with a large prefetch that has nearly all of it in
    its hands is refilled in batches of an eighth, or after a millisecond: less work for all. Not so
    where priorities count: one of lower priority would be served meanwhile."""
    if k.is_able:
        return
    if (k.prefetch < BATCH_PREFETCH or k.unacked <= k.prefetch - k.prefetch // 8
            or k.queue.is_ranked):
        consumer_join_ring(k)
    elif not k.is_patient and loop_add_patient(k.queue.loop, k):
        consumer_join_ring(k)


cdef void consumer_unref(consumer_t* k) noexcept nogil:
    lmq_assert(k.refs > 0)
    k.refs -= 1
    if k.refs == 0:
        reader_free(k)
        queue_unref(k.queue)
        lmq_poison(k, sizeof(consumer_t))
        free(k)


# ---- taking and settling -------------------------------------------------------------------------

cdef void queue_apply_miscount(queue_t* q, store_t* st) noexcept nogil:
    """The walk over a segment has corrected its count: correct the queue's, by what the store had
    promised at most. What other levels hold is there all the same."""
    cdef i64 change = st.miscount
    cdef i64 ready
    if change + <i64>queue_ready_of(q, st) < 0:
        change = -<i64>queue_ready_of(q, st)
    ready = <i64>q.ready + change
    queue_count_level(q, st, change)
    st.miscount = 0
    q.ready = <u64>ready if ready > 0 else 0


cdef bint queue_reconcile(queue_t* q, store_t* st) noexcept nogil:
    """By the counters the store is empty, but the cursor has segments before it: records win. False
    when the portion was over first: then it goes on with the next call."""
    cdef rec_t rec
    cdef int rc
    while queue_ready_of(q, st) == 0 and st.n_requeued == 0 and st.rseg is not st.wseg:
        rc = store_peek(st, q.loop, &rec)
        if rc == PEEK_LATER:
            return False
        if rc == 1:
            store_recount(st, &q.loop.pool)
        elif rc == -1:
            q.loop.is_news = True
        if rc != -1 or store_skip_junk(st) < 0:
            break
        queue_apply_miscount(q, st)
    queue_apply_miscount(q, st)
    if q.ready and q.ready_bytes == 0:
        q.ready_bytes = q.ready * RECORD_FIXED
    return True


cdef inline u64 queue_ready_of(const queue_t* q, const store_t* st) noexcept nogil:
    """Ready messages of one store."""
    return q.ready if q.levels == NULL else st.ready


cdef void queue_lose(queue_t* q, store_t* st, u64 n, u64 n_bytes) noexcept nogil:
    """Messages that were counted cannot be read. They are of one store, so other levels lose none.
    """
    if n > queue_ready_of(q, st):
        n = queue_ready_of(q, st)
    queue_count_level(q, st, -<i64>n)
    q.ready -= n if n < q.ready else q.ready
    q.ready_bytes -= n_bytes if n_bytes < q.ready_bytes else q.ready_bytes
    if q.ready == 0:
        q.ready_bytes = 0
    q.loop.is_news = True


cdef int queue_read_failed(queue_t* q, store_t* st) noexcept nogil:
    """A file cannot be read, errno says why; that is told once. Returns -1."""
    cdef int error = errno if errno else EIO
    q.loop.is_news |= st.error != error
    st.error = error
    return -1


cdef int queue_pass_unreadable(queue_t* q, store_t* st, int rc) noexcept nogil:
    """store_peek has answered rc, which is negative: drop and count the junk that it met.
    0, or -1 when a file cannot be read for now."""
    cdef i64 lost = 1
    cdef u32 before = st.rpos
    if rc == -2:
        return queue_read_failed(q, st)
    q.loop.is_news = True
    if rc == -3:
        store_pop_requeued(st)
        st.lost += 1
    elif rc == -1:
        lost = store_skip_junk(st)
        if st.miscount:
            queue_apply_miscount(q, st)
    if lost < 0:
        return queue_read_failed(q, st)
    queue_lose(q, st, <u64>lost, st.rpos - before)
    return 0


# hot
cdef int queue_peek(queue_t* q, rec_t* rec) noexcept nogil:
    """The record to deliver next, or 0 when none can be read. Junk on the way is dropped and
    counted. PEEK_LATER: deleted ones have to be passed first, and the next tick gives consumers
    what is behind them; who asks for himself asks again.

    Cost: 6 ns."""
    cdef store_t* st
    cdef int rc
    while True:
        st = queue_top(q)
        rc = store_peek(st, q.loop, rec)
        if st.miscount:
            queue_apply_miscount(q, st)
        if rc == 1:
            rec.level = st.level
            return 1
        if rc == PEEK_LATER:
            queue_touch(q)
            return PEEK_LATER
        if rc == 0:             # the counter and the records part: the records are right
            queue_lose(q, st, queue_ready_of(q, st), 0)
            if q.levels != NULL and queue_top(q).ready:
                continue        # that was one level; others have messages, too
            q.ready = q.ready_bytes = 0
            return 0
        if queue_pass_unreadable(q, st, rc) or q.ready == 0:
            return 0


# hot
cdef inline void queue_take(queue_t* q, const rec_t* rec, bint is_no_ack) noexcept nogil:
    """The peeked record leaves the ready ones: deleted at once, or unacked from now on."""
    cdef store_t* st = queue_level(q, rec.level)
    store_take(st, rec)
    queue_uncount(q, st, rec.size)
    if rec.redelivered:
        q.n_redelivered += 1
    if is_no_ack:
        if st.counts.n:
            store_forget_count(st, rec.seg, rec.pos)
        if store_delete(st, rec.seg, rec.pos):
            queue_failed(q)
    else:
        q.unacked += 1
        q.unacked_bytes += rec.size


# hot
cdef inline void queue_settle(queue_t* q, const unacked_t* u, bint requeue,
                              bint is_ack) noexcept nogil:
    """An unacked delivery is acked or discarded (requeue false), or goes back to its place."""
    cdef store_t* st
    if q.is_deleted or q.is_closed:
        return
    lmq_assert(q.unacked > 0 and q.unacked_bytes >= u.size)
    q.unacked -= 1
    q.unacked_bytes -= u.size
    queue_touch(q)
    if q.stream != NULL:
        stream_settle(q, u, requeue)
        return
    st = queue_level(q, u.level)
    if (st.counts.n or not is_ack) and queue_settle_ruled(q, st, u, requeue, is_ack):
        return
    if requeue:
        if store_requeue(st, u.seg, u.pos, False):
            queue_failed(q)
            return
        q.ready += 1
        q.ready_bytes += u.size
        if q.levels != NULL:
            queue_count_level(q, st, 1)
    elif store_delete(st, u.seg, u.pos):
        queue_failed(q)


# ---- end of the tick -----------------------------------------------------------------------------

cdef void queue_measure_crowd(queue_t* q) noexcept nogil:
    """Consumers first: while fast consumers are busy with a backlog, their publishers wait
    a moment (decision 0004). Those that take less than TRIAL_BYTES in TRIAL_NS hold nobody back.
    Out of memory: nobody is held back."""
    cdef loop_t* loop = q.loop
    cdef trial_t* trial = q.trial
    cdef bint was_crowded = q.is_crowded
    cdef u64 progress, taken
    if q.stream != NULL:
        return                  # it is read, not emptied
    if q.ready_bytes <= CROWD_BYTES or q.ready == 0 or q.n_consumers == 0 or q.able != NULL:
        q.is_crowded = False
    elif trial == NULL:
        q.trial = <trial_t*>calloc(1, sizeof(trial_t))
        if q.trial != NULL:
            queue_measure_crowd(q)
        return
    elif loop.now_ns >= trial.slow_until_ns:
        progress = q.n_acked + q.n_rejected + q.n_delivered_no_ack
        if not was_crowded:
            q.is_crowded = True
            trial.start_ns = loop.now_ns
            trial.progress = progress
            trial.looks = 0
        elif loop.now_ns - trial.start_ns > TRIAL_NS and trial.looks >= TRIAL_LOOKS:
            taken = (progress - trial.progress) * (q.ready_bytes // q.ready)
            if taken >= TRIAL_BYTES:
                trial.slow_ns = 0
            else:
                trial.slow_ns = SLOW_NS if trial.slow_ns == 0 else trial.slow_ns * 2
                if trial.slow_ns > SLOW_MAX_NS:
                    trial.slow_ns = SLOW_MAX_NS
                trial.slow_until_ns = loop.now_ns + trial.slow_ns
                q.is_crowded = False
            trial.start_ns = loop.now_ns
            trial.progress = progress
            trial.looks = 0
        trial.looks += 1
    if was_crowded and not q.is_crowded:
        loop.is_release_due = True


cdef int store_retry(store_t* st, pool_t* pool) noexcept nogil:
    """A transient queue that found no room: its tail goes to the file now, or goes on waiting."""
    if store_flush(st):
        return -1
    store_drop_stage(st, pool)
    return 0


cdef bint queue_keeps_no_files(const queue_t* q) noexcept nogil:
    """Whether the files of q are closed at the end of a tick. Those of few queues stay open for the
    sync that they wait for; of many, that would take descriptors which others need."""
    cdef const loop_t* loop = q.loop
    return loop.n_stores > loop.keep_files and (
        not q.is_sync_wanted or loop.n_sync_queues > loop.keep_files)


cdef int store_end_tick(store_t* st, queue_t* q) noexcept nogil:
    """Write what was staged, give back memory. 0, 1 when that goes on in the next turn, or -1 with
    errno."""
    cdef pool_t* pool = &q.loop.pool
    cdef int rc
    cdef bint is_passing = (queue_ready_of(q, st) == 0 and st.rseg is not st.wseg
                            and not queue_reconcile(q, st))
    if is_passing:
        queue_touch(q)
    elif (q.ready == 0 and queue_ready_of(q, st) == 0 and q.unacked == 0 and q.n_purges == 0
            and not queue_has_moves(q)):
        store_take_back(st)
        store_drop_stage(st, pool)
        store_drop_window(st, pool)
        st.n_dues = 0
        st.tail_due_ms = 0
        if store_clear_counts(st):
            return -1
    if st.window != NULL and st.window.cap > BLOCK_SIZE:
        # What it held has been written to a link, or has to wait.
        store_drop_window(st, pool)
    if q.is_stuck:
        rc = store_flush_pieces(st)
        if rc:
            return rc
    if not st.is_durable:
        return store_retry(st, pool) if q.is_stuck else 0
    if store_flush(st) or (st.counts.n_news and counts_flush(st, q.loop)):
        return -1
    if store_flush_acks(st):
        return -1
    if queue_keeps_no_files(q):
        store_close_files(st)
    if st.stage != NULL and (q.n_consumers == 0 or st.rseg is not st.wseg or st.rpos < st.stage_at):
        store_drop_stage(st, pool)      # nobody reads from it: the file has it all
    return 0


cdef void queue_end_tick(queue_t* q) noexcept nogil:
    """What was staged goes to the file (durable) or stays; an empty queue gives memory back.

    Cost: a pwrite per tick and durable queue that still holds what it was given."""
    cdef u32 i
    cdef int rc = 0
    if q.is_deleted or q.is_closed:
        return
    if q.moves != NULL and q.moves.unwritten.at != q.moves.unwritten.n:
        queue_release_written(q)
        if q.is_closed:
            return
    if q.stream != NULL:
        rc = stream_end_tick(q)
    else:
        for i in range(0 if q.store.is_vacant else queue_levels(q)):
            if queue_level(q, i) != NULL and rc == 0:
                rc = store_end_tick(queue_level(q, i), q)
    if rc < 0:
        queue_failed(q)
        return
    if rc:
        queue_touch(q)
        return
    if q.is_stuck:
        if not q.store.is_vacant:
            q.store.write_error = 0
        queue_unstick(q)
    if (q.ready == 0 and q.unacked == 0 and (q.may_expire or q.may_bury)
            and not queue_has_moves(q) and not queue_is_passing(q)):
        queue_forget_messages(q)


cdef bint queue_is_passing(const queue_t* q) noexcept nogil:
    """Whether a cursor has not come to the end, so that nobody knows yet that there is nothing."""
    cdef u32 i
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL and queue_level(q, i).rseg is not queue_level(q, i).wseg:
            return True
    return False


cdef void queue_forget_messages(queue_t* q) noexcept nogil:
    """There are none: what was noted of them goes; what its features say stays."""
    q.may_expire = q.features != NULL and q.features.ttl_ms >= 0
    q.may_bury = q.features != NULL and q.features.target != NULL
    queue_note_special(q)
    queue_set_due(q, NEVER)


cdef void queue_note_special(queue_t* q) noexcept nogil:
    """Have publishes take the long way as long as anything about q asks for it."""
    q.is_special = (q.may_expire or q.features != NULL or q.levels != NULL or q.dedup != NULL
                    or q.stream != NULL or q.releases != NULL or q.history != NULL
                    or q.sample != NULL)


cdef void queue_release(queue_t* q) noexcept nogil:
    """Let go of all memory and descriptors of its stores; files stay. Whoever still asks finds a
    closed queue without messages."""
    cdef store_t* st
    cdef u32 i
    queue_shut(q, True)
    q.ready = q.ready_bytes = 0
    queue_forget_moves(q)
    queue_set_due(q, NEVER)
    if q.stream != NULL:
        stream_abandon(q)
    for i in range(queue_levels(q)):
        st = queue_level(q, i)
        if st != NULL and not st.is_vacant:
            store_release(st, &q.loop.pool)
            if i:
                free(st)
                q.levels.stores[i] = NULL
                q.loop.n_stores -= 1
