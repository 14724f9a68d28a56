# Ring: what a producer was given, until the broker has it. This file is longer than 500 lines
# because the life of a slot, from accepted to ended, is one story.
#
# A slot per message, numbered from 0 for ever (`seq`), in a ring that grows up to what the producer
# may hold. A slot holds references to bytes: the body, and where they differ from those of the ring
# the properties and the target (exchange and routing key as two short strings); of a message that
# comes from a consumer (see Passage) it holds a parcel. Frames are made when the connection takes
# bytes (`pump`), so that a message can be sent again on another channel or with smaller frames.
# A ring that holds nothing has one slot, in itself; a larger one is made when it is needed, and
# given back by `rest`.
#
#   head <= sent <= tail      BUFFERED from `sent` on; SENT, RETRY or FREE before; FREE = ended
#
# With confirms, the tag of a message is its place in `tags`, which holds the seq of each one in
# flight. A lost connection makes all that is unconfirmed BUFFERED again, in its order (`reset`).
# Without confirms a message ends when its frames are made.
#
# Threads: programs publish from any while that of the loop sends and hears. All of it is guarded by
# the lock of the ring, a critical section: nothing where there is a GIL. Like the GIL it is let go
# of where Python code may run, and where another lock is waited for. No such thing happens between
# reading and changing a slot. What lets go of a message may run anything: `finish` does that when
# the slot is free, and nobody looks at a slot he had before it.

cdef extern from * nogil:
    """
    #include <time.h>
    static inline int64_t client_now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    }
    static inline void *client_find(const void *p, size_t n, const void *mark, size_t m) {
        return memmem(p, n, mark, m);
    }
    static inline int client_log2(uint64_t v) { return v ? 63 - __builtin_clzll(v) : 0; }
    """
    i64 client_now()
    void* client_find(const void* p, size_t n, const void* mark, size_t m)
    int client_log2(u64 v)

cdef enum:
    SLOT_FREE = 0
    SLOT_BUFFERED = 1
    SLOT_SENT = 2
    SLOT_RETRY = 3              # refused by the broker, to be sent again

cdef enum:
    FLAG_MANDATORY = 1
    FLAG_HELD = 2               # the slot owns a reference to its receipt
    FLAG_RETURNED = 4
    FLAG_AGAIN = 8              # it was sent before, on a connection that is gone
    FLAG_STAMPED = 16           # its number is in its properties already
    FLAG_FORWARDED = 32         # its body is a parcel
    FLAG_FILED = 64             # it came out of a file, which has it until it has ended

cdef enum:
    SLOTS_LEAST = 64
    SLOT_BYTES = 48
    LATENCY_BUCKETS = 32        # of powers of two microseconds
    MARK_BYTES = 16
    RETRY_FIRST_MS = 100
    RETRY_MOST_MS = 30000

# Where the number of a message goes in its properties: 16 digits take its place.
SEQUENCE_MARK = "\x01lavinmq:number\x02"

cdef struct slot_t:
    PyObject* body              # bytes or a parcel, NULL in a free slot
    PyObject* props             # bytes, NULL = the ring's
    PyObject* target            # bytes, NULL = the ring's
    PyObject* receipt
    i64 at_ns                   # accepted
    u8 state
    u8 flags
    u16 retries
    u32 sent_ms                 # since the ring was made


cdef class Ring:
    """The messages of one producer; `wake`, `wait_for` and `future` are a subclass's."""

    cdef slot_t* slots
    cdef slot_t one_slot        # of a ring that does nothing
    cdef u64 mask
    cdef u64 most_slots
    cdef u64 head
    cdef u64 sent
    cdef u64 tail
    cdef u64* tags
    cdef u64 one_tag
    cdef u64 tag_mask
    cdef u64 most_tags          # from the lowest one in flight to the newest
    cdef u64 low_tag            # the lowest tag in flight, or the next one
    cdef u64 next_tag
    cdef bytes props
    cdef bytes target
    cdef dict defaults
    cdef str exchange_name
    cdef str key_name
    cdef u8 flags
    cdef bint is_stamped
    cdef public bint confirms
    cdef bint retries_nacks
    cdef bint is_awake          # the wake-up was asked for, or what holds the ring up asks itself
    cdef u64 n_retry
    cdef i64 retry_at
    cdef i64 ttl_ns
    cdef i64 born_ns
    cdef u64[N_OUTCOMES] wants
    cdef u64[N_OUTCOMES] counts
    cdef u64* latencies         # LATENCY_BUCKETS of them; NULL = nothing was confirmed
    cdef dict drops             # how many were dropped, by reason; None = none
    cdef list ended             # receipts with callbacks to run; None = none
    cdef list outcomes          # what callbacks are to be told; None = nothing
    cdef set loose              # receipts somebody waits for, of messages a file has; None = none
    cdef readonly u64 count     # messages held
    cdef readonly u64 n_bytes   # of their bodies, properties and targets
    cdef readonly u64 capacity
    cdef readonly u64 capacity_bytes
    cdef readonly u64 in_flight
    cdef readonly u64 published  # accepted so far
    cdef u64 numbered           # how many numbers were written into properties
    cdef readonly u64 resent
    cdef readonly u64 nacks
    cdef readonly u64 unrouted  # forwarded ones that came back, to be sent again
    cdef u64 n_returned         # what came back at all
    cdef readonly double latency_sum
    cdef public u64 window      # how many may be in flight
    cdef readonly int channel   # 0 = none
    cdef u64 chunk              # bytes of a body in one frame
    cdef public bint accepting
    cdef public bint is_traced  # publish goes through `open_span`

    def __cinit__(self, *_args, **_kwargs):
        self.slots = &self.one_slot
        self.tags = &self.one_tag
        self.low_tag = self.next_tag = 1
        self.is_awake = True
        self.born_ns = client_now()

    def __dealloc__(self):
        cdef u64 seq
        for seq in range(self.head, self.tail):
            self.clear(self.slots + (seq & self.mask))
        self.free_slots()
        self.free_tags()
        free(self.latencies)

    cdef void free_slots(self) noexcept:
        if self.slots != &self.one_slot:
            free(self.slots)

    cdef void free_tags(self) noexcept:
        if self.tags != &self.one_tag:
            free(self.tags)

    def rest(self):
        """Nothing happens for now: give back the memory that nothing is in."""
        with cython.critical_section(self):
            if self.head == self.tail:
                self.free_slots()
                self.slots, self.mask = &self.one_slot, 0
                self.one_slot.state = SLOT_FREE
            if self.low_tag == self.next_tag:
                self.free_tags()
                self.tags, self.tag_mask, self.one_tag = &self.one_tag, 0, 0

    def configure(
        self, *, str exchange="", str routing_key="", dict properties=None, bint mandatory=False,
        bint confirms=True, u64 capacity=10000, u64 capacity_bytes=64 << 20, u64 max_in_flight=1000,
        i64 ttl_ms=0, bint retry_nacks=True, bint stamped=False,
    ):
        """Say what the ring is for; once, before anything is published."""
        cdef u64 size = SLOTS_LEAST
        while size < 2 * capacity:
            size *= 2
        self.most_slots = size
        self.capacity, self.capacity_bytes = capacity, capacity_bytes
        self.window = max_in_flight
        self.most_tags = 2 * max_in_flight
        self.ttl_ns = ttl_ms * 1000000
        self.confirms, self.retries_nacks, self.is_stamped = confirms, retry_nacks, stamped
        self.flags = FLAG_MANDATORY if mandatory else 0
        self.defaults = {} if properties is None else properties
        self.props = encode_properties(self.defaults)
        self.exchange_name, self.key_name = exchange, routing_key
        self.target = self.target_of(exchange, routing_key)
        self.accepting = True

    # ---- what a subclass provides

    def wake(self):
        """There is something to send; called from the thread that published it."""

    def wait_for(self, receipt, timeout):
        """Wait until a receipt is done. Raises: TimeoutError."""
        raise TypeError("await the receipt")

    def future(self):
        """An awaitable, and the callback of a receipt that ends it."""
        raise TypeError("use receipt.result()")

    def full(self, body, prepared):
        """There is no room, or nothing is accepted: do what the policy says; return a receipt."""
        raise NotImplementedError

    def bytes_of(self, body, options):
        """The bytes of a body that is none; may set options."""
        if isinstance(body, (bytearray, memoryview)):
            return bytes(body)
        if isinstance(body, str):
            return utf8_of(body)
        raise ValueNotEncodable(f"{type(body).__name__} is no body of a message")

    def open_span(self, options):
        """Add what a trace wants to the headers."""

    # ---- publishing

    cdef bytes target_of(self, exchange, routing_key):
        cdef buf_t b
        memset(&b, 0, sizeof(b))
        try:
            put_short(&b, exchange)
            put_short(&b, routing_key)
            return buf_bytes(&b)
        finally:
            buf_free(&b)

    def prepare(self, dict options):
        """Turn the keywords of a publish into what `add` takes. Raises: ValueNotEncodable."""
        cdef u8 flags = self.flags
        props = target = None
        if not options:
            return None, None, flags
        options = dict(options)
        mandatory = options.pop("mandatory", None)
        if mandatory is not None:
            flags = (flags & ~FLAG_MANDATORY) | (FLAG_MANDATORY if mandatory else 0)
        exchange = options.pop("exchange", None)
        key = options.pop("routing_key", None)
        if exchange is not None or key is not None:
            target = self.target_of(
                self.exchange_name if exchange is None else exchange,
                self.key_name if key is None else key,
            )
        if options:
            headers = options.get("headers")
            if headers and self.defaults.get("headers"):
                options["headers"] = {**self.defaults["headers"], **headers}
            props = encode_properties({**self.defaults, **options})
        return props, target, flags

    cdef bytes stamp(self, bytes props):
        """A copy of properties with the next number in place of each mark."""
        cdef Py_ssize_t n = PyBytes_GET_SIZE(props)
        cdef bytes mine = PyBytes_FromStringAndSize(PyBytes_AS_STRING(props), n)
        cdef bytes mark = SEQUENCE_MARK.encode()
        cdef char* p = PyBytes_AS_STRING(mine)
        cdef char* end = p + n
        cdef char* at
        cdef int i
        cdef u64 number
        self.numbered += 1
        while True:
            at = <char*>client_find(p, end - p, PyBytes_AS_STRING(mark), MARK_BYTES)
            if at == NULL:
                return mine
            number = self.numbered - 1
            for i in range(MARK_BYTES):
                at[MARK_BYTES - 1 - i] = b"0123456789abcdef"[number & 15]
                number >>= 4
            p = at + MARK_BYTES

    cdef inline bint has_room(self, u64 size) noexcept:
        return self.accepting and self.fits(size)

    cdef inline bint fits(self, u64 size) noexcept:
        return (
            self.count < self.capacity
            and (self.n_bytes + size <= self.capacity_bytes or self.count == 0)
            and self.tail - self.head < self.most_slots
        )

    cdef bint room_for(self, u64 size) except -1:
        """Whether a message of so many bytes would be taken now."""
        with cython.critical_section(self):
            return self.has_room(size)

    cdef int put_message(
        self, bytes body, bytes props, bytes target, u8 flags, Receipt receipt, i64 now
    ) except -1:
        """Take a message; there is room. No Python code runs in here."""
        cdef slot_t* s
        if self.tail - self.head > self.mask:
            self.grow()
        if self.is_stamped and flags & FLAG_STAMPED == 0:
            props = self.stamp(self.props if props is None else props)
        s = self.slots + (self.tail & self.mask)
        Py_INCREF(body)
        s.body = <PyObject*>body
        self.n_bytes += PyBytes_GET_SIZE(body)
        s.props = s.target = NULL
        if props is not None:
            Py_INCREF(props)
            s.props = <PyObject*>props
            self.n_bytes += PyBytes_GET_SIZE(props)
        if target is not None:
            Py_INCREF(target)
            s.target = <PyObject*>target
            self.n_bytes += PyBytes_GET_SIZE(target)
        s.receipt = NULL
        s.flags = flags & FLAG_MANDATORY
        if receipt is not None:
            s.receipt = <PyObject*>receipt
            if receipt.is_batch:
                receipt.left += 1
                receipt.n += 1
            if CLIENT_OWNS_RECEIPTS or receipt.is_batch or receipt.callbacks is not None:
                Py_INCREF(receipt)
                s.flags |= FLAG_HELD
        s.at_ns = now
        s.retries = 0
        s.state = SLOT_BUFFERED
        self.tail += 1
        self.count += 1
        self.published += 1
        return 0

    cdef Receipt receipt_of_next(self):
        cdef Receipt receipt = Receipt.__new__(Receipt)
        receipt.ring = self
        receipt.first = self.tail
        receipt.n = receipt.left = 1
        return receipt

    cdef inline int rouse(self) except -1:
        if not self.is_awake:
            self.is_awake = True
            self.wake()
        return 0

    def publish(self, body, **options):
        """Give a message to the producer; return its receipt. Raises: as the policy says."""
        cdef Receipt receipt
        if options or self.is_traced or not PyBytes_Check(body):
            return self.publish_with(body, options)
        with cython.critical_section(self):
            if self.has_room(PyBytes_GET_SIZE(body)):
                receipt = self.receipt_of_next()
                self.put_message(<bytes>body, None, None, self.flags, receipt, client_now())
                self.rouse()
                return receipt
        return self.full(body, (None, None, self.flags))

    cdef object publish_with(self, body, dict options):
        if not PyBytes_Check(body):
            body = self.bytes_of(body, options)
        if self.is_traced:
            self.open_span(options)
        prepared = self.prepare(options)
        receipt = self.add(body, prepared)
        return self.full(body, prepared) if receipt is None else receipt

    def add(self, bytes body, tuple prepared):
        """As `publish`, of what `prepare` returned; None when there is no room."""
        cdef Receipt receipt = None
        with cython.critical_section(self):
            if self.has_room(PyBytes_GET_SIZE(body)):
                receipt = self.receipt_of_next()
                self.put_message(body, prepared[0], prepared[1], prepared[2], receipt, client_now())
                self.rouse()
        return receipt

    def add_spilled(
        self, bytes body, bytes props, bytes target, u8 flags, object receipt, bint is_counted
    ):
        """Take one back from a file, with its number already in it; False when there is no room.

        Args: is_counted: it was accepted by this ring (`stamped`), and not by a program before.
        """
        with cython.critical_section(self):
            if not self.fits(PyBytes_GET_SIZE(body)):
                return False
            if receipt is not None:
                (<Receipt?>receipt).first = self.tail
            self.put_message(body, props, target, flags | FLAG_STAMPED, receipt, client_now())
            self.slots[(self.tail - 1) & self.mask].flags |= FLAG_FILED
            self.published -= is_counted
            if self.loose is not None:
                self.loose.discard(receipt)
            self.rouse()
        return True

    def stamped(self, tuple prepared):
        """What a file has to keep of a message: its properties with its number, and its target."""
        props, target, flags = prepared
        if props is None:
            props = self.props
        with cython.critical_section(self):
            if self.is_stamped:
                props = self.stamp(props)
        return props, (self.target if target is None else target), flags

    def refuse(self, bytes body, tuple prepared, reason):
        """Count a message as given and dropped at once; return its receipt."""
        cdef Receipt receipt = Receipt.__new__(Receipt)
        receipt.n = receipt.n_failed = 1
        receipt.outcome = OUTCOME_DROPPED
        receipt.why = reason
        receipt.first = LOOSE
        with cython.critical_section(self):
            self.published += 1
            self.counts[OUTCOME_DROPPED] += 1
            self.count_drop(reason)
            if self.wants[OUTCOME_DROPPED]:
                message = self.show(body, prepared[0], prepared[1])
                self.tell(("dropped", message, reason))
        return receipt

    def loose_receipt(self):
        """The receipt of a message that a file has taken, and that is not in the ring yet."""
        cdef Receipt receipt = Receipt.__new__(Receipt)
        receipt.ring = self
        receipt.first = LOOSE
        receipt.n = receipt.left = 1
        with cython.critical_section(self):
            self.published += 1
        return receipt

    def leave_in_file(self, Receipt receipt):
        """A message stays in its file, for another program to send."""
        with cython.critical_section(self):
            if receipt.first == LOOSE and receipt.left:
                self.counts[OUTCOME_SPILLED] += 1
                receipt.end(OUTCOME_SPILLED, None)
            if self.loose is not None:
                self.loose.discard(receipt)

    def batch(self):
        """A receipt for `add_many`; it ends no earlier than `seal` was called."""
        cdef Receipt receipt = Receipt.__new__(Receipt)
        receipt.ring = self
        receipt.first = self.last
        receipt.is_batch = True
        receipt.left = 1
        receipt.outcome = OUTCOME_CONFIRMED if self.confirms else OUTCOME_SENT
        return receipt

    @cython.boundscheck(True)   # the list is the program's, which may change it meanwhile
    def add_many(self, list bodies, Py_ssize_t start, tuple prepared, Receipt receipt):
        """Take as many as there is room for; return the index of the first that was not taken."""
        cdef Py_ssize_t at = start, n = len(bodies)
        cdef bytes props = prepared[0], target = prepared[1]
        cdef u8 flags = prepared[2]
        cdef i64 now = client_now()  # one for all: to ask takes longer than the rest
        bytes_of = self.bytes_of
        with cython.critical_section(self):
            while at < n:
                body = bodies[at]
                if not PyBytes_Check(body):
                    body = bytes_of(body, {})
                if not self.has_room(PyBytes_GET_SIZE(body)):
                    break
                self.put_message(<bytes>body, props, target, flags, receipt, now)
                at += 1
            if at > start:
                self.rouse()
        return at

    cdef int put_parcel(self, parcel_t* parcel, u8 flags, i64 now) except -1:
        """Take a message that goes on; there is room. No Python code runs in here."""
        cdef slot_t* s
        if self.tail - self.head > self.mask:
            self.grow()
        s = self.slots + (self.tail & self.mask)
        s.body = <PyObject*>parcel
        s.props = s.target = s.receipt = NULL
        self.n_bytes += parcel_size(parcel)
        s.flags = (flags & FLAG_MANDATORY) | FLAG_FORWARDED
        s.at_ns = now
        s.retries = 0
        s.state = SLOT_BUFFERED
        self.tail += 1
        self.count += 1
        self.published += 1
        return 0

    cdef int grow(self) except -1:
        cdef u64 size = max((self.mask + 1) * 2, <u64>SLOTS_LEAST), seq
        cdef slot_t* slots = <slot_t*>calloc(size, sizeof(slot_t))
        if slots == NULL:
            raise MemoryError
        for seq in range(self.head, self.tail):
            slots[seq & (size - 1)] = self.slots[seq & self.mask]
        self.free_slots()
        self.slots = slots
        self.mask = size - 1
        return 0

    cdef int grow_tags(self) except -1:
        cdef u64 size = max((self.tag_mask + 1) * 2, <u64>SLOTS_LEAST), tag
        cdef u64* tags = <u64*>calloc(size, sizeof(u64))
        if tags == NULL:
            raise MemoryError
        for tag in range(self.low_tag, self.next_tag):
            tags[tag & (size - 1)] = self.tags[tag & self.tag_mask]
        self.free_tags()
        self.tags = tags
        self.tag_mask = size - 1
        return 0

    # ---- sending

    def attach(self, int channel, u64 frame_max):
        """Send from now on by this channel, which is new: nothing is in flight on it."""
        self.reset()
        with cython.critical_section(self):
            self.channel = channel
            self.chunk = frame_max - FRAME_OVERHEAD

    def reset(self):
        """The channel is gone: what is unconfirmed is to be sent again, first."""
        cdef u64 seq
        cdef slot_t* s
        with cython.critical_section(self):
            for seq in range(self.head, self.sent):
                s = self.slots + (seq & self.mask)
                if s.state == SLOT_SENT or s.state == SLOT_RETRY:
                    s.state = SLOT_BUFFERED
                    s.flags = (s.flags | FLAG_AGAIN) & ~FLAG_RETURNED
            self.sent = self.head
            self.channel = 0
            self.in_flight = self.n_retry = 0
            self.low_tag = self.next_tag = 1
            self.is_awake = True

    cdef u64 next_to_send(self, i64 now) noexcept:
        """The message whose turn it is, or `tail`."""
        cdef u64 seq
        if self.n_retry:
            if now < self.retry_at:
                return self.tail
            for seq in range(self.head, self.sent):
                if self.slots[seq & self.mask].state == SLOT_RETRY:
                    return seq
        while self.sent < self.tail and self.slots[self.sent & self.mask].state != SLOT_BUFFERED:
            self.sent += 1
        return self.sent

    def pump(self, Output out, u64 most, too_large=None, expired=None):
        """Make frames of what may be sent, until `out` holds `most` bytes; return how many
        messages. `too_large`, `expired`: the reasons to drop what cannot be sent."""
        cdef u64 seq, n = 0
        cdef i64 now = client_now()
        cdef slot_t* s
        with cython.critical_section(self):
            self.is_awake = True
            if self.channel == 0:
                return 0
            while out.b.n < most:
                if self.confirms and (
                    self.in_flight >= self.window or self.next_tag - self.low_tag > self.most_tags
                ):
                    return n
                if self.next_tag - self.low_tag > self.tag_mask:
                    self.grow_tags()
                seq = self.next_to_send(now)
                if seq == self.tail:
                    # With a refused message waiting the owner's clock is what comes next.
                    self.is_awake = self.n_retry > 0
                    return n
                s = self.slots + (seq & self.mask)
                if self.ttl_ns and now - s.at_ns > self.ttl_ns:
                    self.finish(seq, OUTCOME_DROPPED, expired)
                    continue
                if not self.put_frames(&out.b, s):
                    self.finish(seq, OUTCOME_DROPPED, too_large)
                    continue
                n += 1
                self.mark_sent(seq, s, now)
        return n

    cdef int mark_sent(self, u64 seq, slot_t* s, i64 now) except -1:
        self.resent += s.flags & FLAG_AGAIN != 0
        if seq == self.sent:
            self.sent += 1
        if not self.confirms:
            return self.finish(seq, OUTCOME_SENT, None)
        self.n_retry -= s.state == SLOT_RETRY
        s.state = SLOT_SENT
        s.sent_ms = <u32>((now - self.born_ns) // 1000000)
        self.tags[self.next_tag & self.tag_mask] = seq + 1
        if s.receipt != NULL:
            (<Receipt>s.receipt).tag = self.next_tag
        self.next_tag += 1
        self.in_flight += 1
        return 0

    cdef bint put_frames(self, buf_t* b, slot_t* s) except -1:
        """basic.publish with its content; False when the properties fit no frame."""
        cdef parcel_t* parcel
        cdef bytes props, target
        cdef u64 n, n_props, n_target, at = 0, piece
        cdef const void* from_
        cdef const void* from_props
        cdef const void* from_target
        cdef u8* p
        if s.flags & FLAG_FORWARDED:
            parcel = <parcel_t*>s.body
            n, n_props, n_target = parcel.n_body, parcel.n_props, parcel.n_target
            from_, from_props = parcel_body(parcel), parcel_props(parcel)
            from_target = parcel_target(parcel)
        else:
            props = self.props if s.props == NULL else <bytes>s.props
            target = self.target if s.target == NULL else <bytes>s.target
            n, n_props = PyBytes_GET_SIZE(<bytes>s.body), PyBytes_GET_SIZE(props)
            n_target = PyBytes_GET_SIZE(target)
            from_, from_props = PyBytes_AS_STRING(<bytes>s.body), PyBytes_AS_STRING(props)
            from_target = PyBytes_AS_STRING(target)
        if n_props + 12 > self.chunk:
            return False
        if buf_room(b, 64 + n_target + n_props + n + n // self.chunk * FRAME_OVERHEAD):
            raise MemoryError
        p = b.p + b.n
        p[0] = FRAME_METHOD
        put_be16(p + 1, <u16>self.channel)
        put_be32(p + 3, <u32>(7 + n_target))
        put_be32(p + 7, 0x003C0028)
        put_be16(p + 11, 0)
        memcpy(p + 13, from_target, n_target)
        p += 13 + n_target
        p[0] = 1 if s.flags & FLAG_MANDATORY else 0
        p[1] = FRAME_END
        p[2] = FRAME_HEADER
        put_be16(p + 3, <u16>self.channel)
        put_be32(p + 5, <u32>(12 + n_props))
        put_be32(p + 9, 0x003C0000)
        put_be64(p + 13, n)
        memcpy(p + 21, from_props, n_props)
        p += 21 + n_props
        p[0] = FRAME_END
        p += 1
        while at < n:
            piece = min(n - at, self.chunk)
            p[0] = FRAME_BODY
            put_be16(p + 1, <u16>self.channel)
            put_be32(p + 3, <u32>piece)
            memcpy(p + 7, <const u8*>from_ + at, piece)
            p[7 + piece] = FRAME_END
            p += piece + FRAME_OVERHEAD
            at += piece
        b.n = p - b.p
        return True

    # ---- endings

    cdef void clear(self, slot_t* s) noexcept:
        """Let go of what a slot holds."""
        cdef PyObject* receipt = s.receipt
        if s.flags & FLAG_FORWARDED:
            parcel_free(<parcel_t*>s.body)
        else:
            Py_XDECREF(s.body)
        Py_XDECREF(s.props)
        Py_XDECREF(s.target)
        s.body = s.props = s.target = s.receipt = NULL
        if s.flags & FLAG_HELD:
            Py_XDECREF(receipt)
        s.state = SLOT_FREE

    cdef int count_drop(self, object reason) except -1:
        """Count one by its reason; an error, of which each is another, is none that is kept."""
        if not isinstance(reason, BaseException):
            if self.drops is None:
                self.drops = {}
            self.drops[reason] = self.drops.get(reason, 0) + 1
        return 0

    cdef int tell(self, tuple outcome) except -1:
        """Have callbacks told of one."""
        if self.outcomes is None:
            self.outcomes = []
        self.outcomes.append(outcome)
        return 0

    cdef int has_ended_with(self, Receipt receipt) except -1:
        """It has callbacks to run."""
        if self.ended is None:
            self.ended = []
        self.ended.append(receipt)
        return 0

    cdef int finish(self, u64 seq, u8 outcome, object reason) except -1:
        """End a message. Its slot is free before anybody hears: others may run meanwhile."""
        cdef slot_t* s = self.slots + (seq & self.mask)
        cdef slot_t ended = s[0]
        self.counts[outcome] += 1
        self.count -= 1
        self.n_bytes -= self.size_of(s)
        self.n_retry -= s.state == SLOT_RETRY
        memset(s, 0, sizeof(slot_t))
        while self.head < self.tail and self.slots[self.head & self.mask].state == SLOT_FREE:
            self.head += 1
        if self.sent < self.head:
            self.sent = self.head
        try:
            if outcome == OUTCOME_DROPPED:
                self.count_drop(reason)
            if ended.flags & FLAG_FORWARDED == 0 and ended.receipt != NULL:
                (<Receipt>ended.receipt).end(outcome, reason)
            if self.wants[outcome]:
                self.tell((OUTCOMES[outcome], self.message_of(&ended), reason))
            if ended.flags & FLAG_FORWARDED and (
                outcome == OUTCOME_CONFIRMED or outcome == OUTCOME_SENT
            ):
                parcel_settle(<parcel_t*>ended.body, BASIC_ACK, False)
        finally:
            self.clear(&ended)
        return 0

    cdef u64 size_of(self, slot_t* s) noexcept:
        """Bytes that a slot holds."""
        cdef u64 n
        if s.flags & FLAG_FORWARDED:
            return parcel_size(<parcel_t*>s.body)
        n = PyBytes_GET_SIZE(<bytes>s.body)
        if s.props != NULL:
            n += PyBytes_GET_SIZE(<bytes>s.props)
        if s.target != NULL:
            n += PyBytes_GET_SIZE(<bytes>s.target)
        return n

    cdef Message message_of(self, slot_t* s):
        """What callbacks are shown of a message."""
        cdef parcel_t* parcel
        if s.flags & FLAG_FORWARDED:
            parcel = <parcel_t*>s.body
            return self.show(
                PyBytes_FromStringAndSize(
                    <const char*>parcel_body(parcel), <Py_ssize_t>parcel.n_body),
                PyBytes_FromStringAndSize(
                    <const char*>parcel_props(parcel), parcel.n_props),
                PyBytes_FromStringAndSize(
                    <const char*>parcel_target(parcel), parcel.n_target),
            )
        return self.show(
            <bytes>s.body, None if s.props == NULL else <bytes>s.props,
            None if s.target == NULL else <bytes>s.target,
        )

    cdef Message show(self, bytes body, bytes props, bytes target):
        cdef Message message = Message.__new__(Message)
        cdef const u8* p
        message.body = body
        message.raw_properties = self.props if props is None else props
        message.exchange, message.routing_key = self.exchange_name, self.key_name
        if target is not None:
            p = <const u8*>PyBytes_AS_STRING(target)
            message.exchange = text_of(p + 1, p[0])
            message.routing_key = text_of(p + 2 + p[0], p[1 + p[0]])
        return message

    def shown(self, bytes body, tuple prepared):
        """What callbacks are shown of a message that was not taken."""
        return self.show(body, prepared[0], prepared[1])

    cdef int confirmed(self, u64 tag, bint multiple, bint is_ack) except -1:
        """The broker answered for one message in flight, or for all up to it."""
        cdef u64 at, seq
        cdef i64 now
        with cython.critical_section(self):
            if tag >= self.next_tag or (tag == 0 and not multiple):
                raise ProtocolViolation(f"a confirm for {tag}, which was never published")
            now = client_now()
            at = self.low_tag if multiple else tag
            if tag == 0:
                tag = self.next_tag - 1
            while at <= tag:
                if self.in_flight_as(at) != NULL:
                    seq = self.tags[at & self.tag_mask] - 1
                    self.tags[at & self.tag_mask] = 0
                    self.answered(seq, is_ack, now)
                at += 1
            while self.low_tag < self.next_tag and self.in_flight_as(self.low_tag) == NULL:
                self.low_tag += 1
        return 0

    cdef slot_t* in_flight_as(self, u64 tag) noexcept:
        """The slot that was sent with this tag; NULL when it was answered, or given up since."""
        cdef u64 seq
        cdef slot_t* s
        if not self.low_tag <= tag < self.next_tag or not self.tags[tag & self.tag_mask]:
            return NULL
        seq = self.tags[tag & self.tag_mask] - 1
        s = self.slots + (seq & self.mask)
        return s if self.head <= seq < self.tail and s.state == SLOT_SENT else NULL

    cdef int count_latencies(self) except -1:
        """The first one is confirmed."""
        self.latencies = <u64*>calloc(LATENCY_BUCKETS, sizeof(u64))
        if self.latencies == NULL:
            raise MemoryError
        return 0

    cdef int answered(self, u64 seq, bint is_ack, i64 now) except -1:
        cdef slot_t* s = self.slots + (seq & self.mask)
        cdef u64 micro = <u64>(now - s.at_ns) // 1000
        cdef Message message = None
        cdef int delay
        self.in_flight -= 1
        if is_ack:
            if s.flags & FLAG_RETURNED == 0:
                if self.latencies == NULL:
                    self.count_latencies()
                self.latencies[min(client_log2(micro), LATENCY_BUCKETS - 1)] += 1
                self.latency_sum += micro / 1e6
                return self.finish(seq, OUTCOME_CONFIRMED, None)
            if s.flags & FLAG_FORWARDED == 0:
                return self.finish(seq, OUTCOME_RETURNED, "not routed")
            s.flags &= ~FLAG_RETURNED
            self.unrouted += 1
        else:
            self.nacks += 1
        if not self.retries_nacks:
            return self.finish(seq, OUTCOME_NACKED, None)
        if self.wants[OUTCOME_NACKED]:
            message = self.message_of(s)
        s.state = SLOT_RETRY
        self.n_retry += 1
        delay = min(RETRY_FIRST_MS << min(s.retries, 10), RETRY_MOST_MS)
        self.retry_at = now + <i64>1000000 * delay
        s.retries += s.retries < 0xFFFF
        if message is not None:
            self.tell(("nacked", message, None))
        return 0

    cdef int returned(self, Message message) except -1:
        """The broker gives a message back; its confirm is still to come. Raises: ProtocolViolation
        when more come back than there were."""
        cdef u64 tag
        cdef slot_t* s
        cdef bytes target = self.target_of(message.exchange, message.routing_key)
        with cython.critical_section(self):
            self.n_returned += 1
            if self.n_returned > self.published + self.resent + self.nacks + self.unrouted:
                raise ProtocolViolation("more messages come back than were published")
            for tag in range(self.low_tag, self.next_tag):
                s = self.in_flight_as(tag)
                if s != NULL and s.flags & (FLAG_MANDATORY | FLAG_RETURNED) == FLAG_MANDATORY:
                    if self.holds(s, target, message.body):
                        s.flags |= FLAG_RETURNED
                        return 0
        return 0

    cdef bint holds(self, slot_t* s, bytes target, bytes body) noexcept:
        """Whether it is a message with that target and body."""
        cdef parcel_t* parcel
        cdef PyObject* mine
        if s.flags & FLAG_FORWARDED:
            parcel = <parcel_t*>s.body
            return (
                is_same(target, parcel_target(parcel), parcel.n_target)
                and is_same(body, parcel_body(parcel), parcel.n_body)
            )
        mine = <PyObject*>self.target if s.target == NULL else s.target
        return is_same_bytes(target, mine) and is_same_bytes(body, s.body)

    cdef int forget(self, Receipt receipt) except -1:
        """A receipt goes away."""
        cdef slot_t* s
        with cython.critical_section(self):
            if self.head <= receipt.first < self.tail:
                s = self.slots + (receipt.first & self.mask)
                if s.receipt == <PyObject*>receipt:
                    s.receipt = NULL
        return 0

    cdef int hold(self, Receipt receipt) except -1:
        """Keep a receipt that somebody waits for."""
        cdef slot_t* s
        if receipt.first == LOOSE:
            if self.loose is None:
                self.loose = set()
            self.loose.add(receipt)
        elif self.head <= receipt.first < self.tail:
            s = self.slots + (receipt.first & self.mask)
            if s.receipt == <PyObject*>receipt and not s.flags & FLAG_HELD:
                Py_INCREF(receipt)
                s.flags |= FLAG_HELD
        return 0

    cdef str place_of(self, u64 seq):
        """Where a message is that has not ended."""
        if self.head <= seq < self.tail and self.slots[seq & self.mask].state == SLOT_SENT:
            return "sent"
        return "buffered"

    def drop_oldest(self, reason):
        """Give up the oldest message that was not sent; False when there is none."""
        with cython.critical_section(self):
            while (
                self.sent < self.tail and self.slots[self.sent & self.mask].state != SLOT_BUFFERED
            ):
                self.sent += 1
            if self.sent == self.tail:
                return False
            self.finish(self.sent, OUTCOME_DROPPED, reason)
        return True

    def could_hold(self, bytes body):
        """Whether there would be room for it, were all dropped that was not sent."""
        cdef u64 seq, n = 0, kept = 0
        cdef slot_t* s
        with cython.critical_section(self):
            for seq in range(self.head, self.sent):
                s = self.slots + (seq & self.mask)
                if s.state == SLOT_SENT or s.state == SLOT_RETRY:
                    n += 1
                    kept += self.size_of(s)
        return n == 0 or (
            n < self.capacity and kept + <u64>PyBytes_GET_SIZE(body) <= self.capacity_bytes
        )

    def expire(self, reason):
        """Give up what was not sent and is older than the ring keeps; return how many."""
        cdef i64 now = client_now()
        cdef u64 seq, n = 0
        cdef slot_t* s
        if not self.ttl_ns:
            return 0
        with cython.critical_section(self):
            for seq in range(self.sent, self.tail):
                s = self.slots + (seq & self.mask)
                if seq < self.sent or s.state != SLOT_BUFFERED:
                    continue
                if now - s.at_ns <= self.ttl_ns:
                    break
                self.finish(seq, OUTCOME_DROPPED, reason)
                n += 1
        return n

    def give_up(self, reason):
        """End all that is held, which a file still has or is dropped; return how many."""
        cdef u64 seq, n = 0
        cdef slot_t* s
        with cython.critical_section(self):
            for seq in range(self.head, self.tail):
                s = self.slots + (seq & self.mask)
                if seq >= self.head and s.state != SLOT_FREE:
                    if s.flags & FLAG_FILED:
                        self.finish(seq, OUTCOME_SPILLED, None)
                    else:
                        self.finish(seq, OUTCOME_DROPPED, reason)
                    n += 1
            self.in_flight = 0
        return n

    def give_up_first(self, reason):
        """End the oldest message, the one the broker does not take; False when there is none."""
        with cython.critical_section(self):
            if self.head == self.tail:
                return False
            self.finish(self.head, OUTCOME_DROPPED, reason)
        return True

    # ---- what its owner looks at

    def take_ended(self):
        """Receipts whose callbacks are to be run."""
        cdef list ended
        with cython.critical_section(self):
            ended, self.ended = self.ended, None
        return () if ended is None else ended

    @property
    def has_ended(self):
        """Whether there are receipts whose callbacks are to be run."""
        return self.ended is not None

    @property
    def dropped_by(self):
        """How many were dropped, by reason."""
        return {} if self.drops is None else self.drops

    def take_outcomes(self):
        """What callbacks are to be told: (outcome, message, reason)."""
        cdef list outcomes
        with cython.critical_section(self):
            outcomes, self.outcomes = self.outcomes, None
        return () if outcomes is None else outcomes

    def want(self, str outcome, bint is_wanted=True):
        """Collect the messages of an outcome for `take_outcomes`."""
        cdef int index = OUTCOMES.index(outcome)
        with cython.critical_section(self):
            self.wants[index] = is_wanted

    def count_of(self, str outcome):
        """How many ended so."""
        cdef int index = OUTCOMES.index(outcome)
        with cython.critical_section(self):
            return self.counts[index]

    @property
    def latency_buckets(self):
        """Confirms by latency: those of less than 2, 4, 8 … microseconds, not added up."""
        with cython.critical_section(self):
            if self.latencies == NULL:
                return [0] * LATENCY_BUCKETS
            return [self.latencies[i] for i in range(LATENCY_BUCKETS)]

    @property
    def first(self):
        """The number of the oldest message held."""
        with cython.critical_section(self):
            return self.head

    @property
    def last(self):
        """The number that the next message will have."""
        with cython.critical_section(self):
            return self.tail

    @property
    def has_work(self):
        """Whether something could be sent, were there room in flight and in the socket."""
        with cython.critical_section(self):
            return self.sent < self.tail or self.n_retry > 0

    @property
    def waits_for_room(self):
        """Whether a publish that takes no bytes would find the ring full."""
        return not self.room_for(0)

    @property
    def retry_in(self):
        """Seconds until a refused message may be sent again; None = there is none."""
        with cython.critical_section(self):
            if not self.n_retry:
                return None
            return max(0.0, (self.retry_at - client_now()) / 1e9)

    @property
    def oldest_flight(self):
        """Seconds since the oldest message in flight was sent; 0 = there is none."""
        cdef slot_t* s
        with cython.critical_section(self):
            s = self.in_flight_as(self.low_tag)
            if s == NULL:
                return 0.0
            return ((client_now() - self.born_ns) // 1000000 - s.sent_ms) / 1e3

    @property
    def memory(self):
        """Bytes of the ring itself."""
        with cython.critical_section(self):
            return (self.mask + 1) * sizeof(slot_t) + (self.tag_mask + 1) * sizeof(u64)
