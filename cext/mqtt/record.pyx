# Record: a message of MQTT as it stands in a queue, and back.
#
# Exchange `mqtt.default`, routing key = topic, delivery mode = the lower of the QoS it was
# published with and the one that was granted. Most have no more than that. What else there is
# stands in headers: `mqtt.topic` the whole topic when it is longer than a key, `mqtt.retain`,
# `mqtt.expiry` in seconds, `mqtt.properties` and `mqtt.subscription-ids` as the standard encodes
# them, `mqtt.origin` where it was before it was the session's (session_taken.pyx). What expires has
# the property `expiration` besides, by which queues go.
# Source: docs/formats.md.

cdef const u8* MQTT_PLAIN = <const u8*>b"\x10\0\0\x10\0\1\x10\0\2"      # properties, for each QoS
cdef const u8* MQTT_EXCHANGE = <const u8*>b"\x0cmqtt.default"

cdef enum:
    MQTT_EXCHANGE_LEN = 13
    MQTT_EXPIRATION_MAX_S = 4000000     # above it the number would not fit: see rec_publish


cdef inline bint publish_is_plain(const publish_t* m, const fold_t* f) noexcept nogil:
    """Whether a record of m for f says no more than its QoS."""
    return (m.props_len == 0 and f.ids_at == 0 and not m.has_expiry and m.topic_len <= 255
            and not (m.is_retained and f.keeps_retain))


cdef inline u8* put_bytes_entry(u8* p, const char* name, const u8* value, u32 n) noexcept nogil:
    """An entry of a headers table that holds bytes; none when there are none."""
    if n == 0:
        return p
    return put_text(put_name(p, name, c'x'), value, n)


cdef u32 publish_put_props(u8* out, const publish_t* m, const u8* ids, u32 ids_len, u8 qos,
                           bint is_retained, msg_t* into,
                           const origin_t* origin=NULL) noexcept nogil:
    """Properties in wire order at out; into notes where they are. Returns their length, which is at
    most publish_props_size."""
    cdef u8 raw[ORIGIN_SIZE]
    cdef u8* p = out + 6
    cdef char text[16]
    cdef int n
    cdef bint expires = m.has_expiry and m.expiry_s <= MQTT_EXPIRATION_MAX_S
    memset(into, 0, sizeof(msg_t))
    put_be16(out, <u16>(FLAG_HEADERS | FLAG_DELIVERY_MODE | (FLAG_EXPIRATION if expires else 0)))
    if m.topic_len > 255:
        p = put_bytes_entry(p, b"mqtt.topic", m.topic, m.topic_len)
    if is_retained:
        p = put_name(p, b"mqtt.retain", c't')
        p[0] = 1
        p += 1
    if m.has_expiry:
        p = put_name(p, b"mqtt.expiry", c'i')
        put_be32(p, m.expiry_s)
        p += 4
    p = put_bytes_entry(p, b"mqtt.properties", m.props, m.props_len)
    p = put_bytes_entry(p, b"mqtt.subscription-ids", ids, ids_len)
    if origin != NULL:
        p = put_bytes_entry(p, b"mqtt.origin", raw, <u32>(origin_put(raw, origin) - raw))
    into.headers_at = 2
    into.headers_len = <u32>(p - out - 6)
    put_be32(out + 2, into.headers_len)
    p[0] = qos
    p += 1
    if expires:
        n = snprintf(text, sizeof(text), b"%llu", <unsigned long long>m.expiry_s * 1000)
        into.expiration_at = <u32>(p - out)
        into.is_special = True
        p[0] = <u8>n
        p = put_slice(p + 1, <const u8*>text, <u32>n)
    into.props = out
    into.props_len = <u32>(p - out)
    return into.props_len


cdef inline u64 publish_props_size(const publish_t* m, u32 ids_len) noexcept nogil:
    return 160 + <u64>m.props_len + ids_len + (m.topic_len if m.topic_len > 255 else 0)


cdef inline slice_t rec_bytes(const u8* entry, u32 name_len) noexcept nogil:
    """The value of an entry that holds bytes."""
    cdef slice_t s
    s.n = be32(entry + 2 + name_len)
    s.p = entry + 6 + name_len
    return s


cdef void rec_read_headers(const rec_t* r, publish_t* m) noexcept nogil:
    """Read what stands in the headers of a record. Those of others, which may have come by an
    exchange or by management, are passed over."""
    cdef const u8* p = r.props + r.headers_at + 4
    cdef u64 n = r.headers_len
    cdef u64 size = entry_size(p, n)
    cdef slice_t s
    while size:
        if p[0] == 11 and same_bytes(p + 1, <const u8*>b"mqtt.retain", 11) and p[12] == c't':
            m.is_retained = p[13] != 0
        elif p[0] == 11 and same_bytes(p + 1, <const u8*>b"mqtt.expiry", 11) and p[12] == c'i':
            m.has_expiry = True
            m.expiry_s = be32(p + 13)
        elif p[0] == 10 and same_bytes(p + 1, <const u8*>b"mqtt.topic", 10) and p[11] == c'x':
            s = rec_bytes(p, 10)
            if 0 < s.n <= TOPIC_MAX:
                m.topic = s.p
                m.topic_len = s.n
        elif p[0] == 15 and same_bytes(p + 1, <const u8*>b"mqtt.properties", 15) and p[16] == c'x':
            s = rec_bytes(p, 15)
            m.props = s.p
            m.props_len = s.n
        elif (p[0] == 21 and same_bytes(p + 1, <const u8*>b"mqtt.subscription-ids", 21)
                and p[22] == c'x'):
            s = rec_bytes(p, 21)
            m.ids = s.p
            m.ids_len = s.n
        p += size
        n -= size
        size = entry_size(p, n)


cdef bint rec_origin(const rec_t* r, origin_t* origin) noexcept nogil:
    """Where a message of a session was before. Whether it was anywhere."""
    cdef const u8* p = r.props + r.headers_at + 4
    cdef u64 n = r.headers_len if r.headers_at else 0
    cdef u64 size = entry_size(p, n)
    while size:
        if (p[0] == 11 and same_bytes(p + 1, <const u8*>b"mqtt.origin", 11) and p[12] == c'x'
                and be32(p + 13) == ORIGIN_SIZE):
            origin_read(p + 17, origin)
            return True
        p += size
        n -= size
        size = entry_size(p, n)
    return False


# hot
cdef inline bint rec_publish(const rec_t* r, i64 now_ms, publish_t* m) noexcept nogil:
    """The message of a record, as its client gets it. False when its time is over: then none of it
    is left. Cost: 5 ns without headers."""
    cdef const u8* key = r.names + r.names[0] + 1
    cdef i64 age_s
    memset(m, 0, sizeof(publish_t))
    m.topic = key + 1
    m.topic_len = key[0]
    m.body = r.body
    m.body_len = r.body_len
    m.qos = rec_qos(r)
    if r.headers_at == 0:
        return True
    rec_read_headers(r, m)
    if not m.has_expiry:
        return True
    age_s = (now_ms - <i64>le64(r.names - 8)) // 1000
    if age_s >= <i64>m.expiry_s:
        m.expiry_s = 0
        return False
    m.expiry_s -= <u32>age_s if age_s > 0 else 0
    return True


# hot
cdef inline u8 rec_qos(const rec_t* r) noexcept nogil:
    """The delivery mode of a record, 2 at most; 0 when it has none."""
    cdef u32 flags = le16(r.props), at = 2
    if not flags & FLAG_DELIVERY_MODE:
        return 0
    if flags & 0x8000:
        at += 1 + r.props[at]
    if flags & 0x4000:
        at += 1 + r.props[at]
    if flags & FLAG_HEADERS:
        at += 4 + r.headers_len
    return r.props[at] if r.props[at] <= 2 else 2
