# Tick: what happens once per loop iteration, after all reads: deliver, store, confirm, send.
#
# Each step works on a list that is usually empty (wishes.pyx). One sync at a time runs in the
# worker thread, over the files that confirmed publishes touched; their acks are in confirms.pyx.
# Source: docs/architecture.md, the tick; docs/durability.md.

cdef enum:
    FEW_SYNC_QUEUES = 64        # whose files are synced one by one, or by sync_files' choice


# ---- syncs ---------------------------------------------------------------------------------------

cdef bint loop_gathers_whole(loop_t* loop) noexcept nogil:
    """Whether the next sync is one of the whole file system, since there are many queues to sync:
    it is quicker, or there are not enough descriptors for all of their files. Looking for each file
    would hold up the loop, too."""
    cdef u32 n = loop.n_sync_queues
    if loop.dir_fd < 0 or n <= FEW_SYNC_QUEUES:
        return False
    if n <= loop.keep_files and n <= MOST_SYNC_QUEUES and n * loop.file_ns <= loop.whole_ns:
        return False
    loop.is_whole_wanted = True
    return True


cdef void loop_gather_files(loop_t* loop) noexcept nogil:
    """Turn the queues with confirmed publishes into descriptors to sync. What was taken back or
    handed over at a roll needs none. A queue that gets no descriptor is stuck and stays listed."""
    cdef u32 i, kept = 0
    cdef queue_t* q
    cdef bint is_whole = loop_gathers_whole(loop)
    if loop.sync_logs != NULL:
        loop_gather_logs(loop)          # first: they say which messages of queues have to be there
    for i in range(loop.n_sync_queues):
        q = loop.sync_queues[i]
        if not q.is_deleted and not q.is_closed and queue_hand_over(q, is_whole):
            queue_failed(q)
            loop.sync_queues[kept] = q
            kept += 1
            continue
        q.is_sync_wanted = False
        queue_unref(q)
    loop.n_sync_queues = kept


cdef int queue_hand_over(queue_t* q, bint is_whole) noexcept nogil:
    """store_hand_over for each store of q; without descriptors when the whole file system is going
    to be synced."""
    cdef store_t* st
    cdef u32 i
    for i in range(queue_levels(q)):
        st = queue_level(q, i)
        if st == NULL or st.is_vacant:
            continue
        if is_whole:
            st.is_unsynced = st.is_large_unsynced = st.is_dir_unsynced = False
            st.is_acks_wanted = st.is_acks_dir_unsynced = False
            store_covers_left(st)
        elif store_hand_over(st, q.loop):
            return -1
    if q.stream != NULL:
        stream_handed_over(q)
    return 0


cdef int sync_files(loop_t* loop) noexcept nogil:
    """Sync and close the files of the batch, one by one or by syncing their file system, whichever
    was cheaper of late, or the latter if it has to be. Runs in the worker thread, or in the
    loop's.

    Returns 0, or the errno; a file that failed is then the first of run_fds, and open."""
    cdef u32 i, failed = 0, n = loop.n_run_fds
    cdef int error = 0
    cdef bint is_whole = loop.dir_fd >= 0 and (
        loop.is_run_whole or (n > 1 and n * loop.file_ns > loop.whole_ns))
    cdef i64 began = clock_ns()
    if is_whole:
        if sync_all(loop.dir_fd):
            error = errno
    else:
        for i in range(n):
            if error == 0 and sync_data(loop.run_fds[i]):
                error = errno
                failed = i
    loop.sync_ns = clock_ns() - began
    # Each way is forgotten slowly while the other is used, so that it is tried again.
    if is_whole:
        loop.whole_ns += (loop.sync_ns - loop.whole_ns) // 8
        loop.file_ns -= loop.file_ns // 128
    else:
        loop.file_ns += (loop.sync_ns // n - loop.file_ns) // 8
        loop.whole_ns -= loop.whole_ns // 128
    for i in range(n):
        if error == 0 or is_whole or i != failed:
            c_close(loop.run_fds[i])
    loop.n_run_fds = 1 if error and not is_whole else 0
    if loop.n_run_fds:
        loop.run_fds[0] = loop.run_fds[failed]
    return error


cdef enum:
    QUEUE_UNITS = 20            # of work, for each queue in a tick


# ---- the tick ------------------------------------------------------------------------------------

cdef void loop_run_queues(loop_t* loop) noexcept nogil:
    """Deliver from and store the queues that something happened to; once each."""
    cdef queue_t* q = loop.tick_queues
    cdef queue_t* following
    cdef bint more
    loop.tick_queues = NULL
    loop.n_tick_queues = 0
    while q != NULL:
        following = q.tick_next
        q.is_in_tick = False
        if q.stream != NULL:
            more = not q.is_deleted and not q.is_closed and (
                loop.is_spent or stream_deliver(q))
        else:
            more = ((q.able != NULL or q.is_asleep) and not q.is_deleted
                    and (loop.is_spent or queue_deliver(q)))
        loop_spent(loop, QUEUE_UNITS)
        queue_measure_crowd(q)
        queue_end_tick(q)
        if more:
            queue_touch(q)
        queue_unref(q)
        q = following
    if loop.over != NULL:
        loop_enforce(loop)
    if loop.is_moved:
        loop_flush_moved(loop)


cdef void loop_flush_moved(loop_t* loop) noexcept nogil:
    """Messages may have been moved to queues that had their turn in this tick, or wait for it: a
    sync that comes now has to find them in the files."""
    cdef queue_t* q = loop.tick_queues
    cdef store_t* st
    cdef u32 i
    loop.is_moved = False
    while q != NULL:
        if not q.is_deleted and not q.is_closed and not q.is_stuck and q.is_durable:
            for i in range(queue_levels(q)):
                st = queue_level(q, i)
                if st != NULL and store_flush(st):
                    queue_failed(q)
                    break
        q = q.tick_next


cdef enum:
    FLUSH_LINKS = 32            # that are sent to before the clock is looked at
    FLUSH_NS = 1000000          # of sending in a tick; what is left goes in the next one


cdef inline link_t* loop_next_to_flush(loop_t* loop, u32 n) noexcept nogil:
    """The nth link to send to in a tick: one that has come to it, and one that was left by the tick
    before, in turn, so that neither waits for thousands of the others. NULL when there is none."""
    cdef link_t** at = &loop.flush_links
    cdef link_t* l
    if loop.flush_rest != NULL and (n & 1 or loop.flush_links == NULL):
        at = &loop.flush_rest
    l = at[0]
    if l != NULL:
        at[0] = l.flush_next
        l.is_in_flush = False
    return l


cdef void loop_flush_links(loop_t* loop) noexcept nogil:
    """Send what the links have gathered, for a while; those that the kernel stopped wait for a
    writer watch."""
    cdef link_t* l
    cdef i64 until_ns = 0
    cdef u32 n = 0
    cdef int rc
    while True:
        if n % FLUSH_LINKS == FLUSH_LINKS - 1:
            if until_ns == 0:
                until_ns = clock_ns() + FLUSH_NS
            elif loop.portion_units or clock_ns() >= until_ns:
                break
        l = loop_next_to_flush(loop, n)
        n += 1
        if l == NULL:
            break
        if l.wire.fd < 0 or l.rests != NULL:
            continue                    # these are sent by a job
        rc = 0 if l.wire.is_blocked else link_send(l)
        if rc == 1:
            link_release_output(l)
        elif rc == SEND_HELD:
            pass
        elif not l.wire.has_writer and not l.wire.is_lost:
            l.wire.is_lost = rc < 0
            l.wire.has_writer = True
            l.blocked_next = loop.blocked_links
            loop.blocked_links = l
    if loop.flush_rest == NULL:
        loop.flush_rest = loop.flush_links
        loop.flush_links = NULL


cdef void loop_tick(loop_t* loop) noexcept nogil:
    cdef u32 n = loop.n_tick_queues
    cdef i64 began_ns = clock_ns() if n >= LEARN_QUEUES else 0
    cdef i64 made_ns = loop.made_ns
    loop.owed_ns = 0
    if loop.is_noted:
        loop.is_noted = False
        loop_flush_logs(loop)           # before the queues, see session_places.pyx
    loop_run_queues(loop)
    loop.make_owed_ns = 0               # also of files that were asked for in this tick
    if loop.dirty_dedups != NULL:
        loop_flush_dedups(loop)
    if loop.dirty_logs != NULL:
        loop_flush_logs(loop)
    if loop.has_lost:
        loop_forget_lost(loop)
    if loop.n_confirms:
        if not loop.is_syncing and not loop_is_full(loop) and not loop_lingers(loop):
            loop_gather_files(loop)
        loop_confirm(loop)
    loop_settle_tick(loop, began_ns, n, made_ns)
    loop_flush_links(loop)
