# arrow_encode: rows of Arrow columns to basic.publish, header and body frames; included by arrow.pyx.
#
# `encode_rows` writes as many messages as may be sent now into one block, without the GIL and
# without an object per row. It is called through `Encoder` (arrow_publish.pyx), reads columns by
# arrow_input.pyx, and ends at the first row that cannot be a message: `fault_t` says which and why.
#
# One message, big-endian, each frame = type u8, channel u16, size u32, payload, 0xCE:
#   method  60, 40, reserved u16 0, exchange shortstr, routing key shortstr, bits u8 (1 = mandatory)
#   header  60, weight u16 0, body size u64, flags u16, properties in the order of their flags
#   body    at most frame_max - 8 bytes each; none for an empty body

from libc.string cimport memcmp, strlen

from bytes cimport put_be16, put_be32, put_be64, u16

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


cdef int address_get(encoder_t *e, int which, slice_t *option, i64 row, slice_t *s) noexcept nogil:
    """An exchange or a routing key: the option's, else the column's, else the empty one."""
    if option.p != NULL:
        s[0] = option[0]
        return 0
    return -1 if short_get(e, which, row, s) < 0 else 0


# hot
cdef u8 *put_method(encoder_t *e, i64 row, u8 *p) noexcept nogil:
    """Write basic.publish; NULL = the row is at fault."""
    cdef slice_t exchange, key
    cdef u8 *start = p
    if address_get(e, TEXT_EXCHANGE, &e.exchange, row, &exchange) < 0:
        return NULL
    if address_get(e, TEXT_ROUTING_KEY, &e.routing_key, row, &key) < 0:
        return NULL
    p = put_frame(p, 1, e.channel)
    put_be32(p, 0x003C0028)
    put_be16(p + 4, 0)
    p = put_short(p + 6, exchange.p, exchange.n)
    p = put_short(p, key.p, key.n)
    p[0] = e.mandatory
    return end_frame(start, p + 1)


# ---- headers

cdef inline bint is_ours(encoder_t *e, slice_t *key) noexcept nogil:
    """Say whether a key of the map is one of those that are written here: ours win."""
    if key.n < 2 or key.p[0] != b"x" or key.p[1] != b"-":
        return False
    if e.dedup != DEDUP_NONE and same_key(key, DEDUP_HEADER):
        return True
    if e.texts[TEXT_ORIGIN_QUEUE].ends != NULL and same_key(key, ORIGIN_QUEUE_HEADER):
        return True
    return e.numbers[NUMBER_ORIGIN_OFFSET].values != NULL and same_key(key, ORIGIN_OFFSET_HEADER)


cdef inline bint same_key(slice_t *key, const char *name) noexcept nogil:
    return <size_t>key.n == strlen(name) and memcmp(key.p, name, <size_t>key.n) == 0


cdef int map_range(encoder_t *e, i64 row, i64 *first, i64 *last) noexcept nogil:
    """Find the entries of a row: 1 = a map, 0 = null or no column, -1 = outside of the entries."""
    cdef map_t *m = &e.map
    if m.ends == NULL or not bit_at(m.valid, m.at + row):
        return 0
    first[0] = <i32>le32(m.ends + 4 * row)
    last[0] = <i32>le32(m.ends + 4 * row + 4)
    if first[0] < 0 or last[0] < first[0] or last[0] > m.entries:
        return fail(e, FAULT_COLUMN, b"headers", row, -1)
    return 1


cdef i64 map_size(encoder_t *e, i64 row, i64 first, i64 last) noexcept nogil:
    """Return the bytes that the entries take at most; -1 = the row is at fault."""
    cdef slice_t s
    cdef i64 at, size = 0
    cdef int found
    for at in range(first, last):
        found = text_get(&e.map.key, at, &s)
        if found <= 0:
            return fail(e, FAULT_COLUMN, b"headers", row, -1)
        if s.n > SHORT_MAX:
            return fail(e, FAULT_SHORT, b"headers (a key)", row, s.n)
        size += s.n + 6
        found = text_get(&e.map.value, at, &s)
        if found < 0:
            return fail(e, FAULT_COLUMN, b"headers", row, -1)
        size += s.n
    return size


cdef u8 *put_map(encoder_t *e, i64 first, i64 last, u8 *p) noexcept nogil:
    """Write entries that `map_size` has checked; a null value is a void."""
    cdef slice_t s
    cdef i64 at
    for at in range(first, last):
        text_get(&e.map.key, at, &s)
        if is_ours(e, &s):
            continue
        p = put_short(p, s.p, s.n)
        if text_get(&e.map.value, at, &s):
            p = put_long(p, s.p, s.n)
        else:
            p[0] = b"V"
            p += 1
    return p


cdef u8 *put_ours(encoder_t *e, i64 row, ids_t *ids, u8 *p) noexcept nogil:
    """Write the deduplication header and those of the origin; NULL = the row is at fault."""
    cdef slice_t s
    cdef i64 offset
    cdef int found = 0
    if e.dedup != DEDUP_NONE:
        p = put_long(put_key(p, DEDUP_HEADER), ids.key.p, ids.key.n)
    found = short_get(e, TEXT_ORIGIN_QUEUE, row, &s)
    if found < 0:
        return NULL
    if found:
        p = put_long(put_key(p, ORIGIN_QUEUE_HEADER), s.p, s.n)
    if number_get(&e.numbers[NUMBER_ORIGIN_OFFSET], row, &offset):
        p = put_key(p, ORIGIN_OFFSET_HEADER)
        p[0] = b"l"
        put_be64(p + 1, <u64>offset)
        p += 9
    return p


cdef u8 *put_headers(encoder_t *e, i64 row, ids_t *ids, u8 *p, u16 *flags) noexcept nogil:
    """Write the table if the row has any headers; NULL = at fault. There is room: `headers_room`."""
    cdef slice_t table
    cdef i64 first, last
    cdef u8 *start = p
    p += 4
    if map_range(e, row, &first, &last) > 0:
        p = put_map(e, first, last, p)
    elif text_get(&e.texts[TEXT_TABLE], row, &table) > 0:
        memcpy(p, table.p, <size_t>table.n)
        p += table.n
    elif e.dedup == DEDUP_NONE and not has_origin(e):
        return start
    p = put_ours(e, row, ids, p)
    if p == NULL:
        return NULL
    put_be32(start, <u32>(p - start - 4))
    flags[0] |= HAS_HEADERS
    return p


cdef inline bint has_origin(encoder_t *e) noexcept nogil:
    return (
        e.texts[TEXT_ORIGIN_QUEUE].ends != NULL or e.numbers[NUMBER_ORIGIN_OFFSET].values != NULL
    )


cdef i64 headers_room(encoder_t *e, i64 row) noexcept nogil:
    """Return the bytes that the headers of the columns take; -1 = the row is at fault."""
    cdef slice_t table
    cdef i64 first, last, size = 0
    cdef int found = map_range(e, row, &first, &last)
    if found > 0:
        size = map_size(e, row, first, last)
    elif found < 0:
        return -1
    else:
        found = text_get(&e.texts[TEXT_TABLE], row, &table)
        if found < 0:
            return fail_text(e, TEXT_TABLE, row, -1)
        size = table.n
    if size > e.chunk:
        return fail(e, FAULT_HEADERS, b"headers", row, size)
    return size


# ---- properties

# hot
cdef u8 *put_text(encoder_t *e, int which, i64 row, u8 *p, u16 flag, u16 *flags) noexcept nogil:
    cdef slice_t s
    cdef int found = short_get(e, which, row, &s)
    if found == 0:
        return p
    if found < 0:
        return NULL
    flags[0] |= flag
    return put_short(p, s.p, s.n)


cdef u8 *put_octet(encoder_t *e, int which, i64 row, u8 *p, u16 flag, u16 *flags) noexcept nogil:
    cdef i64 value
    if not number_get(&e.numbers[which], row, &value):
        if which != NUMBER_DELIVERY_MODE or e.numbers[which].values != NULL:
            return p
        value = e.delivery_mode
    if value < 0 or value > 255:
        fail(e, FAULT_RANGE, b"delivery_mode" if which == NUMBER_DELIVERY_MODE else b"priority",
             row, value)
        return NULL
    flags[0] |= flag
    p[0] = <u8>value
    return p + 1


cdef u8 *put_message_id(encoder_t *e, i64 row, ids_t *ids, u8 *p, u16 *flags) noexcept nogil:
    """The value of idColumn, else the column's, else the id of the row if there is one."""
    cdef u8 *end
    cdef slice_t *made = &ids.key
    if e.texts[TEXT_ID].ends != NULL:
        made = &ids.chosen
    else:
        end = put_text(e, TEXT_MESSAGE_ID, row, p, HAS_MESSAGE_ID, flags)
        if end != p:
            return end
    if made.n == 0:
        return p
    flags[0] |= HAS_MESSAGE_ID
    return put_short(p, made.p, made.n)


cdef u8 *put_properties(encoder_t *e, i64 row, ids_t *ids, u8 *p, u16 *flags) noexcept nogil:
    """Write all properties in the order of AMQP; NULL = the row is at fault."""
    cdef i64 seconds
    p = put_text(e, TEXT_CONTENT_TYPE, row, p, HAS_CONTENT_TYPE, flags)
    if p != NULL:
        p = put_text(e, TEXT_CONTENT_ENCODING, row, p, HAS_CONTENT_ENCODING, flags)
    if p != NULL:
        p = put_headers(e, row, ids, p, flags)
    if p != NULL:
        p = put_octet(e, NUMBER_DELIVERY_MODE, row, p, HAS_DELIVERY_MODE, flags)
    if p != NULL:
        p = put_octet(e, NUMBER_PRIORITY, row, p, HAS_PRIORITY, flags)
    if p != NULL:
        p = put_text(e, TEXT_CORRELATION_ID, row, p, HAS_CORRELATION_ID, flags)
    if p != NULL:
        p = put_text(e, TEXT_REPLY_TO, row, p, HAS_REPLY_TO, flags)
    if p != NULL:
        p = put_text(e, TEXT_EXPIRATION, row, p, HAS_EXPIRATION, flags)
    if p != NULL:
        p = put_message_id(e, row, ids, p, flags)
    if p != NULL and number_get(&e.numbers[NUMBER_TIMESTAMP], row, &seconds):
        flags[0] |= HAS_TIMESTAMP
        put_be64(p, <u64>seconds)
        p += 8
    if p != NULL:
        p = put_text(e, TEXT_TYPE, row, p, HAS_TYPE, flags)
    if p != NULL:
        p = put_text(e, TEXT_USER_ID, row, p, HAS_USER_ID, flags)
    if p != NULL:
        p = put_text(e, TEXT_APP_ID, row, p, HAS_APP_ID, flags)
    return p


cdef int ids_get(encoder_t *e, i64 row, ids_t *ids) noexcept nogil:
    """Find or make the ids of a row; of length 0 where there are none. -1 = the row is at fault."""
    cdef int found
    ids.key.p = ids.chosen.p = NOTHING
    ids.key.n = ids.chosen.n = 0
    if e.texts[TEXT_ID].ends != NULL:
        found = short_get(e, TEXT_ID, row, &ids.chosen)
        if found < 0:
            return -1
        if found == 0 or ids.chosen.n == 0:
            return fail(e, FAULT_NO_ID, b"idColumn", row, 0)
    if e.dedup == DEDUP_ID:
        ids.key = ids.chosen
    elif e.dedup == DEDUP_ROW:
        ids.key.p, ids.key.n = ids.made, row_id(e, row, ids.made)
    return 0


# hot
cdef u8 *put_header(encoder_t *e, i64 row, i64 body_n, u8 *p) noexcept nogil:
    """Write the header frame; NULL = the row is at fault."""
    cdef ids_t ids
    cdef u8 *start = p
    cdef u16 flags = 0
    if ids_get(e, row, &ids) < 0:
        return NULL
    p = put_frame(p, 2, e.channel)
    put_be32(p, 0x003C0000)
    put_be64(p + 4, <u64>body_n)
    p = put_properties(e, row, &ids, p + 14, &flags)
    if p == NULL:
        return NULL
    put_be16(start + 19, flags)
    if p - start - 7 > e.chunk:
        fail(e, FAULT_HEADERS, b"headers", row, p - start - 7)
        return NULL
    return end_frame(start, p)


# hot
cdef u8 *put_body(encoder_t *e, slice_t *body, u8 *p) noexcept nogil:
    cdef i64 n
    cdef u8 *start
    while body.n > 0:
        n = min(body.n, e.chunk)
        start = p
        p = put_frame(p, 3, e.channel)
        memcpy(p, body.p, <size_t>n)
        p = end_frame(start, p + n)
        body.p += n
        body.n -= n
    return p


# ---- rows

cdef int make_room(encoder_t *e, i64 more) noexcept nogil:
    """Let the block take `more` bytes behind what is in it."""
    cdef i64 room = max(e.out_n + more, <i64>BLOCK_BYTES + FIXED_BYTES)
    cdef void *grown
    if e.out_n + more <= e.out_room:
        return 0
    grown = realloc(e.out, <size_t>room)
    if grown == NULL:
        return fail(e, FAULT_MEMORY, b"body", e.row, more)
    e.out = <u8 *>grown
    e.out_room = room
    return 0


# hot
cdef int put_row(encoder_t *e, i64 row) noexcept nogil:
    """Add one message to the block; -1 = the row is at fault, and nothing was added."""
    cdef slice_t body
    cdef i64 headers_n = headers_room(e, row)
    cdef u8 *p
    if headers_n < 0:
        return -1
    if text_get(&e.texts[TEXT_BODY], row, &body) < 0:
        return fail_text(e, TEXT_BODY, row, -1)
    if make_room(e, FIXED_BYTES + headers_n + body.n + body.n // e.chunk * FRAME_OVERHEAD) < 0:
        return -1
    p = put_method(e, row, e.out + e.out_n)
    if p != NULL:
        p = put_header(e, row, body.n, p)
    if p == NULL:
        return -1
    e.out_n = put_body(e, &body, p) - e.out
    return 0


cdef i64 encode_rows(encoder_t *e, i64 most) noexcept nogil:
    """Fill the block anew, with `most` rows at most; return how many, -1 = `e.fault`."""
    cdef i64 first = e.row, end
    end = min(e.rows, e.row + most)
    e.out_n = 0
    if e.out_room > 16 * BLOCK_BYTES:
        # One large message must not hold its memory for the rest of the task.
        free(e.out)
        e.out = NULL
        e.out_room = 0
    while e.row < end and e.out_n < BLOCK_BYTES:
        if put_row(e, e.row) < 0:
            return -1
        e.row += 1
    return e.row - first
