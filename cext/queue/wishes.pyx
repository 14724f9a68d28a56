# Wishes: what is put on the loop's lists, for the tick to see to.
#
# Queues whose files the next sync has to cover, those that owe a sync to duplicates they dropped,
# channels that wait for confirms, and consumers with too little credit to be worth their while now.
# Source: docs/architecture.md, the tick.


# ---- syncs ---------------------------------------------------------------------------------------

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


cdef void queue_want_acks(queue_t* q, store_t* st) noexcept nogil:
    """A commit deletes messages of st: the next sync covers that."""
    if not q.loop.sync or q.is_closed or q.is_deleted or q.stream != NULL or not st.is_durable:
        return
    if st.is_vacant:
        return
    st.is_acks_wanted = True
    if not q.is_sync_wanted:
        loop_want_sync(q.loop, q)


cdef void queue_owe_sync(queue_t* q) noexcept nogil:
    """A message was stored in q whose duplicates are to be dropped, and nobody has asked for a
    sync: the confirm of the first duplicate does, wherever that goes itself."""
    if not q.is_sync_wanted:
        queue_note_owing(q)


cdef void queue_note_owing(queue_t* q) noexcept nogil:
    """Put q on the list of queues that may be owing a sync."""
    cdef loop_t* loop = q.loop
    cdef owing_t* node
    if q.is_owing or not loop.sync or not q.is_durable:
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
    """q is deleted, and what it was to have on disk. It may be freed by that."""
    cdef owing_t** at = &q.loop.owing
    cdef owing_t* node
    if not q.is_owing:
        return
    while at[0].queue != q:
        at = &at[0].next
    node = at[0]
    at[0] = node.next
    q.is_owing = False
    free(node)
    queue_unref(q)


# ---- confirms ------------------------------------------------------------------------------------

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


cdef void loop_forget_channel(loop_t* loop, chan_t* c) noexcept nogil:
    cdef u32 i
    if c.is_in_confirms:
        for i in range(loop.n_confirms):
            if loop.confirms[i] == c:
                loop.n_confirms -= 1
                loop.confirms[i] = loop.confirms[loop.n_confirms]
                break
        loop.is_confirm_new = loop.is_confirm_new and loop.n_confirms != 0
    if c.is_in_batch:
        for i in range(loop.n_batch):
            if loop.batch[i] == c:
                loop.n_batch -= 1
                loop.batch[i] = loop.batch[loop.n_batch]
                break


# ---- patient consumers ---------------------------------------------------------------------------

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
