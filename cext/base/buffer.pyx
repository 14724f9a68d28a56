# Buffer: memory that grows while text or a column is written to it.
#
# In any thread without the GIL. It doubles when it is full, so that a byte is copied about once
# more at most. Shared with the compiled module of Spark's tasks, where a batch starts with the
# sizes of the one before.

cdef enum:
    BUFFER_LEAST = 256
    # Results of everything below that can fail.
    NO_MEMORY = -2

cdef struct buf_t:
    u8* p
    u64 n                       # bytes used
    u64 cap


cdef int buf_grow(buf_t* b, u64 more) noexcept nogil:
    cdef u64 cap = b.cap * 2
    cdef u8* grown
    if cap < b.n + more:
        cap = b.n + more
    if cap < BUFFER_LEAST:
        cap = BUFFER_LEAST
    grown = <u8*>realloc(b.p, cap)
    if grown == NULL:
        return NO_MEMORY
    b.p = grown
    b.cap = cap
    return 0


cdef inline int buf_room(buf_t* b, u64 more) noexcept nogil:
    """Make room for so many bytes behind those used. 0, or NO_MEMORY."""
    if b.cap - b.n >= more:
        return 0
    return buf_grow(b, more)


cdef inline int buf_put(buf_t* b, const void* p, u64 n) noexcept nogil:
    if buf_room(b, n):
        return NO_MEMORY
    if n:                       # nothing is put at NULL
        memcpy(b.p + b.n, p, n)
    b.n += n
    return 0


cdef inline int buf_put_byte(buf_t* b, u8 byte) noexcept nogil:
    if buf_room(b, 1):
        return NO_MEMORY
    b.p[b.n] = byte
    b.n += 1
    return 0


cdef void buf_free(buf_t* b) noexcept nogil:
    free(b.p)
    b.p = NULL
    b.n = b.cap = 0
