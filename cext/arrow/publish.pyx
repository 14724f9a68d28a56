# arrow_publish: the door of the sink, `Encoder`; included by arrow.pyx.
#
# `load` borrows the buffers of the columns of one batch, `encode` makes a block of frames, and the
# Encoder itself is that block: it is written to a socket as it stands. One task owns one Encoder.

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING

TEXT_COLUMNS = (
    "exchange", "routing_key", "body", "table", "id", "queue", "content_type",
    "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type",
    "user_id", "app_id",
)
NUMBER_COLUMNS = ("delivery_mode", "priority", "message_timestamp", "offset")
cdef dict DEDUP_MODES = {"none": DEDUP_NONE, "row": DEDUP_ROW, "id": DEDUP_ID}


class RowError(ValueError):
    """A row that cannot be sent as a message; the text is one line with its number and column."""


cdef class Encoder:
    """Makes basic.publish, header and body frames of the rows of Arrow batches.

    Args: channel: its number; frame_max: of the connection, bytes; exchange, routing_key: used for
    all rows instead of the columns, None = the columns; mandatory: as of basic.publish;
    delivery_mode: written when there is no such column; dedup: `none`, `row` or `id`; row_prefix:
    the ids of rows are this, a slash and the number of the row in the task, from 0.

    The buffer protocol gives the last block; it is valid until the next `encode`.
    """

    cdef encoder_t enc
    cdef object held            # the buffers that enc points at
    cdef bytes exchange
    cdef bytes routing_key
    cdef bytes row_prefix
    cdef int exports

    def __cinit__(
        self, *, int channel=1, i64 frame_max=131072, exchange=None, routing_key=None,
        bint mandatory=False, int delivery_mode=2, str dedup="none", str row_prefix="",
    ):
        cdef encoder_t *e = &self.enc
        if frame_max < 4096:
            raise ValueError(f"frame_max {frame_max} is less than AMQP allows")
        e.channel, e.chunk = channel, frame_max - FRAME_OVERHEAD
        e.mandatory, e.delivery_mode = mandatory, delivery_mode
        e.dedup = DEDUP_MODES[dedup]
        self.exchange = short_option("exchange", exchange, SHORT_MAX)
        self.routing_key = short_option("routingKey", routing_key, SHORT_MAX)
        self.row_prefix = short_option("the prefix of ids", row_prefix, SHORT_MAX - 1 - ROW_DIGITS)
        slice_of(self.exchange, &e.exchange)
        slice_of(self.routing_key, &e.routing_key)
        slice_of(self.row_prefix, &e.prefix)

    def __dealloc__(self):
        free(self.enc.out)

    def load(self, dict columns, i64 rows):
        """Go on with the rows of another batch.

        Args: columns: Arrow arrays by the names of COLUMNS, each of `rows` values.
        Raises: ValueError for an array of another type or length, or whose buffers are too short.
        """
        cdef encoder_t *e = &self.enc
        cdef int which
        unknown = set(columns) - set(TEXT_COLUMNS) - set(NUMBER_COLUMNS) - {"headers"}
        if unknown:
            raise ValueError(f"no column of a message: {', '.join(sorted(unknown))}")
        for name, array in columns.items():
            if len(array) != rows:
                raise ValueError(f"column {name} has {len(array)} rows instead of {rows}")
        e.row_base += e.row
        e.row = e.rows = 0
        held = []
        for which, name in enumerate(TEXT_COLUMNS):
            text_open(&e.texts[which], columns.get(name), held)
        for which, name in enumerate(NUMBER_COLUMNS):
            number_open(&e.numbers[which], columns.get(name), held)
        map_open(&e.map, columns.get("headers"), held)
        self.held = held
        e.rows = rows

    def encode(self, i64 most):
        """Make a block of the next rows, `most` at most; return how many it holds.

        Raises: RowError for a row that cannot be sent; the rows before it in this block are lost.
        """
        cdef i64 n
        if self.exports:
            raise BufferError("the last block is still in use")
        with nogil:
            n = encode_rows(&self.enc, most)
        if n < 0:
            raise fault_error(&self.enc.fault)
        return n

    @property
    def rows_left(self):
        """Rows of the batch that are not encoded yet."""
        return self.enc.rows - self.enc.row

    def __len__(self):
        return self.enc.out_n

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.enc.out, self.enc.out_n, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


cdef object short_option(str what, value, i64 most):
    if value is None:
        return None
    data = value.encode() if isinstance(value, str) else bytes(value)
    if len(data) > most:
        raise ValueError(f"{what} has {len(data)} bytes, {most} are allowed")
    return data


cdef void slice_of(bytes data, slice_t *s):
    s.p = <const u8 *>PyBytes_AS_STRING(data) if data is not None else NULL
    s.n = len(data) if data is not None else 0


cdef object fault_error(fault_t *fault):
    column, size = fault.column.decode(), fault.size
    if fault.why == FAULT_MEMORY:
        return MemoryError(f"no memory for {size} bytes of row {fault.row}")
    if fault.why == FAULT_SHORT:
        what = f"has {size} bytes, AMQP allows {SHORT_MAX}"
    elif fault.why == FAULT_RANGE:
        what = f"is {size}, AMQP allows 0 to 255"
    elif fault.why == FAULT_NO_ID:
        what = "is null or empty, an id is needed"
    elif fault.why == FAULT_HEADERS:
        what = f"make properties of {size} bytes, more than a frame of this connection holds"
    else:
        what = "has lengths that do not fit its buffers"
    return RowError(f"row {fault.row} of the task: {column} {what}")
