# arrow_message: a message that is made of a row: columns it may have, faults, and bytes of frames.
#
# Included by arrow.pyx for arrow/properties.pyx and arrow/encode.pyx. `encoder_t` holds the columns
# of the batch at hand (arrow/input.pyx) and what is the same for all rows. Whoever meets a row that
# cannot be a message notes it with `fail`.

from libc.string cimport strlen

from bytes cimport put_be16, put_be32, u16

cdef enum:
    BLOCK_BYTES = 262144        # the usual size of a block; one message may be larger
    FIXED_BYTES = 8192          # more than all of a message but its headers and its body
    SHORT_MAX = 255
    ROW_DIGITS = 20

# Columns of text, as `Encoder.load` names them. From CONTENT_TYPE on the order is AMQP's.
cdef enum:
    TEXT_EXCHANGE
    TEXT_ROUTING_KEY
    TEXT_BODY
    TEXT_TABLE                  # headers, encoded as the content of a field table
    TEXT_ID                     # idColumn
    TEXT_ORIGIN_QUEUE
    TEXT_CONTENT_TYPE
    TEXT_CONTENT_ENCODING
    TEXT_CORRELATION_ID
    TEXT_REPLY_TO
    TEXT_EXPIRATION
    TEXT_MESSAGE_ID
    TEXT_TYPE
    TEXT_USER_ID
    TEXT_APP_ID
    N_TEXTS

cdef enum:
    NUMBER_DELIVERY_MODE
    NUMBER_PRIORITY
    NUMBER_TIMESTAMP
    NUMBER_ORIGIN_OFFSET
    N_NUMBERS

cdef enum:
    HAS_CONTENT_TYPE = 1 << 15
    HAS_CONTENT_ENCODING = 1 << 14
    HAS_HEADERS = 1 << 13
    HAS_DELIVERY_MODE = 1 << 12
    HAS_PRIORITY = 1 << 11
    HAS_CORRELATION_ID = 1 << 10
    HAS_REPLY_TO = 1 << 9
    HAS_EXPIRATION = 1 << 8
    HAS_MESSAGE_ID = 1 << 7
    HAS_TIMESTAMP = 1 << 6
    HAS_TYPE = 1 << 5
    HAS_USER_ID = 1 << 4
    HAS_APP_ID = 1 << 3

# Why a row cannot be sent; `fault_t` says which column.
cdef enum:
    FAULT_NONE
    FAULT_SHORT                 # too long for a short string
    FAULT_RANGE                 # a number that does not fit its field
    FAULT_NO_ID                 # null where an id is needed
    FAULT_HEADERS               # the header frame is larger than frame_max, and cannot be split
    FAULT_COLUMN                # lengths that do not fit the buffers
    FAULT_MEMORY

cdef enum:
    DEDUP_NONE
    DEDUP_ROW
    DEDUP_ID

cdef struct fault_t:
    int why
    const char *column
    i64 row
    i64 size                    # bytes, or the number that is out of range

cdef struct ids_t:
    slice_t chosen              # the value of idColumn
    slice_t key                 # that of the deduplication header
    u8 made[SHORT_MAX + 1]      # room for the id of a row

cdef struct encoder_t:
    text_t texts[N_TEXTS]
    number_t numbers[N_NUMBERS]
    map_t map
    i64 rows                    # of the batch
    i64 row                     # the next one
    i64 row_base                # rows of the batches before
    slice_t exchange            # of the option: wins over the column when p is set
    slice_t routing_key
    slice_t prefix              # of the ids of rows
    u16 channel
    i64 chunk                   # body bytes per frame
    bint mandatory
    u8 delivery_mode            # when there is no column
    int dedup
    u8 *out
    i64 out_n
    i64 out_room
    fault_t fault

# What errors call the columns of text.
cdef const char *TEXT_NAMES[N_TEXTS]
TEXT_NAMES[:] = [
    b"exchange", b"routing_key", b"body", b"headers_json", b"idColumn", b"queue",
    b"content_type", b"content_encoding", b"correlation_id", b"reply_to", b"expiration",
    b"message_id", b"type", b"user_id", b"app_id",
]

cdef const char *DEDUP_HEADER = b"x-deduplication-header"
cdef const char *ORIGIN_QUEUE_HEADER = b"x-origin-queue"
cdef const char *ORIGIN_OFFSET_HEADER = b"x-origin-offset"


# ---- bytes of one message; there is room for them

cdef inline u8 *put_short(u8 *p, const u8 *data, i64 n) noexcept nogil:
    p[0] = <u8>n
    memcpy(p + 1, data, <size_t>n)
    return p + 1 + n


cdef inline u8 *put_long(u8 *p, const u8 *data, i64 n) noexcept nogil:
    p[0] = b"S"
    put_be32(p + 1, <u32>n)
    memcpy(p + 5, data, <size_t>n)
    return p + 5 + n


cdef inline u8 *put_key(u8 *p, const char *key) noexcept nogil:
    return put_short(p, <const u8 *>key, <i64>strlen(key))


cdef inline u8 *put_frame(u8 *p, u8 kind, u16 channel) noexcept nogil:
    """Begin a frame; `end_frame` knows its size."""
    p[0] = kind
    put_be16(p + 1, channel)
    return p + 7


cdef inline u8 *end_frame(u8 *start, u8 *p) noexcept nogil:
    put_be32(start + 3, <u32>(p - start - 7))
    p[0] = FRAME_END
    return p + 1


cdef int row_id(encoder_t *e, i64 row, u8 *p) noexcept nogil:
    """Write <prefix>/<number of the row in its task> into SHORT_MAX bytes; return how many."""
    cdef u8 digits[ROW_DIGITS]
    cdef int at = ROW_DIGITS
    cdef u64 n = <u64>(e.row_base + row)
    while True:
        at -= 1
        digits[at] = <u8>(48 + n % 10)
        n //= 10
        if n == 0:
            break
    memcpy(p, e.prefix.p, <size_t>e.prefix.n)
    p[e.prefix.n] = b"/"
    memcpy(p + e.prefix.n + 1, digits + at, ROW_DIGITS - at)
    return <int>e.prefix.n + 1 + ROW_DIGITS - at


cdef int fail(encoder_t *e, int why, const char *column, i64 row, i64 size) noexcept nogil:
    e.fault.why, e.fault.column = why, column
    e.fault.row, e.fault.size = e.row_base + row, size
    return -1


cdef int fail_text(encoder_t *e, int which, i64 row, i64 n) noexcept nogil:
    return fail(e, FAULT_COLUMN if n < 0 else FAULT_SHORT, TEXT_NAMES[which], row, n)


# hot
cdef inline int short_get(encoder_t *e, int which, i64 row, slice_t *s) noexcept nogil:
    """As `text_get`, and the value fits a short string."""
    cdef int found = text_get(&e.texts[which], row, s)
    if found == 0:
        return 0
    if found < 0:
        return fail_text(e, which, row, -1)
    if s.n > SHORT_MAX:
        return fail_text(e, which, row, s.n)
    return 1
