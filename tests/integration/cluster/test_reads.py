"""Streams are read from nodes that follow: what all nodes have on disk, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from pamqp import commands
from pamqp.common import FieldTable

from tests.support.api import Api
from tests.support.cluster import WAIT_S, Cluster, ClusterNode
from tests.support.metrics import scrape
from tests.support.waiting import wait_for
from tests.support.wire import Unit, Wire, WireClosed, WireTimeout

CLUSTER = {"has_readers": True}
DURABLE = commands.Basic.Properties(delivery_mode=2)
LOOK_S = 0.2


class Publisher(threading.Thread):
    """Publishes numbered messages to a stream of the leader, and counts confirms."""

    def __init__(self, node: ClusterNode, stream: str) -> None:
        super().__init__(daemon=True)
        self.node = node
        self.stream = stream
        self.sent = self.confirmed = 0
        self._is_over = threading.Event()

    def __enter__(self) -> Publisher:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join(WAIT_S)

    def run(self) -> None:
        """Ten at a time."""
        with suppress(WireClosed, WireTimeout, OSError), opened(self.node) as wire:
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            while not self._is_over.is_set():
                for _ in range(10):
                    self.sent += 1
                    wire.publish(1, "", self.stream, body(self.sent), DURABLE)
                while self.confirmed < self.sent:
                    ack = wire.expect(commands.Basic.Ack)
                    self.confirmed = ack.delivery_tag if ack.multiple else self.confirmed + 1
                self._is_over.wait(0.01)


class Reader:
    """A consumer of a stream at a follower."""

    def __init__(self, node: ClusterNode, stream: str, **arguments: Any) -> None:
        self.wire = reading(node)
        self.offsets: list[int] = []
        self.bodies: list[bytes] = []
        try:
            consume(self.wire, stream, **arguments)
        except BaseException:
            self.wire.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def take(self, timeout_s: float = WAIT_S) -> int:
        """Wait for a message more. Returns: its offset. Raises: WireTimeout."""
        return self._taken(self.wire.receive(timeout_s))

    def _taken(self, unit: Unit) -> int:
        assert isinstance(unit.method, commands.Basic.Deliver), unit
        assert unit.properties is not None
        assert unit.properties.headers is not None
        offset = unit.properties.headers["x-stream-offset"]
        assert isinstance(offset, int)
        self.offsets.append(offset)
        self.bodies.append(unit.body)
        self.wire.send(1, commands.Basic.Ack(unit.method.delivery_tag))
        return offset

    def until(self, offset: int) -> None:
        """Read on to an offset, and one by one."""
        while not self.offsets or self.offsets[-1] < offset:
            self.take()
        assert self.offsets == list(range(self.offsets[0], offset + 1))


def body(number: int) -> bytes:
    return f"message {number}".encode()


def opened(node: ClusterNode) -> Wire:
    """A connection to the leader, by any node."""
    return Wire.open(node.port, host=node.host)


def reading(node: ClusterNode, user: str = "guest") -> Wire:
    """A connection to the port for readers, once the node serves them."""
    wait_for(lambda: scrape(node, "/api/cluster").json["reads"]["serving"], f"{node} serves no"
             " readers", WAIT_S)  # fmt: skip
    password = user if user == "guest" else f"{user}-pw"
    return Wire.open(node.reads_port, host=node.host, user=user, password=password)


def consume(wire: Wire, stream: str, channel: int = 1, **arguments: Any) -> None:
    """Read from the first message on, unless arguments say otherwise."""
    table: FieldTable = {"x-stream-offset": "first", **arguments}
    wire.call(channel, commands.Basic.Qos(prefetch_count=100), commands.Basic.QosOk)
    wire.call(
        channel, commands.Basic.Consume(queue=stream, arguments=table), commands.Basic.ConsumeOk
    )


def declare(node: ClusterNode, name: str, **arguments: Any) -> None:
    """A stream."""
    table: FieldTable = {"x-queue-type": "stream", **arguments}
    queue = commands.Queue.Declare(queue=name, durable=True, arguments=table)
    with opened(node) as wire:
        wire.call(1, queue, commands.Queue.DeclareOk)


def publish(node: ClusterNode, stream: str, numbers: range) -> None:
    """Messages of these numbers, until they are confirmed."""
    with opened(node) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in numbers:
            wire.publish(1, "", stream, body(number), DURABLE)
        confirmed = 0
        while confirmed < len(numbers):
            ack = wire.expect(commands.Basic.Ack)
            confirmed = ack.delivery_tag if ack.multiple else confirmed + 1


def known(node: ClusterNode, name: str) -> None:
    """Wait until a follower knows a stream."""

    def is_known() -> bool:
        with reading(node) as wire:
            wire.send(1, commands.Queue.Declare(queue=name, passive=True))
            return isinstance(wire.receive().method, commands.Queue.DeclareOk)

    wait_for(is_known, f"{node} does not know {name}", WAIT_S)


@pytest.fixture
def follower(cluster: Cluster) -> Iterator[ClusterNode]:
    """One of them."""
    yield cluster.followers()[0]


def test_followers_give_what_is_published_while_it_is(cluster: Cluster) -> None:
    leader, *followers = cluster.leader(), *cluster.followers()
    declare(leader, "live")
    for each in followers:
        known(each, "live")
    with ExitStack() as stack:
        readers = [stack.enter_context(Reader(each, "live")) for each in followers]
        with Publisher(leader, "live") as publisher:
            for reader in readers:
                for _ in range(100):
                    assert reader.take() <= publisher.sent

        for reader in readers:
            reader.until(publisher.confirmed)
            assert reader.offsets[0] == 1
            assert reader.bodies == [body(each) for each in reader.offsets]


def test_what_one_node_in_sync_has_not_is_not_given(cluster: Cluster) -> None:
    follower, other = cluster.followers()
    leader = cluster.leader()
    declare(leader, "held")
    publish(leader, "held", range(1, 11))
    known(follower, "held")
    reader = Reader(follower, "held")
    reader.until(10)
    other.pause()
    with opened(leader) as wire:
        for number in range(11, 21):
            wire.publish(1, "", "held", body(number), DURABLE)
        wire.call(1, commands.Queue.Declare(queue="held", passive=True), commands.Queue.DeclareOk)
        while True:
            was_in_sync = other.id in cluster.picture().in_sync
            try:
                assert reader.take(LOOK_S) == 11
                break
            except WireTimeout:
                continue
    assert not was_in_sync or other.id not in cluster.picture().in_sync
    reader.until(20)
    other.resume()
    reader.wire.close()


def test_offsets_stay_when_the_leader_is_killed(cluster: Cluster) -> None:
    leader, followers = cluster.leader(), cluster.followers()
    declare(leader, "kept")
    with Publisher(leader, "kept") as publisher:
        for each in followers:
            known(each, "kept")
        readers = {each: Reader(each, "kept") for each in followers}
        for reader in readers.values():
            for _ in range(50):
                reader.take()
        leader.kill()
    second = cluster.leader(other_than=leader)
    ended = readers.pop(second)
    while True:
        unit = ended.wire.receive(WAIT_S)
        if isinstance(unit.method, commands.Connection.Close):
            break
        ended._taken(unit)
    assert unit.method.reply_code == 320
    assert "leads" in unit.method.reply_text
    (reader,) = readers.values()
    publish(second, "kept", range(10_000, 10_010))
    with opened(second) as wire:
        passive = commands.Queue.Declare(queue="kept", passive=True)
        n_there = wire.call(1, passive, commands.Queue.DeclareOk).message_count

    reader.until(n_there)

    assert n_there >= publisher.confirmed + 10
    ended.wire.close()
    assert reader.bodies[-10:] == [body(each) for each in range(10_000, 10_010)]
    assert reader.bodies[:-10] == [body(each) for each in range(1, n_there - 9)]
    assert ended.bodies == reader.bodies[: len(ended.bodies)]
    reader.wire.close()


def test_tasks_of_spark_read_from_followers(cluster: Cluster, follower: ClusterNode) -> None:
    pytest.importorskip("pyarrow")
    from lavinmq.spark.options import SourceOptions
    from lavinmq.spark.planner import RangeTask
    from lavinmq.spark.reading import read_range
    from lavinmq.spark.streams import Streams

    leader = cluster.leader()
    declare(leader, "spark")
    publish(leader, "spark", range(1, 101))
    known(follower, "spark")
    urls = ",".join(f"amqp://{each.host}:{each.reads_port}" for each in (leader, follower))
    http = f"http://{follower.host}:{follower.http_port}"
    options = SourceOptions.parse({"url": urls, "httpUrl": http, "queue": "spark"})

    with Streams(options) as streams:
        held = streams.bounds()["spark"]
    task = RangeTask(options.connection, "spark", held.first, held.end, ("offset", "body"))
    rows = [row for batch in read_range(task) for row in batch.to_pylist()]

    assert [(row["offset"], row["body"]) for row in rows] == [(n, body(n)) for n in range(1, 101)]


def test_more_than_reading_is_refused_with_who_leads(
    cluster: Cluster, follower: ClusterNode
) -> None:
    declare(cluster.leader(), "narrow")
    with opened(follower) as wire:
        wire.call(1, commands.Queue.Declare(queue="plain", durable=True), commands.Queue.DeclareOk)
    known(follower, "narrow")
    leader = cluster.leader()
    refused = [
        commands.Queue.Declare(queue="narrow2", durable=True),
        commands.Queue.Delete(queue="narrow"),
        commands.Queue.Purge(queue="narrow"),
        commands.Queue.Bind(queue="narrow", exchange="amq.topic", routing_key="x"),
        commands.Exchange.Declare(exchange="x", exchange_type="direct"),
        commands.Basic.Get(queue="narrow"),
        commands.Basic.Consume(queue="amq.rabbitmq.reply-to", no_ack=True),
        commands.Confirm.Select(),
        commands.Tx.Select(),
    ]
    with reading(follower) as wire:
        for method in refused:
            wire.send(1, method)
            close = wire.expect_channel_close(1, 403)
            assert f"{leader.id} leads, at {leader.host}:{leader.port}" in close.reply_text
            wire.open_channel(1)
        wire.publish(1, "", "narrow", b"not here")
        assert "leads" in wire.expect_channel_close(1, 403).reply_text
        wire.open_channel(1)
        wire.send(1, commands.Basic.Consume(queue="plain"))
        assert "leads" in wire.expect_channel_close(1, 404).reply_text
        wire.open_channel(1)
        wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        wire.send(1, commands.Basic.Consume(queue="narrow", consumer_tag="kept"))
        assert "keeps no positions" in wire.expect_channel_close(1, 406).reply_text
    with opened(leader) as wire:
        passive = commands.Queue.Declare(queue="narrow", passive=True)
        assert wire.call(1, passive, commands.Queue.DeclareOk).message_count == 0


def test_rights_are_those_of_the_cluster_and_follow_them(
    cluster: Cluster, follower: ClusterNode
) -> None:
    leader = cluster.leader()
    declare(leader, "private")
    publish(leader, "private", range(1, 3))
    known(follower, "private")
    api = Api(leader)
    for name, read in (("may", ".*"), ("may-not", "other")):
        assert api("PUT", f"/api/users/{name}", {"password": f"{name}-pw", "tags": ""}).status < 300
        rights = {"configure": "", "write": "", "read": read}
        assert api("PUT", f"/api/permissions/%2f/{name}", rights).status < 300

    def logs_in(name: str) -> bool:
        with suppress(WireClosed, AssertionError), reading(follower, name):
            return True
        return False

    wait_for(lambda: logs_in("may") and logs_in("may-not"), "users do not come", WAIT_S)
    with reading(follower, "may-not") as wire:
        wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        wire.send(1, commands.Basic.Consume(queue="private", arguments={"x-stream-offset": 1}))
        wire.expect_channel_close(1, 403)
    with reading(follower, "may") as wire:
        consume(wire, "private")
        assert isinstance(wire.receive().method, commands.Basic.Deliver)
        assert isinstance(wire.receive().method, commands.Basic.Deliver)

        rights = {"configure": "", "write": "", "read": ""}
        assert api("PUT", "/api/permissions/%2f/may", rights).status < 300

        assert isinstance(wire.receive(WAIT_S).method, commands.Basic.Cancel)
        assert api("DELETE", "/api/users/may").status == 204
        close = wire.receive(WAIT_S).method
        assert isinstance(close, commands.Connection.Close)
        assert "deleted" in close.reply_text


def test_streams_come_and_go_and_lose_their_beginning(
    cluster: Cluster, follower: ClusterNode
) -> None:
    leader = cluster.leader()
    declare(leader, "going", **{"x-max-length-bytes": 1})
    known(follower, "going")
    reader = Reader(follower, "going")
    with opened(leader) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for n in range(1, 7):  # segments of 8 MiB
            wire.publish(1, "", "going", bytes([n]) * (5 << 20), DURABLE)
            wire.expect(commands.Basic.Ack)
    while reader.take() < 6:
        pass
    assert reader.offsets == sorted(set(reader.offsets))

    def first() -> int:
        with Reader(follower, "going") as late:
            return late.take()

    wait_for(lambda: first() > 1, "the beginning stays", WAIT_S)
    with opened(leader) as wire:
        wire.call(1, commands.Queue.Delete(queue="going"), commands.Queue.DeleteOk)
    assert isinstance(reader.wire.receive(WAIT_S).method, commands.Basic.Cancel)
    declare(leader, "going")
    publish(leader, "going", range(1, 4))

    def is_another() -> bool:
        with suppress(AssertionError, WireTimeout), Reader(follower, "going") as late:
            late.until(3)
            return late.bodies == [body(n) for n in (1, 2, 3)]
        return False

    wait_for(is_another, "the new one does not come", WAIT_S)
    reader.wire.close()
