"""Who waits for the disk with whom: acknowledgements of others do not send a sync to the worker."""

from __future__ import annotations

import os
import resource
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support import mqtt_log
from tests.support.mqtt_bench import PUBACK, PUBCOMP, MqttBench, ack, publish

FLOOR = 255  # files below a number do not count


def finish_sync(bench: MqttBench) -> None:
    """Wait for the worker, and tell the loop."""
    done = bench.events.readers["on_synced"]
    if select.select([done], [], [], 10)[0]:
        bench.loop.on_synced()
        bench.events.run()


def syncing_threads() -> int:
    """How many loops have handed over a sync."""
    return sum(each.name == "sync" for each in threading.enumerate())


@pytest.mark.parametrize(
    ("said", "is_handed_over"), [(ack(PUBCOMP, 1), False), (b"\xc0\0", True)], ids=["ack", "ping"]
)
def test_who_only_acknowledges_does_not_keep_a_sync_from_the_loop(
    tmp_path: Path, said: bytes, is_handed_over: bool
) -> None:
    bench = MqttBench(tmp_path, sync=True)
    publisher, reader = bench.client("p"), bench.client("r").subscribe(b"t")
    before = syncing_threads()

    publisher.socket.send(publish(b"t", b"1", qos=1))
    reader.socket.send(said)
    for client in (publisher, reader):
        client.link.on_readable()
    bench.events.run()

    assert syncing_threads() == before + is_handed_over
    if not is_handed_over:
        assert [each.kind for each in publisher.heard()] == [PUBACK]
    bench.close()


def test_who_waits_for_a_log_is_not_told_while_its_sync_runs(tmp_path: Path) -> None:
    """Who waited for a sync is told in portions, perhaps when the next one has begun: what that one
    covers is not on disk yet."""
    bench = MqttBench(tmp_path, sync=True)
    log = _core.SessionLog(bench.loop, str(tmp_path))
    clients = [bench.client(name) for name in "abc"]
    told: list[str] = []

    def first() -> None:
        told.append("first")
        bench.events.call_soon(ask)

    def ask() -> None:
        log.make(b"later")
        log.synced(lambda: told.append("later"))
        bench.loop.after_sync(lambda: None)
        for client in clients:  # so that the worker gets the next sync
            client.socket.send(b"\xc0\0")
            client.link.drain()

    bench.loop.portion_units = 1  # one of them in each turn
    log.make(b"session")
    bench.loop.after_sync(first)
    bench.loop.after_sync(lambda: None)  # a turn calls two
    log.synced(lambda: told.append("session"))
    bench.events.run()

    assert syncing_threads()
    assert told == ["first", "session"]

    for _ in range(2):
        if "later" not in told:
            finish_sync(bench)
    assert told == ["first", "session", "later"]
    log.close()
    bench.close()


def test_many_who_wait_for_a_log_are_told_in_portions(tmp_path: Path) -> None:
    bench = MqttBench(tmp_path)
    log = _core.SessionLog(bench.loop, str(tmp_path))
    bench.loop.portion_units = 1  # one of them in each turn
    told: list[int] = []
    log.make(b"session")
    for n in range(100):
        log.synced(partial(told.append, n))

    turns = 0
    while bench.events.ready:
        before = len(told)
        bench.events.ready.pop(0)()
        assert len(told) - before <= 2
        turns += 1

    assert told == list(range(100))
    log.close()
    bench.close()


def floors_in(directory: Path) -> Iterator[int]:
    """Numbers below which files of a log do not count, as those say that are there."""
    for path in sorted(directory.glob("mqtt_*.*")):
        for body in mqtt_log.bodies_in(path.read_bytes(), int(path.suffix[1:])):
            if body[0] == FLOOR:
                yield int.from_bytes(body[4:8], "little")


@contextmanager
def no_descriptor() -> Iterator[None]:
    """There is none meanwhile but those that are closed."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("kind", ["sessions", "retained"])
def test_files_count_until_what_has_taken_their_place_is_on_disk(tmp_path: Path, kind: str) -> None:
    """That they do not count was written with what replaces them, which may take several files. A
    loss of power left the one without the other, and all was lost that had been acknowledged."""
    bench = MqttBench(tmp_path, sync=True)
    clients = [bench.client(name) for name in "abc"]
    log = _core.SessionLog(bench.loop, str(tmp_path))
    retained = _core.RetainedStore(bench.loop, str(tmp_path))
    log.make(b"session")
    retained.put(b"topic", b"payload", 1, b"", 1)
    bench.events.run()
    first = tmp_path / f"mqtt_{kind}.0000000001"
    assert first.exists()

    while log.compact_some() if kind == "sessions" else retained.clean_some():
        pass
    for client in clients:  # so that the worker gets the sync
        client.socket.send(b"\xc0\0")
        client.link.on_readable()
    bench.events.run()

    assert first.exists()
    assert list(floors_in(tmp_path)) == []
    for _ in range(2):
        if first.exists():
            finish_sync(bench)
    assert not first.exists()
    assert list(floors_in(tmp_path)) == [2]
    log.close()
    retained.close()
    bench.close()


def test_a_log_is_compacted_where_no_descriptor_is_left(tmp_path: Path) -> None:
    """The file system is synced as a whole then. It was given up, and never begun again."""
    bench = MqttBench(tmp_path, sync=True)
    log = _core.SessionLog(bench.loop, str(tmp_path))
    log.make(b"session")
    bench.events.run()
    first = tmp_path / "mqtt_sessions.0000000001"
    assert first.exists()

    with no_descriptor():
        while log.compact_some():
            pass
    bench.events.run()
    for _ in range(2):
        if first.exists():
            finish_sync(bench)

    assert not first.exists()
    log.close()
    bench.close()
