# Haul: a large message goes from one queue to others in pieces: a dead letter, a released message.
#
# Copying 128 MiB in one go would hold up everybody else. So the message waits where it is, neither
# ready nor unacked, in its queue's list of large ones, while a job of the loop (portion.pyx)
# writes what it becomes ahead (ahead.pyx) for each queue that it is to go to, a piece at a time
# from its file. When all of these files are whole, all queues take it, and its old queue deletes it
# when they have it on disk (moves.pyx). One message goes at a time, and queues take turns. What
# cannot go is parked; what a crash has interrupted is ready in its old queue, and a start removes
# the files. Smaller messages that die later overtake it (decision 0047).
# Longer than 500 lines: the states of one haul follow each other.
# Called by moves, purge, route, manage, door and loop.pyx.

cdef enum haul_result:
    HAUL_DONE = 0
    HAUL_TURN = 1               # the portion is over: to be called again
    HAUL_AGAIN = 2              # what it is to become has changed: it begins anew
    HAUL_REFUSED = -1           # `refuser` cannot take it, or it cannot be read

cdef enum:
    HAUL_FILES = 8              # targets above which files are closed until all are whole
    HAULS_DETACHED = 256        # of deleted queues; what is above goes with its queue
    FINISH_NS = 5000000000      # of an orderly stop
    NO_ROOM_MS = 5000           # after a disk was full for which no other is tried


# ---- making --------------------------------------------------------------------------------------

cdef haul_t* haul_new(queue_t* q, const rec_t* rec, const spot_t* at) noexcept nogil:
    """A haul of a record, to nowhere yet; NULL out of memory."""
    cdef haul_t* h = <haul_t*>calloc(1, sizeof(haul_t))
    if h == NULL:
        return NULL
    h.body.queue = q
    q.refs += 1
    h.body.breaks = q.n_breaks
    h.body.spot = at[0]
    h.body.head_len = <u32>(rec.size - rec.body_len)
    h.body.fd = -1
    return h


cdef haul_t* haul_of_content(queue_t* q) noexcept nogil:
    """A haul of what is in memory and does not get into q; NULL out of memory. Before each step
    `body.p` has to be set."""
    cdef haul_t* h = <haul_t*>calloc(1, sizeof(haul_t))
    if h != NULL:
        h.body.queue = q
        q.refs += 1
        h.body.fd = -1
    return h


cdef void haul_free(haul_t* h) noexcept nogil:
    """It is over, or never ends: files that no queue has taken go."""
    cdef u32 i
    for i in range(h.n_targets):
        ahead_drop(&h.targets[i].ahead)
        queue_unref(h.targets[i].queue)
    for i in range(h.n_messages):
        free(h.messages[i].head)
    if h.body.fd >= 0:
        close_behind(h.body.fd)     # it may be the last one of a file that was removed
    free(h.body.proof)
    queue_unref(h.body.queue)
    free(h.targets)
    free(h.messages)
    free(h)


cdef int haul_add_message(haul_t* h, const msg_t* m, u8* head, i64 reason) noexcept nogil:
    """Note what the message becomes; `head` is the haul's from now on. 0, or -1 out of memory."""
    cdef hauled_t* grown = <hauled_t*>realloc(h.messages, (h.n_messages + 1) * sizeof(hauled_t))
    if grown == NULL:
        free(head)
        return -1
    h.messages = grown
    grown[h.n_messages].m = m[0]
    grown[h.n_messages].head = head
    grown[h.n_messages].reason = reason
    h.n_messages += 1
    return 0


cdef int haul_add_target(haul_t* h, queue_t* q, u32 message) noexcept nogil:
    """Have q take that message. 0, or -1 out of memory."""
    cdef haul_target_t* t
    cdef haul_target_t* grown
    if h.n_targets & (h.n_targets - 1) == 0:        # 0, 1, 2, 4, 8: there is no room for more
        grown = <haul_target_t*>realloc(
            h.targets, (<u64>h.n_targets * 2 + 1) * sizeof(haul_target_t))
        if grown == NULL:
            return -1
        h.targets = grown
    t = &h.targets[h.n_targets]
    memset(t, 0, sizeof(haul_target_t))
    t.queue = q
    q.refs += 1
    t.message = message
    t.is_passed = queue_has_no_place(q, h.messages[message].m.size)
    h.n_targets += 1
    return 0


cdef bint queue_has_no_place(const queue_t* q, u64 size) noexcept nogil:
    """Whether q refuses what is moved to it because it is full."""
    return (q.features != NULL and q.features.overflow != DROP_HEAD and q.stream == NULL
            and q.releases == NULL and queue_is_full(q, size))


cdef bint haul_add_routed(haul_t* h, const msg_t* m, u8* head, i64 reason) noexcept nogil:
    """Have m go to what it was routed to, and see what it becomes in queues that are full. False
    when one of them cannot take it now, or there is no memory."""
    cdef const targets_t* to = &h.body.queue.loop.buried
    cdef u32 first = h.n_targets, end, message = h.n_messages, i
    cdef queue_t* q
    cdef letter_t d
    if haul_add_message(h, m, head, reason):
        return False
    for i in range(to.n):
        q = <queue_t*>to.items[i]
        if q.is_deleted or q.history != NULL or (
                reason >= 0 and is_cycle(q, <u32>reason, m.props + m.headers_at + 4,
                                         m.headers_len)):
            continue
        if queue_cannot_take(q):
            h.refuser = q
            return False
        if haul_add_target(h, q, message):
            return False
    end = h.n_targets
    for i in range(first, end if reason < 0 else first):
        q = h.targets[i].queue
        if (bury_overflow(q, m) and letter_of_refused(&d, q, m)
                and not haul_add_letter(h, &d)):
            return False
    return True


cdef bint haul_add_letter(haul_t* h, letter_t* d) noexcept nogil:
    """Have the message become that letter. As haul_add_routed."""
    cdef exchange_t* x = letter_exchange(d)
    cdef u8* head
    cdef msg_t m
    if x == NULL:
        return True
    head = letter_write(d, &m)
    if head == NULL:
        return False
    if m.size == 0:
        free(head)
        return True
    route_moved(x, &m, d.source.loop)
    return haul_add_routed(h, &m, head, d.reason)


cdef bint haul_add_released(haul_t* h, const rec_t* rec) noexcept nogil:
    """Have the message become what a delayed exchange releases. As haul_add_routed."""
    cdef exchange_t* x = h.body.queue.releases
    cdef u8* head = <u8*>malloc(<u64>h.body.head_len + 512)
    cdef msg_t m
    if head == NULL or x == NULL:
        free(head)
        return False
    released_write(x, rec, head, &m)
    if m.size == 0:
        free(head)
        return True
    route_released(x, &m, h.body.queue.loop)
    return haul_add_routed(h, &m, head, -1)


cdef bint haul_address(haul_t* h, const rec_t* rec) noexcept nogil:
    """Find out where it goes. False when it cannot go there now."""
    cdef queue_t* q = h.body.queue
    cdef letter_t d
    if h.body.spot.reason == MOVE_RELEASED:
        return haul_add_released(h, rec)
    if not letter_begin(&d, q, rec, h.body.spot.reason):
        return True
    return letter_copy(&d, rec, 0) != NULL and haul_add_letter(h, &d)


# ---- writing -------------------------------------------------------------------------------------

cdef int haul_write(haul_t* h) noexcept nogil:
    """Write some of the files. A haul_result."""
    cdef loop_t* loop = h.body.queue.loop
    cdef haul_target_t* t
    cdef int rc
    while h.at < h.n_targets:
        t = &h.targets[h.at]
        if not t.queue.is_deleted and not t.is_passed:
            rc = haul_write_for(h, t)
            if rc:
                return rc
        if h.n_targets > HAUL_FILES:
            ahead_rest(&t.ahead)
        h.at += 1
        if loop_spent(loop, TARGET_UNITS) and h.at < h.n_targets:
            return HAUL_TURN
    return HAUL_DONE


cdef int haul_write_for(haul_t* h, haul_target_t* t) noexcept nogil:
    """Write some of the file for one queue. A haul_result."""
    cdef queue_t* q = t.queue
    cdef loop_t* loop = q.loop
    cdef const msg_t* m = &h.messages[t.message].m
    cdef store_t* st = NULL
    cdef int rc
    h.refuser = q
    if not queue_cannot_take(q):
        st = queue_level_for(q, m)
    if st == NULL:
        return HAUL_REFUSED
    rc = ahead_write(&t.ahead, q, st, m, &h.body)
    if rc == AHEAD_UNREADABLE:
        haul_failed(h)
    elif rc == AHEAD_FAILED and is_no_room(errno):
        loop.no_room_until_ms = loop.now_ms + NO_ROOM_MS
    elif rc == AHEAD_FAILED:
        store_failed(st, FILE_MSGS, st.wseg.id)
        queue_failed(q)
    if rc < 0:
        return HAUL_REFUSED
    h.refuser = NULL
    return HAUL_TURN if rc == AHEAD_TURN else HAUL_DONE


cdef void haul_failed(haul_t* h) noexcept nogil:
    """The body cannot be read, errno says why: have that told as of any other read."""
    cdef queue_t* q = h.body.queue
    h.refuser = NULL
    if not q.is_deleted and not q.is_closed:
        queue_level(q, h.body.spot.level).error = errno if errno else EIO
        q.loop.is_news = True


# ---- storing -------------------------------------------------------------------------------------

cdef int haul_may_store(haul_t* h) noexcept nogil:
    """Whether nothing has changed since its targets were found. A haul_result."""
    cdef haul_target_t* t
    cdef queue_t* q
    cdef hauled_t* message
    cdef u32 i
    for i in range(h.n_targets):
        t = &h.targets[i]
        q = t.queue
        message = &h.messages[t.message]
        if q.is_deleted or t.is_passed:
            continue
        if queue_cannot_take(q):
            h.refuser = q
            return HAUL_REFUSED
        if (not t.ahead.is_begun or t.ahead.breaks != q.n_breaks
                or (message.reason < 0 and bury_overflow(q, &message.m))):
            return HAUL_AGAIN
    return HAUL_DONE


cdef bint haul_store_in(haul_t* h, haul_target_t* t) noexcept nogil:
    """Have one queue take the message. False when it cannot."""
    cdef queue_t* q = t.queue
    cdef loop_t* loop = q.loop
    cdef const msg_t* m = &h.messages[t.message].m
    cdef store_t* st = t.ahead.store
    cdef int rc
    if queue_cannot_take(q) or t.ahead.breaks != q.n_breaks:
        return False
    if st.stage_cap > BLOCK_SIZE:       # it grew while the disk had no room: nothing goes there
        if store_flush(st):
            queue_failed(q)
            return False
        store_drop_stage(st, &loop.pool)
    if q.is_durable:
        loop_note_taker(loop, q)
    t.ahead.message = m
    t.breaks = q.n_breaks
    loop.ahead = &t.ahead
    loop.is_moving = True       # a delivery could move what a settlement is looking at
    rc = queue_append(q, m)
    loop.is_moving = False
    loop.ahead = NULL
    ahead_drop(&t.ahead)
    return rc != APPEND_FAILED


cdef int haul_store(haul_t* h) noexcept nogil:
    """All files are whole: have the queues take them. A haul_result. When it is done the durable
    ones that it is safe in after the next sync are `loop.takers`."""
    cdef loop_t* loop = h.body.queue.loop
    cdef haul_target_t* t
    cdef u32 i
    cdef int rc
    loop_begin_move(loop, h.body.queue)
    if loop_expect_takers(loop, h.n_targets):
        return HAUL_REFUSED
    rc = haul_may_store(h) if h.stored == 0 else HAUL_DONE
    if rc:
        return rc
    while h.stored < h.n_targets:
        t = &h.targets[h.stored]
        t.is_passed = t.is_passed or t.queue.is_deleted
        if not t.is_passed and not haul_store_in(h, t):
            h.refuser = t.queue
            return HAUL_REFUSED
        h.stored += 1
        if loop_spent(loop, TARGET_UNITS) and h.stored < h.n_targets:
            return HAUL_TURN
    loop.n_takers = 0
    for i in range(h.n_targets):
        t = &h.targets[i]
        if t.is_passed or t.queue.is_deleted or not t.queue.is_durable:
            continue
        if t.queue.n_breaks != t.breaks:
            h.refuser = t.queue
            return HAUL_REFUSED
        loop.takers[loop.n_takers] = t.queue
        loop.n_takers += 1
    return HAUL_DONE


cdef int haul_go_on(haul_t* h) noexcept nogil:
    """Do some of what is left. A haul_result."""
    cdef int rc = haul_write(h)
    return rc if rc else haul_store(h)


# ---- a queue's large messages --------------------------------------------------------------------

cdef void queue_haul(queue_t* q, const spot_t* at) noexcept nogil:
    """A large message, which is neither ready nor unacked, is to go elsewhere in pieces."""
    cdef loop_t* loop = q.loop
    cdef moves_t* moves = queue_moves(q)
    cdef spots_t* large
    cdef spot_t* grown
    if moves == NULL:
        return                  # it is ready after the next start
    large = &moves.large
    if large.at and large.at * 2 >= large.n:
        memmove(large.items, large.items + large.at, (large.n - large.at) * sizeof(spot_t))
        large.n -= large.at
        large.at = 0
    if large.n == large.cap:
        grown = <spot_t*>realloc(large.items, (<u64>large.cap * 2 + 16) * sizeof(spot_t))
        if grown == NULL:
            queue_park(q, at, NULL)
            return
        large.items = grown
        large.cap = large.cap * 2 + 16
    large.items[large.n] = at[0]
    large.n += 1
    moves.n_hauls += 1
    moves.n_large_parked += at.was_parked
    moves.parked_bytes += at.size
    queue_list_hauling(q)
    loop_start_hauler(loop)


cdef void queue_list_hauling(queue_t* q) noexcept nogil:
    """Put q behind the other queues that have large messages to go elsewhere."""
    cdef loop_t* loop = q.loop
    if q.moves.is_hauling:
        return
    q.moves.is_hauling = True
    q.refs += 1
    q.moves.hauling_next = NULL
    if loop.hauling == NULL:
        loop.hauling = q
    else:
        loop.last_hauling.moves.hauling_next = q
    loop.last_hauling = q


cdef void queue_pop_large(queue_t* q) noexcept nogil:
    """The first one has gone, or is parked."""
    cdef moves_t* moves = q.moves
    cdef const spot_t* at = &moves.large.items[moves.large.at]
    moves.large.at += 1
    moves.n_hauled += 1
    moves.is_awaited = moves.is_awaited or moves.n_hauled <= moves.hauls_awaited
    moves.parked_bytes -= at.size
    if at.was_parked:
        moves.n_large_parked -= 1
        q.loop.is_news = True
    if moves.large.at == moves.large.n:
        free(moves.large.items)
        memset(&moves.large, 0, sizeof(spots_t))


cdef void queue_drop_haul(queue_t* q) noexcept nogil:
    """The first large message does not go: if it is on its way, that ends."""
    cdef loop_t* loop = q.loop
    cdef haul_t** at = &loop.hauls
    cdef haul_t* h
    while at[0] != NULL and (at[0].body.queue != q or at[0].is_detached):
        at = &at[0].next
    h = at[0]
    if h == NULL:
        return
    h.is_dropped = True
    if not h.is_running:        # else its step finds out
        at[0] = h.next
        haul_free(h)


cdef bint queue_drop_large(queue_t* q, u64* n, i64* left, i64 ends_ns) noexcept nogil:
    """Delete the first *n of the large messages that are to go elsewhere, *left at most, by order
    of an operator. True when that is done."""
    cdef spots_t* large = &q.moves.large
    cdef spot_t at
    while large.at < large.n and n[0] and left[0] > 0:
        if clock_ns() > ends_ns:
            return False
        queue_drop_haul(q)
        at = large.items[large.at]
        queue_pop_large(q)
        queue_forget_spot(q, &at)
        n[0] -= 1
        left[0] -= 1
    return True


cdef void queue_forget_large(queue_t* q) noexcept nogil:
    """The store goes: what it holds on disk is ready after the next start."""
    queue_drop_haul(q)
    while q.moves.large.at < q.moves.large.n:
        queue_pop_large(q)


cdef void queue_detach_large(queue_t* q) noexcept nogil:
    """q, whose files are open for the last time, is being deleted: what has died in it before goes
    on without it."""
    cdef loop_t* loop = q.loop
    cdef moves_t* moves = q.moves
    cdef haul_t** at = &loop.hauls
    cdef haul_t* h
    cdef u32 n = 0
    if moves == NULL:
        return
    while at[0] != NULL:
        n += 1
        if at[0].body.queue == q and body_open(&at[0].body):
            at[0].is_detached = True
            queue_pop_large(q)
        at = &at[0].next
    while moves.large.at < moves.large.n and n < HAULS_DETACHED:
        h = haul_begin(q, &moves.large.items[moves.large.at])
        if h != NULL and body_open(&h.body):
            n += 1
            h.is_detached = True
            at[0] = h
            at = &h.next
            loop_start_hauler(loop)
        elif h != NULL:
            haul_free(h)
        queue_pop_large(q)


# ---- the job -------------------------------------------------------------------------------------

cdef void loop_start_hauler(loop_t* loop) noexcept nogil:
    if not loop.is_hauling:
        loop.is_hauling = True
        loop.hauler.step = hauler_step
        loop_add_job(loop, &loop.hauler)


cdef haul_t* haul_begin(queue_t* q, const spot_t* at) noexcept nogil:
    """A haul of the message there, or NULL: what is to be done instead is `loop.haul_rest`, a
    move_result."""
    cdef loop_t* loop = q.loop
    cdef store_t* st = queue_level(q, at.level)
    cdef seg_t* seg = store_segment(st, at.seg) if st != NULL else NULL
    cdef haul_t* h = NULL
    cdef rec_t rec
    cdef bint is_addressed = False
    cdef int rc
    loop_begin_move(loop, q)
    loop.haul_rest = MOVE_DONE
    if seg == NULL:
        return NULL             # purged
    rc = store_read(st, &loop.pool, store_window(st), seg, at.pos, 4096, &rec)
    if rc == -1:
        st.lost += 1
        loop.is_news = True
        return NULL
    loop.haul_rest = MOVE_REFUSED
    if rc == 1:
        h = haul_new(q, &rec, at)
    if h == NULL:
        return NULL
    is_addressed = haul_address(h, &rec)
    loop_drop_scratch(loop)
    if is_addressed and h.n_targets and loop.now_ms < loop.no_room_until_ms:
        h.refuser = h.targets[0].queue
        is_addressed = False
    if is_addressed and h.n_targets:
        return h
    loop.haul_rest = MOVE_DONE if is_addressed else MOVE_REFUSED
    loop.refuser = h.refuser
    haul_free(h)
    return NULL


cdef void loop_begin_haul(loop_t* loop) noexcept nogil:
    """Begin with the first large message of the next queue."""
    cdef queue_t* q = loop.hauling
    cdef spot_t at
    loop.hauling = q.moves.hauling_next
    q.moves.is_hauling = False
    if q.is_deleted or q.is_closed:
        queue_forget_large(q)
    elif q.moves.large.at < q.moves.large.n:
        at = q.moves.large.items[q.moves.large.at]
        loop.hauls = haul_begin(q, &at)
        if loop.hauls == NULL:
            queue_pop_large(q)
            queue_end_move(q, &at, loop.haul_rest)
        if q.n_consumers == 0 and not q.is_closed:
            store_drop_window(queue_level(q, at.level), &loop.pool)
        queue_touch(q)
    if q.moves.large.at < q.moves.large.n:
        queue_list_hauling(q)
    queue_unref(q)


cdef void loop_go_on_hauling(loop_t* loop) noexcept nogil:
    """Do some of what is left of the first one."""
    cdef haul_t* h = loop.hauls
    cdef queue_t* q = h.body.queue
    cdef spot_t at = h.body.spot
    cdef int rc
    h.is_running = True
    rc = haul_go_on(h)
    h.is_running = False
    if rc == HAUL_TURN and not h.is_dropped:
        return
    loop.hauls = h.next
    loop.refuser = h.refuser
    if not h.is_dropped and not h.is_detached and rc != HAUL_AGAIN:
        queue_pop_large(q)
        queue_end_move(q, &at, MOVE_DONE if rc == HAUL_DONE else MOVE_REFUSED)
        queue_touch(q)
    haul_free(h)


cdef bint hauler_step(loop_t* loop, job_t* job) noexcept nogil:
    """Do a portion of the first haul. False when that was all."""
    if loop.hauls != NULL:
        loop_go_on_hauling(loop)
    elif loop.hauling != NULL:
        loop_begin_haul(loop)
    if loop.over != NULL:
        loop_enforce(loop)
    loop.is_hauling = loop.hauls != NULL or loop.hauling != NULL
    return loop.is_hauling


cdef void loop_finish_hauls(loop_t* loop) noexcept nogil:
    """An orderly stop: nobody waits for anything else, so all goes that can in a while. What is
    left stays in its queue."""
    cdef i64 ends_ns = clock_ns() + FINISH_NS
    loop_drop_job(loop, &loop.hauler)
    while (loop.hauls != NULL or loop.hauling != NULL) and clock_ns() < ends_ns:
        hauler_step(loop, &loop.hauler)
    loop.is_hauling = True      # no job begins any more


cdef void loop_drop_hauls(loop_t* loop) noexcept nogil:
    """The loop goes."""
    cdef haul_t* h
    cdef queue_t* q
    loop_drop_job(loop, &loop.hauler)
    while loop.hauls != NULL:
        h = loop.hauls
        loop.hauls = h.next
        haul_free(h)
    while loop.hauling != NULL:
        q = loop.hauling
        loop.hauling = q.moves.hauling_next
        q.moves.is_hauling = False
        queue_forget_large(q)
        queue_unref(q)
