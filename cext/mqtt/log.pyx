# Log: checked entries in numbered files, the form of what MQTT keeps beside its queues.
#
#   file    header { entry }
#   header  version:u32 (1) kind:u32 salt:u64 check:u64
#   entry   size:u32 mark:u32 check:u64 body zeros up to a multiple of 8
#
# Little-endian. `mark` is hash_bytes of `size` and `check` that of the body, both seeded with salt,
# file number and position; the check of the header is of the 16 bytes before it. The salt is random
# and that of all files of a log, so nobody can publish what looks like an entry. An entry says what
# is from then on, whatever was before it: so damaged ones are skipped. An entry of kind FLOOR says
# that the files below a number do not count: it is written when all that was copied out of them is
# on disk, which may be in several files, and is on disk itself before the first of them goes, in
# whatever order a loss of power lets them go.
# Rule for changing it: another version gets another number; a file of an unknown one is refused.
#
# Entries are staged, and written with one pwrite at the end of the tick. What cannot be written is
# cut off again and forgotten: its owner takes back what it stood for, and channels that wait for a
# sync are refused. Called by retained.pyx, session_log.pyx, tick.pyx and the door, on the loop.

cdef enum mlog_layout:
    MLOG_VERSION = 1
    MLOG_HEADER = 24
    MLOG_HEAD = 16              # of an entry
    MLOG_CHECK_AT = 16          # of the header
    MLOG_FLOOR = 255            # first byte of a body
    MLOG_FLOOR_SIZE = 8         # kind, three zeros, number

cdef enum mlog_kind:
    MLOG_RETAINED = 1
    MLOG_SESSIONS = 2

cdef enum:
    MLOG_STAGE = 4096           # of memory at first
    MLOG_KEEP = 262144          # and that is kept when it is empty
    MLOG_MOST = 0x70000000      # bytes of a file: positions are u32

ctypedef int (*mlog_take_t)(mlog_t* log, u32 file, u32 pos, const u8* body, u32 n) noexcept nogil

cdef struct mlog_gap_t:         # bytes that are no entry
    u64 start
    u64 end


# ---- checks --------------------------------------------------------------------------------------

cdef inline u64 mlog_seed(const mlog_t* log, u32 number, u64 pos) noexcept nogil:
    return log.salt ^ (<u64>number << 32) ^ pos


cdef inline u32 mlog_mark(u64 seed, const u8* size) noexcept nogil:
    return <u32>hash_bytes(size, 4, seed)


cdef inline u32 mlog_padded(u32 n) noexcept nogil:
    """Bytes of an entry with a body of n."""
    return (MLOG_HEAD + n + 7) & ~<u32>7


cdef u32 mlog_parse(const mlog_t* log, u32 number, u64 pos, const u8* p, u64 n) noexcept nogil:
    """Size of the whole entry at p, which stands at pos of a file; 0 when the n bytes there do not
    begin with one."""
    cdef u64 seed = mlog_seed(log, number, pos)
    cdef u64 size
    if n < MLOG_HEAD or mlog_mark(seed, p) != le32(p + 4):
        return 0
    size = le32(p)
    if size == 0 or MLOG_HEAD + size > n or size > MLOG_MOST:
        return 0
    if hash_bytes(p + MLOG_HEAD, size, seed) != le64(p + 8):
        return 0
    size = mlog_padded(<u32>size)
    return <u32>(size if size < n else n)


# ---- files ---------------------------------------------------------------------------------------

cdef void mlog_path(const mlog_t* log, u32 number, char* path) noexcept nogil:
    snprintf(path, PATH_MAX_BYTES, b"%s/%s.%010u", log.directory, log.name, number)


cdef inline mlog_file_t* mlog_last(const mlog_t* log) noexcept nogil:
    return &log.files[log.n_files - 1]


cdef mlog_file_t* mlog_file(const mlog_t* log, u32 number) noexcept nogil:
    """The file of that number, NULL when there is none."""
    cdef u32 low = 0, high = log.n_files, middle
    while low < high:
        middle = (low + high) // 2
        if log.files[middle].number < number:
            low = middle + 1
        else:
            high = middle
    if low == log.n_files or log.files[low].number != number:
        return NULL
    return &log.files[low]


cdef u64 mlog_size(const mlog_t* log) noexcept nogil:
    """Bytes of all files, with what is staged."""
    cdef u64 n = log.n_stage
    cdef u32 i
    for i in range(log.n_files):
        n += log.files[i].size
    return n


cdef void mlog_add_stale(mlog_t* log, u32 number, i64 n) noexcept nogil:
    """So many bytes of a file do not count any more."""
    cdef mlog_file_t* f = mlog_file(log, number)
    if f != NULL:
        f.stale += n


cdef int mlog_add_file(mlog_t* log, u32 number, u32 size) noexcept nogil:
    """Know of a file, with a higher number than all others. 0, or -1 out of memory."""
    cdef mlog_file_t* grown
    cdef mlog_file_t* f
    if log.n_files == log.cap_files:
        grown = <mlog_file_t*>realloc(log.files, (log.cap_files * 2 + 4) * sizeof(mlog_file_t))
        if grown == NULL:
            set_errno(ENOMEM)
            return -1
        log.files = grown
        log.cap_files = log.cap_files * 2 + 4
    f = &log.files[log.n_files]
    memset(f, 0, sizeof(mlog_file_t))
    f.number = number
    f.size = size
    f.fd = -1
    log.n_files += 1
    if number >= log.next_number:
        log.next_number = number + 1
    return 0


cdef int mlog_open_file(mlog_t* log, mlog_file_t* f) noexcept nogil:
    """A descriptor to read a file, which stays open until mlog_rest. -1 with errno."""
    cdef char path[PATH_MAX_BYTES]
    if f == mlog_last(log) and log.fd >= 0:
        return log.fd
    if f.fd < 0:
        mlog_path(log, f.number, path)
        f.fd = c_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    return f.fd


cdef void mlog_rest(mlog_t* log) noexcept nogil:
    """Close what was opened to read."""
    cdef u32 i
    for i in range(log.n_files):
        if log.files[i].fd >= 0:
            c_close(log.files[i].fd)
            log.files[i].fd = -1


cdef void mlog_drop_first(mlog_t* log) noexcept nogil:
    """Remove the oldest file, which does not count any more, and is not the last one."""
    cdef char path[PATH_MAX_BYTES]
    mlog_path(log, log.files[0].number, path)
    if log.files[0].fd >= 0:
        c_close(log.files[0].fd)
    file_remove(log.loop, path)
    log.n_files -= 1
    memmove(log.files, log.files + 1, log.n_files * sizeof(mlog_file_t))


# ---- staging -------------------------------------------------------------------------------------

cdef int mlog_reserve(mlog_t* log, u64 n) noexcept nogil:
    """Room for n more bytes in the stage. 0, or -1 out of memory."""
    cdef u64 cap = log.cap_stage if log.cap_stage else MLOG_STAGE
    cdef u8* grown
    while cap < log.n_stage + n:
        cap *= 2
    if cap == log.cap_stage:
        return 0
    if cap > MLOG_MOST:
        set_errno(EFBIG)
        return -1
    grown = <u8*>realloc(log.stage, cap)
    if grown == NULL:
        set_errno(ENOMEM)
        return -1
    log.stage = grown
    log.cap_stage = <u32>cap
    return 0


cdef int mlog_roll(mlog_t* log) noexcept nogil:
    """Begin another file: its header is staged. Nothing else is. 0, or -1 with errno."""
    lmq_assert(log.n_stage == 0)
    if (log.loop.sync and log.n_files and log.is_unsynced and log.fd >= 0
            and loop_sync_too(log.loop, log.fd)):
        return -1
    if mlog_reserve(log, MLOG_HEADER) or mlog_add_file(log, log.next_number, 0):
        return -1
    if log.fd >= 0:
        c_close(log.fd)
        log.fd = -1
    log.is_torn = log.is_unsynced = False
    put_le32(log.stage, MLOG_VERSION)
    put_le32(log.stage + 4, log.kind)
    put_le64(log.stage + 8, log.salt)
    put_le64(log.stage + MLOG_CHECK_AT, hash_bytes(log.stage, MLOG_CHECK_AT, MLOG_VERSION))
    log.n_stage = MLOG_HEADER
    log.stale_before = 0
    return 0


cdef u8* mlog_begin(mlog_t* log, u32 n) noexcept nogil:
    """Where the body of the next entry is to be put, n bytes; mlog_end makes it one. NULL with
    errno. It may write what is staged, to begin another file."""
    cdef u64 need = <u64>MLOG_HEAD + n + 8, end
    if need > MLOG_MOST:
        set_errno(EFBIG)
        return NULL
    if log.n_files:
        end = <u64>mlog_last(log).size + log.n_stage
        if log.is_torn or (end > MLOG_HEADER and end + need > log.file_size):
            if mlog_flush(log):
                return NULL
            if log.n_files == 0 or mlog_last(log).size:
                if mlog_roll(log):
                    return NULL
    if log.n_files == 0 and mlog_roll(log):
        return NULL
    if mlog_reserve(log, need):
        return NULL
    if log.n_stage == 0:
        log.stale_before = mlog_last(log).stale
    return log.stage + log.n_stage + MLOG_HEAD


cdef inline u32 mlog_position(const mlog_t* log) noexcept nogil:
    """Of the next entry."""
    return mlog_last(log).size + log.n_stage


cdef void mlog_end(mlog_t* log, u32 n) noexcept nogil:
    """The body is there: n bytes, as many as were asked for or fewer."""
    cdef u8* p = log.stage + log.n_stage
    cdef u32 size = mlog_padded(n)
    cdef u64 seed = mlog_seed(log, mlog_last(log).number, mlog_position(log))
    put_le32(p, n)
    put_le32(p + 4, mlog_mark(seed, p))
    put_le64(p + 8, hash_bytes(p + MLOG_HEAD, n, seed))
    memset(p + MLOG_HEAD + n, 0, size - MLOG_HEAD - n)
    log.n_stage += size
    mlog_note_dirty(log)


cdef inline void mlog_note_dirty(mlog_t* log) noexcept nogil:
    if not log.is_dirty:
        log.is_dirty = True
        log.dirty_next = log.loop.dirty_logs
        log.loop.dirty_logs = log


cdef int mlog_append_floor(mlog_t* log, u32 number) noexcept nogil:
    """Files below that number do not count from now on. 0, or -1 with errno."""
    cdef u8* p = mlog_begin(log, MLOG_FLOOR_SIZE)
    if p == NULL:
        return -1
    put_le32(p, MLOG_FLOOR)
    put_le32(p + 4, number)
    mlog_end(log, MLOG_FLOOR_SIZE)
    mlog_last(log).stale += mlog_padded(MLOG_FLOOR_SIZE)
    return 0


# ---- writing -------------------------------------------------------------------------------------

cdef void mlog_tell(mlog_t* log, int error) noexcept nogil:
    if error != log.error:
        log.error = error
        log.is_news = log.loop.is_news = True


cdef int mlog_write(mlog_t* log) noexcept nogil:
    """Bring the stage into the last file. 0, or -1 with errno: the file is as it was, or `is_torn`.
    """
    cdef char path[PATH_MAX_BYTES]
    cdef mlog_file_t* f = mlog_last(log)
    cdef int error
    mlog_path(log, f.number, path)
    if log.fd < 0:
        log.fd = file_open(log.loop, path, O_RDWR | (0 if f.size else O_CREAT | O_TRUNC))
        if log.fd < 0:
            return -1
        log.is_dir_unsynced = log.is_dir_unsynced or f.size == 0
    if file_write(log.loop, path, CHANGE_APPEND, log.fd, log.stage, log.n_stage, f.size) == 0:
        return 0
    error = errno
    if f.size == 0:
        c_close(log.fd)
        log.fd = -1
        file_unlink(log.loop, path)
    elif file_cut(log.loop, path, log.fd, f.size) and log.settle != NULL:
        log.is_torn = True
    set_errno(error)
    return -1


cdef void mlog_fail(mlog_t* log, int error) noexcept nogil:
    """What is staged will not be there: whoever waits for it is told. A log that keeps it tries it
    again with what comes next; who waits for that waits on while it finds no room, as for a queue:
    who is refused publishes once more what the queues have."""
    mlog_tell(log, error)
    if log.settle == NULL and is_no_room(error):
        mlog_set_full(log, True)
        return
    loop_refuse_waiting(log.loop)
    if log.settle == NULL:
        return
    log.loop.has_lost = True
    log.n_stage = 0
    log.settle(log, False)
    mlog_last(log).stale = log.stale_before
    if mlog_last(log).size == 0:
        log.n_files -= 1            # the next one has another number


cdef int mlog_flush(mlog_t* log) noexcept nogil:
    """Write what is staged. 0, or -1 with errno: it is forgotten then, or stays staged."""
    cdef int error
    if log.gather != NULL and log.gather(log):
        return -1
    if log.n_stage == 0:
        return 0
    if mlog_write(log):
        error = errno if errno else EIO
        mlog_fail(log, error)
        set_errno(error)
        return -1
    mlog_last(log).size += log.n_stage
    log.n_written += log.n_stage
    log.n_stage = 0
    log.is_unsynced = True
    if log.cap_stage > MLOG_KEEP:
        free(log.stage)
        log.stage = NULL
        log.cap_stage = 0
    mlog_tell(log, 0)
    mlog_set_full(log, False)
    if log.settle != NULL:
        log.settle(log, True)
    return 0


cdef void mlog_want_sync(mlog_t* log) noexcept nogil:
    """The next sync is to cover what was appended so far."""
    if not log.is_sync_wanted and log.loop.sync:
        log.is_sync_wanted = True
        log.sync_next = log.loop.sync_logs
        log.loop.sync_logs = log


cdef int mlog_hand_over_names(mlog_t* log) noexcept nogil:
    """Have the next sync cover that the files are there. 0, or -1 with errno."""
    if log.is_dir_unsynced and log.loop.sync:
        if loop_sync_names_too(log.loop, log.directory):
            return -1
        log.is_dir_unsynced = False
    return 0


cdef int mlog_hand_over(mlog_t* log) noexcept nogil:
    """Have the next sync cover what is written. 0, or -1 with errno."""
    if log.is_unsynced:
        if log.fd < 0 or loop_sync_too(log.loop, log.fd):
            return -1
        log.is_unsynced = False
    if mlog_hand_over_names(log):
        return -1
    log.n_before = mlog_safe(log)
    log.n_handed = log.n_written
    log.handed_at = log.loop.n_syncs + 1
    return 0


cdef u64 mlog_safe(const mlog_t* log) noexcept nogil:
    """How many bytes of those written since it was opened are on disk; all, if nobody waits for the
    disk. Who is told that a sync is over may be told in a later turn, when the next one runs."""
    if not log.loop.sync:
        return log.n_written
    return log.n_handed if log.loop.n_synced >= log.handed_at else log.n_before


cdef void mlog_release(mlog_t* log) noexcept nogil:
    """Let go of memory, descriptors and the loop's lists; what is staged is lost. Idempotent."""
    cdef mlog_t** at
    if log.is_dirty:
        at = &log.loop.dirty_logs
        while at[0] != log:
            at = &at[0].dirty_next
        at[0] = log.dirty_next
        log.is_dirty = False
    mlog_set_full(log, False)
    if log.is_sync_wanted:
        at = &log.loop.sync_logs
        while at[0] != log:
            at = &at[0].sync_next
        at[0] = log.sync_next
        log.is_sync_wanted = False
    mlog_rest(log)
    if log.fd >= 0:
        c_close(log.fd)
        log.fd = -1
    free(log.files)
    free(log.stage)
    log.files = NULL
    log.stage = NULL
    log.n_files = log.cap_files = log.n_stage = log.cap_stage = 0


# ---- reading -------------------------------------------------------------------------------------

cdef bint mlog_read_header(mlog_t* log, const u8* p, u64 n, u32* version) noexcept nogil:
    """Whether a file begins with a header of this kind; then its salt is the log's."""
    if n < MLOG_HEADER or le64(p + MLOG_CHECK_AT) != hash_bytes(p, MLOG_CHECK_AT, MLOG_VERSION):
        return False
    version[0] = le32(p)
    if le32(p + 4) != log.kind:
        return False
    log.salt = le64(p + 8)
    return True


cdef u64 mlog_next(const mlog_t* log, u32 number, const u8* p, u64 at, u64 n) noexcept nogil:
    """Where the next whole entry begins in a file of n bytes, from `at` on; n: there is none."""
    at = (at + 7) & ~<u64>7
    while at + MLOG_HEAD <= n:
        if mlog_parse(log, number, at, p + at, n - at):
            return at
        at += 8
    return n


cdef int mlog_scan(mlog_t* log, u32 number, const u8* p, u64 n, mlog_take_t take, mlog_gap_t* gaps,
                   u32* n_gaps, u32 most_gaps) noexcept nogil:
    """Hand over the entries of a file of n bytes, and tell of what is none. 0, or -1 out of memory.
    """
    cdef u64 at = MLOG_HEADER, following
    cdef u32 size
    cdef const u8* body
    n_gaps[0] = 0
    while at < n:
        size = mlog_parse(log, number, at, p + at, n - at)
        if size == 0:
            following = mlog_next(log, number, p, at, n)
            if n_gaps[0] < most_gaps:
                gaps[n_gaps[0]].start = at
                gaps[n_gaps[0]].end = following
                n_gaps[0] += 1
            else:
                gaps[most_gaps - 1].end = following
            at = following
            continue
        body = p + at + MLOG_HEAD
        if body[0] == MLOG_FLOOR and le32(p + at) >= MLOG_FLOOR_SIZE:
            if le32(body + 4) > log.floor and le32(body + 4) <= number:
                log.floor = le32(body + 4)
            mlog_add_stale(log, number, size)
        elif take(log, number, <u32>at, body, le32(p + at)):
            return -1
        at += size
    return 0
