# Stream reader: where each consumer of a stream is, what it reads next, and what it has not
# settled.
#
# A reader has a place in a segment, a window of its own around that place, and a slot for each
# delivery that waits to be settled, in the order of their offsets: the first of them says how far
# everything is settled. Finding an offset or a time goes by segments, then by the marks that
# writing and reading leave every MARK_BYTES, then by passing over what is left like over unwanted
# messages, within the limits of a turn. Called by stream.pyx; never logs.
# Source: docs/streams.md.

cdef enum read_result:
    READ_FOUND = 1
    READ_END = 0                # it has read all there is, or all it was to read
    READ_TIRED = 2              # this turn is over
    READ_FAILED = -1            # errno says why

cdef enum:
    NO_SLOT = 0xFFFFFFFF
    MARK_BYTES = 65536          # between two marks
    MARKS_MAX = 131072          # of one stream, 2 MiB: enough for 8 GiB of messages
    TURN_BYTES = 262144         # that a reader may look at before others
    UNIT_BYTES = 64             # that 10 ns of work for a filter count as
    FIRST_TURN = -262144        # of one that is forgotten after it: it has to get beyond two marks


# ---- slots ---------------------------------------------------------------------------------------

cdef int slots_grow(reader_t* r) noexcept nogil:
    """0, or -1 out of memory."""
    cdef u32 cap = r.cap_slots * 2 if r.cap_slots else 16, i
    cdef slot_t* grown = <slot_t*>realloc(r.slots, cap * sizeof(slot_t))
    if grown == NULL:
        return -1
    for i in range(r.cap_slots, cap):
        grown[i].next = i + 1 if i + 1 < cap else NO_SLOT
    r.free_slot = r.cap_slots
    r.slots = grown
    r.cap_slots = cap
    return 0


# hot
cdef inline u32 slot_take(reader_t* r, i64 offset, const rec_t* rec) noexcept nogil:
    """The slot for a first delivery, behind all others; there is a free one. Cost: 3 ns."""
    cdef u32 i = r.free_slot
    cdef slot_t* slot
    lmq_assert(i != NO_SLOT)
    slot = &r.slots[i]
    r.free_slot = slot.next
    slot.offset = offset
    slot.seg = rec.seg
    slot.pos = rec.pos
    slot.prev = r.newest
    slot.next = NO_SLOT
    if r.newest == NO_SLOT:
        r.oldest = i
    else:
        r.slots[r.newest].next = i
    r.newest = i
    r.n_slots += 1
    return i


# hot
cdef inline void slot_give(reader_t* r, u32 i) noexcept nogil:
    """The delivery is settled. Cost: 3 ns."""
    cdef slot_t* slot = &r.slots[i]
    lmq_assert(r.n_slots > 0)
    if slot.prev == NO_SLOT:
        r.oldest = slot.next
    else:
        r.slots[slot.prev].next = slot.next
    if slot.next == NO_SLOT:
        r.newest = slot.prev
    else:
        r.slots[slot.next].prev = slot.prev
    slot.next = r.free_slot
    r.free_slot = i
    r.n_slots -= 1


cdef void slots_trim(reader_t* r) noexcept nogil:
    """A reader that waits, and owes nothing, keeps no slots."""
    if r.n_slots == 0 and r.cap_slots > 64:
        free(r.slots)
        r.slots = NULL
        r.cap_slots = 0
        r.free_slot = NO_SLOT


cdef int requeued_push(reader_t* r, u32 slot) noexcept nogil:
    """Have a delivery made once more. 0, or -1 out of memory."""
    cdef u32* grown
    cdef u32 i, up
    if r.n_requeued == r.cap_requeued:
        grown = <u32*>realloc(r.requeued, (<u64>r.cap_requeued * 2 + 16) * sizeof(u32))
        if grown == NULL:
            return -1
        r.requeued = grown
        r.cap_requeued = r.cap_requeued * 2 + 16
    i = r.n_requeued
    r.n_requeued += 1
    while i:
        up = (i - 1) >> 1
        if r.slots[r.requeued[up]].offset <= r.slots[slot].offset:
            break
        r.requeued[i] = r.requeued[up]
        i = up
    r.requeued[i] = slot
    return 0


cdef void requeued_pop(reader_t* r) noexcept nogil:
    cdef u32 i = 0, child, last
    r.n_requeued -= 1
    last = r.requeued[r.n_requeued]
    while True:
        child = 2 * i + 1
        if child >= r.n_requeued:
            break
        if (child + 1 < r.n_requeued and r.slots[r.requeued[child + 1]].offset
                < r.slots[r.requeued[child]].offset):
            child += 1
        if r.slots[r.requeued[child]].offset >= r.slots[last].offset:
            break
        r.requeued[i] = r.requeued[child]
        i = child
    r.requeued[i] = last


# hot
cdef inline i64 reader_settled(const queue_t* q, const reader_t* r) noexcept nogil:
    """Up to where, exclusively, all that is left is settled: where a crash would have it go on."""
    cdef i64 offset = r.offset if r.oldest == NO_SLOT else r.slots[r.oldest].offset
    cdef i64 first = stream_first(q)
    return offset if offset > first else first


# hot
cdef inline bint reader_is_at_end(const reader_t* r) noexcept nogil:
    """Whether it has come to the offset that it is not to read any more."""
    return r.end_offset != 0 and r.offset >= r.end_offset


# ---- marks ---------------------------------------------------------------------------------------

cdef void stream_drop_marks(queue_t* q) noexcept nogil:
    """There are too many: forget those of the older half of the segments that have any."""
    cdef store_t* st = q.store
    cdef seg_t* seg
    cdef u32 i
    for i in range(st.n_segs):
        seg = st.segs[i]
        if seg is st.wseg or q.stream.n_marks <= MARKS_MAX // 2:
            break
        q.stream.n_marks -= seg.n_marks
        free(seg.marks)
        seg.marks = NULL
        seg.n_marks = seg.cap_marks = seg.marked_to = 0


cdef void stream_mark(queue_t* q, seg_t* seg, u32 pos, u32 index, i64 at_ms) noexcept nogil:
    """Remember a record, which is behind all that are marked in its segment. Lack of memory costs
    time later, nothing else."""
    cdef mark_t* grown
    seg.marked_to = pos
    if seg.n_marks == seg.cap_marks:
        grown = <mark_t*>realloc(seg.marks, (<u64>seg.cap_marks * 2 + 8) * sizeof(mark_t))
        if grown == NULL:
            return
        seg.marks = grown
        seg.cap_marks = seg.cap_marks * 2 + 8
    seg.marks[seg.n_marks].pos = pos
    seg.marks[seg.n_marks].index = index
    seg.marks[seg.n_marks].at_ms = at_ms
    seg.n_marks += 1
    q.stream.n_marks += 1
    if q.stream.n_marks > MARKS_MAX:
        stream_drop_marks(q)


# ---- finding a place -----------------------------------------------------------------------------

cdef inline i64 segment_first(const queue_t* q, const seg_t* seg) noexcept nogil:
    """The offset of its first record, also while it has none."""
    return seg.first_offset if seg.count else q.stream.next_offset


cdef i64 stream_first(const queue_t* q) noexcept nogil:
    """The lowest offset that can be read; of an empty stream that of the next message."""
    cdef const store_t* st = q.store
    cdef u32 i
    for i in range(st.n_segs):
        if st.segs[i].count:
            return st.segs[i].first_offset
    return q.stream.next_offset


cdef void reader_enter(const queue_t* q, reader_t* r, seg_t* seg) noexcept nogil:
    """Go to the beginning of a segment."""
    r.seg = seg
    r.pos = SEGMENT_HEADER
    r.offset = segment_first(q, seg)


cdef void reader_go_to_end(const queue_t* q, reader_t* r) noexcept nogil:
    r.seg = q.store.wseg
    r.pos = r.seg.size
    r.offset = r.from_offset = q.stream.next_offset
    r.from_ms = 0


cdef void reader_go_to_offset(const queue_t* q, reader_t* r, i64 offset) noexcept nogil:
    """Begin with the first message whose offset is not below. Cost: a microsecond."""
    cdef const store_t* st = q.store
    cdef u32 lo = 0, hi = st.n_segs, mid
    cdef seg_t* seg
    cdef i64 first = stream_first(q)
    offset = first if offset < first else offset
    if offset >= q.stream.next_offset:
        reader_go_to_end(q, r)
        return
    while hi - lo > 1:                      # the last segment that does not begin behind it
        mid = (lo + hi) >> 1
        if segment_first(q, st.segs[mid]) <= offset:
            lo = mid
        else:
            hi = mid
    seg = st.segs[lo]
    reader_enter(q, r, seg)
    r.from_offset = offset
    r.from_ms = 0
    lo = 0
    hi = seg.n_marks
    while lo < hi:                          # and the last mark that does not
        mid = (lo + hi) >> 1
        if seg.first_offset + seg.marks[mid].index <= offset:
            lo = mid + 1
        else:
            hi = mid
    if lo:
        r.pos = seg.marks[lo - 1].pos
        r.offset = seg.first_offset + seg.marks[lo - 1].index


cdef void reader_go_to_time(const queue_t* q, reader_t* r, i64 at_ms) noexcept nogil:
    """Begin with the first message stored then or later. Cost: 5 ns for each segment."""
    cdef const store_t* st = q.store
    cdef seg_t* seg
    cdef u32 i, k
    for i in range(st.n_segs):
        seg = st.segs[i]
        if seg.count and seg.last_ms >= at_ms:
            reader_enter(q, r, seg)
            r.from_offset = 0
            r.from_ms = at_ms
            for k in range(seg.n_marks):    # clocks are set back: any record may be the first
                if seg.marks[k].at_ms >= at_ms:
                    break
                r.pos = seg.marks[k].pos
                r.offset = seg.first_offset + seg.marks[k].index
            return
    reader_go_to_end(q, r)


# ---- reading -------------------------------------------------------------------------------------

cdef int reader_skip_junk(queue_t* q, reader_t* r) noexcept nogil:
    """Where the reader stands is no record: go on behind it. 0, or -1 with errno.

    What follows keeps its offsets: they are counted from the segment's end. Where the files are a
    copy nobody goes on: others have what is junk here."""
    cdef store_t* st = q.store
    cdef seg_t* seg = r.seg
    cdef u32 passed = <u32>(r.offset - seg.first_offset), after, index, known = seg.damaged_at
    cdef i64 to
    if q.loop.is_reading:
        set_errno(EIO)
        return -1
    to = store_resume(st, seg, r.pos, passed, &after)
    if to < 0:
        return -1
    if seg is st.wseg:
        after += store_count_staged(st)
    index = seg.count - after if after < seg.count else 0
    index = passed if index < passed else index
    if seg.damaged_at != known:             # the first to come by
        st.lost += index - passed
    q.loop.is_news = True
    r.pos = <u32>to if to > r.pos else seg.size
    r.offset = seg.first_offset + index
    return 0


# hot
cdef inline bint reader_wants(reader_t* r, const rec_t* rec, i64* worked) noexcept nogil:
    """Whether the record, which the reader stands on, is one to deliver."""
    if r.offset < r.from_offset:
        return False
    if r.from_ms:
        if <i64>le64(rec.names - 8) < r.from_ms:
            return False
        r.from_ms = 0
    if r.filter == NULL:
        return True
    worked[0] += UNIT_BYTES * filter_work(r.filter, rec)
    return filter_matches(r.filter, rec)


cdef int reader_peek_requeued(queue_t* q, reader_t* r, rec_t* rec) noexcept nogil:
    """The lowest requeued delivery. What retention has removed meanwhile is settled."""
    cdef store_t* st = q.store
    cdef slot_t* slot
    cdef seg_t* seg
    cdef int rc
    while r.n_requeued:
        slot = &r.slots[r.requeued[0]]
        seg = store_segment(st, slot.seg)
        rc = -1
        if seg != NULL:
            rc = store_read(st, &q.loop.pool, &r.window, seg, slot.pos, 16384, rec)
        if rc == -2:
            return READ_FAILED
        if rc == 1:
            rec.redelivered = rec.is_requeued = True
            rec.seq = r.requeued[0]
            stream_tell_offset(q.stream, r, slot.offset, rec)
            return READ_FOUND
        rec.seq = r.requeued[0]
        requeued_pop(r)
        slot_give(r, rec.seq)
    return READ_END


# hot
cdef int reader_peek(queue_t* q, reader_t* r, u32 wish, i64* worked, rec_t* rec) noexcept nogil:
    """The record to deliver next; passes over those that the reader does not want. A read_result.

    `worked` grows by the bytes passed over. Cost: 10 ns."""
    cdef store_t* st = q.store
    cdef seg_t* seg
    cdef int rc
    rec.level = 0
    if r.n_requeued:
        rc = reader_peek_requeued(q, r, rec)
        if rc != READ_END:
            return rc
    while worked[0] < TURN_BYTES:
        if reader_is_at_end(r):
            return READ_END
        seg = r.seg
        if r.pos >= seg.size or (seg is not st.wseg
                                 and r.offset - seg.first_offset >= seg.count):
            if seg is st.wseg:
                return READ_END
            reader_enter(q, r, st.segs[store_index(st, seg.id + 1)])
            continue
        rc = store_read(st, &q.loop.pool, &r.window, seg, r.pos, wish, rec)
        if rc != 1:
            if rc == -2 or reader_skip_junk(q, r):
                return READ_FAILED
            continue
        if r.pos >= seg.marked_to + <u64>MARK_BYTES:
            stream_mark(q, seg, r.pos, <u32>(r.offset - seg.first_offset), le64(rec.names - 8))
        if reader_wants(r, rec, worked):
            rec.redelivered = rec.is_requeued = False
            stream_tell_offset(q.stream, r, r.offset, rec)
            return READ_FOUND
        worked[0] += rec.size + 64
        r.pos += rec.size
        r.offset += 1
        if worked[0] >= TURN_BYTES and r.pos > seg.marked_to and r.pos < seg.size:
            # Who comes again begins here. What was passed is not later than what stands here.
            stream_mark(q, seg, r.pos, <u32>(r.offset - seg.first_offset), le64(rec.names - 8))
    return READ_TIRED


# hot
cdef inline bint reader_has_room(reader_t* r) noexcept nogil:
    """Whether there is a slot for one more delivery; false: out of memory."""
    return r.free_slot != NO_SLOT or slots_grow(r) == 0


# hot
cdef inline void reader_take(reader_t* r, rec_t* rec) noexcept nogil:
    """The peeked record is delivered: move on, with a slot for it; reader_has_room was asked."""
    if rec.is_requeued:
        requeued_pop(r)
        return
    rec.seq = slot_take(r, r.offset, rec)
    r.pos += rec.size
    r.offset += 1
