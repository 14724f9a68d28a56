# Unacked: the deliveries of a channel that wait to be settled.
#
# Tags are dense, so an unsettled delivery is ring[tag & mask]: any ack is O(1) per message. When a
# few old deliveries keep the ring long they move to a short sorted list, so memory follows what is
# unsettled and not how far apart the tags are. Called by deliver.pyx, stream.pyx and channel.pyx.


# hot
cdef inline void channel_skip_tag(chan_t* c) noexcept nogil:
    """An automatic-ack delivery used a tag; channel_has_room was asked. Cost: 1 ns."""
    if c.first_tag == c.next_tag:
        c.first_tag += 1
    else:
        lmq_assert(c.next_tag - c.first_tag < c.ring_cap)
        c.ring[c.next_tag & (c.ring_cap - 1)].queue = NULL
    c.next_tag += 1


cdef int channel_park_old(chan_t* c) noexcept nogil:
    """Move the unsettled entries of the ring's older half to the sorted list.
    0, or -1 out of memory."""
    cdef u64 until = c.first_tag + c.ring_cap / 2
    cdef unacked_t* grown
    cdef unacked_t* u
    while c.first_tag < until:
        u = &c.ring[c.first_tag & (c.ring_cap - 1)]
        if u.queue != NULL:
            if c.n_old == c.cap_old:
                grown = <unacked_t*>realloc(c.old, (c.cap_old * 2 + 64) * sizeof(unacked_t))
                if grown == NULL:
                    return -1
                c.old = grown
                c.cap_old = c.cap_old * 2 + 64
            c.old[c.n_old] = u[0]
            c.n_old += 1
        c.first_tag += 1
    return 0


cdef int channel_grow(chan_t* c) noexcept nogil:
    """Make room for one more tag. 0, or -1 out of memory."""
    cdef u32 cap = c.ring_cap * 2 if c.ring_cap else 16
    cdef unacked_t* ring
    cdef u64 tag
    if c.ring_cap == 0 and not c.link.is_holder:
        c.link.is_holder = True
        c.link.held_ds = c.link.loop.now_ds
    if c.ring_cap >= 1024 and c.n_unacked < c.ring_cap / 4:
        return channel_park_old(c)
    ring = <unacked_t*>malloc(cap * sizeof(unacked_t))
    if ring == NULL:
        return -1
    tag = c.first_tag
    while tag < c.next_tag:
        ring[tag & (cap - 1)] = c.ring[tag & (c.ring_cap - 1)]
        tag += 1
    free(c.ring)
    c.ring = ring
    c.ring_cap = cap
    return 0


# hot
cdef inline bint channel_has_room(chan_t* c, bint is_no_ack) noexcept nogil:
    """Whether one more delivery can be noted; false: out of memory. To be asked before it is
    written: what the client has under a tag cannot be taken back. Cost: 1 ns."""
    return ((is_no_ack and c.first_tag == c.next_tag) or c.next_tag - c.first_tag < c.ring_cap
            or channel_grow(c) == 0)


# hot
cdef inline void channel_push(chan_t* c, queue_t* q, consumer_t* k,
                              const rec_t* rec) noexcept nogil:
    """Note the delivery with tag next_tag; k is NULL for basic.get. channel_has_room was asked.
    Cost: 3 ns."""
    cdef unacked_t* u
    lmq_assert(c.next_tag - c.first_tag < c.ring_cap)
    u = &c.ring[c.next_tag & (c.ring_cap - 1)]
    u.tag = c.next_tag
    u.queue = q
    u.consumer = k
    u.seg = rec.seg
    u.pos = rec.pos
    u.size = rec.size
    u.level = rec.level
    u.seq = rec.seq
    u.is_tx_settled = False
    u.delivered_ds = q.loop.now_ds
    if q.features != NULL and q.features.delivery_limit >= 0:
        queue_count_delivery(q, rec)
    q.refs += 1
    if k != NULL:
        k.refs += 1
    c.n_unacked += 1
    c.next_tag += 1


cdef inline u32 channel_old_from(const chan_t* c, u64 tag) noexcept nogil:
    """Index of the first entry of the list of old ones with this tag or a higher one."""
    cdef u32 lo = 0, hi = c.n_old, mid
    while lo < hi:
        mid = (lo + hi) >> 1
        if c.old[mid].tag < tag:
            lo = mid + 1
        else:
            hi = mid
    return lo


cdef unacked_t* channel_find(chan_t* c, u64 tag) noexcept nogil:
    """The unsettled delivery with this tag, or NULL."""
    cdef u32 lo
    cdef unacked_t* u
    if tag >= c.next_tag:
        return NULL
    if tag >= c.first_tag:
        u = &c.ring[tag & (c.ring_cap - 1)]
        return u if u.queue != NULL else NULL
    lo = channel_old_from(c, tag)
    if lo < c.n_old and c.old[lo].tag == tag and c.old[lo].queue != NULL:
        return &c.old[lo]
    return NULL
