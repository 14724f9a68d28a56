# Table text: a field table as JSON, piece by piece, for whoever answers in JSON.

cdef enum:
    PIECE_UNITS = 10000         # of 10 ns


@cython.final
cdef class TableText:
    """The JSON text of a field table, as an iterator of pieces that take some 0.1 ms each.

    Args: `content`: the table without its length. Raises ValueError where it is no table."""
    cdef bytes content
    cdef table_json_t t
    cdef buf_t out
    cdef bint is_over

    def __cinit__(self, bytes content not None):
        self.content = content
        memset(&self.out, 0, sizeof(buf_t))
        if table_json_begin(&self.t, &self.out, <const u8*>PyBytes_AS_STRING(content),
                            <u64>PyBytes_GET_SIZE(content)):
            raise MemoryError()

    def __dealloc__(self):
        buf_free(&self.out)

    def __iter__(self):
        return self

    def __next__(self) -> bytes:
        cdef int rc
        if self.is_over:
            raise StopIteration
        with nogil:
            rc = table_json_some(&self.t, &self.out, PIECE_UNITS)
        if rc == NO_MEMORY:
            raise MemoryError()
        self.is_over = rc != JSON_MORE
        if rc == JSON_BAD:
            raise ValueError("no field table")
        piece = PyBytes_FromStringAndSize(<char*>self.out.p, <Py_ssize_t>self.out.n)
        self.out.n = 0
        return piece
