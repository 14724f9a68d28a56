# Output: bytes on their way to the peer, gathered from many places and taken in one piece.
#
# Threads: it belongs to the thread of the loop.

cdef enum:
    FRAME_METHOD = 1
    FRAME_HEADER = 2
    FRAME_BODY = 3
    FRAME_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8          # type, channel, size and end


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
        data = buf_bytes(&self.b)
        if self.b.cap > 1 << 20:
            buf_free(&self.b)   # one large message must not hold its memory for ever
        self.b.n = 0
        return data


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
