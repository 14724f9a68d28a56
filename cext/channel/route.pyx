# Route: from (exchange, routing key) bytes to queues.
#
# A channel keeps its last route, so a publisher that stays with one key pays one comparison.
# Exchanges that this connection may write to are known to the link; whether that still holds is one
# comparison with the vhost's epoch. Anything unknown is a miss: Python checks existence and
# permission once and tells the link; where routing keys matter as well, see answers.pyx.
# Source: docs/architecture.md, life of a published message.

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
    if l.known == NULL or l.known.epoch != l.vhost.epoch:
        return NULL
    known = &l.known.slots[hash_bytes(name, name_len, 0) & (KNOWN_SLOTS - 1)]
    if not known_is(known, name, name_len):
        known = &l.known.slots[KNOWN_SLOTS]
    return known.exchange if known_is(known, name, name_len) else NULL


cdef int link_learn(link_t* l, const u8* name, u32 name_len, exchange_t* x) noexcept nogil:
    """Remember that this connection may write to x. 0, or -1 out of memory."""
    cdef known_t* known
    if l.known == NULL:
        l.known = <knowns_t*>malloc(sizeof(knowns_t))
        if l.known == NULL:
            return -1
        l.known.epoch = 0
    if l.known.epoch != l.vhost.epoch:
        memset(l.known, 0, sizeof(knowns_t))
        l.known.epoch = l.vhost.epoch
    known = &l.known.slots[hash_bytes(name, name_len, 0) & (KNOWN_SLOTS - 1)]
    if known.exchange != NULL:      # a publish may need both: its exchange and its dead letter's
        l.known.slots[KNOWN_SLOTS] = known[0]
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
        if job.asked[i].exchange.binding_version != job.asked[i].binding_version:
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
    job.asked[job.n_asked].binding_version = x.binding_version
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
    c.job.is_nested = r != NULL
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
        r.is_counted = True
    rc = route_nested(&r, x, m, &c.targets)
    if not r.is_key_only:
        c.route_version = 0
    if rc == 0 and (r.passed != NULL or c.passings != NULL):
        channel_pass(c, r.passed)
    if rc == MATCH_TIRED and routing_keep(c, &r) == PUBLISH_NO_MEMORY:
        rc = MATCH_NO_MEMORY
    return rc


# hot
cdef inline int channel_route(chan_t* c, const msg_t* m) noexcept nogil:
    """Fill c.targets with the queues that m goes to. PUBLISH_TURN when this turn is over: the same
    message again goes on.
    Cost: 3 ns for the last route, else one match."""
    cdef const exchange_t* x
    if channel_has_route(c, m.names, m.names_len):
        x = c.route_exchange
        if x.has_key_routes and c.route_version == x.version and not has_copies(m):
            return PUBLISHED
    return channel_route_anew(c, m)


cdef int channel_route_anew(chan_t* c, const msg_t* m) noexcept nogil:
    """channel_route for what has another route than the last one, or may have."""
    cdef link_t* l = c.link
    cdef loop_t* loop = l.loop
    cdef exchange_t* x
    cdef u32 name_len
    cdef int rc
    if channel_has_route(c, m.names, m.names_len):
        x = c.route_exchange
    else:
        name_len = m.names[0]
        x = m.exchange
        if x == NULL:
            x = link_known(l, m.names + 1, name_len)
        if x == NULL:
            x = link_allowed(l, m.names)
        if x == NULL:
            return PUBLISH_MISS
        if c.route_names == NULL:
            c.route_names = <u8*>malloc(NAMES_SIZE)
            if c.route_names == NULL:
                return PUBLISH_NO_MEMORY
        c.route_exchange = x
        c.route_names_len = m.names_len
        memcpy(c.route_names, m.names, m.names_len)
        c.route_epoch = l.vhost.epoch
    name_len = m.names[0]
    c.targets.look = loop.match_look
    if c.job != NULL and not routing_is_valid(c):
        publish_drop(c)
    if c.job != NULL:
        targets_resume(&c.targets, &loop.reached)
        loop.work += c.targets.n
    else:
        targets_begin(&c.targets, &loop.reached)
    c.route_version = x.version
    if (x.is_plain if c.job == NULL else not c.job.is_nested) and not has_copies(m):
        if c.passings != NULL:
            channel_pass_none(c)
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
        c.route_version = 0         # a sample may have opened since it began
        publish_job_free(c)
    if rc:
        c.route_version = 0
        cursor_reset(&c.targets)
        return PUBLISH_BAD_HEADER if rc == MATCH_BAD_HEADER else PUBLISH_NO_MEMORY
    return PUBLISHED
