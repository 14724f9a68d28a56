# Confirms: acks and nacks of what channels have published, in batches behind a sync.
#
# Publishes gather per channel; one sync at a time runs over the files that they touched, then each
# channel gets one cumulative ack. While it runs the next batch gathers: group commit without a
# timer. Acks are sent from here only, so they cannot overtake each other. Called by tick.pyx.
# Source: docs/durability.md; docs/architecture.md, the tick.


# ---- one channel ---------------------------------------------------------------------------------

cdef void channel_confirm(chan_t* c, u64 seq, bint is_ack, i64 read_ns) noexcept nogil:
    """All up to seq is safe, or not; the oldest publish of these was read at read_ns."""
    cdef u64 n = seq - c.confirmed_seq, n_refused
    if c.state != CHAN_OPEN or c.link.state != LINK_OPEN:
        return
    if not c.link.protocol.confirm(c, seq, is_ack):
        return
    c.confirmed_seq = seq
    n_refused = c.n_refused if c.n_refused < n else n
    c.n_refused -= n_refused
    if is_ack:
        c.tally.confirm += n - n_refused
        histogram_add(&c.link.loop.confirm_times, clock_ns() - read_ns)


cdef void channel_refuse(chan_t* c) noexcept nogil:
    """The last publish alone is refused, by a full queue. What confirms those before comes later,
    for all of them; clients have settled this one by then."""
    if c.link.wire.fd >= 0 and c.link.protocol.refuse(c):
        c.n_refused += 1


# ---- batches -------------------------------------------------------------------------------------

cdef bint loop_lingers(loop_t* loop) noexcept nogil:
    """Whether the next sync waits a little for more publishes, because earlier ones covered more.

    A publisher with a window answers confirms with new publishes. If what came during one sync is
    synced at once, the window falls in two parts that wait for each other's syncs (decision
    0011). Moves linger_until_ns."""
    cdef u64 pending = 0
    cdef u32 i
    cdef i64 now
    if loop.sync and loop.n_confirms <= LINGER_CHANNELS:
        for i in range(loop.n_confirms):
            if loop.confirms[i].needs_sync:
                pending += loop.confirms[i].publish_seq - loop.confirms[i].confirmed_seq
    if pending == 0 or pending >= loop.expected:
        loop.expected = pending if pending else loop.expected
        loop.linger_until_ns = 0
        return False
    now = clock_ns()
    if loop.linger_until_ns == 0:
        loop.linger_until_ns = now + (loop.sync_ns // 2 if loop.sync_ns < 2 * LINGER_MAX_NS
                                      else LINGER_MAX_NS)
    if now < loop.linger_until_ns:
        return True
    loop.expected -= (loop.expected - pending + 1) // 2
    loop.linger_until_ns = 0
    return False


cdef void loop_confirm(loop_t* loop) noexcept nogil:
    """Ack channels whose publishes need no sync; the others join the next batch if none runs,
    everything is written and no more is waited for."""
    cdef u32 i, kept = 0
    cdef chan_t* c
    cdef chan_t** grown
    loop.is_confirm_new = False
    if loop.cap_batch < loop.n_confirms and not loop.is_syncing:
        grown = <chan_t**>realloc(loop.batch, loop.cap_confirms * sizeof(chan_t*))
        if grown == NULL:
            return
        loop.batch = grown
        loop.cap_batch = loop.cap_confirms
    for i in range(loop.n_confirms):
        c = loop.confirms[i]
        if not c.is_in_batch and (c.is_refused or (loop.is_below and c.needs_sync)):
            channel_confirm(c, c.publish_seq, False, c.unconfirmed_ns)
            c.needs_sync = c.is_refused = c.is_in_confirms = False
        elif not c.is_in_batch and not c.needs_sync:
            channel_confirm(c, c.publish_seq, True, c.unconfirmed_ns)
            c.is_in_confirms = False
        elif loop_is_full(loop) or loop.is_syncing or loop.linger_until_ns:
            loop.confirms[kept] = c
            kept += 1
        elif not loop.sync:
            channel_confirm(c, c.publish_seq, True, c.unconfirmed_ns)
            c.needs_sync = c.is_in_confirms = False
        else:
            c.batch_seq = c.publish_seq
            c.batch_ns = c.unconfirmed_ns
            c.needs_sync = c.is_in_confirms = False
            c.is_in_batch = True
            loop.batch[loop.n_batch] = c
            loop.n_batch += 1
    loop.n_confirms = kept


cdef void loop_finish_batch(loop_t* loop, bint is_ack) noexcept nogil:
    """The sync is done, or nobody waits for it any more: one cumulative ack, or nack, per channel
    of the batch."""
    cdef u32 i
    cdef chan_t* c
    for i in range(loop.n_batch):
        c = loop.batch[i]
        c.is_in_batch = False
        channel_confirm(c, c.batch_seq, is_ack, c.batch_ns)
    loop.n_batch = 0
