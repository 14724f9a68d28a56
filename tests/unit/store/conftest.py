"""Benches on directories of a test's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.core import Bench, publish

MakeBench = Callable[[Path], Bench]


def fill(root: Path, name: str, segment_size: int, n: int, most: int) -> None:
    """Make a queue of numbered messages with less than so many random bytes, always the same."""
    with closing(Bench(root)) as bench:
        queue = bench.queue(name, segment_size)
        chance = random.Random(5)
        for number in range(n):
            body = b"%06d" % number + chance.randbytes(chance.randrange(most))
            bench.send(publish(name.encode(), body, b"\x10\0\x02"))
            bench.run()
        queue.close()


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """Call it with a directory; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda directory: stack.enter_context(closing(Bench(directory)))
