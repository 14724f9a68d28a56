# Acks: what clients are told of their publishes, and what they say of ours.
#
# A publish of QoS 1 or 2, a PUBREL, and a PUBREC of a session that is kept take a number of the
# channel's confirms; a ring has the packet that answers each. So PUBACK, PUBREC, PUBREL and PUBCOMP
# leave in order, in batches, and behind the sync; and so do held messages, see hold.pyx.
# Source: docs/mqtt.md; the standard, section 4.3.

cdef enum:
    ACKS_MAX = 65535            # publishes of a client that wait for their answer
    ACKS_MOST = 4 * 65535       # answers of any kind: PUBRECs and PUBRELs may be said again


# ---- ours ----------------------------------------------------------------------------------------

cdef bint acks_grow(mqtt_t* s) noexcept nogil:
    """Have room for more answers. Whether there was memory."""
    cdef u32 cap = s.cap_acks * 2 if s.cap_acks else 16
    cdef u64 seq = s.chan.confirmed_seq + 1
    cdef u32* acks = <u32*>malloc(cap * sizeof(u32))
    if acks == NULL:
        return False
    while seq <= s.chan.publish_seq:
        acks[seq & (cap - 1)] = s.acks[seq & (s.cap_acks - 1)]
        seq += 1
    free(s.acks)
    s.acks = acks
    s.cap_acks = cap
    return True


# hot
cdef inline bint acks_have_room(mqtt_t* s) noexcept nogil:
    """Whether one more answer can be noted. Cost: 1 ns."""
    return s.chan.publish_seq - s.chan.confirmed_seq < s.cap_acks or acks_grow(s)


cdef inline bint acks_have_room_behind_packets(mqtt_t* s) noexcept nogil:
    """The same for what answers an acknowledgement, of which a client may send any number."""
    return s.chan.publish_seq - s.chan.confirmed_seq < ACKS_MOST and acks_have_room(s)


# hot
cdef inline void ack_note(mqtt_t* s, u8 kind, u16 id, u8 reason) noexcept nogil:
    """A packet is to be answered when all is on disk that its channel waits for; there is room."""
    cdef chan_t* c = s.chan
    c.publish_seq += 1
    s.acks[c.publish_seq & (s.cap_acks - 1)] = <u32>id << 16 | <u32>kind << 8 | reason
    if not c.is_in_confirms:
        loop_want_confirm(c.link.loop, c)


# hot
cdef inline void publish_count(mqtt_t* s) noexcept nogil:
    """One publish of QoS 1 or 2 more is unanswered: until PUBACK, PUBCOMP, or a refusing PUBREC."""
    if s.receive_maximum_in < ACKS_MAX:
        s.n_unanswered += 1


cdef void publishes_uncount(mqtt_t* s, u64 at, u64 seq, bint is_ack) noexcept nogil:
    """These answers are written. A PUBCOMP may be for a publish of an earlier connection."""
    cdef u32 ack
    cdef u8 kind
    while at <= seq:
        ack = s.acks[at & (s.cap_acks - 1)]
        kind = <u8>(ack >> 8)
        at += 1
        if s.n_unanswered and kind != PACKET_PUBREL and kind != PACKET_PUBLISH and (
                not is_ack or kind != PACKET_PUBREC or <u8>ack >= 0x80):
            s.n_unanswered -= 1


cdef bint acks_cannot_refuse(mqtt_t* s, u64 at, u64 seq) noexcept nogil:
    """Whether one of these answers has no word for a refusal: PUBREL, PUBCOMP, held messages."""
    cdef u8 kind
    while at <= seq:
        kind = <u8>(s.acks[at & (s.cap_acks - 1)] >> 8)
        if kind >= PACKET_PUBREL or kind == PACKET_PUBLISH:
            return True
        at += 1
    return False


cdef bint mqtt_confirm(chan_t* c, u64 seq, bint is_ack) noexcept nogil:
    """Answer all up to number seq: they are safe, or not. Whether it is written."""
    cdef link_t* l = c.link
    cdef mqtt_t* s = l.mqtt
    cdef u64 at = c.confirmed_seq + 1
    cdef u32 ack
    cdef u8 kind
    cdef u8* p
    cdef u8 reason = REASON_QUOTA if l.loop.is_below else REASON_UNSPECIFIED
    if not is_ack and (s.version != 5 or acks_cannot_refuse(s, at, seq)):
        s.is_failed = True
        acks_forget(s, at, seq)
        link_await_room(l, True)        # there is no word for it: the client sends it again
        return False
    if s.held_seq:
        hold_end(l, s, seq)
    p = link_room(l, 5 * (seq - c.confirmed_seq))
    if p == NULL:
        return False
    while at <= seq:
        ack = s.acks[at & (s.cap_acks - 1)]
        kind = <u8>(ack >> 8)
        at += 1
        if kind == PACKET_PUBREL or kind == PACKET_PUBLISH:
            c.tally.confirm -= 1        # it confirms no publish
        if kind == PACKET_PUBLISH:
            continue
        p = ack_put(p, s, kind, <u16>(ack >> 16),
                    <u8>ack if is_ack or <u8>ack >= 0x80 else reason)
        if kind == PACKET_PUBREL:
            released_note(s, <u16>(ack >> 16))
    link_wrote(l, p)
    if s.n_unanswered:
        publishes_uncount(s, c.confirmed_seq + 1, seq, is_ack)
    if not is_ack:
        acks_forget(s, c.confirmed_seq + 1, seq)
    return True


cdef void acks_forget(mqtt_t* s, u64 at, u64 seq) noexcept nogil:
    """Messages of QoS 2 that were refused may come again with the same id."""
    cdef packet_t* p
    cdef u32 ack
    while at <= seq:
        ack = s.acks[at & (s.cap_acks - 1)]
        at += 1
        if <u8>(ack >> 8) == PACKET_PUBREC:
            p = packets_find(&s.session.received, <u16>(ack >> 16))
            if p != NULL:
                packets_remove(&s.session.received, p)
                session_note(s, SESSION_RELEASED, <u16>(ack >> 16), 0, 0)


cdef bint mqtt_refuse(chan_t* c) noexcept nogil:
    """The last publish alone is refused, see protocol_t: its answer says so already."""
    return True


cdef int mqtt_give_back(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil:
    """MQTT has no such thing."""
    return -1


# ---- theirs --------------------------------------------------------------------------------------

cdef void session_credit(mqtt_t* s) noexcept nogil:
    """One packet less is in flight."""
    cdef chan_t* c = s.chan
    cdef bint was_full = c.global_prefetch != 0 and c.global_unacked >= c.global_prefetch
    c.global_unacked -= 1
    if was_full:
        channel_wake_consumers(c)


# hot
cdef void sent_settle(mqtt_t* s, packet_t* p) noexcept nogil:
    """The message of p is acknowledged: it leaves its queue. Cost: 15 ns."""
    if channel_settle_tag(s.chan, p.tag, False, False, True) == SETTLED:
        s.chan.tally.ack += 1


# hot
cdef u32 puback_take(link_t* l, mqtt_t* s, u16 id) noexcept nogil:
    """0 or a reason_code. Cost: 5 ns before channel_settle_tag."""
    cdef packet_t* p = packets_find(&s.session.sent, id)
    if p == NULL or p.state != PACKET_SENT or p.qos == 2:
        return REASON_PROTOCOL
    if p.tag == 0:
        return 0                # from before this connection: it is sent again, and acked again
    sent_settle(s, p)
    packets_remove(&s.session.sent, p)
    session_note(s, SESSION_DONE, id, 0, 0)
    return 0


cdef void released_note(mqtt_t* s, u16 id) noexcept nogil:
    """PUBREL is said: from then on the id is kept without its message, which is deleted on disk.
    Noted earlier, it could be there without that, and the message would come with another id."""
    cdef const packet_t* p = packets_find(&s.session.sent, id)
    if p != NULL and p.state == PACKET_RELEASED:
        session_note(s, SESSION_REC, id, 0, 0)


cdef bint release_note(mqtt_t* s, u16 id) noexcept nogil:
    """Have PUBREL said: if the session is kept, once it is on disk that the message has come. A
    client forgets the id by it, and would take the message for another one. Whether it will be."""
    if not session_is_kept(s):
        ack_write(s.chan.link, PACKET_PUBREL, id, 0)
        return True
    if not acks_have_room_behind_packets(s):
        return False
    s.chan.needs_sync = True
    ack_note(s, PACKET_PUBREL, id, 0)
    return True


cdef void sent_settle_safely(mqtt_t* s, packet_t* p) noexcept nogil:
    """The same, and where a session is kept the next sync covers that it has left."""
    cdef unacked_t* u
    if session_is_kept(s):
        u = channel_find(s.chan, p.tag)
        if u != NULL:
            queue_want_acks(u.queue, queue_level(u.queue, u.level))
    sent_settle(s, p)


cdef u32 pubrec_take(link_t* l, mqtt_t* s, u16 id, u8 reason) noexcept nogil:
    """Have PUBREC answered. 0 or a reason_code."""
    cdef packet_t* p = packets_find(&s.session.sent, id)
    if p == NULL:
        if reason < 0x80:
            ack_write(l, PACKET_PUBREL, id, REASON_ID_NOT_FOUND)
        return 0
    if p.qos != 2:
        return REASON_PROTOCOL
    if p.state == PACKET_SENT:
        if p.tag == 0:
            return 0
        sent_settle_safely(s, p)
        if reason >= 0x80:
            packets_remove(&s.session.sent, p)
            session_note(s, SESSION_DONE, id, 0, 0)
            return 0
        s.chan.global_unacked += 1      # it stays in flight until PUBCOMP
        p.state = PACKET_RELEASED
        p.tag = 0
    return 0 if release_note(s, id) else <u32>REASON_QUOTA


cdef void pubcomp_take(mqtt_t* s, u16 id) noexcept nogil:
    cdef packet_t* p = packets_find(&s.session.sent, id)
    if p == NULL or p.state != PACKET_RELEASED:
        return
    packets_remove(&s.session.sent, p)
    session_note(s, SESSION_DONE, id, 0, 0)
    session_credit(s)


cdef u32 pubrel_take(link_t* l, mqtt_t* s, u16 id) noexcept nogil:
    """Forget an id of the client, and answer PUBCOMP when that is on disk. 0 or a reason_code."""
    cdef packet_t* p = packets_find(&s.session.received, id)
    if not acks_have_room_behind_packets(s):
        return REASON_QUOTA
    if p == NULL:
        if session_is_kept(s):
            s.chan.needs_sync = True        # that it was forgotten may be on its way to the disk
        ack_note(s, PACKET_PUBCOMP, id, REASON_ID_NOT_FOUND)
        return 0
    if not session_note(s, SESSION_RELEASED, id, 0, 0):
        return REASON_QUOTA
    packets_remove(&s.session.received, p)
    if session_is_kept(s):
        s.chan.needs_sync = True
    ack_note(s, PACKET_PUBCOMP, id, 0)
    return 0


cdef void released_resend(link_t* l, mqtt_t* s) noexcept nogil:
    """Say PUBREL again for what has waited for PUBCOMP since an earlier connection."""
    cdef packet_t* p
    cdef u32 i
    for i in range(s.session.sent.cap):
        p = &s.session.sent.slots[i]
        if p.id and p.state == PACKET_RELEASED:
            release_note(s, p.id)
            s.chan.global_unacked += 1
