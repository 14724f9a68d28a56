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

cdef struct mqtt_pub_t:
    pub_t pub
    size_t packet_n             # bytes of one PUBLISH
    size_t id_at                # offset of its packet identifier, 0 = QoS 0
    size_t body_at
    uint8_t *in_use             # by identifier
    uint32_t next_id


cdef size_t mqtt_fill(pub_t *pub, int64_t k) noexcept nogil:
    """See pub_t. Returns: the size in bytes."""
    cdef mqtt_pub_t *p = <mqtt_pub_t *>pub
    cdef int64_t i, now = perf_now() if pub.is_stamped else 0
    cdef size_t at, left
    cdef uint64_t word
    cdef uint8_t *packet
    if p.id_at == 0 and not pub.is_stamped and not pub.is_random:
        return <size_t>k * p.packet_n
    for i in range(k):
        packet = pub.block + <size_t>i * p.packet_n
        if p.id_at:
            packet[p.id_at] = <uint8_t>(p.next_id >> 8)
            packet[p.id_at + 1] = <uint8_t>p.next_id
            p.in_use[p.next_id] = 1
            p.next_id = p.next_id + 1 if p.next_id < 65535 else 1
        if pub.is_random:
            at = p.body_at
            while at < p.packet_n:
                word = next_random(&pub.rng)
                left = min(<size_t>8, p.packet_n - at)
                memcpy(packet + at, &word, left)
                at += left
        if pub.is_stamped:
            memcpy(packet + p.body_at, &now, 8)
    return <size_t>k * p.packet_n


cdef int64_t mqtt_room(pub_t *pub) noexcept nogil:
    """See pub_t."""
    cdef mqtt_pub_t *p = <mqtt_pub_t *>pub
    if p.id_at == 0:
        return INT64_MAX
    if p.in_use[p.next_id]:
        return 0                # the oldest is not acknowledged, and identifiers have come round
    return min(pub.window - pub.unconfirmed, <int64_t>65535 - p.next_id + 1)


cdef int mqtt_walk(pub_t *pub) noexcept nogil:
    """See pub_t."""
    cdef mqtt_pub_t *p = <mqtt_pub_t *>pub
    cdef packet_t f
    cdef uint32_t id
    cdef int r
    while True:
        r = mqtt_head(&pub.conn, &f)
        if r <= 0:
            return END_VIOLATION if r < 0 else END_DONE
        if f.size > IN_BYTES - 8:
            return END_VIOLATION
        if pub.conn.in_n - pub.conn.in_at < f.head + f.size:
            return END_DONE
        pub.conn.in_at += f.head + f.size
        if f.first >> 4 == MQTT_PUBACK:
            id = <uint32_t>f.p[0] << 8 | f.p[1] if f.size == 2 else 0
            if id == 0 or p.id_at == 0 or not p.in_use[id]:
                return END_VIOLATION
            p.in_use[id] = 0
            pub.unconfirmed -= 1
            perf_store(&pub.confirmed, pub.confirmed + 1)
        elif f.first >> 4 != MQTT_PINGRESP:
            return END_VIOLATION


cdef class MqttPublisher(AnyPublisher):
    """One publisher of MQTT.

    Args: packet: an encoded PUBLISH; body_size: bytes of its payload, at its end; qos: 0 or 1;
    rate: messages/s, 0 = no limit; window: most unacknowledged messages of QoS 1; stamp: write the
    time into the first 8 bytes of the payload, little-endian; random: new random bytes in each.
    """

    cdef mqtt_pub_t of_mqtt

    def __cinit__(self, Run run, *, bytes packet, int64_t body_size, int qos=0, double rate=0,
                  int64_t window=1, bint stamp=False, bint random=False):
        cdef mqtt_pub_t *p = &self.of_mqtt
        cdef int64_t i
        if not 0 <= qos <= 1 or not 0 < window <= MQTT_WINDOW_MAX or (stamp and body_size < 8):
            raise ValueError("a publisher has QoS 0 or 1, a window, and 8 bytes for a stamp")
        self.pub = &p.pub
        self.init(run, rate, window if qos else 0, stamp, random)
        p.pub.room, p.pub.fill, p.pub.walk = mqtt_room, mqtt_fill, mqtt_walk
        p.packet_n = len(packet)
        p.body_at = p.packet_n - <size_t>body_size
        p.id_at = p.body_at - 2 if qos else 0
        p.pub.block_messages = max(1, <int64_t>(BLOCK_BYTES / p.packet_n))
        p.pub.block = <uint8_t *>calloc(p.pub.block_messages, p.packet_n)
        p.in_use = <uint8_t *>calloc(65536, 1)
        if not p.pub.block or not p.in_use:
            raise MemoryError
        for i in range(p.pub.block_messages):
            memcpy(p.pub.block + <size_t>i * p.packet_n, <const uint8_t *>packet, p.packet_n)

    def __dealloc__(self):
        free(self.of_mqtt.in_use)

    cdef void begin(self):
        self.of_mqtt.next_id = 1
        memset(self.of_mqtt.in_use, 0, 65536)


# ---- subscriber: con_t counts, checks and paces; nothing is acknowledged there

cdef void mqtt_con_ack(con_t *c) noexcept nogil:
    """The message under way is whole."""
    cdef uint8_t *p = c.conn.out + c.conn.out_n
    c.is_in_body = False
    if c.id == 0:
        return
    p[0] = MQTT_PUBACK << 4
    p[1] = 2
    p[2] = <uint8_t>(c.id >> 8)
    p[3] = <uint8_t>c.id
    c.conn.out_n += MQTT_ACK_BYTES


cdef int mqtt_con_begin(con_t *c) noexcept nogil:
    """Look at the next packet. END_DONE when it, or its payload, is dealt with or can be."""
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
    c.id = <uint32_t>f.p[head - 2] << 8 | f.p[head - 1] if f.first & 6 else 0
    c.conn.in_at += f.head + head
    c.size = f.size - head
    c.at = 0
    c.is_bad = False
    c.is_in_body = True
    if c.is_verified and c.size != c.body_size:
        con_mismatch(c, -1)
    if c.size:
        return END_DONE
    mqtt_con_ack(c)
    return con_done(c)


# hot
cdef int mqtt_con_walk(con_t *c) noexcept nogil:
    """Walk what has come while rate and room for acknowledgements allow."""
    cdef int64_t allowed = INT64_MAX
    cdef uint64_t have
    cdef uint32_t n
    cdef int r
    if c.pacer.rate > 0:
        allowed = c.pacer.done + pacer_allow(&c.pacer, perf_now())
    while True:
        if c.pacer.done >= allowed or c.conn.out_n > OUT_BYTES - OUT_ROOM:
            return WALK_PAUSED
        if not c.is_in_body:
            r = mqtt_con_begin(c)
        else:
            have = c.conn.in_n - c.conn.in_at
            if have == 0:
                return WALK_STARVED
            n = <uint32_t>min(have, c.size - c.at)
            if c.at + n == c.size:
                mqtt_con_ack(c)
            r = con_body(c, c.conn.in_ + c.conn.in_at, n)
            c.conn.in_at += n
        if r != END_DONE:
            return r
