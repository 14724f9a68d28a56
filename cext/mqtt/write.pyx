# Write: packets into the output of a link.
#
# Called by deliver.pyx, publish.pyx and acks.pyx.
# Source: the standard, sections 3.3 to 3.7 and 3.13.

cdef enum packet_kind:
    PACKET_CONNECT = 1
    PACKET_PUBLISH = 3
    PACKET_PUBACK = 4
    PACKET_PUBREC = 5
    PACKET_PUBREL = 6
    PACKET_PUBCOMP = 7
    PACKET_SUBSCRIBE = 8
    PACKET_UNSUBSCRIBE = 10
    PACKET_PINGREQ = 12
    PACKET_PINGRESP = 13
    PACKET_DISCONNECT = 14
    PACKET_AUTH = 15

cdef enum write_result:
    WRITTEN = 1
    WRITE_LATER = 0             # the link takes no more for now
    WRITE_TOO_LARGE = -1        # for its client, ever

cdef enum:
    LENGTH_MAX = 268435455      # of what follows a fixed header
    OUT_ALIASES = 16            # topics that get one on a link: they are looked through one by one


# ---- PUBLISH -------------------------------------------------------------------------------------

cdef u16 out_alias_find(const mqtt_t* s, const publish_t* m) noexcept nogil:
    """The alias that the client knows for the topic, 0 = none."""
    cdef u32 i
    cdef const u8* topic
    for i in range(s.n_out_topics):
        topic = s.out_topics[i]
        if le32(topic) == m.topic_len and same_bytes(topic + 4, m.topic, m.topic_len):
            return <u16>(i + 1)
    return 0


cdef u16 out_alias_new(mqtt_t* s, const publish_t* m) noexcept nogil:
    """A new alias for the topic; 0 when there is none left, or no memory, or it is not worth it."""
    cdef u32 most = s.alias_maximum_out if s.alias_maximum_out < OUT_ALIASES else <u32>OUT_ALIASES
    cdef u8* topic
    if s.n_out_topics >= most or m.topic_len < 4 or m.topic_len > 1024:
        return 0
    if s.out_topics == NULL:
        s.out_topics = <u8**>calloc(most, sizeof(u8*))
        if s.out_topics == NULL:
            return 0
    topic = <u8*>malloc(m.topic_len + 4)
    if topic == NULL:
        return 0
    put_le32(topic, m.topic_len)
    memcpy(topic + 4, m.topic, m.topic_len)
    s.out_topics[s.n_out_topics] = topic
    s.n_out_topics += 1
    return s.n_out_topics


# hot
cdef inline u8* publish_put_head(u8* p, const publish_t* m, u32 n, u32 topic_len) noexcept nogil:
    """Fixed header, topic and packet id; returns the end."""
    p[0] = <u8>(PACKET_PUBLISH << 4 | m.is_dup << 3 | m.qos << 1 | m.is_retained)
    p = varint_put(p + 1, n)
    put_be16(p, <u16>topic_len)
    memcpy(p + 2, m.topic, topic_len)
    p += 2 + topic_len
    if m.qos:
        put_be16(p, m.id)
        p += 2
    return p


cdef u8* publish_put_properties(u8* p, const publish_t* m, u32 n, u16 alias) noexcept nogil:
    """The properties of version 5, n bytes behind their length; returns the end."""
    p = varint_put(p, n)
    if alias:
        p[0] = PROPERTY_ALIAS
        put_be16(p + 1, alias)
        p += 3
    if m.has_expiry:
        p[0] = PROPERTY_EXPIRY
        put_be32(p + 1, m.expiry_s)
        p += 5
    p = put_slice(p, m.ids, m.ids_len) if m.ids_len else p
    return put_slice(p, m.props, m.props_len) if m.props_len else p


# hot
cdef inline u8* publish_room(consumer_t* k, const rec_t* rec, u64 need,
                             rest_t** rest) noexcept nogil:
    """Where need bytes of a PUBLISH go; NULL when the link takes no more for now. *rest: what sends
    the body of a record that is in its file."""
    cdef u8* p = NULL
    if rec == NULL or not record_has_far_body(rec):
        p = link_room_at_hand(k.chan.link, need)
    return p if p != NULL else publish_room_slow(k, rec, need, rest)


cdef u8* publish_room_slow(consumer_t* k, const rec_t* rec, u64 need,
                           rest_t** rest) noexcept nogil:
    cdef link_t* l = k.chan.link
    cdef u8* p
    if l.loop.dirty_logs != NULL:
        loop_flush_logs(l.loop)     # what was delivered may be sent now: its ids are written first
    if not link_is_clear_for(l, need) and not link_holds_little(l, need):
        return NULL
    if not link_may_hold(l, need):
        k.wants = need
        return NULL
    if rec != NULL and record_has_far_body(rec):
        rest[0] = rest_new(l, k.queue, rec)
        if rest[0] == NULL:
            return NULL
    p = link_room(l, need)
    if p == NULL and rest[0] != NULL:
        rest_free(rest[0])
    return p


# hot
cdef int publish_write(consumer_t* k, const rec_t* rec, const publish_t* m) noexcept nogil:
    """A PUBLISH into the output of the link of k, a write_result; rec is its record, NULL when it
    has none. Cost: 10 ns and 0.1 ns per byte."""
    cdef link_t* l = k.chan.link
    cdef mqtt_t* s = l.mqtt
    cdef rest_t* rest = NULL
    cdef u32 topic_len = m.topic_len, props_len = 0
    cdef u64 n
    cdef u16 alias = 0
    cdef bint is_new_alias = False
    cdef u8* p
    n = 2 + (2 if m.qos else 0) + m.body_len
    if s.version == 5:
        props_len = (5 if m.has_expiry else 0) + m.ids_len + m.props_len
        if s.alias_maximum_out:
            alias = out_alias_find(s, m)
            if alias:
                topic_len = 0
            elif s.n_out_topics < OUT_ALIASES:
                is_new_alias = n + topic_len + props_len + 16 <= s.maximum_out
            props_len += 3 if alias else 0
        n += varint_size(props_len) + props_len
    n += topic_len
    if n > LENGTH_MAX - 16 or n + 1 + varint_size(<u32>n) > s.maximum_out:
        return WRITE_TOO_LARGE
    p = publish_room(k, rec, n + 16 - (m.body_len if m.body == NULL else 0), &rest)
    if p == NULL:
        return WRITE_LATER
    if is_new_alias:
        alias = out_alias_new(s, m)
        if alias:
            n += 3 + varint_size(props_len + 3) - varint_size(props_len)
            props_len += 3
    p = publish_put_head(p, m, <u32>n, topic_len)
    if s.version == 5:
        p = publish_put_properties(p, m, props_len, alias)
    if rest == NULL:
        memcpy(p, m.body, m.body_len)
        p += m.body_len
    link_wrote(l, p)
    if rest != NULL:
        link_add_rest(l, rest)
    return WRITTEN


# ---- the others ----------------------------------------------------------------------------------

# hot
cdef inline u8* ack_put(u8* p, const mqtt_t* s, u8 kind, u16 id, u8 reason) noexcept nogil:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, 5 bytes at most; returns the end."""
    p[0] = <u8>(kind << 4 | (2 if kind == PACKET_PUBREL else 0))
    put_be16(p + 2, id)
    if reason == 0 or s.version != 5:
        p[1] = 2
        return p + 4
    p[1] = 3
    p[4] = reason
    return p + 5


# hot
cdef bint ack_write(link_t* l, u8 kind, u16 id, u8 reason) noexcept nogil:
    """One of these now. Whether there was room."""
    cdef u8* p = link_room(l, 5)
    if p == NULL:
        return False
    link_wrote(l, ack_put(p, l.mqtt, kind, id, reason))
    return True


cdef void pong_write(link_t* l) noexcept nogil:
    cdef u8* p = link_room(l, 2)
    if p != NULL:
        p[0] = PACKET_PINGRESP << 4
        p[1] = 0
        link_wrote(l, p + 2)
