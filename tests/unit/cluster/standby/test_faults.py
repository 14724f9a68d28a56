"""What a standby keeps, says and does again when clients or the machine are unkind to it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pika.exceptions
import pytest

from lavinmq.cluster import standby
from lavinmq.cluster.standby import Standby, _Ready
from lavinmq.errors import DefinitionsError
from lavinmq.process.systemd import Service
from lavinmq.vhost import ahead
from lavinmq.vhost.queue_files import QueueFiles
from lavinmq.vhost.vhost import VHost
from tests.support.standby import Leader, Node, channel, have_all, ready
from tests.unit.cluster.test_changes import until


def test_it_reads_again_and_again_and_keeps_nothing_of_before(leader: Leader, node: Node) -> None:
    read: list[weakref.ref[VHost]] = []
    with channel(leader.broker.port) as ch:
        for number in range(80):
            ch.queue_declare(f"q{number}", durable=True)
            ch.basic_publish("", f"q{number}", b"m")
            leader.inside.put_policy("p", "^a$", {"max-length": number})  # all is read anew
            have_all(leader, node)
            read.append(weakref.ref(node.ready.vhosts["/"]))
    gc.collect()
    assert len({id(each) for each in read}) == 80
    assert [each for each in read[:-1] if each() is not None and each() is not read[-1]()] == []
    assert len(node.ready._events._kept) < 100
    assert ready(node) == {f"q{number}" for number in range(80)}


def test_without_a_garbage_collector_nothing_is_left(leader: Leader, node: Node) -> None:
    """That of a node looks at all there is once in days."""
    read: list[weakref.ref[VHost]] = []
    queues: set[weakref.ref[Any]] = set()
    gc.disable()
    try:
        with channel(leader.broker.port) as ch:
            for number in range(10):
                ch.queue_declare(f"q{number}", durable=True)
                ch.queue_bind(f"q{number}", "amq.topic", "k")
                have_all(leader, node)
                vhost = node.ready.vhosts["/"]
                read.append(weakref.ref(vhost))
                queues |= {weakref.ref(each) for each in vhost.queues.values()}
                if number % 3 == 2:
                    ch.queue_delete(f"q{number}")
                elif number % 3 == 1:  # all is read anew
                    leader.inside.put_policy("p", "^a$", {"max-length": number})
        now = node.ready.vhosts["/"]
        left = sum(each() is not None and each() is not now for each in read)
        n_left = sum(each() is not None for each in queues) - len(now.queues)
    finally:
        gc.enable()
    assert left <= standby.KEPT
    assert n_left == 0


@pytest.mark.parametrize(("is_anew", "rounds", "most"), [(True, 30, 40_000), (False, 150, 8000)])
def test_what_is_read_again_takes_no_more_memory(
    leader: Leader, node: Node, is_anew: bool, rounds: int, most: int
) -> None:
    """Also below Python, and with a garbage collector: `is_paused = False` puts each queue on the
    tick's list, which holds it, and nobody has a tick."""
    n = 400

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    with channel(leader.broker.port) as ch:
        for number in range(n):
            ch.queue_declare(f"q{number}", durable=True)
        have_all(leader, node)
        before = 0
        for number in range(10 + rounds):
            if number == 10:
                before = node.call(resident)
            if is_anew:
                leader.inside.put_policy("p", "^a$", {"max-length": number})
            else:
                ch.queue_declare(f"more-{number}", durable=True)
                ch.queue_bind(f"more-{number}", "amq.topic", "k")
            have_all(leader, node)
            if not is_anew:
                ch.queue_delete(f"more-{number}")
        have_all(leader, node)
        grown = node.call(resident) - before
    assert len(ready(node)) == n
    assert grown / rounds < most


def test_letting_go_leaves_no_descriptors_and_no_threads(leader: Leader, node: Node) -> None:
    have_all(leader, node)
    ring = node.copy.follower.ring

    def once() -> None:
        made = _Ready(node.config, node.events, Service({}), ring.n_resets)
        made.drop()

    def again() -> tuple[int, int]:
        for _ in range(20):
            node.call(once)
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    node.call(once)
    before = again()
    after = again()
    assert after[0] <= before[0] + 2
    assert after[1] <= before[1]


def test_a_follower_says_nothing_again_and_again(
    leader: Leader, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    leader.inside.put_policy("p", "^a$", {"ha-mode": "all"}, apply_to="queues")
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    caplog.clear()
    with channel(leader.broker.port) as ch, caplog.at_level(logging.INFO):
        for number in range(5):
            ch.queue_declare(f"q{number}", durable=True)
            have_all(leader, node)
    assert [each.message for each in caplog.records if "policy" in each.message] == []


def test_a_vhost_of_which_there_is_something_to_say_keeps_no_other_from_being_read(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "SHARE", 50)
    monkeypatch.setattr(standby, "AGAIN_S", 2.0)
    inside = leader.inside
    for name in "abcdefg":
        inside.submit(inside.inner.vhosts.create, name).result(20)
    with channel(leader.broker.port) as ch:  # a client may: it gets as many as there can be
        ch.queue_declare("d", durable=True, arguments={
            "x-message-deduplication": True, "x-cache-size": 2**31})  # fmt: skip
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    node.look()
    every: Any = dict.fromkeys(["/", *"abcdefg"])  # sets have any order
    node.ready._names = every
    for name in "abcdefg":
        node.ready.vhosts.pop(name, None)
    for _ in range(5):
        time.sleep(standby.TURN_S)
        node.look()
    assert set(node.ready.vhosts) >= set("abcdefg")


def test_what_a_client_declares_does_not_end_the_standby_of_all(leader: Leader, node: Node) -> None:
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        assert ready(node) == {"a"}
        ch.queue_declare("d", durable=True, arguments={
            "x-message-deduplication": True, "x-cache-size": 2**31})  # fmt: skip
        have_all(leader, node)
    assert ready(node) == {"a"}


def test_what_cannot_be_read_is_not_read_again_and_again(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Definitions that make no sense stay in the file; each look parses all of it in a thread."""
    monkeypatch.setattr(standby, "SHARE", 50)
    monkeypatch.setattr(standby, "AGAIN_S", 2.0)
    calls: list[Path] = []

    def look(path: Path) -> Any:
        calls.append(path)
        time.sleep(0.2)
        raise DefinitionsError("definitions that make no sense")

    monkeypatch.setattr(ahead, "Reader", look)
    for _ in range(4):
        node.look()
        time.sleep(standby.TURN_S)
    assert len(calls) == 1


def test_what_a_load_would_put_right_is_not_read_again_while_nothing_changes(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue with counts of messages that have gone since: a load would write these anew, so it is
    never ready, and read at each look."""

    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True, arguments={"x-delivery-limit": 5})
        for _ in range(3):
            ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        for _ in range(2):
            method, _, _ = ch.basic_get("a")
            ch.basic_nack(method.delivery_tag, requeue=True)
        method, _, _ = ch.basic_get("a")
        ch.basic_ack(method.delivery_tag)
    have_all(leader, node)
    n = 0
    real = QueueFiles.load_ahead

    def counted(*args: Any) -> None:
        nonlocal n
        n += 1
        real(*args)

    monkeypatch.setattr(QueueFiles, "load_ahead", counted)
    for _ in range(5):
        node.look()
    assert n <= 1


def test_a_moment_without_threads_does_not_end_the_standby_for_good(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RuntimeError: can't start new thread. A follower tries again (following.py)."""

    copy = node.copy
    following: Any = SimpleNamespace(follower=copy.follower, is_joined=True)
    monkeypatch.setattr(standby, "TURN_S", 0.01)

    async def live() -> int:
        events = asyncio.get_running_loop()
        real = events.run_in_executor
        n = 0

        def fails(*args: Any) -> Any:
            nonlocal n
            n += 1
            if n == 1:
                raise RuntimeError("can't start new thread")
            return real(*args)

        monkeypatch.setattr(events, "run_in_executor", fails)
        stands = Standby(node.config, events, Service({}), copy.follower.ring, lambda: following)
        task = events.create_task(stands.run())
        await asyncio.sleep(1)
        found = int(stands.status()["vhosts"])
        await stands.stop()
        await task
        stands.close()
        return found

    assert leader.mark() >= 0
    assert asyncio.run(live()) == 1
