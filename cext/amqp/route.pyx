# Route: from (exchange, routing key) bytes to queues, and storing a message there.
#
# A channel keeps its last route, so a publisher that stays with one key pays one comparison.
# Exchanges that this connection may write to are known to the link; whether that still holds is one
# comparison with the vhost's epoch. Anything unknown is a miss: Python checks existence and
# permission once and tells the link; where routing keys matter as well, see answers.pyx.
# Source: amqp reference sections 8, 11 and 12; architecture section 6.

cdef enum publish_result:
    PUBLISHED = 0
    PUBLISH_MISS = 1            # ask Python about the exchange
    PUBLISH_TX_TOO_LARGE = 2
    PUBLISH_BAD_HEADER = 3      # the header to hash on is no string
    PUBLISH_TURN = 4            # the portion is over: the same message again goes on
    PUBLISH_NO_MEMORY = -1

cdef enum:
    KNOWN_SLOTS = 16
    DEDUP_UNITS = 100           # of work, to look for a message and to remember it
    TARGET_UNITS = 10           # of work, for each queue that takes a message
    LONG_TARGETS = 64           # so many queues, and the clock is looked at between them


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


cdef int publish_ask(link_t* l, const msg_t* m) noexcept nogil:
    """What is to be asked about a message besides its exchange and key, an ask_result: the keys of
    its copies, and where it goes when it dies. Who may not publish there must not get there by
    these ways."""
    cdef slice_t name, key
    cdef const u8* table = m.props + m.headers_at + 4
    cdef int rc = ASK_NOTHING
    if m.headers_at == 0:
        return ASK_NOTHING
    if has_copies(m) and l.answers != NULL and link_known(l, m.names + 1, m.names[0]) == NULL:
        rc = copies_ask(l, m)
    if rc != ASK_NOTHING or not m.is_special:
        return rc
    name = table_value(table, m.headers_len, b"x-dead-letter-exchange", c'S')
    key = table_value(table, m.headers_len, b"x-dead-letter-routing-key", c'S')
    if key.n > 255:
        key = no_slice()
    if name.p == NULL or name.n > 255:
        return letter_ask(l, no_slice(), key) if key.p != NULL else ASK_NOTHING
    if link_known(l, name.p, name.n) != NULL:
        return ASK_NOTHING
    return letter_ask(l, name, key)


# ---- routing -------------------------------------------------------------------------------------

# hot
cdef inline bint channel_has_route(const chan_t* c, const u8* names, u32 names_len) noexcept nogil:
    """Whether the channel's last exchange and key were these bytes and are still known. Who has
    asked already hands on the channel's own copy of them."""
    return (c.route_epoch == c.link.vhost.epoch and c.route_names_len == names_len
            and (names == c.route_names or same_bytes(c.route_names, names, names_len)))


cdef int route_nested(routing_t* r, exchange_t* root, const msg_t* m,
                      targets_t* out) noexcept nogil:
    """Fill out, which is empty, with the queues that the keys of m reach over bindings between
    exchanges. r, which is all zero at first, says how far this is when it is tired, and whether the
    routing key alone has decided.

    An exchange none of whose bindings matches gives the message to its alternate; if no queue at
    all is reached, those of the other exchanges are asked, too, in the order of the walk.
    Each exchange is visited once per message, so cycles end; iterative, so chains may be long.
    What match_route returns."""
    cdef exchange_t* x
    cdef u32 i, n = 0
    cdef bint is_waiting
    cdef int rc
    if not r.is_begun:
        r.is_begun = True
        r.is_key_only = not has_copies(m)
        if match_take(out, &root.dest):
            return -1
    while r.at < out.n:
        if out.items[r.at].kind == DEST_EXCHANGE:
            x = <exchange_t*>out.items[r.at]
            if not r.is_asking:
                r.is_asking = True
                r.is_key_only = r.is_key_only and x.has_key_routes and x.delayed == NULL
                r.n_matches = out.n + out.n_again
            is_waiting = x.delayed != NULL and is_delayed(x, m.props, m.headers_at)
            if is_waiting:
                rc = match_take(out, &x.delayed.dest)
            else:
                rc = match_keys(x.match, m, &r.n_keys, out)
            if rc == 0 and x.alternate != NULL and out.n + out.n_again == r.n_matches:
                rc = match_take(out, &x.alternate.dest)
            if rc == 0 and x.history != NULL and not is_waiting and history_wants(m):
                rc = match_take(out, &x.history.dest)
            if rc:
                return rc
            r.is_asking = False
        elif (<queue_t*>out.items[r.at]).history == NULL:
            r.n_queues += 1
        r.at += 1
        while r.n_queues == 0 and r.at == out.n and r.n_alternates < out.n:
            x = NULL
            if out.items[r.n_alternates].kind == DEST_EXCHANGE:
                x = (<exchange_t*>out.items[r.n_alternates]).alternate
            r.n_alternates += 1
            if x != NULL and match_take(out, &x.dest):
                return -1
        if match_tired(out, 2):
            return MATCH_TIRED
    for i in range(out.n):
        if out.items[i].kind == DEST_QUEUE:
            out.items[n] = out.items[i]
            n += 1
    out.n = n
    return 0


cdef bint route_pause(void* pauser, u32 work) noexcept nogil:
    """A routing asks whether its turn is over."""
    return loop_spent(<loop_t*>pauser, work)


cdef bint routing_is_valid(const chan_t* c) noexcept nogil:
    """Whether all that the routing in c's job has asked is as it was."""
    cdef const publish_job_t* job = c.job
    cdef u32 i
    if job.epoch != c.link.vhost.epoch:
        return False
    for i in range(job.n_asked):
        if job.asked[i].exchange.version != job.asked[i].version:
            return False
    return True


cdef int routing_note(publish_job_t* job, exchange_t* x) noexcept nogil:
    """The routing depends on x. 0, or -1 out of memory."""
    cdef void* grown
    if job.n_asked & (job.n_asked - 1) == 0:        # 0 or a power of two
        grown = realloc(job.asked, (job.n_asked * <size_t>2 + 1) * sizeof(asked_t))
        if grown == NULL:
            return -1
        job.asked = <asked_t*>grown
    job.asked[job.n_asked].exchange = x
    job.asked[job.n_asked].version = x.version
    job.n_asked += 1
    return 0


cdef int routing_keep(chan_t* c, const routing_t* r) noexcept nogil:
    """The routing of c's next publish is tired: keep how far it is. r is NULL when it does not lead
    through exchanges. PUBLISH_TURN or PUBLISH_NO_MEMORY."""
    cdef targets_t* out = &c.targets
    cdef u32 i = 0
    c.route_version = 0
    if c.job == NULL:
        c.job = <publish_job_t*>calloc(1, sizeof(publish_job_t))
        if c.job == NULL:
            return PUBLISH_NO_MEMORY
    c.job.epoch = c.link.vhost.epoch
    c.job.n_asked = 0
    if r == NULL:
        return PUBLISH_NO_MEMORY if routing_note(c.job, c.route_exchange) else PUBLISH_TURN
    c.job.routing = r[0]
    while i <= r.at and i < out.n:
        if (out.items[i].kind == DEST_EXCHANGE
                and routing_note(c.job, <exchange_t*>out.items[i])):
            return PUBLISH_NO_MEMORY
        i += 1
    return PUBLISH_TURN


cdef int channel_route_nested(chan_t* c, exchange_t* x, const msg_t* m) noexcept nogil:
    """Through exchanges, or by several keys. What match_route returns."""
    cdef routing_t r
    cdef int rc
    if c.job != NULL:
        r = c.job.routing
    else:
        memset(&r, 0, sizeof(routing_t))
    rc = route_nested(&r, x, m, &c.targets)
    if not r.is_key_only:
        c.route_version = 0
    if rc == MATCH_TIRED and routing_keep(c, &r) == PUBLISH_NO_MEMORY:
        rc = MATCH_NO_MEMORY
    return rc


# hot
cdef int channel_route(chan_t* c, const msg_t* m) noexcept nogil:
    """Fill c.targets with the queues that m goes to. PUBLISH_TURN when this turn is over: the same
    message again goes on.
    Cost: 3 ns for the last route, else one match."""
    cdef link_t* l = c.link
    cdef loop_t* loop = l.loop
    cdef exchange_t* x
    cdef u32 name_len
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
            x = link_allowed(l, m.names)
        if x == NULL:
            return PUBLISH_MISS
        c.route_exchange = x
        c.route_names_len = m.names_len
        memcpy(c.route_names, m.names, m.names_len)
        c.route_epoch = l.vhost.epoch
    name_len = m.names[0]
    loop.generation += 1
    c.targets.look = loop.match_look
    if c.job != NULL and not routing_is_valid(c):
        publish_drop(c)
    if c.job != NULL:
        targets_resume(&c.targets, loop.generation)
        loop.work += c.targets.n
    else:
        targets_begin(&c.targets, loop.generation)
    c.route_version = x.version
    if x.is_plain and not has_copies(m):
        rc = match_route(x.match, m.names + name_len + 2, m.names[name_len + 1], m.props,
                         m.headers_at, &c.targets)
        if rc == MATCH_TIRED and routing_keep(c, NULL) == PUBLISH_NO_MEMORY:
            rc = MATCH_NO_MEMORY
    else:
        rc = channel_route_nested(c, x, m)
    loop.work += c.targets.work
    c.targets.work = 0
    if rc == MATCH_TIRED:
        c.route_version = 0
        return PUBLISH_TURN
    if c.job != NULL:
        publish_job_free(c)
    if rc:
        c.route_version = 0
        cursor_reset(&c.targets)
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


cdef bint any_target_is_closed(const chan_t* c) noexcept nogil:
    """Whether a matched queue cannot take a message."""
    cdef u32 i
    for i in range(c.targets.n):
        if (<queue_t*>c.targets.items[i]).is_closed:
            return True
    return False


cdef inline bint publisher_is_told(const chan_t* c) noexcept nogil:
    """Whether somebody waits to hear that a publish is safe: by a confirm, or as a commit does."""
    return c.is_confirm or c.tx_last != NULL


cdef inline void queue_miss(queue_t* q) noexcept nogil:
    """A closed queue does not get a message, and its publisher did not want to know."""
    q.n_missed += 1
    if q.n_missed == 1:
        q.loop.is_news = True


cdef int return_write(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil:
    """basic.return with its content. 0, or -1 out of memory. The body of a large message that c has
    assembled is gone then: this is the last that is done for a publish."""
    cdef link_t* l = c.link
    cdef u32 text_len = <u32>strlen(text), chunk = l.frame_max - FRAME_OVERHEAD, n, bcc_len
    cdef bint is_sent_later = m.body_len > LARGE_RECORD and m.body == c.body
    cdef u64 left = m.body_len if not is_sent_later else 0
    cdef u64 frames = (left + chunk - 1) / chunk
    cdef const u8* body = m.body
    cdef rest_t* rest = NULL
    cdef u8* p = link_room(l, 48 + text_len + m.names_len + m.props_len
                           + frames * FRAME_OVERHEAD + left)
    if p != NULL and is_sent_later:
        rest = rest_of_content(c)
    if p == NULL or (is_sent_later and rest == NULL):
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
    link_wrote(l, p)
    if rest != NULL:
        link_add_rest(l, rest)
    c.tally.return_unroutable += 1
    return 0


# hot
cdef inline void channel_want_sync(chan_t* c, queue_t* q) noexcept nogil:
    """What c waits for, a confirm or a commit, waits for what q has been given."""
    cdef loop_t* loop = c.link.loop
    if publisher_is_told(c) and q.store.is_durable:
        c.needs_sync = True
        if loop.sync and not q.is_sync_wanted:
            loop_want_sync(loop, q)


cdef bint channel_drop_duplicate(chan_t* c, bint is_durable) noexcept nogil:
    """The exchange has taken this message before; `is_durable`: into a durable queue. The confirm
    of the second one says that the first one is safe, so it waits for whatever first ones went to,
    of which bindings of today tell nothing. False when that may be lost: then it is nacked."""
    c.route_exchange.n_dedup += 1
    if not is_durable or not publisher_is_told(c):
        return True
    c.needs_sync = True
    return loop_collect_owed(c.link.loop)


cdef bint publish_is_duplicate(chan_t* c, const msg_t* m, bint* is_nacked) noexcept nogil:
    """Whether the exchange, which drops duplicates, has taken this message before: then it is
    dropped here, and perhaps nacked."""
    cdef exchange_t* x = c.route_exchange
    cdef u32 seen = dedup_seen(x.dedup, m, c.link.loop.now_ms)
    c.link.loop.work += DEDUP_UNITS
    if x.storing != NULL and is_being_stored(x, m):
        x.n_dedup += 1
        is_nacked[0] = True     # nobody knows yet whether the first one will be safe
        c.is_refused = c.is_refused or (publisher_is_told(c) and not c.is_confirm)
        return True
    if seen == 0:
        return False
    is_nacked[0] = not channel_drop_duplicate(c, x.dedup.entries[seen].is_kept)
    if is_nacked[0]:
        c.is_refused = c.is_refused or not c.is_confirm
    elif c.publish_flags & 2:
        return_write(c, m, 313, b"NO_CONSUMERS")
    elif c.publish_flags & 1:
        return_write(c, m, 312, b"NO_ROUTE")
    return True


# hot
cdef inline void channel_store(chan_t* c, queue_t* q, const msg_t* m, bint is_told, bint is_owing,
                               stored_t* stored) noexcept nogil:
    """Store m in one of its queues, and note what came of it. `is_told`: see publisher_is_told;
    `is_owing`: its exchange drops duplicates, see queue_owe_sync."""
    cdef int rc
    if q.is_closed:
        stored.is_refused = True
        if not is_told:
            queue_miss(q)
        return
    if is_told:
        channel_want_sync(c, q)
    rc = queue_append(q, m)
    if rc == APPENDED:
        stored.n += 1
        if (is_told or is_owing) and q.store.is_durable:
            stored.is_durable = True
        if is_owing:
            queue_owe_sync(q)
    elif rc == APPEND_REFUSED:
        stored.is_overflowed = True
    elif rc == APPEND_FAILED:
        stored.is_refused = True
    if q.is_crowded:
        c.link.crowd_bytes += <u32>m.size


# hot
cdef inline void publish_end(chan_t* c, exchange_t* x, const msg_t* m,
                             const stored_t* stored) noexcept nogil:
    """m is stored wherever that was possible. x is NULL when it has gone meanwhile."""
    c.is_refused = c.is_refused or (stored.is_refused and publisher_is_told(c))
    if x != NULL:
        x.n_out += stored.n
        # What is refused anywhere is nacked: it must be able to come again.
        if (x.dedup != NULL and stored.n and not stored.is_refused
                and not stored.is_overflowed):
            dedup_remember(x.dedup, m, c.link.loop.now_ms, stored.is_durable)
    if stored.n == 0 and not stored.is_overflowed:
        if x != NULL:
            x.n_unroutable += 1
        if c.publish_flags & 1:
            return_write(c, m, 312, b"NO_ROUTE")


# hot
cdef inline int publish_confirm(chan_t* c, bint is_overflowed, bint is_nacked) noexcept nogil:
    """The publish is over: note that it is to be confirmed. PUBLISHED."""
    cdef loop_t* loop = c.link.loop
    if c.is_confirm:
        c.publish_seq += 1
        if is_overflowed or is_nacked:
            confirm_refuse(c)
        elif not c.is_in_confirms:
            loop_want_confirm(loop, c)
    c.is_overflowed = c.is_overflowed or is_overflowed
    if loop.over != NULL:
        loop_enforce(loop)
    return PUBLISHED


# hot
cdef int channel_publish(chan_t* c, msg_t* m) noexcept nogil:
    """Route m, store it in every queue, note the confirm. PUBLISH_TURN when this turn is over: the
    same message again goes on. The caller charges for the bytes of the message.
    Cost: 20 ns and 12 ns per further queue."""
    cdef exchange_t* x
    cdef queue_t* q
    cdef int rc
    if c.is_tx:
        return tx_keep_publish(c, m)
    if c.job != NULL and c.job.phase == PUBLISH_STORES:
        return publish_go_on(c, m)
    rc = channel_route(c, m)
    if rc:
        return rc
    x = c.route_exchange
    x.n_in += 1
    c.tally.publish += 1
    m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
    if c.targets.n != 1 or x.dedup != NULL or c.publish_flags & 2 or m.size > LARGE_RECORD:
        return channel_store_all(c, x, m)
    q = <queue_t*>c.targets.items[0]
    if q.is_closed:
        return channel_store_all(c, x, m)
    channel_want_sync(c, q)
    rc = queue_append(q, m)
    if q.is_crowded:
        c.link.crowd_bytes += <u32>m.size
    if rc != APPENDED:
        return publish_not_stored(c, x, m, rc)
    x.n_out += 1
    return publish_confirm(c, False, False)


cdef int publish_not_stored(chan_t* c, exchange_t* x, const msg_t* m, int rc) noexcept nogil:
    """The one queue of m did not take it. PUBLISHED."""
    cdef stored_t stored
    memset(&stored, 0, sizeof(stored_t))
    stored.is_overflowed = rc == APPEND_REFUSED
    stored.is_refused = rc == APPEND_FAILED
    publish_end(c, x, m, &stored)
    return publish_confirm(c, stored.is_overflowed, False)


# hot
cdef int channel_store_all(chan_t* c, exchange_t* x, msg_t* m) noexcept nogil:
    """Store m, which is routed, in any number of queues. What channel_publish returns."""
    cdef loop_t* loop = c.link.loop
    cdef stored_t stored
    cdef bint is_nacked = False, is_told = publisher_is_told(c), is_owing = x.dedup != NULL
    cdef u32 i, units
    memset(&stored, 0, sizeof(stored_t))
    if is_owing and publish_is_duplicate(c, m, &is_nacked):
        pass
    elif c.publish_flags & 2 and not any_target_is_able(c):
        return_write(c, m, 313, b"NO_CONSUMERS")
    elif loop.n_closed and is_told and any_target_is_closed(c):
        # Refused before any queue has it, so that it does not come twice when it comes again.
        is_nacked = True
        c.is_refused = c.is_refused or not c.is_confirm
    else:
        if c.targets.n > 1 or m.size > LARGE_RECORD:
            units = TARGET_UNITS + <u32>(m.size >> UNIT_SHIFT)
            if publish_is_long(c, units) and publish_hold(c, m):
                return publish_go_on(c, m)
            loop.work += c.targets.n * units
        for i in range(c.targets.n):
            channel_store(c, <queue_t*>c.targets.items[i], m, is_told, is_owing, &stored)
        publish_end(c, x, m, &stored)
    return publish_confirm(c, stored.is_overflowed, is_nacked)


# ---- publishing in portions ----------------------------------------------------------------------
# Between them the exchange may be deleted, and queues: those that are left are held, so that their
# structs live. What is decided once was decided before the first queue took the message.

cdef bint is_being_stored(const exchange_t* x, const msg_t* m) noexcept nogil:
    """Whether a message with the key of m is on its way into the queues of x."""
    cdef const publish_job_t* job = x.storing
    cdef u64 key[2]
    if not dedup_key(x.dedup, m, key):
        return False
    while job != NULL and (job.key[0] != key[0] or job.key[1] != key[1]):
        job = job.storing_next
    return job != NULL


cdef bint publish_is_long(const chan_t* c, u32 units) noexcept nogil:
    """Whether the clock is to be looked at between the targets; each takes so many units, and any
    of them may have to write to its file first."""
    cdef u32 n = c.targets.n
    return n >= LONG_TARGETS or <u64>n * units > c.link.loop.look_units


cdef bint publish_hold(chan_t* c, const msg_t* m) noexcept nogil:
    """Have the targets last until all have taken the message. False when it cannot be put off, or
    there is no memory for it."""
    cdef exchange_t* x = c.route_exchange
    cdef u32 i
    if c.targets.pause == NULL:
        return False
    c.job = <publish_job_t*>calloc(1, sizeof(publish_job_t))
    if c.job == NULL:
        return False
    c.job.phase = PUBLISH_STORES
    c.job.is_owing = x.dedup != NULL
    c.job.epoch = c.route_epoch
    for i in range(c.targets.n):
        (<queue_t*>c.targets.items[i]).refs += 1
    c.link.loop.work += c.targets.n
    if x.dedup != NULL and dedup_key(x.dedup, m, c.job.key):
        c.job.storing_next = x.storing
        x.storing = c.job
    return True


cdef exchange_t* publish_exchange(const chan_t* c) noexcept nogil:
    """The exchange of c's job, or NULL when it has gone."""
    cdef vhost_t* v = c.link.vhost
    if c.job.epoch == v.epoch:
        return c.route_exchange
    if vhost_exchange(v, c.route_names + 1, c.route_names[0]) != c.route_exchange:
        return NULL
    return c.route_exchange


cdef bint publish_write_ahead(chan_t* c, queue_t* q, const msg_t* m) noexcept nogil:
    """Write m, which is large, into a file for q. False when the portion is over before it is
    whole; true also when there is to be no file: then it is stored, or refused, in one go."""
    cdef ahead_t* ahead = &c.job.ahead
    cdef store_t* st
    cdef int rc
    if q.is_closed or q.is_stuck or queue_refuses(q, m.size):
        return True
    st = queue_level_for(q, m)
    if st == NULL:
        return True
    rc = ahead_write(ahead, q, st, m, NULL)
    if rc < 0:
        store_failed(st, FILE_MSGS, st.wseg.id)
        queue_failed(q)
    elif rc == AHEAD_WHOLE:
        ahead.message = m
    return rc != AHEAD_TURN


cdef bint publish_dies(chan_t* c, queue_t* q, const msg_t* m) noexcept nogil:
    """Whether q is full, and has m, which is large, go to where dead letters go."""
    if c.job.haul != NULL:
        return True
    if q.is_closed or q.loop.is_committing or not bury_overflow(q, m):
        return False
    if q.able != NULL:
        queue_deliver_all(q)
    return bury_overflow(q, m)


cdef bint publish_bury(chan_t* c, queue_t* q, const msg_t* m) noexcept nogil:
    """Send m to where dead letters of q go. False when the portion is over before that is done. A
    dead letter that is refused is lost: its publisher has it."""
    cdef haul_t* h = c.job.haul
    cdef letter_t d
    cdef int rc
    if h == NULL:
        h = haul_of_content(q) if letter_of_refused(&d, q, m) else NULL
        if h == NULL:
            return True
        c.job.haul = h
        if not haul_add_letter(h, &d):
            return True
    h.body.p = m.body
    rc = haul_go_on(h)
    return rc != HAUL_TURN


cdef int publish_go_on(chan_t* c, msg_t* m) noexcept nogil:
    """Store m in the queues that have not got it yet. PUBLISHED or PUBLISH_TURN."""
    cdef loop_t* loop = c.link.loop
    cdef publish_job_t* job = c.job
    cdef u32 units
    cdef stored_t stored
    cdef queue_t* q
    m.size = RECORD_FIXED - 2 + m.names_len + m.props_len + m.body_len
    units = TARGET_UNITS + <u32>(m.size >> UNIT_SHIFT)
    while job.at < c.targets.n:
        q = <queue_t*>c.targets.items[job.at]
        if store_is_blank(&q.store) and loop_makes_enough(loop):
            loop_look(loop)
            return PUBLISH_TURN
        if not q.is_deleted:
            if m.size > LARGE_RECORD and publish_dies(c, q, m):
                if not publish_bury(c, q, m):
                    return PUBLISH_TURN
                job.stored.is_overflowed = True
            elif m.size > LARGE_RECORD and not publish_write_ahead(c, q, m):
                return PUBLISH_TURN
            else:
                loop.ahead = &job.ahead
                channel_store(c, q, m, publisher_is_told(c), job.is_owing, &job.stored)
                loop.ahead = NULL
        if m.size > LARGE_RECORD:
            publish_drop_files(job)
        job.at += 1
        queue_unref(q)
        if loop_spent(loop, units) and job.at < c.targets.n:
            return PUBLISH_TURN
    stored = job.stored
    # A sync may have covered the first queues already, and taken back what the channel wanted.
    c.needs_sync = c.needs_sync or (
        stored.is_durable and (c.is_confirm or c.tx_last != NULL))
    publish_end(c, publish_exchange(c), m, &stored)
    publish_drop(c)
    return publish_confirm(c, stored.is_overflowed, False)


cdef void publish_drop_files(publish_job_t* job) noexcept nogil:
    """What was written for the target at `job.at`, and is no segment, is not needed any more."""
    ahead_drop(&job.ahead)
    if job.haul != NULL:
        haul_free(job.haul)
        job.haul = NULL


cdef void publish_job_free(chan_t* c) noexcept nogil:
    publish_drop_files(c.job)
    free(c.job.asked)
    free(c.job)
    c.job = NULL


cdef void publish_drop(chan_t* c) noexcept nogil:
    """The publish is over, or never ends: let go of all that was kept for it."""
    cdef publish_job_t** at
    cdef exchange_t* x
    cdef u32 i
    if c.job == NULL:
        return
    if c.job.phase == PUBLISH_STORES:
        for i in range(c.job.at, c.targets.n):
            queue_unref(<queue_t*>c.targets.items[i])
        x = publish_exchange(c)
        if x != NULL:
            at = &x.storing
            while at[0] != NULL and at[0] != c.job:
                at = &at[0].storing_next
            if at[0] != NULL:
                at[0] = c.job.storing_next
    publish_job_free(c)
    c.targets.n = 0
    c.route_version = 0
    cursor_reset(&c.targets)
