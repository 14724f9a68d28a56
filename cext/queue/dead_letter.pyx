# Dead letter: a message that dies in a queue goes on to an exchange, with a record of its death.
#
# The new message is put together in the loop's scratch memory, routed by the exchange's bindings,
# and stored like a publish. In its old queue nobody sees it any more, but it is deleted there only
# when the copies are on disk (moves.pyx): a crash may leave both, never neither. A queue that gets
# too long by it goes on the loop's list (features.pyx), so chains and rings do not recurse.
# Longer than 500 lines: a death is made, recorded and sent in one pass over one scratch memory.
# Source: docs/protocol.md, messages that die.

cdef enum death:
    DEAD_REJECTED = 0
    DEAD_EXPIRED = 1
    DEAD_MAXLEN = 2
    DEAD_MAXLENBYTES = 3
    DEAD_DELIVERY_LIMIT = 4

cdef enum:
    DEATHS_MAX = 1024           # entries of x-death that are kept: the newest
    DEATHS_BYTES = 65536        # of x-death; a message with more does not travel on
    HEADERS_SHIFT = 1           # bytes of headers in a unit of work, when a letter is made of them
    BODY_SHIFT = 6              # and of its body

cdef struct letter_t:           # a message on its way from one queue to others
    queue_t* source
    u32 reason
    slice_t names               # as it had them
    slice_t props               # wire order
    u32 headers_at
    u32 headers_len
    u32 expiration_at
    slice_t body
    slice_t target
    slice_t key
    bint has_own_target         # its publisher has named it, not its queue
    bint has_own_key            # given for dead letters, so that CC and BCC do not count


cdef const char* death_name(u32 reason) noexcept nogil:
    if reason == DEAD_REJECTED:
        return b"rejected"
    if reason == DEAD_EXPIRED:
        return b"expired"
    if reason == DEAD_MAXLEN:
        return b"maxlen"
    return b"maxlenbytes" if reason == DEAD_MAXLENBYTES else b"delivery_limit"


# ---- x-death -------------------------------------------------------------------------------------

cdef bint death_is(const u8* entry, u32 n, const queue_t* q, u32 reason) noexcept nogil:
    """Whether an entry of x-death tells of that reason in that queue. One without a name, for
    replies or of an exchange, has no deaths."""
    cdef const char* name = death_name(reason)
    return (q.name != NULL
            and is_same(table_value(entry, n, b"queue", c'S'), q.name + 1, q.name[0])
            and is_same(table_value(entry, n, b"reason", c'S'), <const u8*>name,
                        <u32>strlen(name)))


cdef const u8* next_death(slice_t* deaths, u32* n) noexcept nogil:
    """Take the next well-formed entry off x-death; NULL at the end. What is none is skipped."""
    cdef const u8* entry
    cdef u64 size
    while deaths.n > 1:
        size = value_valid_size(deaths.p, deaths.n, 0)
        if size == 0:
            break
        entry = deaths.p + 5
        n[0] = <u32>size - 5 if deaths.p[0] == c'F' else 0
        deaths.p += size
        deaths.n -= <u32>size
        if n[0] and table_value(entry, n[0], b"queue", c'S').p != NULL and (
                table_value(entry, n[0], b"reason", c'S').p != NULL):
            return entry
    return NULL


cdef i64 death_count(const u8* entry, u32 n) noexcept nogil:
    """The count of an entry, 0 when it has none that makes sense."""
    cdef const u8* at = table_find(entry, n, <const u8*>b"count", 5)
    cdef i64 count = 0
    if at != NULL and at[6] == c'l':
        count = <i64>be64(at + 7)
    elif at != NULL and (at[6] == c'I' or at[6] == c'i'):
        count = <i64><int>be32(at + 7)
    return count if 0 < count < NEVER else 0


cdef u8* put_routing_keys(u8* p, const letter_t* m) noexcept nogil:
    """The array of the keys that the message was published with: its own and those of CC."""
    cdef const u8* key = m.names.p + m.names.p[0] + 1
    cdef slice_t copies = no_slice()
    cdef u8* start
    p = put_name(p, b"routing-keys", c'A')
    start = p
    p += 4
    p[0] = c'S'
    p = put_text(p + 1, key + 1, key[0])
    if m.headers_at:
        copies = table_value(m.props.p + m.headers_at + 4, m.headers_len, b"CC", c'A')
        if copies.p != NULL:
            p = put_slice(p, copies.p, copies.n)
    put_be32(start, <u32>(p - start - 4))
    return p


cdef u8* put_death(u8* p, const letter_t* m, const u8* old, u32 old_n) noexcept nogil:
    """The entry of x-death for this death; `old` is the one of an earlier one of its kind, or NULL.

    The count is 64 bits wide, as clients written for RabbitMQ expect it."""
    cdef const char* reason = death_name(m.reason)
    cdef slice_t text = no_slice()
    cdef u8* start = p + 1
    p[0] = c'F'
    p = put_name(p + 5, b"queue", c'S')
    p = put_text(p, m.source.name + 1, m.source.name[0])
    p = put_name(p, b"reason", c'S')
    p = put_text(p, <const u8*>reason, <u32>strlen(reason))
    p = put_name(p, b"exchange", c'S')
    if old != NULL:
        text = table_value(old, old_n, b"exchange", c'S')
    if text.p == NULL:
        text = short_slice(m.names.p)
    p = put_text(p, text.p, text.n)
    p = put_name(p, b"count", c'l')
    put_be64(p, <u64>(1 + (death_count(old, old_n) if old != NULL else 0)))
    p = put_name(p + 8, b"time", c'T')
    put_be64(p, <u64>(m.source.loop.now_ms // 1000))
    p = put_routing_keys(p + 8, m)
    text = no_slice()
    if m.expiration_at:
        text = short_slice(m.props.p + m.expiration_at)
    elif old != NULL:
        text = table_value(old, old_n, b"original-expiration", c'S')
    if text.p != NULL:
        p = put_name(p, b"original-expiration", c'S')
        p = put_text(p, text.p, text.n)
    put_be32(start, <u32>(p - start - 4))
    return p


cdef u8* put_deaths(u8* p, const letter_t* m, slice_t deaths) noexcept nogil:
    """x-death with this death as its newest entry."""
    cdef slice_t rest = deaths
    cdef const u8* entry
    cdef const u8* old = NULL
    cdef u32 n = 0, old_n = 0, kept = 1
    cdef u8* start
    while True:
        entry = next_death(&rest, &n)
        if entry == NULL:
            break
        if death_is(entry, n, m.source, m.reason):
            old = entry
            old_n = n
            break
    p = put_name(p, b"x-death", c'A')
    start = p
    p = put_death(p + 4, m, old, old_n)
    rest = deaths
    while kept < DEATHS_MAX:
        entry = next_death(&rest, &n)
        if entry == NULL:
            break
        if entry != old:
            p[0] = c'F'
            p = put_text(p + 1, entry, n)
            kept += 1
    put_be32(start, <u32>(p - start - 4))
    return p


cdef bint is_left_out(const u8* entry) noexcept nogil:
    """Whether a header of the old message is not one of the new."""
    return ((entry[0] == 7 and same_bytes(entry + 1, <const u8*>b"x-death", 7))
            or (entry[0] == 22 and same_bytes(entry + 1, <const u8*>b"x-dead-letter-exchange", 22))
            or (entry[0] == 25
                and same_bytes(entry + 1, <const u8*>b"x-dead-letter-routing-key", 25)))


cdef u8* put_first(u8* p, const letter_t* m, const char* name, const u8* text,
                   u32 n) noexcept nogil:
    """A header that tells of the first death, unless it is there."""
    if m.headers_at and table_find(m.props.p + m.headers_at + 4, m.headers_len,
                                   <const u8*>name, strlen(name)) != NULL:
        return p
    return put_text(put_name(p, name, c'S'), text, n)


cdef u32 put_headers(u8* out, const letter_t* m) noexcept nogil:
    """The headers of the new message, returns their length."""
    cdef const u8* table = m.props.p + m.headers_at + 4
    cdef const char* reason = death_name(m.reason)
    cdef slice_t deaths = no_slice()
    cdef u64 n = m.headers_len if m.headers_at else 0, size
    cdef u8* p = out
    if n:
        deaths = table_value(table, n, b"x-death", c'A')
    while n:
        size = entry_size(table, n)
        if size == 0:
            break
        if not is_left_out(table):
            p = put_slice(p, table, <u32>size)
        table += size
        n -= size
    p = put_first(p, m, b"x-first-death-reason", <const u8*>reason, <u32>strlen(reason))
    p = put_first(p, m, b"x-first-death-queue", m.source.name + 1, m.source.name[0])
    p = put_first(p, m, b"x-first-death-exchange", m.names.p + 1, m.names.p[0])
    return <u32>(put_deaths(p, m, deaths) - out)


cdef bint is_cycle(const queue_t* to, u32 reason, const u8* headers, u32 n) noexcept nogil:
    """Whether the message has been in `to` and died there for the same reason since it was last
    rejected by a client: it would go round for ever."""
    cdef slice_t deaths = table_value(headers, n, b"x-death", c'A')
    cdef const u8* entry
    cdef u32 size = 0, n_deaths = 0
    if deaths.n > DEATHS_BYTES:         # clients could not take it: frames are not much larger
        return True
    while n_deaths < DEATHS_MAX:
        entry = next_death(&deaths, &size)
        n_deaths += 1
        if entry == NULL:
            return False
        if is_same(table_value(entry, size, b"reason", c'S'), <const u8*>b"rejected", 8):
            return False
        if death_is(entry, size, to, reason):
            return True
    return True                 # so many that nobody knows the first ones any more


# ---- moving --------------------------------------------------------------------------------------

cdef u8* scratch_room(scratch_t* s, u64 need) noexcept nogil:
    """Memory for one message, valid until the next call; NULL when there is none."""
    if need > s.cap:
        free(s.p)
        s.p = <u8*>malloc(need)
        s.cap = need if s.p != NULL else 0
    return s.p


cdef void scratch_trim(loop_t* loop, scratch_t* s) noexcept nogil:
    """A large message does not stay in memory."""
    if s.cap > BLOCK_SIZE:
        loop_free(loop, s.p, s.cap, 0)
        s.p = NULL
        s.cap = 0


cdef inline u8* loop_scratch(loop_t* loop, u64 need) noexcept nogil:
    """The loop's own."""
    return scratch_room(&loop.scratch, need)


cdef inline void loop_drop_scratch(loop_t* loop) noexcept nogil:
    scratch_trim(loop, &loop.scratch)


cdef exchange_t* vhost_exchange(const vhost_t* v, const u8* name, u32 n) noexcept nogil:
    """The exchange of that name, or NULL."""
    cdef match_key_t* found
    if v == NULL or v.names == NULL:
        return NULL
    found = match_key_find(v.names, name, n, hash_bytes(name, n, v.names.seed))
    if found == NULL:
        return NULL
    return <exchange_t*>(found.dests.at.one if found.dests.cap == 0 else found.dests.at.many[0])


cdef void route_moved(exchange_t* x, const msg_t* m, loop_t* loop) noexcept nogil:
    """Fill loop.buried with the queues that a message reaches by the bindings of x; none when there
    is a header that cannot be routed by."""
    cdef routing_t routing
    memset(&routing, 0, sizeof(routing_t))
    targets_begin(&loop.buried, &loop.reached)
    if route_nested(&routing, x, m, &loop.buried):
        loop.buried.n = 0
    sample_note_passed(routing.passed)


cdef bint bury_overflow(queue_t* q, const msg_t* m) noexcept nogil:
    """Whether q, which a released message is to go to, is full and has it die: then it is not
    stored there."""
    return (q.features != NULL and q.features.overflow == REJECT_PUBLISH_DLX and q.stream == NULL
            and q.releases == NULL and queue_is_full(q, m.size)
            and (q.dedup == NULL or not dedup_seen(q.dedup, m, q.loop.now_ms)))


cdef bint bury_overflows(const msg_t* m, targets_t* to) noexcept nogil:
    """A message that was released finds queues full: it dies there if they say so, and they are no
    targets any more. False when such a letter cannot be stored."""
    cdef u32 i, n = to.n, n_left = 0
    cdef dest_t** all_ = <dest_t**>malloc((n + 1) * sizeof(dest_t*))
    cdef bint is_done = all_ != NULL
    cdef queue_t* q
    if all_ == NULL:
        return False
    memcpy(all_, to.items, n * sizeof(dest_t*))     # routing it on uses the list
    for i in range(n):
        q = <queue_t*>all_[i]
        if is_done and bury_overflow(q, m):
            is_done = bury_refused(q, m)
        else:
            all_[n_left] = all_[i]
            n_left += 1
    memcpy(to.items, all_, n_left * sizeof(dest_t*))
    to.n = n_left
    free(all_)
    return is_done


cdef bint targets_can_take(loop_t* loop, const msg_t* m, targets_t* to, i64 reason) noexcept nogil:
    """Leave out of `to` what a message is not moved to. False when one of the rest cannot take it
    now, or there is no memory."""
    cdef queue_t* q
    cdef u32 i, n = 0
    cdef bint any_overflows = False
    for i in range(to.n):
        q = <queue_t*>to.items[i]
        if q.is_deleted or (reason >= 0 and is_cycle(q, <u32>reason, m.props + m.headers_at + 4,
                                                     m.headers_len)):
            continue
        if queue_cannot_take(q):
            loop.refuser = q
            return False
        any_overflows = any_overflows or (reason < 0 and bury_overflow(q, m))
        to.items[n] = to.items[i]
        n += 1
    to.n = n
    if any_overflows and not bury_overflows(m, to):
        return False
    return loop_expect_takers(loop, to.n) == 0


cdef bint move_store(loop_t* loop, const msg_t* m, targets_t* to, i64 reason) noexcept nogil:
    """Store a message in its new queues. `reason` is a death whose cycles end here, -1 for none.

    False when one of them cannot take it: then none has it, unless that one has broken by it.
    Else the durable ones that it is safe in after the next sync are `loop.takers`."""
    cdef queue_t* q
    cdef u32 i
    if not targets_can_take(loop, m, to, reason):
        return False
    loop.is_moving = True       # a delivery could move what a settlement is looking at
    for i in range(to.n):
        q = <queue_t*>to.items[i]
        if q.is_durable:
            loop_note_taker(loop, q)
        if queue_append(q, m) == APPEND_FAILED:
            loop.refuser = q
            loop.is_moving = False
            return False
    loop.is_moving = False
    return True


cdef exchange_t* letter_exchange(const letter_t* d) noexcept nogil:
    """Where the letter goes; NULL when there is no such exchange."""
    cdef exchange_t* x = vhost_exchange(d.source.vhost, d.target.p, d.target.n)
    # It may be newer than the check of the publish: clients reach internal exchanges in no way.
    return NULL if x != NULL and x.is_internal and d.has_own_target else x


cdef u8* letter_cross(letter_t* d) noexcept nogil:
    """Have the properties of a letter of MQTT as AMQP has them. Returns their memory, the caller's,
    or NULL."""
    cdef u8* props = <u8*>malloc(2048 + 3 * <u64>d.props.n)
    cdef const u8* mode
    cdef rec_t r
    cdef props_t found
    cdef u32 n
    if props == NULL:
        return NULL
    memset(&r, 0, sizeof(rec_t))
    r.props = d.props.p
    r.props_len = d.props.n
    r.headers_at = d.headers_at
    r.headers_len = d.headers_len
    mode = d.props.p + props_place(d.props.p, FLAG_DELIVERY_MODE)
    n = d.source.loop.as_amqp(
        &r, mode[0] if be16(d.props.p) & FLAG_DELIVERY_MODE else 0, props)
    props_walk(props, n, True, &found)          # what was just written is whole
    d.props.p = props
    d.props.n = n
    d.headers_at = found.headers_at
    d.headers_len = found.headers_len
    d.expiration_at = found.expiration_at
    return props


cdef u8* letter_write(letter_t* d, msg_t* m) noexcept nogil:
    """Build the new message but for its body. Returns the memory of it, the caller's, or NULL; a
    letter that cannot be built has no size."""
    cdef const u8* old_key = d.names.p + d.names.p[0] + 1
    cdef bint is_mqtt = names_are_mqtt(d.names.p)
    cdef u8* crossed = letter_cross(d) if is_mqtt else NULL
    cdef u64 need = (2048 + 2 * <u64>d.headers_len + d.props.n + d.source.name[0] * <u64>2
                     + 2 * <u64>d.names.n)
    cdef u8* headers = NULL if is_mqtt and crossed == NULL else <u8*>malloc(need * 2)
    cdef u8* p
    cdef u32 n
    if headers == NULL:
        free(crossed)
        return NULL
    memset(m, 0, sizeof(msg_t))
    n = put_headers(headers, d)
    p = headers + n
    m.names = p
    p[0] = <u8>d.target.n
    p = put_slice(p + 1, d.target.p, d.target.n)
    if not d.has_own_key:
        d.key = short_slice(old_key)
    p[0] = <u8>d.key.n
    p = put_slice(p + 1, d.key.p, d.key.n)
    if not d.has_own_key and is_mqtt:
        topic_swap(p - d.key.n, p - d.key.n, d.key.n)
    m.names_len = <u32>(p - m.names)
    n = props_with_headers(p, d.props.p, d.props.n, headers, n)
    free(crossed)
    m.body = d.body.p
    m.body_len = d.body.n
    if props_find(p, n, m):
        m.size = RECORD_FIXED - 2 + m.names_len + n + m.body_len
        if d.has_own_key:
            m.cc_at = m.bcc_at = 0
    return headers


cdef inline u32 letter_units(const letter_t* d) noexcept nogil:
    """What a letter has cost, in units of work: its deaths are walked several times."""
    return (d.headers_len >> HEADERS_SHIFT) + (d.body.n >> BODY_SHIFT)


cdef bint bury_letter(letter_t* d) noexcept nogil:
    """Build the new message, route and store it. False when that has to be tried again: see
    move_store."""
    cdef loop_t* loop = d.source.loop
    cdef exchange_t* x = letter_exchange(d)
    cdef u8* memory
    cdef msg_t m
    cdef bint is_done = True
    if x == NULL:
        return True
    memory = letter_write(d, &m)
    if memory == NULL:
        return False
    if m.size:
        route_moved(x, &m, loop)
        is_done = move_store(loop, &m, &loop.buried, d.reason)
    loop.work += letter_units(d)
    free(memory)
    return is_done


cdef bint props_find(const u8* props, u32 len, msg_t* m) noexcept nogil:
    """Note in m where its properties, which are in wire order and valid, are."""
    cdef props_t found
    if props_walk(props, len, True, &found) != 1:
        return False
    msg_note_props(m, props, &found)
    return found.headers_at == 0 or copies_error(m, <u32>-1) == 0     # it was checked when it came


cdef bint letter_address(letter_t* d, const queue_t* q) noexcept nogil:
    """Find where the letter goes: by its headers, else as its queue says. False if nowhere."""
    cdef const u8* table = d.props.p + d.headers_at + 4
    cdef slice_t own = no_slice()
    d.target = short_slice(q.features.target if q.features != NULL else NULL)
    d.key = short_slice(q.features.target_key if q.features != NULL else NULL)
    d.has_own_target = False
    if d.headers_at:
        own = table_value(table, d.headers_len, b"x-dead-letter-exchange", c'S')
        if own.p != NULL and own.n <= 255:
            d.target = own
            d.has_own_target = True
        own = table_value(table, d.headers_len, b"x-dead-letter-routing-key", c'S')
        if own.p != NULL and own.n <= 255:
            d.key = own
    d.has_own_key = d.key.p != NULL
    return d.target.p != NULL


cdef bint letter_begin(letter_t* d, queue_t* q, const rec_t* rec, u32 reason) noexcept nogil:
    """A letter of a record, whose names and properties are still where they were. False when it
    goes nowhere."""
    memset(d, 0, sizeof(letter_t))
    d.source = q
    d.reason = reason
    d.props.p = rec.props       # the headers are in wire order there, too
    d.headers_at = rec.headers_at
    d.headers_len = rec.headers_len
    return q.name != NULL and letter_address(d, q)


cdef u8* letter_copy(letter_t* d, const rec_t* rec, u64 room) noexcept nogil:
    """Copy names and properties to the scratch memory, since storing a letter elsewhere may
    overwrite what rec points at. Returns so much room behind them, or NULL."""
    cdef u8* p = loop_scratch(d.source.loop, <u64>rec.names_len + rec.props_len + room + 8)
    if p == NULL:
        return NULL
    d.names.n = rec.names_len
    d.names.p = p
    p = put_slice(p, rec.names, rec.names_len)
    props_to_wire(p, rec)
    d.props.p = p
    d.props.n = rec.props_len
    d.expiration_at = rec.expiration_at
    d.body.n = <u32>rec.body_len
    letter_address(d, d.source)         # once more: the headers have moved
    return p + rec.props_len


cdef int bury(queue_t* q, const rec_t* rec, u32 reason) noexcept nogil:
    """A stored message dies: send it where dead letters go, if they go anywhere. A move_result."""
    cdef letter_t d
    cdef u8* p
    cdef bint is_done = False
    if not letter_begin(&d, q, rec, reason):
        return MOVE_DONE
    if rec.size > LARGE_RECORD:
        return MOVE_LARGE
    p = letter_copy(&d, rec, rec.body_len)
    if p != NULL:
        d.body.p = p
        is_done = (store_copy_body(queue_level(q, rec.level), rec, p, rec.body_len) == 0
                   and bury_letter(&d))
        loop_drop_scratch(q.loop)
    return MOVE_DONE if is_done else MOVE_REFUSED


cdef bint letter_of_refused(letter_t* d, queue_t* q, const msg_t* m) noexcept nogil:
    """A letter of a message that a full queue refuses. False when it goes nowhere."""
    memset(d, 0, sizeof(letter_t))
    d.source = q
    d.reason = DEAD_MAXLEN
    d.names.p = m.names
    d.names.n = m.names_len
    d.props.p = m.props
    d.props.n = m.props_len
    d.headers_at = m.headers_at
    d.headers_len = m.headers_len
    d.expiration_at = m.expiration_at
    d.body.p = m.body
    d.body.n = <u32>m.body_len
    return q.name != NULL and letter_address(d, q)


cdef bint bury_refused(queue_t* q, const msg_t* m) noexcept nogil:
    """What a full queue refuses goes where dead letters go. False when it cannot be stored there
    now: a publisher has been told that it was refused, and nobody tries again."""
    cdef letter_t d
    return not letter_of_refused(&d, q, m) or bury_letter(&d)
