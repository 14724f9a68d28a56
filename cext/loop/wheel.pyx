# Wheel: links by the time at which each is looked at next, for heartbeats and time-outs.
#
# A slot stands for an eighth of a second. Adding, removing and taking a link cost the same however
# many there are, and links spread over the slots by when they came: no walk over all of them.


cdef void wheel_add(loop_t* loop, link_t* l, i64 due_ns) noexcept nogil:
    """Have a link looked at when its time comes, or in a slot before."""
    cdef i64 slot = due_ns // LOOK_SLOT_NS
    cdef link_t** head
    wheel_remove(loop, l)
    if loop.n_looks == 0:
        loop.look_slot = loop.now_ns // LOOK_SLOT_NS
    if slot < loop.look_slot:
        slot = loop.look_slot
    elif slot > loop.look_slot + LOOK_SLOTS - 1:
        slot = loop.look_slot + LOOK_SLOTS - 1
    head = &loop.looks[slot & (LOOK_SLOTS - 1)]
    l.look_next = head[0]
    if l.look_next != NULL:
        l.look_next.look_at = &l.look_next
    l.look_at = head
    head[0] = l
    loop.n_looks += 1


cdef void wheel_remove(loop_t* loop, link_t* l) noexcept nogil:
    """Do not look at a link any more. Idempotent."""
    if l.look_at == NULL:
        return
    l.look_at[0] = l.look_next
    if l.look_next != NULL:
        l.look_next.look_at = l.look_at
    l.look_at = NULL
    loop.n_looks -= 1


cdef link_t* wheel_take(loop_t* loop) noexcept nogil:
    """Take a link whose time has come off the wheel; NULL when there is none."""
    cdef i64 now_slot = loop.now_ns // LOOK_SLOT_NS
    cdef link_t* l
    if loop.n_looks == 0:
        return NULL
    while loop.look_slot <= now_slot:
        l = loop.looks[loop.look_slot & (LOOK_SLOTS - 1)]
        if l != NULL:
            wheel_remove(loop, l)
            return l
        # This slot stays open until its time is over: who is due now comes into it.
        if loop.look_slot == now_slot:
            return NULL
        loop.look_slot += 1
    return NULL


cdef i64 link_look_ns(link_t* l) noexcept nogil:
    """When a link that was looked at now is to be looked at again."""
    cdef i64 due = l.loop.now_ns + LOOK_EVERY_NS
    cdef i64 beat
    if l.state != LINK_OPEN:
        return l.loop.now_ns + LOOK_EVERY_NS // 2      # its heartbeats may begin meanwhile
    if l.is_in_ages:
        return l.loop.now_ns
    if l.heartbeat_ns and not l.wire.is_blocked:
        beat = l.wire.last_sent_ns + l.heartbeat_ns // 2
        # One that was written just now counts as sent at the end of this iteration.
        if beat <= l.loop.now_ns:
            beat = l.loop.now_ns + l.heartbeat_ns // 2
        if beat < due:
            due = beat
    return due


cdef bint link_beat_is_due(const link_t* l) noexcept nogil:
    """Whether nothing was sent for half the heartbeat's interval, less what a slot is early."""
    return l.loop.now_ns - l.wire.last_sent_ns >= l.heartbeat_ns // 2 - LOOK_SLOT_NS
