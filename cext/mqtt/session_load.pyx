# Session load: reads the log of sessions at the start, and lets go of it at the end.
#
# Records speak of sessions by number, so a table of numbers is there while the files are read. A
# record of a session that is not known is passed over: it was made where the log is damaged.


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
    elif p[0] == SLOG_SENT_SOME and n >= SLOG_SENT_SOME_SIZE:
        size = <u64>SLOG_SENT_SOME_SIZE + 4 * <u64>le16_at(p + SLOG_SENT_N_AT)
    elif p[0] == SLOG_PACKETS:
        size = SLOG_PACKETS_SIZE
    elif p[0] == SLOG_CAME:
        size = SLOG_CAME_SIZE
    elif p[0] == SLOG_PLACE:
        size = SLOG_PLACE_SIZE
    elif p[0] == SLOG_TURN or p[0] == SLOG_SAFE:
        size = SLOG_TURN_SIZE
    return <u32>size if size <= n else 0


cdef int slog_read_some(slog_t* sl, msession_t* m, u8 change, u32 id, u32 n, u32 seg,
                        const u8* positions, u32 places=0) noexcept nogil:
    """A change of n ids that follow each other. 0, or -1 out of memory."""
    cdef u32 i
    for i in range(n if id else 0):
        if id + i > 65535:
            break
        if slog_apply(sl, m, change, <u16>(id + i), seg,
                      le32(positions + 4 * i) if positions != NULL else places):
            return -1
    return 0


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
    elif p[0] == SLOG_PACKET and le16_at(p + 10) and SESSION_RECEIVED <= p[9] <= SESSION_DONE:
        return slog_apply(sl, m, p[9], le16_at(p + 10), 0, 0)
    elif p[0] == SLOG_SENT and le16_at(p + 9):
        return slog_apply(sl, m, SESSION_SENT, le16_at(p + 9), le32(p + 11), le32(p + 15))
    elif p[0] == SLOG_SENT_SOME and le16_at(p + 9) == 0:
        return slog_read_taken(sl, m, p)
    elif p[0] == SLOG_SENT_SOME:
        return slog_read_some(sl, m, SESSION_SENT, le16_at(p + 9), le16_at(p + SLOG_SENT_N_AT),
                              le32(p + 13), p + SLOG_SENT_SOME_SIZE)
    elif p[0] == SLOG_PACKETS and SESSION_RECEIVED <= p[9] <= SESSION_DONE and p[9] != SESSION_SENT:
        return slog_read_some(sl, m, p[9], le16_at(p + 10), le16_at(p + SLOG_PACKETS_N_AT), 0,
                              NULL)
    elif p[0] == SLOG_CAME:
        return slog_read_some(sl, m, SESSION_RECEIVED, le16_at(p + 9), le16_at(p + SLOG_SENT_N_AT),
                              le32(p + 13), NULL, le32(p + 17))
    return 0


cdef int slog_read_places(slog_t* sl, const u8* p) noexcept nogil:
    """Take in a record that speaks of no session. 0, or -1 out of memory."""
    if p[0] == SLOG_PLACE:
        return slog_read_place(sl, le64(p + 1), le32(p + 9), le32(p + 13))
    if p[0] == SLOG_TURN:
        return slog_read_turn(sl, le32(p + 1))
    slog_read_safe(sl, le32(p + 1))
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
        elif SLOG_PLACE <= p[0] <= SLOG_SAFE:
            if slog_read_places(sl, p):
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
        if sl.slots[i] != NULL and not msession_is_safe(sl, sl.slots[i]):
            sl.is_in_doubt = True
    if not sl.is_in_doubt:
        slog_settled(sl)


cdef void slog_release(slog_t* sl) noexcept nogil:
    """Let go of all; the files stay as they are. Idempotent."""
    cdef u32 i
    if sl.buckets == NULL:
        return
    for i in range(sl.n_slots):
        if sl.slots[i] != NULL:
            slog_drop(sl, sl.slots[i])
    slog_drop_places(sl)
    slog_release_left(sl)
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
