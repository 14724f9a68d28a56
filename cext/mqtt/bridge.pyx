# Bridge: messages that cross from MQTT to AMQP, and back.
#
# A PUBLISH is routed through the topic exchange of AMQP as well, once for each topic; the queues
# that it reaches there are folds like sessions, and get it composed as AMQP has it. What comes the
# other way is stored as it is (queue/bridge.pyx), and read here for its client: topic, properties
# of version 5, QoS, and what its subscriptions have granted. So is what a client takes from a queue
# or a stream that consumers of AMQP share. Called by fold.pyx, publish.pyx, deliver.pyx and door/.
# Longer than 500 lines: both ways go by the same pairs of properties.
# Source: docs/mqtt.md; the standard, section 3.3.2.3.

cdef enum foreign_result:
    FOREIGN_READ = 0
    FOREIGN_OVER = 1            # its time is over, or it is no message for anybody
    FOREIGN_LATER = 2           # there is no memory now

cdef enum:
    NUMBER_SIZE = 32            # characters of a number
    FLAG_CONTENT_TYPE = 0x8000
    FOREIGN_FACTOR = 6          # a header takes no more than so many times its bytes as a property


# ---- from MQTT: composing ------------------------------------------------------------------------

cdef bint user_property_crosses(const u8* name, u32 n) noexcept nogil:
    """Whether a user property becomes a header: none that has a meaning for the broker, by which
    its author would reach what his rights do not say."""
    if n == 0 or n > 255:
        return False
    if (n == 2 and same_bytes(name, <const u8*>b"CC", 2)) or (
            n == 3 and same_bytes(name, <const u8*>b"BCC", 3)):
        return False
    if n >= 5 and same_bytes(name, <const u8*>b"mqtt.", 5):
        return False
    return not (n >= 7 and (same_bytes(name, <const u8*>b"x-death", 7)
                            or same_bytes(name, <const u8*>b"x-delay", 7)
                            or (n >= 13 and same_bytes(name, <const u8*>b"x-dead-letter", 13))
                            or (n >= 13 and same_bytes(name, <const u8*>b"x-first-death", 13))))


cdef u8* letter_put_headers(u8* p, const publish_t* m, slice_t* type_, slice_t* correlation,
                            slice_t* answers) noexcept nogil:
    """User properties as headers, and what does not fit a property of AMQP; the other properties
    are noted. Returns the end."""
    cdef const u8* at = m.props
    cdef u64 left = m.props_len
    cdef i64 size
    cdef u32 n
    while left:
        size = property_size(at, left)
        if size < 0:
            break
        n = be16(at + 1) if size >= 3 else 0
        if at[0] == PROPERTY_USER:
            if user_property_crosses(at + 3, n):
                p[0] = <u8>n
                p = put_slice(p + 1, at + 3, n)
                p[0] = c'S'
                p = put_text(p + 1, at + 5 + n, <u32>size - 5 - n)
        elif at[0] == PROPERTY_CONTENT_TYPE:
            if n <= 255:
                type_.p = at + 3
                type_.n = n
            else:
                p = put_text(put_name(p, b"mqtt.content-type", c'S'), at + 3, n)
        elif at[0] == PROPERTY_CORRELATION:
            if n <= 255 and mqtt_text_is_valid(at + 3, n):
                correlation.p = at + 3
                correlation.n = n
            else:
                p = put_text(put_name(p, b"mqtt.correlation-data", c'x'), at + 3, n)
        elif at[0] == PROPERTY_RESPONSE_TOPIC:
            if n <= 255:
                answers.p = at + 3
                answers.n = n
            else:
                p = put_text(put_name(p, b"mqtt.response-topic", c'S'), at + 3, n)
        at += size
        left -= <u64>size
    return p


cdef inline u8* put_short(u8* p, slice_t text) noexcept nogil:
    p[0] = <u8>text.n
    return put_slice(p + 1, text.p, text.n)


cdef u8* letter_put_others(u8* p, const rec_t* r) noexcept nogil:
    """The headers of a record that say nothing to MQTT. Returns the end."""
    cdef const u8* at = r.props + r.headers_at + 4
    cdef u64 left = r.headers_len if r.headers_at else 0, size = entry_size(at, left)
    while size:
        if not (at[0] > 5 and same_bytes(at + 1, <const u8*>b"mqtt.", 5)) or (
                at[0] == 10 and same_bytes(at + 1, <const u8*>b"mqtt.topic", 10)):
            p = put_slice(p, at, <u32>size)
        at += size
        left -= size
        size = entry_size(at, left)
    return p


cdef u32 letter_put_props(u8* out, const publish_t* m, const rec_t* r) noexcept nogil:
    """The properties of m in wire order; returns their length. See letter_size for the room. `r`:
    the record that it stands in, whose other headers come along, or NULL."""
    cdef slice_t type_ = no_slice(), correlation = no_slice(), answers = no_slice()
    cdef u32 flags = FLAG_DELIVERY_MODE
    cdef u8* headers = out + 2 + 256
    cdef u8* end = headers
    cdef u8* p = out + 2
    cdef char text[NUMBER_SIZE]
    cdef int n
    if m.props_len:
        end = letter_put_headers(headers, m, &type_, &correlation, &answers)
    if r != NULL:
        end = letter_put_others(end, r)
    if type_.p != NULL:
        flags |= FLAG_CONTENT_TYPE
        p = put_short(p, type_)
    if end != headers:
        flags |= FLAG_HEADERS
        memmove(p + 4, headers, <size_t>(end - headers))
        put_be32(p, <u32>(end - headers))
        p += 4 + (end - headers)
    p[0] = 2 if m.qos else 1
    p += 1
    if correlation.p != NULL:
        flags |= FLAG_CORRELATION_ID
        p = put_short(p, correlation)
    if answers.p != NULL:
        flags |= FLAG_REPLY_TO
        p = put_short(p, answers)
        topic_swap(p - answers.n, p - answers.n, answers.n)
    if m.has_expiry and m.expiry_s <= MQTT_EXPIRATION_MAX_S:
        flags |= FLAG_EXPIRATION
        n = snprintf(text, sizeof(text), b"%llu", <unsigned long long>m.expiry_s * 1000)
        p[0] = <u8>n
        p = put_slice(p + 1, <const u8*>text, <u32>n)
    put_be16(out, <u16>flags)
    return <u32>(p - out)


cdef inline u64 letter_size(const publish_t* m) noexcept nogil:
    """Room for names and properties: a header takes less than four bytes more than its property."""
    return NAMES_SIZE + 1200 + 2 * <u64>m.props_len


cdef u32 record_as_amqp(const rec_t* r, u8 qos, u8* out) noexcept nogil:
    """The properties of a record of MQTT, which are in wire order, as AMQP has them: for what dies
    in a session. Returns their length. See loop_t."""
    cdef publish_t m
    memset(&m, 0, sizeof(publish_t))
    m.qos = qos
    if r.headers_at:
        rec_read_headers(r, &m)
    return letter_put_props(out, &m, r)


cdef inline bint mqtt_has_crossing(mqtt_t* s) noexcept nogil:
    """Have room for what crosses: most links never need it. Whether there was memory."""
    if s.crossing == NULL:
        s.crossing = <crossing_t*>calloc(1, sizeof(crossing_t))
    return s.crossing != NULL


cdef bint letter_compose(mqtt_t* s, const publish_t* m) noexcept nogil:
    """Have m in s.crossing.letter as AMQP has it. Whether there was memory."""
    cdef const u8* name = s.exchange.bridge.name
    cdef u64 need = letter_size(m)
    cdef u8* p
    cdef u8* names
    cdef props_t found
    if not mqtt_has_crossing(s):
        return False
    if need > s.crossing.cap_lettered:
        free(s.crossing.lettered)
        s.crossing.lettered = <u8*>malloc(need)
        s.crossing.cap_lettered = need if s.crossing.lettered != NULL else 0
        if s.crossing.lettered == NULL:
            return False
    memset(&s.crossing.letter, 0, sizeof(msg_t))
    p = names = s.crossing.lettered
    p = put_slice(p, name, 1 + name[0])
    p[0] = <u8>m.topic_len
    topic_swap(p + 1, m.topic, m.topic_len)
    p += 1 + m.topic_len
    found.len = 0               # for the compiler: what was just written is whole
    props_walk(p, letter_put_props(p, m, NULL), True, &found)
    msg_note_props(&s.crossing.letter, p, &found)
    s.crossing.letter.exchange = s.exchange.bridge
    s.crossing.letter.names = names
    s.crossing.letter.names_len = <u32>(p - names)
    s.crossing.letter.body = m.body
    s.crossing.letter.body_len = m.body_len
    s.crossing.letter.size = RECORD_FIXED - 2 + s.crossing.letter.names_len + found.len + m.body_len
    return True


# ---- from MQTT: routing and storing --------------------------------------------------------------

cdef inline bint bridge_is_used(const exchange_t* x) noexcept nogil:
    """Whether a message leads anywhere from x, of AMQP."""
    return (x.match.count != 0 or x.alternate != NULL or x.history != NULL or x.followed != NULL
            or x.delayed != NULL)


cdef inline bint bridge_goes_on(const link_t* l, const mqtt_t* s) noexcept nogil:
    """Whether a routing behind the bridge may go on: nothing has changed that it has asked. Other
    exchanges than the first move the epoch, its own bindings the version."""
    return (s.exchange.bridge != NULL and s.route_version == s.exchange.binding_version
            and s.route_epoch == link_epoch(l))


cdef bint bridge_add(mqtt_t* s, queue_t* q) noexcept nogil:
    """Whether there was memory."""
    cdef fold_t* f
    if s.n_folds == s.cap_folds and not folds_grow(s):
        return False
    f = &s.folds[s.n_folds]
    memset(f, 0, sizeof(fold_t))
    f.queue = q
    f.qos = 2
    f.is_amqp = True
    s.n_folds += 1
    s.n_histories += q.history != NULL
    return True


cdef int bridge_route(link_t* l, mqtt_t* s, const publish_t* m) noexcept nogil:
    """Add the queues that m, whose sessions are found, reaches behind the bridge. PUBLISHED,
    PUBLISH_NO_MEMORY, or PUBLISH_TURN when this turn is over: the same message again goes on.
    Cost: as for a publish of AMQP that is routed anew."""
    cdef loop_t* loop = l.loop
    cdef targets_t* out = &s.chan.targets
    cdef u32 i
    cdef int rc
    if m.topic_len > 255 or m.topic[0] == c'$':
        return PUBLISHED
    s.route_epoch = link_epoch(l)
    if not letter_compose(s, m):
        s.topic_len = 0
        return PUBLISH_NO_MEMORY
    if s.phase == MQTT_CROSSES:
        targets_resume(out, &loop.reached)
    else:
        targets_begin(out, &loop.reached)
        memset(&s.crossing.routing, 0, sizeof(routing_t))
        s.crossing.routing.is_from_mqtt = True
    s.phase = MQTT_BEGINS
    s.topic_len = 0
    out.look = loop.match_look
    rc = route_nested(&s.crossing.routing, s.exchange.bridge, &s.crossing.letter, out)
    loop.work += out.work
    out.work = 0
    if rc == MATCH_TIRED:
        s.phase = MQTT_CROSSES
        return PUBLISH_TURN
    cursor_reset(out)
    if rc == MATCH_NO_MEMORY:
        return PUBLISH_NO_MEMORY
    if rc == 0:
        for i in range(out.n):
            if not bridge_add(s, <queue_t*>out.items[i]):
                return PUBLISH_NO_MEMORY
        loop.work += out.n
    sample_note_passed(s.crossing.routing.passed)
    if s.crossing.routing.is_key_only and s.crossing.routing.passed == NULL:
        s.topic_len = m.topic_len
    return PUBLISHED


cdef void bridge_begin(mqtt_t* s, const publish_t* m) noexcept nogil:
    """m, whose queues behind the bridge are found, is about to be given to them. Whatever is asked
    of the exchange there is asked now: it may be gone before all of them have m."""
    cdef exchange_t* x = s.exchange.bridge
    x.n_crossed += 1            # who follows it counts them by the way, see through.pyx
    x.n_out += s.n_folds - s.n_own - s.n_histories
    if not letter_compose(s, m) and s.crossing != NULL:
        s.crossing.letter.size = 0


cdef int bridge_give(link_t* l, mqtt_t* s, const publish_t* m, fold_t* f) noexcept nogil:
    """fold_give for a queue of AMQP."""
    if s.crossing == NULL or s.crossing.letter.size == 0:
        s.stored.is_refused = True
        return PUBLISHED
    s.crossing.letter.body = m.body              # the packet may have moved since the turn before
    if s.crossing.letter.size > LARGE_RECORD and s.chan.job != NULL:
        return fold_store_large(l, s, f.queue, &s.crossing.letter, m.qos)
    channel_store(s.chan, f.queue, &s.crossing.letter, m.qos != 0 and s.chan.is_confirm, False,
                  &s.stored)
    return PUBLISHED


cdef void bridge_free(mqtt_t* s) noexcept nogil:
    if s.crossing != NULL:
        free(s.crossing.lettered)
        free(s.crossing.foreign)
        free(s.crossing.steps.items)
        free(s.crossing)


# ---- to MQTT: what was granted -------------------------------------------------------------------

cdef struct grants_t:           # what the subscriptions of one queue have granted for one topic
    const queue_t* queue
    u32 n                       # of them
    u8 qos                      # the highest
    u8* ids                     # where their identifiers go as properties, NULL = nowhere


cdef void grants_note(grants_t* g, const match_t* match, const match_dests_t* place) noexcept nogil:
    """Add the subscription among those of a place, if there is one."""
    cdef const subscription_t* sub
    if place.n == 0:
        return
    sub = subscription_find(match, place, &g.queue.dest)
    if sub == NULL or sub.is_apart:
        return
    g.n += 1
    if sub.qos > g.qos:
        g.qos = sub.qos
    if sub.id and g.ids != NULL:
        g.ids[0] = PROPERTY_SUBSCRIPTION_ID
        g.ids = varint_put(g.ids + 1, sub.id)


cdef void grants_find(mqtt_t* s, const queue_t* q, const u8* topic, u32 len,
                      grants_t* g) noexcept nogil:
    """Fill g, of which `ids` is set, for what a topic matches. Subscriptions are found by place and
    queue, so it does not matter how many other sessions have the same filters. Cost: 8 ns per
    node."""
    cdef const match_t* match = s.exchange.match
    cdef const match_key_t* key = match_key_find(match, topic, len,
                                                 hash_bytes(topic, len, match.seed))
    cdef filter_steps_t* steps = &s.crossing.steps
    cdef const topic_node_t* node
    cdef u32 at, end
    cdef bint is_hidden
    g.queue = q
    g.n = 0
    g.qos = 0
    if key != NULL:
        grants_note(g, match, &key.dests)
    steps.n = 0
    if filters_push(steps, &match.root, 0):
        return
    while steps.n:
        steps.n -= 1
        node = steps.items[steps.n].node
        at = steps.items[steps.n].at
        is_hidden = at == 0 and topic[0] == c'$'
        q.loop.work += 1
        if node.hash != NULL and not is_hidden:
            grants_note(g, match, &node.hash.dests)
        if at > len:
            grants_note(g, match, &node.dests)
            continue
        end = level_end(topic, len, at)
        if not is_hidden and filters_push(steps, node.star, end + 1):
            return
        if filters_push(steps, filter_literal(match, node, topic + at, end - at), end + 1):
            return


# ---- to MQTT: reading ----------------------------------------------------------------------------

cdef u8* put_property(u8* p, u8 id, const u8* text, u32 n) noexcept nogil:
    """A property that is a text or bytes; returns the end."""
    p[0] = id
    put_be16(p + 1, <u16>n)
    return put_slice(p + 3, text, n)


cdef u8* put_user_property(u8* p, const u8* name, u32 n, const u8* value,
                           u32 value_n) noexcept nogil:
    p = put_property(p, PROPERTY_USER, name, n)
    put_be16(p, <u16>value_n)
    return put_slice(p + 2, value, value_n)


cdef i32 header_text(const u8* value, char* out) noexcept nogil:
    """A number or truth value, at its type, as text at out, of NUMBER_SIZE characters. Its length,
    -1 for anything else."""
    cdef header_number_t number
    if value[0] == c't':
        return <i32>snprintf(out, NUMBER_SIZE, b"%s", b"true" if value[1] else b"false")
    if value[0] == c'T':
        return <i32>snprintf(out, NUMBER_SIZE, b"%llu", <unsigned long long>be64(value + 1))
    if not header_number(value, &number):
        return -1
    if number.is_whole:
        return <i32>snprintf(out, NUMBER_SIZE, b"%lld", <long long>number.whole)
    return <i32>snprintf(out, NUMBER_SIZE, b"%.17g", number.real)


cdef u8* foreign_put_header(u8* p, const u8* entry, u32 size, slice_t* correlation,
                            slice_t* answers, slice_t* type_) noexcept nogil:
    """A header as a user property, when it is a text, a number or a truth value; returns the end.
    Those of long properties that have crossed before are noted."""
    cdef u32 n = entry[0]
    cdef const u8* value = entry + 1 + n
    cdef char text[NUMBER_SIZE]
    cdef i32 length
    cdef slice_t long_
    if value[0] == c'S' or value[0] == c'x':
        long_.n = be32(value + 1)
        long_.p = value + 5
        if long_.n > 65535:
            return p
        if is_same(short_slice(entry), <const u8*>b"mqtt.correlation-data", 21):
            correlation[0] = long_
        elif value[0] == c'S' and mqtt_text_is_valid(long_.p, long_.n):
            if is_same(short_slice(entry), <const u8*>b"mqtt.response-topic", 19):
                answers[0] = long_
            elif is_same(short_slice(entry), <const u8*>b"mqtt.content-type", 17):
                type_[0] = long_
            elif (n < 5 or not same_bytes(entry + 1, <const u8*>b"mqtt.", 5)) and (
                    mqtt_text_is_valid(entry + 1, n)):
                p = put_user_property(p, entry + 1, n, long_.p, long_.n)
        return p
    length = header_text(value, text)
    if length >= 0 and mqtt_text_is_valid(entry + 1, n):
        p = put_user_property(p, entry + 1, n, <const u8*>text, <u32>length)
    return p


cdef u8* foreign_put_props(u8* p, const rec_t* rec) noexcept nogil:
    """The properties of version 5 that a record of AMQP has; returns the end."""
    cdef const u8* props = rec.props
    cdef u32 flags = le16(props), at = 2
    cdef slice_t type_ = no_slice(), correlation = no_slice(), answers = no_slice()
    cdef bint is_key = False
    cdef u64 left, size
    if flags & FLAG_CONTENT_TYPE:
        type_ = short_slice(props + at)
        at += 1 + props[at]
    if flags & 0x4000:
        at += 1 + props[at]
    if flags & FLAG_HEADERS:
        at += 4
        left = rec.headers_len
        size = entry_size(props + at, left)
        while size:
            p = foreign_put_header(p, props + at, <u32>size, &correlation, &answers, &type_)
            at += <u32>size
            left -= size
            size = entry_size(props + at, left)
        at += <u32>left
    at += 1 if flags & FLAG_DELIVERY_MODE else 0
    at += 1 if flags & FLAG_PRIORITY else 0
    if flags & FLAG_CORRELATION_ID:
        correlation = short_slice(props + at)
        at += 1 + props[at]
    if flags & FLAG_REPLY_TO:
        answers = short_slice(props + at)
        is_key = True
    if type_.p != NULL and mqtt_text_is_valid(type_.p, type_.n):
        p = put_property(p, PROPERTY_CONTENT_TYPE, type_.p, type_.n)
    if correlation.p != NULL:
        p = put_property(p, PROPERTY_CORRELATION, correlation.p, correlation.n)
    if answers.p != NULL and topic_is_valid(answers.p, answers.n):
        p = put_property(p, PROPERTY_RESPONSE_TOPIC, answers.p, answers.n)
        if is_key:
            topic_swap(p - answers.n, p - answers.n, answers.n)
    return p


cdef bint foreign_expiry(const rec_t* rec, i64 now_ms, publish_t* m) noexcept nogil:
    """How long a record that expires has left. False when that is nothing."""
    cdef const u8* text = rec.props + rec.expiration_at
    cdef i64 ms = 0
    cdef u32 i
    for i in range(text[0]):
        if not c'0' <= text[1 + i] <= c'9' or ms > <i64>1 << 52:
            return True
        ms = ms * 10 + text[1 + i] - c'0'
    ms -= now_ms - <i64>le64(rec.names - 8)
    m.has_expiry = ms < <i64>1000 << 31
    if ms <= 0:
        return False
    if m.has_expiry:
        m.expiry_s = <u32>((ms + 999) // 1000)
    return True


cdef bint foreign_room(mqtt_t* s, u64 need) noexcept nogil:
    """Whether there is memory for so much of a message. That of a very large one does not stay."""
    cdef crossing_t* x
    if not mqtt_has_crossing(s):
        return False
    x = s.crossing
    if need <= x.cap_foreign and (x.cap_foreign <= BLOCK_SIZE or need > BLOCK_SIZE):
        return True
    free(x.foreign)
    x.foreign = <u8*>malloc(need)
    x.cap_foreign = need if x.foreign != NULL else 0
    return x.foreign != NULL


cdef u8* foreign_put_topic(u8* p, const queue_t* q, const rec_t* rec) noexcept nogil:
    """The topic of a record of AMQP: its routing key, or, where that is none, what it is in.
    Returns the end."""
    cdef const u8* key = rec.names + rec.names[0] + 1
    if topic_is_valid(key + 1, key[0]):
        topic_swap(p, key + 1, key[0])
        return p + key[0]
    p = put_slice(p, <const u8*>b"$queue", 6)
    if q.name != NULL and topic_is_valid(q.name + 1, q.name[0]):
        p[0] = c'/'
        p = put_slice(p + 1, q.name + 1, q.name[0])
    return p


cdef int foreign_read(mqtt_t* s, queue_t* q, const rec_t* rec, publish_t* m,
                      bint is_granted) noexcept nogil:
    """The message of a record of AMQP, as a client of MQTT gets it; `is_granted`: with the QoS and
    the identifiers of the subscriptions of q, which is its session. A foreign_result."""
    cdef grants_t g
    cdef u64 need = 1024 + FOREIGN_FACTOR * <u64>rec.props_len
    cdef u8* p
    memset(m, 0, sizeof(publish_t))
    if rec.expiration_at and not foreign_expiry(rec, q.loop.now_ms, m):
        if is_granted and not queue_has_sent(q, rec.seg, rec.pos):
            return FOREIGN_OVER
    if not foreign_room(s, need):
        return FOREIGN_LATER
    p = foreign_put_topic(s.crossing.foreign, q, rec)
    m.topic_len = <u32>(p - s.crossing.foreign)
    m.qos = 1 if rec_qos(rec) == 2 else 0
    g.n = 0
    if is_granted:
        g.ids = NULL
        grants_find(s, q, s.crossing.foreign, m.topic_len, &g)
        if g.n and g.qos < m.qos:
            m.qos = g.qos
        if s.version == 5 and g.n:
            if not foreign_room(s, need + 5 * <u64>g.n):
                return FOREIGN_LATER
            p = foreign_put_topic(s.crossing.foreign, q, rec)
            g.ids = p
            grants_find(s, q, s.crossing.foreign, m.topic_len, &g)
            m.ids = p
            m.ids_len = <u32>(g.ids - p)
            p = g.ids
    m.topic = s.crossing.foreign
    m.body = rec.body
    m.body_len = rec.body_len
    if s.version == 5:
        m.props = p
        m.props_len = <u32>(foreign_put_props(p, rec) - p)
    return FOREIGN_READ
