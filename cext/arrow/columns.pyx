# Arrow columns: messages become rows, rows become a pyarrow.RecordBatch.
#
# One `columns_t` is a batch that is being filled, by one thread, without the GIL and without a
# Python object per message. `columns_add` takes a message all or not at all. Names and types of the
# columns are those of lavinmq/spark/schema.py; every one may be null.
#
# A column that a message does not have is not touched: offsets and validity of skipped rows are
# made up when the column has a value again, or when the batch is taken. So absent properties cost
# nothing. Offsets of Arrow's strings are int32: what would pass 2 GiB is refused with
# COLUMNS_FULL, and comes again after `take`.

cdef enum columns_result:
    COLUMNS_ADDED = 0
    COLUMNS_FULL = 1            # not added: take the rows first
    COLUMNS_MALFORMED = -1      # not added: the properties are none
    COLUMNS_TOO_LARGE = -3      # not added: the body or the headers alone pass 2 GiB

cdef enum column_kind:
    COLUMN_INT8
    COLUMN_INT16
    COLUMN_INT32
    COLUMN_INT64
    COLUMN_TIME                 # int64, microseconds, UTC
    COLUMN_BOOL
    COLUMN_TEXT
    COLUMN_BINARY
    COLUMN_MAP
    COLUMN_CONSTANT             # the same text in all rows

cdef enum:
    N_PROPERTIES = 16           # a place for each bit of the property flags
    HEADERS_BIT = 13
    DELIVERY_MODE_BIT = 12
    PRIORITY_BIT = 11
    TIMESTAMP_BIT = 6
    MAX_COLUMNS = 32
    FIRST_ROWS = 1024
    # Short strings of so many rows pass no 2 GiB, even when each byte becomes U+FFFD.
    MOST_ROWS = 0x200000
    LARGEST_DATA = 0x7FFFFFFF

cdef extern from *:
    """
    #define COLUMNS_NONE INT64_MIN
    #define MOST_SECONDS (INT64_MAX / 1000000)
    #define MOST_MS (INT64_MAX / 1000)
    #define columns_top_bit(flags) (31 - __builtin_clz(flags))
    """
    const i64 COLUMNS_NONE      # no offset, time, segment or position
    const i64 MOST_SECONDS      # beyond them there are no microseconds
    const i64 MOST_MS
    int columns_top_bit(u32 flags) noexcept nogil

cdef struct message_t:
    const u8* exchange
    const u8* routing_key
    const u8* props             # flags and properties
    const u8* body
    u64 body_len
    u64 props_len
    i64 offset                  # or COLUMNS_NONE
    i64 timestamp_ms            # Unix milliseconds, or COLUMNS_NONE
    i64 position                # the last three are of files, else COLUMNS_NONE, COLUMNS_NONE, -1
    i64 segment
    int is_acked                # -1: nobody knows
    u32 exchange_len
    u32 routing_key_len
    bint is_wire                # properties are big-endian, as in frames; else as in segments

cdef struct column_t:
    column_kind kind
    u32 width                   # bytes of a fixed value, 4 for offsets
    u64 n_valid
    u64 n_ended                 # text, binary, map: rows whose end is in `values`
    u8* validity
    u8* values                  # fixed values, bits, or int32 offsets
    buf_t data                  # text and binary: bytes. map: bytes of the keys
    buf_t key_ends              # map: int32 offsets of the entries' keys and items, the first is 0
    buf_t item_ends
    buf_t item_data
    buf_t item_valid            # a byte for each entry
    u64 n_items

cdef struct columns_t:
    column_t column[MAX_COLUMNS]
    int n_columns
    # Where a value goes; NULL when nobody wants it.
    column_t* offset
    column_t* timestamp
    column_t* exchange
    column_t* routing_key
    column_t* body
    column_t* position
    column_t* segment
    column_t* acked
    column_t* headers_json
    column_t* property_[N_PROPERTIES]   # by the bit of the flag; headers: the map
    u32 wanted                  # the flags of these
    u64 n_rows
    u64 row_cap
    u64 n_bytes                 # of all texts and bodies in the rows
    u64 n_repaired              # strings that were not UTF-8, since the object was made


cdef int column_grow(column_t* col, u64 old_cap, u64 cap) noexcept nogil:
    """Make room for cap rows, a multiple of 8; validity and fixed values of new ones are 0."""
    cdef u64 old_bytes = old_cap * col.width, new_bytes = cap * col.width
    cdef u8* grown = <u8*>realloc(col.validity, cap >> 3)
    if grown == NULL:
        return NO_MEMORY
    memset(grown + (old_cap >> 3), 0, (cap - old_cap) >> 3)
    col.validity = grown
    if col.kind == COLUMN_BOOL:
        old_bytes, new_bytes = old_cap >> 3, cap >> 3
    elif col.kind >= COLUMN_TEXT:
        new_bytes += 4          # one offset more than rows
        old_bytes += 4 if old_cap else 0
    grown = <u8*>realloc(col.values, new_bytes)
    if grown == NULL:
        return NO_MEMORY
    memset(grown + old_bytes, 0, new_bytes - old_bytes)
    col.values = grown
    return 0


cdef int columns_grow(columns_t* c) noexcept nogil:
    cdef u64 cap = c.row_cap * 2 if c.n_rows else c.row_cap
    cdef int i
    if cap < FIRST_ROWS:
        cap = FIRST_ROWS
    for i in range(c.n_columns):
        if c.column[i].kind != COLUMN_CONSTANT:
            if column_grow(&c.column[i], c.row_cap if c.column[i].values else 0, cap):
                return NO_MEMORY
    c.row_cap = cap
    return 0


cdef inline void column_is_valid(column_t* col, u64 row) noexcept nogil:
    col.validity[row >> 3] |= <u8>(1 << (row & 7))
    col.n_valid += 1


cdef inline void column_put_i64(column_t* col, u64 row, i64 value) noexcept nogil:
    (<i64*>col.values)[row] = value
    column_is_valid(col, row)


cdef inline void column_end(column_t* col, u64 row, u64 end) noexcept nogil:
    """Note where row's data end; rows before it without data are empty."""
    cdef i32* offsets = <i32*>col.values
    cdef u64 at = col.n_ended
    cdef i32 before = offsets[at]
    while at < row:
        at += 1
        offsets[at] = before
    offsets[row + 1] = <i32>end
    col.n_ended = row + 1


cdef inline void column_end_all(column_t* col, u64 n_rows) noexcept nogil:
    if col.n_ended < n_rows:
        column_end(col, n_rows - 1, <u64>(<i32*>col.values)[col.n_ended])


# hot
cdef inline int columns_put_text(
    columns_t* c, column_t* col, const u8* p, u32 n
) noexcept nogil:
    if text_put(&col.data, p, n, &c.n_repaired):
        return NO_MEMORY
    column_end(col, c.n_rows, col.data.n)
    column_is_valid(col, c.n_rows)
    c.n_bytes += n
    return 0


cdef int map_entry_put(
    column_t* col, const u8* p, u64 n, u64* at, table_text_t* how
) noexcept nogil:
    """Append the entry at p[at] of a table and move on. 0, NOT_A_TABLE or NO_MEMORY."""
    cdef u64 key = at[0] + 1, value = key + p[at[0]], start, size
    cdef i32 end
    if value >= n or field_extent(p + value, n - value, &start, &size):
        return NOT_A_TABLE
    at[0] = value + start + size
    if text_put(&col.data, p + key, value - key, &how.n_repaired):
        return NO_MEMORY
    if p[value] != c'V':
        rc = map_text_put(&col.item_data, p[value], p + value + start, size, how)
        if rc:
            return rc
    end = <i32>col.data.n
    if buf_put(&col.key_ends, &end, 4):
        return NO_MEMORY
    end = <i32>col.item_data.n
    if buf_put(&col.item_ends, &end, 4):
        return NO_MEMORY
    col.n_items += 1
    return buf_put_byte(&col.item_valid, p[value] != c'V')


cdef inline int map_begin(column_t* col) noexcept nogil:
    """See to it that the first offsets are there. 0, or NO_MEMORY."""
    cdef i32 start = 0
    if col.key_ends.n:
        return 0
    return buf_put(&col.key_ends, &start, 4) or buf_put(&col.item_ends, &start, 4)


cdef void map_cut(column_t* col, u64 n_items) noexcept nogil:
    """Take back all entries but the first ones."""
    col.n_items = col.item_valid.n = n_items
    col.key_ends.n = col.item_ends.n = (n_items + 1) * 4
    col.data.n = <u64>(<i32*>col.key_ends.p)[n_items]
    col.item_data.n = <u64>(<i32*>col.item_ends.p)[n_items]


cdef int columns_put_map(columns_t* c, column_t* col, const u8* p, u64 n) noexcept nogil:
    """Append a table as a map; null when it is none. 0, COLUMNS_FULL or NO_MEMORY."""
    cdef u64 keys = col.data.n, items = col.item_data.n, count = col.n_items, at = 0
    cdef table_text_t how
    cdef int rc = map_begin(col)
    how.is_typed = False
    how.n_repaired = 0
    while rc == 0 and at < n:
        rc = map_entry_put(col, p, n, &at, &how)
        if col.data.n > LARGEST_DATA or col.item_data.n > LARGEST_DATA:
            rc = COLUMNS_FULL
    if rc == NO_MEMORY:
        return rc
    if rc:
        map_cut(col, count)
        return 0 if rc == NOT_A_TABLE else rc
    column_end(col, c.n_rows, col.n_items)
    column_is_valid(col, c.n_rows)
    c.n_bytes += col.data.n - keys + col.item_data.n - items
    c.n_repaired += how.n_repaired
    return 0


cdef int columns_put_json(columns_t* c, const u8* p, u64 n) noexcept nogil:
    """Append a table as headers_json. 0, COLUMNS_FULL or NO_MEMORY."""
    cdef column_t* col = c.headers_json
    cdef u64 before = col.data.n
    if headers_json_put(&col.data, p, n):
        return NO_MEMORY
    if col.data.n > LARGEST_DATA:
        col.data.n = before
        return COLUMNS_FULL
    column_end(col, c.n_rows, col.data.n)
    column_is_valid(col, c.n_rows)
    c.n_bytes += col.data.n - before
    return 0


cdef void column_undo(column_t* col, u64 row) noexcept nogil:
    """Take back the last row's text or map, if it has one."""
    cdef i32* offsets = <i32*>col.values
    if col.n_ended != row + 1:
        return
    col.n_ended = row
    col.n_valid -= 1
    col.validity[row >> 3] &= <u8>~(1 << (row & 7))
    if col.kind == COLUMN_MAP:
        map_cut(col, <u64>offsets[row])
    else:
        col.data.n = <u64>offsets[row]


cdef int columns_put_headers(columns_t* c, const u8* p, u64 n) noexcept nogil:
    """Append headers in the forms that are wanted. Only here it turns out while writing that there
    is no room. 0, COLUMNS_FULL or what went wrong."""
    cdef column_t* map_ = c.property_[HEADERS_BIT]
    cdef int rc = 0
    if n > TABLE_LARGEST:
        return COLUMNS_TOO_LARGE
    if map_:
        rc = columns_put_map(c, map_, p, n)
    if rc == 0 and c.headers_json:
        rc = columns_put_json(c, p, n)
    if rc == COLUMNS_FULL and c.n_rows == 0:
        return COLUMNS_TOO_LARGE
    return rc


cdef int columns_put_properties(columns_t* c, const message_t* m) noexcept nogil:
    """Append the wanted properties; they are whole. 0, COLUMNS_FULL or what went wrong."""
    cdef const u8* p = m.props
    cdef u32 flags = be16(p) if m.is_wire else le16(p), n
    cdef int bit, rc
    cdef i64 seconds
    cdef column_t* col
    p += 2
    while flags & c.wanted:
        bit = columns_top_bit(flags)
        flags ^= <u32>1 << bit
        col = c.property_[bit]
        if bit == HEADERS_BIT:
            n = be32(p) if m.is_wire else le32(p)
            if col or c.headers_json:
                rc = columns_put_headers(c, p + 4, n)
                if rc:
                    return rc
            p += 4 + <u64>n
        elif bit == DELIVERY_MODE_BIT or bit == PRIORITY_BIT:
            if col:
                if bit == PRIORITY_BIT:
                    (<i16*>col.values)[c.n_rows] = p[0]
                else:
                    (<i8*>col.values)[c.n_rows] = <i8>p[0]
                column_is_valid(col, c.n_rows)
            p += 1
        elif bit == TIMESTAMP_BIT:
            seconds = <i64>(be64(p) if m.is_wire else le64(p))
            if col and -MOST_SECONDS <= seconds <= MOST_SECONDS:
                column_put_i64(col, c.n_rows, seconds * 1000000)
            p += 8
        else:
            if col and columns_put_text(c, col, p + 1, p[0]):
                return NO_MEMORY
            p += 1 + p[0]
    return 0


cdef void columns_undo(columns_t* c) noexcept nogil:
    """Take back what a message that is refused has left: its headers did not fit. All that is
    written behind them does."""
    cdef int bit
    for bit in range(HEADERS_BIT, N_PROPERTIES):
        if c.property_[bit]:
            column_undo(c.property_[bit], c.n_rows)


# hot
cdef int columns_put(columns_t* c, const message_t* m) noexcept nogil:
    """Append a message whose properties are known to be whole. A columns_result or NO_MEMORY.
    Cost: 60 ns and what it takes to copy, with few properties."""
    cdef int rc
    cdef u64 n_bytes = c.n_bytes
    if c.n_rows >= MOST_ROWS:
        return COLUMNS_FULL
    if c.n_rows >= c.row_cap and columns_grow(c):
        return NO_MEMORY
    if c.body:
        if m.body_len > LARGEST_DATA:
            return COLUMNS_TOO_LARGE
        if c.body.data.n + m.body_len > LARGEST_DATA:
            return COLUMNS_FULL
    if c.wanted:
        rc = columns_put_properties(c, m)
        if rc:
            columns_undo(c)
            c.n_bytes = n_bytes
            return rc
    if c.body:
        if buf_put(&c.body.data, m.body, m.body_len):
            return NO_MEMORY
        column_end(c.body, c.n_rows, c.body.data.n)
        column_is_valid(c.body, c.n_rows)
        c.n_bytes += m.body_len
    if c.exchange and columns_put_text(c, c.exchange, m.exchange, m.exchange_len):
        return NO_MEMORY
    if c.routing_key and columns_put_text(c, c.routing_key, m.routing_key, m.routing_key_len):
        return NO_MEMORY
    if c.offset and m.offset != COLUMNS_NONE:
        column_put_i64(c.offset, c.n_rows, m.offset)
    if c.timestamp and -MOST_MS <= m.timestamp_ms <= MOST_MS:
        column_put_i64(c.timestamp, c.n_rows, m.timestamp_ms * 1000)
    if c.position and m.position != COLUMNS_NONE:
        column_put_i64(c.position, c.n_rows, m.position)
    if c.segment and m.segment != COLUMNS_NONE:
        (<i32*>c.segment.values)[c.n_rows] = <i32>m.segment
        column_is_valid(c.segment, c.n_rows)
    if c.acked and m.is_acked >= 0:
        c.acked.values[c.n_rows >> 3] |= <u8>(m.is_acked << (c.n_rows & 7))
        column_is_valid(c.acked, c.n_rows)
    c.n_rows += 1
    return COLUMNS_ADDED


cdef int columns_add(columns_t* c, const message_t* m) noexcept nogil:
    """Append a message of which nothing is known but where its bytes are. Texts are shorter than
    256 bytes. A columns_result or NO_MEMORY."""
    cdef props_t found
    if props_walk(m.props, m.props_len, m.is_wire, &found) != 1:
        return COLUMNS_MALFORMED
    return columns_put(c, m)
