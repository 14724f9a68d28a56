# Tally: what has been counted of messages, for management and metrics.
#
# Channels count what happens on them, in fields beside those that the same step writes anyway. The
# totals of a vhost are those of its channels: of the ones that are there, looked at when somebody
# asks, and of the ones that have gone, added when they went. So a message pays for one counter, and
# the totals never go down.

cdef void tally_add(tally_t* total, const tally_t* t) noexcept nogil:
    """Add t to total: both are nothing but numbers."""
    cdef u64* to = <u64*>total
    cdef const u64* p = <const u64*>t
    cdef size_t i
    for i in range(sizeof(tally_t) // sizeof(u64)):
        to[i] += p[i]


cdef void tally_join(chan_t* c, vhost_t* vhost) noexcept nogil:
    """Have a vhost count what the new channel does."""
    c.vhost = vhost
    c.vhost_next = vhost.chans
    if vhost.chans != NULL:
        vhost.chans.vhost_prev = c
    vhost.chans = c


cdef void tally_leave(chan_t* c) noexcept nogil:
    """The channel goes, what it has done stays."""
    if c.vhost == NULL:
        return
    tally_add(&c.vhost.past, &c.tally)
    if c.vhost_next != NULL:
        c.vhost_next.vhost_prev = c.vhost_prev
    if c.vhost_prev != NULL:
        c.vhost_prev.vhost_next = c.vhost_next
    else:
        c.vhost.chans = c.vhost_next
    c.vhost = NULL


cdef tally_t tally_of_vhost(const vhost_t* vhost) noexcept nogil:
    """The totals of a vhost. Cost: a cache miss for each of its channels."""
    cdef tally_t total = vhost.past
    cdef const chan_t* c = vhost.chans
    while c != NULL:
        tally_add(&total, &c.tally)
        c = c.vhost_next
    return total


cdef dict tally_dict(const tally_t* t):
    """What management calls the numbers."""
    return {
        "publish": t.publish, "confirm": t.confirm, "deliver": t.deliver,
        "deliver_no_ack": t.deliver_no_ack, "get": t.get, "get_no_ack": t.get_no_ack,
        "deliver_get": t.deliver + t.deliver_no_ack + t.get + t.get_no_ack,
        "ack": t.ack, "reject": t.reject, "redeliver": t.redeliver,
        "return_unroutable": t.return_unroutable,
    }


cdef tuple bucket_bounds():
    cdef u32 i
    return tuple([BUCKET_NS[i] / 1e9 for i in range(<u32>N_BUCKETS - 1)])


DURATION_BOUNDS = bucket_bounds()
