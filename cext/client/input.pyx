# Input: bytes of the peer, in place, to deliveries, confirms and events.
#
# The reader writes into the free part of one buffer (`Input` is a buffer object for that) and tells
# how much (`advance`). A connection that does nothing has no buffer. Whole frames are dealt with
# where they lie: confirms go to the ring of their channel, deliveries become messages on their
# port, or parcels where a passage is open, any other method becomes an event. What breaks the
# protocol raises ProtocolViolation, and nothing more is read then.
#
# Bounds: a frame is at most frame_max, a body at most max_body; unsettled deliveries are at most
# what the tracker of the channel allows.
#
# Threads: it belongs to the thread of the loop. Others may look at its figures.
cdef enum:
    BUFFER_LEAST_SIZE = 2048    # one as small as this is given back at once
    QUIET_BYTES = 1024          # heartbeats and the like, between two calls of `rest`
    BUFFER_SIZE = 262144
    EVENTS_MOST = 128           # of one turn: each takes Python some microseconds


@cython.final
cdef class Input:
    """Cuts what the peer sends into frames and deals with them."""

    cdef u8* p
    cdef u64 n
    cdef u64 cap
    cdef u64 cap_most
    cdef u64 wanted             # how large it should be
    cdef u64 rested_at          # `bytes_in` of the last call of `rest`
    cdef u64 frame_max
    cdef readonly u64 max_body
    cdef Port only              # the port, as long as there is one
    cdef dict ports             # those that there are; None = one or none
    cdef Port last
    cdef list touched
    cdef list events
    cdef readonly bint has_more  # the turn ended before the frames that are there did
    cdef i64 now                # of this turn, 0 = nobody has asked
    cdef readonly u64 bytes_in
    cdef readonly u64 frames_in
    cdef int exports
    cdef bint is_spent          # what was written into the buffer has been dealt with

    def __cinit__(self, u64 frame_max=131072, u64 max_body=128 << 20):
        self.cap_most = max(frame_max + FRAME_OVERHEAD, <u64>BUFFER_SIZE)
        self.frame_max, self.max_body = frame_max, max_body

    def __dealloc__(self):
        free(self.p)

    cdef int make_room(self) except -1:
        """Grow when a read has filled it, or a frame does not fit."""
        cdef u8* grown
        cdef u64 cap = min(max(self.wanted, 2 * self.cap if self.n == self.cap else 0,
                               <u64>BUFFER_LEAST_SIZE),
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
        self.is_spent = False

    def __releasebuffer__(self, Py_buffer* view):
        self.exports -= 1
        self.give_back(BUFFER_LEAST_SIZE)

    cdef void give_back(self, u64 most) noexcept:
        """Have no buffer, if the one that there is has so many bytes at most, and holds nothing."""
        if self.is_spent and not self.exports and not self.n and self.cap <= most:
            free(self.p)
            self.p, self.cap = NULL, 0

    def rest(self):
        """Give back a buffer that nothing is in, unless bytes come all the time; whether they do
        not."""
        cdef bint is_quiet = self.bytes_in - self.rested_at <= QUIET_BYTES
        self.rested_at = self.bytes_in
        if is_quiet and not self.n:
            self.wanted = 0
            self.give_back(self.cap)
        return is_quiet

    def tune(self, u64 frame_max):
        """No frame is larger from now on; never more than at the beginning."""
        self.frame_max = min(frame_max, self.frame_max)

    def open(self, Port port):
        """Hear a channel."""
        if self.ports is None and (self.only is None or self.only.number == port.number):
            self.only = port
            return
        if self.ports is None:
            self.ports = {self.only.number: self.only}
            self.only = None
        self.ports[port.number] = port

    cpdef Port port(self, int number):
        """The channel of that number; None: it is not heard."""
        if self.ports is not None:
            return self.ports.get(number)
        return self.only if self.only is not None and self.only.number == number else None

    def all_ports(self):
        """The channels that are heard."""
        if self.ports is not None:
            return list(self.ports.values())
        return [] if self.only is None else [self.only]

    def forget(self, int number):
        """Hear a channel no more."""
        self.last = None
        if self.ports is not None:
            self.ports.pop(number, None)
            if len(self.ports) == 1:
                self.only = next(iter(self.ports.values()))
                self.ports = None
        elif self.only is not None and self.only.number == number:
            self.only = None

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
        if n and self.n == self.cap:
            self.wanted = 4 * self.cap
        self.now = 0
        with cython.critical_section(self):
            self.bytes_in += n
            self.walk()
        self.is_spent = True
        self.give_back(BUFFER_LEAST_SIZE)
        events, self.events = self.events, None
        return [] if events is None else events

    def take_touched(self):
        """Ports with new messages or confirms since the last call."""
        cdef list touched = self.touched
        if touched is None:
            return []
        self.touched = None
        for port in touched:
            (<Port>port).is_touched = False
        return touched

    cdef int tell(self, int channel, u32 method, bytes payload, Message message) except -1:
        """There is an event."""
        if self.events is None:
            self.events = []
        self.events.append((channel, method, payload, message))
        return 0

    cdef int touch(self, Port port) except -1:
        if not port.is_touched:
            port.is_touched = True
            if self.touched is None:
                self.touched = []
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
                if self.events is not None and len(self.events) >= EVENTS_MOST:
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
            port = self.port(channel)
            if port is None:
                if channel == 0 and kind == FRAME_METHOD and size >= 4:
                    self.tell(0, be32(p), p[:size], None)
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
        self.tell(port.number, method, p[:size], None)
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
            self.tell(port.number, port.method, b"", message)
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
        elif port.ring is not None:
            raise ProtocolViolation("a message for who only publishes")  # nobody takes it
        if port.method == M_GET_OK:
            self.tell(port.number, port.method, b"", message)
            return 0
        if port.messages is None:
            port.messages = []
        port.messages.append(message)
        port.backlog += PyBytes_GET_SIZE(message.body)
        return self.touch(port)
