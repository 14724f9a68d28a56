"""Any files as the segments of a queue: refused, or all of it is read and it goes on from there.

An input is six lengths (uint16, big-endian) and the files msgs, acks and meta of segments 1 and 2;
a file of length 0 is missing.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from lavinmq import _core
from tests.fuzz.targets import Target
from tests.support.core import Bench, Got, publish

FILES = tuple(f"{kind}.{id:010}" for id in (1, 2) for kind in ("msgs", "acks", "meta"))
LENGTHS = struct.Struct(f">{len(FILES)}H")
SMALLEST_RECORD = 20
SEGMENT_SIZE = 4096
NAME = "q"


def pack(files: Sequence[bytes]) -> bytes:
    """Return the input that stands for these files, in the order of `FILES`."""
    return LENGTHS.pack(*map(len, files)) + b"".join(files)


def unpack(data: bytes, directory: Path) -> None:
    """Write the files an input stands for."""
    lengths = LENGTHS.unpack(data[: LENGTHS.size].ljust(LENGTHS.size, b"\0"))
    at = LENGTHS.size
    for name, length in zip(FILES, lengths, strict=True):
        if length:
            (directory / name).write_bytes(data[at : at + length])
        at += length


def get(bench: Bench, queue: _core.Queue, *, no_ack: bool) -> Got | None:
    """Return the next message, or None."""
    if not bench.link.get(1, queue, no_ack):
        return None
    bench.link.flush()
    (got,) = bench.receive()
    return got


def read_all(bench: Bench, queue: _core.Queue) -> int:
    """Take, requeue and take again every message; return how many there were."""
    held = 0
    while get(bench, queue, no_ack=False) is not None:
        held += 1
    bench.link.recover(1, True)
    count = 0
    while get(bench, queue, no_ack=True) is not None:
        count += 1
        bench.run()
    assert count == held
    assert queue.ready == queue.unacked == 0
    return count


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        with (
            tempfile.TemporaryDirectory(dir=directory) as own,
            closing(Bench(Path(own))) as bench,
        ):
            files = Path(own, NAME)
            files.mkdir()
            unpack(data, files)
            load_and_use(bench, files, most=len(data) // SMALLEST_RECORD)

    yield read


def load_and_use(bench: Bench, files: Path, most: int) -> None:
    """Load a directory, empty it, use it, and load it once more."""
    queue = _core.Queue(bench.loop, str(files), SEGMENT_SIZE, True)
    try:
        queue.load()
    except (ValueError, OSError) as error:
        assert NAME in str(error), "the error does not say which file"
        return
    assert read_all(bench, queue) <= most
    bench.exchange.bind(NAME.encode(), b"", queue)
    bench.send(publish(NAME.encode(), b"after the damage"))
    bench.run()
    queue.close()
    again = _core.Queue(bench.loop, str(files), SEGMENT_SIZE, True)
    again.load()
    got = get(bench, again, no_ack=True)
    assert got is not None
    assert got.body == b"after the damage"
    assert get(bench, again, no_ack=True) is None
    again.close()
    shutil.rmtree(files)
    assert not bench.failures
