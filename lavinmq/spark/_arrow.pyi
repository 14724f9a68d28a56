"""Messages as Arrow columns, compiled from cext/arrow.pyx; needs pyarrow when a batch is taken."""

from typing import ClassVar, final

import pyarrow as pa

TEXT_COLUMNS: tuple[str, ...]
NUMBER_COLUMNS: tuple[str, ...]

class RowError(ValueError):
    """A row that cannot be sent as a message; the text is one line with its number and column."""

@final
class Encoder:
    """Rows of Arrow batches as frames of basic.publish; the buffer protocol gives the last block.

    `load` borrows the columns of a batch, `encode` makes a block of the next rows, `most` at most,
    and returns how many it holds. See cext/arrow/publish.pyx.
    """

    def __init__(
        self,
        *,
        channel: int = 1,
        frame_max: int = 131072,
        exchange: str | bytes | None = None,
        routing_key: str | bytes | None = None,
        mandatory: bool = False,
        delivery_mode: int = 2,
        dedup: str = "none",
        row_prefix: str = "",
    ) -> None: ...
    def load(self, columns: dict[str, pa.Array], rows: int) -> None: ...
    def encode(self, most: int) -> int: ...
    @property
    def rows_left(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Confirms:
    """Counts acks and nacks of a channel; `feed` returns the other methods, (channel, payload)."""

    def __init__(self, *, window: int, frame_max: int = 131072) -> None: ...
    def sent(self, messages: int) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[int, bytes]]: ...
    @property
    def unconfirmed(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def confirmed(self) -> int: ...
    @property
    def nacked(self) -> int: ...
    @property
    def first_nacked(self) -> int | None: ...

@final
class Memory:
    """A finished buffer that pyarrow reads by the buffer protocol."""

@final
class Columns:
    """A batch of messages that is being filled.

    Args: names: columns of `lavinmq.spark.schema.SEGMENT_COLUMNS`, in the order of the batch, each
    once; queue, vhost, queue_type: the same in all rows, where these columns are wanted.
    Raises: ValueError for a name that is no column.
    One thread at a time; compiled code adds rows with `columns_add` (cext/arrow/columns.pyx).
    """

    def __init__(
        self, names: tuple[str, ...], *, queue: str = "", vhost: str = "", queue_type: str = ""
    ) -> None: ...
    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in their order."""
    @property
    def n_rows(self) -> int:
        """Messages added since the last `take`."""
    @property
    def n_bytes(self) -> int:
        """Bytes of all their texts and bodies."""
    @property
    def n_repaired(self) -> int:
        """Strings that were not UTF-8 and were changed, since the object was made."""
    def add(
        self,
        exchange: bytes,
        routing_key: bytes,
        properties: bytes,
        body: bytes,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        segment: int | None = None,
        position: int | None = None,
        acked: bool | None = None,
        wire: bool = True,
    ) -> bool:
        """Add one message; the slow way, for tests and rare messages.

        Args: properties: flags and properties, as in a content header, or with `wire=False` as in
        a segment file. Returns: False if it was not added because the columns would pass 2 GiB:
        take the rows, and add it again.
        Raises: ValueError if the properties are malformed, or the message alone passes 2 GiB.
        """
    def take(self) -> pa.RecordBatch:
        """Hand over all rows, possibly none, without copying them, and start anew."""

@final
class Decoder:
    """Rows of a range of a stream, out of the bytes that its consumer receives.

    Args: columns: where the rows go; start, end: the offsets [start, end) become rows, others are
    dropped; batch_rows, batch_bytes: how much is a batch, at most 2 Mi and 256 MiB, with one
    message more; frame_max: most bytes of payload of a frame; channel: that of the consumer.
    Raises: ValueError for a batch of another size.
    Receive into `room`, tell with `received`, then `run` until it says MORE. One thread at a time.
    """

    MORE: ClassVar[int]
    FULL: ClassVar[int]
    FRAME: ClassVar[int]
    END: ClassVar[int]

    frame: tuple[int, int, bytes]
    """Type, channel and payload of what `run` stopped at; only after FRAME."""

    def __init__(
        self,
        columns: Columns,
        start: int,
        end: int,
        *,
        batch_rows: int = 10_000,
        batch_bytes: int = 16_777_216,
        frame_max: int = 131_072,
        channel: int = 1,
    ) -> None: ...
    @property
    def next_offset(self) -> int:
        """The offset behind the last row: where to go on after a reconnect."""
    @property
    def tag(self) -> int:
        """Delivery tag of the latest delivery; 0 before the first one."""
    @property
    def gap(self) -> tuple[int, int] | None:
        """From where to where offsets were missing in the last `run`: the begin of the first gap,
        and the end of the last one, which is the offset of a row."""
    def room(self) -> memoryview:
        """Where to receive to. After MORE there is room for a whole frame at least."""
    def received(self, n: int) -> None:
        """Say that n bytes of `room` are filled. Raises: ValueError when it is not that long."""
    def run(self) -> int:
        """Use up what was received: MORE when it is used up, FULL when a batch is (take it from the
        columns), FRAME at something that is no delivery, END when the range is finished.

        Raises: ValueError for bytes that are no deliveries of a stream; MemoryError.
        Cost: 0.1 us for a small message and two columns.
        """
    def reset(self) -> None:
        """Begin anew with the bytes of another connection; rows and `next_offset` stay."""

@final
class Scanner:
    """The way through the records of one segment file.

    Args: columns: where the rows go; segment: its number, for the column; offset: of its first
    record, None where there are none; acks: content of its acks file, None when there is none of
    that kind (streams); with_acked: whether deleted records become rows too; offsets, times_ms:
    [from, to) of what is wanted; pattern: 16 bytes of the filling behind the data, or none.
    """

    MORE: ClassVar[int]
    """The data end before the next record does; `needed` bytes of it were asked for."""
    FULL: ClassVar[int]
    """Rows enough: take them, and scan on from `position`."""
    END: ClassVar[int]
    """A timestamp of zero, or the last offset that was wanted."""
    TORN: ClassVar[int]
    """Parts of the next record were never written."""
    CORRUPT: ClassVar[int]
    """What stands there is no record."""

    def __init__(
        self,
        columns: Columns,
        *,
        segment: int | None = None,
        offset: int | None = None,
        acks: bytes | None = None,
        with_acked: bool = False,
        offsets: tuple[int, int] | None = None,
        times_ms: tuple[int, int] | None = None,
        pattern: bytes = b"",
    ) -> None: ...
    def scan(
        self,
        data: bytes | bytearray | memoryview,
        position: int,
        *,
        start: int = 0,
        max_rows: int = 2097152,
        max_bytes: int = 2147483647,
    ) -> int:
        """Make rows of the records from data[start] on, which is at `position` of the file.

        Returns why it stopped. Raises: ValueError for a message that passes 2 GiB.
        Cost: 0.2 us for a small record and all columns but headers, without the GIL.
        """
    @property
    def position(self) -> int:
        """Place in the file of the first record that was not taken."""
    @property
    def needed(self) -> int:
        """How many bytes from `position` on the last scan asked for."""
    @property
    def n_records(self) -> int:
        """Whole records passed, wanted or not."""
    @property
    def offset(self) -> int | None:
        """Offset of the next record."""
    @offset.setter
    def offset(self, value: int) -> None: ...

def walk(data: bytes | bytearray | memoryview, start: int = 0) -> tuple[int, int, int, int]:
    """Return why a walk over the records stops (as `Scanner.scan`), where, the beginning of the
    last whole record, and how many there are; places are in the data. Cost: 10 ns a record."""

def resume(
    data: bytes | bytearray | memoryview,
    *,
    position: int = 0,
    pattern: bytes = b"",
    oldest_ms: int = 0,
) -> tuple[int, int] | None:
    """Return where records go on behind the damage that the data begin with, and how many follow:
    a chain that runs exactly to the end of the data (zeros and filling left out). None without one.

    Args: data: at most 256 MiB, from the damage to the end of the file; position: where in the file
    that is; oldest_ms: no record is older. Cost: about 2 ns a byte.
    """
