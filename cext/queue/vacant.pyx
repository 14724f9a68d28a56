# The store of all queues to which nothing has come: of many queues most never hold a message.
#
# There is one for each segment size, for queues that are durable and for others. What reads an
# empty store works without knowing; who is about to write asks queue_own_store. Each stands in a
# page of its own to which the processor lets nobody write: what one queue did to it, all would
# have. Source: docs/decisions/0153-queues-without-messages-share-a-store.md.

cdef extern from "<sys/mman.h>" nogil:
    enum:
        PROT_READ
        PROT_WRITE
        MAP_PRIVATE
        MAP_ANONYMOUS
    void* MAP_FAILED
    void* mmap(void* at, size_t n, int protection, int flags, int fd, long offset)
    int mprotect(void* at, size_t n, int protection)
    int munmap(void* at, size_t n)


cdef store_t* vacant_store(loop_t* loop, u32 segment_size, bint is_durable) noexcept nogil:
    """The one of this kind, made when it is first asked for; NULL when out of memory. It lives as
    long as the loop."""
    cdef vacant_t* v = loop.vacants
    cdef void* page
    while v != NULL:
        if v.segment_size == segment_size and v.store.is_durable == is_durable:
            return &v.store
        v = v.next
    page = mmap(NULL, sizeof(vacant_t), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    if page == MAP_FAILED:
        return NULL
    v = <vacant_t*>page
    store_init(&v.store, loop, NULL, NULL, segment_size, is_durable)
    v.store.is_vacant = True
    v.segment_size = segment_size
    v.next = loop.vacants
    if mprotect(page, sizeof(vacant_t), PROT_READ):
        munmap(page, sizeof(vacant_t))
        return NULL
    loop.vacants = v
    return &v.store


cdef void vacants_free(loop_t* loop) noexcept nogil:
    """The loop has no queues any more."""
    cdef vacant_t* v
    while loop.vacants != NULL:
        v = loop.vacants
        loop.vacants = v.next
        munmap(v, sizeof(vacant_t))
