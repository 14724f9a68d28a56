# perf_consume: the consumer of lavinmqperf, of both protocols; included by perf.pyx.
#
# `con_walk` goes through the whole frames of the receive buffer and may stop anywhere: state of a
# message between its frames is in con_t, so a stream may be split at any byte. Acks, commits and
# gets collect in conn.out and leave with one send per read.

cdef enum:
    WANT_METHOD = 0
    WANT_HEADER = 1
    WANT_BODY = 2

cdef enum:
    WALK_STARVED = 100          # more bytes are needed
    WALK_PAUSED = 101           # not allowed on: rate, or acks that wait to be sent
    WALK_FINISHED = 102         # the budget is used up

cdef struct con_t:
    conn_t conn
    run_t *run
    pacer_t pacer
    uint64_t rng
    # what to do
    int (*walk)(con_t *) noexcept nogil     # deal with what has come; of the protocol
    int64_t ack_every           # 0 = the broker does not expect acks
    int64_t tx_every
    uint64_t body_size          # expected
    const uint8_t *pattern      # expected body, for any offset modulo PATTERN; NULL = any bytes
    bint is_verified
    bint is_stamped
    const uint8_t *get          # payload of basic.get; NULL = deliveries are pushed
    uint16_t get_n
    bint is_getting
    int64_t next_get_ns
    # the message under way
    int want
    uint64_t tag
    uint64_t size
    uint64_t at                 # body bytes seen
    bint is_bad
    uint8_t stamp[8]
    bint is_in_body             # of MQTT
    uint32_t id                 # of MQTT, 0 = QoS 0
    # acknowledging
    uint64_t last_tag
    int64_t unacked
    int64_t in_tx
    # results
    int64_t consumed
    int64_t mismatched
    int64_t bad_size            # of the first mismatch
    int64_t bad_at


cdef void con_mismatch(con_t *c, int64_t at) noexcept nogil:
    """Note a body that is not as published; counted once per message."""
    if c.is_bad:
        return
    c.is_bad = True
    if c.mismatched == 0:
        c.bad_size = <int64_t>c.size
        c.bad_at = at
    perf_add(&c.mismatched, 1)


cdef void con_verify(con_t *c, const uint8_t *p, uint32_t n) noexcept nogil:
    """Compare one body frame with the pattern, but for the stamp."""
    cdef uint64_t at = c.at
    cdef uint32_t skip, i
    if c.is_stamped and at < 8:
        skip = min(n, <uint32_t>(8 - at))
        p += skip
        n -= skip
        at += skip
    if memcmp(p, c.pattern + at % PATTERN, n) == 0:
        return
    for i in range(n):
        if p[i] != c.pattern[at % PATTERN + i]:
            con_mismatch(c, <int64_t>(at + i))
            return


cdef int con_body(con_t *c, const uint8_t *p, uint32_t n) noexcept nogil:
    if n > c.size - c.at:
        return END_VIOLATION
    if c.is_stamped and c.at < 8:
        memcpy(c.stamp + c.at, p, min(n, <uint32_t>(8 - c.at)))
    if c.pattern != NULL:
        con_verify(c, p, n)
    c.at += n
    return con_done(c) if c.at == c.size else END_DONE


cdef int con_done(con_t *c) noexcept nogil:
    """A message is whole: count it, sample its latency, acknowledge."""
    cdef int64_t left = INT64_MAX, latency, sent
    c.want = WANT_METHOD
    c.is_getting = False
    if c.run.consume_left != INT64_MAX:
        left = perf_add(&c.run.consume_left, -1) - 1
        if left < 0:
            return WALK_FINISHED
    perf_store(&c.consumed, c.consumed + 1)
    c.pacer.done += 1
    if c.is_stamped and c.size >= 8:
        memcpy(&sent, c.stamp, 8)
        latency = max(0, perf_now() - sent)
        samples_add(&c.run.total, latency, &c.rng)
        samples_add(&c.run.interval, latency, &c.rng)
    if c.ack_every:
        c.last_tag = c.tag
        c.unacked += 1
        if c.unacked == c.ack_every:
            con_ack(c)
        if c.tx_every:
            c.in_tx += 1
            if c.in_tx == c.tx_every:
                conn_put_commit(&c.conn)
                c.in_tx = 0
    return WALK_FINISHED if left == 0 else END_DONE


cdef void con_ack(con_t *c) noexcept nogil:
    conn_put_ack(&c.conn, c.last_tag, c.unacked > 1)
    c.unacked = 0


cdef int con_method(con_t *c, frame_t *f) noexcept nogil:
    cdef uint32_t method = 0, tag_at
    cdef int end = conn_method(&c.conn, f, &method)
    if end != END_DONE:
        return end
    if method == BASIC_DELIVER:
        if f.size < 5:
            return END_VIOLATION
        tag_at = 5 + f.payload[4]
    elif method == BASIC_GET_OK:
        tag_at = 4
    else:
        if method == BASIC_GET_EMPTY:
            c.is_getting = False
            c.next_get_ns = perf_now() + EMPTY_GET_NS
        return END_DONE
    if f.size < tag_at + 8 or c.want != WANT_METHOD:
        return END_VIOLATION
    c.tag = be64(f.payload + tag_at)
    c.want = WANT_HEADER
    return END_DONE


cdef int con_header(con_t *c, frame_t *f) noexcept nogil:
    if f.size < 14 or c.want != WANT_HEADER:
        return END_VIOLATION
    c.size = be64(f.payload + 4)
    c.at = 0
    c.is_bad = False
    c.want = WANT_BODY
    if c.is_verified and c.size != c.body_size:
        con_mismatch(c, -1)
    return con_done(c) if c.size == 0 else END_DONE


# hot
cdef int con_walk(con_t *c) noexcept nogil:
    """Walk whole frames while rate and room for acks allow."""
    cdef frame_t f
    cdef int r
    cdef int64_t allowed = INT64_MAX
    if c.pacer.rate > 0:
        allowed = c.pacer.done + pacer_allow(&c.pacer, perf_now())
    while True:
        if c.pacer.done >= allowed or c.conn.out_n > OUT_BYTES - OUT_ROOM:
            return WALK_PAUSED
        r = conn_frame(&c.conn, &f)
        if r <= 0:
            return WALK_STARVED if r == 0 else END_VIOLATION
        if f.kind == 1:
            r = con_method(c, &f)
        elif f.kind == 2:
            r = con_header(c, &f)
        elif f.kind == 3:
            r = con_body(c, f.payload, f.size) if c.want == WANT_BODY else END_VIOLATION
        else:
            r = END_DONE if f.kind == 8 else END_VIOLATION
        if r != END_DONE:
            return r


cdef int con_finish(con_t *c) noexcept nogil:
    """Acknowledge what is left and send it, for a bounded time."""
    cdef int64_t give_up = perf_now() + LINGER_NS
    cdef bint is_committed = False
    cdef int r
    if c.conn.out_n <= OUT_BYTES - OUT_ROOM:
        # The last acks may come after the last commit, when -a and -T differ.
        is_committed = c.in_tx > 0 or (c.tx_every > 0 and c.unacked > 0)
        if c.unacked:
            con_ack(c)
        if is_committed:
            conn_put_commit(&c.conn)
    while True:
        r = conn_flush(&c.conn)
        if r == 0:
            return END_DONE
        if r < 0 or perf_now() > give_up:
            return END_LOST
        perf_poll(c.conn.fd, POLLOUT, TICK_NS)


cdef int64_t con_get(con_t *c) noexcept nogil:
    """Ask for the next message if it is time; return how long to wait if not."""
    cdef int64_t now
    if c.get == NULL or c.is_getting or c.want != WANT_METHOD:
        return TICK_NS
    if c.next_get_ns:
        now = perf_now()
        if now < c.next_get_ns:
            return c.next_get_ns - now
        c.next_get_ns = 0
    conn_put_method(&c.conn, c.get, c.get_n)
    c.is_getting = True
    return TICK_NS


cdef int con_run(con_t *c) noexcept nogil:
    """Consume until the budget is used up or the run is stopped."""
    cdef int walked, r = 0
    cdef int64_t wait_ns
    cdef short events, ready
    cdef bint is_full
    while True:
        if perf_load(&c.run.stopped) or perf_load(&c.run.consume_left) <= 0:
            return con_finish(c)
        walked = c.walk(c)
        if walked == WALK_FINISHED:
            return con_finish(c)
        if walked < WALK_STARVED:
            return walked
        is_full = c.conn.out_n > OUT_BYTES - OUT_ROOM
        events, wait_ns = 0, TICK_NS
        if walked == WALK_STARVED:
            events = POLLIN
            wait_ns = con_get(c)
        elif not is_full:
            wait_ns = pacer_wait(&c.pacer, perf_now())
        if conn_pending(&c.conn):
            r = conn_flush(&c.conn)
            if r < 0:
                return END_LOST
            if r > 0:
                events |= POLLOUT
            elif walked == WALK_PAUSED and is_full:
                continue
        ready = perf_poll(c.conn.fd, events, wait_ns) & ~POLLOUT
        if ready and (walked == WALK_PAUSED or conn_recv(&c.conn) < 0):
            return END_LOST     # a pause asks for no input: what came is an error


cdef class Consumer:
    """One consumer.

    Args: rate: messages/s, 0 = no limit; ack: acknowledge every so many, 0 = no-ack;
    transaction: commit every so many, 0 = none; body_size: expected bytes; verify: count bodies of
    another size or, unless `random`, with other bytes than the pattern; stamp: take the first 8
    body bytes for the time of publishing; get: payload of the basic.get to poll with, b"" =
    deliveries come by themselves; mqtt: it is a subscriber of MQTT, whose subscription is there and
    that acknowledges what has QoS 1.
    """

    cdef con_t con
    cdef Run shared
    cdef bytes pattern
    cdef bytes get

    def __cinit__(
        self, Run run, *, double rate=0, int64_t ack=0, int64_t transaction=0,
        uint64_t body_size=0, bint verify=False, bint random=False, bint stamp=False,
        bytes get=b"", bint mqtt=False,
    ):
        cdef con_t *c = &self.con
        if len(get) > OUT_ROOM // 2:
            raise ValueError("basic.get is too long")
        conn_alloc(&c.conn)
        self.shared, self.get = run, get
        if verify and not random:   # long enough for the largest frame from any offset
            self.pattern = bytes(range(64, 64 + PATTERN)) * (IN_BYTES // PATTERN + 2)
            c.pattern = <const uint8_t *>self.pattern
        c.run = &run.run
        c.walk = mqtt_con_walk if mqtt else con_walk
        c.pacer.rate, c.ack_every, c.tx_every = rate, ack, transaction
        c.body_size, c.is_verified, c.is_stamped = body_size, verify, stamp
        c.get = <const uint8_t *>self.get if get else NULL
        c.get_n = len(get)
        c.rng = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        conn_free(&self.con.conn)

    def run(self, int fd, bytes unread=b""):
        """Consume from a connected socket; return how it ended and, see DONE, what goes with it."""
        cdef con_t *c = &self.con
        cdef int end
        conn_adopt(&c.conn, fd, unread)
        c.want = WANT_METHOD
        c.unacked = c.in_tx = c.next_get_ns = 0
        c.is_getting = c.is_in_body = False
        c.pacer.base_ns, c.pacer.done = perf_now(), 0
        with nogil:
            end = con_run(c)
        return conn_result(&c.conn, end)

    @property
    def consumed(self):
        return perf_load(&self.con.consumed)

    @property
    def mismatched(self):
        """Messages whose body was not as published."""
        return perf_load(&self.con.mismatched)

    @property
    def first_mismatch(self):
        """(size, offset) of the first such message; offset -1: the size was wrong."""
        return self.con.bad_size, self.con.bad_at
