# Tracker: deliveries of a channel that wait to be settled, and the acks that are on their way.
#
# Tags of a channel are numbers in a row, so what is known of them is an octet each, in a ring from
# the lowest unsettled one on. Acks are not sent one by one: `flush` sends one for all that are
# settled in a row from the lowest on (`multiple`), and single ones for those beyond a gap.
#
# A tag belongs to one incarnation of the channel. What is settled for an earlier one is counted in
# `stale_acks` and never sent: on a new channel the same number is another message.
#
# Threads: the program settles while the thread of the loop notes deliveries and flushes. All of it
# is guarded by the lock of the tracker; who calls what is no method of Python's takes it.

cdef enum:
    TAG_UNACKED = 0
    TAG_ACKED = 1               # settled here, its ack is still to be sent
    TAG_GONE = 2                # settled, and the peer has been told
    TAGS_LEAST = 256
    TAGS_MOST = 1 << 26         # from the lowest unsettled one to the newest

cdef enum:
    BASIC_ACK = 80
    BASIC_NACK = 120


cdef class Tracker:
    """The unsettled deliveries of one channel.

    Args: limit: how many may be unsettled at once, 0 = as many as come: a peer that delivers more
    breaks the protocol.
    """

    cdef u8* tags
    cdef u8 one_tag             # of a tracker that does nothing
    cdef u64 mask
    cdef u64 low                # the lowest unsettled tag, or the next one
    cdef u64 next               # the tag behind the newest delivery
    cdef u64* pending           # acked beyond the row, not sent
    cdef u64 n_pending
    cdef u64 pending_cap
    cdef buf_t refused          # frames of nacks and rejects, not sent
    cdef bint is_urgent         # the wake-up was asked for already
    cdef public u64 limit
    cdef readonly u64 incarnation
    cdef readonly u64 count     # unsettled
    cdef readonly u64 acked
    cdef readonly u64 rejected
    cdef readonly u64 delivered
    cdef readonly u64 redelivered
    cdef readonly u64 stale_acks
    cdef readonly int channel
    cdef public bint notes_given_back
    cdef list given_back        # tags since they were taken, None = none: few are
    cdef public object wake     # called once when there is something to send; None = nobody asks

    def __cinit__(self, u64 limit=0):
        self.limit = limit
        self.tags = &self.one_tag
        self.low = self.next = 1

    def __dealloc__(self):
        self.free_tags()
        free(self.pending)
        buf_free(&self.refused)

    cdef void free_tags(self) noexcept:
        if self.tags != &self.one_tag:
            free(self.tags)

    def reset(self, int channel):
        """Begin another incarnation, on a new channel: what was unsettled is the broker's again."""
        with cython.critical_section(self):
            self.incarnation += 1
            self.channel = channel
            self.low = self.next = 1
            self.count = 0
            self.n_pending = 0
            self.refused.n = 0
            self.given_back = None
            self.is_urgent = False

    def rest(self):
        """Nothing happens for now: give back the memory that nothing is in."""
        with cython.critical_section(self):
            if self.low == self.next:
                self.free_tags()
                self.tags, self.mask = &self.one_tag, 0
            if not self.n_pending:
                free(self.pending)
                self.pending, self.pending_cap = NULL, 0

    cdef int grow(self) except -1:
        cdef u64 size = max((self.mask + 1) * 2, <u64>TAGS_LEAST), tag
        cdef u8* tags
        if size > TAGS_MOST:
            raise ProtocolViolation("too many deliveries behind one that is not settled")
        tags = <u8*>malloc(size)
        if tags == NULL:
            raise MemoryError
        for tag in range(self.low, self.next):
            tags[tag & (size - 1)] = self.tags[tag & self.mask]
        self.free_tags()
        self.tags = tags
        self.mask = size - 1
        return 0

    cdef int delivery(self, u64 tag, bint is_redelivered) except -1:
        """Note a delivery. Raises: ProtocolViolation for a tag that is not the next one."""
        if tag != self.next:
            raise ProtocolViolation(f"delivery tag {tag} instead of {self.next}")
        if self.limit and self.count >= self.limit:
            raise ProtocolViolation(f"more than {self.limit} unacknowledged deliveries")
        if self.next - self.low > self.mask:
            self.grow()
        self.tags[tag & self.mask] = TAG_UNACKED
        self.next += 1
        self.count += 1
        self.delivered += 1
        self.redelivered += is_redelivered
        return 0

    cdef void skip_settled(self) noexcept:
        """Move the lowest one on over those that need nothing, so that the ring stays small."""
        while self.low < self.next and self.tags[self.low & self.mask] == TAG_GONE:
            self.low += 1

    cdef inline bint is_open(self, u64 tag) noexcept:
        return self.low <= tag < self.next and self.tags[tag & self.mask] == TAG_UNACKED

    cdef int put_pending(self, u64 tag) except -1:
        cdef u64 cap
        cdef u64* pending
        if self.n_pending == self.pending_cap:
            cap = self.pending_cap * 2 if self.pending_cap else 64
            pending = <u64*>realloc(self.pending, cap * sizeof(u64))
            if pending == NULL:
                raise MemoryError
            self.pending = pending
            self.pending_cap = cap
        self.pending[self.n_pending] = tag
        self.n_pending += 1
        return 0

    cdef bint settle(self, u64 incarnation, u64 tag, int method, bint requeue) except -1:
        """Settle one delivery; False = it was settled before, or is of another incarnation."""
        if incarnation != self.incarnation:
            self.stale_acks += 1
            return False
        if not self.is_open(tag):
            return False
        self.count -= 1
        if method == BASIC_ACK:
            self.tags[tag & self.mask] = TAG_ACKED
            self.acked += 1
            self.put_pending(tag)
        else:
            self.tags[tag & self.mask] = TAG_GONE
            self.rejected += 1
            put_settle(&self.refused, self.channel, BASIC_NACK, tag, 2 if requeue else 0)
            if requeue and self.notes_given_back:
                if self.given_back is None:
                    self.given_back = []
                self.given_back.append(tag)
        if not self.is_urgent:
            self.is_urgent = True
            if self.wake is not None:
                self.wake()
        return True

    def ack(self, u64 tag, bint multiple=False, incarnation=None):
        """Acknowledge one delivery, or all up to it; return how many that settled."""
        return self.settle_up_to(tag, multiple, BASIC_ACK, False, incarnation)

    def nack(self, u64 tag, bint multiple=False, bint requeue=True, incarnation=None):
        """Refuse one delivery, or all up to it; return how many that settled."""
        return self.settle_up_to(tag, multiple, BASIC_NACK, requeue, incarnation)

    cdef object settle_up_to(self, u64 tag, bint multiple, int method, bint requeue, incarnation):
        cdef u64 at, mine, n = 0
        with cython.critical_section(self):
            mine = self.incarnation if incarnation is None else incarnation
            if multiple and mine == self.incarnation:
                at = self.low
                while at <= tag and at < self.next:
                    n += self.settle(mine, at, method, requeue)
                    at += 1
            else:
                n = self.settle(mine, tag, method, requeue)
        return n

    def flush(self, Output out):
        """Write what is to be told to the peer; return the bytes that took."""
        cdef u64 before = out.b.n, row = 0, i, tag
        with cython.critical_section(self):
            self.is_urgent = False
            if self.refused.n:
                put(&out.b, self.refused.p, self.refused.n)
                self.refused.n = 0
            if self.n_pending == 0 and self.low == self.next:
                return out.b.n - before
            # The last ack of the row is sent, not what lies behind it: a peer knows that tag.
            while self.low < self.next and self.tags[self.low & self.mask] != TAG_UNACKED:
                if self.tags[self.low & self.mask] == TAG_ACKED:
                    row = self.low
                self.low += 1
            if row:
                put_settle(&out.b, self.channel, BASIC_ACK, row, 1)
            for i in range(self.n_pending):
                tag = self.pending[i]
                if tag >= self.low:
                    put_settle(&out.b, self.channel, BASIC_ACK, tag, 0)
                    self.tags[tag & self.mask] = TAG_GONE
            self.n_pending = 0
            if self.pending_cap > 1 << 16:
                free(self.pending)
                self.pending = NULL
                self.pending_cap = 0
        return out.b.n - before

    def take_given_back(self):
        """Tags of deliveries given back since this was asked last, if that is noted."""
        with cython.critical_section(self):
            taken, self.given_back = self.given_back, None
        return () if taken is None else taken

    def track(self, u64 tag, bint redelivered=False):
        """Note a delivery, as the engine does for what comes in. Raises: ProtocolViolation."""
        with cython.critical_section(self):
            self.delivery(tag, redelivered)

    @property
    def unacked_tags(self):
        """The unsettled ones, in order."""
        cdef list tags = []
        cdef u64 tag
        with cython.critical_section(self):
            for tag in range(self.low, self.next):
                if self.is_open(tag):
                    tags.append(tag)
        return tags

    @property
    def settled_to(self):
        """The highest tag up to which all are settled."""
        cdef u64 tag
        with cython.critical_section(self):
            tag = self.low
            while tag < self.next and self.tags[tag & self.mask] != TAG_UNACKED:
                tag += 1
        return tag - 1

    @property
    def wants_flush(self):
        """Whether something was settled since the last flush."""
        with cython.critical_section(self):
            return self.is_urgent
