# perf_mqtt: publisher and subscriber of MQTT 3.1.1 for lavinmqperf; included by perf.pyx.
#
# As their siblings of AMQP: packets are encoded before the run, and sent in blocks; a stream may be
# split at any byte. Python has connected and subscribed. Packet identifiers of a publisher go round
# from 1 to 65535; its window is smaller than that, so none is in use twice.

cdef enum:
    MQTT_PUBLISH = 3
    MQTT_PUBACK = 4
    MQTT_SUBACK = 9
    MQTT_PINGRESP = 13
    MQTT_WINDOW_MAX = 32768
    MQTT_ACK_BYTES = 4

cdef struct packet_t:
    uint8_t first
    const uint8_t *p            # behind the fixed header
    uint32_t size               # bytes there, which need not all have come
    uint32_t head               # bytes of the fixed header


cdef int mqtt_head(conn_t *c, packet_t *f) noexcept nogil:
    """Look at the fixed header of the next packet. 1 = it is there, 0 = more bytes are needed, -1 =
    violation."""
    cdef const uint8_t *p = c.in_ + c.in_at
    cdef size_t have = c.in_n - c.in_at
    cdef uint32_t size = 0, at = 1
    while True:
        if at >= have:
            return 0
        if at > 4:
            return -1
        size |= <uint32_t>(p[at] & 127) << (7 * (at - 1))
        at += 1
        if p[at - 1] < 128:
            break
    f.first = p[0]
    f.p = p + at
    f.size = size
    f.head = at
    return 1


# ---- publisher

cdef struct mpub_t:
    conn_t conn
    run_t *run
    pacer_t pacer
    uint64_t rng
    uint8_t *block
    int64_t block_messages
    size_t packet_n             # bytes of one PUBLISH
    size_t id_at                # offset of its packet identifier, 0 = QoS 0
    size_t body_at
    bint is_stamped
    bint is_random
    int64_t window              # most unacknowledged, of QoS 1
    int64_t unacked
    uint8_t *in_use             # by identifier
    uint32_t next_id
    int64_t batch               # messages begun and not wholly sent
    int64_t published
    int64_t confirmed
    int64_t nacked


cdef size_t mpub_fill(mpub_t *p, int64_t k) noexcept nogil:
    """Make the first k messages of the block current; return their size in bytes."""
    cdef int64_t i, now = perf_now() if p.is_stamped else 0
    cdef size_t at, left
    cdef uint64_t word
    cdef uint8_t *packet
    if p.id_at == 0 and not p.is_stamped and not p.is_random:
        return <size_t>k * p.packet_n
    for i in range(k):
        packet = p.block + <size_t>i * p.packet_n
        if p.id_at:
            packet[p.id_at] = <uint8_t>(p.next_id >> 8)
            packet[p.id_at + 1] = <uint8_t>p.next_id
            p.in_use[p.next_id] = 1
            p.next_id = p.next_id + 1 if p.next_id < 65535 else 1
        if p.is_random:
            at = p.body_at
            while at < p.packet_n:
                word = next_random(&p.rng)
                left = min(<size_t>8, p.packet_n - at)
                memcpy(packet + at, &word, left)
                at += left
        if p.is_stamped:
            memcpy(packet + p.body_at, &now, 8)
    return <size_t>k * p.packet_n


cdef int64_t mpub_allowed(mpub_t *p, int64_t *wait_ns) noexcept nogil:
    """Return how many messages may be sent now, not yet claimed; if none, how long to wait."""
    cdef int64_t k = p.block_messages, now
    wait_ns[0] = TICK_NS
    if p.id_at:
        k = min(k, p.window - p.unacked)
        if p.in_use[p.next_id]:
            return 0            # the oldest is not acknowledged, and identifiers have come round
        k = min(k, <int64_t>65535 - p.next_id + 1)
    if k > 0 and p.pacer.rate > 0:
        now = perf_now()
        k = min(k, pacer_allow(&p.pacer, now))
        if k == 0:
            wait_ns[0] = pacer_wait(&p.pacer, now)
    return k


cdef int mpub_walk(mpub_t *p) noexcept nogil:
    """Deal with every whole packet received."""
    cdef packet_t f
    cdef uint32_t id
    cdef int r
    while True:
        r = mqtt_head(&p.conn, &f)
        if r <= 0:
            return END_VIOLATION if r < 0 else END_DONE
        if f.size > IN_BYTES - 8:
            return END_VIOLATION
        if p.conn.in_n - p.conn.in_at < f.head + f.size:
            return END_DONE
        p.conn.in_at += f.head + f.size
        if f.first >> 4 == MQTT_PUBACK:
            id = <uint32_t>f.p[0] << 8 | f.p[1] if f.size == 2 else 0
            if id == 0 or p.id_at == 0 or not p.in_use[id]:
                return END_VIOLATION
            p.in_use[id] = 0
            p.unacked -= 1
            perf_store(&p.confirmed, p.confirmed + 1)
        elif f.first >> 4 != MQTT_PINGRESP:
            return END_VIOLATION


cdef int mpub_read(mpub_t *p) noexcept nogil:
    cdef int r = 1, end
    while r == 1:
        r = conn_recv(&p.conn)
        end = mpub_walk(p)
        if end != END_DONE:
            return end
    return END_LOST if r < 0 else END_DONE


cdef int mpub_run(mpub_t *p) noexcept nogil:
    """Publish until the budget is used up and answered for, or the run is stopped."""
    cdef int64_t k = 0, wait_ns = 0, give_up = 0
    cdef int r, end
    cdef short events
    cdef bint is_stopped, is_finished = False
    while True:
        is_stopped = perf_load(&p.run.stopped) != 0
        if is_stopped and not give_up:
            give_up = perf_now() + LINGER_NS
        if not conn_pending(&p.conn):
            k = 0
            is_finished = perf_load(&p.run.publish_left) == 0
            if not is_stopped and not is_finished:
                k = mpub_allowed(p, &wait_ns)
                if k > 0:
                    k = run_claim(&p.run.publish_left, k)
                    is_finished = k == 0        # another publisher took the last
            if k > 0:
                p.conn.block_n = mpub_fill(p, k)
                p.conn.block = p.block
                p.batch = k
                p.pacer.done += k
                p.unacked += k if p.id_at else 0
            elif is_stopped or is_finished:
                if is_stopped or not p.unacked:
                    return END_DONE
                wait_ns = TICK_NS
        events = POLLIN
        if conn_pending(&p.conn):
            r = conn_flush(&p.conn)
            if r < 0 or (r > 0 and is_stopped and perf_now() > give_up):
                return END_LOST
            if r == 0:
                perf_store(&p.published, p.published + p.batch)
                p.batch = 0
                if k == 0:
                    continue
            else:
                events |= POLLOUT
                wait_ns = TICK_NS
                k = 0
        if k > 0 and (p.id_at or p.pacer.rate > 0):
            continue
        if k > 0 or perf_poll(p.conn.fd, events, wait_ns) & ~POLLOUT:
            end = mpub_read(p)
            if end != END_DONE:
                return end


cdef class MqttPublisher:
    """One publisher.

    Args: packet: an encoded PUBLISH; body_size: bytes of its payload, at its end; qos: 0 or 1;
    rate: messages/s, 0 = no limit; window: most unacknowledged messages of QoS 1; stamp: write the
    time into the first 8 bytes of the payload, little-endian; random: new random bytes in each.
    """

    cdef mpub_t pub
    cdef Run shared             # keeps what pub.run points at

    def __cinit__(self, Run run, *, bytes packet, int64_t body_size, int qos=0, double rate=0,
                  int64_t window=1, bint stamp=False, bint random=False):
        cdef mpub_t *p = &self.pub
        cdef int64_t i
        if not 0 <= qos <= 1 or not 0 < window <= MQTT_WINDOW_MAX or (stamp and body_size < 8):
            raise ValueError("a publisher has QoS 0 or 1, a window, and 8 bytes for a stamp")
        conn_alloc(&p.conn)
        self.shared = run
        p.run = &run.run
        p.packet_n = len(packet)
        p.body_at = p.packet_n - <size_t>body_size
        p.id_at = p.body_at - 2 if qos else 0
        p.block_messages = max(1, <int64_t>(BLOCK_BYTES / p.packet_n))
        p.block = <uint8_t *>calloc(p.block_messages, p.packet_n)
        p.in_use = <uint8_t *>calloc(65536, 1)
        if not p.block or not p.in_use:
            raise MemoryError
        for i in range(p.block_messages):
            memcpy(p.block + <size_t>i * p.packet_n, <const uint8_t *>packet, p.packet_n)
        p.pacer.rate, p.window = rate, window
        p.is_stamped, p.is_random = stamp, random
        p.rng = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        conn_free(&self.pub.conn)
        free(self.pub.block)
        free(self.pub.in_use)

    def run(self, int fd, bytes unread=b""):
        """Publish over a connected socket; return how it ended and, see DONE, what goes with it."""
        cdef mpub_t *p = &self.pub
        cdef int end
        conn_adopt(&p.conn, fd, unread)
        p.unacked, p.next_id = 0, 1
        memset(p.in_use, 0, 65536)
        p.pacer.base_ns, p.pacer.done = perf_now(), 0
        with nogil:
            end = mpub_walk(p)
            if end == END_DONE:
                end = mpub_run(p)
        # Messages claimed and not sent go back, so that another attempt makes the total exact.
        if p.batch and perf_load(&p.run.publish_left) != INT64_MAX:
            perf_add(&p.run.publish_left, p.batch)
        p.batch = 0
        return conn_result(&p.conn, end)

    @property
    def published(self):
        return perf_load(&self.pub.published)

    @property
    def confirmed(self):
        return perf_load(&self.pub.confirmed)

    @property
    def nacked(self):
        """MQTT 3.1.1 has no way to say so."""
        return 0


# ---- subscriber

cdef struct msub_t:
    con_t con                   # counts, checks, paces as of AMQP; nothing is acknowledged there
    bint is_in_body
    uint32_t id                 # of the message under way, 0 = QoS 0


cdef void msub_ack(msub_t *m) noexcept nogil:
    """The message under way is whole."""
    cdef conn_t *c = &m.con.conn
    cdef uint8_t *p = c.out + c.out_n
    m.is_in_body = False
    if m.id == 0:
        return
    p[0] = MQTT_PUBACK << 4
    p[1] = 2
    p[2] = <uint8_t>(m.id >> 8)
    p[3] = <uint8_t>m.id
    c.out_n += MQTT_ACK_BYTES


cdef int msub_begin(msub_t *m) noexcept nogil:
    """Look at the next packet. END_DONE when it, or its payload, is dealt with or can be."""
    cdef con_t *c = &m.con
    cdef packet_t f
    cdef uint32_t topic_n, head, have
    cdef int r = mqtt_head(&c.conn, &f)
    if r <= 0:
        return WALK_STARVED if r == 0 else END_VIOLATION
    have = <uint32_t>(c.conn.in_n - c.conn.in_at) - f.head
    if f.first >> 4 != MQTT_PUBLISH:
        if f.size != (3 if f.first >> 4 == MQTT_SUBACK else 0):
            return END_VIOLATION
        if have < f.size:
            return WALK_STARVED
        # Behind a session that was there already its messages come first.
        if f.size and f.p[2] > 2 or not f.size and f.first >> 4 != MQTT_PINGRESP:
            return END_VIOLATION
        c.conn.in_at += f.head + f.size
        return END_DONE
    if f.size < 2:
        return END_VIOLATION
    if have < 2:
        return WALK_STARVED
    topic_n = <uint32_t>f.p[0] << 8 | f.p[1]
    head = 2 + topic_n + (2 if f.first & 6 else 0)
    if head > f.size:
        return END_VIOLATION
    if have < head:
        return WALK_STARVED
    m.id = <uint32_t>f.p[head - 2] << 8 | f.p[head - 1] if f.first & 6 else 0
    c.conn.in_at += f.head + head
    c.size = f.size - head
    c.at = 0
    c.is_bad = False
    m.is_in_body = True
    if c.is_verified and c.size != c.body_size:
        con_mismatch(c, -1)
    if c.size:
        return END_DONE
    msub_ack(m)
    return con_done(c)


# hot
cdef int msub_walk(msub_t *m) noexcept nogil:
    """Walk what has come while rate and room for acknowledgements allow."""
    cdef con_t *c = &m.con
    cdef int64_t allowed = INT64_MAX
    cdef uint64_t have
    cdef uint32_t n
    cdef int r
    if c.pacer.rate > 0:
        allowed = c.pacer.done + pacer_allow(&c.pacer, perf_now())
    while True:
        if c.pacer.done >= allowed or c.conn.out_n > OUT_BYTES - OUT_ROOM:
            return WALK_PAUSED
        if not m.is_in_body:
            r = msub_begin(m)
        else:
            have = c.conn.in_n - c.conn.in_at
            if have == 0:
                return WALK_STARVED
            n = <uint32_t>min(have, c.size - c.at)
            if c.at + n == c.size:
                msub_ack(m)
            r = con_body(c, c.conn.in_ + c.conn.in_at, n)
            c.conn.in_at += n
        if r != END_DONE:
            return r


cdef int msub_run(msub_t *m) noexcept nogil:
    """Take messages until the budget is used up or the run is stopped."""
    cdef con_t *c = &m.con
    cdef int walked, r = 0
    cdef int64_t wait_ns
    cdef short events, ready
    cdef bint is_full
    while True:
        if perf_load(&c.run.stopped) or perf_load(&c.run.consume_left) <= 0:
            return con_finish(c)
        walked = msub_walk(m)
        if walked == WALK_FINISHED:
            return con_finish(c)
        if walked < WALK_STARVED:
            return walked
        is_full = c.conn.out_n > OUT_BYTES - OUT_ROOM
        events, wait_ns = 0, TICK_NS
        if walked == WALK_STARVED:
            events = POLLIN
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


cdef class MqttConsumer:
    """One subscriber, whose subscription is there; what comes with QoS 1 it acknowledges.

    Args: rate: messages/s, 0 = no limit; body_size: expected bytes; verify: count payloads of
    another size or, unless `random`, with other bytes than the pattern; stamp: take the first 8
    bytes for the time of publishing.
    """

    cdef msub_t sub
    cdef Run shared
    cdef bytes pattern

    def __cinit__(self, Run run, *, double rate=0, uint64_t body_size=0, bint verify=False,
                  bint random=False, bint stamp=False):
        cdef con_t *c = &self.sub.con
        conn_alloc(&c.conn)
        self.shared = run
        if verify and not random:
            self.pattern = bytes(range(64, 64 + PATTERN)) * (IN_BYTES // PATTERN + 2)
            c.pattern = <const uint8_t *>self.pattern
        c.run = &run.run
        c.pacer.rate, c.body_size, c.is_verified, c.is_stamped = rate, body_size, verify, stamp
        c.rng = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        conn_free(&self.sub.con.conn)

    def run(self, int fd, bytes unread=b""):
        """Take messages from a socket; return how it ended and, see DONE, what goes with it."""
        cdef con_t *c = &self.sub.con
        cdef int end
        conn_adopt(&c.conn, fd, unread)
        self.sub.is_in_body = False
        c.pacer.base_ns, c.pacer.done = perf_now(), 0
        with nogil:
            end = msub_run(&self.sub)
        return conn_result(&c.conn, end)

    @property
    def consumed(self):
        return perf_load(&self.sub.con.consumed)

    @property
    def mismatched(self):
        """Messages whose payload was not as published."""
        return perf_load(&self.sub.con.mismatched)

    @property
    def first_mismatch(self):
        """(size, offset) of the first such message; offset -1: the size was wrong."""
        return self.sub.con.bad_size, self.sub.con.bad_at
