# Manage: what management does with messages: publish, take, read, move, and look at what is
# unacked.
#
# A LocalChannel is a channel without a connection: its publishes and settlements take the same way
# as those of clients, but nothing is ever written to it. It belongs to one request, which ends it;
# what it has not settled then is requeued. Functions here do a bounded part of the work, and the
# caller lets others have their turn before the next. Called by lavinmq/http.
from cpython.bytearray cimport PyByteArray_AS_STRING


# ---- rows ----------------------------------------------------------------------------------------

cdef bytes props_bytes(const rec_t* rec):
    """The properties of a record as a client would get them, in wire order."""
    cdef u32 n = rec.props_len
    cdef u8* p = <u8*>malloc(<u64>n + (rec.extra_len if rec.extra != NULL else 0) + 8)
    if p == NULL:
        raise MemoryError()
    props_to_wire(p, rec)
    if rec.bcc_len:
        n = props_cut(p, n, rec.headers_at, rec.bcc_at, rec.bcc_len)
    if rec.extra != NULL:
        n = props_add_header(p, n, rec.extra, rec.extra_len)
    try:
        return PyBytes_FromStringAndSize(<char*>p, n)
    finally:
        free(p)


@cython.final
cdef class FarBody:
    """The body of a large message, or the beginning of it, in its file: its length, and slices.

    The file is open: it may be removed. Reading a slice raises OSError."""
    cdef int fd
    cdef i64 at
    cdef u64 n
    cdef proof_t* proof

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        free(self.proof)
        if self.fd >= 0:
            c_close(self.fd)

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, slice part) -> bytes:
        cdef Py_ssize_t start, stop, step
        cdef bytes got
        cdef i64 n, at
        cdef u8* p
        start, stop, step = part.indices(self.n)
        if step != 1:
            raise ValueError("a slice with a step")
        got = PyBytes_FromStringAndSize(NULL, max(stop - start, 0))
        p = <u8*>PyBytes_AS_STRING(got)
        n = <i64>len(got)
        at = self.at + start
        if self.proof != NULL:
            self.proof.right = 0        # slices come in any order
        with nogil:             # a thread may read it
            n = (-1 if proof_holds(self.proof, self.fd, <u64>at, <u64>n)
                 else read_at(self.fd, p, <u64>n, at))
        if n != len(got):
            raise OSError(errno if n < 0 else EIO, "a message cannot be read")
        return got


cdef object body_shown(queue_t* q, const rec_t* rec, u64 shown):
    """The first bytes of its body: bytes, or a FarBody. Raises OSError."""
    cdef store_t* st = queue_level(q, rec.level)
    cdef FarBody body
    if not record_has_far_body(rec):
        return PyBytes_FromStringAndSize(<char*>rec.body, <Py_ssize_t>shown)
    body = FarBody.__new__(FarBody)
    body.fd = store_open_body(st, rec.seg)
    if body.fd < 0:
        raise os_error(st, "msgs", rec.seg)
    body.at = record_body_at(rec)
    body.n = shown
    body.proof = proof_new(st, rec.seg, <u64>body.at, shown)
    if body.proof != NULL:
        body.proof.table = NULL     # it may be read when the broker has ended
    return body


cdef tuple message_row(queue_t* q, rec_t* rec, number, u64 shown):
    """(number, whether redelivered, exchange, routing key, properties, bytes of the body, the first
    `shown` of them as of body_shown). Raises OSError."""
    cdef const u8* key = rec.names + rec.names[0] + 1
    record_find_bcc(rec)
    return (number, bool(rec.redelivered),
            PyBytes_FromStringAndSize(<char*>rec.names + 1, rec.names[0]),
            PyBytes_FromStringAndSize(<char*>key + 1, key[0]),
            props_bytes(rec), rec.body_len,
            body_shown(q, rec, shown))


cdef inline u64 shown_of(const rec_t* rec, u64 truncate) noexcept nogil:
    return rec.body_len if rec.body_len < truncate else truncate


# ---- what is unacked -----------------------------------------------------------------------------

cdef void unacked_row(list rows, const unacked_t* u, const loop_t* loop):
    tag = None
    if u.consumer != NULL:
        tag = PyBytes_FromStringAndSize(<char*>u.consumer.tag + 1, u.consumer.tag[0])
    rows.append((u.tag, tag, (loop.now_ds - u.delivered_ds) // 10))


cdef list channel_unacked(const chan_t* c, const queue_t* q, u64 after, u32 most):
    """(delivery tag, consumer tag or None, whole seconds) of deliveries of q, by rising tag."""
    cdef const unacked_t* u
    cdef u64 tag = c.first_tag if c.first_tag > after else after + 1
    cdef u32 i
    cdef list rows = []
    loop_clock(c.link.loop)
    for i in range(c.old_at, c.n_old):
        u = &c.old[i]
        if u.queue == q and u.tag > after:
            if <u32>len(rows) == most:
                return rows
            unacked_row(rows, u, c.link.loop)
    while tag < c.next_tag and <u32>len(rows) < most:
        u = &c.ring[tag & (c.ring_cap - 1)]
        if u.queue == q:
            unacked_row(rows, u, c.link.loop)
        tag += 1
    return rows


# ---- a channel of our own ------------------------------------------------------------------------

class QueueClosedError(Exception):
    """A publish was refused: its queue cannot be written."""


# Freeing one needs its Loop: the garbage collector must not take that away first.
@cython.no_gc_clear
cdef class LocalChannel:
    """A channel without a connection.

    Args: `loop`; `vhost`, whose exchanges it publishes to; `user` and `is_impersonator`, for the
    user-id check.
    """
    cdef link_t t
    cdef chan_t* c
    cdef Loop loop
    cdef Vhost vhost
    cdef bytes user

    def __cinit__(self, Loop loop not None, Vhost vhost not None, bytes user not None,
                  bint is_impersonator):
        memset(&self.t, 0, sizeof(link_t))
        self.loop = loop
        self.vhost = vhost
        self.user = user
        self.t.wire.fd = -1
        self.t.loop = &loop.t
        self.t.vhost = &vhost.t
        self.t.frame_max = HANDSHAKE_FRAME_MAX
        self.t.user = <const u8*>PyBytes_AS_STRING(user)
        self.t.user_len = <u32>PyBytes_GET_SIZE(user)
        self.t.is_impersonator = is_impersonator
        self.c = channel_new(&self.t, 1, 0)
        if self.c == NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.c != NULL:
            channel_free(self.c)

    def close(self) -> None:
        """Requeue what is not settled. Idempotent."""
        if self.c == NULL:
            return
        channel_free(self.c)
        self.c = NULL
        self.loop.locals.discard(self)
        loop_enforce(&self.loop.t)
        self.loop.kick()

    def publish(self, Exchange exchange not None, bytes name, bytes key, bytes props,
                object body, bint is_awaited=True) -> tuple:
        """Publish to an exchange of that name; returns (error, whether it was routed, whether a
        durable queue has it, so that `Loop.after_sync` says when it is safe).

        `is_awaited`: the caller wants to know that it is safe. Raises QueueClosedError when a queue
        that it goes to is closed; none has got it then, unless the queue has broken by it.
        `error` is 0, or a row of the tables in amqp/walk_errors.py, and nothing was published."""
        return self.send(exchange, name, key, props, body, is_awaited, False)

    def publish_some(self, Exchange exchange not None, bytes name, bytes key, bytes props,
                     object body):
        """publish in portions: None when this one is over; it is to be called again then with the
        same arguments. Until the last one nothing is sure, and close() ends it."""
        return self.send(exchange, name, key, props, body, True, True)

    cdef tuple send(self, Exchange exchange, bytes name, bytes key, bytes props, object body,
                    bint is_awaited, bint may_stop):
        """See publish and publish_some."""
        cdef chan_t* c = self.c
        cdef loop_t* loop = &self.loop.t
        cdef bytes names = bytes([len(name)]) + name + bytes([len(key)]) + key
        cdef tx_publish_t waiting
        cdef msg_t m
        cdef u64 n_out = exchange.t.n_out
        cdef int rc
        if not isinstance(body, (bytes, bytearray)):
            raise TypeError("the body is neither bytes nor a bytearray")
        if c == NULL or len(body) > 0x7FFFFFFF:
            raise ValueError("closed, or the body is too large")
        memset(&m, 0, sizeof(msg_t))
        rc = <int>props_error(&self.t, <const u8*>PyBytes_AS_STRING(props),
                              <u32>PyBytes_GET_SIZE(props), &m)
        if rc:
            return rc, False, False
        m.exchange = &exchange.t
        m.names = <const u8*>PyBytes_AS_STRING(names)
        m.names_len = <u32>PyBytes_GET_SIZE(names)
        m.body = (<const u8*>PyByteArray_AS_STRING(body) if isinstance(body, bytearray)
                  else <const u8*>PyBytes_AS_STRING(body))
        m.body_len = <u64>len(body)
        loop_clock(loop)
        if c.job == NULL:
            c.needs_sync = c.is_overflowed = c.is_refused = False
        c.targets.pause = NULL
        if may_stop:
            c.targets.pause = route_pause
        c.targets.pauser = loop
        self.loop.open_portion()
        c.tx_last = &waiting if is_awaited else NULL        # as in a commit
        with nogil:
            rc = channel_publish(c, &m)
        c.tx_last = NULL
        self.loop.kick()
        if rc == PUBLISH_TURN:
            return None
        if rc == PUBLISH_BAD_HEADER:
            return ERROR_HASH_HEADER, False, False
        if rc != PUBLISHED:
            raise MemoryError()
        if c.is_refused:
            raise QueueClosedError("a queue that the message goes to is closed")
        return 0, exchange.t.n_out != n_out and not c.is_overflowed, bool(c.needs_sync)

    def take(self, Queue queue not None, u64 most, u64 truncate, bint is_look):
        """Take the next message, which is unacked then; also from a paused queue.

        Returns None when there is none; the bytes it would need when these are more than `most`,
        and does not take it; else (tag, whether redelivered, exchange, key, properties, bytes of
        the body, the first `truncate` of them, messages left). `is_look`: it is going to be
        requeued, and that is no attempt that counts against a delivery limit."""
        cdef queue_t* q = queue.q
        cdef chan_t* c = self.c
        cdef features_t* features = q.features
        cdef rec_t rec
        cdef u64 need
        if c == NULL or q.stream != NULL or q.releases != NULL or q.is_deleted or q.is_closed:
            return None
        loop_clock(q.loop)
        if q.ready == 0 or queue_next(q, &rec) != 1:
            loop_enforce(q.loop)
            self.loop.kick()
            return None
        queue_touch(q)              # a large window goes at the end of the tick
        self.loop.kick()
        need = shown_of(&rec, truncate) + rec.props_len + rec.names_len
        if need > most:
            return need
        row = message_row(q, &rec, c.next_tag, shown_of(&rec, truncate))
        if not channel_has_room(c, False):
            raise MemoryError()
        queue_take(q, &rec, False)
        if is_look:
            q.features = NULL
        channel_push(c, q, NULL, &rec)
        q.features = features
        q.n_get += 1
        c.tally.get += 1
        c.tally.redeliver += rec.redelivered
        self.loop.locals.add(self)
        loop_enforce(q.loop)
        return row + (q.ready,)

    def settle(self, u64 tag, bint requeue, bint is_ack) -> None:
        """Acknowledge what was taken, put it back, or discard it."""
        if self.c == NULL or channel_settle(self.c, tag, False, requeue, is_ack):
            raise ValueError(f"unknown tag {tag}")
        loop_enforce(&self.loop.t)
        self.loop.kick()

    def unacked_of(self, Queue queue not None, u64 after, u32 most) -> list:
        """As Link.unacked_of."""
        return channel_unacked(self.c, queue.q, after, most) if self.c != NULL else []


# ---- streams -------------------------------------------------------------------------------------

def read_stream(Queue queue not None, i64 offset, u32 n, u64 most, u64 truncate) -> tuple:
    """Read up to n messages of a stream from an offset on, for as long as others can wait.

    Returns (rows as of LocalChannel.take, with offsets for tags and without the last field; where
    to go on; the bytes that the message there needs when these are more than are left of `most`,
    else 0). Raises OSError."""
    cdef queue_t* q = queue.q
    cdef reader_t r
    cdef rec_t rec
    cdef i64 worked = FIRST_TURN
    cdef u64 need = 0, used = 0
    cdef int rc = READ_TIRED
    cdef list rows = []
    if q.stream == NULL:
        raise TypeError("no stream")
    if q.is_deleted or q.is_closed:
        return rows, q.stream.next_offset, 0
    memset(&r, 0, sizeof(reader_t))
    r.window.fd = -1
    reader_go_to_offset(q, &r, offset)
    try:
        while <u32>len(rows) < n:
            rc = reader_peek(q, &r, BLOCK_SIZE, &worked, &rec)
            if rc != READ_FOUND:
                break
            need = shown_of(&rec, truncate) + rec.props_len + rec.names_len
            if used + need > most:
                break
            rec.redelivered = False
            rows.append(message_row(q, &rec, r.offset, shown_of(&rec, truncate)))
            used += need
            worked += need + 64
            need = 0
            r.pos += rec.size
            r.offset += 1
        if rc == READ_FAILED:
            raise os_error(q.store, "msgs", r.seg.id)
    finally:
        window_drop(&r.window, &q.loop.pool)
    if rc == READ_END:
        return rows, q.stream.next_offset, 0
    # Not where it stands: it may have to pass over more before the first one.
    return rows, r.offset if r.offset > r.from_offset else r.from_offset, need
