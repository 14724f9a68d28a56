# Moves: messages that have gone to other queues, and stay where they were until they are safe.
#
# A source may forget only what its destinations have on disk. A message that was stored elsewhere
# is out of the ready ones at once; its deletion waits, with the queues that took it, for a sync
# after which all of them have it; what the source has never written waits only until they have
# written theirs. If one of them has broken before, or could not take it in the first place, the
# message is parked: it belongs to its queue as before, and is sent on again after a while. What an
# operator has moved is ready again instead. After a crash all of them are ready.
# Longer than 500 lines: from leaving to deletion the states of a move follow each other.
# Called by dead_letter, delayed, haul, features, manage, queue, tick and loop.pyx.

cdef enum move_reason:          # behind those of death
    MOVE_RELEASED = 254         # a delayed exchange's message whose time has come
    MOVE_ORDERED = 255          # by an operator

cdef enum move_result:
    MOVE_DONE = 0               # it is where it was to go, or goes nowhere
    MOVE_REFUSED = -1           # loop.refuser cannot take it, or there was no memory
    MOVE_LARGE = 1              # it has to go in pieces

cdef enum:
    LOOKS_A_CLOCK = 64          # parked messages between two looks at the clock


# ---- what takes a message ------------------------------------------------------------------------

cdef inline void loop_begin_move(loop_t* loop, const queue_t* source) noexcept nogil:
    """A message of `source` is going to be moved."""
    loop.n_takers = 0
    loop.refuser = NULL
    loop.is_from_durable = source.is_durable


cdef int loop_expect_takers(loop_t* loop, u32 n) noexcept nogil:
    """Make room to note n more queues. 0, or -1 out of memory."""
    cdef queue_t** grown
    if loop.n_takers + n > loop.cap_takers:
        grown = <queue_t**>realloc(loop.takers, (<u64>loop.n_takers + n) * 2 * sizeof(queue_t*))
        if grown == NULL:
            return -1
        loop.takers = grown
        loop.cap_takers = (loop.n_takers + n) * 2
    return 0


cdef void loop_note_taker(loop_t* loop, queue_t* q) noexcept nogil:
    """q, which is durable and was expected, is to take the message that is being moved: the next
    sync covers it."""
    loop.takers[loop.n_takers] = q
    loop.n_takers += 1
    loop.is_moved = True
    if loop.sync and loop.is_from_durable and not q.is_sync_wanted:
        loop_want_sync(loop, q)


cdef inline bint queue_cannot_take(const queue_t* q) noexcept nogil:
    """Whether the disk has closed q or has no room for it: nothing is moved there."""
    return (q.is_closed or q.is_stuck) and not q.is_deleted


cdef inline spot_t spot_of(const rec_t* rec, u8 reason) noexcept nogil:
    cdef spot_t at
    at.seg = rec.seg
    at.pos = rec.pos
    at.size = rec.size
    at.level = rec.level
    at.reason = reason
    at.is_fresh = not rec.redelivered
    at.was_parked = False
    return at


# ---- deletions that wait -------------------------------------------------------------------------

cdef inline bint queue_has_moves(const queue_t* q) noexcept nogil:
    """Whether q holds messages that are neither ready nor unacked."""
    return q.moves != NULL and (q.moves.unsynced.at != q.moves.unsynced.n or q.moves.n_parked != 0
                                or q.moves.unwritten.at != q.moves.unwritten.n
                                or q.moves.large.at != q.moves.large.n)


cdef inline u64 queue_parked(const queue_t* q) noexcept nogil:
    """Messages that could not be moved before."""
    return q.moves.n_parked + q.moves.n_large_parked if q.moves != NULL else 0


cdef inline u64 queue_kept(const queue_t* q) noexcept nogil:
    """Messages that are to go elsewhere, and have not begun to be safe there."""
    return q.moves.n_parked + (q.moves.large.n - q.moves.large.at) if q.moves != NULL else 0


cdef moves_t* queue_moves(queue_t* q) noexcept nogil:
    """Made when they are first needed; NULL out of memory."""
    if q.moves == NULL:
        q.moves = <moves_t*>calloc(1, sizeof(moves_t))
    return q.moves


cdef int moved_list_reserve(moved_list_t* moved, u32 more) noexcept nogil:
    """Make room for more deletions. 0, or -1 out of memory."""
    cdef u32 n = moved.n - moved.at
    cdef moved_t* grown
    if n == 0:
        moved.at = moved.n = 0
    if moved.n + <u64>more <= moved.cap:
        return 0
    if moved.at > n:
        memcpy(moved.items, moved.items + moved.at, n * sizeof(moved_t))
        moved.at = 0
        moved.n = n
        if n + <u64>more <= moved.cap:
            return 0
    grown = <moved_t*>realloc(moved.items, (<u64>moved.cap * 2 + more + 64) * sizeof(moved_t))
    if grown == NULL:
        return -1
    moved.items = grown
    moved.cap = moved.cap * 2 + more + 64
    return 0


cdef void moved_list_trim(moved_list_t* moved) noexcept nogil:
    """A burst does not stay in memory."""
    if moved.at == moved.n and moved.cap > 4096:
        free(moved.items)
        moved.items = NULL
        moved.at = moved.n = moved.cap = 0


cdef void moved_list_forget(moved_list_t* moved) noexcept nogil:
    """Nothing is deleted any more."""
    while moved.at < moved.n:
        moved.at += 1
        queue_unref(moved.items[moved.at - 1].to)


cdef void queue_want_release(queue_t* q) noexcept nogil:
    """Deletions of q wait for a sync."""
    if not q.moves.is_held:
        q.moves.is_held = True
        q.refs += 1
        q.moves.held_next = q.loop.held
        q.loop.held = q


cdef int queue_hold_deletion(queue_t* q, const spot_t* at, bint is_written) noexcept nogil:
    """The message at that place was taken by `loop.takers`: delete it after the next sync, or at
    the end of the tick when no file has it. 0, or -1 out of memory."""
    cdef loop_t* loop = q.loop
    cdef moves_t* moves = queue_moves(q)
    cdef moved_list_t* moved
    cdef moved_t* item
    cdef u32 i
    if moves == NULL:
        return -1
    moved = &moves.unsynced if is_written else &moves.unwritten
    if moved_list_reserve(moved, loop.n_takers):
        return -1
    if is_written:
        queue_want_release(q)
    else:
        queue_touch(q)
    for i in range(loop.n_takers):
        item = &moved.items[moved.n]
        moved.n += 1
        item.until = loop.n_syncs + 1
        item.to = loop.takers[i]
        item.to.refs += 1
        item.to_breaks = item.to.n_breaks
        item.is_last = i + 1 == loop.n_takers
        item.spot = at[0]
    return 0


cdef void queue_forget_spot(queue_t* q, const spot_t* at) noexcept nogil:
    """Delete a message that is neither ready nor unacked."""
    cdef store_t* st = queue_level(q, at.level)
    if st == NULL:
        return
    if st.counts.n:
        store_forget_count(st, at.seg, at.pos)
    if q.moves != NULL and q.moves.is_awaited:
        queue_want_acks(q, st)
    if store_delete(st, at.seg, at.pos):
        queue_failed(q)


cdef void queue_delete_moved(queue_t* q, const spot_t* at) noexcept nogil:
    """Delete a message that was moved: when the durable queues that took it have it on disk. What
    no file holds nobody was promised yet, and cannot come back: it waits until they have written
    it, and a confirm that comes later waits for their sync."""
    cdef const store_t* st = queue_level(q, at.level)
    cdef bint is_written = st.is_durable and (at.seg != st.wseg.id or at.pos < st.flushed)
    if q.loop.n_takers == 0:
        queue_forget_spot(q, at)
    elif queue_hold_deletion(q, at, is_written) and not is_written:
        queue_forget_spot(q, at)        # no memory: what is in a file comes again after a start


cdef void queue_decide_moved(queue_t* q, const spot_t* at, queue_t* failed) noexcept nogil:
    """Delete a message that is safe elsewhere, or keep one of which a queue has lost its copy."""
    if q.is_closed:
        return
    if failed == NULL:
        queue_forget_spot(q, at)
    elif at.reason == MOVE_ORDERED:
        queue_return(q, at)
    else:
        queue_park(q, at, failed)


cdef inline bint moved_has_failed(const moved_t* item) noexcept nogil:
    """Whether the copy is lost. A queue that was deleted has lost it by that."""
    return item.to.n_breaks != item.to_breaks and not item.to.is_deleted


cdef void queue_release_synced(queue_t* q, u64 synced) noexcept nogil:
    """Decide on what was moved before that sync."""
    cdef moved_list_t* moved = &q.moves.unsynced
    cdef moved_t item
    cdef queue_t* failed = NULL
    while moved.at < moved.n and moved.items[moved.at].until <= synced and not q.is_closed:
        item = moved.items[moved.at]
        moved.at += 1
        if moved_has_failed(&item):
            failed = item.to
        if item.is_last:
            queue_decide_moved(q, &item.spot, failed)
            failed = NULL
        queue_unref(item.to)
    moved_list_trim(moved)


cdef void queue_write_out(queue_t* q) noexcept nogil:
    """Have in its files what q was given in this tick."""
    cdef store_t* st
    cdef u32 i
    for i in range(queue_levels(q)):
        st = queue_level(q, i)
        if st != NULL and st.wseg.size != st.flushed and store_flush(st):
            queue_failed(q)
            return


cdef void queue_release_written(queue_t* q) noexcept nogil:
    """Decide on what no file of q had when it was moved: it is not written only to be deleted. If q
    is among those that it is written to, and breaks, it has let go of what is behind."""
    cdef moved_list_t* moved = &q.moves.unwritten
    cdef moved_list_t* later = &q.moves.unsynced
    cdef moved_t* item
    cdef queue_t* failed
    cdef u32 first, end, i
    cdef bint is_late
    while moved.at < moved.n and not q.is_closed:
        first = end = moved.at
        failed = NULL
        is_late = False
        while True:
            item = &moved.items[end]
            end += 1
            moved.at = end
            if not item.to.is_closed and not item.to.is_deleted and not item.to.is_stuck:
                queue_write_out(item.to)
            if moved_has_failed(item):
                failed = item.to
            is_late = is_late or item.to.is_stuck
            if item.is_last or moved.at == moved.n:
                break
        if failed == NULL and is_late and not moved_list_reserve(later, end - first):
            for i in range(first, end):
                later.items[later.n] = moved.items[i]
                later.items[later.n].until = q.loop.n_syncs + 1
                later.n += 1
            queue_want_release(q)
            continue
        queue_decide_moved(q, &moved.items[first].spot, failed)
        for i in range(first, end):
            queue_unref(moved.items[i].to)
    moved_list_trim(moved)


cdef void loop_release_held(loop_t* loop) noexcept nogil:
    """A sync is over: what was moved to elsewhere before it may go."""
    cdef queue_t* q
    cdef queue_t** at = &loop.held
    while at[0] != NULL:
        q = at[0]
        if q.is_deleted or q.is_closed:
            queue_forget_moves(q)
        else:
            queue_release_synced(q, loop.n_synced)
            queue_touch(q)
        if q.moves.unsynced.at < q.moves.unsynced.n:
            at = &q.moves.held_next
            continue
        at[0] = q.moves.held_next
        q.moves.is_held = q.moves.is_awaited = False
        queue_unref(q)


cdef void queue_return(queue_t* q, const spot_t* at) noexcept nogil:
    """A message that was moved is ready again, in its place, as if nothing had happened."""
    cdef store_t* st = queue_level(q, at.level)
    cdef seg_t* seg = store_segment(st, at.seg)
    cdef rec_t rec
    cdef i64 own
    q.moves.n_returned += 1
    q.loop.is_news = True
    if seg == NULL or store_requeue(st, at.seg, at.pos, at.is_fresh):
        return                  # purged; or it is ready after the next start
    q.ready += 1
    q.ready_bytes += at.size
    queue_count_level(q, st, 1)
    if q.may_expire and store_read(st, &q.loop.pool, store_window(st), seg, at.pos, 4096,
                                   &rec) == 1:
        own = rec_own_deadline_ms(&rec)
        if own != NEVER:
            dues_push(st, own, at.seg, at.pos)
        if rec_deadline_ms(q, &rec) < q.due_ms:
            queue_set_due(q, rec_deadline_ms(q, &rec))
    if q.features != NULL:
        queue_want_limits(q)
    queue_touch(q)


# ---- messages that cannot get where they are to go -----------------------------------------------

cdef void queue_park(queue_t* q, const spot_t* at, queue_t* refuser) noexcept nogil:
    """Keep a message that could not be moved, to try again later. `refuser` is the queue that did
    not take it, NULL when there was no memory. Without memory for this it is ready after the next
    start."""
    cdef loop_t* loop = q.loop
    cdef moves_t* moves = queue_moves(q)
    cdef parked_t* grown
    if moves == NULL:
        return
    if moves.parked_end == moves.cap_parked:
        grown = <parked_t*>realloc(
            moves.parked, (<u64>moves.cap_parked * 2 + 16) * sizeof(parked_t))
        if grown == NULL:
            return
        moves.parked = grown
        moves.cap_parked = moves.cap_parked * 2 + 16
    moves.parked[moves.parked_end].spot = at[0]
    moves.parked[moves.parked_end].refuser = refuser
    moves.parked_end += 1
    if refuser != NULL:
        refuser.refs += 1
    if queue_parked(q) == 0:
        loop.is_news = True
    moves.n_parked += 1
    moves.parked_bytes += at.size
    if not moves.is_listed:
        moves.is_listed = True
        q.refs += 1
        moves.parked_next = loop.parked
        loop.parked = q


cdef void moves_unpark(moves_t* moves, const parked_t* item) noexcept nogil:
    """An entry was taken out of the list: it is not parked any more."""
    moves.n_parked -= 1
    moves.parked_bytes -= item.spot.size
    if item.refuser != NULL:
        queue_unref(item.refuser)


cdef void queue_send_on(queue_t* q, const spot_t* at) noexcept nogil:
    """Move a message that was parked, or park it once more."""
    cdef loop_t* loop = q.loop
    cdef store_t* st = queue_level(q, at.level)
    cdef seg_t* seg = store_segment(st, at.seg) if st != NULL else NULL
    cdef rec_t rec
    cdef int rc
    if seg == NULL:
        return                  # purged
    rc = store_read(st, &loop.pool, store_window(st), seg, at.pos, 4096, &rec)
    if rc == -1:
        st.lost += 1
        loop.is_news = True
        queue_forget_spot(q, at)
        return
    loop_begin_move(loop, q)
    rec.level = at.level
    rec.is_requeued = rec.redelivered = False
    if rc == 1:
        rc = delayed_publish(q, &rec) if at.reason == MOVE_RELEASED else bury(q, &rec, at.reason)
    else:
        rc = MOVE_REFUSED
    queue_end_move(q, at, rc)


cdef void queue_end_move(queue_t* q, const spot_t* at, int rc) noexcept nogil:
    """Do with a message what the attempt to move it, a move_result, makes necessary."""
    if rc == MOVE_DONE:
        queue_delete_moved(q, at)
    elif rc == MOVE_REFUSED:
        queue_park(q, at, q.loop.refuser)
    else:
        queue_haul(q, at)


cdef void moves_end_pass(moves_t* moves) noexcept nogil:
    """Close the gap that those which were sent on have left in the list."""
    cdef u32 n = moves.parked_end - moves.try_at
    if moves.try_at:
        memmove(&moves.parked[moves.try_kept], &moves.parked[moves.try_at], n * sizeof(parked_t))
        moves.parked_end = moves.try_kept + n
        moves.try_at = 0


cdef bint queue_try_parked(queue_t* q, i64 until_ns) noexcept nogil:
    """Send on what is parked, in its order; those whose queue still cannot take anything are passed
    over. False when the time was up before the end."""
    cdef moves_t* moves = q.moves
    cdef parked_t item
    cdef u32 i, n_before, n = 0
    if moves.try_at == 0:
        moves.try_end = moves.parked_end
        moves.try_kept = 0
    while moves.try_at < moves.try_end and not q.is_closed:
        n += 1
        if n % LOOKS_A_CLOCK == 0 and clock_ns() > until_ns:
            return False
        item = moves.parked[moves.try_at]
        moves.try_at += 1
        if item.refuser != NULL and queue_cannot_take(item.refuser):
            moves.parked[moves.try_kept] = item
            moves.try_kept += 1
            continue
        n_before = moves.parked_end
        item.spot.was_parked = True
        queue_send_on(q, &item.spot)
        moves_unpark(moves, &item)
        if moves.parked_end > n_before:         # once more: it keeps its place
            moves.parked_end -= 1
            moves.parked[moves.try_kept] = moves.parked[moves.parked_end]
            moves.try_kept += 1
    moves_end_pass(moves)
    for i in range(queue_levels(q)):
        if queue_level(q, i) != NULL:
            store_drop_window(queue_level(q, i), &q.loop.pool)
    if moves.n_parked == 0:
        q.loop.is_news = True
        free(moves.parked)
        moves.parked = NULL
        moves.cap_parked = 0
    queue_touch(q)
    return True


cdef bint loop_try_parked(loop_t* loop) noexcept nogil:
    """Send on what is parked, for as long as others can wait. False when there is more to try."""
    cdef queue_t* q
    cdef queue_t** at = &loop.parked
    cdef i64 until_ns = clock_ns() + EXPIRY_NS
    cdef bint is_whole = True
    while at[0] != NULL:
        q = at[0]
        if q.is_deleted or q.is_closed:
            queue_forget_moves(q)
        elif q.moves.n_parked and not queue_try_parked(q, until_ns):
            is_whole = False
        if q.moves.n_parked:
            at = &q.moves.parked_next
            continue
        at[0] = q.moves.parked_next
        q.moves.is_listed = False
        queue_unref(q)
    loop_enforce(loop)
    return is_whole


cdef bint queue_drop_parked(queue_t* q, u64* n, i64* left, i64 ends_ns) noexcept nogil:
    """Delete the first *n that are parked, *left at most, by order of an operator. True when that
    is done."""
    cdef moves_t* moves = q.moves
    cdef parked_t item
    cdef u32 looked = 0
    if n[0] == 0 or moves == NULL or queue_kept(q) == 0:
        return True
    moves_end_pass(moves)
    moves.try_kept = 0
    while moves.try_at < moves.parked_end and n[0] and left[0] > 0:
        looked += 1
        if looked % LOOKS_A_CLOCK == 0 and clock_ns() > ends_ns:
            break
        item = moves.parked[moves.try_at]
        moves.try_at += 1
        queue_forget_spot(q, &item.spot)
        moves_unpark(moves, &item)
        n[0] -= 1
        left[0] -= 1
    moves_end_pass(moves)
    q.loop.is_news = q.loop.is_news or moves.n_parked == 0
    if moves.parked_end == 0:
        return queue_drop_large(q, n, left, ends_ns)
    return n[0] == 0 or left[0] <= 0


cdef void queue_forget_moves(queue_t* q) noexcept nogil:
    """The store goes: what it holds on disk is ready after the next start."""
    cdef moves_t* moves = q.moves
    cdef u32 i
    if moves == NULL:
        return
    for i in range(moves.parked_end):
        if not (moves.try_at and moves.try_kept <= i < moves.try_at):
            moves_unpark(moves, &moves.parked[i])
    moves.parked_end = moves.try_at = 0
    queue_forget_large(q)
    moved_list_forget(&moves.unsynced)
    moved_list_forget(&moves.unwritten)
