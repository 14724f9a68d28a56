# Session: what a queue of MQTT keeps of its client beside messages: packet ids in use, both ways.
#
# An id of ours is in use from PUBLISH to PUBACK or PUBCOMP, also while the client is away: then its
# message is back in the queue, and a table by position tells which id it had. Both tables are open
# addressing with the entries behind a hole moved up, so nothing is left of what was removed.
# Source: docs/mqtt.md, sessions.


# ---- ids -----------------------------------------------------------------------------------------

# hot
cdef inline u32 packets_home(const packets_t* t, u16 id) noexcept nogil:
    """The slot where an id is looked for first. Ids that follow each other are far apart: else what
    is behind a hole would be all that are in flight."""
    return <u32>(id * <u32>0x9E3779B9) >> t.shift


# hot
cdef inline packet_t* packets_find(const packets_t* t, u16 id) noexcept nogil:
    """The entry of an id, or NULL. Cost: 2 ns."""
    cdef u32 at
    cdef packet_t* p
    if t.n == 0:
        return NULL
    at = packets_home(t, id)
    while True:
        p = &t.slots[at & (t.cap - 1)]
        if p.id == id or p.id == 0:
            return p if p.id else NULL
        at += 1


cdef int packets_grow(packets_t* t) noexcept nogil:
    """Have room for more. 0, or -1 out of memory."""
    cdef u32 old = t.cap, cap = t.cap * 2 if t.cap else 8, i, at
    cdef packet_t* before = t.slots
    cdef packet_t* slots = <packet_t*>calloc(cap, sizeof(packet_t))
    if slots == NULL:
        return -1
    t.shift = <u8>(t.shift - 1 if old else 29)
    t.slots = slots
    t.cap = cap
    for i in range(old):
        if before[i].id:
            at = packets_home(t, before[i].id)
            while slots[at & (cap - 1)].id:
                at += 1
            slots[at & (cap - 1)] = before[i]
    free(before)
    return 0


# hot
cdef inline bint packets_have_room(packets_t* t) noexcept nogil:
    """Whether one more id can be noted; false: out of memory. To be asked before its message goes
    out, or is stored: neither can be taken back. Cost: 1 ns."""
    return (<u32>t.n + 1) * 2 <= t.cap or packets_grow(t) == 0


# hot
cdef inline packet_t* packets_add(packets_t* t, u16 id) noexcept nogil:
    """A new entry for an id that is not there. packets_have_room was asked."""
    cdef u32 at = packets_home(t, id)
    cdef packet_t* p
    lmq_assert((<u32>t.n + 1) * 2 <= t.cap)
    while t.slots[at & (t.cap - 1)].id:
        at += 1
    p = &t.slots[at & (t.cap - 1)]
    p.id = id
    p.tag = 0
    t.n += 1
    return p


# hot
cdef inline void packets_remove(packets_t* t, packet_t* p) noexcept nogil:
    """Take an entry out. Others may have moved then."""
    cdef u32 mask = t.cap - 1, hole = <u32>(p - t.slots), at = hole, home
    while True:
        at = (at + 1) & mask
        if t.slots[at].id == 0:
            break
        home = packets_home(t, t.slots[at].id)
        if ((at - home) & mask) >= ((at - hole) & mask):
            t.slots[hole] = t.slots[at]
            hole = at
    t.slots[hole].id = 0
    t.n -= 1
    if t.n == 0 and t.cap > 1024:
        free(t.slots)
        t.slots = NULL
        t.cap = 0


# ---- messages that went back ---------------------------------------------------------------------

cdef inline u32 returned_home(const session_t* s, u32 seg, u32 pos) noexcept nogil:
    return <u32>((((<u64>seg << 32) | pos) * <u64>0x9FB21C651E98DF25) >> 33) & (s.cap_returned - 1)


cdef returned_t* returned_find(const session_t* s, u32 seg, u32 pos) noexcept nogil:
    """The entry of a position, or NULL."""
    cdef u32 at
    cdef returned_t* r
    if s.n_returned == 0:
        return NULL
    at = returned_home(s, seg, pos)
    while True:
        r = &s.returned[at & (s.cap_returned - 1)]
        if r.id == 0:
            return NULL
        if r.seg == seg and r.pos == pos:
            return r
        at += 1


cdef inline bint queue_has_sent(const queue_t* q, u32 seg, u32 pos) noexcept nogil:
    """Whether the message at a position has been sent to the client of a session, and is not
    acknowledged: its time is not over then, for it has to be sent again. Cost: 1 ns of another
    queue."""
    return q.session != NULL and returned_find(q.session, seg, pos) != NULL


cdef int returned_reserve(session_t* s, u32 n) noexcept nogil:
    """Have room for n more. 0, or -1 out of memory."""
    cdef u32 cap = s.cap_returned if s.cap_returned else 8, old = s.cap_returned, i, at
    cdef returned_t* slots
    cdef returned_t* before = s.returned
    while (s.n_returned + n) * 2 > cap:
        cap *= 2
    if cap == old:
        return 0
    slots = <returned_t*>calloc(cap, sizeof(returned_t))
    if slots == NULL:
        return -1
    s.returned = slots
    s.cap_returned = cap
    for i in range(old):
        if before[i].id:
            at = returned_home(s, before[i].seg, before[i].pos)
            while slots[at & (cap - 1)].id:
                at += 1
            slots[at & (cap - 1)] = before[i]
    free(before)
    return 0


cdef void returned_add(session_t* s, u32 seg, u32 pos, u16 id) noexcept nogil:
    """Note the id of a message that goes back; there is room."""
    cdef u32 at = returned_home(s, seg, pos)
    while s.returned[at & (s.cap_returned - 1)].id:
        at += 1
    s.returned[at & (s.cap_returned - 1)].seg = seg
    s.returned[at & (s.cap_returned - 1)].pos = pos
    s.returned[at & (s.cap_returned - 1)].id = id
    s.n_returned += 1


cdef void returned_remove(session_t* s, returned_t* r) noexcept nogil:
    cdef u32 mask = s.cap_returned - 1, hole = <u32>(r - s.returned), at = hole, home
    while True:
        at = (at + 1) & mask
        if s.returned[at].id == 0:
            break
        home = returned_home(s, s.returned[at].seg, s.returned[at].pos)
        if ((at - home) & mask) >= ((at - hole) & mask):
            s.returned[hole] = s.returned[at]
            hole = at
    s.returned[hole].id = 0
    s.n_returned -= 1
    if s.n_returned == 0:
        free(s.returned)
        s.returned = NULL
        s.cap_returned = 0


# ---- the next id ---------------------------------------------------------------------------------

# hot
cdef inline u16 session_next_id(session_t* s) noexcept nogil:
    """An id that is not in use; 0 when all are. Cost: 2 ns."""
    if s.sent.n >= 65535:
        return 0
    while True:
        s.last_id += 1
        if s.last_id and packets_find(&s.sent, s.last_id) == NULL:
            return s.last_id


# ---- life ----------------------------------------------------------------------------------------

cdef session_t* queue_session(queue_t* q) noexcept nogil:
    """What q keeps of its client, made when it is first needed; NULL out of memory."""
    if q.session == NULL:
        q.session = <session_t*>calloc(1, sizeof(session_t))
    return q.session


cdef void session_free(session_t* s) noexcept nogil:
    """NULL is allowed."""
    if s == NULL:
        return
    free(s.sent.slots)
    free(s.received.slots)
    free(s.returned)
    free(s)
