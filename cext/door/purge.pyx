# Purge: deletes what is ready in a queue, in portions, so that others are served meanwhile.
#
# A purge takes what was there when it began: each store has a place up to which messages go, and
# what is published later stays. Segments that hold nothing else go whole, their records are not
# read. The queue's counters are right after each portion. Called by lavinmq/vhost/vhost.py and
# lavinmq/http by way of the class at the end.

cdef enum:
    PURGE_NS = 1000000          # of one portion
    PURGE_LOOK = 64             # messages between two looks at the clock


cdef inline bint segment_is_whole(const store_t* st, const seg_t* seg) noexcept nogil:
    """Whether every record of the cursor's segment is ready: none was taken, none expired."""
    return st.passed == 0 and seg.acked == 0 and seg.n_deleted == 0


cdef void queue_purge_segment(queue_t* q, store_t* st) noexcept nogil:
    """Delete the cursor's segment, which is whole and not written to."""
    cdef seg_t* seg = st.rseg
    cdef u64 n = seg.count, n_bytes = seg.size - SEGMENT_HEADER
    queue_count_level(q, st, -<i64>n)
    q.ready -= n if n < q.ready else q.ready
    q.ready_bytes -= n_bytes if n_bytes < q.ready_bytes else q.ready_bytes
    st.rpos = seg.size
    st.passed = seg.acked = seg.count
    store_next_segment(st)


cdef bint queue_purge_unread(queue_t* q, store_t* st) noexcept nogil:
    """The next message, or all of the cursor's segment, is in a file that cannot be read: delete it
    all the same. False when new messages are written to that file."""
    cdef loc_t at
    cdef seg_t* seg = st.rseg
    cdef u64 n = 1
    if st.n_requeued:
        at = st.requeued[0]
        store_pop_requeued(st)
        store_forget_count(st, at.seg, at.pos)
        store_delete(st, at.seg, at.pos)
    elif seg is st.wseg:
        return False
    else:
        n = seg.count - st.passed if seg.count > st.passed else 0
        n -= seg.n_deleted if seg.n_deleted < n else n
        seg.acked += <u32>n
        st.passed = seg.count
        st.rpos = seg.size
        store_next_segment(st)
    queue_count_level(q, st, -<i64>n)
    q.ready_bytes -= q.ready_bytes // q.ready * n if n < q.ready else q.ready_bytes
    q.ready -= n if n < q.ready else q.ready
    return True


cdef bint queue_purge_store(queue_t* q, store_t* st, loc_t until, i64* left,
                            i64 ends_ns) noexcept nogil:
    """Delete what is ready in front of a place, *left messages at most. True when that is done, or
    nothing can be read."""
    cdef u32 looked = 0
    cdef rec_t rec
    cdef loc_t at
    cdef int rc
    while queue_ready_of(q, st) and left[0] > 0:
        looked += 1
        if looked % PURGE_LOOK == 0 and clock_ns() > ends_ns:
            return False
        if st.n_requeued == 0 and st.rpos >= st.rseg.size and st.rseg is not st.wseg:
            store_next_segment(st)
            queue_apply_miscount(q, st)
            looked = PURGE_LOOK - 1         # it may have removed files
            continue
        at.seg = st.rseg.id
        at.pos = st.rpos
        if st.n_requeued:
            at = st.requeued[0]
        elif (at.seg < until.seg and st.rseg is not st.wseg and segment_is_whole(st, st.rseg)
                and st.rseg.count <= left[0]):
            left[0] -= st.rseg.count
            queue_purge_segment(q, st)
            looked = PURGE_LOOK - 1
            continue
        if not is_before(at, until):
            return True
        rc = store_peek(st, q.loop, &rec)
        if rc == 0:
            return True
        if rc == PEEK_LATER:
            return False
        if rc == -2 and queue_purge_unread(q, st):
            left[0] -= 1
            continue
        if rc < 0:
            if queue_pass_unreadable(q, st, rc):
                return True
            continue
        at.seg = rec.seg
        at.pos = rec.pos
        if not is_before(at, until):       # the cursor has moved over deleted ones
            return True
        left[0] -= 1
        store_take(st, &rec)
        queue_uncount(q, st, rec.size)
        if st.counts.n:
            store_forget_count(st, rec.seg, rec.pos)
        if store_delete(st, rec.seg, rec.pos):
            queue_failed(q)
            return True
    return True


cdef bint stream_purge_some(queue_t* q, u32 until, i64 ends_ns) noexcept nogil:
    """Remove segments with lower ids than `until`. True when that is done."""
    cdef store_t* st = q.store
    if st.n_segs < 2 or st.segs[0].id >= until or stream_write_marker(q):
        return True
    while st.segs[0].id < until:
        stream_drop_first(q)
        if clock_ns() > ends_ns:
            break
    stream_forget_gone(q, True, ends_ns)
    queue_touch(q)
    return st.segs[0].id >= until


cdef class Purge:
    """The deletion of what is ready in a queue now, or of its oldest `most` messages; of a stream,
    of all but its newest segment. Each step does a portion; it is over with its iteration.

    A queue that is deleted or closed meanwhile ends it."""
    cdef Queue queue
    cdef loc_t* until           # by level
    cdef i64 left
    cdef u64 parked             # messages that were when it began, and still are
    cdef i64 portion_ns
    cdef u32 level              # levels that are done
    cdef bint is_over
    cdef readonly object purged

    def __cinit__(self, Queue queue not None, i64 most=NEVER, i64 portion_ns=PURGE_NS):
        cdef queue_t* q = queue.q
        cdef store_t* st
        cdef u32 i
        self.queue = queue
        self.left = most
        self.portion_ns = portion_ns
        self.purged = 0
        self.is_over = q.is_deleted or q.is_closed
        if self.is_over:
            return
        self.until = <loc_t*>calloc(queue_levels(q), sizeof(loc_t))
        if self.until == NULL:
            raise MemoryError()
        q.n_purges += 1
        self.parked = queue_kept(q)
        for i in range(queue_levels(q)):
            st = queue_level(q, i)
            if st != NULL:
                self.until[i].seg = st.wseg.id
                self.until[i].pos = st.wseg.size

    def __dealloc__(self):
        self.end()

    cdef void end(self):
        if self.until != NULL:
            self.queue.q.n_purges -= 1
            free(self.until)
            self.until = NULL
        self.is_over = True

    def __iter__(self):
        return self

    def __next__(self):
        """A portion. Returns how many messages have gone so far."""
        cdef queue_t* q = self.queue.q
        cdef u64 before = q.ready + queue_kept(q)
        cdef i64 ends_ns = clock_ns() + self.portion_ns
        if self.is_over:
            raise StopIteration
        with nogil:
            self.step(q, ends_ns)
        self.purged += before - q.ready - queue_kept(q)
        if self.is_over:
            self.end()
        self.queue.loop.kick()
        return self.purged

    cdef void step(self, queue_t* q, i64 ends_ns) noexcept nogil:
        cdef u32 i
        self.is_over = q.is_deleted or q.is_closed
        if self.is_over:
            return
        loop_clock(q.loop)
        if q.stream != NULL:
            self.is_over = stream_purge_some(q, self.until[0].seg, ends_ns)
            return
        if not queue_drop_parked(q, &self.parked, &self.left, ends_ns):
            return
        while self.level < queue_levels(q):
            i = queue_levels(q) - 1 - self.level        # the highest first, as they are delivered
            if queue_level(q, i) != NULL and not queue_purge_store(
                    q, queue_level(q, i), self.until[i], &self.left, ends_ns):
                break
            self.level += 1
        self.is_over = (self.level == queue_levels(q) or q.is_closed or q.ready == 0
                        or self.left <= 0)
        if q.ready == 0:
            q.ready_bytes = 0
        queue_touch(q)
