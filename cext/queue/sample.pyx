# Sample: some of the messages that pass an exchange or a queue, for who follows them live.
#
# It is a place in front of which messages pass, and an eye that is open for moments: an exchange
# takes it for one more destination, and a queue takes the long way as for its features, until
# it has what is wanted until the next look; then it closes by itself, and messages go as if nobody
# followed. How many have passed meanwhile is what the exchange or queue counts anyway. What
# an exchange does not count as published there (it comes by another one, or has died) is counted by
# what routes it: channels that keep such a route know what they publish, so they note where that
# began (passing_t), and pay nothing for each message. Called by what appends to a queue or a
# history, by through.pyx, route.pyx and the door. Source: decisions 0082 and 0058.

cdef inline u64 sample_counted(const sample_t* s) noexcept nogil:
    """What the queue or exchange that is followed has counted; 0 when none is."""
    if s.queue != NULL:
        return s.queue.n_published
    return s.exchange.n_in if s.exchange != NULL else 0


cdef u64 sample_unseen(const sample_t* s) noexcept nogil:
    """What has passed since it was closed, or was last noted."""
    cdef const passing_t* p = s.passings
    cdef u64 n = 0
    while p != NULL:
        n += p.channel.tally.publish - p.since
        p = p.next
    if s.is_open or (s.queue == NULL and s.exchange == NULL):
        return n
    return n + sample_counted(s) - s.closed_at


cdef bint sample_wants(const exchange_t* x) noexcept nogil:
    """Whether what goes through x, which is followed, comes by its sample."""
    return x.followed.history.sample.is_open


cdef void exchange_note_plain(exchange_t* x) noexcept nogil:
    """Have publishes take the short way if nothing about x asks for another."""
    x.is_plain = (x.n_exchanges == 0 and x.alternate == NULL and x.delayed == NULL
                  and x.bridge == NULL and x.history == NULL
                  and (x.followed == NULL or not sample_wants(x)))


cdef void passing_end(passing_t* p) noexcept nogil:
    """A route leads past a sample no more, or the sample is gone: count what has passed. Its
    channel forgets it."""
    p.sample.n_seen += p.channel.tally.publish - p.since
    if p.prev == NULL:
        p.sample.passings = p.next
    else:
        p.prev.next = p.next
    if p.next != NULL:
        p.next.prev = p.prev
    free(p)


cdef void channel_pass_none(chan_t* c) noexcept nogil:
    """The route that c keeps, if any, passes no samples."""
    cdef passing_t* p
    while c.passings != NULL:
        p = c.passings
        c.passings = p.also
        passing_end(p)


cdef void channel_pass(chan_t* c, sample_t* passed) noexcept nogil:
    """What c publishes next, and as long as it keeps its route what comes behind, passes these
    samples. Out of memory: that is not counted."""
    cdef passing_t* p = c.passings
    cdef sample_t* s = passed
    while p != NULL and p.sample == s:
        p = p.also
        s = s.next_passed
    if p == NULL and s == NULL:
        return                          # as before
    channel_pass_none(c)
    while passed != NULL:
        p = <passing_t*>malloc(sizeof(passing_t))
        if p == NULL:
            return
        p.sample = passed
        p.channel = c
        p.since = c.tally.publish
        p.prev = NULL
        p.next = passed.passings
        if p.next != NULL:
            p.next.prev = p
        passed.passings = p
        p.also = NULL
        channel_add_passing(c, p)
        passed = passed.next_passed


cdef void channel_add_passing(chan_t* c, passing_t* p) noexcept nogil:
    """In the order in which they are passed."""
    cdef passing_t** at = &c.passings
    while at[0] != NULL:
        at = &at[0].also
    at[0] = p


cdef void sample_note_passed(sample_t* passed) noexcept nogil:
    """One message, which is no channel's, has passed these."""
    while passed != NULL:
        passed.n_seen += 1
        passed = passed.next_passed


cdef void sample_let_go(sample_t* s) noexcept nogil:
    """No channel knows it any more."""
    cdef passing_t** at
    cdef passing_t* p
    while s.passings != NULL:
        p = s.passings
        at = &p.channel.passings
        while at[0] != p:
            at = &at[0].also
        at[0] = p.also
        passing_end(p)


cdef void sample_open(sample_t* s) noexcept nogil:
    """Have what passes come by, if anything is followed."""
    cdef passing_t* p = s.passings
    if s.is_open or (s.queue == NULL and s.exchange == NULL):
        return
    s.n_seen += sample_unseen(s)
    s.is_open = True
    while p != NULL:
        p.since = p.channel.tally.publish
        p.channel.route_version = 0     # it asks anew, and takes the sample for a target
        p = p.next
    if s.queue != NULL:
        s.queue.sample = s
        queue_note_special(s.queue)
    else:
        s.exchange.version += 1         # routes that channels keep lead past it
        exchange_note_plain(s.exchange)


cdef void sample_close(sample_t* s) noexcept nogil:
    """The opposite."""
    if not s.is_open:
        return
    s.closed_at = sample_counted(s)
    s.is_open = False
    if s.queue != NULL:
        s.queue.sample = NULL
        queue_note_special(s.queue)
    else:
        s.exchange.version += 1
        exchange_note_plain(s.exchange)


cdef void sample_free(sample_t* s) noexcept nogil:
    """Let go of what was not fetched."""
    cdef taken_t* each
    while s.first != NULL:
        each = s.first
        s.first = each.next
        free(each)
    s.last = NULL


cdef u32 sample_props(u8* p, const msg_t* m) noexcept nogil:
    """Copy the properties, without what no client gets. Returns their bytes."""
    cdef const u8* entry
    cdef u32 at
    memcpy(p, m.props, m.props_len)
    if m.headers_at == 0:
        return m.props_len
    entry = table_find(m.props + m.headers_at + 4, be32(m.props + m.headers_at),
                       <const u8*>b"BCC", 3)
    if entry == NULL:
        return m.props_len
    at = <u32>(entry - m.props)
    return props_cut(p, m.props_len, m.headers_at, at,
                     <u32>entry_size(entry, m.props_len - at))


cdef void sample_take(sample_t* s, const msg_t* m, i64 now_ms) noexcept nogil:
    """A message passes. Of a large one the body is left out: it is on its way in pieces."""
    cdef taken_t* taken
    cdef u32 body_len = s.most_body if m.body_len > s.most_body else <u32>m.body_len
    cdef u64 need
    cdef u8* p
    s.n_seen += 1
    if s.left == 0:
        return
    if m.size > LARGE_RECORD or m.body == NULL:
        body_len = 0
    need = sizeof(taken_t) + <u64>m.names_len + m.props_len + body_len
    if need > s.room:
        return
    taken = <taken_t*>malloc(need)
    if taken == NULL:
        return
    s.left -= 1
    s.room -= need
    taken.next = NULL
    taken.at_ms = now_ms
    taken.size = m.body_len
    taken.names_len = m.names_len
    taken.body_len = body_len
    p = <u8*>(taken + 1)
    memcpy(p, m.names, m.names_len)
    taken.props_len = sample_props(p + m.names_len, m)
    if body_len:
        memcpy(p + m.names_len + taken.props_len, m.body, body_len)
    if s.last == NULL:
        s.first = taken
    else:
        s.last.next = taken
    s.last = taken
    if s.left == 0:
        sample_close(s)
