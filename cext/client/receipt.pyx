# Receipt: how one published message, or a batch of them, ends.
#
# The ring of a producer does not keep receipts of single messages alive: a program that throws them
# away pays no memory for them. A receipt that goes away takes itself out of its slot. A batch is
# held by each of its messages, because somebody may wait for its end who holds nothing else.

cdef class Ring

cdef enum:
    OUTCOME_OPEN = 0
    OUTCOME_CONFIRMED = 1
    OUTCOME_SENT = 2            # without confirms that is all there is to know
    OUTCOME_NACKED = 3
    OUTCOME_RETURNED = 4
    OUTCOME_DROPPED = 5
    N_OUTCOMES = 6

OUTCOMES = ("open", "confirmed", "sent", "nacked", "returned", "dropped")


@cython.no_gc
@cython.freelist(256)
cdef class Receipt:
    """How a message, or a batch, ends; its first failure is that of the batch."""

    cdef Ring ring              # None = all have ended
    cdef readonly u64 seq       # the number of the (first) message with its producer
    cdef readonly u64 size      # messages
    cdef readonly u64 failed
    cdef readonly u64 delivery_tag
    cdef u64 left
    cdef u8 outcome
    cdef bint is_batch
    cdef readonly object reason  # of the first failure
    cdef list callbacks
    cdef object __weakref__

    def __dealloc__(self):
        if self.ring is not None and not self.is_batch and self.left:
            self.ring.forget(self)

    def __repr__(self):
        return f"<Receipt {self.status}, {self.size} messages from {self.seq}>"

    cdef int end(self, u8 outcome, object reason) except -1:
        """One of the messages has ended."""
        cdef Ring ring
        self.left -= 1
        if outcome > OUTCOME_SENT:
            self.failed += 1
        if self.outcome <= OUTCOME_SENT:
            self.outcome = outcome
            self.reason = reason
        if self.left == 0:
            ring = self.ring
            self.ring = None
            if self.callbacks is not None:
                ring.ended.append(self)
        return 0

    def seal(self):
        """Nothing more belongs to this batch."""
        if self.is_batch and self.left:
            # It counted itself as one that is open, so that it does not end half made.
            with cython.critical_section(self.ring):
                self.end(self.outcome, self.reason)

    def adopt(self, Receipt other):
        """A message that went another way than `add_many` belongs to this batch, too."""
        self.left += 1
        self.size += 1
        other.add_done_callback(self.adopted)

    def adopted(self, Receipt other):
        """It has ended."""
        with cython.critical_section(self.ring):
            self.end(other.outcome, other.reason)

    def done(self):
        """Whether all messages have ended."""
        return self.left == 0

    @property
    def status(self):
        """`buffered`, `sent`, `confirmed`, `nacked`, `returned` or `dropped`."""
        if self.left == 0:
            return OUTCOMES[self.outcome]
        if self.is_batch:
            return "buffered"
        return self.ring.status_of(self.seq)

    def value(self):
        """The status of what has ended well. Raises: NackError, ReturnedError, DroppedError."""
        if self.left:
            raise ValueError("it has not ended yet")
        if self.outcome == OUTCOME_NACKED:
            raise NackError("the broker refused the message")
        if self.outcome == OUTCOME_RETURNED:
            raise ReturnedError(f"no queue took the message: {self.reason}")
        if self.outcome == OUTCOME_DROPPED:
            raise DroppedError(self.reason)
        return OUTCOMES[self.outcome]

    def result(self, timeout=None):
        """Wait for the end; return the status. Raises: TimeoutError, and as `value`."""
        if self.left:
            self.ring.wait_for(self, timeout)
        return self.value()

    def add_done_callback(self, callback):
        """Call with this receipt once all have ended; at once if they have."""
        if self.left == 0:
            callback(self)
            return
        cdef Ring ring = self.ring
        with cython.critical_section(ring):
            if self.left:
                if self.callbacks is None:
                    self.callbacks = []
                    if not self.is_batch:
                        ring.hold(self)
                self.callbacks.append(callback)
                return
        callback(self)

    def run_callbacks(self):
        """Call who waits; the ring's owner does that."""
        callbacks, self.callbacks = self.callbacks, None
        for callback in callbacks or ():
            callback(self)

    def __await__(self):
        if self.left:
            yield from self.ring.future_of(self).__await__()
        return self.value()
