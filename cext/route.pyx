# Route: from (exchange, routing key) bytes to queues, and storing a message there.
#
# A channel keeps its last route, so a publisher that stays with one key pays one comparison.
# Exchanges that this connection may write to are known to the link; whether that still holds is one
# comparison with the vhost's epoch. Anything unknown is a miss: Python checks existence and
# permission once and tells the link.
# Source: amqp reference sections 8, 11 and 12; architecture section 6.

cdef enum publish_result:
    PUBLISHED = 0
    PUBLISH_MISS = 1            # ask Python about the exchange
    PUBLISH_TX_TOO_LARGE = 2
    PUBLISH_BAD_HEADER = 3      # the header to hash on is no string
    PUBLISH_NO_MEMORY = -1

cdef enum:
    KNOWN_SLOTS = 16


# ---- exchanges a link may publish to -------------------------------------------------------------

# hot
cdef inline bint known_is(const known_t* known, const u8* name, u32 name_len) noexcept nogil:
    return (known.exchange != NULL and known.name_len == name_len
            and same_bytes(known.name, name, name_len))


# hot
cdef inline exchange_t* link_known(link_t* l, const u8* name, u32 name_len) noexcept nogil:
    """The exchange of that name when this connection may write to it, else NULL. Cost: 5 ns."""
    cdef known_t* known
    if l.known == NULL or l.known_epoch != l.vhost.epoch:
        return NULL
    known = &l.known[hash_bytes(name, name_len, 0) & (KNOWN_SLOTS - 1)]
    if not known_is(known, name, name_len):
        known = &l.known[KNOWN_SLOTS]
    return known.exchange if known_is(known, name, name_len) else NULL


cdef int link_learn(link_t* l, const u8* name, u32 name_len, exchange_t* x) noexcept nogil:
    """Remember that this connection may write to x. 0, or -1 out of memory."""
    cdef known_t* known
    if l.known == NULL:
        l.known = <known_t*>malloc((KNOWN_SLOTS + 1) * sizeof(known_t))
        if l.known == NULL:
            return -1
        l.known_epoch = 0
    if l.known_epoch != l.vhost.epoch:
        memset(l.known, 0, (KNOWN_SLOTS + 1) * sizeof(known_t))
        l.known_epoch = l.vhost.epoch
    known = &l.known[hash_bytes(name, name_len, 0) & (KNOWN_SLOTS - 1)]
    if known.exchange != NULL:      # a publish may need both: its exchange and its dead letter's
        l.known[KNOWN_SLOTS] = known[0]
    known.exchange = x
    known.name_len = <u8>name_len
    memcpy(known.name, name, name_len)
    return 0


cdef bint letter_is_unknown(chan_t* c, const msg_t* m) noexcept nogil:
    """Whether a message names an exchange for its death that the link does not know: who may not
    publish there must not get there by dying. It is told to Python by the channel's link."""
    cdef link_t* l = c.link
    cdef slice_t name
    if m.headers_at == 0:
        return False
    name = table_value(m.props + m.headers_at + 4, m.headers_len, b"x-dead-letter-exchange", c'S')
    if (name.p == NULL or name.n > 255 or link_known(l, name.p, name.n) != NULL
            or vhost_exchange(l.vhost, name.p, name.n) == NULL):
        return False
    l.ev_data = name.p - 1          # the last byte of its length, which is all of it here
    l.ev_channel = c.id
    return True


# ---- routing -------------------------------------------------------------------------------------

# hot
cdef inline bint channel_has_route(const chan_t* c, const u8* names, u32 names_len) noexcept nogil:
    """Whether the channel's last exchange and key were these bytes and are still known."""
    return (c.route_epoch == c.link.vhost.epoch and c.route_names_len == names_len
            and same_bytes(c.route_names, names, names_len))


cdef int route_nested(exchange_t* root, const msg_t* m, targets_t* out,
                      bint* is_key_only) noexcept nogil:
    """Fill out, which is empty, with the queues that the keys of m reach over bindings between
    exchanges; say whether the routing key alone has decided.

    An exchange none of whose bindings matches gives the message to its alternate; if no queue at
    all is reached, those of the other exchanges are asked, too, in the order of the walk.
    Each exchange is visited once per message, so cycles end; iterative, so chains may be long.
    What match_route returns."""
    cdef exchange_t* x
    cdef u32 i = 0, n = 0, n_queues = 0, n_asked = 0
    cdef u64 n_matches
    cdef int rc
    is_key_only[0] = not has_copies(m)
    if match_take(out, &root.dest):
        return -1
    while i < out.n:
        if out.items[i].kind == DEST_EXCHANGE:
            x = <exchange_t*>out.items[i]
            is_key_only[0] = is_key_only[0] and x.has_key_routes and x.delayed == NULL
            n_matches = out.n + out.n_again
            if x.delayed != NULL and is_delayed(x, m.props, m.headers_at):
                rc = match_take(out, &x.delayed.dest)
            else:
                rc = match_keys(x.match, m, out)
            if rc == 0 and x.alternate != NULL and out.n + out.n_again == n_matches:
                rc = match_take(out, &x.alternate.dest)
            if rc:
                return rc
        else:
            n_queues += 1
        i += 1
        while n_queues == 0 and i == out.n and n_asked < out.n:
            x = (<exchange_t*>out.items[n_asked]).alternate
            n_asked += 1
            if x != NULL and match_take(out, &x.dest):
                return -1
    for i in range(out.n):
        if out.items[i].kind == DEST_QUEUE:
            out.items[n] = out.items[i]
            n += 1
    out.n = n
    return 0


# hot
cdef int channel_route(chan_t* c, const msg_t* m) noexcept nogil:
    """Fill c.targets with the queues that m goes to.
    Cost: 3 ns for the last route, else one match."""
    cdef link_t* l = c.link
    cdef exchange_t* x
    cdef u32 name_len
    cdef bint is_key_only
    cdef int rc
    if channel_has_route(c, m.names, m.names_len):
        x = c.route_exchange
        if x.has_key_routes and c.route_version == x.version and not has_copies(m):
            return PUBLISHED
    else:
        name_len = m.names[0]
        x = m.exchange
        if x == NULL:
            x = link_known(l, m.names + 1, name_len)
        if x == NULL:
            return PUBLISH_MISS
        c.route_exchange = x
        c.route_names_len = m.names_len
        memcpy(c.route_names, m.names, m.names_len)
        c.route_epoch = l.vhost.epoch
    name_len = m.names[0]
    l.loop.generation += 1
    c.targets.n = 0
    c.targets.generation = l.loop.generation
    c.route_version = x.version
    if x.is_plain and not has_copies(m):
        rc = match_route(x.match, m.names + name_len + 2, m.names[name_len + 1], m.props,
                         m.headers_at, &c.targets)
    else:
        rc = route_nested(x, m, &c.targets, &is_key_only)
        if not is_key_only:
            c.route_version = 0
    if rc:
        c.route_version = 0
        return PUBLISH_BAD_HEADER if rc == MATCH_BAD_HEADER else PUBLISH_NO_MEMORY
    return PUBLISHED


# ---- publishing ----------------------------------------------------------------------------------

cdef bint any_target_is_able(const chan_t* c) noexcept nogil:
    """Whether a matched queue has a consumer that can take a message now (immediate), or the
    message is to wait, so that nobody can tell yet."""
    cdef u32 i
    for i in range(c.targets.n):
        if (<queue_t*>c.targets.items[i]).releases != NULL:
            return True
        if queue_has_able(<queue_t*>c.targets.items[i]):
            return True
    return False


cdef int return_write(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil:
    """basic.return with its content. 0, or -1 out of memory."""
    cdef link_t* l = c.link
    cdef u32 text_len = <u32>strlen(text), chunk = l.frame_max - FRAME_OVERHEAD, n, bcc_len
    cdef u64 frames = (m.body_len + chunk - 1) / chunk, left = m.body_len
    cdef const u8* body = m.body
    cdef u8* p = link_room(l, 48 + text_len + m.names_len + m.props_len
                           + frames * FRAME_OVERHEAD + m.body_len)
    cdef u8* start = p
    if p == NULL:
        return -1
    p = frame_head(p, FRAME_METHOD, c.id, 7 + text_len + m.names_len)
    put_be32(p, BASIC_RETURN)
    put_be16(p + 4, code)
    p[6] = <u8>text_len
    memcpy(p + 7, text, text_len)
    memcpy(p + 7 + text_len, m.names, m.names_len)
    p += 7 + text_len + m.names_len
    p[0] = FRAME_END
    p += 1
    n = m.props_len
    memcpy(p + 19, m.props, n)
    if m.bcc_at:
        bcc_len = <u32>entry_size(m.props + m.bcc_at, m.props_len - m.bcc_at)
        n = props_cut(p + 19, n, m.headers_at, m.bcc_at, bcc_len)
    p = frame_head(p, FRAME_HEADER, c.id, 12 + n)
    put_be32(p, BASIC_CLASS << 16)
    put_be64(p + 4, m.body_len)
    p += 12 + n
    p[0] = FRAME_END
    p += 1
    while left:
        n = chunk if left > chunk else <u32>left
        p = frame_head(p, FRAME_BODY, c.id, n)
        memcpy(p, body, n)
        p[n] = FRAME_END
        p += n + 1
        body += n
        left -= n
    l.out_end += <u32>(p - start)
    return 0


# hot
cdef inline void channel_want_sync(chan_t* c, queue_t* q) noexcept nogil:
    """What c waits for, a confirm or a commit, waits for what q has been given."""
    cdef loop_t* loop = c.link.loop
    if (c.is_confirm or c.tx_last != NULL) and q.store.is_durable:
        c.needs_sync = True
        if loop.sync and not q.is_sync_wanted:
            loop_want_sync(loop, q)


cdef void channel_drop_duplicate(chan_t* c) noexcept nogil:
    """The exchange has taken this message before. The confirm of the second one says that the
    first one is safe, so it waits for the queues that this has gone to."""
    cdef queue_t* q
    cdef u32 i
    c.route_exchange.n_dedup += 1
    for i in range(c.targets.n):
        q = <queue_t*>c.targets.items[i]
        if not q.is_closed:
            channel_want_sync(c, q)


# hot
cdef int channel_publish(chan_t* c, msg_t* m) noexcept nogil:
    """Route m, store it in every queue, note the confirm.
    Cost: 20 ns and 12 ns per further queue."""
    cdef loop_t* loop = c.link.loop
    cdef queue_t* q
    cdef exchange_t* x
    cdef u32 i, n_stored = 0
    cdef bint is_overflowed = False, is_refused = False, is_durable = False
    cdef int rc
    if c.is_tx:
        return tx_keep_publish(c, m)
    rc = channel_route(c, m)
    if rc:
        return rc
    x = c.route_exchange
    x.n_in += 1
    m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
    if x.dedup != NULL and dedup_seen(x.dedup, m, loop.now_ms):
        channel_drop_duplicate(c)
        if c.publish_flags & 2:
            return_write(c, m, 313, b"NO_CONSUMERS")
        elif c.publish_flags & 1:
            return_write(c, m, 312, b"NO_ROUTE")
    elif c.publish_flags & 2 and not any_target_is_able(c):
        return_write(c, m, 313, b"NO_CONSUMERS")
    else:
        for i in range(c.targets.n):
            q = <queue_t*>c.targets.items[i]
            if q.is_closed:
                continue
            channel_want_sync(c, q)
            rc = queue_append(q, m)
            if rc == APPENDED:
                n_stored += 1
                is_durable = is_durable or q.store.is_durable
            elif rc == APPEND_REFUSED:
                is_overflowed = True
            elif rc == APPEND_FAILED:
                is_refused = True
                c.is_refused = c.is_confirm
            if q.is_crowded:
                c.link.crowd_bytes += <u32>m.size
        x.n_out += n_stored
        # What is refused anywhere is nacked: it must be able to come again.
        if x.dedup != NULL and n_stored and not is_refused and not is_overflowed:
            dedup_remember(x.dedup, m, loop.now_ms, is_durable)
        if n_stored == 0 and not is_overflowed:
            x.n_unroutable += 1
            if c.publish_flags & 1:
                return_write(c, m, 312, b"NO_ROUTE")
    if c.is_confirm:
        c.publish_seq += 1
        if is_overflowed:
            confirm_refuse(c)
        elif not c.is_in_confirms:
            loop_want_confirm(loop, c)
    c.is_overflowed = c.is_overflowed or is_overflowed
    if loop.over != NULL:
        loop_enforce(loop)
    return PUBLISHED
