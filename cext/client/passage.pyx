# Passage: messages of a port go on into a ring, without becoming objects.
#
# It is open as long as each message can go on at once. The first one that cannot (the ring is full,
# or no more are wanted) closes it, and what comes then gathers on the port as usual: its owner
# hands that over by `forward`, in order, and opens the passage again when nothing is left of it.
#
# A message that may go no further (see Rewriter) is settled here: acknowledged, or given back.
#
# Threads: a passage, its rewriter and its port belong to the thread of the loop.

@cython.final
cdef class Passage:
    """From a consumer to a producer.

    Args: exchange, routing_key: where messages go, None = where each came from; mandatory: what no
    queue takes is sent again, as what was refused; rewriter: of properties, None = they stay;
    wanted: how many are to be settled, None = all that come; budget: see `reopen`; gives_back:
    whether one that may go no further is given back; is_stream: whether offsets are noted.
    """

    cdef readonly Ring ring
    cdef public Rewriter rewriter
    cdef bytes exchange         # as a short string, None = its own
    cdef bytes key
    cdef u8 flags
    cdef bint gives_back
    cdef bint is_stream
    cdef readonly bint is_open
    cdef i64 wanted             # -1 = all that come
    cdef u64 closes_at          # by `count`
    cdef u64 before             # settled when the channel was new
    cdef u64 taken              # of this channel
    cdef readonly u64 count     # messages that went on
    cdef readonly u64 n_bytes   # of their bodies
    cdef readonly u64 stopped   # messages that went no further
    cdef Tracker tracker
    cdef u64* offsets           # by delivery tag
    cdef u64 offset_mask
    cdef u64 last_tag

    def __cinit__(
        self, Ring ring, *, str exchange=None, str routing_key=None, bint mandatory=False,
        Rewriter rewriter=None, wanted=None, budget=None, bint gives_back=False,
        bint is_stream=False,
    ):
        self.ring, self.rewriter = ring, rewriter
        self.exchange = None if exchange is None else short_of(exchange)
        self.key = None if routing_key is None else short_of(routing_key)
        self.flags = FLAG_MANDATORY if mandatory else 0
        self.wanted = -1 if wanted is None else wanted
        self.closes_at = 0xFFFFFFFFFFFFFFFF if budget is None else budget
        self.gives_back, self.is_stream = gives_back, is_stream
        if is_stream:
            self.offset_mask = 2 * TAGS_LEAST - 1
            self.offsets = <u64*>calloc(self.offset_mask + 1, sizeof(u64))
            if self.offsets == NULL:
                raise MemoryError

    def __dealloc__(self):
        free(self.offsets)

    def restart(self, Tracker tracker, bint no_ack=False):
        """There is a new channel: what was not settled by the old one comes again."""
        self.tracker = tracker
        with cython.critical_section(tracker):
            self.before = self.count if no_ack else tracker.acked + tracker.rejected
        self.taken = self.last_tag = 0
        self.is_open = self.may_open()

    def reopen(self, budget=None):
        """Let messages through: nothing of what came before is left. Args: budget: how many at
        most, None = no bound."""
        self.closes_at = 0xFFFFFFFFFFFFFFFF if budget is None else self.count + <u64>budget
        self.is_open = self.may_open()

    def close(self):
        """Let none through until it is opened."""
        self.is_open = False

    @property
    def is_all_taken(self):
        """Whether no more are wanted."""
        return self.wants_none()

    cdef inline bint may_open(self) noexcept:
        return self.count < self.closes_at and not self.wants_none()

    cdef inline bint wants_none(self) noexcept:
        return self.wanted >= 0 and self.before + self.taken >= <u64>self.wanted

    def forward(self, list messages, Py_ssize_t start=0):
        """Hand over messages that gathered; return the index of the first that has no room.

        Those beyond what is wanted, and those of an earlier channel, are left alone.
        Raises: ProtocolViolation for malformed properties.
        """
        cdef Py_ssize_t at = start, n = len(messages)
        cdef Message message
        while at < n and not self.wants_none():
            message = messages[at]
            if message.tracker is None or message.incarnation == message.tracker.incarnation:
                if not self.forward_one(message):
                    return at
            at += 1
        return n

    cdef bint forward_one(self, Message message) except -1:
        cdef const u8* p = <const u8*>PyBytes_AS_STRING(message.raw_properties)
        cdef u64 n = PyBytes_GET_SIZE(message.raw_properties), n_body = len(message)
        cdef bytes names
        cdef parcel_t* parcel
        cdef int what = self.rewritten(p, n, message.redelivered)
        if what == REWRITE_STOPPED:
            self.count_one(message.delivery_tag, n_body, p, n)
            self.stopped += 1
            message.settle(BASIC_NACK if self.gives_back else BASIC_ACK, self.gives_back)
            return True
        if not self.ring.room_for(n_body):
            return False
        names = self.ring.target_of(message.exchange, message.routing_key)
        parcel = self.parcel(<const u8*>PyBytes_AS_STRING(names), len(names), what, p, n, n_body)
        memcpy(parcel_body(parcel), PyBytes_AS_STRING(message.body), n_body)
        if message.tracker is not None:
            Py_INCREF(message.tracker)
            parcel.tracker = <PyObject*>message.tracker
            parcel.tag, parcel.incarnation = message.delivery_tag, message.incarnation
        self.count_one(message.delivery_tag, n_body, p, n)
        return self.put_in(parcel, client_now())

    cdef int rewritten(self, const u8* p, u64 n, bint redelivered) except -1:
        """What becomes of properties."""
        if self.rewriter is None:
            return REWRITE_SAME
        return self.rewriter.change(p, n, redelivered)

    cdef parcel_t* parcel(
        self, const u8* names, u64 n_names, int what, const u8* p, u64 n, u64 n_body
    ) except NULL:
        """One with a target and properties. Args: names: exchange and routing key that the message
        came with, as two short strings."""
        cdef u64 n_exchange = 1 + <u64>names[0], n_key = n_names - n_exchange
        cdef const u8* exchange = names
        cdef const u8* key = names + n_exchange
        cdef parcel_t* parcel
        if self.exchange is not None:
            exchange = <const u8*>PyBytes_AS_STRING(self.exchange)
            n_exchange = PyBytes_GET_SIZE(self.exchange)
        if self.key is not None:
            key, n_key = <const u8*>PyBytes_AS_STRING(self.key), PyBytes_GET_SIZE(self.key)
        if what == REWRITE_MADE:
            p, n = self.rewriter.out.p, self.rewriter.out.n
        parcel = parcel_make(n_exchange + n_key, p, n, n_body)
        memcpy(parcel_target(parcel), exchange, n_exchange)
        memcpy(parcel_target(parcel) + n_exchange, key, n_key)
        return parcel

    cdef int put_in(self, parcel_t* parcel, i64 now) except -1:
        """The parcel is the ring's; True."""
        cdef Ring ring = self.ring
        with cython.critical_section(ring):
            ring.put_parcel(parcel, self.flags, now)
            ring.rouse()
        return True

    cdef int count_one(self, u64 tag, u64 n_body, const u8* props, u64 n_props) except -1:
        self.taken += 1
        self.count += 1
        self.n_bytes += n_body
        if not self.may_open():
            self.is_open = False
        if self.is_stream:
            self.note_offset(tag, offset_in(props, n_props))
        return 0

    # ---- streams

    cdef int note_offset(self, u64 tag, i64 offset) except -1:
        """Keep it as long as the tracker may be asked how far all is settled."""
        cdef u64 size = self.offset_mask + 1, at
        cdef u64* grown
        if self.tracker is not None and size <= self.tracker.mask + 1:
            size = 2 * (self.tracker.mask + 1)
            grown = <u64*>calloc(size, sizeof(u64))
            if grown == NULL:
                raise MemoryError
            for at in range(tag - min(tag, self.offset_mask + 1), tag):
                grown[at & (size - 1)] = self.offsets[at & self.offset_mask]
            free(self.offsets)
            self.offsets, self.offset_mask = grown, size - 1
        self.offsets[tag & self.offset_mask] = <u64>(offset + 1)
        self.last_tag = tag
        return 0

    @property
    def next_offset(self):
        """Where a stream goes on: behind the last of those that are settled in a row; None = not
        known, nothing of this channel is settled."""
        cdef u64 tag = 0 if self.tracker is None else self.tracker.settled_to
        tag = min(tag, self.last_tag)
        if tag == 0 or not self.is_stream or not self.offsets[tag & self.offset_mask]:
            return None
        return self.offsets[tag & self.offset_mask]


cdef bytes short_of(str name):
    """A short string. Raises: TooLarge."""
    cdef buf_t b
    memset(&b, 0, sizeof(b))
    try:
        put_short(&b, name)
        return buf_bytes(&b)
    finally:
        buf_free(&b)
