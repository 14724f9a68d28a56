# arrow_confirms: what the broker says about published messages; included by arrow.pyx.
#
# `Confirms` cuts the frames that come, counts basic.ack and basic.nack, skips the content of
# returned messages and hands every other method to Python. It holds a partial frame (frame_max) and
# a byte for each message of its window, nothing else.

cdef enum:
    CONFIRM_ACK = 0x003C0050
    CONFIRM_NACK = 0x003C0078
    CONFIRM_SIZE = 13           # class and method u16 each, tag u64, bits u8
    # What became of a message that is not at the low end of the window yet.
    TAG_OPEN = 0
    TAG_DONE = 1

cdef struct confirms_t:
    u8 *done                    # ring by tag
    u64 mask
    u64 low                     # the oldest unconfirmed tag
    u64 next                    # the tag of the next message
    i64 confirmed
    i64 nacked
    u64 first_nacked            # tag, 0 = none

cdef struct cut_t:
    int kind
    u16 channel
    i64 size
    const u8 *payload


# hot
cdef inline int cut_frame(const u8 *p, i64 n, i64 frame_max, cut_t *f) noexcept nogil:
    """Cut a frame off: 1 = done, 0 = more bytes are needed, -1 = it breaks the protocol."""
    if n < FRAME_OVERHEAD:
        return 0
    f.kind = p[0]
    f.channel = be16(p + 1)
    f.size = be32(p + 3)
    f.payload = p + 7
    if f.size > frame_max - FRAME_OVERHEAD:
        return -1
    if n < f.size + FRAME_OVERHEAD:
        return 0
    return 1 if p[f.size + 7] == FRAME_END else -1


# hot
cdef int confirms_note(confirms_t *c, cut_t *f, bint is_nack) noexcept nogil:
    """Count what a confirm covers: with `multiple` all up to its tag, 0 = all. -1 = not ours."""
    cdef u64 tag, first, at
    cdef i64 n = 0
    if f.size != CONFIRM_SIZE:
        return -1
    tag = be64(f.payload + 4)
    first = tag
    if f.payload[12] & 1:
        first = c.low
        if tag == 0:
            tag = c.next - 1
    if tag >= c.next or tag == 0:
        return -1
    for at in range(max(first, c.low), tag + 1):
        if c.done[at & c.mask] == TAG_OPEN:
            c.done[at & c.mask] = TAG_DONE
            n += 1
            if is_nack and (c.first_nacked == 0 or at < c.first_nacked):
                c.first_nacked = at
    while c.low < c.next and c.done[c.low & c.mask] == TAG_DONE:
        c.done[c.low & c.mask] = TAG_OPEN
        c.low += 1
    if is_nack:
        c.nacked += n
    else:
        c.confirmed += n
    return 0


cdef class Confirms:
    """Counts the confirms of one channel that publishes.

    Args: window: the most messages that may be unconfirmed; frame_max: of the connection, bytes.
    """

    cdef confirms_t con
    cdef i64 frame_max
    cdef i64 window
    cdef bytes rest             # of a frame that has not come whole

    def __cinit__(self, *, i64 window, i64 frame_max=131072):
        if window < 1 or window > 1 << 30 or frame_max < 4096:
            raise ValueError("a window is of 1 to 2**30 messages, a frame of 4096 bytes or more")
        self.window, self.frame_max, self.rest = window, frame_max, b""
        self.con.low = self.con.next = 1
        # Tags between the oldest unconfirmed one and the newest: more than the window when later
        # ones are confirmed first, but `room` never lets them be more than the ring.
        self.con.mask = (1 << (<object>(2 * window)).bit_length()) - 1
        self.con.done = <u8 *>calloc(self.con.mask + 1, 1)
        if self.con.done == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.con.done)

    def sent(self, i64 messages):
        """Note that this many more were published; at most `room`."""
        if messages > self.room:
            raise ValueError("more messages than the window has room for")
        self.con.next += <u64>messages

    def feed(self, const u8[::1] data):
        """Take bytes of the connection; return the methods that are no confirms.

        Returns: (channel, payload) of each. Raises: ValueError for what AMQP does not allow here.
        """
        cdef const u8[::1] view = data
        cdef const u8 *p
        cdef i64 at = 0, n
        cdef cut_t frame
        cdef int cut = 0
        methods = []
        if self.rest:
            joined = self.rest + bytes(data)
            view = joined
        n = view.shape[0]
        p = &view[0] if n else NULL
        while n:
            cut = self.confirm(p, n, &at, &frame)
            if cut <= 0:
                break
            if frame.kind == 1:
                methods.append((frame.channel, (<const char *>frame.payload)[:frame.size]))
        if cut < 0:
            raise ValueError("the broker sent what AMQP does not allow here")
        self.rest = bytes(view[at:]) if at < n else b""
        return methods

    cdef int confirm(self, const u8 *p, i64 n, i64 *at, cut_t *frame) noexcept:
        """Count confirms up to a frame that is none: 1 = in `frame`, 0 = no more, -1 = bad."""
        cdef int cut
        cdef u32 method
        with nogil:
            while True:
                cut = cut_frame(p + at[0], n - at[0], self.frame_max, frame)
                if cut <= 0:
                    return cut
                at[0] += frame.size + FRAME_OVERHEAD
                if frame.kind != 1 or frame.size < 4:
                    return 1
                method = be32(frame.payload)
                if method != CONFIRM_ACK and method != CONFIRM_NACK:
                    return 1
                if confirms_note(&self.con, frame, method == CONFIRM_NACK) < 0:
                    return -1

    @property
    def unconfirmed(self):
        """Messages that the broker has not answered for."""
        return <i64>(self.con.next - 1) - self.con.confirmed - self.con.nacked

    @property
    def room(self):
        """How many messages may be published now."""
        cdef i64 spread = <i64>(self.con.next - self.con.low)
        return min(self.window - <i64>self.unconfirmed, <i64>self.con.mask + 1 - spread)

    @property
    def confirmed(self):
        """Messages that the broker has taken over."""
        return self.con.confirmed

    @property
    def nacked(self):
        """Messages that the broker refused."""
        return self.con.nacked

    @property
    def first_nacked(self):
        """Number of the first refused message, from 0; None without one."""
        return self.con.first_nacked - 1 if self.con.first_nacked else None
