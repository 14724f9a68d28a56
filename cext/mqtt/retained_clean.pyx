# Retained clean: gives back what entries take that do not count any more, and expired messages.
#
# The oldest file is read from its beginning, and what counts in it is put anew, in portions. When
# all of that is on disk, an entry says that the file does not count; once that is on disk the file
# goes. A loss of power leaves a message in both files or in the new one. What cannot be written
# leaves the old file as it is. Called by the door, on the loop.

cdef enum:
    CLEAN_BYTES = 262144        # read at once
    CLEAN_LEAST = 1048576       # bytes of files below which nothing is cleaned
    CLEAN_UNITS = 60            # of work, for each entry

cdef enum clean_result:
    CLEAN_MORE = 1
    CLEAN_DONE = 0              # all is put anew: after the next sync the file does not count
    CLEAN_FAILED = -1


cdef bint retained_is_due(const rstore_t* rs) noexcept nogil:
    """Whether three quarters of the files are bytes that do not count."""
    cdef u64 size = mlog_size(&rs.log)
    return size > CLEAN_LEAST and size > 4 * rs.live


cdef int retained_copy(rstore_t* rs, u32 number, u32 pos, const u8* p, u32 n,
                       u32 now_s) noexcept nogil:
    """Put an entry anew if it counts. 0, or -1 with errno."""
    cdef rfound_t found
    cdef rmsg_t* msg
    if not retained_parse(p, n, &found):
        return 0
    msg = retained_find(rs, found.topic, found.topic_len)
    if msg == NULL or msg.size == 0 or msg.file != number or msg.pos != pos:
        return 0
    if msg.expires_s and msg.expires_s <= now_s:
        return -1 if retained_remove(rs, msg.topic, msg.topic_len) < 0 else 0
    return retained_put(rs, &found)


cdef int retained_clean_begin(rstore_t* rs) noexcept nogil:
    """0, or -1 with errno."""
    if rs.log.n_files == 1 and (mlog_flush(&rs.log) or mlog_roll(&rs.log)):
        return -1
    rs.clean_buf = <u8*>malloc(CLEAN_BYTES)
    if rs.clean_buf == NULL:
        set_errno(ENOMEM)
        return -1
    rs.clean_at = MLOG_HEADER
    rs.is_cleaning = True
    rs.has_failed = False
    return 0


cdef void retained_clean_end(rstore_t* rs) noexcept nogil:
    free(rs.clean_buf)
    rs.clean_buf = NULL
    rs.is_cleaning = False
    if rs.n_walks == 0:
        mlog_rest(&rs.log)


cdef i64 retained_clean_piece(rstore_t* rs, loop_t* loop, const u8* p, u64 n) noexcept nogil:
    """Look at the entries at `clean_at` of the oldest file, n bytes that were read there. Returns
    how many bytes are done, or -1 with errno."""
    cdef u32 number = rs.log.files[0].number, size
    cdef u64 at = 0
    while at < n:
        size = mlog_parse(&rs.log, number, rs.clean_at + at, p + at, n - at)
        if size == 0:
            if at and rs.clean_at + n < rs.log.files[0].size:
                break                   # it may only be cut: it is read from its beginning
            size = 8
        elif retained_copy(rs, number, <u32>(rs.clean_at + at), p + at + MLOG_HEAD, le32(p + at),
                           <u32>(loop.now_ms // 1000)):
            return -1
        at += size
        if loop_spent(loop, CLEAN_UNITS + (size >> UNIT_SHIFT)):
            break
    return <i64>at


cdef int retained_clean_large(rstore_t* rs, u32 size) noexcept nogil:
    """The entry at `clean_at` is larger than the buffer, if it is one. 0, or -1 with errno."""
    cdef u32 number = rs.log.files[0].number
    cdef u8* p = <u8*>malloc(size)
    cdef int rc = -1
    if p == NULL:
        set_errno(ENOMEM)
        return -1
    if retained_read(rs, number, <u32>rs.clean_at, p, size) == size:
        rc = 0
        if mlog_parse(&rs.log, number, rs.clean_at, p, size):
            rc = retained_copy(rs, number, <u32>rs.clean_at, p + MLOG_HEAD, le32(p),
                               <u32>(rs.log.loop.now_ms // 1000))
            rs.clean_at += size
        else:
            rs.clean_at += 8
    free(p)
    return rc


cdef int retained_clean_some(rstore_t* rs, loop_t* loop) noexcept nogil:
    """Go on until the portion is over: a clean_result."""
    cdef mlog_file_t* f
    cdef u64 size
    cdef i64 got
    if not rs.is_cleaning and retained_clean_begin(rs):
        return CLEAN_FAILED
    f = &rs.log.files[0]
    while rs.clean_at < f.size:
        got = retained_read(rs, f.number, <u32>rs.clean_at, rs.clean_buf, CLEAN_BYTES)
        if got < 0 or rs.has_failed:
            return CLEAN_FAILED
        if rs.clean_at + got > f.size:
            got = <i64>(f.size - rs.clean_at)
        if got == 0:
            break
        size = 0
        if got >= MLOG_HEAD and mlog_mark(mlog_seed(&rs.log, f.number, rs.clean_at),
                                          rs.clean_buf) == le32(rs.clean_buf + 4):
            size = <u64>MLOG_HEAD + le32(rs.clean_buf)
        if size > <u64>got and rs.clean_at + size <= f.size:
            if retained_clean_large(rs, mlog_padded(le32(rs.clean_buf))):
                return CLEAN_FAILED
        else:
            got = retained_clean_piece(rs, loop, rs.clean_buf, <u64>got)
            if got < 0:
                return CLEAN_FAILED
            rs.clean_at += <u64>got
        f = &rs.log.files[0]            # another file may have been begun
        if loop_look(loop):
            return CLEAN_MORE
    if mlog_flush(&rs.log) or rs.has_failed:
        return CLEAN_FAILED
    if rs.imported_ns and retained_note_import(rs, rs.imported_ns, rs.imported_at_ms):
        return CLEAN_FAILED
    if mlog_flush(&rs.log) or rs.has_failed:
        return CLEAN_FAILED
    return CLEAN_DONE


cdef bint retained_expire(rwalk_t* w, loop_t* loop) noexcept nogil:
    """Forget expired messages at the walk's place and behind, until the portion is over. Whether
    there is more to look at."""
    cdef rstore_t* rs = w.store
    cdef u32 now_s = <u32>(loop.now_ms // 1000)
    cdef bint is_late = False
    cdef rmsg_t* msg
    while True:
        msg = rwalk_here(w)
        if msg == NULL:
            return False
        if is_late:
            return walk_stay(w, msg)
        is_late = loop_spent(loop, WALK_UNITS)
        if walk_go(w, msg.topic, msg.topic_len, NULL, 0, 0):
            return False
        rwalk_step(w)
        w.version = rs.version + 1
        if msg.size and msg.expires_s and msg.expires_s <= now_s:
            if retained_remove(rs, msg.topic, msg.topic_len) < 0:
                return False
