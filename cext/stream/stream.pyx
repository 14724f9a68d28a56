# Stream: a queue that is read and not emptied: append, readers in turn, settling, its part of a
# tick.
#
# Each consumer has a reader of its own. Those with credit that may have something to read are in
# one ring, those that have read all there is in another: a publish wakes them by joining the two,
# and nothing else looks at them. What readers do is in stream_read.pyx, what goes after its time in
# stream_retention.pyx. Called by queue.pyx, features.pyx, channel.pyx, tick.pyx and the door.
# Source: docs/streams.md.

cdef enum:
    OFFSET_HEADER = 25          # bytes of x-stream-offset in a headers table
    TIME_HEADER = 28            # of x-stream-timestamp, which may follow
    EPOCH_HEADER = 24           # of x-stream-epoch, which may follow either
    STREAM_UNITS = 10           # of work, for each turn of a consumer
    KEEP_WINDOWS = 64           # blocks in use above which a reader without credit keeps none


# ---- life ----------------------------------------------------------------------------------------

cdef stream_t* stream_new(u64 segment_size) noexcept nogil:
    """An empty stream, or NULL out of memory."""
    cdef stream_t* s = <stream_t*>calloc(1, sizeof(stream_t))
    if s == NULL:
        return NULL
    s.next_offset = s.seen_offset = s.synced.offset = 1
    s.max_length = s.max_bytes = NO_LIMIT
    s.max_age_ms = -1
    s.tracks.fd = -1
    s.tracks.capacity = segment_size
    put_name(put_name(put_name(s.header, b"x-stream-offset", c'l') + 8,
                      b"x-stream-timestamp", c'l') + 8, b"x-stream-epoch", c'l')
    put_name(put_name(s.epoch_header, b"x-stream-offset", c'l') + 8, b"x-stream-epoch", c'l')
    return s


cdef void stream_free(stream_t* s) noexcept nogil:
    """No queue and no reader uses it any more."""
    if s != NULL:
        tracks_free(&s.tracks)
        free(s.epochs)
        free(s)


cdef void stream_abandon(queue_t* q) noexcept nogil:
    """The store goes: readers stand nowhere from now on."""
    cdef consumer_t* k = q.stream.readers
    while k != NULL:
        consumer_leave_ring(k)
        window_drop(&k.reader.window, &q.loop.pool)
        k.reader.seg = NULL
        k = k.reader.next
    tracks_close(&q.stream.tracks)


# ---- publishing ----------------------------------------------------------------------------------

# hot
cdef int stream_append(queue_t* q, const msg_t* m) noexcept nogil:
    """queue_append for a stream. Cost: 5 ns more."""
    cdef stream_t* s = q.stream
    cdef seg_t* seg
    cdef u32 pos
    if queue_append_to(q, q.store, m):
        return APPEND_FAILED
    seg = q.store.wseg
    pos = seg.size - <u32>m.size
    if seg.count == 1:
        seg.first_offset = s.next_offset
        seg.first_ms = q.loop.now_ms
    if seg.last_ms < q.loop.now_ms:
        seg.last_ms = q.loop.now_ms
    if pos >= seg.marked_to + <u64>MARK_BYTES:
        stream_mark(q, seg, pos, seg.count - 1, q.loop.now_ms)
    s.next_offset += 1
    if q.sample != NULL:
        sample_take(q.sample, m, q.loop.now_ms)
    return APPENDED


cdef int stream_roll(queue_t* q) noexcept nogil:
    """queue_roll for a stream, whose write segment is flushed. 0, or -1 with errno."""
    cdef store_t* st = q.store
    cdef bint is_handed = not st.is_unsynced and stream_is_handed(q)
    cdef seg_t* seg
    if st.reserved == 0:
        segment_write_meta(st, st.wseg)
    elif q.due_ms == NEVER:                     # its filling has to be cut before
        queue_set_due(q, q.loop.now_ms + LOOK_MS)
    seg = store_add_segment(st, st.wseg.id + 1)
    if seg == NULL:
        return -1
    store_leave_segment(st, seg)
    st.unflushed = 0
    st.rseg = seg
    st.rpos = SEGMENT_HEADER
    seg.first_offset = q.stream.next_offset
    if is_handed:
        q.stream.unsynced_seg = seg.id          # the next sync has all that is in those before
    stream_write_marker(q)
    stream_retain(q)
    return 0


# ---- readers -------------------------------------------------------------------------------------

cdef reader_t* reader_new(consumer_t* k) noexcept nogil:
    """The reader of a consumer of a stream, at the end of what is there; NULL out of memory."""
    cdef queue_t* q = k.queue
    cdef reader_t* r = <reader_t*>calloc(1, sizeof(reader_t))
    if r == NULL:
        return NULL
    r.window.fd = -1
    r.free_slot = r.oldest = r.newest = NO_SLOT
    reader_go_to_end(q, r)
    r.is_listed = True
    r.next = q.stream.readers
    if r.next != NULL:
        r.next.reader.prev = k
    q.stream.readers = k
    k.reader = r
    return r


cdef void reader_detach(consumer_t* k) noexcept nogil:
    """The consumer is over; what it has not settled may still be."""
    cdef reader_t* r = k.reader
    if r == NULL or not r.is_listed:
        return
    r.is_listed = False
    window_drop(&r.window, &k.queue.loop.pool)
    if r.next != NULL:
        r.next.reader.prev = r.prev
    if r.prev != NULL:
        r.prev.reader.next = r.next
    else:
        k.queue.stream.readers = r.next
    r.n_requeued = 0
    if r.track != NULL:
        k.queue.stream.tracks.n_readers -= 1


cdef void reader_free(consumer_t* k) noexcept nogil:
    cdef reader_t* r = k.reader
    if r == NULL:
        return
    reader_detach(k)
    if r.track != NULL:
        r.track.refs -= 1
        if r.track.offset == 0:
            tracks_forget(&k.queue.stream.tracks, r.track)
    filter_free(r.filter)
    free(r.slots)
    free(r.requeued)
    free(r)
    k.reader = NULL


cdef int reader_track(consumer_t* k) noexcept nogil:
    """Keep what the consumer acknowledges under its tag. 0, or -1 out of memory."""
    cdef tracks_t* ts = &k.queue.stream.tracks
    cdef track_t* t = tracks_get(ts, k.tag + 1, k.tag[0])
    if t == NULL:
        return -1
    t.refs += 1
    ts.n_readers += 1
    k.reader.track = t
    return 0


cdef void readers_add(consumer_t** head, consumer_t* k) noexcept nogil:
    """Put k at the end of a ring."""
    if head[0] == NULL:
        k.next = k.prev = k
        head[0] = k
        return
    k.prev = head[0].prev
    k.next = head[0]
    k.prev.next = k
    k.next.prev = k


cdef void readers_remove(consumer_t** head, consumer_t* k) noexcept nogil:
    if k.next == k:
        head[0] = NULL
        return
    k.prev.next = k.next
    k.next.prev = k.prev
    if head[0] == k:
        head[0] = k.next


cdef void reader_join_ring(consumer_t* k) noexcept nogil:
    """The consumer can take a message."""
    k.reader.is_idle = False
    readers_add(&k.queue.stream.active, k)
    queue_touch(k.queue)


cdef void reader_leave_ring(consumer_t* k) noexcept nogil:
    """It cannot any more, for now."""
    cdef stream_t* s = k.queue.stream
    readers_remove(&s.idle if k.reader.is_idle else &s.active, k)


cdef void reader_rest(queue_t* q, consumer_t* k) noexcept nogil:
    """No credit: leave the ring; where memory is wanted elsewhere, without a block."""
    cdef reader_t* r = k.reader
    consumer_leave_ring(k)
    if r.window.cap > BLOCK_SIZE or q.loop.pool.n_used > KEEP_WINDOWS:
        window_drop(&r.window, &q.loop.pool)


cdef void reader_idle(queue_t* q, consumer_t* k) noexcept nogil:
    """Nothing more to read: wait for a publish."""
    readers_remove(&q.stream.active, k)
    k.reader.is_idle = True
    readers_add(&q.stream.idle, k)
    window_drop(&k.reader.window, &q.loop.pool)
    slots_trim(k.reader)


cdef void reader_finish(queue_t* q, consumer_t* k) noexcept nogil:
    """It has had all that it asked for: nothing more comes, and its client is to be told."""
    k.is_started = False
    consumer_leave_ring(k)
    window_drop(&k.reader.window, &q.loop.pool)
    if not k.reader.is_over:
        k.reader.is_over = True
        k.reader.over_next = q.loop.over_consumers
        q.loop.over_consumers = k
        k.refs += 1


cdef void stream_wake(stream_t* s) noexcept nogil:
    """Something was published: all that waited have something to read."""
    cdef consumer_t* k = s.idle
    cdef consumer_t* last
    if k == NULL:
        return
    while True:
        k.reader.is_idle = False
        k = k.next
        if k == s.idle:
            break
    if s.active == NULL:
        s.active = k
    else:
        last = k.prev
        s.active.prev.next = k
        k.prev = s.active.prev
        last.next = s.active
        s.active.prev = last
    s.idle = NULL


cdef bint stream_has_able(const stream_t* s) noexcept nogil:
    """Whether any consumer could take the next message."""
    cdef const consumer_t* head = s.idle if s.idle != NULL else s.active
    cdef const consumer_t* k = head
    while k != NULL:
        if consumer_is_able(k):
            return True
        k = k.next
        if k == head:
            break
    return False


# ---- delivering ----------------------------------------------------------------------------------

# hot
cdef inline void stream_tell_offset(stream_t* s, const reader_t* r, i64 offset,
                                    rec_t* rec) noexcept nogil:
    """Have the delivery say which message of the stream it is, when that was stored, and in which
    epoch."""
    cdef u8* p = s.header
    if r.tells_epoch and not r.tells_time:
        p = s.epoch_header
    put_be64(p + OFFSET_HEADER - 8, <u64>offset)
    rec.extra = p
    rec.extra_len = OFFSET_HEADER
    if r.tells_time:
        put_be64(p + OFFSET_HEADER + TIME_HEADER - 8, le64(rec.names - 8))
        rec.extra_len = OFFSET_HEADER + TIME_HEADER
    if r.tells_epoch:
        put_be64(p + rec.extra_len + EPOCH_HEADER - 8, <u64>stream_epoch_of(s, offset))
        rec.extra_len += EPOCH_HEADER


cdef u32 reader_wish(const queue_t* q, const consumer_t* k) noexcept nogil:
    """How many bytes to read at once: what the consumer's credit lets it take, about."""
    cdef u64 n
    if k.reader.filter != NULL or q.ready == 0:
        return BLOCK_SIZE
    n = (q.ready_bytes // q.ready + 16) * (k.prefetch - k.unacked) if k.prefetch else BLOCK_SIZE
    return 4096 if n < 4096 else (BLOCK_SIZE if n > BLOCK_SIZE else <u32>n)


cdef void stream_read_failed(queue_t* q, consumer_t* k) noexcept nogil:
    """A file cannot be read, errno says why: try again if that can help, or close the queue."""
    if q.loop.is_reading and errno == ENOENT:
        view_passed(q, k)
        return
    queue_read_failed(q, q.store)
    if not can_wait_to_read(q.store.error):
        queue_break(q)
        return
    if q.store.error == EBADMSG:    # until the stream changes, or somebody has looked at the file
        reader_idle(q, k)
        return
    consumer_leave_ring(k)
    if not k.is_patient:
        loop_add_patient(q.loop, k)


# hot
cdef i64 stream_serve(queue_t* q, consumer_t* k) noexcept nogil:
    """Deliver to one consumer what its credit and its turn allow; returns the bytes looked at.

    Cost: 30 ns per message."""
    cdef reader_t* r = k.reader
    cdef chan_t* c = k.chan
    cdef u32 wish = reader_wish(q, k)
    cdef i64 worked = 0
    cdef rec_t rec
    cdef int rc
    while True:
        if reader_is_at_end(r) and r.n_requeued == 0:
            reader_finish(q, k)
            break
        if not consumer_is_able(k):
            reader_rest(q, k)
            break
        rc = reader_peek(q, r, wish, &worked, &rec)
        if rc == READ_END:
            if reader_is_at_end(r):
                reader_finish(q, k)
            else:
                reader_idle(q, k)
            break
        if rc == READ_TIRED:
            break
        if rc == READ_FAILED:
            stream_read_failed(q, k)
            break
        if not channel_has_room(c, False) or not reader_has_room(r):
            consumer_put_off(k)
            break
        if not c.link.protocol.deliver(k, &rec, c.next_tag):
            if c.is_oversized:
                consumer_leave_ring(k)
            else:
                consumer_put_off(k)
            break
        worked += rec.size + 64
        reader_take(r, &rec)
        channel_push(c, q, k, &rec)
        q.n_delivered += 1
        q.n_redelivered += rec.redelivered
        c.tally.deliver += 1
        c.tally.redeliver += rec.redelivered
        q.unacked += 1
        q.unacked_bytes += rec.size
        k.unacked += 1
        c.global_unacked += 1
    return worked


cdef bint stream_deliver(queue_t* q) noexcept nogil:
    """Serve the active consumers in turn. Returns whether the budget ended before the work."""
    cdef stream_t* s = q.stream
    cdef consumer_t* k
    cdef i64 budget = DELIVER_BUDGET, worked
    if s.seen_offset != s.next_offset:
        s.seen_offset = s.next_offset
        stream_wake(s)
    while s.active != NULL and not q.is_closed and not q.is_paused:
        if budget <= 0 or loop_spent(q.loop, STREAM_UNITS):
            return True
        k = s.active
        s.active = k.next
        worked = stream_serve(q, k) + 64
        budget -= worked
        q.loop.work += <u32>(worked >> 6)
    return False


# hot
cdef inline void stream_settle(queue_t* q, const unacked_t* u, bint requeue) noexcept nogil:
    """A delivery is done with, or is to be made once more to the same consumer. Cost: 5 ns.

    What a consumer has not settled when it ends counts as not read."""
    cdef consumer_t* k = u.consumer
    cdef reader_t* r = k.reader
    if requeue:
        if k.is_cancelled:
            return
        if store_segment(q.store, u.seg) != NULL and requeued_push(r, u.seq) == 0:
            if k.is_able and r.is_idle:
                reader_leave_ring(k)
                reader_join_ring(k)
            return
    slot_give(r, u.seq)
    if r.track != NULL:
        track_set(&q.stream.tracks, r.track, reader_settled(q, r))


# ---- end of the tick -----------------------------------------------------------------------------

cdef int stream_end_tick(queue_t* q) noexcept nogil:
    """Write what was staged and what was acknowledged, give back memory. 0, 1 when that goes on in
    the next turn, or -1 with errno."""
    cdef store_t* st = q.store
    cdef stream_t* s = q.stream
    cdef int rc = store_flush_pieces(st) if q.is_stuck else 0
    if rc:
        return rc
    if store_flush(st) or tracks_flush(q):
        return -1
    if queue_keeps_no_files(q):
        store_close_files(st)
        tracks_close(&s.tracks)
    if s.tracks.n_readers == 0:
        tracks_close(&s.tracks)
    if s.readers == NULL and st.stage != NULL:
        store_drop_stage(st, &q.loop.pool)      # nobody reads from it: the file has it all
    if st.window != NULL:
        store_drop_window(st, &q.loop.pool)
    return 0
