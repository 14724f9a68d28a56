"""Shovels whose connections are cut, stall or lie, and whose tokens expire: nothing is lost."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Iterator

import pytest

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.integration.shovel.conftest import Bench, bodies, fill, until
from tests.support.broker import Broker
from tests.support.fault_proxy import FaultProxy, Frame
from tests.support.issuer import serving
from tests.support.process import MIB, Process

DEADLINE_S = 200.0
CUTS_S = 150.0
"""Each cut is followed by a handshake, and the pauses between tries are long by chance."""
COUNT = 20_000
CUTS = 25
PREFETCH = 500
SOON_S = 2.0
ACK, NACK = struct.pack(">HH", 60, 80), struct.pack(">HH", 60, 120)
LARGE, LARGE_COUNT = 4 * MIB, 80
DELIVER = struct.pack(">HH", 60, 60)


@pytest.fixture
def other(broker_factory: BrokerFactory) -> Broker:
    """The other broker."""
    return broker_factory(http=True)


@pytest.fixture
def between(other: Broker) -> Iterator[FaultProxy]:
    """What stands between the two."""
    with FaultProxy(other.host, other.port) as proxy:
        yield proxy


def begin(bench: Bench, between: FaultProxy, side: str) -> None:
    """Set a shovel to the other broker, or from there."""
    here, there = "amqp://", between.url
    src, dest = (here, there) if side == "dest" else (there, here)
    bench.put("s", src_uri=src, src_queue="from", dest_uri=dest, dest_queue="to",
              reconnect_delay=0, src_prefetch_count=PREFETCH)  # fmt: skip


def numbers_in(broker: Broker, queue: str) -> list[int]:
    """All that is there, taken."""
    with Client(broker.uri) as client:
        count = client.queue(queue, passive=True).message_count
        return [int(body) for body in bodies(client, queue, count)]


def ready(broker: Broker, queue: str) -> int:
    """Messages of a queue."""
    return Bench(broker).ready(queue)


@pytest.mark.parametrize("side", ["src", "dest"])
def test_cuts_in_the_middle_of_frames_lose_nothing(
    bench: Bench, other: Broker, between: FaultProxy, side: str
) -> None:
    source, sink = (other, bench.broker) if side == "src" else (bench.broker, other)
    with Client(source.uri) as client:
        fill(client, "from", COUNT)
    chance = random.Random(7)
    # A destination says little beside its handshake of some 600 bytes: confirms. Of a source most
    # connections have to bring more than it sends unacknowledged: those that move nothing are
    # failures in a row, after which the pauses get long.
    least, most = (600, 80_000) if side == "src" else (550, 720)
    between.cuts = (chance.randrange(least, most) for _ in range(CUTS))
    begin(bench, between, side)
    until(lambda: ready(source, "from") == 0, "all is moved", CUTS_S)

    found = numbers_in(sink, "to")
    assert set(found) == set(range(COUNT))
    # A connection more than cuts, if it took all of them. A slow destination confirms many messages
    # at once: two or three connections may be enough.
    cuts = min(between.connections - 1, CUTS)
    assert cuts > 0 and len(found) - COUNT <= cuts * PREFETCH, f"{len(found)} in {cuts} cuts"


def test_confirms_that_never_come_leave_all_at_the_source(
    bench: Bench, other: Broker, between: FaultProxy
) -> None:
    def without_confirms(frame: Frame) -> list[Frame]:
        return [] if frame[0] == 1 and frame[2][:4] == ACK else [frame]

    with Client(bench.broker.uri) as client:
        fill(client, "from", 300)
    between.judge = without_confirms
    begin(bench, between, "dest")
    until(lambda: ready(other, "to") == 300, "they are there")
    assert bench.ready("from") == 300 and bench.row("s")["in_flight"] == 300

    between.judge = lambda frame: [frame]
    between.cut()
    until(lambda: bench.ready("from") == 0, "they are sent again, and confirmed")
    assert set(numbers_in(other, "to")) == set(range(300))


def test_what_is_refused_now_and_then_arrives(
    bench: Bench, other: Broker, between: FaultProxy
) -> None:
    lies = 0

    def refusing(frame: Frame) -> list[Frame]:
        nonlocal lies
        kind, channel, payload = frame
        if kind == 1 and payload[:4] == ACK and lies < 5:
            lies += 1
            return [(kind, channel, NACK + payload[4:])]
        return [frame]

    with Client(bench.broker.uri) as client:
        fill(client, "from", 3000)
    between.judge = refusing
    begin(bench, between, "dest")
    until(lambda: "refuses messages" in (bench.row("s")["error"] or ""), "it says so")
    until(lambda: bench.ready("from") == 0, "all is moved")
    assert lies == 5 and bench.row("s")["refused"] >= 5 and bench.row("s")["error"] is None
    assert set(numbers_in(other, "to")) == set(range(3000))


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_peer_that_stands_still_holds_up_nobody_else(
    bench: Bench, other: Broker, between: FaultProxy, way: str
) -> None:
    with Client(bench.broker.uri) as client:
        fill(client, "from", 3000)
        between.stall(way)
        begin(bench, between, "dest")
        bench.put("t", src_uri="amqp://", src_queue="quick", dest_uri="amqp://", dest_queue="end")
        fill(client, "quick", 1000)
        until(lambda: bench.ready("end") == 1000, "the other shovel goes on")
        assert bench.ready("from") == 3000 and bench.state("s") != "Running"
    between.flow()
    until(lambda: bench.ready("from") == 0, "all is moved")
    assert set(numbers_in(other, "to")) == set(range(3000))


def test_a_broker_that_confirms_what_it_was_not_given_is_left(
    bench: Bench, other: Broker, between: FaultProxy
) -> None:
    with Client(bench.broker.uri) as client:
        fill(client, "from", 1000)
        begin(bench, between, "dest")
        until(lambda: bench.ready("from") == 0, "it runs")
        payload = ACK + struct.pack(">QB", 1 << 40, 1)
        between.say(b"".join(
            struct.pack(">BHI", 1, number, len(payload)) + payload + b"\xce" for number in (1, 2)
        ))  # fmt: skip
        fill(client, "from", 1000)
        until(lambda: bench.ready("from") == 0, "it goes on with another connection")
    assert len(numbers_in(other, "to")) >= 2000
    assert bench.row("s")["reconnects"] > 0


def test_a_token_that_expires_is_told_and_a_new_one_goes_on(
    bench: Bench, broker_factory: BrokerFactory
) -> None:
    rights = "broker.configure:*/* broker.read:*/* broker.write:*/*"
    with serving() as issuer:
        variables = {**issuer.variables, "LAVINMQ_MAIN_LOGIN_THROTTLING": "false"}
        there = broker_factory(env=variables, http=True)

        def to(seconds: float) -> str:
            token = issuer.token(scope=rights, exp=time.time() + seconds)
            return f"amqp://any:{token}@{there.host}:{there.port}/%2F"

        begin = {"src_uri": "amqp://", "src_queue": "from", "dest_queue": "to",
                 "reconnect_delay": 0}  # fmt: skip
        with Client(bench.broker.uri) as client:
            fill(client, "from", 500)
            bench.put("s", dest_uri=to(SOON_S), **begin)
            until(lambda: ready(there, "to") == 500, "they are moved")
            until(lambda: "ACCESS_REFUSED" in (bench.row("s")["error"] or ""), "it says why")
            assert bench.state("s") != "Running"
            fill(client, "from", 700)
            assert bench.ready("from") == 700
            bench.put("s", dest_uri=to(3600), **begin)
            until(lambda: bench.ready("from") == 0, "it goes on")
        assert set(numbers_in(there, "to")) == set(range(700))


@pytest.mark.nightly
def test_large_messages_to_who_never_reads_take_bounded_memory(
    bench: Bench, other: Broker, between: FaultProxy
) -> None:
    """A ring has 64 MiB at most, and what waits before it as much."""
    assert bench.broker.pid is not None
    process = Process(bench.broker.pid)
    begin(bench, between, "dest")
    until(lambda: bench.state("s") == "Running", "it runs")
    before = process.anonymous_bytes
    between.stall("up")
    with Client(bench.broker.uri) as client:
        producer = client.producer("from")
        for _ in range(LARGE_COUNT):
            producer.publish(b"x" * LARGE).result(60)

    seen = -1
    while seen != (seen := bench.row("s")["message_count"]):
        time.sleep(1)
    assert process.peak_resident_bytes - before < LARGE_COUNT * LARGE * 0.7
    between.flow()
    until(lambda: bench.ready("from") == 0, "all is moved")
    assert ready(other, "to") >= LARGE_COUNT
