# perf_publish: what publishers of both protocols have in common; included by perf.pyx.
#
# Messages are encoded before the run. A batch is a run of messages in `block`, sent as it stands.
# It is the most that window, transaction, rate and budget allow: limits are looked at once a batch.
# A protocol has its own pub_t, which begins with this one, and the three functions named there.

cdef struct pub_t:
    conn_t conn
    run_t *run
    pacer_t pacer
    uint64_t rng
    uint8_t *block              # encoded messages
    int64_t block_messages
    bint is_stamped
    bint is_random
    # what the protocol does
    int64_t (*room)(pub_t *) noexcept nogil             # how many its window lets through
    size_t (*fill)(pub_t *, int64_t) noexcept nogil     # make so many current, and count them in
    int (*walk)(pub_t *) noexcept nogil                 # deal with every whole frame received
    # limits
    int64_t window              # most unconfirmed, 0 = no confirms
    int64_t unconfirmed
    int64_t tx_every            # 0 = no transactions
    int64_t in_tx
    bint is_committing
    int64_t batch               # messages begun and not wholly sent
    # results
    int64_t published
    int64_t confirmed
    int64_t nacked


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
    cdef int64_t k = min(p.block_messages, p.room(p)), now
    wait_ns[0] = TICK_NS
    if k > 0 and p.pacer.rate > 0:
        now = perf_now()
        k = min(k, pacer_allow(&p.pacer, now))
        if k == 0:
            wait_ns[0] = pacer_wait(&p.pacer, now)
    return k


cdef void pub_begin(pub_t *p, int64_t k) noexcept nogil:
    p.conn.block_n = p.fill(p, k)
    p.conn.block = p.block
    p.batch = k
    p.pacer.done += k
    if p.window:
        p.unconfirmed += k
    if p.tx_every:
        p.in_tx += k
        if p.in_tx == p.tx_every:
            pub_commit(p)


cdef void pub_commit(pub_t *p) noexcept nogil:
    conn_put_commit(&p.conn)
    p.in_tx = 0
    p.is_committing = True


cdef int pub_read(pub_t *p) noexcept nogil:
    cdef int r = 1, end
    while r == 1:
        r = conn_recv(&p.conn)
        end = p.walk(p)
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
                perf_store(&p.published, p.published + p.batch)
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


cdef class AnyPublisher:
    """What publishers of both protocols have in common: `pub` is where theirs begins."""

    cdef pub_t *pub
    cdef Run shared             # keeps what pub.run points at

    cdef object init(self, Run run, double rate, int64_t window, bint stamp, bint random):
        cdef pub_t *p = self.pub
        conn_alloc(&p.conn)
        self.shared = run
        p.run = &run.run
        p.pacer.rate, p.window = rate, window
        p.is_stamped, p.is_random = stamp, random
        p.rng = int.from_bytes(os.urandom(8), "little") | 1

    def __dealloc__(self):
        if self.pub != NULL:
            conn_free(&self.pub.conn)
            free(self.pub.block)

    cdef void begin(self):
        """A connection is there: nothing is on its way."""

    def run(self, int fd, bytes unread=b""):
        """Publish over a connected socket; return how it ended and, see DONE, what goes with it."""
        cdef pub_t *p = self.pub
        cdef int end
        conn_adopt(&p.conn, fd, unread)
        p.unconfirmed = p.in_tx = 0
        p.is_committing = False
        p.pacer.base_ns, p.pacer.done = perf_now(), 0
        self.begin()
        with nogil:
            end = p.walk(p)
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
        """Always 0 with MQTT 3.1.1, which has no way to say so."""
        return perf_load(&self.pub.nacked)
