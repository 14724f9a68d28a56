# Arrow memory: what a buffer holds then belongs to Arrow, uncopied.

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
