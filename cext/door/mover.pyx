# Mover: what is ready in a queue goes on to another one, from store to store, for as long as the
# queue has a consumer that could take it.
#
# The consumer is a client's, and exclusive: it stands for the mover where others look for consumers
# and gets nothing itself. A message is deleted here once it is on disk there (moves.pyx). What the
# other queue refuses stays; who owns the mover has it try again. Called by
# lavinmq/shovel/carrying.py. Source: decision 0108.

cdef enum:
    MOVER_LOOKS = 64            # messages between two looks at the clock
    MOVER_NS = 1000000          # of moving in a turn of the queue


cdef bint mover_deliver(queue_t* q) noexcept nogil:
    """Move what is ready, for a while. True when there is more to move."""
    cdef mover_t* m = q.mover
    cdef i64 until_ns
    cdef u64 bytes_before
    cdef u32 n = 0
    cdef int rc = MOVE_DONE
    # Within a move of others the places of messages are looked at.
    if q.is_paused or q.n_orphans or q.n_purges or q.loop.is_moving or m.to.is_deleted:
        return False
    until_ns = clock_ns() + MOVER_NS
    while q.ready and m.left and not q.is_closed:
        n += 1
        if n % MOVER_LOOKS == 0 and clock_ns() >= until_ns:
            break
        bytes_before = q.ready_bytes
        rc = queue_move_next(q, m.to, &m.haul, True)
        if rc != MOVE_DONE:
            break
        m.n_moved += 1
        m.n_bytes += bytes_before - q.ready_bytes
        if m.left != NO_LIMIT:
            m.left -= 1
    m.is_refused = rc == MOVE_REFUSED and q.ready != 0
    if m.is_refused:
        m.n_refused += 1
    scratch_trim(q.loop, &q.loop.carry)
    q.loop.work += n * 30
    return q.ready != 0 and m.left != 0 and not m.is_refused and not q.is_closed


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class Mover:
    """Moves what is ready in `source` to the end of `to`, when the source has a consumer."""
    cdef Queue source
    cdef Queue to
    cdef mover_t t

    def __cinit__(self, Queue source not None, Queue to not None, left=None):
        cdef queue_t* q = source.q
        self.source = source
        self.to = to
        memset(&self.t, 0, sizeof(mover_t))
        if (q == to.q or q.stream != NULL or q.releases != NULL or q.deliver != NULL
                or to.q.releases != NULL or to.q.name == NULL):
            raise ValueError("these cannot be moved")
        self.t.to = to.q
        self.t.left = NO_LIMIT if left is None else <u64>left
        q.mover = &self.t
        q.deliver = mover_deliver

    def __dealloc__(self):
        self.end()
        if self.t.haul != NULL:
            haul_free(self.t.haul)

    cdef void end(self) noexcept:
        if self.source.q.mover == &self.t:
            self.source.q.mover = NULL
            self.source.q.deliver = NULL

    def close(self) -> None:
        """Move nothing more. Idempotent."""
        self.end()

    def kick(self) -> None:
        """Try again what was refused."""
        if self.source.q.mover == &self.t and not self.source.q.is_deleted:
            queue_touch(self.source.q)
            self.source.loop.kick()

    @property
    def is_refused(self) -> bool:
        """Whether the other queue has not taken the last one."""
        return self.t.is_refused

    @property
    def is_over(self) -> bool:
        """Whether all have gone that were to."""
        return self.t.left == 0

    @property
    def is_cut(self) -> bool:
        """Whether one of the queues is gone or closed."""
        return (self.source.q.is_deleted or self.source.q.is_closed or self.to.q.is_deleted
                or self.to.q.is_closed)

    def counts(self) -> tuple:
        """(messages that went, their bytes in segments, attempts that were refused)."""
        return self.t.n_moved, self.t.n_bytes, self.t.n_refused
