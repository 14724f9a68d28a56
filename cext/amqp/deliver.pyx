# Deliver: turns stored records into frames in a link's output block, and runs a queue's deliveries.
#
# A link has one output block. Deliveries go into it only while the kernel takes everything ("not
# blocked"), so a slow consumer holds one block and its messages stay in the segment. Replies from
# Python are appended to the same block, which keeps them in order with deliveries.
# Source: amqp reference sections 2 and 14; architecture section 7.

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_send "send"(int fd, const void* buf, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void* buf, size_t n, int flags)
    enum:
        MSG_NOSIGNAL
        MSG_DONTWAIT

cdef enum frame_type:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8
    DELIVERY_BYTES = 10 + 12 + 2 * FRAME_OVERHEAD    # frames of a delivery, besides what varies

cdef enum hot_method:           # class << 16 | method
    BASIC_PUBLISH = 0x3C0028
    BASIC_RETURN = 0x3C0032
    BASIC_DELIVER = 0x3C003C
    BASIC_GET_OK = 0x3C0047
    BASIC_ACK = 0x3C0050
    BASIC_REJECT = 0x3C005A
    BASIC_NACK = 0x3C0078
    BASIC_CLASS = 60


# ---- memory of a link ----------------------------------------------------------------------------

cdef inline bint link_may_take(const link_t* l, u64 n) noexcept nogil:
    """Whether the link may hold n more bytes for a large message: all links share one bound, and
    each has a little of its own, so that those who take much cannot stop those who take little."""
    return l.loop.large_bytes + n <= l.loop.max_large or l.large_bytes + n <= LARGE_SHARE


cdef inline bint link_owes_much(const link_t* l) noexcept nogil:
    """Whether so much output waits for the peer to read that it should not ask for more."""
    cdef u32 n = l.out_end - l.out_at
    return n + l.rest_bytes > MAX_OUTPUT or (n > BLOCK_SIZE and not link_may_take(l, 0))


cdef inline void link_take(link_t* l, u64 n) noexcept nogil:
    l.large_bytes += n
    l.loop.large_bytes += n
    if l.loop.large_bytes > l.loop.large_peak:
        l.loop.large_peak = l.loop.large_bytes


cdef inline void link_give(link_t* l, u64 n) noexcept nogil:
    lmq_assert(l.large_bytes >= n and l.loop.large_bytes >= n)
    l.large_bytes -= n
    l.loop.large_bytes -= n


cdef void link_free(link_t* l, u8* p, u64 n) noexcept nogil:
    """Free memory that the link has taken. It counts for the loop until it is free."""
    l.large_bytes -= n
    loop_free(l.loop, p, n, n)


cdef void link_drop_output(link_t* l) noexcept nogil:
    """Let go of the output buffer and what is in it."""
    if l.out_cap > BLOCK_SIZE:
        link_free(l, l.out, l.out_cap)
    else:
        buffer_give(&l.loop.pool, l.out, l.out_cap)
    l.out = NULL
    l.out_at = l.out_end = l.out_cap = 0


# ---- output of a link ----------------------------------------------------------------------------

cdef inline int link_send(link_t* l) noexcept nogil:
    """Hand the output to the kernel. 1 all taken, 0 kernel full (sets is_blocked) or something else
    comes first, -1 lost."""
    if l.rests != NULL:
        return 0
    return link_send_from(l, l.out, &l.out_at, &l.out_end)


cdef int link_send_from(link_t* l, u8* p, u32* at, u32* end) noexcept nogil:
    """link_send for a block, of which the bytes from `at` to `end` are left."""
    cdef ssize_t k
    while at[0] < end[0]:
        if l.has_tls:
            k = link_send_tls(l, p + at[0], end[0] - at[0])
            if k < 0:
                set_errno(<int>-k)      # not in there: handing on the GIL may change it
        else:
            k = c_send(l.fd, p + at[0], end[0] - at[0], MSG_NOSIGNAL | MSG_DONTWAIT)
        if k < 0:
            if errno == EINTR:
                continue
            if errno == EAGAIN:
                l.is_blocked = True
                return 0
            at[0] = end[0] = 0          # the reader learns of the loss
            return -1
        at[0] += <u32>k
        l.n_sent_bytes += <u64>k
        l.last_sent_ns = l.loop.now_ns
    at[0] = end[0] = 0
    return 1


cdef void link_release_output(link_t* l) noexcept nogil:
    """Give an empty output block back."""
    if l.out != NULL and l.out_at == l.out_end:
        link_drop_output(l)


cdef u8* link_room_slow(link_t* l, u64 need) noexcept nogil:
    cdef u64 used = l.out_end - l.out_at, cap
    cdef u8* grown
    if l.out != NULL and used and not l.is_blocked:
        link_send(l)
        used = l.out_end - l.out_at
    if l.out != NULL and used == 0 and need <= l.out_cap:
        l.out_at = l.out_end = 0
        return l.out
    if l.out == NULL and need <= BLOCK_SIZE:
        l.out = block_take(&l.loop.pool)
        if l.out == NULL:
            return NULL
        l.out_cap = BLOCK_SIZE
        l.out_at = l.out_end = 0
        return l.out
    cap = used + need
    cap = (cap + (cap >> 1) + 65536) if used else cap + 1
    if cap == BLOCK_SIZE:
        cap += 1
    if cap >> 32:
        return NULL
    grown = <u8*>malloc(cap)
    if grown == NULL:
        return NULL
    if used:
        memcpy(grown, l.out + l.out_at, used)
    link_drop_output(l)
    l.out = grown
    l.out_cap = <u32>cap
    if cap > BLOCK_SIZE:
        link_take(l, cap)
    l.out_at = 0
    l.out_end = <u32>used
    return l.out + l.out_end


# hot
cdef inline u8* link_room(link_t* l, u64 need) noexcept nogil:
    """Where the next `need` bytes of output go; the caller advances out_end. NULL when out of
    memory or the link is gone. Makes room by sending first, so it may set is_blocked."""
    if l.fd < 0:
        return NULL
    if not l.is_in_flush:
        l.is_in_flush = True
        l.flush_next = l.loop.flush_links
        l.loop.flush_links = l
    if l.out != NULL and l.out_end + need <= l.out_cap:
        return l.out + l.out_end
    return link_room_slow(l, need)


# ---- frames --------------------------------------------------------------------------------------

# hot
cdef inline u8* frame_head(u8* p, u8 frame_type, u16 channel, u32 size) noexcept nogil:
    p[0] = frame_type
    put_be16(p + 1, channel)
    put_be32(p + 3, size)
    return p + 7


# hot
cdef inline u8* content_write(u8* p, u16 channel, const rec_t* r, u32 chunk) noexcept nogil:
    """Header frame and body frames of a stored record at p; returns the end. A far body is left
    to a rest."""
    cdef u64 left = r.body_len if r.body != NULL else 0
    cdef const u8* body = r.body
    cdef u32 n = r.props_len
    props_to_wire(p + 19, r)
    if r.bcc_len:
        n = props_cut(p + 19, n, r.headers_at, r.bcc_at, r.bcc_len)
    if r.extra != NULL:
        n = props_add_header(p + 19, n, r.extra, r.extra_len)
    p = frame_head(p, FRAME_HEADER, channel, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, r.body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    while left:
        n = chunk if left > chunk else <u32>left
        p = frame_head(p, FRAME_BODY, channel, n)
        memcpy(p, body, n)
        p[n] = FRAME_END
        p += n + 1
        body += n
        left -= n
    return p


# hot
cdef inline u64 content_size(const rec_t* r, u32 chunk) noexcept nogil:
    """Bytes that content_write will write, or a few more."""
    cdef u64 body_len = r.body_len if r.body != NULL else 0
    cdef u64 frames = 1 if body_len <= chunk else (body_len + chunk - 1) / chunk
    cdef u64 extra = 4 + r.extra_len if r.extra != NULL else 0
    return FRAME_OVERHEAD + 12 + r.props_len + extra + frames * FRAME_OVERHEAD + body_len


# hot
cdef inline bint header_fits(const rec_t* r, u32 chunk) noexcept nogil:
    """Whether the header frame of a record is not larger than the client takes."""
    return 12 + r.props_len - r.bcc_len + (4 + r.extra_len if r.extra != NULL else 0) <= chunk


# hot
cdef inline u8* deliver_head(u8* p, const consumer_t* k, const rec_t* r, u64 tag) noexcept nogil:
    """The frame of basic.deliver at p; returns the end."""
    memcpy(p, k.template, k.template_len)
    put_be32(p + 3, k.template_len - 7 + 9 + r.names_len)
    p += k.template_len
    put_be64(p, tag)
    p[8] = r.redelivered
    memcpy(p + 9, r.names, r.names_len)
    p += 9 + r.names_len
    p[0] = FRAME_END
    return p + 1


# hot
cdef inline bint deliver_write(consumer_t* k, rec_t* r, u64 tag) noexcept nogil:
    """basic.deliver with its content into the link's output. False when the link can take no more,
    or its client never takes this one: its session is told then.

    Cost: 10 ns and 0.1 ns per byte for what has no headers, fits a frame and the output."""
    cdef link_t* l = k.chan.link
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD
    cdef u32 n = r.props_len, body_len, most
    cdef u8* p
    if r.headers_at or r.body == NULL or r.body_len > chunk:
        return deliver_write_any(k, r, tag)
    body_len = <u32>r.body_len
    most = n if r.extra == NULL else n + 4 + r.extra_len
    if (12 + most > chunk or not l.is_in_flush
            or l.out_end + <u64>k.template_len + r.names_len + most + body_len + DELIVERY_BYTES
            > l.out_cap):
        return deliver_write_any(k, r, tag)
    p = deliver_head(l.out + l.out_end, k, r, tag)
    props_to_wire(p + 19, r)
    if r.extra != NULL:
        n = props_add_header(p + 19, n, r.extra, r.extra_len)
    p = frame_head(p, FRAME_HEADER, k.chan.id, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    if body_len:
        p = frame_head(p, FRAME_BODY, k.chan.id, body_len)
        memcpy(p, r.body, body_len)
        p += body_len
        p[0] = FRAME_END
        p += 1
    l.out_end = <u32>(p - l.out)
    return True


cdef bint deliver_write_any(consumer_t* k, rec_t* r, u64 tag) noexcept nogil:
    """deliver_write for whatever record, and an output that may be full."""
    cdef link_t* l = k.chan.link
    cdef u32 chunk = l.frame_max - FRAME_OVERHEAD
    cdef u64 need = k.template_len + 10 + r.names_len + content_size(r, chunk)
    cdef rest_t* rest = NULL
    cdef u8* p
    cdef u8* start
    record_find_bcc(r)
    if not header_fits(r, chunk):
        k.chan.is_oversized = l.is_oversized = True
        return False
    if l.out_at < l.out_end and l.out_end + need > l.out_cap and link_send(l) != 1:
        return False
    if need > BLOCK_SIZE and need > l.out_cap and not link_may_take(l, need):
        k.wants = need
        return False
    if record_has_far_body(r):
        rest = rest_new(l, k.queue, r)
        if rest == NULL:
            return False
    p = start = link_room(l, need)
    if p == NULL:
        if rest != NULL:
            rest_free(rest)
        return False
    p = content_write(deliver_head(p, k, r, tag), k.chan.id, r, chunk)
    l.out_end += <u32>(p - start)
    lmq_assert(l.out_end <= l.out_cap)
    if rest != NULL:
        rest.channel = k.chan.id
        link_add_rest(l, rest)
    return True


# hot
cdef bint queue_deliver(queue_t* q) noexcept nogil:
    """Give ready messages to able consumers in turn.
    Returns whether the budget ended before the work."""
    cdef i64 budget = DELIVER_BUDGET
    cdef bint is_more = queue_deliver_within(q, &budget)
    q.loop.work += <u32>((DELIVER_BUDGET - budget) >> 5)
    return is_more


# hot
cdef inline bint queue_deliver_within(queue_t* q, i64* left) noexcept nogil:
    """queue_deliver with a budget of bytes, each message counting 64 more.

    Cost: 25 ns per message."""
    cdef rec_t rec
    cdef consumer_t* k
    cdef chan_t* c
    if q.is_paused or q.n_orphans:
        return False
    while q.ready and q.able != NULL:
        k = q.able
        if not consumer_is_able(k):
            consumer_leave_ring(k)
            continue
        if left[0] <= 0:
            return True
        if queue_next(q, &rec) != 1:
            return False
        c = k.chan
        if not deliver_write(k, &rec, c.next_tag):
            consumer_leave_ring(k)
            if not c.link.is_blocked and not k.is_patient and not c.is_oversized:
                loop_add_patient(q.loop, k)     # large messages of others fill the memory
            continue
        left[0] -= rec.size + 64
        queue_take(q, &rec, k.is_no_ack)
        if rec.redelivered:
            c.tally.redeliver += 1
        if k.is_no_ack:
            q.n_delivered_no_ack += 1
            c.tally.deliver_no_ack += 1
            channel_skip_tag(c)
        else:
            q.n_delivered += 1
            c.tally.deliver += 1
            k.unacked += 1
            c.global_unacked += 1
            if channel_push(c, q, k, &rec):
                queue_failed(q)
                return False
        if q.able == k:
            q.able = k.next
    return False
