# Arrow batch: the class `Columns` that owns a batch, and the way from its buffers to pyarrow.
#
# pyarrow is imported when a batch is taken, never at build time: buffers are handed over by the
# buffer protocol, without a copy.

cdef object COLUMN_KINDS = {
    "offset": COLUMN_INT64,
    "timestamp": COLUMN_TIME,
    "exchange": COLUMN_TEXT,
    "routing_key": COLUMN_TEXT,
    "body": COLUMN_BINARY,
    "content_type": COLUMN_TEXT,
    "content_encoding": COLUMN_TEXT,
    "delivery_mode": COLUMN_INT8,
    "priority": COLUMN_INT16,
    "correlation_id": COLUMN_TEXT,
    "reply_to": COLUMN_TEXT,
    "expiration": COLUMN_TEXT,
    "message_id": COLUMN_TEXT,
    "type": COLUMN_TEXT,
    "user_id": COLUMN_TEXT,
    "app_id": COLUMN_TEXT,
    "message_timestamp": COLUMN_TIME,
    "headers": COLUMN_MAP,
    "headers_json": COLUMN_TEXT,
    "segment": COLUMN_INT32,
    "position": COLUMN_INT64,
    "acked": COLUMN_BOOL,
    "queue": COLUMN_CONSTANT,
    "vhost": COLUMN_CONSTANT,
    "queue_type": COLUMN_CONSTANT,
}

# The bit of each property's flag.
cdef object PROPERTY_BITS = {
    "content_type": 15,
    "content_encoding": 14,
    "headers": HEADERS_BIT,
    "delivery_mode": DELIVERY_MODE_BIT,
    "priority": PRIORITY_BIT,
    "correlation_id": 10,
    "reply_to": 9,
    "expiration": 8,
    "message_id": 7,
    "message_timestamp": TIMESTAMP_BIT,
    "type": 5,
    "user_id": 4,
    "app_id": 3,
}

cdef object KIND_TYPES = {
    COLUMN_INT8: "int8",
    COLUMN_INT16: "int16",
    COLUMN_INT32: "int32",
    COLUMN_INT64: "int64",
    COLUMN_BOOL: "bool_",
    COLUMN_TEXT: "string",
    COLUMN_CONSTANT: "string",
    COLUMN_BINARY: "binary",
}

cdef u32 kind_width(column_kind kind):
    """Bytes of a fixed value, or of an offset; 0 for bits and what has no values."""
    if kind == COLUMN_INT64 or kind == COLUMN_TIME:
        return 8
    if kind == COLUMN_INT8 or kind == COLUMN_INT16:
        return 1 if kind == COLUMN_INT8 else 2
    return 0 if kind == COLUMN_BOOL or kind == COLUMN_CONSTANT else 4


cdef object arrow_type(pa, column_kind kind):
    if kind == COLUMN_TIME:
        return pa.timestamp("us", tz="UTC")
    if kind == COLUMN_MAP:
        return pa.map_(pa.string(), pa.string())
    return getattr(pa, KIND_TYPES[kind])()


cdef void columns_bind(columns_t* c, str name, column_t* col) except *:
    """Let a column receive the values of its name."""
    if name == "offset":
        c.offset = col
    elif name == "timestamp":
        c.timestamp = col
    elif name == "exchange":
        c.exchange = col
    elif name == "routing_key":
        c.routing_key = col
    elif name == "body":
        c.body = col
    elif name == "position":
        c.position = col
    elif name == "segment":
        c.segment = col
    elif name == "acked":
        c.acked = col
    elif name == "headers_json":
        c.headers_json = col
        c.wanted |= 1 << HEADERS_BIT
    elif name in PROPERTY_BITS:
        c.property_[<int>PROPERTY_BITS[name]] = col
        c.wanted |= 1 << <int>PROPERTY_BITS[name]


cdef object column_nulls(column_t* col, u64 n_rows):
    """Count of nulls; the bitmap, or None when there are none and none is needed."""
    if col.n_valid == n_rows:
        return 0, None
    return n_rows - col.n_valid, memory_of(&col.validity, (n_rows + 7) >> 3)


cdef object column_take_map(pa, kind, column_t* col, u64 n_rows):
    """The finished map column: offsets, and below them a struct of keys and items."""
    cdef buf_t bits
    cdef u64 i, n_valid = 0
    if map_begin(col):
        raise MemoryError
    bits.n = (col.n_items + 7) >> 3
    bits.p = <u8*>calloc(1, bits.n + 1)
    if bits.p == NULL:
        raise MemoryError
    for i in range(col.n_items):
        bits.p[i >> 3] |= <u8>(col.item_valid.p[i] << (i & 7))
        n_valid += col.item_valid.p[i]
    valid = buf_release(&bits)
    text = pa.string()
    keys = pa.Array.from_buffers(
        text, col.n_items,
        [None, pa.py_buffer(buf_release(&col.key_ends)), pa.py_buffer(buf_release(&col.data))], 0,
    )
    items = pa.Array.from_buffers(
        text, col.n_items,
        [pa.py_buffer(part) for part in (
            valid, buf_release(&col.item_ends), buf_release(&col.item_data),
        )],
        col.n_items - n_valid,
    )
    entries = pa.Array.from_buffers(
        pa.struct([pa.field("key", text, nullable=False), pa.field("value", text)]),
        col.n_items, [None], 0, children=[keys, items],
    )
    n_nulls, validity = column_nulls(col, n_rows)
    offsets = memory_of(&col.values, (n_rows + 1) * 4)
    return pa.Array.from_buffers(
        kind, n_rows,
        [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets)],
        n_nulls, children=[entries],
    )


cdef object column_take(pa, kind, column_t* col, u64 n_rows):
    """The finished column as an array of that type; its memory goes with it."""
    if col.kind >= COLUMN_TEXT:
        column_end_all(col, n_rows)
    if col.kind == COLUMN_MAP:
        return column_take_map(pa, kind, col, n_rows)
    n_nulls, validity = column_nulls(col, n_rows)
    buffers = [None if validity is None else pa.py_buffer(validity)]
    if col.kind >= COLUMN_TEXT:
        buffers.append(pa.py_buffer(memory_of(&col.values, (n_rows + 1) * 4)))
        buffers.append(pa.py_buffer(buf_release(&col.data)))
    elif col.kind == COLUMN_BOOL:
        buffers.append(pa.py_buffer(memory_of(&col.values, (n_rows + 7) >> 3)))
    else:
        buffers.append(pa.py_buffer(memory_of(&col.values, n_rows * col.width)))
    return pa.Array.from_buffers(kind, n_rows, buffers, n_nulls)


cdef void column_free(column_t* col) noexcept:
    """Free what is left, and start anew."""
    free(col.validity)
    free(col.values)
    col.validity = col.values = NULL
    buf_free(&col.data)
    buf_free(&col.key_ends)
    buf_free(&col.item_ends)
    buf_free(&col.item_data)
    buf_free(&col.item_valid)
    col.n_valid = col.n_ended = col.n_items = 0


@cython.final
cdef class Columns:
    """A batch of messages that is being filled; see `_arrow.pyi`."""

    cdef columns_t c
    cdef readonly tuple names
    cdef dict constants
    cdef object schema

    def __cinit__(self, tuple names, *, str queue="", str vhost="", str queue_type=""):
        cdef column_t* col
        if not 0 < len(names) <= MAX_COLUMNS or len(set(names)) < len(names):
            raise ValueError("a batch needs columns, each once")
        self.names = names
        self.constants = {"queue": queue, "vhost": vhost, "queue_type": queue_type}
        for name in names:
            if name not in COLUMN_KINDS:
                raise ValueError(f"unknown column {name!r}")
            col = &self.c.column[self.c.n_columns]
            col.kind = COLUMN_KINDS[name]
            col.width = kind_width(col.kind)
            columns_bind(&self.c, name, col)
            self.c.n_columns += 1

    def __dealloc__(self):
        cdef int i
        for i in range(self.c.n_columns):
            column_free(&self.c.column[i])

    @property
    def n_rows(self):
        return self.c.n_rows

    @property
    def n_bytes(self):
        return self.c.n_bytes

    @property
    def n_repaired(self):
        return self.c.n_repaired

    def add(
        self, bytes exchange, bytes routing_key, bytes properties, bytes body, *,
        offset=None, timestamp_ms=None, segment=None, position=None, acked=None, bint wire=True,
    ):
        cdef message_t m
        cdef int rc
        if len(exchange) > 255 or len(routing_key) > 255:
            raise ValueError("names have at most 255 bytes")
        m.exchange, m.exchange_len = <const u8*>exchange, <u32>len(exchange)
        m.routing_key, m.routing_key_len = <const u8*>routing_key, <u32>len(routing_key)
        m.props, m.props_len = <const u8*>properties, <u64>len(properties)
        m.body, m.body_len = <const u8*>body, <u64>len(body)
        m.offset = COLUMNS_NONE if offset is None else offset
        m.timestamp_ms = COLUMNS_NONE if timestamp_ms is None else timestamp_ms
        m.segment = COLUMNS_NONE if segment is None else segment
        m.position = COLUMNS_NONE if position is None else position
        m.is_acked = -1 if acked is None else bool(acked)
        m.is_wire = wire
        with nogil:
            rc = columns_add(&self.c, &m)
        return columns_said(rc)

    def take(self):
        cdef int i
        cdef column_t* col
        import pyarrow as pa

        if self.schema is None:
            self.schema = pa.schema([
                (name, arrow_type(pa, COLUMN_KINDS[name])) for name in self.names
            ])
        if self.c.row_cap == 0 and columns_grow(&self.c):
            raise MemoryError
        arrays = []
        for i in range(self.c.n_columns):
            col = &self.c.column[i]
            kind = self.schema.field(i).type
            if col.kind == COLUMN_CONSTANT:
                value = pa.scalar(self.constants[self.names[i]], kind)
                arrays.append(pa.repeat(value, self.c.n_rows))
            else:
                arrays.append(column_take(pa, kind, col, self.c.n_rows))
        self._start_anew()
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    cdef void _start_anew(self) except *:
        """Forget all rows; the next batch starts with the size of this one."""
        cdef int i
        for i in range(self.c.n_columns):
            column_free(&self.c.column[i])
        self.c.n_rows = self.c.n_bytes = 0
        if columns_grow(&self.c):
            raise MemoryError


cdef bint columns_said(int rc) except -1:
    """Whether a message was added; False when the rows have to be taken first."""
    if rc == COLUMNS_MALFORMED:
        raise ValueError("the properties of a message are malformed")
    if rc == COLUMNS_TOO_LARGE:
        raise ValueError("a message is too large for a column: 2 GiB")
    if rc == NO_MEMORY:
        raise MemoryError
    return rc == COLUMNS_ADDED
