# Session taken: where messages of shared subscriptions are that members are being sent.
#
# With QoS 2 such a message is the member's from then on, and stands in a queue that others have,
# too. The log of sessions says so before PUBLISH leaves: a start that follows a kill moves it to
# the session, as the end of the connection does (shared.pyx). A place is that of the message if its
# mark is, which is made of the time, the topic and the size: another one may stand there, in a
# queue that was deleted and made anew. What was moved says itself where it comes from, and the log
# goes on to say it, too; so a start finds out what the disk has of a move, and does the rest.
#
# Up to 0.2.1 the log said of such a message that it was sent, and not from where, and who read it
# stopped at a record of an unknown kind, with all that was behind it in its turn. So that is still
# said, and the rest stands in a record of a kind that is known, of ids from 0 on: those releases
# pass it over. They release the id, and the message goes to another member.
# Called by the door, by shared.pyx and hold.pyx. Decision 0152.

cdef enum:
    ORIGIN_SIZE = 16            # in a record: without the subscription


cdef inline u32 slog_short_key(const slog_t* sl, const u8* name) noexcept nogil:
    """What stands for the queue of a name. Not 0."""
    return <u32>slog_key(sl, name)


cdef void slog_sink_origin(session_log_t* sink, const queue_t* source, const rec_t* rec,
                           origin_t* origin) noexcept nogil:
    """See session_log_t. Cost: 30 ns."""
    cdef const slog_t* sl = (<session_sink_t*>sink).log
    origin.key = slog_short_key(sl, source.name)
    origin.mark = <u32>hash_bytes(rec.names - 8, 8 + <u64>rec.names_len, sl.log.salt ^ rec.size)
    origin.seg = rec.seg
    origin.pos = rec.pos
    origin.subscription = 0


cdef u8* record_taken(u8* p, u64 number, u16 id, const origin_t* origin) noexcept nogil:
    p = record_packet(p, number, SESSION_SENT, id, SENT_TWICE, 0)
    p = record_u16(record_u16(record_begin(p, SLOG_SENT_SOME, number), 0), SLOG_TAKEN_N)
    put_le32(p, id)
    p = origin_put(p + 4, origin)
    put_le32(p, origin.subscription)
    return p + 4


cdef u8* origin_put(u8* p, const origin_t* origin) noexcept nogil:
    """ORIGIN_SIZE bytes; returns the end."""
    put_le32(p, origin.key)
    put_le32(p + 4, origin.mark)
    put_le32(p + 8, origin.seg)
    put_le32(p + 12, origin.pos)
    return p + ORIGIN_SIZE


cdef void origin_read(const u8* p, origin_t* origin) noexcept nogil:
    origin.key = le32(p)
    origin.mark = le32(p + 4)
    origin.seg = le32(p + 8)
    origin.pos = le32(p + 12)
    origin.subscription = 0


cdef inline bint is_same_origin(const origin_t* a, const origin_t* b) noexcept nogil:
    return a.key == b.key and a.mark == b.mark and a.seg == b.seg and a.pos == b.pos


cdef int slog_sink_take(session_log_t* sink, queue_t* q, u16 id,
                        const origin_t* origin) noexcept nogil:
    """See session_log_t."""
    cdef slog_t* sl = (<session_sink_t*>sink).log
    cdef msession_t* m = slog_of_queue(sl, q) if sl.buckets != NULL else NULL
    cdef u8* p
    if m == NULL:
        set_errno(ENOENT)
        return -1
    mlog_want_sync(&sl.log)
    p = slog_room(sl, SLOG_TAKEN_SIZE)
    if p == NULL:
        return -1
    if mpacket_take(sl, m, id, origin):
        sl.n_block -= SLOG_TAKEN_SIZE
        set_errno(ENOMEM)
        return -1
    record_taken(p, m.number, id, origin)
    return 0


cdef int slog_read_taken(slog_t* sl, msession_t* m, const u8* p) noexcept nogil:
    """Take in a record of a session that is there. 0, or -1 out of memory."""
    cdef origin_t origin
    if le16_at(p + SLOG_SENT_N_AT) != SLOG_TAKEN_N or le16_at(p + 13) == 0:
        return 0
    origin_read(p + SLOG_SENT_SOME_SIZE, &origin)
    origin.subscription = le32(p + SLOG_SENT_SOME_SIZE + ORIGIN_SIZE)
    if origin.key == 0:
        return 0
    return mpacket_take(sl, m, le16_at(p + 13), &origin)
