# Journal: the notes of changes that nobody has taken yet, one behind the other.
#
# Any thread notes; the loop's takes all there are, which are those up to that moment. A piece that
# follows the one before it in the same file makes that longer. What has more notes than it may hold
# is overrun: it takes none any more, and whoever reads it begins anew.
# Called by who changes files; read by the door. Source: docs/backup.md.

cdef enum:
    JOURNAL_HEAD = 21           # kind:u8 n:u16 n_target:u16 start:i64 end:i64, the path, the target

cdef struct journal_t:
    pthread_mutex_t lock
    u8* p
    u64 n
    u64 cap
    u64 most                    # bytes
    u64 last                    # where the last note begins
    bint is_overrun


cdef void journal_note(void* owner, u64 position, u8 kind, const char* path, const char* target,
                       int fd, const u8* data, i64 start, i64 end) noexcept nogil:
    """Keep a note. An observe_t."""
    cdef journal_t* j = <journal_t*>owner
    pthread_mutex_lock(&j.lock)
    if not j.is_overrun and not journal_prolong(j, kind, path, start, end):
        j.is_overrun = journal_put(j, kind, path, target, start, end) != 0
    pthread_mutex_unlock(&j.lock)


cdef bint journal_prolong(journal_t* j, u8 kind, const char* path, i64 start,
                          i64 end) noexcept nogil:
    """Make the last note longer, if it is of the bytes before these in the same file."""
    cdef u8* p = j.p + j.last
    cdef size_t n
    if kind != CHANGE_APPEND or j.n == 0 or p[0] != kind or <i64>le64(p + 13) != start:
        return False
    n = strlen(path)
    if le16(p + 1) != n or memcmp(p + JOURNAL_HEAD, path, n):
        return False
    put_le64(p + 13, <u64>end)
    return True


cdef int journal_put(journal_t* j, u8 kind, const char* path, const char* target, i64 start,
                     i64 end) noexcept nogil:
    """Write a note behind the others. 0, or -1 when there are too many."""
    cdef size_t n = strlen(path), n_target = strlen(target) if target != NULL else 0
    cdef u64 size = JOURNAL_HEAD + n + n_target
    cdef u64 cap = j.cap if j.cap else 4096
    cdef u8* p
    if n >= PATH_MAX_BYTES or n_target >= PATH_MAX_BYTES or j.n + size > j.most:
        return -1
    while cap < j.n + size:
        cap *= 2
    if cap != j.cap:
        p = <u8*>realloc(j.p, cap)
        if p == NULL:
            return -1
        j.p, j.cap = p, cap
    j.last = j.n
    j.n += note_put(j.p + j.n, kind, path, n, target, n_target, start, end)
    return 0
