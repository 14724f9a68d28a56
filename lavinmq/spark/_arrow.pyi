"""Messages as Arrow columns, compiled from cext/arrow.pyx; needs pyarrow when a batch is taken."""

from typing import final

import pyarrow as pa

@final
class Columns:
    """A batch of messages that is being filled.

    Args: names: columns of `lavinmq.spark.schema.SEGMENT_COLUMNS`, in the order of the batch, each
    once; queue, vhost, queue_type: the same in all rows, where these columns are wanted.
    Raises: ValueError for a name that is no column.
    One thread at a time; compiled code adds rows with `columns_add` (cext/arrow_columns.pyx).
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
