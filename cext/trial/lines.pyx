# Lines: a protocol of text, on links of tests. It shows that what is below a protocol knows none.
#
# A client's lines, each ended by a line feed, on channel 1 of its link:
#
#     P exchange key body     publish
#     A tag                   settle a delivery
#     R tag                   give it back
#
# any other line is a method for the session. What it gets:
#
#     D tag consumer size     a delivery; size bytes of body follow, and nothing behind them
#     C number, N number      all publishes up to that number are safe, or not
#     X number                that one alone is refused
#     U code key              a publish came back
#     H                       a heartbeat
#
# Names have no blanks, and messages no properties.

cdef enum:
    LINE_MOST = 4096            # bytes of a line; a longer one is not legal
    LINE_UNITS = 2


cdef u64 lines_frame_size(const link_t* l, const u8* p, u64 n) noexcept nogil:
    """Bytes of the line that begins at p, 0 when its end is not there; of one that is too long,
    what is there."""
    cdef u64 i
    for i in range(n):
        if p[i] == c'\n' or i == LINE_MOST:
            return i + 1
    return 0


cdef u64 lines_number(const u8* p, u64 n) noexcept nogil:
    cdef u64 i, value = 0
    for i in range(n):
        value = value * 10 + (p[i] - c'0')
    return value


cdef u64 lines_name(u8* to, const u8* p, u64 n) noexcept nogil:
    """The word at p as a short string; returns its length with the blank behind it, 0 for none."""
    cdef u64 i = 0
    while i < n and p[i] != c' ':
        i += 1
    if i == n or i > 255:
        return 0
    to[0] = <u8>i
    memcpy(to + 1, p, i)
    return i + 1


cdef int lines_publish(link_t* l, chan_t* c, const u8* p, u64 n) noexcept nogil:
    """`exchange key body` in n bytes at p."""
    cdef msg_t m
    cdef u64 exchange, key
    cdef int rc
    if l.loop.is_held and c.job == NULL:
        l.loop.ev_channel = c.id
        return WALK_HELD
    if not channel_has_names(c):
        return WALK_CLOSE
    exchange = lines_name(c.names, p, n)
    key = lines_name(c.names + exchange, p + exchange, n - exchange) if exchange else 0
    if key == 0:
        return WALK_CLOSE
    memset(&m, 0, sizeof(msg_t))
    m.names = c.names
    m.names_len = <u32>(exchange + key)
    m.props = <const u8*>b"\0\0"
    m.body = p + exchange + key
    m.body_len = n - exchange - key
    if not msg_note_plain(&m, m.props, 2):
        return WALK_CLOSE
    c.publish_flags = 1         # it comes back when nobody gets it
    rc = channel_publish(c, &m)
    if rc == PUBLISH_MISS:
        link_ask_publish(l, c.names)
        l.loop.ev_channel = c.id
        return WALK_MISS
    if rc == PUBLISH_TURN:
        return WALK_TURN
    return WALK_DONE if rc == PUBLISHED else WALK_CLOSE


cdef int lines_line(link_t* l, const u8* p, u64 n) noexcept nogil:
    """One line of n bytes, without its end."""
    cdef chan_t* c = link_channel(l, 1)
    cdef int rc
    if n > 2 and c != NULL and p[1] == c' ':
        if p[0] == c'P':
            return lines_publish(l, c, p + 2, n - 2)
        if p[0] == c'A' or p[0] == c'R':
            rc = channel_settle(c, lines_number(p + 2, n - 2), False, p[0] == c'R', p[0] == c'A')
            if rc == SETTLE_TURN:
                return WALK_TURN
            return WALK_DONE if rc == SETTLED else WALK_CLOSE
    l.loop.ev_data = p
    l.loop.ev_len = <u32>n
    l.loop.ev_channel = 0
    return WALK_METHOD


cdef int lines_walk(link_t* l, const u8* p, u64 n, u64* used) noexcept nogil:
    cdef u64 at = 0, size
    cdef int rc
    used[0] = 0
    while True:
        size = lines_frame_size(l, p + at, n - at)
        if size == 0:
            return WALK_DONE
        if loop_spent(l.loop, LINE_UNITS) and at:
            return WALK_TURN
        if p[at + size - 1] != c'\n':
            return WALK_CLOSE
        rc = lines_line(l, p + at, size - 1)
        if rc == WALK_MISS or rc == WALK_TURN or rc == WALK_HELD:
            return rc
        at += size
        used[0] = at
        if l.loop.over != NULL:
            loop_enforce(l.loop)
        if rc:
            return rc


cdef bint lines_say(link_t* l, const char* line, int n) noexcept nogil:
    """Write n bytes of a line. Whether there was room."""
    cdef u8* p = link_room(l, <u64>n)
    if p == NULL:
        return False
    memcpy(p, line, n)
    link_wrote(l, p + n)
    return True


cdef bint lines_deliver(consumer_t* k, rec_t* rec, u64 tag) noexcept nogil:
    cdef link_t* l = k.chan.link
    cdef rest_t* rest = NULL
    cdef u64 need = 300 + (rec.body_len if rec.body != NULL else 0)
    cdef u8* p
    if not link_is_clear_for(l, need):
        return False
    if not link_may_hold(l, need):
        k.wants = need
        return False
    if record_has_far_body(rec):
        rest = rest_new(l, k.queue, rec)
        if rest == NULL:
            return False
    p = link_room(l, need)
    if p == NULL:
        if rest != NULL:
            rest_free(rest)
        return False
    p += snprintf(<char*>p, 300, b"D %llu %.*s %llu\n", <unsigned long long>tag, <int>k.tag[0],
                  <const char*>k.tag + 1, <unsigned long long>rec.body_len)
    if rest == NULL:
        memcpy(p, rec.body, rec.body_len)
        p += rec.body_len
    link_wrote(l, p)
    if rest != NULL:
        link_add_rest(l, rest)
    return True


cdef bint lines_confirm(chan_t* c, u64 seq, bint is_ack) noexcept nogil:
    cdef char line[32]
    cdef char kind = c'C' if is_ack else c'N'
    return lines_say(c.link, line, snprintf(line, sizeof(line), b"%c %llu\n", kind,
                                            <unsigned long long>seq))


cdef bint lines_refuse(chan_t* c) noexcept nogil:
    cdef char line[32]
    return lines_say(c.link, line, snprintf(line, sizeof(line), b"X %llu\n",
                                            <unsigned long long>c.publish_seq))


cdef int lines_give_back(chan_t* c, const msg_t* m, u16 code, const char* text) noexcept nogil:
    cdef char line[300]
    cdef const u8* key = m.names + m.names[0] + 1
    return 0 if lines_say(c.link, line, snprintf(line, sizeof(line), b"U %d %.*s\n", <int>code,
                                                 <int>key[0], <const char*>key + 1)) else -1


cdef void lines_heartbeat(link_t* l) noexcept nogil:
    lines_say(l, b"H\n", 2)


cdef void lines_piece_begin(u8* p, u16 channel, u32 size) noexcept nogil:
    """Nothing stands before a body."""


cdef void lines_piece_end(u8* p) noexcept nogil:
    """Nor behind it."""


cdef Protocol lines_spoken():
    cdef Protocol spoken = Protocol.__new__(Protocol)
    spoken.t.walk = lines_walk
    spoken.t.frame_size = lines_frame_size
    spoken.t.deliver = lines_deliver
    spoken.t.confirm = lines_confirm
    spoken.t.refuse = lines_refuse
    spoken.t.give_back = lines_give_back
    spoken.t.heartbeat = lines_heartbeat
    spoken.t.piece_begin = lines_piece_begin
    spoken.t.piece_end = lines_piece_end
    spoken.t.grace_ns = 5000000000
    return spoken


LINES = lines_spoken()
