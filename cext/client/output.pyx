# Output: bytes on their way to the peer, gathered from many places and taken in one piece.
#
# A large piece is taken with the memory that it was gathered in, and the next one is gathered in
# another: nothing is copied, and a transport may keep it for as long as the peer takes nothing.
#
# Threads: it belongs to the thread of the loop.

from cpython.buffer cimport PyBuffer_FillInfo

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8          # type, channel, size and end

cdef enum:
    PIECE_LEAST = 65536         # less is copied
    PIECE_MOST = 1 << 20        # memory of a piece that the next one is given at once


@cython.final
cdef class Piece:
    """Frames in the memory that they were gathered in."""

    cdef buf_t b

    def __dealloc__(self):
        buf_free(&self.b)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.b.p, self.b.n, True, flags)


@cython.final
cdef class Output:
    """What is to be sent next on one connection."""

    cdef buf_t b

    def __dealloc__(self):
        buf_free(&self.b)

    def __len__(self):
        return self.b.n

    def put(self, bytes data):
        """Append frames."""
        put(&self.b, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def rest(self):
        """Nothing happens for now: give back the memory that nothing is in."""
        if not self.b.n:
            buf_free(&self.b)

    def take(self):
        """Return all that was gathered, and forget it."""
        cdef Piece piece
        if self.b.n < PIECE_LEAST:
            data = buf_bytes(&self.b)
            self.b.n = 0
            return data
        piece = Piece.__new__(Piece)
        piece.b = self.b
        memset(&self.b, 0, sizeof(buf_t))
        if piece.b.cap <= PIECE_MOST:
            buf_room(&self.b, piece.b.cap)  # it need not grow step by step; without memory it may
        return memoryview(piece)


cdef int put_settle(buf_t* b, int channel, u16 method, u64 tag, u8 bits) except -1:
    """basic.ack, basic.nack or basic.reject: they differ in their number and their bits."""
    cdef u8[21] frame
    frame[0] = FRAME_METHOD
    put_be16(frame + 1, <u16>channel)
    put_be32(frame + 3, 13)
    put_be16(frame + 7, 60)
    put_be16(frame + 9, method)
    put_be64(frame + 11, tag)
    frame[19] = bits
    frame[20] = FRAME_END
    return put(b, frame, 21)
