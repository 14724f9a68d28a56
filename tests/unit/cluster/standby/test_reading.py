"""What is read ahead and what is left to the start, what is read again and when."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pika
import pika.exceptions
import pytest

from lavinmq.cluster import frames
from lavinmq.cluster.following import Following
from lavinmq.cluster.history import History
from lavinmq.cluster.standby import Standby
from lavinmq.files import json_file
from lavinmq.files.directories import hashed
from lavinmq.files.standing import Standing
from lavinmq.policy.parameters import Parameter
from lavinmq.process.systemd import Service
from lavinmq.server import Server
from tests.support.inside import Inside
from tests.support.standby import (
    LATE,
    NAMES,
    Leader,
    Node,
    channel,
    have_all,
    is_same_as_a_start,
    picture,
    ready,
    reconnect,
    standby_of,
    taken,
)
from tests.unit.cluster.test_changes import until


def test_nothing_is_written_for_it(leader: Leader, node: Node) -> None:
    with channel(leader.broker.port) as ch:
        for name in NAMES:
            ch.queue_declare(name, durable=True)
            for _ in range(100):
                ch.basic_publish("", name, b"m" * 100)
            ch.queue_declare(f"{name}-stream", durable=True, arguments={"x-queue-type": "stream"})
            ch.basic_publish("", f"{name}-stream", b"m")
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    before = {path: path.lstat() for path in node.copy.root.rglob("*")}
    have_all(leader, node)
    assert ready(node) >= set(NAMES)
    after = {path: path.lstat() for path in node.copy.root.rglob("*")}
    assert {p: (s.st_size, s.st_mtime_ns, s.st_ino) for p, s in after.items()} == {
        p: (s.st_size, s.st_mtime_ns, s.st_ino) for p, s in before.items()
    }


def test_what_a_start_would_put_right_is_left_to_it(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    with channel(leader.broker.port) as ch:
        for name in "ab":
            ch.queue_declare(name, durable=True)
            ch.basic_publish("", name, b"m")
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    (segment,) = node.copy.root.glob(f"*/{hashed('a')}/msgs.*")
    with segment.open("ab") as file:
        file.write(b"half of a record")
    have_all(leader, node)
    assert ready(node) == {"b"}
    is_same_as_a_start(leader, node, tmp_path)


@pytest.mark.parametrize("what", ["declare", "bind", "exchange", "policy", "limit", "parameter"])
def test_a_virtual_host_whose_rules_have_changed_is_read_anew(
    leader: Leader, node: Node, tmp_path: Path, what: str
) -> None:
    inside = leader.inside
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        assert ready(node) == {"a"}
        if what == "declare":
            ch.queue_declare("b", durable=True)
        elif what == "bind":
            ch.queue_bind("a", "amq.topic", "k")
        elif what == "exchange":
            ch.exchange_declare("x", "fanout", durable=True)
    rules = inside.vhost().rules
    if what == "policy":
        inside.put_policy("p", "^a$", {"max-length": 3}, apply_to="queues")
    elif what == "limit":
        inside.call(rules.limits.set, "max-queues", 7)
    elif what == "parameter":
        inside.call(rules.parameters.put, Parameter("mqtt", "p", {"a": 1}))
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    assert ready(node) == set()
    node.look()
    assert ready(node) >= {"a"}
    is_same_as_a_start(leader, node, tmp_path)


def test_what_is_declared_and_bound_is_made_up_for(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    """Not by reading all of it: others declare all the time."""
    with channel(leader.broker.port) as ch:
        for name in "abc":
            ch.queue_declare(name, durable=True)
            ch.queue_bind(name, "amq.topic", "k")
        have_all(leader, node)
        vhost = node.ready.vhosts["/"]
        queue = vhost.queues["a"]

        def follows() -> None:
            have_all(leader, node)
            assert node.ready.vhosts["/"] is vhost
            assert vhost.queues["a"] is queue

        ch.queue_declare("d", durable=True, arguments={"x-max-length": 1})
        follows()
        assert ready(node) == set("abcd")
        ch.queue_delete("b")
        ch.queue_unbind("c", "amq.topic", "k")
        ch.exchange_declare("x", "fanout", durable=True)
        ch.exchange_bind("x", "amq.topic", "k.#")
        ch.queue_bind("d", "x", "")
        follows()
        ch.queue_delete("d")
        ch.queue_declare("d", durable=True, arguments={"x-max-priority": 3})
        ch.queue_bind("d", "x", "")
        ch.exchange_unbind("x", "amq.topic", "k.#")
        ch.exchange_bind("x", "amq.topic", "#")
        for _ in range(5):
            ch.basic_publish("amq.topic", "k.1", b"m", pika.BasicProperties(priority=1))
        follows()
        assert ready(node) == set("acd")
    is_same_as_a_start(leader, node, tmp_path)


def test_what_is_defined_in_the_end_is_made_up_for_by_who_takes_over(
    leader: Leader, node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with channel(leader.broker.port) as ch:
        for name in "abc":
            ch.queue_declare(name, durable=True)
            ch.basic_publish("", name, b"m")
        have_all(leader, node)
        ch.queue_delete("b")
        ch.queue_declare("d", durable=True)
        ch.queue_bind("d", "amq.topic", "k")
        ch.basic_publish("amq.topic", "k", b"n")
        with caplog.at_level(logging.INFO):
            is_same_as_a_start(leader, node, tmp_path)
    assert "2 of 3 queues stood ready" in caplog.text


@pytest.mark.parametrize(
    ("how", "leader"),
    [("exchange", {}), ("compaction", {"max_deleted_definitions": 100}), ("policy", {})],
    ids=["exchange", "compaction", "policy"], indirect=["leader"],
)  # fmt: skip
def test_what_cannot_be_made_up_for_is_read_anew(
    leader: Leader, node: Node, tmp_path: Path, how: str
) -> None:
    inside = leader.inside
    with channel(leader.broker.port) as ch:
        ch.exchange_declare("x", "fanout", durable=True)
        ch.queue_declare("a", durable=True)
        ch.queue_bind("a", "x", "")
        have_all(leader, node)
        vhost = node.ready.vhosts["/"]
        if how == "exchange":
            ch.exchange_delete("x")
        elif how == "policy":
            inside.put_policy("p", "^a$", {"max-length": 3}, apply_to="queues")
            ch.queue_declare("b", durable=True)
        else:
            (file,) = leader.root.glob("*/definitions.amqp")
            inode = file.stat().st_ino
            while file.stat().st_ino == inode:  # it is written anew after enough deletions
                for _ in range(50):
                    ch.queue_declare("b", durable=True)
                    ch.queue_delete("b")
        have_all(leader, node)
        assert node.ready.vhosts["/"] is not vhost
        assert "a" in ready(node)
    is_same_as_a_start(leader, node, tmp_path)


@pytest.mark.parametrize("how", ["thread", "steps", "failure"])
def test_who_leads_in_the_middle_of_news_goes_on_or_reads_anew(
    leader: Leader, node: Node, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """The task was cancelled while a thread had the news, or before all of it was done."""
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        for name in "bcd":
            ch.queue_declare(name, durable=True)
            ch.basic_publish("", name, b"m")
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    vhost = node.ready.vhosts["/"]
    ahead = vhost.ahead
    assert ahead is not None
    assert ahead.begin()
    news = ahead.news()
    assert news is not None
    assert len(news) == 3
    if how != "thread":
        ahead.steps = vhost.catch_up(news, is_read=False)
        node.call(next, ahead.steps)
        assert set(vhost.queues) == {"a", "b"}
    if how == "failure":
        vhost.queues["c"] = vhost.queues["b"]
    assert ready(node) == set()
    with caplog.at_level(logging.INFO):
        is_same_as_a_start(leader, node, tmp_path)
    assert ("queues stood ready" in caplog.text) is (how == "steps")


def test_virtual_hosts_come_and_go(leader: Leader, node: Node, tmp_path: Path) -> None:
    inside = leader.inside
    have_all(leader, node)
    assert set(node.ready.vhosts) == {"/"}
    inside.submit(inside.inner.vhosts.create, "v").result(20)
    have_all(leader, node)
    assert set(node.ready.vhosts) == {"/", "v"}
    inside.submit(inside.inner.vhosts.delete, "/").result(20)
    have_all(leader, node)
    assert set(node.ready.vhosts) == {"v"}
    inside.submit(inside.inner.vhosts.create, "w").result(20)
    inside.submit(inside.inner.vhosts.delete, "v").result(20)
    fresh = taken(leader, node, tmp_path)
    with closing(SimpleNamespace(close=fresh.stop)):
        again = Inside(fresh)
        assert node.picture() == again.call(picture, again.inner)
    assert node.server is not None
    assert set(node.server.broker.vhosts) == {"w"}


def test_what_is_done_in_part_does_not_count(leader: Leader, node: Node) -> None:
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        ch.basic_publish("", "a", b"m")
        have_all(leader, node)
        assert ready(node) == {"a"}
        (segment,) = node.copy.root.glob(f"*/{hashed('a')}/msgs.*")
        shutil.rmtree(segment.parent)  # the file of deleted messages cannot be made
        ch.basic_ack(ch.basic_get("a")[0].delivery_tag)
        ch.queue_declare("b", durable=True)
        leader.mark()
    until(lambda: bool(node.copy.ends))
    assert node.copy.ends[0][0] == "refused"
    assert ready(node) == set()


@pytest.mark.parametrize("is_reset", [False, True])
def test_what_stands_ready_goes_with_the_files_it_was_read_from(
    leader: Leader, node: Node, is_reset: bool
) -> None:
    copy = node.copy
    following: Any = SimpleNamespace(follower=copy.follower, is_joined=True)

    async def take() -> Server | None:
        events = asyncio.get_running_loop()
        stands = Standby(node.config, events, Service({}), copy.follower.ring, lambda: following)
        task = events.create_task(stands.run())
        while stands.status()["vhosts"] == 0:
            await asyncio.sleep(0.01)
        copy.cut()
        copy.follower.close()
        if is_reset:
            copy.follower.ring.reset(7)
        await stands.stop()
        await task
        server = stands.take()
        assert stands.take() is None
        assert stands.status() == {"vhosts": 0, "queues": 0, "ready_queues": 0}
        stands.close()
        if server is not None:
            assert set(server.broker.vhosts.ready) == {"/"}
            server.cut()
            server.broker.loop.stop()
            server.broker.vhosts.ready["/"].abandon()
        return server

    assert leader.mark() >= 0
    assert (asyncio.run(take()) is None) is is_reset


def test_after_a_reconnect_queues_become_ready_again(leader: Leader, node: Node) -> None:
    with channel(leader.broker.port) as ch:
        for name in "ab":
            ch.queue_declare(name, durable=True)
        have_all(leader, node)
        assert ready(node) == {"a", "b"}
        reconnect(node)
        have_all(leader, node)
        assert ready(node) == {"a", "b"}
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        have_all(leader, node)
        node.look()
    assert ready(node) == {"a", "b"}


@pytest.mark.parametrize("is_cut", [False, True])
def test_files_that_a_join_replaces_do_not_count(
    leader: Leader, node: Node, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """They are others from the first that is in its place, also if the join ends before the last:
    nothing of that is in the log."""
    ring = node.copy.follower.ring
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        assert ready(node) == {"a"}
        stands = standby_of(node)
        node.copy.cut()
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        leader.mark()

    def place() -> None:
        assert ring.n_resets != node.ready.n_resets, "who leads now would take what was"
        for path in leader.root.glob(f"*/{hashed('a')}/*"):
            shutil.copy(path, node.copy.root / path.relative_to(leader.root))
        node.ready.n_resets = ring.n_resets  # what stands ready is made meanwhile
        if is_cut:
            raise OSError(errno.EIO, "no more of it")

    following: Any = Following(
        "tcp://127.0.0.1:1", "me", b"", ring, str(node.copy.root),
        Standing(str(node.copy.root)), History(), certificates=None, call=print, key=str,
        on_dead=bool, on_disk=print,
    )  # fmt: skip
    copy = SimpleNamespace(take=lambda _: 0, place=place, n_same=0, n_compared=0)
    monkeypatch.setattr(frames, "receive", lambda _: {"place": True})
    monkeypatch.setattr(frames, "send", lambda *_: None)
    with suppress(OSError):
        following._copy(None, copy, 0.0)
    assert node.call(stands.take) is None


def test_a_file_that_could_not_be_read_for_a_moment_does_not_count(
    leader: Leader, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with EMFILE, EIO, ENOMEM: the standby goes on without parameters, and so does the leader
    that comes of it."""

    rules = leader.inside.vhost().rules
    leader.inside.call(rules.parameters.put, Parameter("shovel", "p", {
        "src-uri": "amqp://127.0.0.1:1", "src-queue": "a", "dest-uri": "amqp://127.0.0.1:1",
        "dest-queue": "b",
    }))  # fmt: skip
    real = json_file.read_regular

    def fails(path: str) -> bytes:
        if path.startswith(str(node.copy.root)) and path.endswith("parameters.json"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path)

    monkeypatch.setattr(json_file, "read_regular", fails)
    have_all(leader, node)
    monkeypatch.setattr(json_file, "read_regular", real)
    is_same_as_a_start(leader, node, tmp_path)


def test_a_queue_is_read_in_portions(leader: Leader, node: Node) -> None:
    n = 30_000
    with channel(leader.broker.port) as ch:
        ch.exchange_declare(
            "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", leader.broker.port))
    ch = connection.channel()
    for _ in range(n):
        ch.basic_publish("late", "", b"m" * 100, pika.BasicProperties(
            delivery_mode=2, headers={"x-delay": LATE}))  # fmt: skip
    connection.close()
    until(lambda: leader.inside.queue("amq.delayed-late").core.ready == n)
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    node.look()
    assert ready(node) == set()  # its index would be made in one step


def test_what_has_changed_is_not_told_to_be_ready(leader: Leader, node: Node) -> None:
    stands = standby_of(node)
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True)
        have_all(leader, node)
        assert stands.status()["ready_queues"] == 1
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        position = leader.mark()
        until(lambda: node.copy.follower.synced >= position)
        assert ready(node) == set()
        vhost = node.ready.vhosts["/"]
        for _ in vhost.look_again(0):
            pass
    assert stands.status()["ready_queues"] == 0
