# Dedup log: the file that lets the keys of a cache outlive the broker.
#
#   slot of 32 bytes   version:u32 (2) covered:u32 boot:u64 salt:16
#   further slots      key:16 until:i64 check:u64
#
# Little-endian. `boot` is the machine's boot in which the file was last written, `covered` how many
# slots it has once the broker has stopped in order, with the first one; 0 while it runs. `salt` is
# the key of the hash, `until` Unix milliseconds or the largest int64, `check` hash_bytes of the 24
# bytes before it, seeded with the salt's first word. Slots are in the order of insertion; a key
# that comes twice counts where it comes last. Version 1 had 1 in place of `covered`.
#
# The next life goes on in the same file: it notes its boot, takes `covered` away, and appends. When
# the power goes, the disk may have new keys and still the old first slot: then the file has more
# slots than are covered, and is not believed.
#
# Keys are written after the messages of their tick, so a process that dies leaves no key without
# its message. What reaches the disk first when the power goes nobody knows: nothing here is synced
# while the broker runs, and a file of an earlier boot is believed only when it is complete.
# Rule for changing it: another version gets another number; what is not understood is forgotten.
cdef enum dedup_layout:
    DEDUP_SLOT = 32
    DEDUP_CHECKED = 24          # bytes of a slot that its check covers
    DEDUP_COVERED_AT = 4
    DEDUP_BOOT_AT = 8
    DEDUP_VERSION = 2
    DEDUP_OLD_VERSION = 1       # is read, and written anew at once
    DEDUP_BATCH = 256           # slots written at once
    DEDUP_SLACK = 1024          # slots that a file may have above twice the keys
    DEDUP_LOADED = 65536        # bytes of slots that are read in one go
    DEDUP_AT_ONCE = 4096        # keys that are written in one go
    DEDUP_BATCH_UNITS = 2500    # of work, to write a batch

cdef enum dedup_refusal:
    DEDUP_NO_LOG = -1           # no file of this format
    DEDUP_OTHER_BOOT = -2       # the machine stopped without the broker


# ---- writing -------------------------------------------------------------------------------------

cdef void dedup_write_slot(const dedup_t* d, const dedup_entry_t* entry, u8* p) noexcept nogil:
    put_le64(p, entry.key[0])
    put_le64(p + 8, entry.key[1])
    put_le64(p + 16, <u64>entry.until_ms)
    put_le64(p + DEDUP_CHECKED, hash_bytes(p, DEDUP_CHECKED, d.salt[0]))


cdef i64 dedup_write_some(const dedup_t* d, const char* path, int fd, u32 at, u32 before,
                          i64 end) noexcept nogil:
    """Write the keys from entry `at` up to that before entry `before`, 0 = the newest: those that
    may outlive us, at offset `end` of the file `path`.
    Returns where they end, or -1 with errno."""
    cdef u8 batch[DEDUP_BATCH * DEDUP_SLOT]
    cdef u32 n = 0
    while at != before:
        if d.entries[at].is_kept:
            dedup_write_slot(d, &d.entries[at], batch + n)
            n += DEDUP_SLOT
        at = d.entries[at].newer
        if n == DEDUP_BATCH * DEDUP_SLOT or (at == before and n):
            # A write that failed may have left some of them there.
            if file_write(d.loop, path, CHANGE_PATCH, fd, batch, n, end):
                return -1
            end += n
            n = 0
    return end


cdef int dedup_write_head(const dedup_t* d, const char* path, int fd) noexcept nogil:
    """Write the first slot. 0, or -1 with errno."""
    cdef u8 head[DEDUP_SLOT]
    put_le32(head, DEDUP_VERSION)
    put_le32(head + DEDUP_COVERED_AT, 0)
    put_le64(head + DEDUP_BOOT_AT, d.boot)
    put_le64(head + 16, d.salt[0])
    put_le64(head + 24, d.salt[1])
    return file_write(d.loop, path, CHANGE_APPEND, fd, head, DEDUP_SLOT, 0)


cdef int dedup_cover(const dedup_t* d, const char* path, int fd, i64 size) noexcept nogil:
    """All is written: say so, and have it on disk. 0, or -1 with errno.

    Should the power go in between, the number alone could be there: keys are missing then."""
    cdef u8 covered[4]
    put_le32(covered, <u32>(size // DEDUP_SLOT))
    return -1 if (file_write(d.loop, path, CHANGE_PATCH, fd, covered, 4, DEDUP_COVERED_AT)
                  or sync_data(fd)) else 0


cdef int dedup_uncover(dedup_t* d) noexcept nogil:
    """Go on in the file of an earlier life. 0, or -1 with errno.

    The boot comes first: who is killed in between has keys that count by the one or the other."""
    cdef u8 word[8]
    put_le64(word, d.boot)
    if file_write(d.loop, d.path, CHANGE_PATCH, d.fd, word, 8, DEDUP_BOOT_AT):
        return -1
    memset(word, 0, 4)
    if file_write(d.loop, d.path, CHANGE_PATCH, d.fd, word, 4, DEDUP_COVERED_AT):
        return -1
    d.is_covered = False
    return 0


cdef void dedup_close_file(dedup_t* d) noexcept nogil:
    if d.fd >= 0:
        c_close(d.fd)
        d.fd = -1


cdef int dedup_replace(dedup_t* d, u32 at, bint is_covered) noexcept nogil:
    """Replace the file by one with the keys from entry `at` on, 0 = none, on disk if it is the last
    one. 0, or -1 with errno: then it is as it was."""
    cdef char aside[PATH_MAX_BYTES]
    cdef i64 size = -1
    cdef int fd
    snprintf(aside, PATH_MAX_BYTES, b"%s.tmp", d.path)
    fd = file_open(d.loop, aside, O_RDWR | O_CREAT | O_TRUNC)
    if fd < 0:
        return -1
    if dedup_write_head(d, aside, fd) == 0:
        size = dedup_write_some(d, aside, fd, at, 0, DEDUP_SLOT)
    if (size < 0 or (is_covered and dedup_cover(d, aside, fd, size))
            or file_rename(d.loop, aside, d.path)):
        close_failed(fd)
        return -1
    dedup_close_file(d)
    d.fd = fd
    d.file_size = size
    d.is_covered = is_covered
    return 0


cdef inline u32 dedup_oldest(const dedup_t* d) noexcept nogil:
    return d.entries[0].newer if d.cap else 0


cdef void dedup_note_error(dedup_t* d, int error) noexcept nogil:
    """What came of the last write, 0 = it went well: what is new is told."""
    if error == d.error:
        return
    d.error = error
    d.is_news = True
    if d.loop != NULL:
        d.loop.is_news = True


cdef void dedup_end_rewrite(dedup_t* d) noexcept nogil:
    """The file that was being written aside is the one now, or is given up."""
    cdef char aside[PATH_MAX_BYTES]
    loop_drop_job(d.loop, &d.rewrite.job)
    if d.rewrite.fd >= 0:
        close_failed(d.rewrite.fd)
        snprintf(aside, PATH_MAX_BYTES, b"%s.tmp", d.path)
        file_unlink(d.loop, aside)
    free(d.rewrite)
    d.rewrite = NULL


cdef bint dedup_rewrite_step(loop_t* loop, job_t* job) noexcept nogil:
    """Write some keys aside. Behind the last one whose message is in its file, the file takes the
    place of the old one, to which new keys went meanwhile. False when that is done or failed: then
    the next new key has it tried again."""
    cdef dedup_rewrite_t* r = <dedup_rewrite_t*>job
    cdef dedup_t* d = r.dedup
    cdef char aside[PATH_MAX_BYTES]
    cdef u8 batch[DEDUP_BATCH * DEDUP_SLOT]
    cdef u32 n, at = d.entries[r.done].newer
    snprintf(aside, PATH_MAX_BYTES, b"%s.tmp", d.path)
    while at and not d.entries[at].is_new:
        n = 0
        while at and not d.entries[at].is_new and n < DEDUP_BATCH * DEDUP_SLOT:
            if d.entries[at].is_kept:
                dedup_write_slot(d, &d.entries[at], batch + n)
                n += DEDUP_SLOT
            r.done = at
            at = d.entries[at].newer
        if n and file_write(loop, aside, CHANGE_PATCH, r.fd, batch, n, r.size):
            dedup_note_error(d, errno if errno else EIO)
            dedup_end_rewrite(d)
            return False
        r.size += n
        if loop_spent(loop, DEDUP_BATCH_UNITS):
            return True
    if file_rename(loop, aside, d.path):
        dedup_note_error(d, errno)
    else:
        dedup_close_file(d)
        d.fd = r.fd
        d.file_size = r.size
        r.fd = -1
    dedup_end_rewrite(d)
    return False


cdef int dedup_begin_rewrite(dedup_t* d) noexcept nogil:
    """Have the file written anew in portions. 0, or -1 with errno."""
    cdef char aside[PATH_MAX_BYTES]
    cdef dedup_rewrite_t* r = <dedup_rewrite_t*>calloc(1, sizeof(dedup_rewrite_t))
    if r == NULL:
        set_errno(ENOMEM)
        return -1
    snprintf(aside, PATH_MAX_BYTES, b"%s.tmp", d.path)
    r.fd = file_open(d.loop, aside, O_RDWR | O_CREAT | O_TRUNC)
    if r.fd < 0:
        free(r)
        return -1
    if dedup_write_head(d, aside, r.fd):
        close_failed(r.fd)
        free(r)
        return -1
    r.job.step = dedup_rewrite_step
    r.dedup = d
    r.size = DEDUP_SLOT
    d.rewrite = r
    loop_add_job(d.loop, &r.job)
    return 0


cdef int dedup_append(dedup_t* d, u32 before) noexcept nogil:
    """Add the keys that are not in the file, up to that before entry `before`. 0, or -1 with
    errno."""
    cdef i64 size
    if d.fd < 0:
        d.fd = file_open(d.loop, d.path, O_RDWR)
        if d.fd < 0:
            return -1
    if d.is_covered and dedup_uncover(d):
        return -1
    size = dedup_write_some(d, d.path, d.fd, d.unwritten, before, d.file_size)
    if size < 0:
        return -1               # what it left is written over, or ignored by who reads it
    d.file_size = size
    return 0


cdef int dedup_write_new(dedup_t* d, u32 before, u64 n_kept) noexcept nogil:
    """Bring the keys up to that before entry `before` into the file, of which n_kept belong there.

    A file that holds more than twice the keys that count is written anew: in portions, if they are
    many, while they are added to the old one. 0, or -1 with errno."""
    cdef u64 n_slots = <u64>d.file_size // DEDUP_SLOT + n_kept
    if n_kept == 0 or d.path == NULL:
        return 0
    if d.file_size == 0 and dedup_replace(d, 0, False):
        return -1
    if n_slots > 2 * <u64>d.n + DEDUP_SLACK and d.rewrite == NULL:
        if d.n <= DEDUP_AT_ONCE or d.loop == NULL:
            return dedup_replace(d, dedup_oldest(d), False)
        if dedup_begin_rewrite(d):
            return -1
    return dedup_append(d, before)


cdef int dedup_flush(dedup_t* d) noexcept nogil:
    """Write the keys noted since the last time, whose messages are in their files; of many, as when
    the disk has refused them for long, a portion.

    0, or -1: they stay new, d.error says why. Cost: a pwrite per 256 keys."""
    cdef u32 at = d.unwritten, n = 0
    cdef u64 n_kept = 0
    cdef int error = 0
    while at and n < DEDUP_AT_ONCE:
        n_kept += d.entries[at].is_kept
        at = d.entries[at].newer
        n += 1
    if dedup_write_new(d, at, n_kept):
        error = errno if errno else EIO
    dedup_note_error(d, error)
    if error:
        return -1
    while d.unwritten != at:
        d.entries[d.unwritten].is_new = False
        d.unwritten = d.entries[d.unwritten].newer
    if d.loop != NULL and d.loop.n_stores > d.loop.keep_files:
        dedup_close_file(d)
    return 0


cdef void loop_flush_dedups(loop_t* loop) noexcept nogil:
    """Write the keys of the messages that this tick has written: of none while one of them waits
    for room. What fails, or is left, has its turn in the next tick."""
    cdef dedup_t* d = loop.dirty_dedups
    cdef dedup_t* following
    if loop.stuck != NULL:
        return
    loop.dirty_dedups = NULL
    while d != NULL:
        following = d.dirty_next
        d.is_dirty = dedup_flush(d) != 0 or d.unwritten != 0
        if d.is_dirty:
            d.dirty_next = loop.dirty_dedups
            loop.dirty_dedups = d
        d = following


# ---- reading -------------------------------------------------------------------------------------

cdef bint dedup_is_covered(const u8* p, u64 n) noexcept nogil:
    """Whether a file, with a head, is what an orderly stop has left."""
    cdef u64 covered = le32(p + DEDUP_COVERED_AT)
    if le32(p) == DEDUP_OLD_VERSION:
        return p[<u32>DEDUP_COVERED_AT] == 1
    return covered != 0 and covered * DEDUP_SLOT == n


cdef bint dedup_was_killed(const dedup_t* d, const u8* p, u64 n) noexcept nogil:
    """Whether a file was written in this boot by a broker that did not stop in order: the messages
    of its keys may be on disk or not yet."""
    return (n >= DEDUP_SLOT and DEDUP_OLD_VERSION <= le32(p) <= DEDUP_VERSION
            and not dedup_is_covered(p, n) and le64(p + DEDUP_BOOT_AT) == d.boot)


cdef i64 dedup_load_head(dedup_t* d, const u8* p, u64 n) noexcept nogil:
    """Begin to take over a file of n bytes, to which the next keys are added. 0, or a
    dedup_refusal: then the next key replaces it."""
    cdef bint is_covered
    if n < DEDUP_SLOT or not DEDUP_OLD_VERSION <= le32(p) <= DEDUP_VERSION:
        return DEDUP_NO_LOG
    is_covered = dedup_is_covered(p, n)
    if not is_covered and le64(p + DEDUP_BOOT_AT) != d.boot:
        return DEDUP_OTHER_BOOT
    d.file_size = <i64>(n - n % DEDUP_SLOT)
    d.is_covered = is_covered
    d.salt[0] = le64(p + 16)
    d.salt[1] = le64(p + 24)
    return 0


cdef i64 dedup_load_keys(dedup_t* d, const u8* p, u64 n) noexcept nogil:
    """Take over the keys in n bytes of slots. Returns how many were damaged."""
    cdef u64 key[2]
    cdef i64 n_damaged = 0
    while n >= DEDUP_SLOT:
        if hash_bytes(p, DEDUP_CHECKED, d.salt[0]) != le64(p + DEDUP_CHECKED):
            n_damaged += 1
        elif d.limit:
            key[0] = le64(p)
            key[1] = le64(p + 8)
            dedup_insert(d, key, <i64>le64(p + 16))
        p += DEDUP_SLOT
        n -= DEDUP_SLOT
    return n_damaged + (n != 0)


cdef void dedup_load_end(dedup_t* d, const u8* p) noexcept nogil:
    """All keys of the file at p are there: one of the old version is written anew."""
    if le32(p) == DEDUP_OLD_VERSION and (d.path == NULL
                                         or dedup_replace(d, dedup_oldest(d), True)):
        d.file_size = 0
        d.unwritten = dedup_oldest(d)


# ---- the end -------------------------------------------------------------------------------------

cdef int dedup_finish(dedup_t* d) noexcept nogil:
    """Write and sync the file, and note that this is all. 0, or -1 with errno."""
    if d.path == NULL:
        return 0
    while d.unwritten:
        if dedup_flush(d):
            set_errno(d.error)
            return -1
    if d.rewrite != NULL:
        dedup_end_rewrite(d)        # what is written aside is written over by the next one
    if d.file_size == 0 or d.is_covered:
        return 0                    # there are no keys, or nothing has come in this life
    if d.fd < 0:
        d.fd = file_open(d.loop, d.path, O_RDWR)
        if d.fd < 0:
            return -1
    if file_cut(d.loop, d.path, d.fd, d.file_size):     # a write that failed may have left more
        return -1
    return dedup_cover(d, d.path, d.fd, d.file_size)


cdef void dedup_release(dedup_t* d) noexcept nogil:
    """Let go of memory, which the loop frees in portions, and of descriptors; the file stays as it
    is. Idempotent."""
    cdef dedup_t** at
    if d.rewrite != NULL:
        dedup_end_rewrite(d)
    if d.is_dirty:
        at = &d.loop.dirty_dedups
        while at[0] != d:
            at = &at[0].dirty_next
        at[0] = d.dirty_next
        d.is_dirty = False
    if d.cap:
        d.budget.used -= d.cap * sizeof(dedup_entry_t) + <u64>d.cap_buckets * sizeof(u32)
    if d.loop != NULL:
        loop_free(d.loop, <u8*>d.entries, d.cap * sizeof(dedup_entry_t), 0)
        loop_free(d.loop, <u8*>d.buckets, <u64>d.cap_buckets * sizeof(u32), 0)
    else:
        free(d.entries)
        free(d.buckets)
    d.entries = NULL
    d.buckets = NULL
    d.n = d.cap = d.n_used = d.free = d.limit = d.n_buckets = d.cap_buckets = d.mask = 0
    d.unwritten = 0
    dedup_close_file(d)
