# Session state: what the log of sessions knows, in memory: sessions by client id, their packet ids
# and their facts.
#
# Each change here is one that session_log.pyx notes, or session_load.pyx finds. Sizes are counted
# as they would be in a log with nothing else in it.

cdef enum:
    SLOG_BUCKETS = 64


# ---- memory --------------------------------------------------------------------------------------

cdef int slog_init(slog_t* sl) noexcept nogil:
    """The rest is zeros. 0, or -1 out of memory."""
    sl.buckets = <msession_t**>calloc(SLOG_BUCKETS, sizeof(msession_t*))
    if sl.buckets == NULL:
        return -1
    sl.n_buckets = sl.cap_buckets = SLOG_BUCKETS
    sl.mask = SLOG_BUCKETS - 1
    sl.bytes = sizeof(slog_t) + SLOG_BUCKETS * sizeof(msession_t*)
    sl.next_number = 1
    sl.log.kind = MLOG_SESSIONS
    sl.log.fd = -1
    sl.log.next_number = 1
    sl.turn = 1
    sl.log.gather = slog_gather
    sl.log.after = slog_after
    return 0


cdef inline u64 msession_size(u32 name_len) noexcept nogil:
    return (sizeof(msession_t) + name_len + 8 + 15) & ~<u64>15


cdef u32 msession_record(const msession_t* m) noexcept nogil:
    """Bytes that it takes when it is written anew."""
    cdef u32 i, n = (SLOG_MADE_SIZE + <u32>m.name_len + SLOG_TIMES_SIZE + m.facts_size
                     + m.n_packets * SLOG_CAME_SIZE)
    for i in range(m.cap_packets):
        if m.packets[i].id and m.packets[i].origin.key:
            n += SLOG_TAKEN_MORE
    return n


cdef inline msession_t** slog_bucket(const slog_t* sl, u32 hash) noexcept nogil:
    """The bucket of a hash."""
    cdef u32 at = hash & sl.mask
    return &sl.buckets[at if at < sl.n_buckets else at & (sl.mask >> 1)]


# hot
cdef msession_t* slog_find(const slog_t* sl, const u8* name, u32 n) noexcept nogil:
    """The session of a client, NULL when there is none."""
    cdef u32 hash = <u32>hash_bytes(name, n, sl.seed)
    cdef msession_t* m = slog_bucket(sl, hash)[0]
    while m != NULL and not (m.hash == hash and m.name_len == n and same_bytes(m.name, name, n)):
        m = m.next
    return m


cdef inline void slog_link(slog_t* sl, msession_t* m) noexcept nogil:
    cdef msession_t** bucket = slog_bucket(sl, m.hash)
    m.next = bucket[0]
    bucket[0] = m


cdef void slog_split(slog_t* sl) noexcept nogil:
    """Add a bucket, which takes its share of one that was there before: so no client has to wait
    until a million sessions are in new buckets. Without memory they get longer."""
    cdef u32 added = sl.n_buckets, at
    cdef msession_t** grown
    cdef msession_t* m
    cdef msession_t* following
    if added == sl.cap_buckets:
        grown = <msession_t**>realloc(sl.buckets, 2 * <u64>added * sizeof(msession_t*))
        if grown == NULL:
            return
        sl.buckets = grown
        sl.cap_buckets = 2 * added
        sl.bytes += added * sizeof(msession_t*)
    sl.n_buckets = added + 1
    if added > sl.mask:
        sl.mask = sl.mask * 2 + 1
    at = added & (sl.mask >> 1)
    m = sl.buckets[at]
    sl.buckets[at] = sl.buckets[added] = NULL
    while m != NULL:
        following = m.next
        slog_link(sl, m)
        m = following


cdef int slog_take_slot(slog_t* sl, msession_t* m) noexcept nogil:
    """0, or -1 out of memory."""
    cdef msession_t** grown
    cdef u32 cap
    while sl.free_slot < sl.n_slots and sl.slots[sl.free_slot] != NULL:
        sl.free_slot += 1
    if sl.free_slot == sl.cap_slots:
        cap = sl.cap_slots * 2 + 16
        grown = <msession_t**>realloc(sl.slots, cap * sizeof(msession_t*))
        if grown == NULL:
            return -1
        sl.slots = grown
        sl.bytes += (cap - sl.cap_slots) * sizeof(msession_t*)
        sl.cap_slots = cap
    m.slot = sl.free_slot
    sl.slots[m.slot] = m
    if m.slot == sl.n_slots:
        sl.n_slots += 1
    sl.free_slot += 1
    return 0


cdef msession_t* slog_add(slog_t* sl, const u8* name, u32 n, u64 number) noexcept nogil:
    """A session for a client that has none; NULL out of memory."""
    cdef msession_t* m = <msession_t*>malloc(sizeof(msession_t) + n)
    if m == NULL:
        return NULL
    if sl.n >= sl.n_buckets:
        slog_split(sl)
    memset(m, 0, sizeof(msession_t))
    memcpy(m.name, name, n)
    m.name_len = <u16>n
    m.hash = <u32>hash_bytes(name, n, sl.seed)
    m.number = number
    if slog_take_slot(sl, m):
        free(m)
        return NULL
    slog_link(sl, m)
    sl.n += 1
    sl.bytes += msession_size(n)
    sl.live += msession_record(m)
    return m


cdef void slog_clear(slog_t* sl, msession_t* m) noexcept nogil:
    """It has nothing but its name any more."""
    cdef mfact_t* fact
    sl.live -= msession_record(m)
    while m.facts != NULL:
        fact = m.facts
        m.facts = fact.next
        sl.bytes -= sizeof(mfact_t) + fact.key_len + fact.value_len
        free(fact)
    sl.bytes -= m.cap_packets * sizeof(mpacket_t)
    free(m.packets)
    m.packets = NULL
    m.n_packets = m.cap_packets = m.facts_size = m.expiry_s = 0
    m.left_ms = 0
    sl.live += msession_record(m)


cdef void slog_drop(slog_t* sl, msession_t* m) noexcept nogil:
    """Forget a session."""
    cdef msession_t** at = slog_bucket(sl, m.hash)
    slog_clear(sl, m)
    while at[0] != m:
        at = &at[0].next
    at[0] = m.next
    sl.slots[m.slot] = NULL
    if m.slot < sl.free_slot:
        sl.free_slot = m.slot
    sl.live -= msession_record(m)
    sl.n -= 1
    sl.bytes -= msession_size(m.name_len)
    if sl.last == m:
        sl.last = NULL
        sl.last_queue = NULL
    lmq_poison(m, sizeof(msession_t))
    free(m)


# ---- packet ids ----------------------------------------------------------------------------------

cdef inline u32 mpacket_place(u16 id, bint is_received, u32 cap) noexcept nogil:
    return (<u32>id * <u32>2654435769 + <u32>is_received) & (cap - 1)


cdef mpacket_t* mpacket_find(const msession_t* m, u16 id, bint is_received) noexcept nogil:
    """An id in use; NULL when it is free."""
    cdef u32 i
    if m.cap_packets == 0:
        return NULL
    i = mpacket_place(id, is_received, m.cap_packets)
    while m.packets[i].id:
        if m.packets[i].id == id and (m.packets[i].state == PACKET_RECEIVED) == is_received:
            return &m.packets[i]
        i = (i + 1) & (m.cap_packets - 1)
    return NULL


cdef void mpacket_put(mpacket_t* packets, u32 cap, const mpacket_t* packet) noexcept nogil:
    cdef u32 i = mpacket_place(packet.id, packet.state == PACKET_RECEIVED, cap)
    while packets[i].id:
        i = (i + 1) & (cap - 1)
    packets[i] = packet[0]


cdef int mpackets_resize(slog_t* sl, msession_t* m, u32 cap) noexcept nogil:
    """0, or -1 out of memory."""
    cdef mpacket_t* packets = <mpacket_t*>calloc(cap, sizeof(mpacket_t))
    cdef u32 i
    if packets == NULL:
        return -1
    for i in range(m.cap_packets):
        if m.packets[i].id:
            mpacket_put(packets, cap, &m.packets[i])
    sl.bytes += (<u64>cap - m.cap_packets) * sizeof(mpacket_t)
    free(m.packets)
    m.packets = packets
    m.cap_packets = cap
    return 0


cdef int mpacket_set(slog_t* sl, msession_t* m, u16 id, u8 state, u32 seg,
                     u32 pos) noexcept nogil:
    """0, or -1 out of memory."""
    cdef mpacket_t* found = mpacket_find(m, id, state == PACKET_RECEIVED)
    cdef mpacket_t packet
    if found == NULL:
        if 4 * (m.n_packets + 1) > 3 * m.cap_packets and mpackets_resize(
                sl, m, m.cap_packets * 2 if m.cap_packets else 8):
            return -1
        memset(&packet, 0, sizeof(mpacket_t))
        packet.id = id
        packet.state = state
        packet.seg = seg
        packet.pos = pos
        mpacket_put(m.packets, m.cap_packets, &packet)
        m.n_packets += 1
        sl.live += SLOG_CAME_SIZE
        return 0
    found.state = state
    if found.origin.key and not (state == PACKET_SENT and pos and seg & SENT_TWICE):
        found.origin.key = 0
        sl.live -= SLOG_TAKEN_MORE
    if state != PACKET_RELEASED:
        found.seg = seg
        found.pos = pos
    return 0


cdef int mpacket_take(slog_t* sl, msession_t* m, u16 id, const origin_t* origin) noexcept nogil:
    """It is of a message that is in another queue. 0, or -1 out of memory."""
    if mpacket_set(sl, m, id, PACKET_SENT, SENT_TWICE, 0):
        return -1
    mpacket_find(m, id, False).origin = origin[0]
    sl.live += SLOG_TAKEN_MORE
    return 0


cdef void mpacket_free(slog_t* sl, msession_t* m, u16 id, bint is_received) noexcept nogil:
    """The id is free; what was put behind it for its sake moves up."""
    cdef mpacket_t* found = mpacket_find(m, id, is_received)
    cdef u32 mask = m.cap_packets - 1, hole, i, home
    if found == NULL:
        return
    if found.origin.key:
        sl.live -= SLOG_TAKEN_MORE
    hole = <u32>(found - m.packets)
    i = hole
    while True:
        i = (i + 1) & mask
        if m.packets[i].id == 0:
            break
        home = mpacket_place(m.packets[i].id, m.packets[i].state == PACKET_RECEIVED,
                             m.cap_packets)
        if ((i - home) & mask) >= ((i - hole) & mask):
            m.packets[hole] = m.packets[i]
            hole = i
    m.packets[hole].id = 0
    m.n_packets -= 1
    sl.live -= SLOG_CAME_SIZE
    if m.n_packets == 0 and m.cap_packets > 64:
        sl.bytes -= m.cap_packets * sizeof(mpacket_t)
        free(m.packets)
        m.packets = NULL
        m.cap_packets = 0


cdef int slog_apply(slog_t* sl, msession_t* m, u8 change, u16 id, u32 seg,
                    u32 pos) noexcept nogil:
    """What a change means. 0, or -1 out of memory."""
    if change == SESSION_RECEIVED:
        return mpacket_set(sl, m, id, PACKET_RECEIVED, seg, pos)
    if change == SESSION_SENT:
        return mpacket_set(sl, m, id, PACKET_SENT, seg, pos)
    if change == SESSION_REC:
        return mpacket_set(sl, m, id, PACKET_RELEASED, 0, 0)
    mpacket_free(sl, m, id, change == SESSION_RELEASED)
    return 0


# ---- facts ---------------------------------------------------------------------------------------

cdef mfact_t** mfact_find(msession_t* m, const u8* key, u32 n) noexcept nogil:
    """What points to the fact of a key, or to the end."""
    cdef mfact_t** at = &m.facts
    while at[0] != NULL and not (at[0].key_len == n and memcmp(at[0].key, key, n) == 0):
        at = &at[0].next
    return at


cdef void mfact_drop(slog_t* sl, msession_t* m, const u8* key, u32 n) noexcept nogil:
    cdef mfact_t** at = mfact_find(m, key, n)
    cdef mfact_t* fact = at[0]
    cdef u32 size
    if fact == NULL:
        return
    at[0] = fact.next
    size = SLOG_FACT_SIZE + <u32>fact.key_len + fact.value_len
    m.facts_size -= size
    sl.live -= size
    sl.bytes -= sizeof(mfact_t) + fact.key_len + fact.value_len
    free(fact)


cdef int mfact_set(slog_t* sl, msession_t* m, const u8* key, u32 n, const u8* value,
                   u32 n_value) noexcept nogil:
    """0, or -1 out of memory."""
    cdef mfact_t* fact = <mfact_t*>malloc(sizeof(mfact_t) + n + n_value)
    cdef u32 size = SLOG_FACT_SIZE + n + n_value
    if fact == NULL:
        return -1
    mfact_drop(sl, m, key, n)
    fact.key_len = <u16>n
    fact.value_len = n_value
    memcpy(fact.key, key, n)
    memcpy(&fact.key[n], value, n_value)
    fact.next = m.facts
    m.facts = fact
    m.facts_size += size
    sl.live += size
    sl.bytes += sizeof(mfact_t) + n + n_value
    return 0
