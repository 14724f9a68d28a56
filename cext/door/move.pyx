# Move: messages from the head of a queue go to the end of another, as the default exchange would
# publish them there. It is deleted in the old queue once it is on disk in the new one (moves.pyx).
#
# A large message goes in portions, and is ready in the old queue until the last one. Called by
# lavinmq/http/api/messages.py, chosen.pyx and mover.pyx. Source: decision 0013.


cdef void moved_write(queue_t* to, const rec_t* rec, u8* p, msg_t* m) noexcept nogil:
    """Build at p a message for `to`, but for its body: its size is 0 when that cannot be."""
    memset(m, 0, sizeof(msg_t))
    m.names = p
    p[0] = 0
    p = put_slice(p + 1, to.name, 1 + to.name[0])
    m.names_len = <u32>(p - m.names)
    props_to_wire(p, rec)
    m.body_len = rec.body_len
    if props_find(p, rec.props_len, m):
        m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len


cdef int queue_move_small(queue_t* q, queue_t* to, rec_t* rec, u8* p) noexcept nogil:
    """Store a message in another queue in one go; p: memory for it. A move_result."""
    cdef loop_t* loop = q.loop
    cdef msg_t m
    cdef u8* body
    cdef int rc
    if p == NULL:
        return MOVE_REFUSED
    moved_write(to, rec, p, &m)
    body = p + m.names_len + m.props_len
    m.body = body
    if m.size == 0 or store_copy_body(queue_level(q, rec.level), rec, body, rec.body_len):
        return MOVE_REFUSED
    if to.features != NULL and to.features.overflow != DROP_HEAD and queue_is_full(to, m.size):
        return MOVE_REFUSED
    loop_begin_move(loop, q)
    if to.is_durable:
        if loop_expect_takers(loop, 1):
            return MOVE_REFUSED
        loop_note_taker(loop, to)
    loop.is_moving = True
    rc = queue_append(to, &m)
    loop.is_moving = False
    return MOVE_DONE if rc == APPENDED or rc == APPEND_DUPLICATE else MOVE_REFUSED


cdef haul_t* haul_of_ordered(queue_t* q, queue_t* to, const rec_t* rec) noexcept nogil:
    """A haul of a message to another queue; NULL when that has no room, or out of memory."""
    cdef spot_t at = spot_of(rec, MOVE_ORDERED)
    cdef u8* head = <u8*>malloc(<u64>rec.size - rec.body_len + 512)
    cdef haul_t* h = NULL
    cdef msg_t m
    if head == NULL:
        return NULL
    moved_write(to, rec, head, &m)
    if m.size:
        h = haul_new(q, rec, &at)
    if h == NULL:
        free(head)
        return NULL
    if haul_add_message(h, &m, head, DEAD_REJECTED) or haul_add_target(h, to, 0):
        haul_free(h)
        return NULL
    return h


cdef bint haul_is_of(const haul_t* h, const queue_t* q, const rec_t* rec) noexcept nogil:
    """Whether it is of that record, and nothing has happened to its queue since."""
    cdef const spot_t* at = &h.body.spot
    return (at.seg == rec.seg and at.pos == rec.pos and at.level == rec.level
            and at.size == rec.size and h.body.breaks == q.n_breaks)


cdef int queue_move_large(queue_t* q, queue_t* to, rec_t* rec, haul_t** h) noexcept nogil:
    """Do some of what it takes to store a message in another queue. A move_result: MOVE_LARGE when
    there is more to do. Meanwhile it is ready as before, and others may take it."""
    cdef int rc
    if h[0] != NULL and not haul_is_of(h[0], q, rec):
        haul_free(h[0])
        h[0] = NULL
    if h[0] == NULL:
        h[0] = haul_of_ordered(q, to, rec)
        if h[0] == NULL:
            return MOVE_REFUSED
    rc = HAUL_REFUSED
    if not queue_has_no_place(to, h[0].messages[0].m.size):
        rc = haul_go_on(h[0])
    if rc == HAUL_TURN:
        return MOVE_LARGE
    rc = MOVE_DONE if rc == HAUL_DONE else MOVE_REFUSED
    haul_free(h[0])
    h[0] = NULL
    return rc


cdef int queue_move_next(queue_t* q, queue_t* to, haul_t** h, bint is_carried) noexcept nogil:
    """Move the next message to the end of another queue, as if published there by the default
    exchange. A move_result: MOVE_REFUSED when there is none, or it cannot be taken there.

    is_carried: others may be using the loop's scratch memory.
    In its old queue it is deleted when it is on disk in the new one (decision 0013)."""
    cdef store_t* st
    cdef rec_t rec
    cdef spot_t at
    cdef int rc
    if queue_cannot_take(to) or q.ready == 0 or queue_next(q, &rec) != 1:
        return MOVE_REFUSED
    if rec.size > LARGE_RECORD:
        rc = queue_move_large(q, to, &rec, h)
    else:
        rc = queue_move_small(q, to, &rec,
                              scratch_room(&q.loop.carry if is_carried else &q.loop.scratch,
                                           <u64>rec.size + 512))
    if rc != MOVE_DONE:
        return rc
    at = spot_of(&rec, MOVE_ORDERED)
    st = queue_level(q, rec.level)
    store_take(st, &rec)
    queue_uncount(q, st, rec.size)
    queue_delete_moved(q, &at)
    return MOVE_DONE


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Move:
    """Messages from the head of `source` go to the end of `to`, by order of an operator."""
    cdef Queue source
    cdef Queue to
    cdef haul_t* haul           # of the large message that is on its way, NULL = none

    def __cinit__(self, Queue source not None, Queue to not None):
        self.source = source
        self.to = to

    def __dealloc__(self):
        if self.haul != NULL:
            haul_free(self.haul)

    def some(self, u32 n):
        """Move up to n messages; returns how many, or None when others are to have their turn
        before the next one has gone: it is large, or older ones are on their way back.

        Fewer when there are no more, or the other queue is full and refuses publishes, or cannot be
        written. `Loop.after_sync` says when they are safe there; those that are not are ready again
        then, and counted in `Queue.returned`."""
        cdef queue_t* q = self.source.q
        cdef queue_t* to = self.to.q
        cdef u32 moved = 0
        cdef int rc = MOVE_DONE
        if (q is to or q.is_deleted or q.is_closed or q.stream != NULL or q.releases != NULL
                or to.is_deleted or to.is_closed or to.releases != NULL or to.name == NULL):
            return 0
        if q.n_orphans:
            return None
        loop_clock(q.loop)
        self.source.loop.open_portion()
        with nogil:
            while moved < n and not q.is_closed:
                rc = queue_move_next(q, to, &self.haul, False)
                if rc != MOVE_DONE:
                    break
                moved += 1
            loop_drop_scratch(q.loop)
            queue_touch(q)
            loop_enforce(q.loop)
        self.source.loop.kick()
        return None if rc == MOVE_LARGE and moved == 0 else moved
