# Delayed: messages that wait in an exchange's internal queue until their time has come.
#
# The header `x-delay` counts milliseconds from the publish. Waiting messages are stored like any
# other; their order of release is a heap in memory, built anew at start, so none is looked at
# before its time. A release routes the message as if it came then, without the header.
# Called by through.pyx, features.pyx, expiry.pyx and the door. Source: docs/delayed.md.

cdef enum:
    RELEASES_A_LOOK = 64        # releases between two looks at the clock


# ---- the header ----------------------------------------------------------------------------------

cdef i64 field_integer(const u8* value) noexcept nogil:
    """An integer of any width at its type; -1 for what is none."""
    cdef u8 kind = value[0]
    if kind == c'b':
        return <signed char>value[1]
    if kind == c'B':
        return value[1]
    if kind == c's' or kind == c'U':
        return <short>be16(value + 1)
    if kind == c'u':
        return be16(value + 1)
    if kind == c'I':
        return <int>be32(value + 1)
    if kind == c'i':
        return be32(value + 1)
    if kind == c'l' or kind == c'L':
        return <i64>be64(value + 1)
    return -1


cdef i64 delay_ms(const u8* headers, u64 n) noexcept nogil:
    """Milliseconds that a message is to wait; 0 for what is no time, -1 without the header."""
    cdef const u8* entry = table_find(headers, n, <const u8*>b"x-delay", 7)
    cdef i64 ms
    if entry == NULL or entry[8] == c'V':
        return -1
    ms = field_integer(entry + 8)
    return ms if ms > 0 else 0


cdef bint is_delayed(const exchange_t* x, const u8* props, u32 headers_at) noexcept nogil:
    """Whether a message is to wait in the exchange's queue. One that has died there has waited:
    that is how the original releases messages."""
    cdef const u8* headers = props + headers_at + 4
    cdef slice_t deaths
    cdef const u8* entry
    cdef u32 n, size = 0
    if headers_at == 0:
        return False
    n = be32(props + headers_at)
    if delay_ms(headers, n) < 0:
        return False
    deaths = table_value(headers, n, b"x-death", c'A')
    entry = next_death(&deaths, &size)
    if entry == NULL:
        return True
    return not is_same(table_value(entry, size, b"queue", c'S'), x.delayed.name + 1,
                       x.delayed.name[0])


# ---- waiting -------------------------------------------------------------------------------------

cdef i64 due_after(i64 stored_ms, const u8* props, u32 headers_at, u32 headers_len) noexcept nogil:
    """When a message is due that was stored at that time; before NEVER, however long it waits."""
    cdef i64 ms = delay_ms(props + headers_at + 4, headers_len) if headers_at else 0
    ms = ms if ms > 0 else 0
    return stored_ms + ms if ms < NEVER - stored_ms else NEVER - 1


cdef int delayed_append(queue_t* q, const msg_t* m) noexcept nogil:
    """queue_append for an internal queue."""
    cdef i64 now_ms = q.loop.now_ms
    cdef i64 due_ms = due_after(now_ms, m.props, m.headers_at, m.headers_len)
    if queue_append_to(q, q.store, m):
        return APPEND_FAILED
    if dues_push(q.store, due_ms, q.store.wseg.id, q.store.wseg.size - <u32>m.size):
        return APPEND_FAILED
    if due_ms < q.due_ms:
        queue_set_due(q, due_ms)
    if due_ms <= now_ms:
        queue_want_limits(q)
    if q.sample != NULL:
        sample_take(q.sample, m, now_ms)
    return APPENDED


cdef int delayed_index(queue_t* q) noexcept nogil:
    """Find out when each stored message is due, and how many there are: what was counted before may
    be wrong for segments that were cut. 0, or -1 with errno."""
    cdef store_t* st = q.store
    cdef u32 i
    q.ready = q.ready_bytes = 0
    for i in range(st.n_segs):
        if delayed_index_segment(q, st.segs[i]):
            return -1
    store_drop_window(st, &q.loop.pool)
    if st.n_dues:
        queue_set_due(q, st.dues[0].at_ms)
    return 0


cdef int delayed_index_segment(queue_t* q, seg_t* seg) noexcept nogil:
    """delayed_index for one segment, whose deleted positions are sorted. 0, or -1 with errno."""
    cdef store_t* st = q.store
    cdef rec_t rec
    cdef u32 pos = SEGMENT_HEADER, count = 0, skipped = 0
    cdef int rc
    while True:
        rc = store_walk(st, &q.loop.pool, seg, &pos, count, &rec)
        if rc != 1:
            break
        while skipped < seg.n_deleted and seg.deleted[skipped] < pos:
            skipped += 1
        if skipped == seg.n_deleted or seg.deleted[skipped] != pos:
            if dues_push(st, due_after(<i64>le64(rec.names - 8), rec.props, rec.headers_at,
                                       rec.headers_len), seg.id, pos):
                set_errno(ENOMEM)
                return -1
            q.ready += 1
            q.ready_bytes += rec.size
        pos += rec.size
        count += 1
    seg.count = count
    return rc


# ---- release -------------------------------------------------------------------------------------

cdef u8* released_write(const exchange_t* x, const rec_t* rec, u8* p, msg_t* m) noexcept nogil:
    """Build at p the message that is released, but for its body: its size is 0 when that cannot
    be. Returns the end of it."""
    cdef const u8* key = rec.names + rec.names[0] + 1
    cdef u8* props
    cdef const u8* entry
    cdef u32 n = rec.props_len
    memset(m, 0, sizeof(msg_t))
    m.names = p
    p = put_slice(p, x.name, 1 + x.name[0])
    p = put_slice(p, key, 1 + key[0])
    m.names_len = <u32>(p - m.names)
    props = p
    props_to_wire(props, rec)
    if rec.headers_at:
        entry = table_find(props + rec.headers_at + 4, rec.headers_len, <const u8*>b"x-delay", 7)
        if entry != NULL:
            n = props_cut(props, n, rec.headers_at, <u32>(entry - props),
                          <u32>entry_size(entry, n - (entry - props)))
    m.body_len = rec.body_len
    if props_find(props, n, m):
        m.size = RECORD_FIXED - 2 + m.names_len + n + m.body_len
    return props + n


cdef void route_released(exchange_t* x, const msg_t* m, loop_t* loop) noexcept nogil:
    """route_moved for what has waited in x."""
    cdef queue_t* waiting = x.delayed           # NULL when nothing new waits
    x.delayed = NULL
    route_moved(x, m, loop)
    x.delayed = waiting


cdef int delayed_publish(queue_t* q, const rec_t* rec) noexcept nogil:
    """Route a message whose time has come, and store it in the queues that it reaches. A
    move_result."""
    cdef loop_t* loop = q.loop
    cdef u8* p
    cdef msg_t m
    cdef bint is_done = True
    if rec.size > LARGE_RECORD:
        return MOVE_LARGE
    p = loop_scratch(loop, <u64>rec.size + 512)
    if p == NULL or q.releases == NULL:
        return MOVE_REFUSED
    p = released_write(q.releases, rec, p, &m)
    m.body = p
    if store_copy_body(q.store, rec, p, rec.body_len):
        is_done = False
    elif m.size:
        route_released(q.releases, &m, loop)
        is_done = move_store(loop, &m, &loop.buried, -1)
    loop_drop_scratch(loop)
    return MOVE_DONE if is_done else MOVE_REFUSED


cdef bint delayed_release_next(queue_t* q) noexcept nogil:
    """Release the message that is due first. False when that has to wait, or the queue broke."""
    cdef store_t* st = q.store
    cdef due_t top = st.dues[0]
    cdef seg_t* seg = store_segment(st, top.seg)
    cdef rec_t rec
    cdef spot_t at
    cdef int rc, result = MOVE_DONE
    if seg == NULL or not store_is_ahead(st, top.seg, top.pos):
        dues_pop(st)            # purged
        return True
    rc = store_read(st, &q.loop.pool, store_window(st), seg, top.pos, 4096, &rec)
    if rc == -2:
        st.error = errno if errno else EIO
        q.loop.is_news = True
        if not is_no_room(st.error):
            queue_break(q)
        return False
    if rc == 1:
        rec.level = 0
        rec.redelivered = False
        at = spot_of(&rec, MOVE_RELEASED)
        loop_begin_move(q.loop, q)
        result = delayed_publish(q, &rec)
        queue_uncount(q, st, at.size)
    dues_pop(st)
    if rc == 1:                 # what cannot be read the cursor finds out
        if segment_push_deleted(seg, top.pos):
            queue_failed(q)
            return False
        queue_end_move(q, &at, result)
    return not q.is_closed


cdef void delayed_release(queue_t* q, i64 now_ms) noexcept nogil:
    """Release what is due, the earliest first, for as long as others can wait; note when to look
    again."""
    cdef store_t* st = q.store
    cdef i64 until_ns = clock_ns() + EXPIRY_NS
    cdef u32 n = 0
    cdef rec_t rec
    cdef bint may_go_on = True, is_passing
    while may_go_on and st.n_dues and st.dues[0].at_ms <= now_ms:
        may_go_on = delayed_release_next(q)
        n += 1
        if n % RELEASES_A_LOOK == 0 and clock_ns() > until_ns:
            break
    if q.is_closed:
        return
    # The cursor passes what is gone, so that segments can go.
    is_passing = q.ready and queue_peek(q, &rec) == PEEK_LATER
    store_drop_window(st, &q.loop.pool)
    if not may_go_on:
        queue_set_due(q, q.loop.now_ms + READ_PAUSE_MS)
    elif is_passing:
        queue_set_due(q, q.loop.now_ms + 1)
    else:
        queue_set_due(q, st.dues[0].at_ms if st.n_dues else NEVER)
    queue_touch(q)
