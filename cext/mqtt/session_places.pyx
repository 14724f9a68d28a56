# Session places: how far files have to reach for messages of QoS 2 that are noted as received.
#
# A note and its message are in different files, and a loss of power may leave one of them. So the
# block of a note says to which queues its messages went, and where the segment ends that each
# stands in: a turn, of which each received id has the bits of its places. What is in a turn is
# written before its messages. A start that finds a file shorter than that forgets the ids, and
# takes what is sent again for new; else it takes it for known. Once a sync has covered a turn and
# its queues the log says that it is safe, and nobody looks at its places any more. So the places of
# few turns count, and queues may be purged or deleted later. 32 bits: of more queues some share
# one, and the ids of all of them go by the shortest.
# Called by session_log.pyx, tick.pyx and publish.pyx, and by the door at the start. Decision 0144.


# ---- while messages come -------------------------------------------------------------------------

cdef inline u64 slog_key(const slog_t* sl, const u8* name) noexcept nogil:
    """What stands for the queue of a name, a short string. Nobody can choose it, as the salt is
    random. Not 0."""
    return hash_bytes(name + 1, name[0], sl.log.salt) | 1


cdef splace_t* slog_add_place(slog_t* sl) noexcept nogil:
    """One more, all zeros. NULL with errno."""
    cdef splace_t* grown
    cdef u32 cap
    if sl.n_places == sl.cap_places:
        cap = sl.cap_places * 2 + 16
        grown = <splace_t*>realloc(sl.places, cap * sizeof(splace_t))
        if grown == NULL:
            set_errno(ENOMEM)
            return NULL
        sl.places = grown
        sl.bytes += (cap - sl.cap_places) * sizeof(splace_t)
        sl.cap_places = cap
    sl.n_places += 1
    memset(&sl.places[sl.n_places - 1], 0, sizeof(splace_t))
    return &sl.places[sl.n_places - 1]


cdef inline u32 place_bit(const slog_t* sl, u32 at) noexcept nogil:
    """Of the place with that index, which is not in the log yet."""
    return <u32>1 << ((at - sl.n_told) & 31)


cdef inline void slog_want_turn(slog_t* sl) noexcept nogil:
    """Have the places written before the queues."""
    sl.log.loop.is_noted = True
    mlog_note_dirty(&sl.log)


cdef int slog_place_retained(slog_t* sl, const mlog_t* log, u32* places) noexcept nogil:
    """slog_sink_place for what stands at the end of the log of retained messages."""
    cdef splace_t* place
    if log == NULL or log.n_files == 0:
        return 0                        # there was nothing to forget
    place = &sl.places[sl.n_places - 1] if sl.n_places > sl.n_told else NULL
    if place == NULL or place.key or place.seg != mlog_last(log).number:
        place = slog_add_place(sl)
        if place == NULL:
            return -1
        place.seg = mlog_last(log).number
    place.end = mlog_last(log).size + log.n_stage
    places[0] |= place_bit(sl, sl.n_places - 1)
    slog_want_turn(sl)
    return 0


# hot
cdef int slog_sink_place(session_log_t* sink, queue_t* q, mlog_t* retained,
                         u32* places) noexcept nogil:
    """See session_log_t. Cost: 3 ns."""
    cdef slog_t* sl = (<session_sink_t*>sink).log
    cdef store_t* st
    cdef splace_t* place
    cdef u32 at
    if q == NULL:
        return slog_place_retained(sl, retained, places)
    st = q.store
    if not st.is_durable or q.is_deleted or q.name == NULL or st.n_segs == 0:
        return 0                        # it goes with the broker
    at = st.noted
    if not (sl.n_told <= at < sl.n_places and sl.places[at].queue == q
            and sl.places[at].seg == st.wseg.id):
        place = slog_add_place(sl)
        if place == NULL:
            return -1
        place.queue = q
        place.seg = st.wseg.id
        place.key = slog_key(sl, q.name)
        at = st.noted = sl.n_places - 1
        q.refs += 1
        slog_want_turn(sl)
    places[0] |= place_bit(sl, at)
    return 0


cdef u32 place_end(const splace_t* place) noexcept nogil:
    """Up to where the file has to reach; 0: nowhere, for all that stood there is settled."""
    cdef const seg_t* seg
    if place.queue == NULL:
        return place.end
    if place.queue.is_deleted:
        return 0
    if place.queue.is_closed:
        return <u32>-1                  # it could not be written
    seg = store_segment(place.queue.store, place.seg)
    return seg.size if seg != NULL and seg.size > SEGMENT_HEADER else 0


cdef u32 slog_turn_size(const slog_t* sl) noexcept nogil:
    """Bytes that slog_put_turn takes at most."""
    return 2 * SLOG_TURN_SIZE + (sl.n_places - sl.n_told) * SLOG_PLACE_SIZE


cdef u8* slog_put_turn(slog_t* sl, u8* p) noexcept nogil:
    """Put before the records of a block which turn is safe, and the places of this one. Returns the
    end."""
    cdef u32 i
    if sl.safe != sl.safe_told:
        p = record_begin(p, SLOG_SAFE, sl.safe)
    if sl.n_places == sl.n_told:
        return p
    p = record_begin(p, SLOG_TURN, sl.turn)
    for i in range(sl.n_told, sl.n_places):
        p = record_begin(p, SLOG_PLACE, sl.places[i].key)
        put_le32(p, sl.places[i].seg)
        put_le32(p + 4, place_end(&sl.places[i]))
        p += 8
    return p


cdef void slog_told_turn(slog_t* sl) noexcept nogil:
    """The block is staged."""
    sl.safe_told = sl.safe
    if sl.n_places == sl.n_told:
        return
    sl.n_told = sl.n_places
    sl.turn += 1
    sl.told_end = sl.log.n_written + sl.log.n_stage


cdef void slog_look_safe(slog_t* sl) noexcept nogil:
    """Find out which turn is on disk. While a queue waits for room its messages are not."""
    if sl.log.loop.stuck != NULL:
        return
    if sl.marked != sl.safe and mlog_safe(&sl.log) >= sl.marked_end:
        sl.safe = sl.marked
    if sl.marked == sl.safe and sl.turn - 1 != sl.safe:
        sl.marked = sl.turn - 1
        sl.marked_end = sl.told_end


cdef void slog_after(mlog_t* log) noexcept nogil:
    """The turn is written, or will be: now its messages are. Before that no file has them, so a
    kill leaves a message with its id, or an id that nobody believes."""
    cdef slog_t* sl = <slog_t*>log
    cdef queue_t* q
    cdef u32 i
    if sl.n_block == 0:
        sl.n_told = sl.n_places         # of others nothing was noted: they were refused
    for i in range(sl.n_told):
        q = sl.places[i].queue
        if q == NULL:
            continue
        if not q.is_deleted and not q.is_closed and not q.is_stuck and store_flush(q.store):
            queue_failed(q)
        queue_unref(q)
    if sl.n_told:
        sl.n_places -= sl.n_told
        memmove(sl.places, sl.places + sl.n_told, sl.n_places * sizeof(splace_t))
        sl.n_told = 0


cdef void slog_drop_places(slog_t* sl) noexcept nogil:
    cdef u32 i
    for i in range(sl.n_places):
        if sl.places[i].queue != NULL:
            queue_unref(sl.places[i].queue)
    free(sl.places)
    free(sl.turns)
    sl.places = NULL
    sl.turns = NULL
    sl.n_places = sl.cap_places = sl.n_told = sl.n_turns = sl.cap_turns = 0


cdef inline bint turn_is_safe(const slog_t* sl, u32 turn) noexcept nogil:
    """Numbers go round."""
    return <i32>(turn - sl.safe) <= 0


cdef inline bint mpacket_is_safe(const slog_t* sl, const mpacket_t* packet) noexcept nogil:
    """Whether it is known that the message of a received id is on disk."""
    return packet.pos == 0 or turn_is_safe(sl, packet.seg)


cdef bint msession_is_safe(const slog_t* sl, const msession_t* m) noexcept nogil:
    """The same of all ids of a session."""
    cdef u32 i
    for i in range(m.cap_packets):
        if (m.packets[i].id and m.packets[i].state == PACKET_RECEIVED
                and not mpacket_is_safe(sl, &m.packets[i])):
            return False
    return True


# ---- at the start --------------------------------------------------------------------------------

cdef int slog_read_turn(slog_t* sl, u32 number) noexcept nogil:
    """A turn begins. 0, or -1 out of memory."""
    cdef sturn_t* grown
    if sl.n_turns == sl.cap_turns:
        grown = <sturn_t*>realloc(sl.turns, (sl.cap_turns * 2 + 16) * sizeof(sturn_t))
        if grown == NULL:
            return -1
        sl.turns = grown
        sl.cap_turns = sl.cap_turns * 2 + 16
    sl.turns[sl.n_turns].number = number
    sl.turns[sl.n_turns].first = sl.n_places
    sl.turns[sl.n_turns].n = 0
    sl.turns[sl.n_turns].bad = 0
    sl.n_turns += 1
    sl.turn = number + 1
    return 0


cdef void slog_read_safe(slog_t* sl, u32 number) noexcept nogil:
    """Turns up to that number are on disk."""
    sl.safe = sl.safe_told = sl.marked = number
    if sl.n_turns and turn_is_safe(sl, sl.turns[sl.n_turns - 1].number):
        sl.n_turns = sl.n_places = 0
    if turn_is_safe(sl, sl.turn):
        sl.turn = number + 1


cdef int slog_read_place(slog_t* sl, u64 key, u32 seg, u32 end) noexcept nogil:
    """One more of the turn that was read last. 0, or -1 out of memory."""
    cdef splace_t* place
    if sl.n_turns == 0:
        return 0
    place = slog_add_place(sl)
    if place == NULL:
        return -1
    place.key = key
    place.seg = seg
    place.end = end
    sl.turns[sl.n_turns - 1].n += 1
    return 0


cdef bint store_kept(store_t* st, u32 id, u32 end) noexcept nogil:
    """Whether a segment is whole up to a position: what a start has cut, found damaged or not found
    is not."""
    cdef seg_t* seg = store_segment(st, id)
    cdef rec_t rec
    cdef u32 pos = SEGMENT_HEADER, n = 0
    if end == 0:
        return True
    if seg == NULL or seg.id != id or seg.damaged_at or seg.size < end:
        return False
    if seg is st.wseg:
        return True                     # it was walked
    while pos < end and store_walk(st, &st.loop.pool, seg, &pos, n, &rec) == 1:
        pos += rec.size
        n += 1
    return pos >= end and not seg.damaged_at


cdef bint mlog_holds(const mlog_t* log, u32 number, u32 end) noexcept nogil:
    """The same for a file of a log."""
    cdef const mlog_file_t* f = mlog_file(log, number)
    if f == NULL:
        return number < log.floor       # what counts of it is in a later one
    return not f.is_damaged and end <= f.size


cdef void slog_miss(slog_t* sl, u32 at) noexcept nogil:
    """The files do not reach the place with that index."""
    cdef u32 low = 0, high = sl.n_turns, middle
    while high - low > 1:
        middle = (low + high) // 2
        if sl.turns[middle].first <= at:
            low = middle
        else:
            high = middle
    sl.turns[low].bad |= <u32>1 << ((at - sl.turns[low].first) & 31)


cdef void slog_settled(slog_t* sl) noexcept nogil:
    """All that was found was looked at: what is left is there, and the log says so."""
    sl.safe = sl.marked = sl.turn - 1
    sl.n_turns = sl.n_places = 0
    sl.is_in_doubt = False


cdef bint slog_believes(const slog_t* sl, const mpacket_t* packet) noexcept nogil:
    """Whether the message of a received id is where it has to be. What is known of no turn is not.
    """
    cdef u32 low = 0, high = sl.n_turns, middle
    if mpacket_is_safe(sl, packet):
        return True
    while high - low > 1:
        middle = (low + high) // 2
        if <i32>(packet.seg - sl.turns[middle].number) >= 0:
            low = middle
        else:
            high = middle
    if sl.n_turns == 0 or sl.turns[low].number != packet.seg:
        return False
    return packet.pos & sl.turns[low].bad == 0
