# Touched: at which position each path was changed last, by a hash of the path.
#
# A node that comes back has all that was changed before the position it had: files that nobody has
# touched since are the same on both. Two paths with one hash count as one: what was not changed is
# compared in vain, then. When there are too many, all is forgotten, and known from here on.
# Kept in parts, so that no change waits for more than a small table that grows.
# A follower knows the same of places, by the first two names of a path: the directory of a queue
# with all that is in it, or what is beside those. Whoever has read them beforehand asks, from
# another thread.
# Called by feed.pyx, follow.pyx and door.pyx.

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* lock, const void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* lock)
    int pthread_mutex_trylock(pthread_mutex_t* lock)
    int pthread_mutex_unlock(pthread_mutex_t* lock)
    int pthread_mutex_destroy(pthread_mutex_t* lock)

cdef enum:
    TOUCHED_PARTS = 256
    TOUCHED_FIRST = 64          # places of a part
    TOUCHED_MOST = 8192         # of one part: 1.5 million paths, 32 MiB

cdef struct touch_t:
    u64 hash                    # 0 = the place is free
    u64 position                # behind the last change

cdef struct touched_part_t:
    touch_t* places
    u32 cap                     # a power of two, 0 = there are none
    u32 count

cdef struct touched_t:
    u64 since                   # changes behind this position are known
    touched_part_t parts[TOUCHED_PARTS]


cdef struct places_t:
    pthread_mutex_t lock        # of all below
    touched_t touched


cdef inline u64 path_hash(const char* path, u64 n) noexcept nogil:
    """FNV-1a, with its upper bits mixed into the lower ones; never 0."""
    cdef u64 h = <u64>0xcbf29ce484222325
    cdef u64 i
    for i in range(n):
        h = (h ^ <u8>path[i]) * <u64>0x100000001b3
    h ^= h >> 29
    return h | 1


cdef inline touch_t* touched_place(const touched_part_t* part, u64 hash) noexcept nogil:
    """Where a hash is, or would be."""
    cdef u32 i = <u32>(hash >> 9) & (part.cap - 1)
    while part.places[i].hash != 0 and part.places[i].hash != hash:
        i = (i + 1) & (part.cap - 1)
    return &part.places[i]


cdef void touched_forget(touched_t* t, u64 position) noexcept nogil:
    """Know only what comes behind a position."""
    cdef int i
    for i in range(TOUCHED_PARTS):
        free(t.parts[i].places)
        t.parts[i].places = NULL
        t.parts[i].cap = t.parts[i].count = 0
    t.since = position


cdef bint touched_grow(touched_part_t* part) noexcept nogil:
    """Make room in a part. False: there is none."""
    cdef touched_part_t grown
    cdef u32 i
    grown.cap = part.cap * 2 if part.cap else TOUCHED_FIRST
    grown.count = part.count
    if grown.cap > TOUCHED_MOST:
        return False
    grown.places = <touch_t*>calloc(grown.cap, sizeof(touch_t))
    if grown.places == NULL:
        return False
    for i in range(part.cap):
        if part.places[i].hash:
            touched_place(&grown, part.places[i].hash)[0] = part.places[i]
    free(part.places)
    part[0] = grown
    return True


cdef void touched_note(touched_t* t, const char* path, u64 n, u64 position) noexcept nogil:
    """A path is changed; position: behind the change."""
    cdef u64 hash = path_hash(path, n)
    cdef touched_part_t* part = &t.parts[hash >> 56]
    cdef touch_t* place
    if 4 * (part.count + 1) > 3 * part.cap and not touched_grow(part):
        touched_forget(t, position)
        return
    place = touched_place(part, hash)
    part.count += place.hash == 0
    place.hash, place.position = hash, position


cdef bint touched_is_same(const touched_t* t, const char* path, u64 n, u64 position) noexcept nogil:
    """Whether nothing behind a position has changed a path, or a directory that leads to it."""
    cdef const touched_part_t* part
    cdef u64 hash
    if position < t.since:
        return False
    while n:
        hash = path_hash(path, n)
        part = &t.parts[hash >> 56]
        if part.cap and touched_place(part, hash).position > position:
            return False
        while n and path[n - 1] != c"/":
            n -= 1
        n -= n != 0
    return True


cdef inline u64 place_length(const char* path, u64 n) noexcept nogil:
    """How much of a path names the place of what it leads to."""
    cdef u64 i
    cdef int names = 1
    for i in range(n):
        if path[i] == c"/":
            if names == 2:
                return i
            names += 1
    return n


cdef bint places_are_same(places_t* p, const char* path, u64 n, u64 position) noexcept nogil:
    """Whether nothing behind a position has changed what is at a place, nor its directory."""
    cdef bint is_same
    pthread_mutex_lock(&p.lock)
    is_same = touched_is_same(&p.touched, path, n, position)
    pthread_mutex_unlock(&p.lock)
    return is_same


cdef void places_forget(places_t* p, u64 position) noexcept nogil:
    """Know only what comes behind a position."""
    pthread_mutex_lock(&p.lock)
    touched_forget(&p.touched, position)
    pthread_mutex_unlock(&p.lock)
