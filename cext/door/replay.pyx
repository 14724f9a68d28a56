# Replay: what an exchange has kept goes to a destination that is being bound to it.
#
# Each message is published as it was, to that queue alone or through that exchange, in portions.
# What is published meanwhile is kept, too, and comes behind. Called by vhost/history.py.

cdef enum:
    REPLAY_NS = 1000000         # of a portion


cdef class Replay:
    """What `source` keeps goes to a Queue or an Exchange. Each step does a portion; it is over with
    its iteration, and then the destination is to be bound at once."""
    cdef Exchange source
    cdef Queue queue            # one of these
    cdef Exchange exchange
    cdef history_t* h           # NULL = it is over
    cdef u64 at                 # number of the next message
    cdef u64 left               # so many may come, whatever is kept meanwhile
    cdef i64 portion_ns
    cdef readonly object replayed

    def __cinit__(self, Exchange source not None, destination, i64 portion_ns=REPLAY_NS):
        destination_of(destination)
        self.source = source
        if isinstance(destination, Queue):
            self.queue = destination
        else:
            self.exchange = destination
        self.portion_ns = portion_ns
        self.replayed = 0
        if source.history is not None:
            self.h = source.history.q.history
            self.h.n_replays += 1
            self.at = self.h.first
            self.left = <u64>history_count(self.h) + 2 * <u64>MAX_HISTORY

    def __dealloc__(self):
        self.stop()

    cpdef void stop(self):
        """Nothing comes any more."""
        if self.h != NULL:
            self.h.n_replays -= 1
            self.h = NULL

    def __iter__(self):
        return self

    def __next__(self):
        """A portion. Returns how many messages have come so far."""
        cdef loop_t* loop
        cdef u64 n
        cdef bint is_more
        if self.h == NULL:
            raise StopIteration
        loop = self.h.loop
        n = self.left
        loop_clock(loop)
        self.source.history.loop.open_portion()
        with nogil:
            is_more = self.step(loop, clock_ns() + self.portion_ns)
        self.replayed += n - self.left
        self.source.history.loop.kick()
        if not is_more:             # the destination is bound before anybody publishes
            self.stop()
            raise StopIteration
        return self.replayed

    cdef bint is_gone(self) noexcept nogil:
        """Whether the destination, or the exchange itself, is deleted."""
        if self.source.t.dest.is_gone:
            return True
        if self.queue is not None:
            return self.queue.q.is_deleted or self.queue.q.is_closed
        return self.exchange.t.dest.is_gone

    cdef bint step(self, loop_t* loop, i64 ends_ns) noexcept nogil:
        """Publish until the portion is over. Whether there is more."""
        cdef history_t* h = self.h
        while not self.is_gone():
            if self.at < h.first:
                self.at = h.first           # publishers were faster
            if self.at == h.next or self.left == 0:
                return False
            loop.is_replaying = True
            self.publish(loop, history_at(h, self.at))
            if loop.over != NULL:
                loop_enforce(loop)
            loop.is_replaying = False
            self.at += 1
            self.left -= 1
            if clock_ns() >= ends_ns:
                return True
        return False

    cdef void publish(self, loop_t* loop, const kept_t* kept) noexcept nogil:
        """Publish one message anew. Who cannot take it now does without."""
        cdef msg_t m
        cdef const u8* p = <const u8*>(kept + 1)
        memset(&m, 0, sizeof(msg_t))
        m.names = p
        m.names_len = kept.names_len
        m.body_len = kept.body_len
        m.body = p + kept.names_len + kept.props_len
        if not props_find(p + kept.names_len, kept.props_len, &m):
            return
        m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
        if self.exchange is not None:
            route_moved(&self.exchange.t, &m, loop)
        else:
            targets_begin(&loop.buried, &loop.reached)
            match_take(&loop.buried, &self.queue.q.dest)
        loop_begin_move(loop, self.source.history.q)
        if move_store(loop, &m, &loop.buried, -1):
            self.source.t.n_out += loop.buried.n
