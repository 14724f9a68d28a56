"""Messages as Arrow columns, compiled from cext/arrow.pyx; needs pyarrow when a batch is taken."""

from typing import Any

TEXT_COLUMNS: tuple[str, ...]
NUMBER_COLUMNS: tuple[str, ...]

class RowError(ValueError):
    """A row that cannot be sent as a message; the text is one line with its number and column."""

class Encoder:
    """Rows of Arrow batches as frames of basic.publish; the buffer protocol gives the last block.

    `load` borrows the columns of a batch, `encode` makes a block of the next rows, `most` at most,
    and returns how many it holds. See cext/arrow_publish.pyx.
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
    def load(self, columns: dict[str, Any], rows: int) -> None: ...
    def encode(self, most: int) -> int: ...
    @property
    def rows_left(self) -> int: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

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
