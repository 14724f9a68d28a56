# Input: bytes of the peer, in place, to deliveries, confirms and events.
#
# The reader writes into the free part of one buffer (`Input` is a buffer object for that) and tells
# how much (`advance`). Whole frames are dealt with where they lie: confirms go to the ring of their
# channel, deliveries become messages on their port, or parcels where a passage is open, any other
# method becomes an event. What breaks the protocol raises ProtocolViolation, and nothing more is
# read then.
#
# Bounds: a frame is at most frame_max, a body at most max_body; unsettled deliveries are at most
# what the tracker of the channel allows.
from cpython.buffer cimport PyBuffer_FillInfo

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

cdef enum:
    BUFFER_LEAST_SIZE = 2048    # of a connection that does nothing
    BUFFER_SIZE = 262144
    EVENTS_MOST = 128           # of one turn: each takes Python some microseconds


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
    cdef public bint no_ack     # of all deliveries
    cdef set settled_tags       # of consumers whose deliveries are settled; None = no such
    cdef list messages
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
        self.messages = []
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
        self.messages = []
        self.backlog = 0
        return messages

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
        if what != REWRITE_STOPPED and not passage.ring.has_room(self.size):
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


@cython.final
cdef class Input:
    """Cuts what the peer sends into frames and deals with them."""

    cdef u8* p
    cdef u64 n
    cdef u64 cap
    cdef u64 cap_most
    cdef u64 wanted             # how large it should be
    cdef u64 frame_max
    cdef readonly u64 max_body
    cdef dict ports
    cdef Port last
    cdef list touched
    cdef list events
    cdef readonly bint has_more  # the turn ended before the frames that are there did
    cdef i64 now                # of this turn, 0 = nobody has asked
    cdef readonly u64 bytes_in
    cdef readonly u64 frames_in
    cdef int exports

    def __cinit__(self, u64 frame_max=131072, u64 max_body=128 << 20):
        self.cap_most = max(frame_max + FRAME_OVERHEAD, <u64>BUFFER_SIZE)
        self.cap = BUFFER_LEAST_SIZE
        self.p = <u8*>malloc(self.cap)
        if self.p == NULL:
            raise MemoryError
        self.frame_max, self.max_body = frame_max, max_body
        self.ports = {}
        self.touched = []
        self.events = []

    def __dealloc__(self):
        free(self.p)

    cdef int make_room(self) except -1:
        """Grow when a read has filled it, or a frame does not fit."""
        cdef u8* grown
        cdef u64 cap = min(max(self.wanted, 2 * self.cap if self.n == self.cap else 0),
                           2 * self.cap_most if self.has_more else self.cap_most)
        if cap <= self.cap or self.exports:
            return 0
        grown = <u8*>realloc(self.p, cap)
        if grown == NULL:
            raise MemoryError
        self.p, self.cap = grown, cap
        return 0

    def __getbuffer__(self, Py_buffer* view, int flags):
        self.make_room()
        PyBuffer_FillInfo(view, self, self.p + self.n, self.cap - self.n, False, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1

    def tune(self, u64 frame_max):
        """No frame is larger from now on; never more than at the beginning."""
        self.frame_max = min(frame_max, self.frame_max)

    def open(self, Port port):
        """Hear a channel."""
        self.ports[port.number] = port

    def forget(self, int number):
        """Hear a channel no more."""
        self.ports.pop(number, None)
        self.last = None

    def feed(self, data):
        """As if the peer had sent `data`; return the events. Raises: ProtocolViolation."""
        cdef const u8[::1] view = data
        cdef u64 at = 0, left = view.shape[0], piece
        cdef list events = []
        while left:
            self.make_room()
            piece = min(left, self.cap - self.n)
            memcpy(self.p + self.n, &view[at], piece)
            events += self.advance(piece)
            while self.has_more:
                events += self.advance(0)
            at += piece
            left -= piece
        return events

    def advance(self, u64 n):
        """So many bytes were written into the buffer; return the events they make up.

        An event is (channel, method, payload, message): the message is that of a get-ok or of a
        return, else None. After many of them it ends early (`has_more`): it is to be called again,
        with 0. Raises: ProtocolViolation.
        """
        cdef list events
        if n > self.cap - self.n:
            raise ValueError("more bytes than there was room for")
        self.n += n
        self.bytes_in += n
        if self.n == self.cap:
            self.wanted = 4 * self.cap
        self.now = 0
        self.walk()
        events = self.events
        if events:
            self.events = []
        return events

    def take_touched(self):
        """Ports with new messages or confirms since the last call."""
        cdef list touched = self.touched
        if touched:
            self.touched = []
            for port in touched:
                (<Port>port).is_touched = False
        return touched

    cdef int touch(self, Port port) except -1:
        if not port.is_touched:
            port.is_touched = True
            self.touched.append(port)
        return 0

    cdef int walk(self) except -1:
        cdef const u8* p
        cdef u64 at = 0, size
        self.has_more = False
        try:
            while self.n - at >= 7:
                p = self.p + at
                size = be32(p + 3)
                if size + FRAME_OVERHEAD > self.frame_max:
                    raise ProtocolViolation(f"a frame of {size} bytes, {self.frame_max} are agreed")
                if self.n - at < size + FRAME_OVERHEAD:
                    self.wanted = max(self.wanted, size + FRAME_OVERHEAD)
                    break
                if p[7 + size] != FRAME_END:
                    raise ProtocolViolation(f"a frame ends with {p[7 + size]}")
                if len(self.events) >= EVENTS_MOST:
                    self.has_more = True
                    break
                at += size + FRAME_OVERHEAD
                self.frames_in += 1
                self.on_frame(p[0], be16(p + 1), p + 7, size)
        finally:
            if at:
                memmove(self.p, self.p + at, self.n - at)
                self.n -= at
        return 0

    cdef int on_frame(self, u8 kind, int channel, const u8* p, u64 size) except -1:
        cdef Port port = self.last
        if kind == FRAME_HEARTBEAT:
            if channel:
                raise ProtocolViolation("a heartbeat on a channel")
            return 0
        if port is None or port.number != channel:
            port = self.ports.get(channel)
            if port is None:
                if channel == 0 and kind == FRAME_METHOD and size >= 4:
                    self.events.append((0, be32(p), p[:size], None))
                    return 0
                raise ProtocolViolation(f"a frame of kind {kind} for channel {channel}, not open")
            self.last = port
        if kind == FRAME_METHOD:
            return self.on_method(port, p, size)
        if kind == FRAME_HEADER:
            return self.on_header(port, p, size)
        if kind == FRAME_BODY:
            return self.on_body(port, p, size)
        raise ProtocolViolation(f"a frame of kind {kind}")

    cdef int on_method(self, Port port, const u8* p, u64 size) except -1:
        cdef u32 method
        if size < 4:
            raise ProtocolViolation("a method is cut short")
        if port.state != CONTENT_NONE:
            raise ProtocolViolation("a method in the middle of a message")
        method = be32(p)
        if method == M_DELIVER or method == M_GET_OK or method == M_RETURN:
            if method == M_DELIVER and port.passage is not None and port.passage.is_open:
                port.begin_passing(p, size)
            else:
                port.message = port.begin(method, p, size)
            port.method = method
            port.state = CONTENT_HEADER
            return 0
        if (method == M_ACK or method == M_NACK) and port.ring is not None:
            if size < 13:
                raise ProtocolViolation("a confirm is cut short")
            port.ring.confirmed(be64(p + 4), p[12] & 1, method == M_ACK)
            return self.touch(port)
        self.events.append((port.number, method, p[:size], None))
        return 0

    cdef int on_header(self, Port port, const u8* p, u64 size) except -1:
        cdef u64 n_props
        if port.state != CONTENT_HEADER or size < 14:
            raise ProtocolViolation("a content header where none belongs")
        port.size = be64(p + 4)
        if port.size > self.max_body:
            raise ProtocolViolation(f"a message of {port.size} bytes, {self.max_body} are allowed")
        n_props = size - 12
        port.filled = 0
        port.state = CONTENT_BODY
        if port.is_passing:
            port.pass_header(p + 12, n_props)
            if port.is_passing:
                return self.complete(port) if port.size == 0 else 0
        if not (
            <u64>PyBytes_GET_SIZE(port.props) == n_props
            and memcmp(PyBytes_AS_STRING(port.props), p + 12, n_props) == 0
        ):
            port.props = PyBytes_FromStringAndSize(<const char*>p + 12, <Py_ssize_t>n_props)
        port.message.raw_properties = port.props
        if port.size == 0:
            port.message.body = b""
            return self.complete(port)
        return 0

    cdef int on_body(self, Port port, const u8* p, u64 size) except -1:
        cdef Message message = port.message
        if port.state != CONTENT_BODY or size > port.size - port.filled:
            raise ProtocolViolation("a body where none belongs, or longer than its header says")
        if port.is_passing:
            if port.parcel != NULL:
                memcpy(parcel_body(port.parcel) + port.filled, p, size)
            port.filled += size
            return self.complete(port) if port.filled == port.size else 0
        if size == port.size:
            message.body = PyBytes_FromStringAndSize(<const char*>p, <Py_ssize_t>size)
            return self.complete(port)
        if port.filled == 0:
            message.body = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>port.size)
        # Nobody else has seen this object yet.
        memcpy(PyBytes_AS_STRING(message.body) + port.filled, p, size)
        port.filled += size
        if port.filled == port.size:
            return self.complete(port)
        return 0

    cdef int complete(self, Port port) except -1:
        """A message is there."""
        cdef Message message = port.message
        cdef bint is_settled
        port.message = None
        port.state = CONTENT_NONE
        if port.is_passing:
            if self.now == 0:
                self.now = client_now()
            port.passed(self.now)
            return self.touch(port)
        if port.method == M_RETURN:
            if port.ring is not None:
                port.ring.returned(message)
                self.touch(port)
            self.events.append((port.number, port.method, b"", message))
            return 0
        if port.tracker is not None:
            is_settled = port.no_ack or (
                port.settled_tags is not None and message.consumer_tag in port.settled_tags
            )
            with cython.critical_section(port.tracker):
                port.tracker.delivery(message.delivery_tag, message.redelivered)
                if is_settled:
                    port.tracker.tags[message.delivery_tag & port.tracker.mask] = TAG_GONE
                    port.tracker.count -= 1
                    port.tracker.skip_settled()
            message.incarnation = port.tracker.incarnation
            if not is_settled:
                message.tracker = port.tracker
        if port.method == M_GET_OK:
            self.events.append((port.number, port.method, b"", message))
            return 0
        port.messages.append(message)
        port.backlog += PyBytes_GET_SIZE(message.body)
        return self.touch(port)
