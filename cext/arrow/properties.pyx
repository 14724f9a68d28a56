# arrow_properties: headers, ids and all other properties of one message; included by arrow.pyx.
#
# Properties are in the order of their flags. Headers are the entries of the map or of the encoded
# table of a row, and behind them those that the sink adds; ours replace those of the same name.

from libc.string cimport memcmp

from bytes cimport put_be64

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
    """Write the table if the row has any headers; NULL = at fault. `headers_room` made room."""
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
