# Port: a channel as the input sees it: what is being put together, and where it goes.
#
# A delivery becomes a message, which gathers here, or a parcel, which goes on by a passage. Names
# that deliveries share are one object.

cdef enum:
    CONTENT_NONE = 0
    CONTENT_HEADER = 1          # a method came, its header is to come
    CONTENT_BODY = 2

cdef enum:                      # class id << 16 | method id
    M_RETURN = 0x003C0032
    M_DELIVER = 0x003C003C
    M_GET_OK = 0x003C0047
    M_ACK = 0x003C0050
    M_NACK = 0x003C0078


@cython.final
cdef class Port:
    """A channel as the input sees it.

    Args: ring: whose publishes it confirms; tracker: whose deliveries it brings. Messages gather in
    `messages` until `take`.
    """

    cdef readonly int number
    cdef readonly Ring ring
    cdef readonly Tracker tracker
    cdef public object owner
    cdef public object chan     # the channel, unless it was closed here
    cdef public bint no_ack     # of all deliveries
    cdef set settled_tags       # of consumers whose deliveries are settled; None = no such
    cdef list messages          # None = none came since `take`
    cdef readonly u64 backlog   # bytes of bodies in `messages`
    cdef bint is_touched
    cdef int state
    cdef u32 method
    cdef Message message        # being put together
    cdef public Passage passage  # by which deliveries go on
    cdef bint is_passing        # what comes goes on as a parcel, or no further without one
    cdef parcel_t* parcel       # being put together
    cdef buf_t names            # exchange and routing key of what goes on
    cdef u64 delivery_tag       # the same of it
    cdef bint redelivered
    cdef u64 size
    cdef u64 filled
    cdef bytes exchange_raw
    cdef str exchange
    cdef bytes key_raw
    cdef str key
    cdef bytes tag_raw
    cdef str tag
    cdef bytes props

    def __cinit__(self, int number, Ring ring=None, Tracker tracker=None, owner=None):
        self.number = number
        self.ring = ring
        self.tracker = tracker
        self.owner = owner
        self.exchange_raw = self.key_raw = self.tag_raw = b""
        self.exchange = self.key = self.tag = ""
        self.props = b"\x00\x00"

    def __dealloc__(self):
        parcel_free(self.parcel)
        buf_free(&self.names)

    @property
    def no_ack_tags(self):
        """Tags of consumers whose deliveries are settled as they come."""
        if self.settled_tags is None:
            self.settled_tags = set()
        return self.settled_tags

    def take(self):
        """Return the messages that came, and forget them."""
        cdef list messages = self.messages
        self.messages = None
        self.backlog = 0
        return [] if messages is None else messages

    cdef int begin_passing(self, const u8* p, u64 n) except -1:
        """Read the arguments of basic.deliver."""
        cdef u64 at = self.tag_of(p, n), start
        if n < at + 9:
            raise ProtocolViolation("a method is cut short")
        self.delivery_tag = be64(p + at)
        self.redelivered = p[at + 8] & 1
        start = at + 9
        at = self.short(p, n, self.short(p, n, start))
        self.names.n = 0
        put(&self.names, p + start, at - start)
        self.is_passing = True
        return 0

    cdef int pass_header(self, const u8* props, u64 n) except -1:
        """Begin a parcel; one that cannot go on becomes a message, and so do those behind it."""
        cdef Passage passage = self.passage
        cdef int what = passage.rewritten(props, n, self.redelivered)
        if what != REWRITE_STOPPED and not passage.ring.room_for(self.size):
            passage.is_open = self.is_passing = False
            self.message = self.message_passing()
            return 0
        passage.count_one(self.delivery_tag, self.size, props, n)
        if what == REWRITE_STOPPED:
            passage.stopped += 1
            return 0
        self.parcel = passage.parcel(self.names.p, self.names.n, what, props, n, self.size)
        return 0

    cdef Message message_passing(self):
        """The message that was to go on."""
        cdef Message message = Message.__new__(Message)
        message.consumer_tag = self.tag
        message.delivery_tag, message.redelivered = self.delivery_tag, self.redelivered
        self.names_of(message, self.names.p, self.names.n, 0)
        return message

    cdef int passed(self, i64 now) except -1:
        """All of it is there."""
        cdef Passage passage = self.passage
        cdef parcel_t* parcel = self.parcel
        cdef Tracker tracker = self.tracker
        cdef bint is_settled = self.no_ack
        self.is_passing = False
        with cython.critical_section(tracker):
            tracker.delivery(self.delivery_tag, self.redelivered)
            if is_settled:
                tracker.tags[self.delivery_tag & tracker.mask] = TAG_GONE
                tracker.count -= 1
                tracker.skip_settled()
            elif parcel == NULL:
                tracker.settle(
                    tracker.incarnation, self.delivery_tag,
                    BASIC_NACK if passage.gives_back else BASIC_ACK, passage.gives_back,
                )
        if parcel != NULL:
            if not is_settled:
                Py_INCREF(tracker)
                parcel.tracker = <PyObject*>tracker
                parcel.tag, parcel.incarnation = self.delivery_tag, tracker.incarnation
            self.parcel = NULL
            passage.put_in(parcel, now)
        elif passage.gives_back:
            passage.is_open = False  # its owner decides how soon it may come again
        return 0

    cdef u64 tag_of(self, const u8* p, u64 n) except 0:
        """Note the consumer tag of a basic.deliver; return where it ends."""
        cdef u64 at = self.short(p, n, 4)
        if not same_name(self.tag_raw, p, at):
            self.tag_raw = PyBytes_FromStringAndSize(<const char*>p + 5, p[4])
            self.tag = text_of(p + 5, p[4])
        return at

    cdef Message begin(self, u32 method, const u8* p, u64 n):
        """Read the arguments of a method that brings content."""
        cdef Message message = Message.__new__(Message)
        cdef u64 at = 4
        if method == M_DELIVER:
            at = self.tag_of(p, n)
            message.consumer_tag = self.tag
        if method == M_RETURN:
            if n < 6:
                raise ProtocolViolation("a method is cut short")
            message.reply_code = be16(p + 4)
            at = self.short(p, n, 6)
            message.reply_text = text_of(p + 7, p[6])
        else:
            if n < at + 9:
                raise ProtocolViolation("a method is cut short")
            message.delivery_tag = be64(p + at)
            message.redelivered = p[at + 8] & 1
            at += 9
        at = self.names_of(message, p, n, at)
        if method == M_GET_OK:
            if n < at + 4:
                raise ProtocolViolation("a method is cut short")
            message.message_count = be32(p + at)
        return message

    cdef u64 names_of(self, Message message, const u8* p, u64 n, u64 at) except 0:
        """Note exchange and routing key; return where they end."""
        cdef u64 start = at
        at = self.short(p, n, at)
        if not same_name(self.exchange_raw, p, at):
            self.exchange_raw = PyBytes_FromStringAndSize(<const char*>p + start + 1, p[start])
            self.exchange = text_of(p + start + 1, p[start])
        message.exchange = self.exchange
        start = at
        at = self.short(p, n, at)
        if not same_name(self.key_raw, p, at):
            self.key_raw = PyBytes_FromStringAndSize(<const char*>p + start + 1, p[start])
            self.key = text_of(p + start + 1, p[start])
        message.routing_key = self.key
        return at

    cdef u64 short(self, const u8* p, u64 n, u64 at) except 0:
        """Where the short string at `at` ends."""
        if at >= n or at + 1 + p[at] > n:
            raise ProtocolViolation("a method is cut short")
        return at + 1 + p[at]


cdef inline bint same_name(bytes known, const u8* p, u64 end) noexcept:
    """Whether the bytes before `end` are those of a name, and the octet before them its length."""
    cdef u64 n = PyBytes_GET_SIZE(known)
    return (
        end > n and p[end - n - 1] == n
        and memcmp(PyBytes_AS_STRING(known), p + end - n, n) == 0
    )
