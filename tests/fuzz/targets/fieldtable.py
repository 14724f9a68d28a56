"""Any bytes as a field table: the Python decoder and the check in the frame walker agree on it.

What decodes survives being written again from its values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lavinmq import fieldtable
from tests.fuzz.targets import Target
from tests.support.core import Bench, publish

KEY = b"q"
FLAG_HEADERS = b"\x20\x00"


class Walker:
    """Tells whether the frame walker takes a table as the headers of a message."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._queue = bench.queue("q", durable=False)

    def accepts(self, table: bytes) -> bool:
        """Publish a message with these headers, and forget it."""
        self._bench.session.events.clear()
        self._bench.send(publish(KEY, b"", FLAG_HEADERS + table))
        refused = bool(self._bench.session.events)
        assert self._queue.purge() == (not refused)
        self._bench.run()
        if refused:  # the publish still waits for a proper header
            self._bench.link.close_channel(1, False)
            self._bench.link.open_channel(1, 0)
        return not refused


def check_rewritten(table: fieldtable.FieldTable) -> None:
    """A table made from the values of this one means the same."""
    content = fieldtable.encode(dict(table))
    again = fieldtable.from_content(content)
    assert again == table
    assert hash(again) == hash(table)
    assert fieldtable.encode(dict(again)) == content
    assert fieldtable.amended(table, {"x": 1}, removed=["y"])["x"] == 1


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    with closing(Bench(directory)) as bench:
        walker = Walker(bench)

        def read(content: bytes) -> None:
            table = struct.pack(">I", len(content)) + content
            accepted = len(content) < 100_000 and walker.accepts(table)
            try:
                decoded, end = fieldtable.decode(table)
            except fieldtable.FieldTableError as error:
                # The walker allows one level more; nothing is decoded there.
                assert not accepted or "nested deeper" in str(error), error
                return
            assert end == len(table)
            assert accepted or len(content) >= 100_000 or deep(content)
            check_rewritten(decoded)

        yield read


def deep(content: bytes) -> bool:
    """Whether so many tables may be in each other that the two count them differently."""
    return content.count(b"F") + content.count(b"A") >= fieldtable.MAX_DEPTH
