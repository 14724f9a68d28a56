# Session log: what of a session has to outlive the broker and fits neither a queue nor a binding.
#
# In a log (log.pyx), whose entries are blocks: all records of a tick, or one session written anew.
#
#   block     { record }
#   made      kind:u8 (1) number:u64 len:u16 client_id        a session, with nothing of an earlier one
#   ended     kind:u8 (2) number:u64
#   times     kind:u8 (3) number:u64 expiry:u32 left:i64
#   fact      kind:u8 (4) number:u64 key_len:u16 value_len:u32 key value
#   no fact   kind:u8 (5) number:u64 key_len:u16 key
#   packet    kind:u8 (6) number:u64 change:u8 id:u16         received, released, rec or done
#   sent      kind:u8 (7) number:u64 id:u16 segment:u32 position:u32
#
# Little-endian. `expiry` is in seconds, 2^32-1 = never; `left` Unix milliseconds, 0 = the client is
# there. Facts are Python's: a will, a user, filters that fit no binding. A record says what is from
# then on. All that counts is in memory as well, so the log is compacted by writing every session
# anew into another file, in portions; what happens meanwhile comes behind. What cannot be written
# stays in memory and is tried again: until then nobody is told that it is safe. Called by the
# door and by sessions, on the loop. Decision 0086.

cdef enum slog_record:
    SLOG_MADE = 1
    SLOG_ENDED = 2
    SLOG_TIMES = 3
    SLOG_FACT = 4
    SLOG_NO_FACT = 5
    SLOG_PACKET = 6
    SLOG_SENT = 7

cdef enum slog_layout:
    SLOG_MADE_SIZE = 11         # without the client id
    SLOG_ENDED_SIZE = 9
    SLOG_TIMES_SIZE = 21
    SLOG_FACT_SIZE = 15         # without key and value
    SLOG_NO_FACT_SIZE = 11
    SLOG_PACKET_SIZE = 12
    SLOG_SENT_SIZE = 19

cdef enum slog_change:          # of a packet id
    SLOG_RECEIVED = 1           # a message of QoS 2 has come with this id
    SLOG_RELEASED = 2           # and its PUBREL
    SLOG_SENT_ID = 3            # a message goes out with this id
    SLOG_REC = 4                # its PUBREC has come
    SLOG_DONE = 5               # the id is free

cdef enum slog_state:           # of an id in use
    SLOG_IS_SENT = 1
    SLOG_IS_RELEASED = 2        # PUBREC has come, PUBCOMP is awaited
    SLOG_IS_RECEIVED = 3        # the client's: its PUBREL is awaited

cdef enum:
    SLOG_BUCKETS = 64
    SLOG_BLOCK = 1048576        # bytes of records after which a block is closed
    SLOG_FACTS = 4194304        # bytes that the facts of a session may take
    SLOG_COMPACT_LEAST = 1048576
    SLOG_UNITS = 40             # of work, for a session that is written anew
    SLOG_PREFIX = 5             # of the name of a session's queue


# ---- memory --------------------------------------------------------------------------------------

cdef int slog_init(slog_t* sl) noexcept nogil:
    """The rest is zeros. 0, or -1 out of memory."""
    sl.buckets = <msession_t**>calloc(SLOG_BUCKETS, sizeof(msession_t*))
    if sl.buckets == NULL:
        return -1
    sl.mask = SLOG_BUCKETS - 1
    sl.bytes = sizeof(slog_t) + SLOG_BUCKETS * sizeof(msession_t*)
    sl.next_number = 1
    sl.log.kind = MLOG_SESSIONS
    sl.log.fd = -1
    sl.log.next_number = 1
    sl.log.gather = slog_gather
    return 0


cdef inline u64 msession_size(u32 name_len) noexcept nogil:
    return (sizeof(msession_t) + name_len + 8 + 15) & ~<u64>15


cdef u32 msession_record(const msession_t* m) noexcept nogil:
    """Bytes that it takes when it is written anew."""
    return (SLOG_MADE_SIZE + <u32>m.name_len + SLOG_TIMES_SIZE + m.facts_size
            + m.n_packets * SLOG_SENT_SIZE)


# hot
cdef msession_t* slog_find(const slog_t* sl, const u8* name, u32 n) noexcept nogil:
    """The session of a client, NULL when there is none."""
    cdef u32 hash = <u32>hash_bytes(name, n, sl.seed)
    cdef msession_t* m = sl.buckets[hash & sl.mask]
    while m != NULL and not (m.hash == hash and m.name_len == n and same_bytes(m.name, name, n)):
        m = m.next
    return m


cdef void slog_grow(slog_t* sl) noexcept nogil:
    """Twice as many buckets; without memory they get longer."""
    cdef u64 cap = (<u64>sl.mask + 1) * 2, i
    cdef msession_t** grown = <msession_t**>calloc(cap, sizeof(msession_t*))
    cdef msession_t* m
    cdef msession_t* following
    if grown == NULL:
        return
    for i in range(<u64>sl.mask + 1):
        m = sl.buckets[i]
        while m != NULL:
            following = m.next
            m.next = grown[m.hash & (cap - 1)]
            grown[m.hash & (cap - 1)] = m
            m = following
    free(sl.buckets)
    sl.buckets = grown
    sl.bytes += cap // 2 * sizeof(msession_t*)
    sl.mask = <u32>(cap - 1)


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
    if sl.n > sl.mask:
        slog_grow(sl)
    memset(m, 0, sizeof(msession_t))
    memcpy(m.name, name, n)
    m.name_len = <u16>n
    m.hash = <u32>hash_bytes(name, n, sl.seed)
    m.number = number
    if slog_take_slot(sl, m):
        free(m)
        return NULL
    m.next = sl.buckets[m.hash & sl.mask]
    sl.buckets[m.hash & sl.mask] = m
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
    cdef msession_t** at = &sl.buckets[m.hash & sl.mask]
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
        if m.packets[i].id == id and (m.packets[i].state == SLOG_IS_RECEIVED) == is_received:
            return &m.packets[i]
        i = (i + 1) & (m.cap_packets - 1)
    return NULL


cdef void mpacket_put(mpacket_t* packets, u32 cap, const mpacket_t* packet) noexcept nogil:
    cdef u32 i = mpacket_place(packet.id, packet.state == SLOG_IS_RECEIVED, cap)
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
    cdef mpacket_t* found = mpacket_find(m, id, state == SLOG_IS_RECEIVED)
    cdef mpacket_t packet
    if found == NULL:
        if 4 * (m.n_packets + 1) > 3 * m.cap_packets and mpackets_resize(
                sl, m, m.cap_packets * 2 if m.cap_packets else 8):
            return -1
        packet.id = id
        packet.state = state
        packet.seg = seg
        packet.pos = pos
        mpacket_put(m.packets, m.cap_packets, &packet)
        m.n_packets += 1
        sl.live += SLOG_SENT_SIZE
        return 0
    found.state = state
    if state == SLOG_IS_SENT:
        found.seg = seg
        found.pos = pos
    return 0


cdef void mpacket_free(slog_t* sl, msession_t* m, u16 id, bint is_received) noexcept nogil:
    """The id is free; what was put behind it for its sake moves up."""
    cdef mpacket_t* found = mpacket_find(m, id, is_received)
    cdef u32 mask = m.cap_packets - 1, hole, i, home
    if found == NULL:
        return
    hole = <u32>(found - m.packets)
    i = hole
    while True:
        i = (i + 1) & mask
        if m.packets[i].id == 0:
            break
        home = mpacket_place(m.packets[i].id, m.packets[i].state == SLOG_IS_RECEIVED,
                             m.cap_packets)
        if ((i - home) & mask) >= ((i - hole) & mask):
            m.packets[hole] = m.packets[i]
            hole = i
    m.packets[hole].id = 0
    m.n_packets -= 1
    sl.live -= SLOG_SENT_SIZE
    if m.n_packets == 0 and m.cap_packets > 64:
        sl.bytes -= m.cap_packets * sizeof(mpacket_t)
        free(m.packets)
        m.packets = NULL
        m.cap_packets = 0


cdef int slog_apply(slog_t* sl, msession_t* m, u8 change, u16 id, u32 seg,
                    u32 pos) noexcept nogil:
    """What a change means. 0, or -1 out of memory."""
    if change == SLOG_RECEIVED:
        return mpacket_set(sl, m, id, SLOG_IS_RECEIVED, 0, 0)
    if change == SLOG_SENT_ID:
        return mpacket_set(sl, m, id, SLOG_IS_SENT, seg, pos)
    if change == SLOG_REC:
        return mpacket_set(sl, m, id, SLOG_IS_RELEASED, 0, 0)
    mpacket_free(sl, m, id, change == SLOG_RELEASED)
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


# ---- records -------------------------------------------------------------------------------------

cdef int slog_gather(mlog_t* log) noexcept nogil:
    """Make an entry of the records that have gathered. 0, or -1 with errno: they stay."""
    cdef slog_t* sl = <slog_t*>log
    cdef u8* p
    if sl.n_block == 0 or sl.is_gathering:
        return 0
    sl.is_gathering = True              # a file that is full is written meanwhile
    p = mlog_begin(log, sl.n_block)
    sl.is_gathering = False
    if p == NULL:
        return -1
    memcpy(p, sl.block, sl.n_block)
    mlog_end(log, sl.n_block)
    sl.n_block = 0
    return 0


# hot
cdef u8* slog_room(slog_t* sl, u32 n) noexcept nogil:
    """Where the next record of n bytes goes. NULL with errno: the disk has not taken too many."""
    cdef u32 cap
    cdef u8* grown
    if sl.n_block + n > SLOG_BLOCK and sl.n_block and slog_gather(&sl.log):
        return NULL
    if sl.n_block + n > sl.cap_block:
        cap = sl.cap_block * 2 if sl.cap_block else 4096
        while cap < sl.n_block + n:
            cap *= 2
        grown = <u8*>realloc(sl.block, cap)
        if grown == NULL:
            set_errno(ENOMEM)
            return NULL
        sl.block = grown
        sl.cap_block = cap
    sl.n_block += n
    mlog_note_dirty(&sl.log)
    return sl.block + sl.n_block - n


cdef inline u8* record_begin(u8* p, u8 kind, u64 number) noexcept nogil:
    p[0] = kind
    put_le64(p + 1, number)
    return p + 9


cdef inline u8* record_u16(u8* p, u16 value) noexcept nogil:
    p[0] = <u8>value
    p[1] = <u8>(value >> 8)
    return p + 2


cdef inline u16 le16_at(const u8* p) noexcept nogil:
    return <u16>(<u16>p[0] | <u16>p[1] << 8)


cdef u8* record_made(u8* p, const msession_t* m) noexcept nogil:
    p = record_u16(record_begin(p, SLOG_MADE, m.number), m.name_len)
    memcpy(p, m.name, m.name_len)
    return p + m.name_len


cdef u8* record_times(u8* p, const msession_t* m) noexcept nogil:
    p = record_begin(p, SLOG_TIMES, m.number)
    put_le32(p, m.expiry_s)
    put_le64(p + 4, <u64>m.left_ms)
    return p + 12


cdef u8* record_fact(u8* p, u64 number, const u8* key, u32 n, const u8* value,
                     u32 n_value) noexcept nogil:
    p = record_u16(record_begin(p, SLOG_FACT, number), <u16>n)
    put_le32(p, n_value)
    memcpy(p + 4, key, n)
    memcpy(p + 4 + n, value, n_value)
    return p + 4 + n + n_value


# hot
cdef u8* record_packet(u8* p, u64 number, u8 change, u16 id, u32 seg, u32 pos) noexcept nogil:
    """A change of a packet id."""
    if change == SLOG_SENT_ID:
        p = record_u16(record_begin(p, SLOG_SENT, number), id)
        put_le32(p, seg)
        put_le32(p + 4, pos)
        return p + 8
    p = record_begin(p, SLOG_PACKET, number)
    p[0] = change
    return record_u16(p + 1, id)


# hot
cdef int slog_note(slog_t* sl, msession_t* m, u8 change, u16 id, u32 seg,
                   u32 pos) noexcept nogil:
    """A packet id has changed. 0, or -1 with errno: nothing has. It is written at the end of the
    tick; who is told something on account of it waits for the next sync, see mlog_want_sync.
    Cost: 15 ns."""
    cdef u8* p = slog_room(sl, SLOG_SENT_SIZE if change == SLOG_SENT_ID else SLOG_PACKET_SIZE)
    if p == NULL:
        return -1
    if slog_apply(sl, m, change, id, seg, pos):
        sl.n_block -= SLOG_SENT_SIZE if change == SLOG_SENT_ID else SLOG_PACKET_SIZE
        set_errno(ENOMEM)
        return -1
    record_packet(p, m.number, change, id, seg, pos)
    return 0


# hot
cdef msession_t* slog_of_queue(slog_t* sl, const queue_t* q) noexcept nogil:
    """The session of a queue `mqtt.<client id>`; NULL when there is none."""
    cdef u32 n = q.name[0]
    cdef msession_t* m = sl.last
    if n < SLOG_PREFIX:
        return NULL
    n -= SLOG_PREFIX
    if sl.last_queue == q and m != NULL and m.name_len == n and same_bytes(
            m.name, q.name + 1 + SLOG_PREFIX, n):
        return m
    m = slog_find(sl, q.name + 1 + SLOG_PREFIX, n)
    if m != NULL:
        sl.last = m
        sl.last_queue = q
    return m


cdef int slog_make(slog_t* sl, const u8* name, u32 n) noexcept nogil:
    """A session begins, with nothing of an earlier one of its client. 0, or -1 with errno."""
    cdef msession_t* m = slog_find(sl, name, n)
    cdef u8* p
    if m == NULL:
        m = slog_add(sl, name, n, sl.next_number)
    if m == NULL:
        set_errno(ENOMEM)
        return -1
    p = slog_room(sl, SLOG_MADE_SIZE + n)
    if p == NULL:
        if m.number == sl.next_number:
            slog_drop(sl, m)
        return -1
    slog_clear(sl, m)
    m.number = sl.next_number
    sl.next_number += 1
    record_made(p, m)
    return 0


cdef int slog_end(slog_t* sl, msession_t* m) noexcept nogil:
    """A session has ended. 0, or -1 with errno."""
    cdef u8* p = slog_room(sl, SLOG_ENDED_SIZE)
    if p == NULL:
        return -1
    record_begin(p, SLOG_ENDED, m.number)
    slog_drop(sl, m)
    return 0


cdef int slog_set_times(slog_t* sl, msession_t* m, u32 expiry_s, i64 left_ms) noexcept nogil:
    """0, or -1 with errno."""
    cdef u8* p = slog_room(sl, SLOG_TIMES_SIZE)
    if p == NULL:
        return -1
    m.expiry_s = expiry_s
    m.left_ms = left_ms
    record_times(p, m)
    return 0


cdef int slog_set_fact(slog_t* sl, msession_t* m, const u8* key, u32 n, const u8* value,
                       u32 n_value) noexcept nogil:
    """0, or -1 with errno."""
    cdef u8* p
    cdef u64 size = <u64>SLOG_FACT_SIZE + n + n_value
    if m.facts_size + size > SLOG_FACTS:
        set_errno(EFBIG)
        return -1
    p = slog_room(sl, <u32>size)
    if p == NULL:
        return -1
    if mfact_set(sl, m, key, n, value, n_value):
        sl.n_block -= <u32>size
        set_errno(ENOMEM)
        return -1
    record_fact(p, m.number, key, n, value, n_value)
    return 0


cdef int slog_drop_fact(slog_t* sl, msession_t* m, const u8* key, u32 n) noexcept nogil:
    """0, or -1 with errno."""
    cdef u8* p
    if mfact_find(m, key, n)[0] == NULL:
        return 0
    p = slog_room(sl, SLOG_NO_FACT_SIZE + n)
    if p == NULL:
        return -1
    mfact_drop(sl, m, key, n)
    p = record_u16(record_begin(p, SLOG_NO_FACT, m.number), <u16>n)
    memcpy(p, key, n)
    return 0


# ---- compaction ----------------------------------------------------------------------------------

cdef bint slog_is_due(const slog_t* sl) noexcept nogil:
    """Whether three quarters of the files are records that do not count."""
    cdef u64 size = mlog_size(&sl.log)
    return size > SLOG_COMPACT_LEAST and size > 4 * (sl.live + <u64>sl.n * MLOG_HEAD)


cdef int slog_write_anew(slog_t* sl, msession_t* m) noexcept nogil:
    """One block with all of a session. 0, or -1 with errno."""
    cdef u32 size, i
    cdef mfact_t* fact
    cdef mpacket_t* packet
    cdef u8* p
    cdef u8* start
    if slog_gather(&sl.log):            # what was noted before stands before
        return -1
    size = msession_record(m)
    start = mlog_begin(&sl.log, size)
    if start == NULL:
        return -1
    p = record_times(record_made(start, m), m)
    fact = m.facts
    while fact != NULL:
        p = record_fact(p, m.number, fact.key, fact.key_len, &fact.key[fact.key_len],
                        fact.value_len)
        fact = fact.next
    for i in range(m.cap_packets):
        packet = &m.packets[i]
        if packet.id:
            p = record_packet(
                p, m.number,
                SLOG_SENT_ID if packet.state == SLOG_IS_SENT else (
                    SLOG_REC if packet.state == SLOG_IS_RELEASED else SLOG_RECEIVED),
                packet.id, packet.seg, packet.pos)
    mlog_end(&sl.log, <u32>(p - start))
    m.file = mlog_last(&sl.log).number
    return 0


cdef int slog_compact_some(slog_t* sl, loop_t* loop) noexcept nogil:
    """Write sessions anew until the portion is over. 1: there are more; 0: all are written, after
    the next sync the files below `compact_file` may go; -1 with errno: it begins anew next time."""
    cdef msession_t* m
    if not sl.is_compacting:
        if mlog_flush(&sl.log) or mlog_roll(&sl.log):
            return -1
        sl.compact_file = mlog_last(&sl.log).number
        sl.compact_at = 0
        sl.is_compacting = True
    while sl.compact_at < sl.n_slots:
        m = sl.slots[sl.compact_at]
        sl.compact_at += 1
        if m == NULL:
            continue
        if slog_write_anew(sl, m):
            sl.is_compacting = False
            return -1
        if loop_spent(loop, SLOG_UNITS + (msession_record(m) >> UNIT_SHIFT)):
            return 1
    if mlog_flush(&sl.log) or mlog_append_floor(&sl.log, sl.compact_file) or mlog_flush(&sl.log):
        sl.is_compacting = False
        return -1
    return 0


# ---- reading -------------------------------------------------------------------------------------

cdef msession_t** slog_number(slog_t* sl, u64 number) noexcept nogil:
    """The place of a number among those of the sessions that were read. The table is not full."""
    cdef u64 i = hash_bytes(<const u8*>&number, 8, sl.seed) & (sl.cap_numbers - 1)
    while sl.numbers[i] != NULL and sl.numbers[i].number != number:
        i = (i + 1) & (sl.cap_numbers - 1)
    return &sl.numbers[i]


cdef int slog_know_numbers(slog_t* sl) noexcept nogil:
    """Have room for one more; sessions that have gone are left out. 0, or -1 out of memory."""
    cdef msession_t** before = sl.numbers
    cdef u64 cap = sl.cap_numbers
    cdef u32 i
    if cap and 2 * (<u64>sl.n + 1) <= cap:
        return 0
    sl.cap_numbers = cap * 2 if cap else 1024
    sl.numbers = <msession_t**>calloc(sl.cap_numbers, sizeof(msession_t*))
    if sl.numbers == NULL:
        sl.numbers = before
        sl.cap_numbers = cap
        return -1
    free(before)
    for i in range(sl.n_slots):
        if sl.slots[i] != NULL:
            slog_number(sl, sl.slots[i].number)[0] = sl.slots[i]
    return 0


cdef void slog_forget_number(slog_t* sl, u64 number) noexcept nogil:
    """Take it out of the table; what was put behind it for its sake moves up."""
    cdef u64 mask = sl.cap_numbers - 1, hole, i, home
    cdef msession_t** at = slog_number(sl, number)
    if at[0] == NULL:
        return
    hole = <u64>(at - sl.numbers)
    i = hole
    while True:
        i = (i + 1) & mask
        if sl.numbers[i] == NULL:
            break
        home = hash_bytes(<const u8*>&sl.numbers[i].number, 8, sl.seed) & mask
        if ((i - home) & mask) >= ((i - hole) & mask):
            sl.numbers[hole] = sl.numbers[i]
            hole = i
    sl.numbers[hole] = NULL


cdef int slog_read_made(slog_t* sl, u32 file, u64 number, const u8* name, u32 n) noexcept nogil:
    """0, or -1 out of memory."""
    cdef msession_t* m = slog_find(sl, name, n)
    if slog_know_numbers(sl):
        return -1
    if m != NULL:
        slog_forget_number(sl, m.number)
        slog_clear(sl, m)
        m.number = number
    else:
        if slog_number(sl, number)[0] != NULL:
            return 0                    # of another client: no log says so
        m = slog_add(sl, name, n, number)
        if m == NULL:
            return -1
    m.file = file
    slog_number(sl, number)[0] = m
    if number >= sl.next_number:
        sl.next_number = number + 1
    return 0


cdef u32 slog_record_size(const u8* p, u64 n) noexcept nogil:
    """Bytes of the record that begins at p; 0 when n bytes do not hold it, or nobody knows it."""
    cdef u64 size = 0
    if n < SLOG_ENDED_SIZE:
        return 0
    if p[0] == SLOG_MADE and n >= SLOG_MADE_SIZE:
        size = <u64>SLOG_MADE_SIZE + le16_at(p + 9)
    elif p[0] == SLOG_ENDED:
        size = SLOG_ENDED_SIZE
    elif p[0] == SLOG_TIMES:
        size = SLOG_TIMES_SIZE
    elif p[0] == SLOG_FACT and n >= SLOG_FACT_SIZE:
        size = <u64>SLOG_FACT_SIZE + le16_at(p + 9) + le32(p + 11)
    elif p[0] == SLOG_NO_FACT and n >= SLOG_NO_FACT_SIZE:
        size = <u64>SLOG_NO_FACT_SIZE + le16_at(p + 9)
    elif p[0] == SLOG_PACKET:
        size = SLOG_PACKET_SIZE
    elif p[0] == SLOG_SENT:
        size = SLOG_SENT_SIZE
    return <u32>size if size <= n else 0


cdef int slog_read_record(slog_t* sl, msession_t* m, const u8* p) noexcept nogil:
    """Take in a whole record of a session that is there. 0, or -1 out of memory."""
    cdef u32 n
    if p[0] == SLOG_TIMES:
        m.expiry_s = le32(p + 9)
        m.left_ms = <i64>le64(p + 13)
    elif p[0] == SLOG_FACT:
        n = le16_at(p + 9)
        return mfact_set(sl, m, p + SLOG_FACT_SIZE, n, p + SLOG_FACT_SIZE + n, le32(p + 11))
    elif p[0] == SLOG_NO_FACT:
        mfact_drop(sl, m, p + SLOG_NO_FACT_SIZE, le16_at(p + 9))
    elif p[0] == SLOG_PACKET and le16_at(p + 10) and SLOG_RECEIVED <= p[9] <= SLOG_DONE:
        return slog_apply(sl, m, p[9], le16_at(p + 10), 0, 0)
    elif p[0] == SLOG_SENT and le16_at(p + 9):
        return slog_apply(sl, m, SLOG_SENT_ID, le16_at(p + 9), le32(p + 11), le32(p + 15))
    return 0


cdef int slog_take(mlog_t* log, u32 file, u32 pos, const u8* p, u32 n) noexcept nogil:
    """A block that is found at the start. 0, or -1 out of memory."""
    cdef slog_t* sl = <slog_t*>log
    cdef msession_t* m
    cdef u64 number
    cdef u32 size
    while n:
        size = slog_record_size(p, n)
        if size == 0:
            return 0                    # of a later release
        number = le64(p + 1)
        if p[0] == SLOG_MADE:
            if slog_read_made(sl, file, number, p + SLOG_MADE_SIZE, le16_at(p + 9)):
                return -1
        elif sl.cap_numbers:
            m = slog_number(sl, number)[0]
            if m == NULL:
                pass                    # it was made where the log is damaged, or has ended
            elif p[0] == SLOG_ENDED:
                slog_forget_number(sl, number)
                slog_drop(sl, m)
            elif slog_read_record(sl, m, p):
                return -1
        p += size
        n -= size
    return 0


cdef void slog_end_load(slog_t* sl) noexcept nogil:
    """All files are read: forget what only those that do not count have."""
    cdef u32 i
    free(sl.numbers)
    sl.numbers = NULL
    sl.cap_numbers = 0
    for i in range(sl.n_slots):
        if sl.slots[i] != NULL and sl.slots[i].file < sl.log.floor:
            slog_drop(sl, sl.slots[i])


cdef void slog_release(slog_t* sl) noexcept nogil:
    """Let go of all; the files stay as they are. Idempotent."""
    cdef u32 i
    if sl.buckets == NULL:
        return
    for i in range(sl.n_slots):
        if sl.slots[i] != NULL:
            slog_drop(sl, sl.slots[i])
    free(sl.buckets)
    free(sl.slots)
    free(sl.block)
    free(sl.numbers)
    mlog_release(&sl.log)
    sl.buckets = NULL
    sl.slots = NULL
    sl.block = NULL
    sl.numbers = NULL
    sl.n_slots = sl.cap_slots = sl.n_block = sl.cap_block = 0
