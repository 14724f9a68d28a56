"""A leader and what stands ready on a follower of it, in this process, to be compared with a start.

A broker's changes go by a feed to a follower's directory while a standby reads that one. Then the
standby is started, and beside it another broker on a copy of the same files: they have to hold the
same, and leave the same files behind.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pika
import pika.exceptions

import lavinmq
from lavinmq import _core
from lavinmq._cluster import Feed, Follower, Ring
from lavinmq.broker import Broker
from lavinmq.cluster.standby import Standby, _Ready
from lavinmq.config.values import from_keywords
from lavinmq.definitions_json import export
from lavinmq.errors import DefinitionsError
from lavinmq.files import definitions
from lavinmq.process.systemd import Service
from lavinmq.server import Server
from lavinmq.vhost.ahead import Place
from lavinmq.vhost.queue import Queue
from tests.support.inside import Inside
from tests.unit.cluster.test_changes import SMALL, Copy, until

T = TypeVar("T")
SETTINGS: dict[str, Any] = {
    "amqp_port": 0, "amqp_tls_port": 0, "mgmt_port": -1, "mgmt_tls_port": -1, "mqtt_port": 0,
    "metrics_http_port": -1, "mqtt_tls_port": -1, "control_unix_path": "", "segment_size": 4096,
    "sync": False,
}  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {}, {"x-max-priority": 3}, {"x-max-length": 7}, {"x-message-ttl": 3_600_000},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a", "x-max-length": 3},
    {"x-dead-letter-exchange": "dlx", "x-message-ttl": 3_600_000, "x-max-length-bytes": 3000},
    {"x-message-deduplication": True, "x-cache-size": 100}, {"x-queue-type": "stream"},
    {"x-overflow": "reject-publish", "x-max-length": 5}, {"x-expires": 3_600_000},
    {"x-delivery-limit": 2, "x-dead-letter-exchange": "dlx"}, {"x-single-active-consumer": True},
    {"x-max-priority": 2, "x-max-length": 5, "x-dead-letter-exchange": "dlx"},
]  # fmt: skip
EXCHANGES: list[tuple[str, dict[str, Any]]] = [
    ("fanout", {}), ("topic", {"alternate-exchange": "dlx"}), ("headers", {}),
    ("x-consistent-hash", {}), ("x-recent-history", {"x-recent-history-length": 5}),
    ("direct", {"x-message-deduplication": True, "x-cache-size": 50}),
    ("x-delayed-message", {"x-delayed-type": "fanout"}),
    ("fanout", {"x-delayed-exchange": True}),
]  # fmt: skip
NAMES = "abcdef"
LATE = 10**9
"""Milliseconds."""


class Leader:
    """A broker whose changes go to who follows. Args: settings: others than usual."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.broker = lavinmq.run(data_dir=root, **SETTINGS | settings)
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
        """Stop it. Idempotent."""
        if not self._thread.is_alive():
            return
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
        "bindings": {vhost.name: vhost.bindings._n for vhost in broker.vhosts.values()},
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
    """All files of virtual hosts, but what tells when a stream's epochs began. Of definitions only
    what they add up to: bindings to exchanges are the first ones after a start."""
    return {
        str(path.relative_to(root)): content(path)
        for path in sorted(root.glob("?" * 40 + "/**/*"))
        if path.is_file() and path.name not in ("epochs", "created")
    }


def content(path: Path) -> bytes:
    """What a file says."""
    if path.name != "definitions.amqp":
        return path.read_bytes()
    found = definitions.read(path)
    return repr((found.exchanges, found.queues, sorted(map(repr, found.bindings)))).encode()


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
        with suppress(pika.exceptions.NackError, pika.exceptions.ChannelClosedByBroker):
            one = ch.connection.channel()
            one.basic_publish(
                f"x{name}", "k.1", b"by x%s %d" % (name.encode(), self.n),
                pika.BasicProperties(
                    delivery_mode=2, headers={"x-delay": LATE},
                    expiration=self.chance.choice([None, "3600000", "10"]),
                ),
            )  # fmt: skip
            one.queue_declare("a", passive=True)

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
        with suppress(pika.exceptions.ChannelClosedByBroker):
            one = ch.connection.channel()
            act = self.chance.random()
            if act < 0.5:
                kind, arguments = self.chance.choice(EXCHANGES)
                one.exchange_declare(f"x{name}", kind, durable=True, arguments=arguments)
            elif act < 0.7:
                one.exchange_bind(f"x{name}", "amq.topic", "k.#")
            elif act < 0.8:
                one.exchange_unbind(f"x{name}", "amq.topic", "k.#")
            else:
                one.exchange_delete(f"x{name}")
        with suppress(pika.exceptions.ChannelClosedByBroker):
            one = ch.connection.channel()
            one.exchange_declare("dlx", "fanout", durable=True)
            one.queue_bind(name, f"x{name}", self.chance.choice(["1", "k.#", "3"]))

    def _policy(self, _ch: Any, name: str) -> None:
        inside, chance = self.leader.inside, self.chance
        act = chance.random()
        if act < 0.3:
            inside.put_policy("p", f"^{name}$", chance.choice([
                {"max-length": chance.randrange(1, 30)}, {"message-ttl": 3_000_000},
                {"dead-letter-exchange": "dlx"}, {"expires": 3_000_000}, {"delivery-limit": 3},
            ]), apply_to="queues")  # fmt: skip
        elif act < 0.5:
            inside.put_policy("e", f"^x{name}$", chance.choice([
                {"delayed-message": True}, {"alternate-exchange": "dlx"},
            ]), apply_to="exchanges")  # fmt: skip
        elif act < 0.7:
            inside.put_operator_policy("o", "^[ab]", {"max-length": chance.randrange(3, 30)})
        else:
            inside.delete_policy(chance.choice("pe"))

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


def reconnect(node: Node) -> None:
    """As `Following` does it: another follower on the same ring."""
    copy = node.copy
    copy.cut()
    ring = copy.follower.ring
    copy.follower.close()
    copy.follower = Follower(ring, str(copy.root))
    copy.connect()


def taken(leader: Leader, node: Node, tmp_path: Path) -> lavinmq.Broker:
    """Have the node lead. Returns: a broker on a copy of its files."""
    position = leader.mark()
    until(lambda: node.copy.follower.synced >= position)
    node.copy.cut()
    other = tmp_path / "other"
    shutil.copytree(node.copy.root, other)
    node.call(node.start)
    return lavinmq.run(data_dir=other, **SETTINGS)


@contextmanager
def compared(leader: Leader, node: Node, tmp_path: Path) -> Iterator[lavinmq.Broker]:
    """Have the node lead, and compare what it has with a start on the same files. Yields: the
    broker that was started."""
    fresh = taken(leader, node, tmp_path)
    with closing(SimpleNamespace(close=fresh.stop)):
        are_alike(node, fresh)
        yield fresh


def are_alike(node: Node, fresh: lavinmq.Broker) -> None:
    """Both have to hold the same, in the end."""
    inside = Inside(fresh)
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


def publish_everywhere(port: int, exchanges: list[str], queues: list[str]) -> None:
    """Messages by each way that there is, or was."""
    with channel(port) as ch:
        for exchange, key in (
            *((exchange, key) for exchange in exchanges for key in ("k.1", "k.a", "1", "3", "")),
            *(("", queue) for queue in queues),
        ):
            with suppress(pika.exceptions.NackError):
                ch.basic_publish(
                    exchange, key, f"{exchange} {key}".encode(),
                    pika.BasicProperties(delivery_mode=2),
                )  # fmt: skip


def is_same_as_a_start(leader: Leader, node: Node, tmp_path: Path) -> None:
    """It has to hold what a start holds, and to deliver the same."""
    with compared(leader, node, tmp_path) as fresh:
        assert node.server is not None
        inside = Inside(fresh)
        names = [
            queue.name for queue in inside.vhost().queues.values()
            if not (queue.is_stream or queue.is_internal or queue.core.is_paused)
        ]  # fmt: skip
        for port in (node.server.port, fresh.port):
            exchanges = [each.name for each in inside.vhost().exchanges.values()
                         if each.name and not each.is_mqtt and not each.internal]  # fmt: skip
            publish_everywhere(port, exchanges, [*NAMES, "q1"])
        are_alike(node, fresh)
        assert drained(node.server.port, names) == drained(fresh.port, names)


def leaves_the_same_files(leader: Leader, node: Node, tmp_path: Path) -> None:
    """It has to hold what a start holds, and to leave the same files when it stops."""
    with compared(leader, node, tmp_path):
        time.sleep(0.2)
    node.close()
    ours, theirs = files(node.copy.root), files(tmp_path / "other")
    names = sorted(n for n in {*ours, *theirs} if ours.get(n) != theirs.get(n))
    assert [(n, ours.get(n), theirs.get(n)) for n in names] == []


def standby_of(node: Node) -> Standby:
    """What has a node's broker at rest, on a node whose follower is gone."""
    made: Any = Standby(
        node.config, node.events, Service({}), node.copy.follower.ring, lambda: None
    )
    made._ready = node.ready
    return cast("Standby", made)
