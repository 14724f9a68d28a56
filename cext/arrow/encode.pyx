# arrow_encode: rows of Arrow columns to basic.publish, header and body frames; for arrow.pyx.
#
# `encode_rows` writes as many messages as may be sent now into one block, without the GIL and
# without an object per row. It is called through `Encoder` (arrow/publish.pyx), reads columns by
# arrow/input.pyx, and ends at the first row that cannot be a message: `fault_t` says which and why.
#
# One message, big-endian, each frame = type u8, channel u16, size u32, payload, 0xCE:
#   method  60, 40, reserved u16 0, exchange shortstr, routing key shortstr, bits u8 (1 = mandatory)
#   header  60, weight u16 0, body size u64, flags u16, properties in the order of their flags
#   body    at most frame_max - 8 bytes each; none for an empty body

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
