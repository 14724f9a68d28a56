# Tick: what happens once per loop iteration, after all reads: deliver, store, confirm, send.
#
# Each step works on a list that is usually empty. Confirms: publishes gather per channel; one sync
# at a time runs in the worker thread over the files that the gathered publishes touched, then each
# channel gets one cumulative ack. While it runs the next batch gathers: group commit without a
# timer. Acks are sent from here only, so they cannot overtake each other.
# Source: architecture section 6; storage reference section 14.

cdef extern from *:
    """
    #ifndef _GNU_SOURCE
    #define _GNU_SOURCE
    #endif
    #include <unistd.h>
    extern int syncfs(int fd);
    """
    int syncfs(int fd) nogil

from posix.fcntl cimport O_DIRECTORY


# ---- lists ---------------------------------------------------------------------------------------

cdef int loop_add_sync_fd(loop_t* loop, int fd) noexcept nogil:
    """Put a descriptor, which the loop then owns, on the next sync. 0, or -1."""
    cdef int* grown
    if fd < 0:
        return -1
    if loop.n_sync_fds == loop.cap_sync_fds:
        grown = <int*>realloc(loop.sync_fds, (loop.cap_sync_fds * 2 + 16) * sizeof(int))
        if grown == NULL:
            c_close(fd)
            return -1
        loop.sync_fds = grown
        loop.cap_sync_fds = loop.cap_sync_fds * 2 + 16
    loop.sync_fds[loop.n_sync_fds] = fd
    loop.n_sync_fds += 1
    return 0


cdef void loop_want_sync(loop_t* loop, queue_t* q) noexcept nogil:
    """A confirmed publish goes to q: the next batch syncs its files."""
    cdef queue_t** grown
    cdef u32 cap
    if loop.n_sync_queues == loop.cap_sync_queues:
        cap = loop.cap_sync_queues * 2 + 16
        grown = <queue_t**>realloc(loop.sync_queues, cap * sizeof(queue_t*))
        if grown == NULL:
            queue_failed(q)
            return
        loop.sync_queues = grown
        loop.cap_sync_queues = cap
    loop.sync_queues[loop.n_sync_queues] = q
    loop.n_sync_queues += 1
    q.is_sync_wanted = True
    q.refs += 1


cdef void queue_owe_sync(queue_t* q) noexcept nogil:
    """A message was stored in q whose duplicates are to be dropped, and nobody has asked for a
    sync: the confirm of the first duplicate does, wherever that goes itself."""
    if not q.is_sync_wanted:
        queue_note_owing(q)


cdef void queue_note_owing(queue_t* q) noexcept nogil:
    """Put q on the list of queues that may be owing a sync."""
    cdef loop_t* loop = q.loop
    cdef owing_t* node
    if q.is_owing or not loop.sync or not q.store.is_durable:
        return
    node = <owing_t*>malloc(sizeof(owing_t))
    if node == NULL:
        loop_want_sync(loop, q)
        return
    node.queue = q
    node.next = loop.owing
    loop.owing = node
    q.is_owing = True
    q.refs += 1


cdef bint loop_collect_owed(loop_t* loop) noexcept nogil:
    """Have the next sync cover all messages whose duplicates are dropped. False when some are in a
    queue that was closed before it was synced: nobody knows what the disk holds of it."""
    cdef owing_t** at = &loop.owing
    cdef owing_t* node
    cdef queue_t* q
    cdef bint is_whole = True
    while at[0] != NULL:
        node = at[0]
        q = node.queue
        if q.is_closed and not q.is_deleted and queue_is_unsynced(q):
            is_whole = False
            at = &node.next
            continue
        if not q.is_closed and not q.is_deleted and not q.is_sync_wanted:
            loop_want_sync(loop, q)
        at[0] = node.next
        q.is_owing = False
        free(node)
        queue_unref(q)
    return is_whole


cdef void queue_forget_owed(queue_t* q) noexcept nogil:
    """q is deleted, and what it was to have on disk."""
    cdef owing_t** at = &q.loop.owing
    cdef owing_t* node
    while q.is_owing:
        node = at[0]
        if node.queue != q:
            at = &node.next
            continue
        at[0] = node.next
        q.is_owing = False
        free(node)
        queue_unref(q)


cdef void loop_want_confirm(loop_t* loop, chan_t* c) noexcept nogil:
    cdef chan_t** grown
    if loop.n_confirms == loop.cap_confirms:
        grown = <chan_t**>realloc(loop.confirms, (loop.cap_confirms * 2 + 16) * sizeof(chan_t*))
        if grown == NULL:
            return                      # tried again with the channel's next publish
        loop.confirms = grown
        loop.cap_confirms = loop.cap_confirms * 2 + 16
    loop.confirms[loop.n_confirms] = c
    loop.n_confirms += 1
    c.is_in_confirms = loop.is_confirm_new = True
    c.unconfirmed_ns = loop.now_ns


cdef int loop_add_patient(loop_t* loop, consumer_t* k) noexcept nogil:
    """Have k looked at again within a millisecond. 0, or -1 out of memory."""
    cdef consumer_t** grown
    if loop.n_patient == loop.cap_patient:
        grown = <consumer_t**>realloc(
            loop.patient, (loop.cap_patient * 2 + 16) * sizeof(consumer_t*))
        if grown == NULL:
            return -1
        loop.patient = grown
        loop.cap_patient = loop.cap_patient * 2 + 16
    loop.patient[loop.n_patient] = k
    loop.n_patient += 1
    k.is_patient = True
    k.refs += 1
    return 0


cdef void loop_wake_patient(loop_t* loop) noexcept nogil:
    """Let the consumers with a little credit back into their rings, and those whose large message
    finds memory now."""
    cdef u32 i, kept = 0
    cdef consumer_t* k
    for i in range(loop.n_patient):
        k = loop.patient[i]
        if k.wants and not k.is_cancelled and not link_may_take(k.chan.link, k.wants):
            loop.patient[kept] = k
            kept += 1
            continue
        k.wants = 0
        k.is_patient = False
        consumer_join_ring(k)
        consumer_unref(k)
    loop.n_patient = kept


cdef void loop_forget_channel(loop_t* loop, chan_t* c) noexcept nogil:
    cdef u32 i
    if c.is_in_confirms:
        for i in range(loop.n_confirms):
            if loop.confirms[i] == c:
                loop.n_confirms -= 1
                loop.confirms[i] = loop.confirms[loop.n_confirms]
                break
    if c.is_in_batch:
        for i in range(loop.n_batch):
            if loop.batch[i] == c:
                loop.n_batch -= 1
                loop.batch[i] = loop.batch[loop.n_batch]
                break


# ---- confirms ------------------------------------------------------------------------------------

cdef enum:
    FEW_SYNC_QUEUES = 64        # whose files are synced one by one, or by sync_files' choice
    MOST_SYNC_QUEUES = 1024     # above which they never are

cdef void confirm_write(chan_t* c, u64 seq, u32 method, i64 read_ns) noexcept nogil:
    """basic.ack, or basic.nack, with multiple up to seq; the oldest publish of these was read at
    read_ns."""
    cdef u64 n = seq - c.confirmed_seq, n_refused
    cdef u8* p
    if c.state != CHAN_OPEN or c.link.state != LINK_OPEN:
        return
    p = link_room(c.link, 21)
    if p == NULL:
        return
    c.link.out_end += 21
    p = frame_head(p, FRAME_METHOD, c.id, 13)
    put_be32(p, method)
    put_be64(p + 4, seq)
    p[12] = 1
    p[13] = FRAME_END
    c.confirmed_seq = seq
    n_refused = c.n_refused if c.n_refused < n else n
    c.n_refused -= n_refused
    if method == BASIC_ACK:
        c.tally.confirm += n - n_refused
        histogram_add(&c.link.loop.confirm_times, clock_ns() - read_ns)


cdef void confirm_refuse(chan_t* c) noexcept nogil:
    """basic.nack for the last publish alone: a full queue refused it. The acks of those before come
    later; they are cumulative, but clients have settled this one by then."""
    cdef u8* p = link_room(c.link, 21)
    if p == NULL:
        return
    c.link.out_end += 21
    p = frame_head(p, FRAME_METHOD, c.id, 13)
    put_be32(p, BASIC_NACK)
    put_be64(p + 4, c.publish_seq)
    p[12] = 0
    p[13] = FRAME_END
    c.n_refused += 1


cdef int loop_sync_whole(loop_t* loop) noexcept nogil:
    """Have the next sync be one of the whole file system. 0, or -1 with errno."""
    if not loop.is_whole_wanted and loop_add_sync_fd(loop, c_dup(loop.dir_fd)):
        return -1
    loop.is_whole_wanted = True
    return 0


cdef int loop_sync_too(loop_t* loop, int fd) noexcept nogil:
    """Have the next sync cover this file, too, what this tick writes to it included. 0, or -1 with
    errno."""
    if loop.dir_fd >= 0 and (loop.is_whole_wanted or loop.n_sync_fds >= MOST_SYNC_QUEUES
                             or loop.n_sync_fds >= loop.keep_files):
        return loop_sync_whole(loop)
    return loop_add_sync_fd(loop, c_dup(fd))


cdef void queue_want_acks(queue_t* q, store_t* st) noexcept nogil:
    """A commit deletes messages of st: the next sync covers that."""
    if not q.loop.sync or q.is_closed or q.is_deleted or q.stream != NULL or not st.is_durable:
        return
    st.is_acks_wanted = True
    if not q.is_sync_wanted:
        loop_want_sync(q.loop, q)


cdef bint loop_gathers_whole(loop_t* loop) noexcept nogil:
    """Whether the next sync is one of the whole file system, since there are many queues to sync:
    it is quicker, or there are not enough descriptors for all of their files. Looking for each file
    would hold up the loop, too."""
    cdef u32 n = loop.n_sync_queues
    if loop.dir_fd < 0 or n <= FEW_SYNC_QUEUES:
        return False
    if n <= loop.keep_files and n <= MOST_SYNC_QUEUES and n * loop.file_ns <= loop.whole_ns:
        return False
    return loop_sync_whole(loop) == 0


cdef void loop_gather_files(loop_t* loop) noexcept nogil:
    """Turn the queues with confirmed publishes into descriptors to sync. What was taken back or
    handed over at a roll needs none. A queue that gets no descriptor is stuck and stays listed."""
    cdef u32 i, kept = 0
    cdef queue_t* q
    cdef bint is_whole = loop_gathers_whole(loop)
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


cdef int store_hand_over_file(store_t* st, loop_t* loop) noexcept nogil:
    """Put the write segment's descriptor on the next sync. 0, or -1 with errno."""
    cdef int fd
    if not st.is_unsynced:
        return 0
    fd = c_dup(st.wfd) if st.wfd >= 0 else segment_open(st, b"msgs", st.wseg.id, O_RDONLY)
    if fd >= 0 or st.wfd >= 0 or errno != ENOENT:       # else it was purged, or not begun
        if loop_add_sync_fd(loop, fd):
            return -1
    loop.is_large_wanted = loop.is_large_wanted or st.is_large_unsynced
    st.is_unsynced = st.is_large_unsynced = False
    return 0


cdef int store_hand_over(store_t* st, loop_t* loop) noexcept nogil:
    """Put the descriptors of what was written on the next sync. 0, or -1 with errno."""
    if st.is_unsynced and st.wfd >= 0 and loop.n_sync_queues <= RESERVE_QUEUES:
        store_reserve(st, &loop.pool)
    if st.is_acks_wanted and st.is_acks_dir_unsynced:
        st.is_dir_unsynced = True
    st.is_acks_wanted = False           # the tick has handed over what it has written of them
    return -1 if store_hand_over_file(st, loop) else store_hand_over_directory(st, loop)


cdef int store_hand_over_directory(store_t* st, loop_t* loop) noexcept nogil:
    """The same for the names of new files. 0, or -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    if st.is_dir_unsynced:
        store_path(st, path)
        if loop_add_sync_fd(loop, c_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)):
            return -1
        if st.is_nested and loop_add_sync_fd(
                loop, c_open(st.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC)):
            return -1
        st.is_dir_unsynced = st.is_acks_dir_unsynced = False
    return 0


cdef int queue_hand_over(queue_t* q, bint is_whole) noexcept nogil:
    """store_hand_over for each store of q; without descriptors when the whole file system is going
    to be synced."""
    cdef store_t* st
    cdef u32 i
    for i in range(queue_levels(q)):
        st = queue_level(q, i)
        if st != NULL and is_whole:
            st.is_unsynced = st.is_large_unsynced = st.is_dir_unsynced = False
            st.is_acks_wanted = st.is_acks_dir_unsynced = False
        elif st != NULL and store_hand_over(st, q.loop):
            return -1
    if q.stream != NULL:
        stream_handed_over(q)
    return 0


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
        if not c.is_in_batch and c.is_refused:
            confirm_write(c, c.publish_seq, BASIC_NACK, c.unconfirmed_ns)
            c.needs_sync = c.is_refused = c.is_in_confirms = False
        elif not c.is_in_batch and not c.needs_sync:
            confirm_write(c, c.publish_seq, BASIC_ACK, c.unconfirmed_ns)
            c.is_in_confirms = False
        elif loop.stuck != NULL or loop.is_syncing or loop.linger_until_ns:
            loop.confirms[kept] = c
            kept += 1
        elif not loop.sync:
            confirm_write(c, c.publish_seq, BASIC_ACK, c.unconfirmed_ns)
            c.needs_sync = c.is_in_confirms = False
        else:
            c.batch_seq = c.publish_seq
            c.batch_ns = c.unconfirmed_ns
            c.needs_sync = c.is_in_confirms = False
            c.is_in_batch = True
            loop.batch[loop.n_batch] = c
            loop.n_batch += 1
    loop.n_confirms = kept


cdef void loop_finish_batch(loop_t* loop) noexcept nogil:
    """The sync is done: one cumulative ack per channel of the batch."""
    cdef u32 i
    cdef chan_t* c
    for i in range(loop.n_batch):
        c = loop.batch[i]
        c.is_in_batch = False
        confirm_write(c, c.batch_seq, BASIC_ACK, c.batch_ns)
    loop.n_batch = 0


cdef int sync_files(loop_t* loop) noexcept nogil:
    """Sync and close the files of the batch, one by one or by syncing their file system, whichever
    was cheaper of late, or the latter if it has to be. Runs in the worker thread, or in the
    loop's.

    Returns 0, or the errno; the descriptor that failed is then the first of run_fds, and open."""
    cdef u32 i, failed = 0, n = loop.n_run_fds
    cdef int error = 0
    cdef bint is_whole = loop.dir_fd >= 0 and (
        loop.is_run_whole or (n > 1 and n * loop.file_ns > loop.whole_ns))
    cdef i64 began = clock_ns()
    if is_whole:
        if syncfs(loop.dir_fd):
            error = errno
    else:
        for i in range(n):
            if error == 0 and fdatasync(loop.run_fds[i]):
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
        if error == 0 or i != failed:
            c_close(loop.run_fds[i])
    loop.run_fds[0] = loop.run_fds[failed]
    loop.n_run_fds = 1 if error else 0
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
            more = q.able != NULL and not q.is_deleted and (loop.is_spent or queue_deliver(q))
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
        if not q.is_deleted and not q.is_closed and not q.is_stuck and q.store.is_durable:
            for i in range(queue_levels(q)):
                st = queue_level(q, i)
                if st != NULL and store_flush(st):
                    queue_failed(q)
                    break
        q = q.tick_next


cdef void loop_flush_links(loop_t* loop) noexcept nogil:
    """Send what the links have gathered; those that the kernel stopped wait for a writer watch."""
    cdef link_t* l
    cdef int rc
    while loop.flush_links != NULL:
        l = loop.flush_links
        loop.flush_links = l.flush_next
        l.is_in_flush = False
        if l.fd < 0 or l.rests != NULL:
            continue                    # these are sent by a job
        rc = 0 if l.is_blocked else link_send(l)
        if rc == 1:
            link_release_output(l)
        elif not l.has_writer and not l.is_lost:
            l.is_lost = rc < 0
            l.has_writer = True
            l.blocked_next = loop.blocked_links
            loop.blocked_links = l


cdef void loop_tick(loop_t* loop) noexcept nogil:
    cdef u32 n = loop.n_tick_queues
    cdef i64 began_ns = clock_ns() if n >= LEARN_QUEUES else 0
    cdef i64 made_ns = loop.made_ns
    loop.owed_ns = 0
    loop_run_queues(loop)
    loop.make_owed_ns = 0               # also of files that were asked for in this tick
    if loop.dirty_dedups != NULL:
        loop_flush_dedups(loop)
    if loop.n_confirms:
        if not loop.is_syncing and loop.stuck == NULL and not loop_lingers(loop):
            loop_gather_files(loop)
        loop_confirm(loop)
    loop_settle_tick(loop, began_ns, n, made_ns)
    loop_flush_links(loop)
