"""What stands ready on a follower is, once it is taken, what a start would read from its files.

A broker's changes go by a feed to a follower's directory while a standby reads that one, at any
moments of any history. Then the standby is started, and beside it another broker on a copy of the
same files: they have to hold the same, and leave the same files behind.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pika
import pika.exceptions
import pytest

import lavinmq
from lavinmq import _core
from lavinmq._cluster import Feed, Ring
from lavinmq.broker import Broker
from lavinmq.cluster import standby
from lavinmq.cluster.standby import Standby, _Ready
from lavinmq.config.values import from_keywords
from lavinmq.definitions_json import export
from lavinmq.errors import DefinitionsError
from lavinmq.files.directories import hashed
from lavinmq.policy.parameters import Parameter
from lavinmq.process.systemd import Service
from lavinmq.server import Server
from lavinmq.vhost.ahead import Place
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.vhost import VHost
from tests.support.inside import Inside
from tests.unit.cluster.test_changes import SMALL, Copy, until

T = TypeVar("T")
SETTINGS: dict[str, Any] = {
    "amqp_port": 0, "amqp_tls_port": 0, "mgmt_port": -1, "mgmt_tls_port": -1, "mqtt_port": -1,
    "metrics_http_port": -1, "mqtt_tls_port": -1, "control_unix_path": "", "segment_size": 4096,
    "sync": False,
}  # fmt: skip
SEEDS = int(os.environ.get("LAVINMQ_STANDBY_SEEDS", "6"))
FIRST_SEED = int(os.environ.get("LAVINMQ_FIRST_SEED", "1"))
KINDS: list[dict[str, Any]] = [
    {}, {}, {"x-max-priority": 3}, {"x-max-length": 7}, {"x-message-ttl": 3_600_000},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-max-length": 3},
    {"x-message-deduplication": True, "x-cache-size": 100}, {"x-queue-type": "stream"},
    {"x-overflow": "reject-publish", "x-max-length": 5},
]  # fmt: skip
NAMES = "abcdef"
LATE = 10**9
"""Milliseconds."""


class Leader:
    """A broker whose changes go to who follows."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.broker = lavinmq.run(data_dir=root, **SETTINGS)
        self.inside = Inside(self.broker)
        self.feed = Feed(Ring(SMALL))
        self.inside.call(self._observe)

    def _observe(self) -> None:
        loop = self.inside.inner.loop
        _core.observe_copies(loop, str(self.root), self.feed.note, self.feed.address)
        loop.wait_for_copies(self.feed.fileno())

    def mark(self) -> int:
        """The position behind all that was changed so far."""
        return self.inside.call(self._mark)

    def _mark(self) -> int:
        self.inside.inner.loop.tick()
        return self.feed.mark()

    def close(self) -> None:
        """Stop it."""
        self.broker.stop()


class Node:
    """An event loop in a thread, for what stands ready on a follower and what comes of it."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy
        self.config = from_keywords({**SETTINGS, "data_dir": str(copy.root)})
        self.events = asyncio.new_event_loop()
        self.ready = _Ready(self.config, self.events, Service({}), copy.follower.ring.n_resets)
        self.server: Server | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.events.run_forever()
        if self.server is not None:
            self.server.release()
        else:
            self.ready.drop()
        self.events.run_until_complete(self.events.shutdown_default_executor())
        self.events.close()

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """What a function returns, on the loop."""
        result: Future[T] = Future()

        def do() -> None:
            try:
                result.set_result(function(*args))
            except BaseException as error:  # noqa: BLE001 - for who has asked
                result.set_exception(error)

        self.events.call_soon_threadsafe(do)
        return result.result(20)

    def look(self) -> None:
        """Read what can be read now; files may be anything while they are changed."""
        copy = self.copy
        place = Place(lambda: copy.follower.applied, copy.follower.ring.is_same)
        work = self.ready.go_on(place)
        with suppress(DefinitionsError, OSError):
            asyncio.run_coroutine_threadsafe(work, self.events).result(20)

    def start(self) -> None:
        """Nobody else changes the files any more: start."""
        self.server = server = self.ready.let_go()
        server.start()

    def picture(self) -> dict[str, Any]:
        """What it has, once it leads."""
        assert self.server is not None
        return self.call(picture, self.server.broker)

    def close(self) -> None:
        """Stop it."""
        if self.server is not None:
            self.events.call_soon_threadsafe(self.server.stop)
        else:
            self.events.call_soon_threadsafe(self.events.stop)
        self._thread.join(20)


def picture(broker: Broker) -> dict[str, Any]:
    """What a broker holds."""
    return {
        "definitions": sorted(repr(row) for row in export.rows(broker)),
        "queues": {
            (vhost.name, queue.name): of(queue)
            for vhost in broker.vhosts.values() for queue in vhost.queues.values()
        },
    }  # fmt: skip


def of(queue: Queue) -> tuple[object, ...]:
    """What is known of a queue before anybody uses it."""
    core = queue.core
    return (
        core.ready, core.ready_bytes, core.is_paused, core.is_closed, core.n_segments,
        repr(queue.features), queue.is_internal, repr(queue.arguments),
        None if queue.dedup is None else queue.dedup.n_keys if hasattr(queue.dedup, "n_keys")
        else True,
    )  # fmt: skip


def files(root: Path) -> dict[str, bytes]:
    """All files of virtual hosts, but what tells when a stream's epochs began."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("?" * 40 + "/**/*"))
        if path.is_file() and path.name not in ("epochs", "created")
    }


@contextmanager
def channel(port: int) -> Iterator[Any]:
    """A channel with confirms."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    try:
        opened = connection.channel()
        opened.confirm_delivery()
        yield opened
    finally:
        if connection.is_open:
            connection.close()


def drained(port: int, names: list[str]) -> dict[str, list[tuple[object, ...]]]:
    """All messages of some queues, in their order."""
    found: dict[str, list[tuple[object, ...]]] = {}
    with channel(port) as ch:
        for name in names:
            rows = found[name] = []
            while True:
                method, properties, body = ch.basic_get(name)
                if method is None:
                    break
                rows.append((body, method.redelivered, method.routing_key, properties.priority))
    return found


class Story:
    """Any history of a leader by a seed."""

    def __init__(self, leader: Leader, seed: int) -> None:
        self.leader = leader
        self.chance = random.Random(seed)
        self.n = 0
        self.kinds: dict[str, dict[str, Any]] = {}

    def change(self, ch: Any, *, defines: bool) -> None:
        """One thing that clients or operators do. Args: defines: maybe one that changes more than
        messages."""
        chance = self.chance
        name = chance.choice(NAMES)
        acts = ["publish"] * 8 + ["take"] * 4 + ["purge", "pause", "requeue"]
        if defines:
            acts += ["declare"] * 3 + ["delete", "bind", "policy", "exchange"]
        elif name not in self.kinds:
            return
        act = chance.choice(acts)
        if name not in self.kinds and act not in ("policy", "exchange"):
            act = "declare"
        getattr(self, f"_{act}")(ch, name)

    def _declare(self, ch: Any, name: str) -> None:
        if name not in self.kinds:
            arguments = self.chance.choice(KINDS)
            ch.queue_declare(name, durable=True, arguments=arguments)
            self.kinds[name] = arguments

    def _publish(self, ch: Any, name: str) -> None:
        for _ in range(self.chance.choice([1, 1, 3, 40])):
            self.n += 1
            properties = pika.BasicProperties(
                delivery_mode=2, priority=self.chance.randrange(4),
                headers={"x-deduplication-header": f"{self.chance.randrange(50)}", "x-delay": LATE},
            )  # fmt: skip
            body = b"%d " % self.n + b"m" * self.chance.choice([1, 30, 200, 5000])
            ways = ("", name), ("amq.topic", f"k.{name}"), ("late", "k")
            exchange, key = self.chance.choice(ways)
            if exchange == "late":
                ch.exchange_declare(
                    "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "topic"}
                )
            with suppress(pika.exceptions.NackError):
                ch.basic_publish(exchange, key, body, properties)

    def _take(self, ch: Any, name: str) -> None:
        if self._is_stream(name):
            return
        for _ in range(self.chance.choice([1, 5, 60])):
            method, _, _ = ch.basic_get(name)
            if method is None:
                return
            if self.chance.random() < 0.9:
                ch.basic_ack(method.delivery_tag)
            else:
                ch.basic_nack(method.delivery_tag, requeue=self.chance.random() < 0.5)

    def _requeue(self, ch: Any, name: str) -> None:
        if not self._is_stream(name):
            for _ in range(5):
                ch.basic_get(name)
            ch.basic_recover(requeue=True)

    def _delete(self, ch: Any, name: str) -> None:
        ch.queue_delete(name)
        del self.kinds[name]

    def _purge(self, ch: Any, name: str) -> None:
        if not self._is_stream(name):
            ch.queue_purge(name)

    def _bind(self, ch: Any, name: str) -> None:
        key = self.chance.choice([f"k.{name}", "k.*", "#"])
        if self.chance.random() < 0.7:
            ch.queue_bind(name, "amq.topic", key)
        else:
            ch.queue_unbind(name, "amq.topic", key)

    def _exchange(self, ch: Any, name: str) -> None:
        if self.chance.random() < 0.5:
            ch.exchange_declare(f"x{name}", "fanout", durable=True)
            ch.exchange_bind(f"x{name}", "amq.topic", "k.#")
        else:
            ch.exchange_delete(f"x{name}")

    def _policy(self, _ch: Any, name: str) -> None:
        if self.chance.random() < 0.7:
            self.leader.inside.put_policy(
                "p", f"^{name}$", {"max-length": self.chance.randrange(1, 30)}, apply_to="queues"
            )
        else:
            self.leader.inside.delete_policy("p")

    def _pause(self, _ch: Any, name: str) -> None:
        operators = self.leader.inside.vhost().operators
        pausing = self.chance.random() < 0.5
        self.leader.inside.call(operators.pause if pausing else operators.resume, name)

    def _is_stream(self, name: str) -> bool:
        return self.kinds[name].get("x-queue-type") == "stream"


def have_all(leader: Leader, node: Node) -> None:
    """Wait until the follower has all, and have it read twice: what has just changed rests then."""
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    for _ in range(3):
        node.look()


def ready(node: Node) -> set[str]:
    """The names of queues of `/` that are ready now."""
    vhost = node.ready.vhosts.get("/")
    if vhost is None or vhost.ahead is None or not vhost.ahead.is_so:
        return set()
    return {queue.name for queue in vhost.queues.values() if vhost.ahead.has(queue)}


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    with closing(Leader(tmp_path / "leader")) as made:
        yield made


@pytest.fixture
def node(leader: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A follower from now on, with what stands ready on it."""
    monkeypatch.setattr(standby, "LOOK_S", 0.0)
    monkeypatch.setattr(standby, "SHARE", 0)
    monkeypatch.setattr(standby, "AGAIN_S", 0.0)
    with ExitStack() as stack:
        source: Any = SimpleNamespace(root=leader.root, feed=leader.feed)
        copy = stack.enter_context(closing(Copy(source, tmp_path / "copy")))
        copy.connect()
        yield stack.enter_context(closing(Node(copy)))


def taken(leader: Leader, node: Node, tmp_path: Path) -> lavinmq.Broker:
    """Have the node lead. Returns: a broker on a copy of its files."""
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    node.copy.cut()
    other = tmp_path / "other"
    shutil.copytree(node.copy.root, other)
    node.call(node.start)
    return lavinmq.run(data_dir=other, **SETTINGS)


def is_same_as_a_start(leader: Leader, node: Node, tmp_path: Path) -> None:
    """Have the node lead, and compare it with a start on the same files."""
    fresh = taken(leader, node, tmp_path)
    with closing(SimpleNamespace(close=fresh.stop)):
        inside = Inside(fresh)
        assert node.server is not None
        for _ in range(50):  # limits are held in the turns that follow
            found, wanted = node.picture(), inside.call(picture, inside.inner)
            if found == wanted:
                break
            time.sleep(0.05)
        assert found["definitions"] == wanted["definitions"]
        there = found["queues"], wanted["queues"]
        others = [name for name in there[1] if there[0].get(name) != there[1][name]]
        assert [(n, there[0].get(n)) for n in others] == [(n, there[1][n]) for n in others]
        assert found == wanted
        names = [
            queue.name for queue in inside.vhost().queues.values()
            if not (queue.is_stream or queue.is_internal or queue.core.is_paused)
        ]  # fmt: skip
        assert drained(node.server.port, names) == drained(fresh.port, names)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_what_stands_ready_is_what_a_start_reads(
    leader: Leader, node: Node, tmp_path: Path, seed: int
) -> None:
    story = Story(leader, seed)
    n_defining = story.chance.choice([20, 40, 60])
    with channel(leader.broker.port) as ch:
        for at in range(60):
            story.change(ch, defines=at < n_defining)
            if story.chance.random() < 0.3:
                node.look()
    if story.chance.random() < 0.5:
        until(lambda: node.copy.follower.synced >= leader.feed.head)
        node.look()
    is_same_as_a_start(leader, node, tmp_path)


def test_queues_that_rest_are_ready_whatever_they_hold(
    leader: Leader, node: Node, tmp_path: Path
) -> None:
    with channel(leader.broker.port) as ch:
        for number, arguments in enumerate(KINDS):
            name = f"q{number}"
            ch.queue_declare(name, durable=True, arguments=arguments)
            for at in range(5 * number):
                with suppress(pika.exceptions.NackError):
                    ch.basic_publish("", name, b"%d" % at + b"m" * 100 * number)
        ch.exchange_declare(
            "late", "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"}
        )
        ch.basic_publish("late", "", b"later", pika.BasicProperties(headers={"x-delay": LATE}))
        for _ in range(4):
            ch.basic_ack(ch.basic_get("q2")[0].delivery_tag)
    leader.inside.call(leader.inside.vhost().operators.pause, "q3")
    have_all(leader, node)
    others = {f"q{n}" for n, kind in enumerate(KINDS)
              if "x-queue-type" in kind or "x-message-deduplication" in kind}  # fmt: skip
    assert ready(node) == {f"q{n}" for n in range(len(KINDS))} - others | {"amq.delayed-late"}
    is_same_as_a_start(leader, node, tmp_path)


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


def test_time_passes_for_messages_and_not_for_queues_that_nobody_could_use(
    leader: Leader, node: Node
) -> None:
    with channel(leader.broker.port) as ch:
        ch.queue_declare("a", durable=True, arguments={"x-message-ttl": 300})
        ch.basic_publish("", "a", b"m", pika.BasicProperties(delivery_mode=2))
        ch.queue_declare("b", durable=True, arguments={"x-expires": 3_600_000})
        leader.inside.call(leader.inside.vhost().operators.pause, "a")
        have_all(leader, node)
    assert ready(node) == {"a", "b"}
    time.sleep(0.4)
    expiry = node.ready.vhosts["/"]._expiry
    for queue in expiry._used_s:
        expiry._used_s[queue] -= 7200
    expiry._heap[:] = [(due - 7200, n, queue) for due, n, queue in expiry._heap]
    for queue in expiry._due_s:
        expiry._due_s[queue] -= 7200
    leader.mark()
    node.copy.cut()
    node.call(node.start)
    assert node.server is not None
    vhost = node.server.broker.vhosts["/"]
    expiry._set_timer(time.monotonic())
    until(lambda: node.call(lambda: expiry._due_s[vhost.queues["b"]] > time.monotonic()))
    assert set(vhost.queues) == {"a", "b"}
    node.call(lambda: setattr(vhost.queues["a"].core, "is_paused", False))
    until(lambda: node.call(lambda: vhost.queues["a"].core.ready) == 0)


def test_it_reads_again_and_again_and_keeps_nothing_of_before(leader: Leader, node: Node) -> None:
    read: list[weakref.ref[VHost]] = []
    with channel(leader.broker.port) as ch:
        for number in range(80):
            ch.queue_declare(f"q{number}", durable=True)
            ch.basic_publish("", f"q{number}", b"m")
            have_all(leader, node)
            read.append(weakref.ref(node.ready.vhosts["/"]))
    gc.collect()
    assert [each for each in read[:-1] if each() is not None and each() is not read[-1]()] == []
    assert len(node.ready._events._kept) < 100
    assert ready(node) == {f"q{number}" for number in range(80)}


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
