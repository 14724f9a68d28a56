# perf_publish_amqp: the publisher of AMQP; included by perf.pyx.
#
# When nothing differs from message to message the block is never touched again; otherwise (several
# routing keys, latency stamps, random bodies) `amqp_fill` writes only what differs.

cdef struct amqp_pub_t:
    pub_t pub
    const uint8_t *content      # content header and body frames
    size_t content_n
    size_t body_at              # offset of the first body byte in content
    size_t body_n
    size_t chunk                # body bytes per frame
    const uint8_t *methods      # basic.publish frames, one per routing key, back to back
    size_t *method_at           # n_methods + 1 offsets
    int64_t n_methods
    int64_t next_method
    uint8_t *done               # ring by tag: confirmed out of order
    uint64_t done_mask
    uint64_t low_tag            # oldest unconfirmed
    uint64_t next_tag


cdef void amqp_randomize(amqp_pub_t *p, uint8_t *body) noexcept nogil:
    """Write random bytes over every body frame of one message."""
    cdef size_t left = p.body_n, n, i
    cdef uint64_t word
    while left:
        n = min(left, p.chunk)
        i = 0
        while i + 8 <= n:
            word = next_random(&p.pub.rng)
            memcpy(body + i, &word, 8)
            i += 8
        word = next_random(&p.pub.rng)
        memcpy(body + i, &word, n - i)
        body += n + 8           # end byte of this frame, header of the next
        left -= n


cdef size_t amqp_fill(pub_t *pub, int64_t k) noexcept nogil:
    """See pub_t. Returns: the size in bytes."""
    cdef amqp_pub_t *p = <amqp_pub_t *>pub
    cdef size_t method_n, at = 0
    cdef int64_t _, now
    cdef uint8_t *body
    if pub.window:
        p.next_tag += <uint64_t>k
    if p.n_methods == 1 and not pub.is_stamped and not pub.is_random:
        return <size_t>k * (p.method_at[1] + p.content_n)
    now = perf_now()
    for _ in range(k):
        method_n = p.method_at[p.next_method + 1] - p.method_at[p.next_method]
        if p.n_methods > 1:
            memcpy(pub.block + at, p.methods + p.method_at[p.next_method], method_n)
            memcpy(pub.block + at + method_n, p.content, p.content_n)
            p.next_method = p.next_method + 1 if p.next_method + 1 < p.n_methods else 0
        body = pub.block + at + method_n + p.body_at
        if pub.is_random:
            amqp_randomize(p, body)
        if pub.is_stamped:
            memcpy(body, &now, 8)
        at += method_n + p.content_n
    return at


cdef int64_t amqp_room(pub_t *pub) noexcept nogil:
    """See pub_t."""
    cdef amqp_pub_t *p = <amqp_pub_t *>pub
    cdef int64_t k = INT64_MAX
    if pub.is_committing:
        return 0
    if pub.tx_every:
        k = pub.tx_every - pub.in_tx
    if pub.window:
        k = min(k, pub.window - pub.unconfirmed)
        k = min(k, <int64_t>(p.done_mask + 1 - (p.next_tag - p.low_tag)))
    return k


cdef int amqp_confirm(amqp_pub_t *p, frame_t *f, bint is_nack) noexcept nogil:
    """Count an ack or a nack; with `multiple` it covers all tags up to its own, 0 means all."""
    cdef uint64_t tag, at
    cdef int64_t n = 0
    cdef bint multiple
    if f.size != 13:
        return END_VIOLATION
    tag = be64(f.payload + 4)
    multiple = f.payload[12] & 1
    if multiple and tag == 0:
        tag = p.next_tag - 1
    if tag >= p.next_tag or not p.pub.window:
        return END_VIOLATION
    if tag < p.low_tag:
        return END_DONE
    for at in range(p.low_tag if multiple else tag, tag + 1):
        n += not p.done[at & p.done_mask]
        p.done[at & p.done_mask] = 1
    while p.low_tag < p.next_tag and p.done[p.low_tag & p.done_mask]:
        p.done[p.low_tag & p.done_mask] = 0
        p.low_tag += 1
    p.pub.unconfirmed -= n
    if is_nack:
        perf_store(&p.pub.nacked, p.pub.nacked + n)
    else:
        perf_store(&p.pub.confirmed, p.pub.confirmed + n)
    return END_DONE


cdef int amqp_walk(pub_t *p) noexcept nogil:
    """See pub_t: confirms, commit-ok and close matter."""
    cdef frame_t f
    cdef uint32_t method = 0
    cdef int r, end
    while True:
        r = conn_frame(&p.conn, &f)
        if r <= 0:
            return END_VIOLATION if r < 0 else END_DONE
        if f.kind != 1:
            continue
        end = conn_method(&p.conn, &f, &method)
        if end != END_DONE:
            return end
        if method == BASIC_ACK or method == BASIC_NACK:
            end = amqp_confirm(<amqp_pub_t *>p, &f, method == BASIC_NACK)
            if end != END_DONE:
                return end
        elif method == TX_COMMIT_OK:
            p.is_committing = False


cdef class Publisher(AnyPublisher):
    """One publisher.

    Args: methods: encoded basic.publish frames on channel 1, used in turn from `first`;
    content: content header and body frames; body_size: bytes of the body in it; chunk: body bytes
    per frame; rate: messages/s, 0 = no limit; window: most unconfirmed messages, 0 = no confirms;
    transaction: messages per tx.commit, 0 = none; stamp: write the time into the first 8 body
    bytes, little-endian; random: new random bytes in each body.
    """

    cdef amqp_pub_t of_amqp
    cdef bytes methods
    cdef bytes content

    def __cinit__(
        self, Run run, *, list methods, int64_t first, bytes content, int64_t body_size,
        int64_t chunk, double rate=0, int64_t window=0, int64_t transaction=0, bint stamp=False,
        bint random=False,
    ):
        cdef amqp_pub_t *p = &self.of_amqp
        if not methods or chunk < 1 or (stamp and body_size < 8):
            raise ValueError("a publisher needs methods, and 8 bytes of body for a stamp")
        self.pub = &p.pub
        self.init(run, rate, window, stamp, random)
        p.pub.tx_every = transaction
        p.pub.room, p.pub.fill, p.pub.walk = amqp_room, amqp_fill, amqp_walk
        self.methods = b"".join(methods)
        self.content = content
        p.methods = <const uint8_t *>self.methods
        p.content = <const uint8_t *>self.content
        p.content_n = len(content)
        p.body_n, p.chunk = body_size, chunk
        # The header frame comes first; its size is in it.
        p.body_at = be32(p.content + 3) + 8 + 7
        p.n_methods, p.next_method = len(methods), first % len(methods)
        self.build_block([len(method) for method in methods])

    cdef object build_block(self, list sizes):
        cdef amqp_pub_t *p = &self.of_amqp
        cdef int64_t i
        cdef size_t most = p.content_n + <size_t>max(sizes)
        p.pub.block_messages = max(1, <int64_t>(BLOCK_BYTES / most))
        p.method_at = <size_t *>calloc(len(sizes) + 1, sizeof(size_t))
        p.pub.block = <uint8_t *>calloc(p.pub.block_messages, most)
        if p.pub.window:
            # Confirms may overtake each other, so the ring is longer than the window.
            p.done_mask = (1 << max(16, (<object>p.pub.window).bit_length() + 1)) - 1
            p.done = <uint8_t *>calloc(p.done_mask + 1, 1)
        if not p.method_at or not p.pub.block or (p.pub.window and not p.done):
            raise MemoryError
        for i, size in enumerate(sizes):
            p.method_at[i + 1] = p.method_at[i] + <size_t>size
        if p.n_methods == 1:
            for i in range(p.pub.block_messages):
                memcpy(p.pub.block + i * most, p.methods, p.method_at[1])
                memcpy(p.pub.block + i * most + p.method_at[1], p.content, p.content_n)

    def __dealloc__(self):
        free(self.of_amqp.method_at)
        free(self.of_amqp.done)

    cdef void begin(self):
        cdef amqp_pub_t *p = &self.of_amqp
        p.low_tag = p.next_tag = 1
        if p.done != NULL:
            memset(p.done, 0, p.done_mask + 1)
