# perf_publish: the publisher of lavinmqperf; included by perf.pyx.
#
# Messages are encoded before the run. A batch is a run of messages in `block`, sent as it stands:
# when nothing differs from message to message the block is never touched again; otherwise (several
# routing keys, latency stamps, random bodies) `pub_fill` writes only what differs. A batch is the
# most that window, transaction, rate and budget allow, so limits are checked once per batch.

cdef struct pub_t:
    conn_t conn
    run_t *run
    pacer_t pacer
    uint64_t rng
    # encoded messages
    uint8_t *block
    int64_t block_messages
    const uint8_t *content      # content header and body frames
    size_t content_n
    size_t body_at              # offset of the first body byte in content
    size_t body_n
    size_t chunk                # body bytes per frame
    const uint8_t *methods      # basic.publish frames, one per routing key, back to back
    size_t *method_at           # n_methods + 1 offsets
    int64_t n_methods
    int64_t next_method
    bint is_stamped
    bint is_random
    # limits
    int64_t window              # most unconfirmed, 0 = no confirms
    uint8_t *done               # ring by tag: confirmed out of order
    uint64_t done_mask
    uint64_t low_tag            # oldest unconfirmed
    uint64_t next_tag
    int64_t unconfirmed
    int64_t tx_every            # 0 = no transactions
    int64_t in_tx
    bint is_committing
    int64_t batch               # messages begun and not wholly sent
    # results
    int64_t published
    int64_t confirmed
    int64_t nacked


cdef void pub_randomize(pub_t *p, uint8_t *body) noexcept nogil:
    """Write random bytes over every body frame of one message."""
    cdef size_t left = p.body_n, n, i
    cdef uint64_t word
    while left:
        n = min(left, p.chunk)
        i = 0
        while i + 8 <= n:
            word = next_random(&p.rng)
            memcpy(body + i, &word, 8)
            i += 8
        word = next_random(&p.rng)
        memcpy(body + i, &word, n - i)
        body += n + 8           # end byte of this frame, header of the next
        left -= n


cdef size_t pub_fill(pub_t *p, int64_t k) noexcept nogil:
    """Make the first k messages of the block current; return their size in bytes."""
    cdef size_t method_n, at = 0
    cdef int64_t _, now
    cdef uint8_t *body
    if p.n_methods == 1 and not p.is_stamped and not p.is_random:
        return <size_t>k * (p.method_at[1] + p.content_n)
    now = perf_now()
    for _ in range(k):
        method_n = p.method_at[p.next_method + 1] - p.method_at[p.next_method]
        if p.n_methods > 1:
            memcpy(p.block + at, p.methods + p.method_at[p.next_method], method_n)
            memcpy(p.block + at + method_n, p.content, p.content_n)
            p.next_method = p.next_method + 1 if p.next_method + 1 < p.n_methods else 0
        body = p.block + at + method_n + p.body_at
        if p.is_random:
            pub_randomize(p, body)
        if p.is_stamped:
            memcpy(body, &now, 8)
        at += method_n + p.content_n
    return at


cdef int64_t run_claim(int64_t *left, int64_t most) noexcept nogil:
    """Take up to `most` messages out of a budget; return how many."""
    cdef int64_t have = perf_load(left), take
    if have == INT64_MAX:
        return most
    while True:
        take = min(have, most)
        if take == 0 or perf_swap(left, &have, have - take):
            return take


cdef int64_t pub_allowed(pub_t *p, int64_t *wait_ns) noexcept nogil:
    """Return how many messages may be sent now, not yet claimed; if none, how long to wait."""
    cdef int64_t k = p.block_messages, now
    wait_ns[0] = TICK_NS
    if p.is_committing:
        return 0
    if p.tx_every:
        k = min(k, p.tx_every - p.in_tx)
    if p.window:
        k = min(k, p.window - p.unconfirmed)
        k = min(k, <int64_t>(p.done_mask + 1 - (p.next_tag - p.low_tag)))
    if k > 0 and p.pacer.rate > 0:
        now = perf_now()
        k = min(k, pacer_allow(&p.pacer, now))
        if k == 0:
            wait_ns[0] = pacer_wait(&p.pacer, now)
    return k


cdef void pub_begin(pub_t *p, int64_t k) noexcept nogil:
    p.conn.block_n = pub_fill(p, k)
    p.conn.block = p.block
    p.batch = k
    p.pacer.done += k
    if p.window:
        p.next_tag += <uint64_t>k
        p.unconfirmed += k
    if p.tx_every:
        p.in_tx += k
        if p.in_tx == p.tx_every:
            pub_commit(p)


cdef void pub_commit(pub_t *p) noexcept nogil:
    conn_put_commit(&p.conn)
    p.in_tx = 0
    p.is_committing = True


cdef int pub_confirm(pub_t *p, frame_t *f, bint is_nack) noexcept nogil:
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
    if tag >= p.next_tag or not p.window:
        return END_VIOLATION
    if tag < p.low_tag:
        return END_DONE
    for at in range(p.low_tag if multiple else tag, tag + 1):
        n += not p.done[at & p.done_mask]
        p.done[at & p.done_mask] = 1
    while p.low_tag < p.next_tag and p.done[p.low_tag & p.done_mask]:
        p.done[p.low_tag & p.done_mask] = 0
        p.low_tag += 1
    p.unconfirmed -= n
    if is_nack:
        p.nacked += n
    else:
        p.confirmed += n
    return END_DONE


cdef int pub_walk(pub_t *p) noexcept nogil:
    """Deal with every whole frame received: confirms, commit-ok and close matter."""
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
            end = pub_confirm(p, &f, method == BASIC_NACK)
            if end != END_DONE:
                return end
        elif method == TX_COMMIT_OK:
            p.is_committing = False


cdef int pub_read(pub_t *p) noexcept nogil:
    cdef int r = 1, end
    while r == 1:
        r = conn_recv(&p.conn)
        end = pub_walk(p)
        if end != END_DONE:
            return end
    return END_LOST if r < 0 else END_DONE


cdef int pub_run(pub_t *p) noexcept nogil:
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
                k = pub_allowed(p, &wait_ns)
                if k > 0:
                    k = run_claim(&p.run.publish_left, k)
                    is_finished = k == 0    # another publisher took the last
            if k > 0:
                pub_begin(p, k)
            elif is_stopped or is_finished:
                if p.in_tx:
                    pub_commit(p)
                elif is_stopped or not (p.unconfirmed or p.is_committing):
                    return END_DONE
                wait_ns = TICK_NS
        events = POLLIN
        if conn_pending(&p.conn):
            r = conn_flush(&p.conn)
            if r < 0 or (r > 0 and is_stopped and perf_now() > give_up):
                return END_LOST
            if r == 0:
                p.published += p.batch
                p.batch = 0
                if k == 0:      # the rest of what had been blocked: look anew what is allowed
                    continue
            else:
                events |= POLLOUT
                wait_ns = TICK_NS
                k = 0
        # A free publisher only peeks for a close; any other polls as soon as it may not send.
        if k > 0 and (p.window or p.tx_every or p.pacer.rate > 0):
            continue
        if k > 0 or perf_poll(p.conn.fd, events, wait_ns) & ~POLLOUT:
            end = pub_read(p)
            if end != END_DONE:
                return end


cdef class Publisher:
    """One publisher.

    Args: methods: encoded basic.publish frames on channel 1, used in turn from `first`;
    content: content header and body frames; body_size: bytes of the body in it; chunk: body bytes
    per frame; rate: messages/s, 0 = no limit; window: most unconfirmed messages, 0 = no confirms;
    transaction: messages per tx.commit, 0 = none; stamp: write the time into the first 8 body
    bytes, little-endian; random: new random bytes in each body.
    """

    cdef pub_t pub
    cdef Run shared             # keeps what pub.run points at
    cdef bytes methods
    cdef bytes content

    def __cinit__(
        self, Run run, *, list methods, int64_t first, bytes content, int64_t body_size,
        int64_t chunk, double rate=0, int64_t window=0, int64_t transaction=0, bint stamp=False,
        bint random=False,
    ):
        cdef pub_t *p = &self.pub
        if not methods or chunk < 1 or (stamp and body_size < 8):
            raise ValueError("a publisher needs methods, and 8 bytes of body for a stamp")
        conn_alloc(&p.conn)
        self.shared = run
        self.methods = b"".join(methods)
        self.content = content
        p.run = &run.run
        p.methods = <const uint8_t *>self.methods
        p.content = <const uint8_t *>self.content
        p.content_n = len(content)
        p.body_n, p.chunk = body_size, chunk
        # The header frame comes first; its size is in it.
        p.body_at = be32(p.content + 3) + 8 + 7
        p.n_methods, p.next_method = len(methods), first % len(methods)
        p.pacer.rate, p.window, p.tx_every = rate, window, transaction
        p.is_stamped, p.is_random = stamp, random
        p.rng = int.from_bytes(os.urandom(8), "little") | 1
        self.build_block([len(method) for method in methods])

    cdef object build_block(self, list sizes):
        cdef pub_t *p = &self.pub
        cdef int64_t i
        cdef size_t most = p.content_n + <size_t>max(sizes)
        p.block_messages = max(1, <int64_t>(BLOCK_BYTES / most))
        p.method_at = <size_t *>calloc(len(sizes) + 1, sizeof(size_t))
        p.block = <uint8_t *>calloc(p.block_messages, most)
        if p.window:
            # Confirms may overtake each other, so the ring is longer than the window.
            p.done_mask = (1 << max(16, (<object>p.window).bit_length() + 1)) - 1
            p.done = <uint8_t *>calloc(p.done_mask + 1, 1)
        if not p.method_at or not p.block or (p.window and not p.done):
            raise MemoryError
        for i, size in enumerate(sizes):
            p.method_at[i + 1] = p.method_at[i] + <size_t>size
        if p.n_methods == 1:
            for i in range(p.block_messages):
                memcpy(p.block + i * most, p.methods, p.method_at[1])
                memcpy(p.block + i * most + p.method_at[1], p.content, p.content_n)

    def __dealloc__(self):
        conn_free(&self.pub.conn)
        free(self.pub.block)
        free(self.pub.method_at)
        free(self.pub.done)

    def run(self, int fd, bytes unread=b""):
        """Publish over a connected socket; return how it ended and, see DONE, what goes with it."""
        cdef pub_t *p = &self.pub
        cdef int end
        conn_adopt(&p.conn, fd, unread)
        p.low_tag = p.next_tag = 1
        p.unconfirmed = p.in_tx = 0
        p.is_committing = False
        p.pacer.base_ns, p.pacer.done = perf_now(), 0
        if p.window:
            memset(p.done, 0, p.done_mask + 1)
        with nogil:
            end = pub_walk(p)
            if end == END_DONE:
                end = pub_run(p)
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
        return perf_load(&self.pub.nacked)
