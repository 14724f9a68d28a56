# Walk: the packets of one read. PUBLISH, its answers and PINGREQ are done here; CONNECT, SUBSCRIBE,
# UNSUBSCRIBE, DISCONNECT and AUTH are events for Python.
#
# Nothing but CONNECT is heard first, and then nothing but AUTH and DISCONNECT until Python has
# opened the session. Every length is checked before it is used. What is malformed is told with a
# reason code, and the connection ends.
# Source: the standard, chapters 2 and 3.

cdef enum:
    PACKET_UNITS = 2            # of work, besides what is done for the packet
    CONNECT_MAX = 65536         # bytes of a packet before the session is open
    CONTROL_MAX = 16777216      # of one that Python gets


# ---- frames --------------------------------------------------------------------------------------

cdef u64 mqtt_frame_size(const link_t* l, const u8* p, u64 n) noexcept nogil:
    """Bytes of the packet that begins at p; 0 = not known yet."""
    cdef u32 length
    cdef int k
    if n < 2:
        return 0
    k = varint_read(p + 1, n - 1, &length)
    return 1 + <u64>k + length if k > 0 else 0


# ---- packets of Python ---------------------------------------------------------------------------

cdef int packet_event(link_t* l, u8 first, const u8* p, u32 n) noexcept nogil:
    """Have Python answer a packet."""
    l.loop.ev_method = first >> 4
    l.loop.ev_a = first & 15
    l.loop.ev_data = p
    l.loop.ev_len = n
    return WALK_PACKET


cdef int packet_before_open(link_t* l, u8 first, const u8* p, u32 n) noexcept nogil:
    cdef u8 kind = first >> 4
    cdef u32 reason
    if l.state == LINK_HEADER:
        if first != PACKET_CONNECT << 4:
            reason = REASON_MALFORMED if kind == PACKET_CONNECT else REASON_PROTOCOL
            return packet_fail(l, reason, b"CONNECT is expected")
        l.state = LINK_HANDSHAKE
        return packet_event(l, first, p, n)
    if first != PACKET_AUTH << 4 and first != PACKET_DISCONNECT << 4:
        return packet_fail(l, REASON_PROTOCOL, b"not before CONNACK")
    return packet_event(l, first, p, n)


cdef int packet_other(link_t* l, mqtt_t* s, u8 first, const u8* p, u32 n) noexcept nogil:
    """What is no PUBLISH, PUBACK or PINGREQ."""
    cdef u8 kind = first >> 4, flags = first & 15
    cdef u32 reason = 0
    if kind == PACKET_SUBSCRIBE or kind == PACKET_UNSUBSCRIBE or kind == PACKET_PUBREL:
        if flags != 2:
            return packet_fail(l, REASON_MALFORMED, b"reserved flags")
    elif flags:
        return packet_fail(l, REASON_MALFORMED, b"reserved flags")
    if kind == PACKET_PUBREC or kind == PACKET_PUBREL or kind == PACKET_PUBCOMP:
        if not ack_is_well_formed(s, p, n):
            return packet_fail(l, REASON_MALFORMED, b"length of an acknowledgement")
        if be16(p) == 0:
            return packet_fail(l, REASON_PROTOCOL, b"packet identifier 0")
        if kind == PACKET_PUBREC:
            reason = pubrec_take(l, s, be16(p), p[2] if n > 2 else 0)
        elif kind == PACKET_PUBREL:
            reason = pubrel_take(l, s, be16(p))
        else:
            pubcomp_take(s, be16(p))
        return packet_fail(l, reason, b"packet identifier") if reason else WALK_DONE
    if (kind == PACKET_SUBSCRIBE or kind == PACKET_UNSUBSCRIBE or kind == PACKET_DISCONNECT
            or (kind == PACKET_AUTH and s.version == 5)):
        if n > CONTROL_MAX:
            return packet_fail(l, REASON_TOO_LARGE, b"packet is too large")
        return packet_event(l, first, p, n)
    return packet_fail(l, REASON_PROTOCOL, b"packet type")


# ---- acknowledgements ----------------------------------------------------------------------------

cdef bint ack_properties_are_valid(const u8* p, u32 n) noexcept nogil:
    """Whether n bytes are properties of an acknowledgement: reason string and user properties."""
    cdef u32 length, size, second
    cdef int k = varint_read(p, n, &length)
    cdef bint has_reason = False
    if k <= 0 or <u32>k + length != n:
        return False
    p += k
    n -= <u32>k
    while n:
        if (p[0] != PROPERTY_REASON_STRING and p[0] != PROPERTY_USER) or n < 3:
            return False
        if p[0] == PROPERTY_REASON_STRING and has_reason:
            return False
        size = 3 + be16(p + 1)
        if size > n or not mqtt_text_is_valid(p + 3, size - 3):
            return False
        if p[0] == PROPERTY_USER:
            second = size + 2
            if second > n or second + be16(p + size) > n:
                return False
            if not mqtt_text_is_valid(p + second, be16(p + size)):
                return False
            size = second + be16(p + size)
        has_reason = has_reason or p[0] == PROPERTY_REASON_STRING
        p += size
        n -= size
    return True


# hot
cdef inline bint ack_is_well_formed(const mqtt_t* s, const u8* p, u32 n) noexcept nogil:
    """Whether PUBACK, PUBREC, PUBREL or PUBCOMP has an id, and of version 5 a reason code and
    properties if any."""
    if n == 2:
        return True
    if n < 2 or s.version != 5:
        return False
    return n == 3 or ack_properties_are_valid(p + 3, n - 3)


# hot
cdef inline int puback_walk(link_t* l, mqtt_t* s, u8 first, const u8* p, u32 n) noexcept nogil:
    cdef u32 reason
    if first & 15:
        return packet_fail(l, REASON_MALFORMED, b"reserved flags")
    if not ack_is_well_formed(s, p, n):
        return packet_fail(l, REASON_MALFORMED, b"length of an acknowledgement")
    reason = puback_take(l, s, be16(p))
    if reason:
        return packet_fail(l, reason, b"PUBACK of an unknown packet identifier")
    return WALK_DONE


# ---- the walk ------------------------------------------------------------------------------------

cdef bint read_lets_sleep(const u8* p, u64 n) noexcept nogil:
    """Whether a read is one packet that needs nothing of the path of messages: a ping, or one for
    Python."""
    cdef u32 length
    cdef u8 kind = p[0] >> 4 if n >= 2 else 0
    cdef int head = varint_read(p + 1, n - 1, &length) if n >= 2 else 0
    return head > 0 and n == 1 + <u64>head + length and (
        kind == PACKET_PINGREQ or kind == PACKET_SUBSCRIBE or kind == PACKET_UNSUBSCRIBE
        or kind == PACKET_DISCONNECT or kind == PACKET_AUTH)


# hot
cdef void retained_look_ahead(retained_t* retained, const u8* p, u64 n) noexcept nogil:
    """A retained PUBLISH is about to be taken, with n bytes at p behind it. What is known of a
    topic is far in memory: have it fetched for the second packet from here."""
    cdef u32 length
    cdef int head = varint_read(p + 1, n - 1, &length) if n > 1 else 0
    if head <= 0 or n < 4 + <u64>head + length:
        return
    p += 1 + head + length
    n -= 1 + <u64>head + length
    if p[0] >> 4 != PACKET_PUBLISH or not p[0] & 1:
        return
    head = varint_read(p + 1, n - 1, &length)
    if head <= 0 or n < 3 + <u64>head:
        return
    length = be16(p + 1 + head)
    if length and n >= 3 + <u64>head + length:
        retained.hint(retained, p + 3 + head, length)


cdef int mqtt_too_large(link_t* l, mqtt_t* s, u64 size) noexcept nogil:
    """A packet of so many bytes has begun, and is not whole: whether it may be received, counted as
    memory of large messages. WALK_DONE or WALK_BAD_PACKET."""
    if s == NULL or size <= BLOCK_SIZE or s.large_bytes:
        return WALK_DONE
    if not link_may_take(l, size):
        return packet_fail(l, REASON_QUOTA, b"no memory for a large packet")
    link_take(l, size)
    s.large_bytes = size
    return WALK_DONE


cdef void mqtt_large_is_over(link_t* l, mqtt_t* s) noexcept nogil:
    link_give(l, s.large_bytes)
    s.large_bytes = 0


# hot
cdef int mqtt_walk(link_t* l, const u8* buf, u64 n, u64* used) noexcept nogil:
    """Walk the whole packets in n bytes at buf.
    Returns a walk_event; *used counts the bytes that are done. The caller charges for them.

    Cost: 4 ns per packet besides what it asks for."""
    cdef loop_t* loop = l.loop
    cdef mqtt_t* s = l.mqtt
    cdef const u8* p
    cdef u64 at = 0
    cdef u32 length, most
    cdef u8 first
    cdef int head, rc
    used[0] = 0
    if s != NULL and s.chan == NULL and not read_lets_sleep(buf, n):
        s = mqtt_wake(l)
        if s == NULL:
            used[0] = n
            return packet_fail(l, REASON_QUOTA, b"no memory")
    while n - at >= 2:
        p = buf + at
        head = varint_read(p + 1, n - at - 1, &length)
        if head <= 0:
            if head == 0:
                break
            used[0] = n             # nothing behind it can be trusted
            return packet_fail(l, REASON_MALFORMED, b"remaining length")
        if l.state == LINK_CLOSING:
            most = LENGTH_MAX
        elif s == NULL:
            most = CONNECT_MAX if l.frame_max < CONNECT_MAX else l.frame_max
        else:
            most = s.maximum_in
        if length > most:
            used[0] = n
            return packet_fail(l, REASON_TOO_LARGE, b"packet is too large")
        if s == NULL and l.state == LINK_HEADER and p[0] != PACKET_CONNECT << 4:
            used[0] = n
            return packet_before_open(l, p[0], p, 0)
        if n - at < 1 + <u64>head + length:
            rc = mqtt_too_large(l, s, 1 + <u64>head + length)
            used[0] = n if rc else at
            return rc
        if loop_spent(loop, PACKET_UNITS) and at:
            used[0] = at
            return WALK_TURN        # but the first is for getting on
        if l.crowd_bytes > BUSY_SHARE and at:
            used[0] = at
            return WALK_CROWD
        first = p[0]
        p += 1 + head
        if s == NULL:
            used[0] = at + 1 + <u64>head + length
            if l.state == LINK_CLOSING:
                at = used[0]
                continue
            return packet_before_open(l, first, p, length)
        if s.large_bytes and length > BLOCK_SIZE - 8:
            mqtt_large_is_over(l, s)
        if s.is_failed:
            used[0] = n
            return packet_fail(
                l, REASON_UNSPECIFIED, b"too few nodes are in sync" if l.loop.is_below
                else b"a message could not be stored")
        if l.state == LINK_CLOSING:
            rc = WALK_DONE
        elif first >> 4 == PACKET_PUBLISH:
            l.is_asking = True
            if first & 1 and s.retained != NULL:
                retained_look_ahead(s.retained, p + length, n - at - 1 - <u64>head - length)
            rc = publish_take(l, s, first & 15, p, length)
            if rc == WALK_TOPIC or rc == WALK_TURN or rc == WALK_HELD:
                used[0] = at
                return rc
        elif first >> 4 == PACKET_PUBACK:
            rc = puback_walk(l, s, first, p, length)
        elif first == PACKET_PINGREQ << 4 and length == 0:
            l.is_asking = True
            pong_write(l)
            rc = WALK_DONE
        else:
            l.is_asking = l.is_asking or (
                first >> 4 != PACKET_PUBREC and first >> 4 != PACKET_PUBCOMP)
            rc = packet_other(l, s, first, p, length)
        at += 1 + <u64>head + length
        if rc:
            used[0] = at
            return rc
    used[0] = at
    return WALK_DONE
