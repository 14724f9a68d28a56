# arrow_input: columns of an Arrow batch as C sees them; included by arrow.pyx.
#
# A column is borrowed: its buffers stay pyarrow's, and whoever keeps a text_t keeps the array, too.
# What Arrow says about lengths is checked against the buffers (the number of offsets and of values
# when a column is opened, each offset when it is used), so that a broken column ends a task and not
# its process. Layouts taken: string and binary with offsets of 32 or 64 bits, integers of 8 to 64
# bits, map of string to string. Validity is a bitmap, or absent when nothing is null.
#
# Source: Arrow columnar format, "Variable-size Binary Layout", "Map Layout".

cdef struct slice_t:
    const u8 *p
    i64 n

cdef struct text_t:
    const u8 *valid             # bitmap, NULL = all are valid
    const u8 *ends              # offsets of the first row, NULL = no such column
    const u8 *data
    i64 data_n
    i64 at                      # rows that the array skips: they are in the bitmap only
    bint wide                   # offsets of 64 bits

cdef struct number_t:
    const u8 *valid
    const u8 *values            # of the first row, NULL = no such column
    i64 at
    int width

cdef struct map_t:
    const u8 *valid
    const u8 *ends              # 32 bits each, NULL = no such column
    i64 at
    i64 entries
    text_t key
    text_t value

# Stands for offsets, values or data where a column has none: a pointer to nothing, but no NULL.
cdef u8 NOTHING[8]
memset(NOTHING, 0, sizeof(NOTHING))

cdef dict NUMBER_WIDTHS = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}


cdef inline bint bit_at(const u8 *bits, i64 at) noexcept nogil:
    return bits == NULL or (bits[at >> 3] >> (at & 7)) & 1


# hot
cdef inline int text_get(text_t *t, i64 row, slice_t *s) noexcept nogil:
    """Find the value of a row: 1 = found, 0 = null or no column, -1 = it is outside of the data.

    What is not found is empty.
    """
    cdef i64 start, end
    s.p, s.n = NOTHING, 0
    if t.ends == NULL or not bit_at(t.valid, t.at + row):
        return 0
    if t.wide:
        start = <i64>le64(t.ends + 8 * row)
        end = <i64>le64(t.ends + 8 * row + 8)
    else:
        start = <i32>le32(t.ends + 4 * row)
        end = <i32>le32(t.ends + 4 * row + 4)
    if start < 0 or end < start or end > t.data_n:
        return -1
    s.p = t.data + start
    s.n = end - start
    return 1


# hot
cdef inline bint number_get(number_t *t, i64 row, i64 *value) noexcept nogil:
    if t.values == NULL or not bit_at(t.valid, t.at + row):
        return False
    if t.width == 8:
        value[0] = <i64>le64(t.values + 8 * row)
    elif t.width == 4:
        value[0] = <i32>le32(t.values + 4 * row)
    elif t.width == 2:
        value[0] = <short>le16(t.values + 2 * row)
    else:
        value[0] = <signed char>t.values[row]
    return True


# ---- opening

cdef const u8 *buffer_open(object buffer, list held, i64 *size) except? NULL:
    """Return where a pyarrow buffer (or None) begins; `held` keeps it alive."""
    cdef const u8[::1] view
    size[0] = 0
    if buffer is None or len(buffer) == 0:
        return NULL
    held.append(buffer)
    view = memoryview(buffer).cast("B")
    size[0] = view.shape[0]
    return &view[0]


cdef const u8 *bitmap_open(object buffer, list held, i64 values) except? NULL:
    cdef i64 size = 0
    cdef const u8 *bits = buffer_open(buffer, held, &size)
    if bits != NULL and size < (values + 7) // 8:
        raise ValueError("a bitmap is too short")
    return bits


cdef int text_open(text_t *t, object array, list held) except -1:
    """Borrow a column of strings or binaries; None = there is none."""
    cdef i64 size = 0, width, values
    memset(t, 0, sizeof(text_t))
    if array is None:
        return 0
    kind = str(array.type)
    if kind not in ("string", "binary", "large_string", "large_binary"):
        raise ValueError(f"a column of type {kind} is no text")
    valid, ends, data = array.buffers()
    t.wide = kind.startswith("large_")
    width = 8 if t.wide else 4
    t.at = array.offset
    values = t.at + len(array)
    t.valid = bitmap_open(valid, held, values)
    t.data = buffer_open(data, held, &t.data_n)
    if t.data == NULL:
        t.data = NOTHING
    t.ends = buffer_open(ends, held, &size)
    if t.ends == NULL or size < (values + 1) * width:
        if values:
            raise ValueError("a column has too few offsets")
        t.ends = NOTHING
        return 0
    t.ends += t.at * width
    return 0


cdef int number_open(number_t *t, object array, list held) except -1:
    """Borrow a column of signed integers; None = there is none."""
    cdef i64 size = 0, values
    memset(t, 0, sizeof(number_t))
    if array is None:
        return 0
    kind = str(array.type)
    if kind not in NUMBER_WIDTHS:
        raise ValueError(f"a column of type {kind} is no number")
    valid, data = array.buffers()
    t.width = NUMBER_WIDTHS[kind]
    t.at = array.offset
    values = t.at + len(array)
    t.valid = bitmap_open(valid, held, values)
    t.values = buffer_open(data, held, &size)
    if size < values * t.width:
        raise ValueError("a column has too few values")
    if t.values == NULL:
        t.values = NOTHING
    else:
        t.values += t.at * t.width
    return 0


cdef int map_open(map_t *m, object array, list held) except -1:
    """Borrow a column of maps of strings; None = there is none."""
    cdef i64 size = 0, values
    memset(m, 0, sizeof(map_t))
    if array is None:
        return 0
    if str(array.type) != "map<string, string>":
        raise ValueError(f"a column of type {array.type} is no map of strings")
    valid, ends = array.buffers()[:2]
    m.at = array.offset
    values = m.at + len(array)
    m.valid = bitmap_open(valid, held, values)
    m.ends = buffer_open(ends, held, &size)
    if m.ends == NULL or size < (values + 1) * 4:
        if values:
            raise ValueError("a column has too few offsets")
        m.ends = NOTHING
        return 0
    m.ends += m.at * 4
    keys, items = array.keys, array.items
    m.entries = len(keys)
    if len(items) != len(keys):
        raise ValueError("a map has not as many values as keys")
    text_open(&m.key, keys, held)
    text_open(&m.value, items, held)
    return 0
