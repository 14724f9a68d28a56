# Expiry: when messages die by themselves, and which queue has to be looked at next.
#
# A deadline follows from the record: its time plus the shorter of the queue's TTL and its own
# expiration. Whoever takes a message checks it, so none is delivered late. For those that nobody
# takes there is an index: as long as deadlines rise from message to message looking at the head is
# enough, and nothing is kept; only a message that expires before one in front of it is put on its
# store's heap, and one that comes back. After a start the segments are looked through one by one,
# for those that the heap has to have. The loop has a heap of queues by the earliest deadline that
# they may have.
# Source: docs/protocol.md, messages that die.
from libc.stdlib cimport bsearch, qsort

cdef enum:
    DEATH_UNITS = 30            # of work, for each message that dies
    DEATHS_AT_ONCE = 512        # of them, before somebody who asks for a message hears of none
    BACK_AT_ONCE = 16384        # of those due, given back ones that are looked for together
    EXPIRY_NS = 2000000         # of delayed messages released, or parked ones sent, at a stretch
    READ_PAUSE_MS = 500         # before what had no memory or descriptor is tried again


# ---- deadlines -----------------------------------------------------------------------------------

cdef inline i64 expiration_ms(const u8* text) noexcept nogil:
    """Milliseconds of an expiration property, which was checked when it came in; -1 = none."""
    cdef u32 i = 0, n = text[0]
    cdef i64 value = 0
    while i < n and (text[1 + i] < c'0' or text[1 + i] > c'9'):
        if text[1 + i] == c'-':
            return 0
        i += 1
    if i == n:
        return -1
    while i < n and c'0' <= text[1 + i] <= c'9' and value >> 32 == 0:
        value = value * 10 + (text[1 + i] - c'0')
        i += 1
    return value


cdef inline i64 own_deadline_ms(i64 stored_ms, const u8* expiration) noexcept nogil:
    """When a message expires by its own property, NEVER if it has none."""
    cdef i64 ms = expiration_ms(expiration) if expiration != NULL else -1
    return stored_ms + ms if ms >= 0 else NEVER


cdef inline i64 rec_own_deadline_ms(const rec_t* rec) noexcept nogil:
    """own_deadline_ms of a stored message."""
    return own_deadline_ms(<i64>le64(rec.names - 8),
                           rec.props + rec.expiration_at if rec.expiration_at else NULL)


cdef inline i64 rec_deadline_ms(const queue_t* q, const rec_t* rec) noexcept nogil:
    """When a stored message expires, NEVER if it does not. Cost: 3 ns."""
    cdef i64 stored_ms = <i64>le64(rec.names - 8)
    cdef i64 own = rec_own_deadline_ms(rec)
    cdef i64 ttl = q.features.ttl_ms if q.features != NULL else -1
    if queue_has_sent(q, rec.seg, rec.pos):
        return NEVER
    return stored_ms + ttl if ttl >= 0 and stored_ms + ttl < own else own


# ---- messages that expire out of order -----------------------------------------------------------

cdef int dues_push(store_t* st, i64 at_ms, u32 seg, u32 pos) noexcept nogil:
    """0, or -1 out of memory: then it expires when it comes to the head."""
    cdef due_t* grown
    cdef due_t item
    if st.n_dues == st.cap_dues:
        grown = <due_t*>realloc(st.dues, (<u64>st.cap_dues * 2 + 64) * sizeof(due_t))
        if grown == NULL:
            return -1
        st.dues = grown
        st.cap_dues = st.cap_dues * 2 + 64
    item.at_ms = at_ms
    item.seg = seg
    item.pos = pos
    heap_rise(st.dues, st.n_dues, item)
    st.n_dues += 1
    return 0


cdef void dues_pop(store_t* st) noexcept nogil:
    st.n_dues -= 1
    if st.n_dues == 0:
        if st.cap_dues > 4096:
            free(st.dues)
            st.dues = NULL
            st.cap_dues = 0
        return
    heap_sink(st.dues, st.n_dues, 0, st.dues[st.n_dues])


cdef void queue_may_expire(queue_t* q) noexcept nogil:
    """From now on messages of q may have a deadline. Nobody has looked at those that are there; all
    that come are looked at, also those without one: behind them deadlines are out of order."""
    cdef u32 i
    if q.may_expire:
        return
    q.may_expire = q.is_special = True
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL and (q.ready or q.unacked):
            queue_level(q, i).tail_due_ms = NEVER


cdef void queue_note_deadline(queue_t* q, store_t* st, const msg_t* m, u32 pos) noexcept nogil:
    """A message was appended at pos of the write segment: have it looked at in time."""
    cdef i64 own = own_deadline_ms(
        q.loop.now_ms, m.props + m.expiration_at if m.expiration_at else NULL)
    cdef i64 ttl = q.features.ttl_ms if q.features != NULL else -1
    cdef i64 due = q.loop.now_ms + ttl if ttl >= 0 and q.loop.now_ms + ttl < own else own
    if own >= st.tail_due_ms:
        st.tail_due_ms = own
    else:
        dues_push(st, own, st.wseg.id, pos)
    if due < q.due_ms:
        queue_set_due(q, due)


# ---- messages that were there at the start ------------------------------------------------------

cdef void queue_want_index(queue_t* q) noexcept nogil:
    """q was loaded: have it looked through for deadlines."""
    cdef store_t* st
    cdef u32 i
    for i in range(queue_levels(q)):
        st = queue_level(q, i)
        if st != NULL and st.n_segs:
            st.index_at = st.segs[0].id
            st.index_last = st.wseg.id
            st.index_end = st.wseg.size
    if q.is_unindexed:
        return                      # loaded again before anybody has looked
    q.is_unindexed = True
    q.refs += 1
    q.index_next = q.loop.unindexed
    q.loop.unindexed = q


cdef void store_index_deadlines(store_t* st, seg_t* seg, u32 end, pool_t* pool) noexcept nogil:
    """Put what has a deadline of its own and is in front of the cursor on the heap. Behind damage
    messages expire when they come to the head."""
    cdef rec_t rec
    cdef window_t window
    cdef u32 pos = st.rpos if seg is st.rseg else SEGMENT_HEADER, i = 0, n = seg.n_deleted
    cdef i64 own
    cdef u32* deleted = <u32*>malloc((<u64>n + 1) * sizeof(u32))
    if deleted == NULL:
        return
    memset(&window, 0, sizeof(window_t))
    window.fd = -1
    if n:
        memcpy(deleted, seg.deleted, n * sizeof(u32))
    qsort(deleted, n, sizeof(u32), compare_u32)
    while pos < end and store_read(st, pool, &window, seg, pos, BLOCK_SIZE, &rec) == 1:
        while i < n and deleted[i] < pos:
            i += 1
        own = rec_own_deadline_ms(&rec)
        if own != NEVER and not (i < n and deleted[i] == pos):
            dues_push(st, own, seg.id, pos)
        pos += rec.size
    window_drop(&window, pool)
    free(deleted)


cdef bint queue_index_next(queue_t* q) noexcept nogil:
    """Look through the next segment of q; False when there is none."""
    cdef store_t* st
    cdef seg_t* seg
    cdef u32 i, at
    for i in range(queue_levels(q)):
        st = queue_level(q, i)
        if st == NULL or st.index_at == 0:
            continue
        at = store_index(st, st.index_at if st.index_at > st.rseg.id else st.rseg.id)
        if at == st.n_segs or st.segs[at].id > st.index_last:
            st.index_at = 0
            continue
        seg = st.segs[at]
        st.index_at = seg.id + 1
        store_index_deadlines(
            st, seg, st.index_end if seg.id == st.index_last else seg.size, &q.loop.pool)
        if st.n_dues and st.dues[0].at_ms < q.due_ms:
            queue_set_due(q, st.dues[0].at_ms)
        return True
    return False


cdef void loop_index(loop_t* loop) noexcept nogil:
    """Look through one segment that was there at the start."""
    cdef queue_t* q
    while loop.unindexed != NULL:
        q = loop.unindexed
        if not q.is_deleted and not q.is_closed and queue_index_next(q):
            break
        loop.unindexed = q.index_next
        q.is_unindexed = False
        queue_unref(q)


# ---- the loop's heap of queues -------------------------------------------------------------------

cdef void dues_place(loop_t* loop, u32 i, queue_t* q) noexcept nogil:
    loop.dues[i] = q
    q.due_at = i + 1


cdef void dues_sift(loop_t* loop, u32 i) noexcept nogil:
    """Move the queue at i to where it belongs."""
    cdef queue_t* q = loop.dues[i]
    cdef u32 up, child
    while i:
        up = (i - 1) >> 1
        if loop.dues[up].due_ms <= q.due_ms:
            break
        dues_place(loop, i, loop.dues[up])
        i = up
    while True:
        child = 2 * i + 1
        if child >= loop.n_dues:
            break
        if child + 1 < loop.n_dues and loop.dues[child + 1].due_ms < loop.dues[child].due_ms:
            child += 1
        if loop.dues[child].due_ms >= q.due_ms:
            break
        dues_place(loop, i, loop.dues[child])
        i = child
    dues_place(loop, i, q)


cdef void queue_set_due(queue_t* q, i64 due_ms) noexcept nogil:
    """Have the loop look at q's deadlines at due_ms; NEVER takes it off the heap."""
    cdef loop_t* loop = q.loop
    cdef queue_t** grown
    cdef u32 i
    q.due_ms = due_ms
    if q.due_at == 0:
        if due_ms == NEVER:
            return
        if loop.n_dues == loop.cap_dues:
            grown = <queue_t**>realloc(
                loop.dues, (<u64>loop.cap_dues * 2 + 64) * sizeof(queue_t*))
            if grown == NULL:
                q.due_ms = NEVER        # tried again with the next message
                return
            loop.dues = grown
            loop.cap_dues = loop.cap_dues * 2 + 64
        dues_place(loop, loop.n_dues, q)
        loop.n_dues += 1
    elif due_ms == NEVER:
        i = q.due_at - 1
        q.due_at = 0
        loop.n_dues -= 1
        if i < loop.n_dues:
            dues_place(loop, i, loop.dues[loop.n_dues])
            dues_sift(loop, i)
        return
    dues_sift(loop, q.due_at - 1)


# ---- what is due ---------------------------------------------------------------------------------

cdef bint store_is_ahead(const store_t* st, u32 seg, u32 pos) noexcept nogil:
    """Whether the cursor has not passed that place."""
    return seg > st.rseg.id or (seg == st.rseg.id and pos >= st.rpos)


cdef void store_forget_due(store_t* st, u32 seg, u32 pos) noexcept nogil:
    """A message that may have a deadline of its own is gone before it: its entry is nobody's."""
    cdef u32 i
    for i in range(st.n_dues):
        if st.dues[i].pos == pos and st.dues[i].seg == seg:
            st.dues[i].seg = 0
            return


cdef void queue_expire_ahead(queue_t* q, store_t* st, u32 seg_id, u32 pos) noexcept nogil:
    """Expire a ready message that is not at the head, if it is still there."""
    cdef seg_t* seg = store_segment(st, seg_id)
    cdef rec_t rec
    if seg == NULL or not store_is_ahead(st, seg_id, pos) or queue_has_sent(q, seg_id, pos):
        return                  # taken: whoever has it, or gives it back, looks at its deadline
    if store_read(st, &q.loop.pool, store_window(st), seg, pos, 4096, &rec) != 1:
        return                  # the cursor will find out
    rec.level = st.level
    rec.is_requeued = rec.redelivered = False
    if segment_push_deleted(seg, pos):
        return
    queue_uncount(q, st, rec.size)
    queue_discard(q, &rec, DEAD_EXPIRED)


cdef int compare_loc(const void* a, const void* b) noexcept nogil:
    if is_before((<const loc_t*>a)[0], (<const loc_t*>b)[0]):
        return -1
    return is_before((<const loc_t*>b)[0], (<const loc_t*>a)[0])


cdef void queue_discard_requeued(queue_t* q, store_t* st, loc_t at) noexcept nogil:
    """Expire a message that was requeued and is not among those any more."""
    cdef rec_t rec
    cdef seg_t* seg = store_segment(st, at.seg)
    if seg == NULL or store_read(st, &q.loop.pool, store_window(st), seg, at.pos, 4096, &rec) != 1:
        store_requeue(st, at.seg, at.pos, at.is_fresh)      # who takes it will find out
        return
    rec.level = st.level
    rec.redelivered = not at.is_fresh
    queue_uncount(q, st, rec.size)
    queue_discard(q, &rec, DEAD_EXPIRED)


cdef void queue_expire_requeued(queue_t* q, store_t* st, loc_t* due, u32 n) noexcept nogil:
    """Expire those of n messages that are requeued; who holds one of the others looks at its
    deadline. Sorts `due`."""
    cdef u32 i, kept = 0, n_requeued = st.n_requeued
    cdef loc_t item
    qsort(due, n, sizeof(loc_t), compare_loc)
    loop_spent(q.loop, n_requeued >> 1)
    for i in range(n_requeued):
        item = st.requeued[i]
        if bsearch(&item, due, n, sizeof(loc_t), compare_loc) == NULL:
            st.requeued[i] = st.requeued[kept]
            st.requeued[kept] = item
            kept += 1
    if kept == n_requeued:
        return
    n = n_requeued - kept
    memcpy(due, &st.requeued[kept], n * sizeof(loc_t))
    st.n_requeued = 0
    for i in range(kept):
        store_requeue(st, st.requeued[i].seg, st.requeued[i].pos, st.requeued[i].is_fresh)
    qsort(due, n, sizeof(loc_t), compare_loc)
    for i in range(n):
        queue_discard_requeued(q, st, due[i])


cdef bint queue_expire_indexed(queue_t* q, store_t* st, i64 now_ms) noexcept nogil:
    """Expire what the heap says is due. False when the portion is over first."""
    cdef u32 n_back = 0
    cdef loc_t* back = NULL         # due, and given back
    cdef due_t top
    cdef bint is_spent = False
    while st.n_dues and st.dues[0].at_ms <= now_ms and not is_spent and n_back < BACK_AT_ONCE:
        top = st.dues[0]
        dues_pop(st)
        is_spent = loop_spent(q.loop, DEATH_UNITS)
        if store_is_ahead(st, top.seg, top.pos):
            queue_expire_ahead(q, st, top.seg, top.pos)
        elif st.n_requeued and not queue_has_sent(q, top.seg, top.pos):
            if back == NULL:
                back = <loc_t*>malloc(BACK_AT_ONCE * sizeof(loc_t))
                if back == NULL:
                    break
            back[n_back].seg = top.seg
            back[n_back].pos = top.pos
            n_back += 1
    if n_back:
        queue_expire_requeued(q, st, back, n_back)
    free(back)
    return not is_spent and n_back < BACK_AT_ONCE


cdef i64 queue_expire_level(queue_t* q, store_t* st, i64 now_ms) noexcept nogil:
    """Expire what is due in one store; returns when something may be due next: now, when the
    portion is over."""
    cdef i64 due
    cdef bint is_spent = not queue_expire_indexed(q, st, now_ms)
    cdef i64 next_ms = st.dues[0].at_ms if st.n_dues else NEVER
    cdef rec_t rec
    cdef int rc
    while queue_ready_of(q, st):
        if is_spent:
            q.loop.is_expiring = True
            return now_ms
        rc = store_peek(st, q.loop, &rec)
        if st.miscount:
            queue_apply_miscount(q, st)
        if rc == 0:             # the counter and the records part: the records are right
            queue_lose(q, st, queue_ready_of(q, st), 0)
            break
        if rc == PEEK_LATER:
            is_spent = True
            continue
        if rc == 1:
            rec.level = st.level
            due = rec_deadline_ms(q, &rec)
            if due > now_ms:
                return due if due < next_ms else next_ms
            queue_drop(q, &rec, DEAD_EXPIRED)
            is_spent = loop_spent(q.loop, DEATH_UNITS)
        elif queue_pass_unreadable(q, st, rc):
            due = now_ms + READ_PAUSE_MS
            return due if due < next_ms else next_ms
    return next_ms


cdef void queue_expire(queue_t* q, i64 now_ms) noexcept nogil:
    """Expire all that is due, and note when to look again."""
    cdef i64 due, next_ms = NEVER
    cdef u32 i
    if q.stream != NULL and not q.is_deleted and not q.is_closed:
        stream_look(q)
        return
    if q.is_deleted or q.is_closed or q.ready == 0:
        queue_set_due(q, NEVER)
        return
    if q.releases != NULL:
        delayed_release(q, now_ms)
        return
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL and queue_ready_of(q, queue_level(q, i)):
            due = queue_expire_level(q, queue_level(q, i), now_ms)
            next_ms = due if due < next_ms else next_ms
            if q.n_consumers == 0:
                store_drop_window(queue_level(q, i), &q.loop.pool)
    queue_set_due(q, next_ms)
    queue_touch(q)              # the tick writes deletions and gives windows back


cdef void loop_expire(loop_t* loop) noexcept nogil:
    """Look at each queue whose time has come, until the portion is over; one is looked at at
    least."""
    cdef queue_t* q
    loop.is_expiring = False
    while loop.n_dues and loop.dues[0].due_ms <= loop.now_ms:
        q = loop.dues[0]
        queue_expire(q, loop.now_ms)
        if q.due_ms <= loop.now_ms:             # the rest comes behind the other queues
            queue_set_due(q, loop.now_ms if loop.is_expiring else loop.now_ms + 1)
        if q.features != NULL and queue_is_too_long(q):
            queue_want_limits(q)
        if loop_spent(loop, DEATH_UNITS):
            loop.is_expiring = True
            break
    loop_enforce(loop)
