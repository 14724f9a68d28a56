# Session left: messages of QoS 2 whose clients have gone before it was known that they are safe.
#
# A client that is there hears that its message was refused, and its id is forgotten (acks.pyx).
# When it has gone, the log notes here whose ids wait for which sync. What the disk does not take
# until then is lost, and the id with it: sent again, the message is a new one.
# Called by protocol.pyx, tick.pyx and the door. Decision 0144.


cdef void slog_drop_left(slog_t* sl, u64 synced) noexcept nogil:
    """What waited for syncs up to that number is safe."""
    cdef u32 n = 0, i
    while n < sl.n_left and sl.left[n].until <= synced:
        queue_unref(sl.left[n].queue)
        n += 1
    sl.n_left -= n
    for i in range(sl.n_left if n else 0):
        sl.left[i] = sl.left[i + n]


cdef void slog_unlist_left(slog_t* sl) noexcept nogil:
    """Take it off the list of the loop. Idempotent."""
    cdef slog_t** at = &sl.log.loop.left_logs
    if not sl.has_left:
        return
    while at[0] != sl:
        at = &at[0].left_next
    at[0] = sl.left_next
    sl.has_left = False


cdef void slog_forget_unsafe(slog_t* sl, queue_t* q) noexcept nogil:
    """Forget the ids of a session that wait for a sync which has not begun."""
    cdef msession_t* m
    cdef packets_t* t
    cdef u32 i = 0
    cdef u16 id
    if q.is_deleted or q.session == NULL:
        return
    m = slog_of_queue(sl, q)
    t = &q.session.received
    while i < t.cap and t.n:
        id = t.slots[i].id
        if id == 0 or t.slots[i].tag <= q.loop.n_syncs:
            i += 1
            continue
        packets_remove(t, &t.slots[i])          # another one may stand there now
        if m != NULL:
            slog_note(sl, m, SESSION_RELEASED, id, 0, 0)


cdef void slog_sink_leave(session_log_t* sink, queue_t* q, u64 until) noexcept nogil:
    """See session_log_t. Without memory the ids are forgotten at once: rather twice than never."""
    cdef slog_t* sl = (<session_sink_t*>sink).log
    cdef loop_t* loop = q.loop
    cdef sleft_t* grown
    cdef u32 cap
    if sl.buckets == NULL:
        return
    slog_drop_left(sl, loop.n_synced)
    if sl.n_left == sl.cap_left:
        cap = sl.cap_left * 2 + 16
        grown = <sleft_t*>realloc(sl.left, cap * sizeof(sleft_t))
        if grown == NULL:
            slog_forget_unsafe(sl, q)
            return
        sl.left = grown
        sl.cap_left = cap
    sl.left[sl.n_left].queue = q
    sl.left[sl.n_left].until = until
    sl.n_left += 1
    q.refs += 1
    if not sl.has_left:
        sl.has_left = True
        sl.left_next = loop.left_logs
        loop.left_logs = sl


cdef void slog_release_left(slog_t* sl) noexcept nogil:
    slog_drop_left(sl, <u64>-1)
    slog_unlist_left(sl)
    free(sl.left)
    sl.left = NULL
    sl.cap_left = 0


cdef void loop_forget_lost(loop_t* loop) noexcept nogil:
    """Something was lost of which nobody was told that it is safe: any of what clients have left
    may be part of it, as with those that are there."""
    cdef slog_t* sl
    cdef u32 i
    while loop.has_lost:
        loop.has_lost = False
        sl = loop.left_logs
        while sl != NULL:
            for i in range(sl.n_left):
                slog_forget_unsafe(sl, sl.left[i].queue)
            sl = sl.left_next
        loop_flush_logs(loop)           # which may lose something, too
