"""Benches on directories of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.support.core import Bench

MakeBench = Callable[[Path], Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    """Call it with a directory; what it makes is closed at the end of the test."""
    with ExitStack() as stack:
        yield lambda directory: stack.enter_context(closing(Bench(directory)))
