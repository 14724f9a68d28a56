"""Queues to which nothing has come: one store for all of them, until the first message."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from lavinmq.stats.allocator import heap
from tests.support.core import Bench, publish


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as bench:
        yield bench


def send(bench: Bench, name: str, body: bytes) -> None:
    bench.send(publish(name.encode(), body))
    bench.run()


def test_a_message_is_in_its_queue_alone(bench: Bench, tmp_path: Path) -> None:
    queues = {name: bench.queue(name) for name in ("one", "other", "third")}

    send(bench, "one", b"a")
    send(bench, "third", b"bc")

    assert {name: queue.ready for name, queue in queues.items()} == {
        "one": 1, "other": 0, "third": 1,
    }  # fmt: skip
    assert [queue.n_segments for queue in queues.values()] == [1, 0, 1]
    assert [queue.directory for queue in queues.values()] == [
        str(tmp_path / name) for name in queues
    ]


def test_what_ends_without_a_message_leaves_the_others_alone(bench: Bench) -> None:
    first, second, third = (bench.queue(name) for name in ("first", "second", "third"))
    first.purge()
    first.close()
    second.delete()

    send(bench, "third", b"a")

    assert third.ready == 1
    assert first.directory.endswith("/first")


def test_a_queue_that_is_loaded_without_files_has_no_store(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    queue = _core.Queue(bench.loop, str(tmp_path / "kept"), 4096, True)

    assert queue.load() == []
    assert (queue.ready, queue.n_segments, queue.is_closed) == (0, 0, False)


def test_an_empty_queue_takes_few_bytes(bench: Bench, tmp_path: Path) -> None:
    gc.collect()
    before = heap().uordblks

    kept = [_core.Queue(bench.loop, str(tmp_path / f"q{n:04}"), 4096, False) for n in range(1000)]

    assert (heap().uordblks - before) / len(kept) < 500
