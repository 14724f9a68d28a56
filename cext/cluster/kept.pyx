# Kept: large appends of which the ring has the place in a file instead of the bytes.
#
# What is behind the head of such an entry in the ring's memory means nothing: senders have the
# kernel take it from the file, without a copy. Only what was appended to messages of a segment is
# kept so: nothing else comes to stand there. A record in it may become none, and one that was acked
# may get a hole, but not before all copies that may lead have its ack, which the hole waits for. A
# file that is removed is held by its descriptor, which whoever sends of it has a share in: nothing
# waits for a sender that waits for the disk.
# Called by feed.pyx and peer.pyx, under the feed's lock.
from posix.fcntl cimport fcntl
from posix.stat cimport fstat, struct_stat

cdef extern from "<fcntl.h>" nogil:
    enum:
        F_DUPFD_CLOEXEC

cdef extern from "<string.h>" nogil:
    const char* strrchr(const char* text, int c)
    int strncmp(const char* a, const char* b, size_t n)

cdef enum:
    KEPT_LEAST = 16384          # bytes of an append that is kept so
    KEPT_FILES = 64             # at once; what is in others is copied
    KEPT_MOST = 8192            # appends

cdef struct kept_file_t:
    int fd                      # of this table alone
    u32 n_uses                  # appends that are kept by it and peers that send of it; 0 = free
    u64 device
    u64 inode

cdef struct kept_t:             # one append
    u64 position                # of its first byte
    u64 n
    i64 at                      # in the file
    u32 file

cdef struct keeper_t:
    kept_file_t files[KEPT_FILES]
    kept_t* kept                # a ring of them, by rising positions
    u32 first
    u32 count


cdef bint is_messages(const char* path) noexcept nogil:
    """Whether a file has messages of a segment."""
    cdef const char* slash = strrchr(path, c"/")
    return slash != NULL and strncmp(slash, b"/msgs.", 6) == 0


cdef inline kept_t* keeper_at(const keeper_t* k, u32 i) noexcept nogil:
    return &k.kept[(k.first + i) % KEPT_MOST]


cdef int keeper_file(keeper_t* k, int fd) noexcept nogil:
    """The place of a file in the table, which may be new. -1: there is none, or it is no file."""
    cdef struct_stat found
    cdef int i, free_ = -1
    if fstat(fd, &found):
        return -1
    for i in range(KEPT_FILES):
        if k.files[i].n_uses == 0:
            free_ = i
        elif k.files[i].inode == found.st_ino and k.files[i].device == found.st_dev:
            return i
    if free_ < 0:
        return -1
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 3)
    if fd < 0:
        return -1
    k.files[free_].fd = fd
    k.files[free_].device, k.files[free_].inode = found.st_dev, found.st_ino
    return free_


cdef bint keeper_keep(keeper_t* k, u64 position, const char* path, int fd, i64 at,
                      u64 n) noexcept nogil:
    """Keep an append by its place in the file. False: it has to be copied."""
    cdef kept_t* one
    cdef int file
    if n < KEPT_LEAST or k.count == KEPT_MOST or not is_messages(path):
        return False
    if k.kept == NULL:
        k.kept = <kept_t*>malloc(KEPT_MOST * sizeof(kept_t))
        if k.kept == NULL:
            return False
    file = keeper_file(k, fd)
    if file < 0:
        return False
    k.files[file].n_uses += 1
    one = keeper_at(k, k.count)
    one.position, one.n, one.at, one.file = position, n, at, <u32>file
    k.count += 1
    return True


cdef void keeper_let_go(keeper_t* k, u32 file) noexcept nogil:
    """One use of a file less. It may be the last of one that was removed, and large."""
    k.files[file].n_uses -= 1
    if k.files[file].n_uses == 0:
        close_behind(k.files[file].fd)


cdef void keeper_drop(keeper_t* k, u64 first) noexcept nogil:
    """Let go of what ends before a position."""
    cdef kept_t* one
    while k.count:
        one = keeper_at(k, 0)
        if one.position + one.n > first:
            return
        keeper_let_go(k, one.file)
        k.first = (k.first + 1) % KEPT_MOST
        k.count -= 1


cdef const kept_t* keeper_next(const keeper_t* k, u64 position) noexcept nogil:
    """The first append that ends behind a position, NULL: there is none."""
    cdef u32 low = 0, high = k.count, middle
    while low < high:
        middle = (low + high) // 2
        if keeper_at(k, middle).position + keeper_at(k, middle).n > position:
            high = middle
        else:
            low = middle + 1
    return keeper_at(k, low) if low < k.count else NULL


cdef void keeper_close(keeper_t* k) noexcept nogil:
    """Let go of all."""
    keeper_drop(k, <u64>-1)
    free(k.kept)
    k.kept = NULL
