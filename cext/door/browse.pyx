# Browse: what is in a queue, seen without taking it.
#
# Nothing of the queue is moved: cursor, window, counters and delivery counts stay what they are.
# Requeued messages come first and then those at the cursor, level by level, as they would be
# delivered; unacked ones, and those on their way to other queues, are left out. Reading is done by
# store/walk.pyx. Called by lavinmq/http/api/browse.py. Source: decision 0070.
from libc.stdlib cimport qsort as sort_locs

cdef extern from *:
    """
    #include <string.h>
    static int lmq_contains(const void *p, size_t n, const void *text, size_t len) {
        return len == 0 || memmem(p, n, text, len) != NULL;
    }
    """
    bint holds_text "lmq_contains"(const void* p, u64 n, const void* text, u64 len) noexcept nogil

cdef enum:
    BROWSE_MORE = 0             # this portion is over
    BROWSE_OVER = 1             # there are no more
    BROWSE_COLD = 2             # what comes next is not in memory: `cold` says where it is
    BROWSE_WIDE = 3             # the next one is larger than an answer may be
    BROWSE_NS = 300000          # of one portion
    BROWSE_LOOK = 32            # messages, and
    BROWSE_LOOK_BYTES = 65536   # bytes between two looks at the clock
    BROWSE_BACK = 256           # requeued messages that are looked for together
    BROWSE_AHEAD = 1048576      # bytes that a thread has the kernel read


# ---- what is looked for --------------------------------------------------------------------------

cdef bint value_is(const u8* value, const u8* text, u32 n, i64 number,
                   bint is_number) noexcept nogil:
    """Whether a header's value, at its type, is a text, or the number that the text stands for."""
    cdef i64 integer
    if value[0] == c"S":
        return be32(value + 1) == n and same_bytes(value + 5, text, n)
    if value[0] == c"t":
        return (n == 4 and same_bytes(text, b"true", 4)) if value[1] else (
            n == 5 and same_bytes(text, b"false", 5))
    return is_number and value_integer(value, &integer) and integer == number


@cython.final
cdef class Wanted:
    """Which messages are shown. Args: `key`, `text`: what the routing key, or the body, has to have
    in it; of a body above 1 MiB nothing is looked at; `header`, `value`: a header that has to be
    there, and its value, None: any."""
    cdef bytes key
    cdef bytes text
    cdef bytes header
    cdef bytes value
    cdef i64 number
    cdef bint is_number
    cdef bint is_all

    def __cinit__(self, bytes key=b"", bytes text=b"", bytes header=b"", bytes value=None):
        self.key = key
        self.text = text
        self.header = header
        self.value = value
        self.is_all = not key and not text and not header
        if value is not None and len(value) < 19:
            try:
                self.number = int(value)
                self.is_number = True
            except ValueError:
                pass

    cdef bint has(self, const rec_t* rec):
        cdef const u8* key = rec.names + rec.names[0] + 1
        cdef const u8* entry
        if self.is_all:
            return True
        if not holds_text(key + 1, key[0], PyBytes_AS_STRING(self.key), <u64>len(self.key)):
            return False
        if self.header:
            if rec.headers_at == 0:
                return False
            entry = table_find(rec.props + rec.headers_at + 4, rec.headers_len,
                               <const u8*>PyBytes_AS_STRING(self.header), <u64>len(self.header))
            if entry == NULL:
                return False
            if self.value is not None and not value_is(
                    entry + 1 + entry[0], <const u8*>PyBytes_AS_STRING(self.value),
                    <u32>len(self.value), self.number, self.is_number):
                return False
        if not self.text:
            return True
        return (not record_has_far_body(rec)
                and holds_text(rec.body, rec.body_len, PyBytes_AS_STRING(self.text),
                               <u64>len(self.text)))


# ---- seeing --------------------------------------------------------------------------------------

# Freeing one needs its Queue: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Browse:
    """A walk over what is ready in a queue. Args: `wanted`; `skip`: messages that are passed over
    first; `from_ms`: those stored before are, Unix milliseconds, 0 = none; `at`: where another walk
    has stopped, as `place` says, or None."""
    cdef Queue queue
    cdef Wanted wanted
    cdef walk_t walk
    cdef u32 rank               # levels that are done: the highest come first
    cdef bint is_back           # the requeued ones of this level come first
    cdef loc_t back             # of these, behind which it goes on
    cdef bint is_placed         # the segment to begin in was found
    cdef u64 skip
    cdef i64 from_ms
    cdef i64 offset             # of a stream
    cdef u8* deleted            # a bit for each place from `deleted_at` on, NULL = none is
    cdef u32 deleted_at
    cdef u32 looked
    cdef i64 ends_ns
    cdef u64 room
    cdef readonly object scanned
    cdef readonly object needed

    def __cinit__(self, Queue queue not None, Wanted wanted not None, u64 skip=0, i64 from_ms=0,
                  tuple at=None):
        self.queue = queue
        self.wanted = wanted
        self.walk.window.fd = -1
        self.skip = skip
        self.from_ms = from_ms
        self.is_placed = from_ms == 0
        self.is_back = True
        self.scanned = self.needed = 0
        if at is not None:
            self.rank, self.is_back, self.walk.seg, self.walk.from_pos = at
            self.offset = <i64>self.walk.seg << 32 | self.walk.from_pos
            if self.is_back:
                self.back.seg = self.walk.seg
                self.back.pos = self.walk.from_pos
                self.walk.seg = self.walk.from_pos = 0

    def __dealloc__(self):
        walk_drop(&self.walk, self.queue.q.loop)
        free(self.deleted)

    def place(self) -> tuple:
        """Where it goes on."""
        if self.queue.q.stream != NULL:
            return 0, False, <u32>(self.offset >> 32), <u32>self.offset
        if self.is_back:
            return self.rank, True, self.back.seg, self.back.pos
        return self.rank, False, self.walk.seg, max(self.walk.from_pos, self.walk.pos)

    def rest(self) -> None:
        """Let go of memory and descriptors; the next step gets them again."""
        walk_drop(&self.walk, &self.queue.loop.t)

    def cold(self) -> tuple:
        """(descriptor, which is the caller's, position, bytes) of what the next step reads; once
        they are in memory `step` goes on. Raises OSError."""
        cdef int fd = c_dup(self.walk.window.fd)
        if fd < 0:
            raise OSError(errno, "no descriptor")
        self.walk.is_warm = True
        return fd, self.walk.pos, BROWSE_AHEAD

    cdef bint is_late(self, const rec_t* rec) noexcept nogil:
        """Whether the portion is over."""
        self.looked += 1 + (rec.size if rec.size < BROWSE_LOOK_BYTES else BROWSE_LOOK_BYTES) \
            // (BROWSE_LOOK_BYTES // BROWSE_LOOK)
        if self.looked < BROWSE_LOOK:
            return False
        self.looked = 0
        return clock_ns() > self.ends_ns

    cdef int show(self, list rows, queue_t* q, rec_t* rec, u64 truncate) except -2:
        """Append the row of a message if it is wanted. 1, or 0 when it does not fit."""
        cdef store_t* st = queue_level(q, rec.level)
        cdef u64 need
        if <i64>le64(rec.names - 8) < self.from_ms:
            return 1
        if self.skip:
            self.skip -= 1
            return 1
        self.scanned += 1
        if not self.wanted.has(rec):
            return 1
        need = shown_of(rec, truncate) + rec.props_len + rec.names_len
        if need > self.room:
            self.needed = need
            self.scanned -= 1
            return 0
        self.room -= need
        rows.append(message_row(q, rec, (rec.level, rec.seg, rec.pos, record_digest(rec)),
                                shown_of(rec, truncate))
                    + (<i64>le64(rec.names - 8), counts_of(st.counts, rec.seg, rec.pos)))
        return 1

    def step(self, u32 n, u64 most, u64 truncate) -> tuple:
        """Up to n messages more, for as long as others can wait. Returns (rows, one of MORE, OVER,
        COLD and WIDE). A row: ((level, segment, position, digest), redelivered, exchange, routing
        key, properties, bytes of the body, the first `truncate` of them, when it was stored in Unix
        milliseconds, deliveries that count against a limit); of a stream the first is (offset,
        digest).

        `most`: bytes that they may have; WIDE: the next one has more. Raises OSError."""
        cdef queue_t* q = self.queue.q
        cdef list rows = []
        cdef int rc = BROWSE_MORE
        self.room = most
        self.looked = 0
        loop_clock(q.loop)
        self.ends_ns = clock_ns() + BROWSE_NS
        if q.is_deleted or q.is_closed or q.releases != NULL or q.history != NULL:
            return rows, BROWSE_OVER
        if q.stream != NULL:
            return rows, self.step_stream(rows, q, n, truncate)
        while rc == BROWSE_MORE and self.rank < queue_levels(q):
            rc = self.step_level(rows, q, n, truncate)
        if rc == BROWSE_OVER:           # of this level, and the portion
            rc = BROWSE_MORE
        if rc == BROWSE_MORE and self.rank >= queue_levels(q):
            rc = BROWSE_OVER
        return rows, rc

    cdef int step_level(self, list rows, queue_t* q, u32 n, u64 truncate) except -2:
        """BROWSE_MORE: the next level; BROWSE_OVER: the portion is; or as `step`."""
        cdef store_t* st = queue_level(q, queue_levels(q) - 1 - self.rank)
        cdef int rc = BROWSE_MORE
        if st != NULL and queue_ready_of(q, st):
            if self.is_back:
                rc = self.step_back(rows, q, st, n, truncate)
                if rc != BROWSE_MORE:
                    return rc
                self.is_back = False
            rc = self.step_ahead(rows, q, st, n, truncate)
            walk_rest(&self.walk, st)
            if rc != BROWSE_MORE:
                return rc
        self.rank += 1
        self.is_back = True
        self.is_placed = self.from_ms == 0
        self.back.seg = self.back.pos = 0
        self.walk.seg = self.walk.pos = self.walk.from_pos = 0
        walk_drop(&self.walk, q.loop)      # segments of another level have the same numbers
        return BROWSE_MORE

    cdef int step_back(self, list rows, queue_t* q, store_t* st, u32 n, u64 truncate) except -2:
        """What was requeued. As step_level."""
        cdef loc_t found[BROWSE_BACK]
        cdef seg_t* seg
        cdef rec_t rec
        cdef u32 i, k
        cdef int rc
        if st.n_requeued and self.skip >= st.n_requeued and self.back.seg == 0:
            self.skip -= st.n_requeued
            return BROWSE_MORE
        while st.n_requeued:
            k = locs_behind(st, self.back, found)
            if k == 0:
                break
            for i in range(k):
                if <u32>len(rows) == n:
                    return BROWSE_OVER
                seg = store_segment(st, found[i].seg)
                rc = WALK_END
                if seg != NULL and seg.id == found[i].seg:
                    self.walk.seg = seg.id
                    self.walk.pos = found[i].pos
                    rc = walk_read(&self.walk, st, seg, found[i].pos, &rec)
                if rc == WALK_COLD:
                    return BROWSE_COLD
                if rc == WALK_FAILED:
                    raise os_error(st, "msgs", found[i].seg)
                if rc == WALK_FOUND:
                    rec.level = st.level
                    rec.redelivered = not found[i].is_fresh
                    if not self.show(rows, q, &rec, truncate):
                        return BROWSE_WIDE
                self.back = found[i]
                if rc == WALK_FOUND and self.is_late(&rec):
                    return BROWSE_OVER
            if clock_ns() > self.ends_ns:
                return BROWSE_OVER
        self.walk.seg = self.walk.pos = self.walk.from_pos = 0
        self.walk.window.len = 0
        return BROWSE_MORE

    cdef int find_time(self, store_t* st) except -3:
        """Begin in the last segment whose first message was stored before that time."""
        cdef u32 lo, hi, mid
        cdef rec_t rec
        cdef int rc
        if st.n_segs == 0:
            return WALK_FOUND
        lo = store_index(st, st.rseg.id)
        hi = st.n_segs - 1
        while lo < hi:
            mid = (lo + hi + 1) >> 1
            self.walk.pos = SEGMENT_HEADER
            rc = walk_read(&self.walk, st, st.segs[mid], SEGMENT_HEADER, &rec)
            if rc == WALK_COLD or rc == WALK_FAILED:
                return rc
            if rc == WALK_FOUND and <i64>le64(rec.names - 8) < self.from_ms:
                lo = mid
            else:
                hi = mid - 1
        self.walk.seg = st.segs[lo].id
        self.walk.pos = 0
        self.walk.from_pos = SEGMENT_HEADER
        return WALK_FOUND

    cdef int step_ahead(self, list rows, queue_t* q, store_t* st, u32 n, u64 truncate) except -2:
        """What the cursor has not passed. As step_level."""
        cdef walk_t* w = &self.walk
        cdef seg_t* seg
        cdef rec_t rec
        cdef u64 count
        cdef int rc
        if not self.is_placed:
            rc = self.find_time(st)
            if rc == WALK_COLD:
                return BROWSE_COLD
            if rc == WALK_FAILED:
                raise os_error(st, "msgs", w.window.fd_seg)
            self.is_placed = True
        while True:
            seg = walk_enter(w, st)
            if seg == NULL:
                return BROWSE_MORE
            if (self.skip and not self.from_ms and seg is not st.rseg
                    and w.from_pos == SEGMENT_HEADER):
                count = seg.count - seg.acked if seg.acked < seg.count else 0
                if self.skip >= count and seg is not st.wseg:
                    self.skip -= count
                    walk_next(w, st)
                    continue
            self.note_deleted(seg, w.pos)
            while w.pos < seg.size:
                if <u32>len(rows) == n:
                    return BROWSE_OVER
                if seg.n_deleted and w.pos - self.deleted_at >= BLOCK_SIZE:
                    self.note_deleted(seg, w.pos)
                rc = walk_read(w, st, seg, w.pos, &rec)
                if rc == WALK_COLD:
                    return BROWSE_COLD
                if rc == WALK_FAILED:
                    raise os_error(st, "msgs", seg.id)
                if rc == WALK_END:
                    break               # damage: what is behind it is not shown
                if (w.pos >= w.from_pos and not self.is_deleted(seg, w.pos)
                        and not record_is_filler(&rec)):
                    rec.level = st.level
                    rec.redelivered = rec.is_requeued = False
                    if not self.show(rows, q, &rec, truncate):
                        return BROWSE_WIDE
                w.pos += rec.size
                if self.is_late(&rec):
                    return BROWSE_OVER
            if seg is st.wseg:
                return BROWSE_MORE
            walk_next(w, st)

    cdef int note_deleted(self, const seg_t* seg, u32 pos) except -1:
        """Note what the cursor is to skip from pos on, for one window."""
        cdef u32 i, at
        self.deleted_at = pos
        if seg.n_deleted == 0:
            return 0
        if self.deleted == NULL:
            self.deleted = <u8*>malloc(BLOCK_SIZE >> 3)
            if self.deleted == NULL:
                raise MemoryError()
        memset(self.deleted, 0, BLOCK_SIZE >> 3)
        for i in range(seg.n_deleted):
            at = seg.deleted[i] - pos
            if at < BLOCK_SIZE:
                self.deleted[at >> 3] |= <u8>(1 << (at & 7))
        return 0

    cdef bint is_deleted(self, const seg_t* seg, u32 pos) noexcept nogil:
        cdef u32 at = pos - self.deleted_at
        return seg.n_deleted != 0 and (self.deleted[at >> 3] >> (at & 7)) & 1 != 0

    cdef int step_stream(self, list rows, queue_t* q, u32 n, u64 truncate) except -2:
        """`step` for a stream: by offsets."""
        cdef reader_t r
        cdef rec_t rec
        cdef i64 worked = FIRST_TURN
        cdef int rc = READ_TIRED
        cdef u64 need
        memset(&r, 0, sizeof(reader_t))
        r.window.fd = -1
        if self.skip:
            self.offset = stream_first(q) + <i64>self.skip
            self.skip = 0
        reader_go_to_offset(q, &r, self.offset)
        try:
            while <u32>len(rows) < n:
                rc = reader_peek(q, &r, BLOCK_SIZE, &worked, &rec)
                if rc != READ_FOUND:
                    break
                self.scanned += 1
                if self.wanted.has(&rec):
                    need = shown_of(&rec, truncate) + rec.props_len + rec.names_len
                    if need > self.room:
                        self.needed = need
                        self.scanned -= 1
                        self.offset = r.offset
                        return BROWSE_WIDE
                    self.room -= need
                    rec.redelivered = False
                    rows.append(message_row(q, &rec, (r.offset, record_digest(&rec)),
                                            shown_of(&rec, truncate))
                                + (<i64>le64(rec.names - 8), 0))
                worked += rec.size + 64
                r.pos += rec.size
                r.offset += 1
                if self.is_late(&rec):
                    rc = READ_TIRED
                    break
            if rc == READ_FAILED:
                raise os_error(q.store, "msgs", r.seg.id)
        finally:
            window_drop(&r.window, &q.loop.pool)
        self.offset = r.offset if r.offset > r.from_offset else r.from_offset
        if rc == READ_END:
            self.offset = q.stream.next_offset
            return BROWSE_OVER
        return BROWSE_MORE


cdef u32 locs_behind(const store_t* st, loc_t after, loc_t* found) noexcept nogil:
    """The first requeued ones behind a place in their order, BROWSE_BACK at most: a heap of the
    largest of them first is kept meanwhile. Cost: 2 ns for each requeued one."""
    cdef u32 n = 0, i, at, child
    cdef loc_t item
    for i in range(st.n_requeued):
        item = st.requeued[i]
        if not is_before(after, item):
            continue
        if n < BROWSE_BACK:
            at = n
            n += 1
            while at and is_before(found[(at - 1) >> 1], item):
                found[at] = found[(at - 1) >> 1]
                at = (at - 1) >> 1
            found[at] = item
        elif is_before(item, found[0]):
            at = 0
            while True:
                child = 2 * at + 1
                if child >= n:
                    break
                if child + 1 < n and is_before(found[child], found[child + 1]):
                    child += 1
                if not is_before(item, found[child]):
                    break
                found[at] = found[child]
                at = child
            found[at] = item
    sort_locs(found, n, sizeof(loc_t), compare_loc)
    return n


SEEN_MORE = BROWSE_MORE
SEEN_OVER = BROWSE_OVER
SEEN_COLD = BROWSE_COLD
SEEN_WIDE = BROWSE_WIDE
