"""Any bytes from a broker, through the decoder of Spark's tasks: valid rows of the range, or none.

The first byte says where the input is cut: rows are the same however it arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lavinmq.spark._arrow import Columns, Decoder
from lavinmq.spark.schema import COLUMNS
from tests.fuzz.targets import Target

START, END = 2, 1 << 40


class Reading:
    """A decoder with all columns, and what has come out of it."""

    def __init__(self) -> None:
        self._columns = Columns(tuple(COLUMNS), queue="q")
        self._decoder = Decoder(self._columns, START, END, batch_rows=7, batch_bytes=5000)
        self._is_over = False
        self.batches: list[Any] = []
        self.frames: list[tuple[int, int, bytes]] = []

    def feed(self, data: bytes) -> None:
        """Receive bytes; what comes behind an error or the end of the range is not looked at."""
        while data and not self._is_over:
            room = self._decoder.room()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            self._decoder.received(size)
            data = data[size:]
            try:
                self._run()
            except ValueError:
                self._is_over = True

    def rows(self) -> Any:
        """All rows as one table."""
        import pyarrow as pa

        self._take()
        return pa.Table.from_batches(self.batches)

    def _run(self) -> None:
        while (result := self._decoder.run()) != Decoder.MORE:
            if result == Decoder.FULL:
                self._take()
            elif result == Decoder.FRAME:
                self.frames.append(self._decoder.frame)
            else:
                self._is_over = True
                return

    def _take(self) -> None:
        batch = self._columns.take()
        batch.validate(full=True)
        self.batches.append(batch)


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        cut, data = (data[0], data[1:]) if data else (0, b"")
        whole, split = Reading(), Reading()
        whole.feed(data)
        at = len(data) * cut // 256
        split.feed(data[:at])
        split.feed(data[at:])
        rows = whole.rows()
        assert rows.equals(split.rows())
        assert whole.frames == split.frames
        offsets = rows.column("offset").to_pylist()
        assert offsets == sorted(set(offsets))
        assert all(START <= offset < END for offset in offsets)

    yield read
