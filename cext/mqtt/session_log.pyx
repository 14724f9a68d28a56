# Session log: what of a session has to outlive the broker and fits neither a queue nor a binding.
#
# In a log (log.pyx), whose entries are blocks: all records of a tick, or one session written anew.
#
#   block     { record }
#   made      kind:u8 (1) number:u64 len:u16 client_id      a session, with nothing of before
#   ended     kind:u8 (2) number:u64
#   times     kind:u8 (3) number:u64 expiry:u32 left:i64
#   fact      kind:u8 (4) number:u64 key_len:u16 value_len:u32 key value
#   no fact   kind:u8 (5) number:u64 key_len:u16 key
#   packet    kind:u8 (6) number:u64 change:u8 id:u16         received, released, rec or done
#   sent      kind:u8 (7) number:u64 id:u16 segment:u32 position:u32
#   sent some kind:u8 (8) number:u64 id:u16 n:u16 segment:u32 { position:u32 }   n ids that follow
#   packets   kind:u8 (9) number:u64 change:u8 id:u16 n:u16                      each other
#   came      kind:u8 (10) number:u64 id:u16 n:u16 turn:u32 places:u32   received, and where
#   place     kind:u8 (11) key:u64 segment:u32 end:u32                   the next one of the turn
#   turn      kind:u8 (12) turn:u64                                      its places follow
#   safe      kind:u8 (13) turn:u64                                      it and all before it
#   taken     kind:u8 (8) number:u64 0:u16 5:u16 id:u32 queue:u32 mark:u32 segment:u32 position:u32
#             subscription:u32             sent, of a shared subscription's queue; behind its `sent`
#
# Little-endian. The highest bit of a segment says that the message has QoS 2; segment 0: it is in a
# queue that others have, too. Taken: session_taken.pyx. REC is noted when the message is deleted on
# disk. Turns and places: session_places.pyx. `expiry` is in seconds, 2^32-1 = never; `left` Unix
# milliseconds, 0 = the client is there. Facts are Python's: a will, a user, filters that fit no
# binding. A record says what is from then on. All that counts is in memory as well, so the log is
# compacted by writing every session anew into another file, in portions; what happens meanwhile
# comes behind. What cannot be written stays in memory and is tried again: until then nobody is told
# that it is safe. Called by the door and by sessions, on the loop. Decision 0086.

cdef enum slog_record:
    SLOG_MADE = 1
    SLOG_ENDED = 2
    SLOG_TIMES = 3
    SLOG_FACT = 4
    SLOG_NO_FACT = 5
    SLOG_PACKET = 6
    SLOG_SENT = 7
    SLOG_SENT_SOME = 8
    SLOG_PACKETS = 9
    SLOG_CAME = 10
    SLOG_PLACE = 11
    SLOG_TURN = 12
    SLOG_SAFE = 13

cdef enum slog_layout:
    SLOG_MADE_SIZE = 11         # without the client id
    SLOG_ENDED_SIZE = 9
    SLOG_TIMES_SIZE = 21
    SLOG_FACT_SIZE = 15         # without key and value
    SLOG_NO_FACT_SIZE = 11
    SLOG_PACKET_SIZE = 12
    SLOG_SENT_SIZE = 19
    SLOG_SENT_SOME_SIZE = 17    # without positions
    SLOG_PACKETS_SIZE = 14
    SLOG_CAME_SIZE = 21
    SLOG_PLACE_SIZE = 17
    SLOG_TURN_SIZE = 9
    SLOG_TAKEN_SIZE = 56        # with the `sent` in front of it
    SLOG_TAKEN_MORE = 54        # with one of `sent` behind it, than SLOG_CAME_SIZE
    SLOG_TAKEN_N = 5            # what it says besides the id
    SLOG_SENT_N_AT = 11         # of the number of ids
    SLOG_PACKETS_N_AT = 12

cdef enum:
    SLOG_BLOCK = 1048576        # bytes of records after which a block is closed
    SLOG_FACTS = 4194304        # bytes that the facts of a session may take
    SLOG_LAZY = 65536           # bytes of records that may wait for others to be written
    SLOG_COMPACT_LEAST = 1048576
    SLOG_UNITS = 40             # of work, for a session that is written anew
    SLOG_PREFIX = 5             # of the name of a session's queue


# ---- records -------------------------------------------------------------------------------------

cdef int slog_gather(mlog_t* log) noexcept nogil:
    """Make an entry of the records that have gathered. 0, or -1 with errno: they stay."""
    cdef slog_t* sl = <slog_t*>log
    cdef u8* p
    cdef u8* start
    if sl.is_gathering:
        return 0
    slog_look_safe(sl)
    if sl.n_block == 0 and sl.safe == sl.safe_told:
        return 0
    sl.is_gathering = True              # a file that is full is written meanwhile
    start = mlog_begin(log, sl.n_block + slog_turn_size(sl))
    sl.is_gathering = False
    if start == NULL:
        return -1
    p = slog_put_turn(sl, start)
    if sl.n_block:
        memcpy(p, sl.block, sl.n_block)
    mlog_end(log, <u32>(p - start) + sl.n_block)
    slog_told_turn(sl)
    sl.n_block = 0
    sl.run_of = NULL
    return 0


# hot
cdef u8* slog_room(slog_t* sl, u32 n, bint is_lazy=False) noexcept nogil:
    """Where the next record of n bytes goes. NULL with errno: the disk has not taken too many. One
    that is lazy does not ask for the write that it gets with the next one that does."""
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
    if not is_lazy or sl.n_block > SLOG_LAZY:
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
    if change == SESSION_RECEIVED and pos:
        return record_came(p, number, id, 1, seg, pos)
    if change == SESSION_SENT:
        p = record_u16(record_begin(p, SLOG_SENT, number), id)
        put_le32(p, seg)
        put_le32(p + 4, pos)
        return p + 8
    p = record_begin(p, SLOG_PACKET, number)
    p[0] = change
    return record_u16(p + 1, id)


cdef inline u8* record_came(u8* p, u64 number, u16 id, u16 n, u32 turn, u32 places) noexcept nogil:
    """Ids that were received, and where their messages are."""
    p = record_u16(record_u16(record_begin(p, SLOG_CAME, number), id), n)
    put_le32(p, turn)
    put_le32(p + 4, places)
    return p + 8


# hot
cdef inline bint slog_joins(const slog_t* sl, const msession_t* m, u8 change, u16 id, u32 seg,
                            u32 pos) noexcept nogil:
    """Whether a change of an id is that of the id before it, which the block ends with."""
    return (sl.run_of == m and sl.run_end == sl.n_block and sl.run_next == id
            and sl.run_change == change and (change != SESSION_SENT or sl.run_seg == seg)
            and (change != SESSION_RECEIVED or (sl.run_seg == seg and sl.run_pos == pos))
            and sl.n_block + 4 <= SLOG_BLOCK)


cdef void slog_begin_run(slog_t* sl, u8* p, const msession_t* m, u8 change, u16 id, u32 seg,
                         u32 pos) noexcept nogil:
    """Begin a record at p, for no id so far."""
    sl.run_at = <u32>(p - sl.block)
    sl.run_of = m
    sl.run_change = change
    sl.run_seg = seg
    sl.run_pos = pos
    if change == SESSION_RECEIVED and pos:
        record_came(p, m.number, id, 0, seg, pos)
        return
    if change == SESSION_SENT:
        p = record_u16(record_u16(record_begin(p, SLOG_SENT_SOME, m.number), id), 0)
        put_le32(p, seg)
        return
    p = record_begin(p, SLOG_PACKETS, m.number)
    p[0] = change
    record_u16(record_u16(p + 1, id), 0)


# hot
cdef int slog_note(slog_t* sl, msession_t* m, u8 change, u16 id, u32 seg,
                   u32 pos) noexcept nogil:
    """A packet id has changed. 0, or -1 with errno: nothing has. It is written at the end of the
    tick; who is told something on account of it waits for the next sync, see mlog_want_sync.

    That an id of ours is free again is written with what comes next, at the latest within a second:
    its message is deleted already, and a start that does not know it forgets the id when it finds
    none."""
    cdef bint joins = slog_joins(sl, m, change, id, seg, pos)
    cdef bint has_places = change == SESSION_RECEIVED and pos != 0
    cdef u32 n
    cdef u8* p
    if change == SESSION_SENT:
        n = 4 if joins else SLOG_SENT_SOME_SIZE + 4
    else:
        n = 0 if joins else (SLOG_CAME_SIZE if has_places else SLOG_PACKETS_SIZE)
    p = slog_room(sl, n, change == SESSION_DONE)
    if p == NULL:
        return -1
    if slog_apply(sl, m, change, id, seg, pos):
        sl.n_block -= n
        set_errno(ENOMEM)
        return -1
    if not joins:
        slog_begin_run(sl, p, m, change, id, seg, pos)
    if change == SESSION_SENT:
        put_le32(sl.block + sl.n_block - 4, pos)
    p = sl.block + sl.run_at + (SLOG_SENT_N_AT if change == SESSION_SENT or has_places
                                else SLOG_PACKETS_N_AT)
    record_u16(p, <u16>(le16_at(p) + 1))
    sl.run_next = <u16>(id + 1)
    sl.run_end = sl.n_block
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


cdef int slog_sink_note(session_log_t* sink, queue_t* q, u8 change, u16 id, u32 seg,
                        u32 pos) noexcept nogil:
    """slog_note for the session of a queue. What a client is told of messages of QoS 2 waits for
    the disk, and so do they themselves."""
    cdef slog_t* sl = (<session_sink_t*>sink).log
    cdef msession_t* m
    if sl.buckets == NULL:
        set_errno(ENOENT)
        return -1
    m = slog_of_queue(sl, q)
    if m == NULL:
        set_errno(ENOENT)
        return -1
    if change == SESSION_RECEIVED or change == SESSION_RELEASED or (
            change == SESSION_SENT and seg & SENT_TWICE):
        mlog_want_sync(&sl.log)
    return slog_note(sl, m, change, id, sl.turn if change == SESSION_RECEIVED else seg, pos)


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
        if packet.id and packet.origin.key:
            p = record_taken(p, m.number, packet.id, &packet.origin)
        if packet.id and (packet.origin.key == 0 or packet.pos):
            p = record_packet(
                p, m.number,
                SESSION_SENT if packet.state == PACKET_SENT else (
                    SESSION_REC if packet.state == PACKET_RELEASED else SESSION_RECEIVED),
                packet.id, packet.seg, 0 if packet.state == PACKET_RECEIVED
                and mpacket_is_safe(sl, packet) else packet.pos)
    mlog_end(&sl.log, <u32>(p - start))
    m.file = mlog_last(&sl.log).number
    return 0


cdef int slog_compact_some(slog_t* sl, loop_t* loop) noexcept nogil:
    """Write sessions anew until the portion is over. 1: there are more; 0: all are written, after
    the next sync the files below `compact_file` do not count; -1 with errno: it begins anew next
    time."""
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
    if mlog_flush(&sl.log):
        sl.is_compacting = False
        return -1
    sl.compact_turn = sl.turn - 1
    sl.compact_end = sl.log.n_written
    return 0
