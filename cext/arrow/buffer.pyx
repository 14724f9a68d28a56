# Arrow buffer: memory that grows while a batch is filled and then belongs to Arrow, uncopied.
#
# Used by all arrow_*.pyx, in any thread without the GIL. Doubles when it is full, so that a byte is
# copied about once more at most; a batch starts with the sizes of the one before.

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


@cython.final
cdef class Memory:
    """Memory of a finished buffer, for pyarrow; freed with the last array that uses it."""

    cdef u8* p
    cdef Py_ssize_t n

    def __dealloc__(self):
        free(self.p)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.p, self.n, True, flags)


cdef Memory memory_of(u8** p, u64 n):
    """Hand over malloc'ed memory of at least one byte, of which n bytes count."""
    cdef Memory memory = Memory.__new__(Memory)
    memory.p = p[0]
    memory.n = <Py_ssize_t>n
    p[0] = NULL
    return memory


cdef Memory buf_release(buf_t* b):
    """Hand over what is in b; b is empty afterwards."""
    if b.p == NULL and buf_grow(b, 1):
        raise MemoryError
    memory = memory_of(&b.p, b.n)
    b.n = b.cap = 0
    return memory
