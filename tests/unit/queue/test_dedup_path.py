"""Deduplication in the message path: when a key is asked for, remembered, written, forgotten."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, frame, publish

HEADER = b"x-deduplication-header"
BOOT = 11
HEADERS_FLAG = b"\x20\x00"
RETURN = struct.pack(">HH", 60, 50)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A link and an exchange."""
    with closing(Bench(tmp_path)) as made:
        yield made


def keyed(queue: str, key: str, body: bytes = b"body") -> bytes:
    """A publish to a queue, of a message with this key."""
    value = b"S" + struct.pack(">I", len(key)) + key.encode()
    table = bytes([len(HEADER)]) + HEADER + value
    return publish(queue.encode(), body, HEADERS_FLAG + struct.pack(">I", len(table)) + table)


def cache(bench: Bench, path: Path | None = None, size: int = 100) -> _core.DedupCache:
    """A cache whose file the loop writes."""
    return _core.DedupCache(bench.loop, HEADER, size, -1, str(path) if path else None, BOOT)


def keys_in(path: Path) -> int:
    """How many keys a file holds."""
    made = _core.DedupCache(None, HEADER, 1000, -1, None, BOOT)
    assert made.load(path.read_bytes()) == 0
    return len(made)


def broken_queue(bench: Bench, name: str) -> _core.Queue:
    """A durable queue that cannot be written: a file stands where its directory should be."""
    queue = bench.queue(name)
    (bench.directory / name).write_bytes(b"")
    return queue


def test_a_queue_stores_a_key_once_and_other_queues_do_not_care(bench: Bench) -> None:
    """edge-cases.md 222"""
    queue, plain = bench.queue("q"), bench.queue("plain")
    queue.set_dedup(cache(bench))

    bench.send(keyed("q", "a") + keyed("q", "a") + keyed("q", "b"))
    bench.send(keyed("plain", "a") + keyed("plain", "a"))

    assert (queue.ready, plain.ready) == (2, 2)
    assert (queue.counters()["dedup"], queue.counters()["publish"]) == (1, 2)
    assert plain.counters()["dedup"] == 0


def test_an_exchange_routes_a_key_once(bench: Bench) -> None:
    """edge-cases.md 221"""
    queue = bench.queue("q")
    bench.exchange.set_dedup(cache(bench))

    bench.send(keyed("q", "a") + keyed("q", "a"))

    assert queue.ready == 1
    counters = bench.exchange.counters()
    assert (counters["dedup"], counters["publish_in"], counters["publish_out"]) == (1, 2, 1)
    assert counters["unroutable"] == 0


def test_a_message_that_no_queue_took_may_come_again(bench: Bench) -> None:
    """amqp.md 22.10"""
    bench.exchange.set_dedup(cache(bench))
    bench.send(keyed("q", "a"))
    queue = bench.queue("q")

    bench.send(keyed("q", "a"))

    assert queue.ready == 1
    assert bench.exchange.counters()["dedup"] == 0


def test_a_message_that_its_queue_dropped_may_come_again_elsewhere(bench: Bench) -> None:
    """amqp.md 22.10: the exchange remembers nothing that the queue's own cache has dropped."""
    queue = bench.queue("q")
    queue.set_dedup(cache(bench))
    bench.send(keyed("q", "a"))
    seen_by_exchange = cache(bench)
    bench.exchange.set_dedup(seen_by_exchange)

    bench.send(keyed("q", "a"))

    assert (queue.ready, len(seen_by_exchange)) == (1, 0)


def test_a_consumed_message_is_still_a_duplicate(bench: Bench) -> None:
    queue = bench.queue("q")
    queue.set_dedup(cache(bench))
    bench.send(keyed("q", "a"))
    assert bench.link.get(1, queue, True)
    bench.run()

    bench.send(keyed("q", "a"))

    assert queue.ready == 0


def test_the_keys_of_a_tick_are_written_at_its_end(bench: Bench, tmp_path: Path) -> None:
    queue = bench.queue("q")
    queue.set_dedup(cache(bench, tmp_path / "of-queue"))
    bench.exchange.set_dedup(cache(bench, tmp_path / "of-exchange"))

    bench.send(b"".join(keyed("q", str(number)) for number in range(40)))
    assert not (tmp_path / "of-queue").exists()
    bench.run()

    assert keys_in(tmp_path / "of-queue") == keys_in(tmp_path / "of-exchange") == 40


def test_an_exchange_keeps_the_keys_of_durable_queues_only(bench: Bench, tmp_path: Path) -> None:
    """What a restart takes from a transient queue may come again."""
    durable, transient = bench.queue("durable"), bench.queue("transient", durable=False)
    keys = cache(bench, tmp_path / "keys")
    bench.exchange.set_dedup(keys)

    bench.send(keyed("durable", "a") + keyed("transient", "b") + keyed("transient", "b"))
    bench.run()

    assert (durable.ready, transient.ready) == (1, 1)
    assert (len(keys), keys_in(tmp_path / "keys")) == (2, 1)
    assert bench.exchange.counters()["dedup"] == 1


def test_a_queue_that_breaks_takes_the_keys_of_its_lost_messages_along(
    bench: Bench, tmp_path: Path
) -> None:
    """amqp.md 22.10: a nacked message is not taken for a duplicate when it is sent again."""
    broken, healthy = broken_queue(bench, "broken"), bench.queue("healthy")
    of_broken, of_healthy = cache(bench, tmp_path / "1"), cache(bench, tmp_path / "2")
    of_exchange = cache(bench, tmp_path / "3")
    broken.set_dedup(of_broken)
    healthy.set_dedup(of_healthy)
    bench.exchange.set_dedup(of_exchange)

    bench.send(keyed("healthy", "before"))
    bench.run()
    bench.send(keyed("broken", "a") + keyed("healthy", "b"))
    bench.run()

    assert broken.is_closed
    assert not healthy.is_closed
    assert (len(of_broken), len(of_healthy), len(of_exchange)) == (0, 2, 1)
    assert not (tmp_path / "1").exists()
    assert (keys_in(tmp_path / "2"), keys_in(tmp_path / "3")) == (2, 1)


def test_keys_that_cannot_be_written_are_written_with_the_next_tick(
    bench: Bench, tmp_path: Path
) -> None:
    queue = bench.queue("q")
    keys = cache(bench, tmp_path / "later" / "keys")
    queue.set_dedup(keys)
    bench.send(keyed("q", "a"))
    bench.run()
    assert keys.take_news() == 2
    (tmp_path / "later").mkdir()

    bench.send(publish(b"q", b"without a key"))
    bench.run()

    assert keys.take_news() == 0
    assert keys_in(tmp_path / "later" / "keys") == 1


def test_a_cache_released_in_the_middle_of_a_tick_is_not_written(
    bench: Bench, tmp_path: Path
) -> None:
    queues = [bench.queue(name) for name in "abc"]
    caches = [cache(bench, tmp_path / f"keys-{number}") for number in range(3)]
    for queue, keys in zip(queues, caches, strict=True):
        queue.set_dedup(keys)
    bench.send(b"".join(keyed(name, "1") for name in "abc"))

    queues[1].delete()
    caches[1].release()
    bench.run()

    assert [(tmp_path / f"keys-{number}").exists() for number in range(3)] == [True, False, True]


@pytest.mark.parametrize(
    ("flags", "code"), [(0, None), (1, 312), (2, 313), (3, 313)],
    ids=["plain", "mandatory", "immediate", "both"],
)  # fmt: skip
def test_a_duplicate_counts_as_not_routed(bench: Bench, flags: int, code: int | None) -> None:
    queue = bench.queue("q")
    bench.exchange.set_dedup(cache(bench))
    bench.send(keyed("q", "a"))
    method = frame(1, b"\0\x3c\0\x28\0\0\0" + b"\x01q" + bytes([flags]))

    bench.send(method + keyed("q", "a")[len(method) :])
    bench.run()

    try:
        sent = bench.client.recv(1 << 16)
    except BlockingIOError:
        sent = b""
    assert queue.ready == 1
    assert (RETURN in sent) == (code is not None)
    if code is not None:
        at = sent.index(RETURN)
        assert struct.unpack_from(">H", sent, at + 4) == (code,)


def test_in_a_transaction_only_the_first_of_a_key_is_committed(bench: Bench) -> None:
    queue = bench.queue("q")
    keys = cache(bench)
    bench.exchange.set_dedup(keys)
    bench.link.select_transactions(1)

    bench.send(keyed("q", "a") + keyed("q", "a") + keyed("q", "b"))
    assert len(keys) == 0
    bench.link.rollback(1)
    assert len(keys) == 0
    bench.send(keyed("q", "a") + keyed("q", "a") + keyed("q", "b"))
    assert bench.link.commit(1) is None

    assert (queue.ready, len(keys)) == (2, 2)
