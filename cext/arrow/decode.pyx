# Arrow decode: from the bytes that a consumer of a stream receives to rows of `Columns`.
#
# The caller receives into the decoder's one buffer; `run` walks the frames in it without the GIL.
# Deliveries become rows in place: method, properties and a body of one frame are slices of the
# buffer, and only a message that is cut by the end of the buffer, or has a body of several frames,
# is copied aside. Everything else stops the walk and is a frame for Python. Called by
# lavinmq/spark/reading.py; never touches a socket.
#
# The broker tells offset and time of a message in its headers: x-stream-offset, x-stream-timestamp.
# The publisher did not write them, so they are cut out where headers are wanted. Every length
# is checked against the bytes that are there before it is used.
# Source: AMQP 0-9-1 specification, section 4.2; docs/streams.md.
from bytes cimport put_be32, u16
from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.string cimport memcmp, memmove

cdef enum decode_result:
    DECODE_MORE = 0             # all whole frames are used up
    DECODE_FULL = 1             # a batch is full; there may be more frames
    DECODE_FRAME = 2            # something that is no delivery: for Python
    DECODE_END = 3              # the last row of the range, or one behind it, has come
    DECODE_BROKEN = 4           # what came is no AMQP, or no stream

cdef enum decode_error:
    DECODE_FRAME_SIZE = 1
    DECODE_FRAME_END = 2
    DECODE_FRAME_TYPE = 3
    DECODE_METHOD = 4
    DECODE_HEADER = 5
    DECODE_ORDER = 6
    DECODE_BODY = 7
    DECODE_TOO_LARGE = 8
    DECODE_NO_OFFSET = 9
    DECODE_NO_MEMORY = 10

cdef enum decode_want:
    WANT_METHOD = 0
    WANT_HEADER = 1
    WANT_BODY = 2

cdef enum:
    KIND_METHOD = 1
    KIND_HEADER = 2
    KIND_BODY = 3
    KIND_HEARTBEAT = 8
    FRAME_END = 0xCE
    FRAME_OVERHEAD = 8          # type, channel, size and end byte
    DELIVER = 0x003C003C        # class and method
    BASIC_CLASS = 60
    PROPS_AT = 12               # in the payload of a content header
    HEADERS_FLAG = 1 << (HEADERS_BIT - 8)    # in the first byte of the properties
    BODY_MAX = 0x40000000       # bytes of one message: half of what a column of a batch can hold
    BATCH_MAX = 0x10000000      # bytes of a batch: with one more message a column still holds it
    BUFFER_BYTES = 1048576

cdef struct decode_t:
    u8* p                       # the buffer: frames at [at, n)
    u64 at
    u64 n
    u64 frame_at                # of the frame that stopped the walk
    u32 frame_max               # most bytes of payload
    u16 channel
    bint keeps_headers          # as far as they are the publisher's
    int want
    int error
    i64 next                    # rows below are not wanted
    i64 end                     # rows from here on are not wanted
    i64 gap_start               # of this walk: where the first gap of offsets begins and the last
    i64 gap_end                 # one ends; 0 without one
    u64 tag                     # of the latest delivery
    u8* names                   # exchange and routing key, each with its length byte
    u32 names_len
    message_t m                 # the message that is coming
    buf_t kept_names            # of a message whose rest is still to come
    buf_t kept_props
    buf_t body                  # of several frames


cdef inline int decode_fail(decode_t* d, int error) noexcept nogil:
    d.error = error
    return DECODE_BROKEN


# ---- properties ----------------------------------------------------------------------------------

# hot
cdef inline int stream_entry(const u8* key, u64 n) noexcept nogil:
    """Whether this is the key of an entry by the broker: 1 offset, 2 time, 0 neither."""
    if n == 15 and memcmp(key, b"x-stream-offset", 15) == 0:
        return 1
    if n == 18 and memcmp(key, b"x-stream-timestamp", 18) == 0:
        return 2
    return 0


# hot
cdef void props_cut(message_t* m, u8* props, u32 table, u64 at, u64 n) noexcept nogil:
    """Take n bytes at `at` out of the table whose content is at `table`."""
    cdef u32 left = be32(props + table - 4) - <u32>n
    memmove(props + at, props + at + n, m.props_len - at - n)
    m.props_len -= n
    put_be32(props + table - 4, left)
    if left == 0:               # nobody can tell an empty table of the publisher from none
        memmove(props + table - 4, props + table, m.props_len - table)
        m.props_len -= 4
        props[0] &= <u8>~HEADERS_FLAG


# hot
cdef int entries_read(decode_t* d, u8* props, u32 table, u64 left) noexcept nogil:
    """Learn offset and time of a message from its headers. 0, or a decode_error."""
    cdef message_t* m = &d.m
    cdef u64 at = table, key, start, size, n
    cdef int entry, n_offsets = 0
    while left:
        key = at
        if props[key] + <u64>2 > left:
            return DECODE_HEADER
        at += 1 + props[key]
        if field_extent(props + at, left - (at - key), &start, &size):
            return DECODE_HEADER
        entry = stream_entry(props + key + 1, props[key])
        at += start + size
        n = at - key
        left -= n
        if entry == 0:
            continue
        if size != 8:
            return DECODE_NO_OFFSET
        if entry == 1:
            m.offset = <i64>be64(props + at - 8)
            n_offsets += 1
        else:
            m.timestamp_ms = <i64>be64(props + at - 8)
        if d.keeps_headers:
            props_cut(m, props, table, key, n)
            at = key
    return 0 if n_offsets == 1 else DECODE_NO_OFFSET


# hot
cdef int props_read(decode_t* d, u8* props, u32 n) noexcept nogil:
    """Check the properties of a message and learn from them what the broker tells about it.
    0, or a decode_error."""
    cdef message_t* m = &d.m
    cdef props_t found
    cdef int rc
    cdef i64 seconds
    if props_walk(props, n, True, &found) != 1 or found.len != n:
        return DECODE_HEADER
    if found.headers_at == 0:
        return DECODE_NO_OFFSET
    m.props = props
    m.props_len = n
    m.timestamp_ms = COLUMNS_NONE
    seconds = <i64>be64(props + found.stamp_at) if found.stamp_at else COLUMNS_NONE
    rc = entries_read(d, props, found.headers_at + 4, found.headers_len)
    if m.timestamp_ms == COLUMNS_NONE and -MOST_SECONDS <= seconds <= MOST_SECONDS:
        m.timestamp_ms = seconds * 1000
    return rc


# ---- frames --------------------------------------------------------------------------------------

# hot
cdef inline int on_deliver(decode_t* d, u8* p, u32 n) noexcept nogil:
    """A delivery begins: ids, consumer tag, delivery tag, redelivered, exchange, routing key."""
    cdef u32 at = 4, names
    if d.want != WANT_METHOD:
        return decode_fail(d, DECODE_ORDER)
    if n < 5 or n - 5 < <u32>p[4] + 11:
        return decode_fail(d, DECODE_METHOD)
    at += 1 + p[4]
    d.tag = be64(p + at)
    at += 9
    names = at
    at += 1 + p[at]
    if at >= n or p[at] != n - at - 1:
        return decode_fail(d, DECODE_METHOD)
    d.names = p + names
    d.names_len = n - names
    d.want = WANT_HEADER
    return DECODE_MORE


# hot
cdef inline int on_message(decode_t* d, columns_t* columns, const u8* body) noexcept nogil:
    """A message is whole: it becomes a row if it is in the range."""
    cdef message_t* m = &d.m
    cdef int rc
    d.want = WANT_METHOD
    if m.offset >= d.end:
        return DECODE_END
    if m.offset < d.next:
        return DECODE_MORE
    m.exchange_len = d.names[0]
    m.exchange = d.names + 1
    m.routing_key = d.names + m.exchange_len + 2
    m.routing_key_len = d.names[m.exchange_len + 1]
    m.body = body
    rc = columns_put(columns, m)
    if rc:
        return decode_fail(d, DECODE_NO_MEMORY if rc == NO_MEMORY else DECODE_TOO_LARGE)
    if m.offset > d.next:
        if d.gap_end == 0:
            d.gap_start = d.next
        d.gap_end = m.offset
    d.next = m.offset + 1
    return DECODE_END if d.next >= d.end else DECODE_MORE


# hot
cdef inline int on_header(decode_t* d, columns_t* columns, u8* p, u32 n) noexcept nogil:
    """The header of a delivery: class, weight, size of the body, properties."""
    cdef int rc
    if d.want != WANT_HEADER:
        return decode_fail(d, DECODE_ORDER)
    if n < PROPS_AT or be16(p) != BASIC_CLASS:
        return decode_fail(d, DECODE_HEADER)
    d.m.body_len = be64(p + 4)
    if d.m.body_len > BODY_MAX:
        return decode_fail(d, DECODE_TOO_LARGE)
    rc = props_read(d, p + PROPS_AT, n - PROPS_AT)
    if rc:
        return decode_fail(d, rc)
    if d.m.body_len == 0:
        return on_message(d, columns, p)
    d.want = WANT_BODY
    return DECODE_MORE


# hot
cdef inline int on_body(decode_t* d, columns_t* columns, const u8* p, u32 n) noexcept nogil:
    """The body of a delivery, or a part of it. Memory is taken for what is there, not for what is
    announced."""
    cdef int rc
    if d.want != WANT_BODY:
        return decode_fail(d, DECODE_ORDER)
    if d.body.n == 0 and n == d.m.body_len:
        return on_message(d, columns, p)
    if n > d.m.body_len - d.body.n:
        return decode_fail(d, DECODE_BODY)
    if buf_put(&d.body, p, n):
        return decode_fail(d, DECODE_NO_MEMORY)
    if d.body.n < d.m.body_len:
        return DECODE_MORE
    rc = on_message(d, columns, d.body.p)
    d.body.n = 0
    return rc


# hot
cdef int on_frame(decode_t* d, columns_t* columns, u8* p, u32 n) noexcept nogil:
    """Use up the frame at p, whose payload has n bytes."""
    if be16(p + 1) != d.channel:
        if p[0] == KIND_METHOD or p[0] == KIND_HEARTBEAT:
            return DECODE_FRAME
        return decode_fail(d, DECODE_FRAME_TYPE)
    if p[0] == KIND_BODY:
        return on_body(d, columns, p + 7, n)
    if p[0] == KIND_HEADER:
        return on_header(d, columns, p + 7, n)
    if p[0] != KIND_METHOD:
        return decode_fail(d, DECODE_FRAME_TYPE)
    if n >= 4 and be32(p + 7) == DELIVER:
        return on_deliver(d, p + 7, n)
    return DECODE_FRAME


# hot
cdef int decode_walk(decode_t* d, columns_t* columns, u64 rows, u64 bytes) noexcept nogil:
    """Use up the frames of the buffer until one of decode_result says otherwise.

    Cost: 100 ns for each small delivery, with a column of offsets and one of bodies."""
    cdef u8* p
    cdef u32 n
    cdef int rc = DECODE_MORE
    while rc == DECODE_MORE:
        if columns.n_rows >= rows or columns.n_bytes >= bytes:
            return DECODE_FULL
        if d.n - d.at < FRAME_OVERHEAD:
            return DECODE_MORE
        p = d.p + d.at
        n = be32(p + 3)
        if n > d.frame_max:
            return decode_fail(d, DECODE_FRAME_SIZE)
        if d.n - d.at < <u64>n + FRAME_OVERHEAD:
            return DECODE_MORE
        if p[7 + n] != FRAME_END:
            return decode_fail(d, DECODE_FRAME_END)
        d.frame_at = d.at
        d.at += <u64>n + FRAME_OVERHEAD
        rc = on_frame(d, columns, p, n)
    return rc


cdef int decode_keep(decode_t* d) noexcept nogil:
    """Copy aside what is known of an unfinished message: its bytes in the buffer are used up."""
    if d.want == WANT_METHOD:
        return 0
    if d.names != d.kept_names.p:
        d.kept_names.n = 0
        if buf_put(&d.kept_names, d.names, d.names_len):
            return NO_MEMORY
        d.names = d.kept_names.p
    if d.want == WANT_BODY and d.m.props != d.kept_props.p:
        d.kept_props.n = 0
        if buf_put(&d.kept_props, d.m.props, d.m.props_len):
            return NO_MEMORY
        d.m.props = d.kept_props.p
    return 0


cdef dict DECODE_ERRORS = {
    DECODE_FRAME_SIZE: "a frame is larger than was agreed",
    DECODE_FRAME_END: "a frame does not end with 206",
    DECODE_FRAME_TYPE: "a frame of an unknown type, or content on another channel",
    DECODE_METHOD: "a delivery that is cut short or too long",
    DECODE_HEADER: "a content header that is cut short, or whose properties are none",
    DECODE_ORDER: "frames of content out of order",
    DECODE_BODY: "a body longer than announced",
    DECODE_TOO_LARGE: "a message too large for a row",
    DECODE_NO_OFFSET: "a message without x-stream-offset: the queue is not a stream",
}


@cython.final
cdef class Decoder:
    """Rows of a range of a stream, out of the bytes a consumer receives; see `_arrow.pyi`."""

    MORE, FULL, FRAME, END = DECODE_MORE, DECODE_FULL, DECODE_FRAME, DECODE_END

    cdef decode_t d
    cdef Columns columns
    cdef bytearray buffer
    cdef u64 batch_rows
    cdef u64 batch_bytes
    cdef object view
    cdef readonly object frame

    def __cinit__(
        self, Columns columns, i64 start, i64 end, *,
        u64 batch_rows=10_000, u64 batch_bytes=1 << 24, u32 frame_max=131072, u16 channel=1,
    ):
        if not 0 < batch_rows <= MOST_ROWS or not 0 < batch_bytes <= BATCH_MAX:
            raise ValueError("a batch has at least one row and at most 2 Mi rows and 256 MiB")
        self.columns = columns
        self.batch_rows, self.batch_bytes = batch_rows, batch_bytes
        self.buffer = bytearray(max(BUFFER_BYTES, 2 * (frame_max + FRAME_OVERHEAD)))
        self.view = memoryview(self.buffer)     # while it is there nobody can resize the buffer
        self.d.p = <u8*>PyByteArray_AS_STRING(self.buffer)
        self.d.frame_max, self.d.channel = frame_max, channel
        self.d.next, self.d.end = start, end
        self.d.keeps_headers = "headers" in columns.names or "headers_json" in columns.names
        self.d.m.position = self.d.m.segment = COLUMNS_NONE
        self.d.m.is_acked = -1
        self.d.m.is_wire = True

    def __dealloc__(self):
        buf_free(&self.d.kept_names)
        buf_free(&self.d.kept_props)
        buf_free(&self.d.body)

    @property
    def next_offset(self):
        return self.d.next

    @property
    def tag(self):
        return self.d.tag

    @property
    def gap(self):
        return (self.d.gap_start, self.d.gap_end) if self.d.gap_end else None

    def room(self):
        cdef decode_t* d = &self.d
        if d.at:
            memmove(d.p, d.p + d.at, d.n - d.at)
            d.n -= d.at
            d.at = 0
        return self.view[d.n:]

    def received(self, u64 n):
        if n > <u64>len(self.buffer) - self.d.n:
            raise ValueError("more bytes than there is room for")
        self.d.n += n

    def run(self):
        cdef decode_t* d = &self.d
        cdef int rc
        self.frame = None
        d.gap_end = 0
        with nogil:
            rc = decode_walk(d, &self.columns.c, self.batch_rows, self.batch_bytes)
            if decode_keep(d):
                rc = decode_fail(d, DECODE_NO_MEMORY)
        if rc == DECODE_BROKEN:
            if d.error == DECODE_NO_MEMORY:
                raise MemoryError
            raise ValueError(DECODE_ERRORS[d.error])
        if rc == DECODE_FRAME:
            self.frame = frame_at(d.p + d.frame_at)
        return rc

    def reset(self):
        cdef decode_t* d = &self.d
        d.at = d.n = d.tag = d.body.n = 0
        d.want = WANT_METHOD


cdef tuple frame_at(const u8* p):
    """(type, channel, payload) of a whole frame."""
    return p[0], be16(p + 1), PyBytes_FromStringAndSize(<char*>p + 7, be32(p + 3))
