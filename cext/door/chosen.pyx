# Chosen: messages that somebody has picked from what Browse has shown are deleted, moved or copied.
#
# A message is known by its place and a digest of it. It must still stand there and be ready: either
# requeued, or found by a walk that begins where a record does, so that a place in the midst of one
# is never believed. One after the other, in the order of the places. What is moved is deleted once
# it is on disk where it went (moves.pyx), as with Move. A message of a stream is known by its
# offset and the digest; it can be copied only: nothing is taken out of the midst of a stream.
# Called by lavinmq/http/api/chosen.py. Source: decisions 0033, 0061, 0071.

cdef enum:
    CHOSEN_DONE = 1
    CHOSEN_GONE = 0             # it is not there any more
    CHOSEN_LATER = 2            # the portion is over
    CHOSEN_COLD = 3             # as BROWSE_COLD
    CHOSEN_REFUSED = 4          # the other queue cannot take it


# Freeing one needs its Queue: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Chosen:
    """Args: `queue`; `to`: where they go, None: they are deleted; `is_copy`: they stay as well."""
    cdef Queue queue
    cdef Queue to
    cdef bint is_copy
    cdef walk_t walk
    cdef u32 level
    cdef haul_t* haul           # of the large message that is on its way, NULL = none

    def __cinit__(self, Queue queue not None, Queue to=None, bint is_copy=False):
        self.queue = queue
        self.to = to
        self.is_copy = is_copy
        self.walk.window.fd = -1
        self.level = <u32>-1

    def __dealloc__(self):
        if self.haul != NULL:
            haul_free(self.haul)
        walk_drop(&self.walk, self.queue.q.loop)

    def rest(self) -> None:
        """As Browse.rest."""
        walk_drop(&self.walk, &self.queue.loop.t)

    def cold(self) -> tuple:
        """As Browse.cold."""
        cdef int fd = c_dup(self.walk.window.fd)
        if fd < 0:
            raise OSError(errno, "no descriptor")
        self.walk.is_warm = True
        return fd, self.walk.pos, BROWSE_AHEAD

    def settle(self, u32 level, u32 seg, u32 pos, u64 digest) -> int:
        """Do it with one message; those of a queue by rising level, segment and position.

        One of DONE, GONE, LATER and COLD (call again), REFUSED. Of what was moved or copied
        `Loop.after_sync` says when it is safe, and `Queue.returned` what came back."""
        cdef queue_t* q = self.queue.q
        cdef queue_t* to = self.to.q if self.to is not None else NULL
        cdef store_t* st
        cdef int rc
        if (q is to or q.is_deleted or q.is_closed or q.stream != NULL or q.releases != NULL
                or q.history != NULL):
            return CHOSEN_GONE
        if to != NULL and (to.is_deleted or to.is_closed or to.releases != NULL
                           or to.name == NULL):
            return CHOSEN_REFUSED
        st = queue_level(q, level) if level < queue_levels(q) else NULL
        if st == NULL or queue_ready_of(q, st) == 0:
            return CHOSEN_GONE
        if level != self.level:
            self.level = level
            self.walk.seg = self.walk.pos = 0
            walk_drop(&self.walk, q.loop)
        loop_clock(q.loop)
        self.queue.loop.open_portion()
        with nogil:
            rc = self.find(q, to, st, seg, pos, digest)
            loop_drop_scratch(q.loop)
            walk_rest(&self.walk, st)
            queue_touch(q)
            loop_enforce(q.loop)
        self.queue.loop.kick()
        if rc == WALK_FAILED:
            raise os_error(st, "msgs", seg)
        return rc

    def copy(self, i64 offset, u64 digest) -> int:
        """Copy one message of a stream, by rising offset. As settle, never COLD: a stream is read
        in the loop, as for its consumers."""
        cdef queue_t* q = self.queue.q
        cdef queue_t* to = self.to.q if self.to is not None else NULL
        cdef int rc
        if to == NULL or not self.is_copy:
            raise TypeError("messages of a stream are copied")
        if q is to or q.is_deleted or q.is_closed or q.stream == NULL:
            return CHOSEN_GONE
        if to.is_deleted or to.releases != NULL or to.name == NULL or queue_cannot_take(to):
            return CHOSEN_REFUSED
        loop_clock(q.loop)
        self.queue.loop.open_portion()
        with nogil:
            rc = self.find_offset(q, to, offset, digest)
            loop_drop_scratch(q.loop)
            loop_enforce(q.loop)
        self.queue.loop.kick()
        if rc == WALK_FAILED:
            raise os_error(q.store, "msgs", self.walk.seg)
        return rc

    cdef int find_offset(self, queue_t* q, queue_t* to, i64 offset, u64 digest) noexcept nogil:
        """Find it, and copy it. As `settle`, or WALK_FAILED."""
        cdef reader_t r
        cdef rec_t rec
        cdef i64 worked = FIRST_TURN
        cdef int rc
        memset(&r, 0, sizeof(reader_t))
        r.window.fd = -1
        reader_go_to_offset(q, &r, offset)
        rc = reader_peek(q, &r, BLOCK_SIZE, &worked, &rec)
        self.walk.seg = r.seg.id
        if rc == READ_TIRED:
            rc = CHOSEN_LATER
        elif rc == READ_FAILED:
            rc = WALK_FAILED
        elif rc == READ_END or r.offset != offset or record_digest(&rec) != digest:
            rc = CHOSEN_GONE
        else:
            rec.redelivered = rec.is_requeued = False
            rc = self.send(q, to, &rec)
        window_drop(&r.window, &q.loop.pool)
        return rc

    cdef int send(self, queue_t* q, queue_t* to, rec_t* rec) noexcept nogil:
        """Store it in the other queue. As `settle`."""
        cdef int rc
        if queue_cannot_take(to):
            return CHOSEN_REFUSED
        if rec.size > LARGE_RECORD:
            rc = queue_move_large(q, to, rec, &self.haul)
        else:
            rc = queue_move_small(q, to, rec, loop_scratch(q.loop, <u64>rec.size + 512))
        if rc == MOVE_DONE:
            return CHOSEN_DONE
        return CHOSEN_LATER if rc == MOVE_LARGE else CHOSEN_REFUSED

    cdef int find(self, queue_t* q, queue_t* to, store_t* st, u32 id, u32 pos,
                  u64 digest) noexcept nogil:
        """Find it, and do it. As `settle`, or WALK_FAILED."""
        cdef walk_t* w = &self.walk
        cdef seg_t* seg = store_segment(st, id)
        cdef rec_t rec
        cdef u32 i, back = <u32>-1, n = 0
        cdef i64 ends_ns = clock_ns() + BROWSE_NS
        cdef int rc
        if seg == NULL or seg.id != id or id == 0:
            return CHOSEN_GONE
        for i in range(st.n_requeued):
            if st.requeued[i].pos == pos and st.requeued[i].seg == id:
                back = i
                break
        if back == <u32>-1:
            if not store_is_ahead(st, id, pos) or segment_has_deleted(seg, pos):
                return CHOSEN_GONE
            if w.seg != id or w.pos > pos or w.pos == 0 or w.n_fillers != seg.n_fillers:
                w.pos = st.rpos if seg is st.rseg else SEGMENT_HEADER
            if seg is st.rseg and w.pos < st.rpos:
                w.pos = st.rpos
            w.n_fillers = seg.n_fillers
        else:
            w.pos = pos
        w.seg = id
        w.from_pos = pos
        while True:
            rc = walk_read(w, st, seg, w.pos, &rec)
            if rc == WALK_COLD:
                return CHOSEN_COLD
            if rc == WALK_FAILED:
                return rc
            if rc == WALK_END:
                return CHOSEN_GONE
            if w.pos >= pos:
                break
            w.pos += rec.size
            n += 1
            if n % BROWSE_LOOK == 0 and clock_ns() > ends_ns:
                return CHOSEN_LATER
        if w.pos != pos or record_is_filler(&rec) or record_digest(&rec) != digest:
            return CHOSEN_GONE
        rec.level = st.level
        rec.is_requeued = back != <u32>-1
        rec.redelivered = back != <u32>-1 and not st.requeued[back].is_fresh
        return self.carry_out(q, to, st, seg, &rec, back)

    cdef int carry_out(self, queue_t* q, queue_t* to, store_t* st, seg_t* seg, rec_t* rec,
                       u32 back) noexcept nogil:
        """It is there: do it."""
        cdef spot_t at = spot_of(rec, MOVE_ORDERED)
        cdef int rc
        if to != NULL:
            rc = self.send(q, to, rec)
            if rc != CHOSEN_DONE or self.is_copy:
                return rc
        if back != <u32>-1:
            store_remove_requeued(st, back)
        elif segment_push_deleted(seg, rec.pos):
            return CHOSEN_REFUSED           # out of memory: it stays, there may be two of it
        store_forget_due(st, rec.seg, rec.pos)
        queue_uncount(q, st, rec.size)
        if to != NULL:
            queue_delete_moved(q, &at)
        else:
            queue_forget_spot(q, &at)
        return CHOSEN_DONE


SETTLED_GONE = CHOSEN_GONE
SETTLED_DONE = CHOSEN_DONE
SETTLED_LATER = CHOSEN_LATER
SETTLED_COLD = CHOSEN_COLD
SETTLED_REFUSED = CHOSEN_REFUSED
