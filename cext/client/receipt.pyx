# Receipt: how one published message, or a batch of them, ends.
#
# The ring of a producer does not keep receipts of single messages alive: a program that throws them
# away pays no memory for them. A receipt that goes away takes itself out of its slot. A batch is
# held by each of its messages, because somebody may wait for its end who holds nothing else.
#
# Where there is no GIL, slots own their receipts: else one thread could let go of a receipt while
# another ends it.
#
# Threads: what changes is guarded by the lock of the ring, until all have ended. Then the receipt
# lets go of the ring, and nothing changes any more. Its own lock guards which of both it is.

cdef extern from *:
    """
    #ifdef Py_GIL_DISABLED
    #define CLIENT_OWNS_RECEIPTS 1
    #else
    #define CLIENT_OWNS_RECEIPTS 0
    #endif
    #define CLIENT_LOOSE UINT64_MAX
    """
    enum: CLIENT_OWNS_RECEIPTS
    const u64 LOOSE "CLIENT_LOOSE"  # the number of what is in no ring

cdef class Ring

cdef enum:
    OUTCOME_OPEN = 0
    OUTCOME_CONFIRMED = 1
    OUTCOME_SENT = 2            # without confirms that is all there is to know
    OUTCOME_NACKED = 3
    OUTCOME_RETURNED = 4
    OUTCOME_DROPPED = 5
    OUTCOME_SPILLED = 6         # a file has it, and another program is to send it
    N_OUTCOMES = 7

OUTCOMES = ("open", "confirmed", "sent", "nacked", "returned", "dropped", "spilled")


@cython.no_gc
@cython.freelist(256)
cdef class Receipt:
    """How a message, or a batch, ends; its first failure is that of the batch."""

    cdef Ring ring              # None = all have ended
    cdef u64 first              # the number of the (first) message with its producer
    cdef u64 n
    cdef u64 n_failed
    cdef u64 tag
    cdef u64 left
    cdef u8 outcome
    cdef bint is_batch
    cdef object why             # of the first failure
    cdef list callbacks
    cdef object __weakref__

    def __dealloc__(self):
        if CLIENT_OWNS_RECEIPTS:
            return
        if self.ring is not None and not self.is_batch and self.left:
            self.ring.forget(self)

    def __repr__(self):
        return f"<Receipt {self.status}, {self.size} messages from {self.seq}>"

    cdef Ring owner(self):
        """Its ring; None = all have ended."""
        with cython.critical_section(self):
            return self.ring

    cdef object guard(self):
        """What guards it: its ring, or once nothing changes any more anything, itself."""
        cdef Ring ring = self.owner()
        return self if ring is None else ring

    @property
    def seq(self):
        """The number of the (first) message with its producer."""
        with cython.critical_section(self.guard()):
            return self.first

    @property
    def size(self):
        """Messages."""
        with cython.critical_section(self.guard()):
            return self.n

    @property
    def failed(self):
        """Messages that have not ended well."""
        with cython.critical_section(self.guard()):
            return self.n_failed

    @property
    def delivery_tag(self):
        """That of the channel it was sent by last; 0 = none."""
        with cython.critical_section(self.guard()):
            return self.tag

    @property
    def reason(self):
        """Of the first failure."""
        with cython.critical_section(self.guard()):
            return self.why

    cdef int end(self, u8 outcome, object reason) except -1:
        """One of the messages has ended; under the lock of the ring."""
        self.left -= 1
        if outcome > OUTCOME_SENT:
            self.n_failed += 1
        if self.outcome <= OUTCOME_SENT:
            self.outcome = outcome
            self.why = reason
        if self.left == 0:
            if self.callbacks is not None:
                self.ring.has_ended_with(self)
            with cython.critical_section(self):
                self.ring = None
        return 0

    def seal(self):
        """Nothing more belongs to this batch."""
        cdef Ring ring = self.owner()
        if self.is_batch and ring is not None:
            # It counted itself as one that is open, so that it does not end half made.
            with cython.critical_section(ring):
                self.end(min(self.outcome, OUTCOME_SENT), None)

    def adopt(self, Receipt other):
        """A message that went another way than `add_many` belongs to this batch, too."""
        with cython.critical_section(self.guard()):
            self.left += 1
            self.n += 1
        other.add_done_callback(self.adopted)

    def adopted(self, Receipt other):
        """It has ended."""
        cdef Ring ring = self.owner()
        if ring is not None:
            with cython.critical_section(ring):
                self.end(other.outcome, other.why)

    def done(self):
        """Whether all messages have ended."""
        with cython.critical_section(self.guard()):
            return self.left == 0

    @property
    def status(self):
        """`buffered`, `sent`, `confirmed`, `nacked`, `returned`, `dropped` or `spilled`."""
        cdef Ring ring = self.owner()
        if ring is not None:
            with cython.critical_section(ring):
                if self.left:
                    return "buffered" if self.is_batch else ring.place_of(self.first)
        return OUTCOMES[self.outcome]

    def value(self):
        """The status of what has ended well.

        Raises: NackError, ReturnedError, DroppedError, SpilledError.
        """
        if not self.done():
            raise ValueError("it has not ended yet")
        if self.outcome == OUTCOME_NACKED:
            raise NackError("the broker refused the message")
        if self.outcome == OUTCOME_RETURNED:
            raise ReturnedError(f"no queue took the message: {self.why}")
        if self.outcome == OUTCOME_DROPPED:
            raise DroppedError(self.why)
        if self.outcome == OUTCOME_SPILLED:
            raise SpilledError("the message is in the file of its producer, which was closed")
        return OUTCOMES[self.outcome]

    def result(self, timeout=None):
        """Wait for the end; return the status. Raises: TimeoutError, and as `value`."""
        cdef Ring ring = self.owner()
        if ring is not None:
            ring.wait_for(self, timeout)
        return self.value()

    def add_done_callback(self, callback):
        """Call with this receipt once all have ended; at once if they have."""
        cdef Ring ring = self.owner()
        if ring is None:
            callback(self)
            return
        with cython.critical_section(ring):
            if self.left:
                if self.callbacks is None:
                    self.callbacks = []
                    if not self.is_batch:
                        ring.hold(self)
                self.callbacks.append(callback)
                return
        callback(self)

    def remove_done_callback(self, callback):
        """Call it no more: who waited has gone."""
        cdef Ring ring = self.owner()
        if ring is not None:
            with cython.critical_section(ring):
                if self.callbacks is not None:
                    self.callbacks = [each for each in self.callbacks if each != callback]

    def run_callbacks(self, failed):
        """Call who waits; the ring's owner does that. What one raises goes to `failed`: the others,
        and those of other receipts, hear all the same."""
        callbacks, self.callbacks = self.callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except BaseException as error:
                failed(error)

    def __await__(self):
        cdef Ring ring = self.owner()
        if ring is not None:
            future, ended = ring.future()
            self.add_done_callback(ended)
            try:
                yield from future.__await__()
            except BaseException:
                self.remove_done_callback(ended)
                raise
        return self.value()
