# Ring: the last changes of a node's files, one behind the other, as they go from node to node.
#
# A position is the number of bytes of changes since the beginning of the cluster; all nodes have
# the same bytes at the same positions, so one that leads goes on where it was as a follower. The
# memory is mapped twice in a row: what is in it is in one piece wherever it begins.
# Called by feed.pyx and follow.pyx. Source: docs/clustering.md.
#
#     entry = size:u32 kind:u8 0:u8 n_path:u16 n_target:u16 0:u16 0:u32 start:i64 end:i64
#             path target data                               (little-endian; the size is of all)
#
# The start of a mark is the position up to which the disks of all nodes in sync have all (or 0).
from posix.mman cimport (
    MAP_ANONYMOUS, MAP_FAILED, MAP_FIXED, MAP_PRIVATE, MAP_SHARED, PROT_NONE, PROT_READ, PROT_WRITE,
    mmap, munmap,
)

cdef extern from "<sys/mman.h>" nogil:
    int memfd_create(const char* name, unsigned int flags)
    enum:
        MFD_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    ssize_t c_pread "pread"(int fd, void* buf, size_t n, i64 at)
    int c_resize "ftruncate"(int fd, i64 size)

cdef enum:
    ENTRY_HEAD = 32
    ENTRY_PIECE = 262144        # of data in one entry; what is more goes in several
    ENTRY_PATH = 4096           # bytes of a path
    ENTRY_MOST = ENTRY_HEAD + 2 * ENTRY_PATH + ENTRY_PIECE
    ENTRY_MARK = 32             # a kind beside those of changes: say when all before is on disk

cdef extern from *:
    """
    #define reads_before() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    #define writes_before() __atomic_thread_fence(__ATOMIC_RELEASE)
    #define position_tell(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define position_hear(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    """
    void reads_before() nogil   # what is read above it was read before what is read below
    void writes_before() nogil  # the same of what is written
    # Who hears of a position in another thread sees all that was done before it was told.
    void position_tell(u64* p, u64 v) nogil
    u64 position_hear(u64* p) nogil

cdef struct ring_t:
    u8* base
    u64 size                    # a power of two
    u64 first                   # position from which on there is something
    u64 head                    # position behind the last entry
    touched_t* touched          # what was changed when, for longer than the ring has it
    places_t* places            # and at which places, by a follower


cdef int ring_open(ring_t* r, u64 size, u64 position) except -1:
    """Map the memory. Raises OSError."""
    cdef int fd = memfd_create(b"lavinmq-cluster", MFD_CLOEXEC)
    cdef u8* base
    if fd < 0 or c_resize(fd, <i64>size):
        raise OSError(errno, os.strerror(errno))
    base = <u8*>mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if base == <u8*>MAP_FAILED:
        c_close(fd)
        raise OSError(errno, os.strerror(errno))
    for at in (0, size):
        if mmap(base + <u64>at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                0) == MAP_FAILED:
            munmap(base, 2 * size)
            c_close(fd)
            raise OSError(errno, os.strerror(errno))
    c_close(fd)
    r.touched = <touched_t*>calloc(1, sizeof(touched_t))
    r.places = <places_t*>calloc(1, sizeof(places_t))
    if r.touched == NULL or r.places == NULL:
        free(r.touched)
        free(r.places)
        munmap(base, 2 * size)
        raise MemoryError
    pthread_mutex_init(&r.places.lock, NULL)
    r.touched.since = r.places.touched.since = position
    r.base, r.size = base, size
    r.first = r.head = position
    return 0


cdef void ring_close(ring_t* r) noexcept nogil:
    if r.base != NULL:
        munmap(r.base, 2 * r.size)
        r.base = NULL
    if r.touched != NULL:
        touched_forget(r.touched, 0)
        touched_forget(&r.places.touched, 0)
        pthread_mutex_destroy(&r.places.lock)
        free(r.touched)
        free(r.places)
        r.touched = NULL
        r.places = NULL


cdef inline u8* ring_at(const ring_t* r, u64 position) noexcept nogil:
    """Where the bytes from a position on are."""
    return r.base + (position & (r.size - 1))


cdef inline void ring_make_room(ring_t* r, u64 n) noexcept nogil:
    """Give up the oldest, so that n bytes fit behind the head, before anything is written there."""
    if r.head + n - r.first > r.size:
        r.first = r.head + n - r.size
        writes_before()
