"""Delayed exchanges: what waits, in which order it leaves, where it goes, and what survives.

Delays are short, and nothing is asserted about how late a message is; that none is early can be
asserted, since broker and test share a clock.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from lavinmq.policy.policies import Policy
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker
from tests.support.inside import Inside, inside
from tests.support.segments import (
    encode_record,
    queue_directory,
    segment_path,
)
from tests.support.waiting import wait_for
from tests.support.wire import Unit, Wire, encode_publish, raw_frame

STYLES = ("x-delayed-message", "x-delayed-exchange", "argument")
LONG_MS = 600_000
HEADER = b"\4\0\0\0"
Table = dict[str, Any]


@pytest.fixture
def wire(broker: Broker) -> Iterator[Wire]:
    with Wire.open(broker.port) as opened:
        yield opened


@pytest.fixture
def within() -> Iterator[Inside]:
    """A broker in this process, for what no client can see or do."""
    with inside() as started:
        yield started


def declare_delayed(
    wire: Wire, name: str, kind: str = "direct", style: str = "x-delayed-message", **more: Any
) -> str:
    arguments = {key.replace("_", "-"): value for key, value in more.items()}
    if style == "argument":
        arguments["x-delayed-exchange"] = True
    else:
        arguments["x-delayed-type"] = kind
        kind = style
    request = commands.Exchange.Declare(
        exchange=name, exchange_type=kind, durable=True, arguments=arguments
    )
    wire.call(1, request, commands.Exchange.DeclareOk)
    return name


def declare(wire: Wire, queue: str, **more: Any) -> str:
    arguments = {key.replace("_", "-"): value for key, value in more.items()}
    request = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
    wire.call(1, request, commands.Queue.DeclareOk)
    return queue


def bind(wire: Wire, queue: str, exchange: str, key: str = "", **arguments: Any) -> None:
    request = commands.Queue.Bind(
        queue=queue, exchange=exchange, routing_key=key, arguments=arguments
    )
    wire.call(1, request, commands.Queue.BindOk)


def bound(wire: Wire, name: str, key: str = "k") -> str:
    """A durable queue of that name that is bound to the exchange of that name."""
    declare(wire, name)
    bind(wire, name, name, key)
    return name


def publish(
    wire: Wire, exchange: str, body: str, delay: Any = None, key: str = "k",
    headers: Table | None = None, **properties: Any,
) -> None:  # fmt: skip
    """Publish; without a delay the header is not there."""
    table = dict(headers or {}) | ({} if delay is None else {"x-delay": delay})
    given = commands.Basic.Properties(headers=table, **properties)
    wire.publish(1, exchange, key, body.encode(), given)


def settle(wire: Wire) -> None:
    """Return when the broker has handled everything sent."""
    wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


def confirm(wire: Wire) -> None:
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)


def count(wire: Wire, queue: str) -> int:
    request = commands.Queue.Declare(queue=queue, passive=True)
    return wire.call(1, request, commands.Queue.DeclareOk).message_count or 0


def waiting(wire: Wire, exchange: str) -> int:
    """Messages that wait in an exchange."""
    return count(wire, f"amq.delayed-{exchange}")


def none_waits(wire: Wire, exchange: str) -> None:
    """Wait until what has come out of an exchange is out of its queue, too: that is some later."""
    wait_for(lambda: waiting(wire, exchange) == 0, "released messages still wait")


def get(wire: Wire, queue: str) -> Unit | None:
    wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
    unit = wire.receive()
    if isinstance(unit.method, commands.Basic.GetEmpty):
        return None
    assert isinstance(unit.method, commands.Basic.GetOk)
    return unit


def take(wire: Wire, queue: str, n: int = 1) -> list[Unit]:
    """The next n messages, as soon as they are there."""
    found: list[Unit] = []

    def is_enough() -> bool:
        while len(found) < n and (unit := get(wire, queue)) is not None:
            found.append(unit)
        return len(found) == n

    wait_for(is_enough, f"{queue}: {n} messages are not there")
    return found


def bodies(wire: Wire, queue: str, n: int) -> list[str]:
    return [unit.body.decode() for unit in take(wire, queue, n)]


def headers_of(unit: Unit) -> Table:
    assert unit.properties is not None
    return dict(unit.properties.headers or {})


# --- declaring --------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_all_ways_to_declare_one_hold_a_message_and_then_deliver_it(
    wire: Wire, unique: UniqueName, style: str
) -> None:
    """edge-cases.md 226, 228"""
    name = bound(wire, declare_delayed(wire, unique("x"), style=style))
    before_s = time.time()

    publish(wire, name, "held", 150)
    settle(wire)

    assert (get(wire, name), waiting(wire, name)) == (None, 1)
    (unit,) = take(wire, name)
    assert (unit.body, headers_of(unit)) == (b"held", {})
    assert time.time() - before_s >= 0.149
    none_waits(wire, name)


def test_a_delay_of_one_millisecond_holds_and_keeps_the_order(
    wire: Wire, unique: UniqueName
) -> None:
    """edge-cases.md 226"""
    name = bound(wire, declare_delayed(wire, unique("x")))

    for number in range(20):
        publish(wire, name, str(number), 1)

    assert bodies(wire, name, 20) == [str(number) for number in range(20)]


def test_without_its_real_type_there_is_none(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 47"""
    name = unique("x")

    for type_ in STYLES[:2]:
        wire.send(1, commands.Exchange.Declare(exchange=name, exchange_type=type_))
        wire.expect_channel_close(1, 406)
        wire.open_channel(1)

    wire.send(1, commands.Exchange.Declare(exchange=name, passive=True))
    wire.expect_channel_close(1, 404)


def encode_long_declare(name: str, kind: bytes, arguments: bytes) -> bytes:
    """exchange.declare of a durable exchange with a name that the client library refuses."""
    payload = struct.pack(">HHH", 40, 10, 0) + bytes([len(name)]) + name.encode()
    payload += bytes([len(kind)]) + kind + b"\2" + struct.pack(">I", len(arguments)) + arguments
    return raw_frame(1, 1, payload)


def test_a_name_without_room_for_that_of_its_queue_is_refused(within: Inside) -> None:
    """amqp.md 22.27"""
    arguments = b"\x0ex-delayed-typeS\0\0\0\6fanout"
    with Wire.open(within.port) as wire:
        wire.send_bytes(encode_long_declare("x" * 245, b"x-delayed-message", arguments))
        wire.expect_channel_close(1, 406)
        wire.open_channel(1)

        wire.send_bytes(encode_long_declare("x" * 244, b"x-delayed-message", arguments))
        wire.expect(commands.Exchange.DeclareOk)

    assert "x" * 245 not in within.vhost().exchanges
    assert within.exchange("x" * 244).waiting is not None


def test_it_is_declared_again_with_the_same_arguments_only(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 48"""
    name = declare_delayed(wire, unique("x"))

    for style in STYLES:
        declare_delayed(wire, name, style=style)

    request = commands.Exchange.Declare(
        exchange=name, exchange_type="x-delayed-message", durable=True,
        arguments={"x-delayed-type": "topic"},
    )  # fmt: skip
    wire.send(1, request)
    wire.expect_channel_close(1, 406)


# --- the internal queue -----------------------------------------------------------------------


def test_the_internal_queue_has_its_name_and_leads_to_the_exchange(within: Inside) -> None:
    """edge-cases.md 224"""
    with Wire.open(within.port) as wire:
        declare_delayed(wire, "x")

    queue = within.queue("amq.delayed-x")

    assert queue.arguments == {"x-dead-letter-exchange": "x", "auto-delete": False}
    assert queue.features.dead_letter_exchange == "x"
    assert queue.is_stored


def test_the_internal_queue_of_an_older_release_keeps_its_name(own_broker: Broker) -> None:
    """edge-cases.md 224"""
    with Wire.open(own_broker.port) as wire:
        bound(wire, declare_delayed(wire, "x"))
        publish(wire, "x", "old", LONG_MS)
        publish(wire, "x", "older", 1000)
        settle(wire)
    own_broker.stop()
    newer = queue_directory(own_broker.data_dir, "amq.delayed-x")
    newer.rename(queue_directory(own_broker.data_dir, "amq.delayed.x"))

    own_broker.start()

    with Wire.open(own_broker.port) as wire:
        assert bodies(wire, "x", 1) == ["older"]
        assert count(wire, "amq.delayed.x") == 1


def test_publishing_into_the_internal_queue_is_dropped_and_confirmed(
    wire: Wire, unique: UniqueName
) -> None:
    """edge-cases.md 225"""
    name = declare_delayed(wire, unique("x"))
    confirm(wire)

    wire.publish(1, "", f"amq.delayed-{name}", b"dropped")

    assert wire.expect(commands.Basic.Ack).delivery_tag == 1
    assert waiting(wire, name) == 0


def test_nobody_takes_from_the_internal_queue(wire: Wire, unique: UniqueName) -> None:
    """amqp.md 22.35"""
    name = declare_delayed(wire, unique("x"))
    publish(wire, name, "waits", LONG_MS)

    assert get(wire, f"amq.delayed-{name}") is None
    for request in (
        commands.Basic.Consume(queue=f"amq.delayed-{name}"),
        commands.Queue.Delete(queue=f"amq.delayed-{name}"),
        commands.Queue.Bind(queue=f"amq.delayed-{name}", exchange="amq.direct", routing_key="k"),
    ):
        wire.send(1, request)
        wire.expect_channel_close(1, 403)
        wire.open_channel(1)
    assert waiting(wire, name) == 1


def test_it_cannot_be_bound_to_its_own_queue(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 234"""
    name = declare_delayed(wire, unique("x"))

    wire.send(1, commands.Queue.Bind(queue=f"amq.delayed-{name}", exchange=name, routing_key="k"))

    assert "Cannot bind delayed exchange" in wire.expect_channel_close(1, 406).reply_text


def test_messages_without_a_delay_never_touch_the_internal_queue(within: Inside) -> None:
    """edge-cases.md 235"""
    with Wire.open(within.port) as wire:
        bound(wire, declare_delayed(wire, "x"))
        publish(wire, "x", "at once")
        publish(wire, "x", "with another header", headers={"delay": 1000})
        publish(wire, "x", "of nothing", headers={"x-delay": None})
        settle(wire)

        assert bodies(wire, "x", 3) == ["at once", "with another header", "of nothing"]

    assert within.queue("amq.delayed-x").core.counters()["publish"] == 0


def test_purging_the_internal_queue_forgets_what_waits(wire: Wire, unique: UniqueName) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    for _ in range(3):
        publish(wire, name, "forgotten", 100)
    request = commands.Queue.Purge(queue=f"amq.delayed-{name}")

    assert wire.call(1, request, commands.Queue.PurgeOk).message_count == 3

    publish(wire, name, "later", 200)
    assert bodies(wire, name, 1) == ["later"]
    assert get(wire, name) is None


def test_deleting_the_exchange_forgets_what_waits(own_broker: Broker) -> None:
    with Wire.open(own_broker.port) as wire:
        bound(wire, declare_delayed(wire, "x"))
        publish(wire, "x", "forgotten", 100)
        wire.call(1, commands.Exchange.Delete(exchange="x"), commands.Exchange.DeleteOk)
        wire.send(1, commands.Queue.Declare(queue="amq.delayed-x", passive=True))
        wire.expect_channel_close(1, 404)
        wire.open_channel(1)
        left = queue_directory(own_broker.data_dir, "amq.delayed-x")
        wait_for(lambda: not left.exists(), "its files go")
        declare_delayed(wire, "x")
        bind(wire, "x", "x", "k")
        publish(wire, "x", "new", 200)

        assert bodies(wire, "x", 1) == ["new"]
        assert get(wire, "x") is None


def test_what_a_deleted_exchange_has_left_does_not_wait_in_a_new_one(own_broker: Broker) -> None:
    """The broker may be killed between the record of a deletion and that of the files."""
    left = queue_directory(own_broker.data_dir, "amq.delayed-x")
    left.mkdir()
    record = encode_record(b"x", b"k", {"headers": b"\7x-delayI\0\0\0\1"}, b"of the deleted one")
    segment_path(left).write_bytes(HEADER + (1).to_bytes(8, "little") + record)

    with Wire.open(own_broker.port) as wire:
        bound(wire, declare_delayed(wire, "x"))
        assert waiting(wire, "x") == 0
        publish(wire, "x", "new", 50)
        assert bodies(wire, "x", 1) == ["new"]
        assert get(wire, "x") is None
    assert len(list(left.parent.glob(f"{left.name}.left-*"))) == 1


# --- delays -----------------------------------------------------------------------------------


def test_messages_leave_by_due_time(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 227"""
    name = bound(wire, declare_delayed(wire, unique("x")))
    for delay in (450, 300, 150):
        publish(wire, name, str(delay), delay)

    assert bodies(wire, name, 1) == ["150"]
    publish(wire, name, "1", 1)

    assert bodies(wire, name, 3) == ["1", "300", "450"]


@pytest.mark.parametrize(
    "delay", [0, -1, -5000, "3600000", 3.6e6, True, [3600000], {"ms": 3600000}]
)
def test_what_is_no_positive_integer_is_no_delay(
    wire: Wire, unique: UniqueName, delay: object
) -> None:
    """edge-cases.md 236"""
    name = bound(wire, declare_delayed(wire, unique("x")))
    confirm(wire)

    publish(wire, name, "now", delay)

    wire.expect(commands.Basic.Ack)
    unit = get(wire, name)
    assert unit is not None
    assert headers_of(unit) == {}


@pytest.mark.parametrize("kind", [b"b\x32", b"B\x32", b"s\0\x32", b"u\0\x32", b"U\0\x32",
                                  b"I\0\0\0\x32", b"i\0\0\0\x32", b"l" + (50).to_bytes(8, "big"),
                                  b"L" + (50).to_bytes(8, "big")])  # fmt: skip
def test_an_integer_of_any_width_is_a_delay(wire: Wire, unique: UniqueName, kind: bytes) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    publish(wire, name, "held", 50)
    mark = b"\7x-delayb\x32"
    data = encode_publish(1, name, "k", b"held", commands.Basic.Properties(headers={"x-delay": 50}))
    at = data.index(mark) - 4  # the table's length; the frame's is 14 bytes and a flag word before
    frame_at = data.index(b"\2\0\1", data.index(name.encode()))
    grown = len(kind) - 2
    table = (len(mark) + grown).to_bytes(4, "big") + mark[:8] + kind
    size = int.from_bytes(data[frame_at + 3 : frame_at + 7], "big") + grown
    data = (data[: frame_at + 3] + size.to_bytes(4, "big") + data[frame_at + 7 : at]
            + table + data[at + 4 + len(mark) :])  # fmt: skip

    wire.send_bytes(data)
    settle(wire)

    assert waiting(wire, name) >= 1
    assert bodies(wire, name, 2) == ["held", "held"]


def test_delays_beyond_32_bits_are_waited_for(own_broker: Broker) -> None:
    """amqp.md 22.9"""
    with Wire.open(own_broker.port) as wire:
        bound(wire, declare_delayed(wire, "x"))
        for delay in (2**32, 2**32 + 50, 2**40, 2**63 - 1):
            publish(wire, "x", "never", delay)
        publish(wire, "x", "first", 50)
        assert bodies(wire, "x", 1) == ["first"]
        assert waiting(wire, "x") == 4

    own_broker.restart()

    with Wire.open(own_broker.port) as wire:
        assert waiting(wire, "x") == 4
        publish(wire, "x", "second", 50)
        assert bodies(wire, "x", 1) == ["second"]
        assert waiting(wire, "x") == 4


# --- publishing -------------------------------------------------------------------------------


def test_a_message_that_is_to_wait_is_never_returned(wire: Wire, unique: UniqueName) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    confirm(wire)
    properties = commands.Basic.Properties(headers={"x-delay": 60})

    for number, flags in enumerate(({"mandatory": True}, {"immediate": True}), 1):
        wire.send_bytes(encode_publish(1, name, "k", b"waits", properties, **flags))
        wire.send_bytes(encode_publish(1, name, "nowhere", b"dropped", properties, **flags))
        while wire.expect(commands.Basic.Ack).delivery_tag < 2 * number:
            pass

    assert bodies(wire, name, 2) == ["waits", "waits"]
    none_waits(wire, name)


def test_a_transaction_delays_from_its_commit(wire: Wire, unique: UniqueName) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)

    publish(wire, name, "rolled back", 20)
    wire.call(1, commands.Tx.Rollback(), commands.Tx.RollbackOk)
    publish(wire, name, "committed", 50)
    assert waiting(wire, name) == 0
    wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)

    assert bodies(wire, name, 1) == ["committed"]
    assert get(wire, name) is None


def test_messages_come_through_a_binding_between_exchanges(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 232"""
    name, source = bound(wire, declare_delayed(wire, unique("x"))), unique("source")
    declared = commands.Exchange.Declare(exchange=source, exchange_type="fanout")
    wire.call(1, declared, commands.Exchange.DeclareOk)
    request = commands.Exchange.Bind(destination=name, source=source, routing_key="")
    wire.call(1, request, commands.Exchange.BindOk)

    publish(wire, source, "waits", 100)
    settle(wire)

    assert waiting(wire, name) == 1
    (unit,) = take(wire, name)
    assert isinstance(unit.method, commands.Basic.GetOk)
    assert (unit.method.exchange, unit.method.routing_key) == (name, "k")


def test_a_dead_letter_with_a_delay_waits_in_the_exchange_it_goes_to(
    wire: Wire, unique: UniqueName
) -> None:
    name = bound(wire, declare_delayed(wire, unique("x"), "fanout"))
    source = declare(wire, unique("source"), x_dead_letter_exchange=name)
    before_s = time.time()
    publish(wire, "", "retried", 150, key=source)
    wire.send(1, commands.Basic.Get(queue=source))
    tag = wire.expect_unit(commands.Basic.GetOk).method.delivery_tag

    wire.send(1, commands.Basic.Reject(delivery_tag=tag, requeue=False))

    assert waiting(wire, name) == 1
    (unit,) = take(wire, name)
    assert time.time() - before_s >= 0.149
    headers = headers_of(unit)
    assert "x-delay" not in headers
    assert [death["queue"] for death in headers["x-death"]] == [source]


@pytest.mark.parametrize(
    "deaths", [[], [{}], [{"queue": "q"}], [{"queue": "q", "reason": "expired"}], "text", [1, "q"],
               [{"queue": 1, "reason": 2}]]
)  # fmt: skip
def test_deaths_that_a_client_has_made_up_hold_no_message_up(
    wire: Wire, unique: UniqueName, deaths: object
) -> None:
    """amqp.md 22.25"""
    name = bound(wire, declare_delayed(wire, unique("x")))

    publish(wire, name, "waits", 60, headers={"x-death": deaths})
    settle(wire)

    assert waiting(wire, name) == 1
    (unit,) = take(wire, name)
    assert headers_of(unit) == {"x-death": deaths}


def test_a_message_that_has_waited_there_before_goes_on_at_once(
    wire: Wire, unique: UniqueName
) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    death = {"queue": f"amq.delayed-{name}", "reason": "expired"}

    publish(wire, name, "has waited", LONG_MS, headers={"x-death": [death]})

    assert bodies(wire, name, 1) == ["has waited"]


# --- release ----------------------------------------------------------------------------------


def test_a_release_adds_no_deaths(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 214"""
    name = bound(wire, declare_delayed(wire, unique("x")))
    given = {"x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "dead", "n": 1}

    publish(wire, name, "alive", 20, headers=given, message_id="id")

    (unit,) = take(wire, name)
    assert headers_of(unit) == given
    assert unit.properties is not None
    assert unit.properties.message_id == "id"


def test_a_release_goes_by_the_type_of_the_exchange(wire: Wire, unique: UniqueName) -> None:
    """edge-cases.md 228"""
    topic, by_header = unique("topic"), unique("headers")
    for name, kind in ((topic, "topic"), (by_header, "headers")):
        declare_delayed(wire, name, kind)
        declare(wire, name)
    bind(wire, topic, topic, "a.*.#")
    bind(wire, by_header, by_header, "", **{"x-match": "all", "colour": "red"})
    ring, queues = declare_delayed(wire, unique("ring"), "x-consistent-hash"), ("even", "odd")
    names = [declare(wire, unique(each)) for each in queues]
    for queue in names:
        bind(wire, queue, ring, "100")

    publish(wire, topic, "matches", 20, key="a.b.c")
    publish(wire, topic, "does not", 20, key="b.a")
    publish(wire, by_header, "matches", 20, headers={"colour": "red"})
    publish(wire, by_header, "does not", 20, headers={"colour": "blue"})
    for number in range(40):
        publish(wire, ring, "one of them", 20, key=str(number))

    for name in (topic, by_header):
        assert bodies(wire, name, 1) == ["matches"]
        assert get(wire, name) is None
    wait_for(lambda: sum(count(wire, each) for each in names) == 40, "not all were released")
    assert all(count(wire, each) for each in names)


def test_a_release_reaches_the_alternate_exchange(wire: Wire, unique: UniqueName) -> None:
    name, other = unique("x"), unique("other")
    declared = commands.Exchange.Declare(exchange=other, exchange_type="fanout")
    wire.call(1, declared, commands.Exchange.DeclareOk)
    bind(wire, declare(wire, other), other)
    declare_delayed(wire, name, alternate_exchange=other)

    publish(wire, name, "matches nothing", 30)

    (unit,) = take(wire, other)
    assert isinstance(unit.method, commands.Basic.GetOk)
    assert unit.method.exchange == name


def test_a_release_follows_cc_and_bcc_and_hides_the_latter(wire: Wire, unique: UniqueName) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    copies, hidden = declare(wire, unique("cc")), declare(wire, unique("bcc"))
    bind(wire, copies, name, "copy")
    bind(wire, hidden, name, "hidden")

    publish(wire, name, "copied", 50, headers={"CC": ["copy", "k"], "BCC": ["hidden"]})
    settle(wire)

    assert waiting(wire, name) == 1
    for queue in (name, copies, hidden):
        (unit,) = take(wire, queue)
        assert headers_of(unit) == {"CC": ["copy", "k"]}
        assert get(wire, queue) is None


def test_a_release_reaches_those_who_consume(wire: Wire, unique: UniqueName) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))
    consume = commands.Basic.Consume(queue=name, no_ack=True)
    wire.call(1, consume, commands.Basic.ConsumeOk)

    for delay in (120, 60):
        publish(wire, name, str(delay), delay)

    received = [wire.expect_unit(commands.Basic.Deliver).body for _ in range(2)]
    assert received == [b"60", b"120"]


def test_a_release_is_bound_by_the_rules_of_the_queues(wire: Wire, unique: UniqueName) -> None:
    name, dead = declare_delayed(wire, unique("x")), declare(wire, unique("dead"))
    rules = {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": dead}
    short = declare(wire, unique("short"), x_max_length=1, **rules)
    refusing = declare(
        wire, unique("refusing"), x_max_length=1, x_overflow="reject-publish-dlx", **rules
    )
    bind(wire, short, name, "k")
    bind(wire, refusing, name, "k")

    for delay in (40, 80):
        publish(wire, name, str(delay), delay)

    deaths = {headers_of(unit)["x-death"][0]["queue"]: unit for unit in take(wire, dead, 2)}
    assert {queue: unit.body for queue, unit in deaths.items()} == {short: b"40", refusing: b"80"}
    assert bodies(wire, short, 1) == ["80"]
    assert bodies(wire, refusing, 1) == ["40"]


def test_an_expiration_counts_from_the_release(wire: Wire, unique: UniqueName) -> None:
    name = bound(wire, declare_delayed(wire, unique("x")))

    publish(wire, name, "kept", 100, expiration="60000")
    publish(wire, name, "gone", 100, expiration="0")

    assert bodies(wire, name, 1) == ["kept"]
    assert get(wire, name) is None


def test_what_is_due_next_can_be_listed(within: Inside) -> None:
    with Wire.open(within.port) as wire:
        declare_delayed(wire, "x")
        before_ms = int(time.time() * 1000)
        for delay in (3000, 1000, 2000):
            publish(wire, "x", "waits", LONG_MS + delay, key=f"k{delay}")
        settle(wire)
        after_ms = int(time.time() * 1000) + 1
    core = within.queue("amq.delayed-x").core

    found = within.call(core.pending, 2)

    assert [key for _, key, _ in found] == [b"k1000", b"k2000"]
    for (due_ms, _, size), delay in zip(found, (1000, 2000), strict=True):
        assert before_ms <= due_ms - LONG_MS - delay <= after_ms
        assert size * 3 == core.ready_bytes
    assert len(within.call(core.pending, 10)) == 3


# --- restarts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "is_killed"), [(STYLES[0], True), (STYLES[1], False), (STYLES[2], True)]
)
def test_what_waits_survives_a_restart_and_leaves_on_time(
    own_broker: Broker, style: str, is_killed: bool
) -> None:
    """edge-cases.md 229, 237"""
    with Wire.open(own_broker.port) as wire:
        confirm(wire)
        bound(wire, declare_delayed(wire, "x", "topic", style))
        published_s = time.time()
        publish(wire, "x", "second", 1500)
        publish(wire, "x", "never", LONG_MS)
        publish(wire, "x", "first", 1)
        while wire.expect(commands.Basic.Ack).delivery_tag != 3:
            pass
        assert bodies(wire, "x", 1) == ["first"]
        # A release is written down when what was released is on disk: until then a kill repeats it.
        acks = queue_directory(own_broker.data_dir, "amq.delayed-x") / "acks.0000000001"
        wait_for(acks.exists, "the release is not written down")
    if is_killed:
        own_broker.kill()

    own_broker.restart()

    with Wire.open(own_broker.port) as wire:
        assert waiting(wire, "x") + count(wire, "x") == 2
        declare_delayed(wire, "x", "topic", style)
        assert bodies(wire, "x", 1) == ["second"]
        assert time.time() - published_s >= 1.499
        assert waiting(wire, "x") == 1
        publish(wire, "x", "third", 30)
        assert bodies(wire, "x", 1) == ["third"]


def test_what_became_due_meanwhile_is_released_without_a_client(tmp_path: Path) -> None:
    """edge-cases.md 229"""
    with inside(tmp_path / "data") as first, Wire.open(first.port) as wire:
        bound(wire, declare_delayed(wire, "x"))
        publish(wire, "x", "due", 1)
        publish(wire, "x", "due soon", 600)
        settle(wire)

    with inside(tmp_path / "data") as second:
        core = second.queue("x").core
        wait_for(lambda: core.ready == 2, "it is not released")


def test_a_transient_one_forgets_what_waits(own_broker: Broker) -> None:
    with Wire.open(own_broker.port) as wire:
        declare(wire, "q")
        request = commands.Exchange.Declare(
            exchange="x", exchange_type="x-delayed-message",
            arguments={"x-delayed-type": "fanout"},
        )  # fmt: skip
        wire.call(1, request, commands.Exchange.DeclareOk)
        bind(wire, "q", "x")
        publish(wire, "x", "long", LONG_MS)
        publish(wire, "x", "short", 50)
        assert bodies(wire, "q", 1) == ["short"]

    own_broker.restart()

    with Wire.open(own_broker.port) as wire:
        wire.send(1, commands.Exchange.Declare(exchange="x", passive=True))
        wire.expect_channel_close(1, 404)
    assert "amq.delayed" not in own_broker.log_text()


def stopped_with(broker: Broker, names: list[str]) -> dict[str, Path]:
    """A stopped broker with empty delayed exchanges, and a queue for each. Returns: by name, where
    messages wait."""
    with Wire.open(broker.port) as wire:
        for name in names:
            bound(wire, declare_delayed(wire, name))
    broker.stop()
    return {name: queue_directory(broker.data_dir, f"amq.delayed-{name}") for name in names}


def record(body: bytes, delay: int = LONG_MS) -> bytes:
    """A message that came now."""
    headers = b"\7x-delayI" + delay.to_bytes(4, "big")
    stamp = int(time.time() * 1000).to_bytes(8, "little")
    return stamp + encode_record(b"x", b"k", {"headers": headers}, body)


def test_a_cut_segment_of_acked_messages_does_no_harm(own_broker: Broker) -> None:
    """edge-cases.md 230"""
    lengths = {"header": 4, "half": 30, "some": 100}
    directories = stopped_with(own_broker, list(lengths))
    acked = [record(b"acked") for _ in range(3)]
    starts = [4 + len(acked[0]) * number for number in range(3)]
    for name, left in lengths.items():
        directory = directories[name]
        segment_path(directory).write_bytes((HEADER + b"".join(acked))[:left])
        acks = b"".join(start.to_bytes(4, "little") for start in starts)
        (directory / "acks.0000000001").write_bytes(acks)
        if name != "half":
            (directory / "meta.0000000001").write_bytes((3).to_bytes(4, "little"))
        segment_path(directory, 2).write_bytes(HEADER + record(b"alive", 1) + record(b"alive"))

    own_broker.start()

    with Wire.open(own_broker.port) as wire:
        for name in lengths:
            assert waiting(wire, name) + count(wire, name) == 2
            assert bodies(wire, name, 1) == ["alive"]
            assert waiting(wire, name) == 1
            publish(wire, name, "new", 50)
            assert bodies(wire, name, 1) == ["new"]
            assert not segment_path(directories[name]).exists()


def test_half_a_record_at_the_end_hides_none_before_it(own_broker: Broker) -> None:
    """edge-cases.md 231"""
    cuts = {"a-byte": 1, "some": 40, "most": 60}
    directories = stopped_with(own_broker, list(cuts))
    for name, cut in cuts.items():
        whole = record(b"first", 1) + record(b"second", 2)
        segment_path(directories[name]).write_bytes(HEADER + whole + record(b"third")[:-cut])

    own_broker.start()

    with Wire.open(own_broker.port) as wire:
        for name in cuts:
            assert waiting(wire, name) + count(wire, name) == 2
            assert bodies(wire, name, 2) == ["first", "second"]
            publish(wire, name, "new", 50)
            assert bodies(wire, name, 1) == ["new"]
            none_waits(wire, name)


def test_a_stored_message_leaves_under_the_name_of_the_exchange(own_broker: Broker) -> None:
    """edge-cases.md 232"""
    directory = stopped_with(own_broker, ["x"])["x"]
    foreign = record(b"foreign", 1).replace(b"\1x\1k", b"\5other\1k", 1)
    segment_path(directory).write_bytes(HEADER + foreign)

    own_broker.start()

    with Wire.open(own_broker.port) as wire:
        (unit,) = take(wire, "x")
        assert isinstance(unit.method, commands.Basic.GetOk)
        assert (unit.method.exchange, unit.body) == ("x", b"foreign")


# --- policies ---------------------------------------------------------------------------------


def test_a_policy_makes_an_exchange_delayed_and_its_end_releases_what_waits(
    within: Inside,
) -> None:
    """amqp.md 22.8"""
    with Wire.open(within.port) as wire:
        request = commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True)
        wire.call(1, request, commands.Exchange.DeclareOk)
        bound(wire, "x", "#")
        publish(wire, "x", "not held", LONG_MS)
        assert bodies(wire, "x", 1) == ["not held"]

        within.put_policy("late", "^x$", {"delayed-message": True})
        for delay in (LONG_MS, 1, LONG_MS - 10_000):
            publish(wire, "x", str(delay), delay)
        assert bodies(wire, "x", 1) == ["1"]
        assert waiting(wire, "x") == 2
        within.put_policy("late", "^x$", {"delayed-message": "true", "alternate-exchange": "y"})
        assert waiting(wire, "x") == 2

        within.delete_policy("late")

        assert bodies(wire, "x", 2) == [str(LONG_MS - 10_000), str(LONG_MS)]
        wait_for(lambda: "amq.delayed-x" not in within.vhost().queues, "its queue stays")
        publish(wire, "x", "not held any more", LONG_MS)
        assert bodies(wire, "x", 1) == ["not held any more"]
        within.put_policy("late", "^x$", {"delayed-message": True})
        publish(wire, "x", "held again", 50)
        assert bodies(wire, "x", 1) == ["held again"]


def test_a_policy_that_goes_and_comes_at_once_loses_nothing(within: Inside) -> None:
    with Wire.open(within.port) as wire:
        request = commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True)
        wire.call(1, request, commands.Exchange.DeclareOk)
        bound(wire, "x", "#")
        for number in range(5):
            within.put_policy("late", "^x$", {"delayed-message": True})
            publish(wire, "x", str(number), LONG_MS)
            settle(wire)
            within.delete_policy("late")
        within.put_policy("late", "^x$", {"delayed-message": True})
        publish(wire, "x", "last", 50)

        assert bodies(wire, "x", 6) == ["0", "1", "2", "3", "4", "last"]
        none_waits(wire, "x")


MANY = 30_000
"""More than are released in one go."""


def fill_waiting(within: Inside, wire: Wire) -> None:
    """Have MANY messages wait in the exchange x, to which the queue x is bound."""
    request = commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True)
    wire.call(1, request, commands.Exchange.DeclareOk)
    bound(wire, "x", "#")
    within.put_policy("late", "^x$", {"delayed-message": True})
    for number in range(MANY):
        publish(wire, "x", str(number), LONG_MS)
    settle(wire)
    assert within.exchange("x").waiting.core.ready == MANY


def test_many_are_released_in_portions(within: Inside) -> None:
    """All at once held everybody up for as long as it took."""
    with Wire.open(within.port) as wire:
        fill_waiting(within, wire)
        internal = within.exchange("x").waiting

        left = within.call(lambda: (remove_policy(within), internal.core.ready)[1])

        assert 0 < left < MANY
        publish(wire, "x", "not held any more", LONG_MS)
        wait_for(lambda: count(wire, "x") == MANY + 1, "not all were released", 30)
        wait_for(lambda: "amq.delayed-x" not in within.vhost().queues, "its queue stays")


def remove_policy(within: Inside) -> None:
    """Delete it and let it go from the exchange, in the loop's thread."""
    rules = within.vhost().rules
    with saving_at_once(within):
        rules.delete_policy("late")
    rules.apply_to_exchange(within.exchange("x"))


@contextmanager
def saving_at_once(within: Inside) -> Iterator[None]:
    """Have what is changed in force at once: no turn of the loop passes, nothing is released."""
    disk = within.inner.disk
    disk.is_running = False
    yield
    disk.is_running = True


def held(broker: Inside) -> int | None:
    """Messages that wait in the exchange x, None when it has no queue for them."""
    queue = broker.vhost().queues.get("amq.delayed-x")
    return None if queue is None else queue.core.ready


@pytest.mark.parametrize("what", ["policy", "exchange", "stop"])
def test_a_release_in_portions_may_be_overtaken(tmp_path: Path, what: str) -> None:
    """The policy comes back, the exchange is deleted, the broker stops: nothing comes twice."""
    with inside(tmp_path / "data") as within, Wire.open(within.port) as wire:
        fill_waiting(within, wire)

        def overtake() -> None:
            remove_policy(within)
            if what == "policy":
                late = Policy.of("late", "^x$", {"delayed-message": True})
                with saving_at_once(within):
                    within.vhost().rules.put_policy(late)
                within.vhost().rules.apply_to_exchange(within.exchange("x"))
            elif what == "exchange":
                within.vhost()._remove_exchange(within.exchange("x"))

        within.call(overtake)
        if what != "stop":
            within.settled()
            settle(wire)
            there = count(wire, "x")
            assert 0 < there < MANY
            assert held(within) == (MANY - there if what == "policy" else None)
    with inside(tmp_path / "data") as again, Wire.open(again.port) as wire:
        if what == "stop":
            wait_for(lambda: count(wire, "x") == MANY, "not all were released", 30)
            wait_for(lambda: "amq.delayed-x" not in again.vhost().queues, "its queue stays")
        else:
            assert count(wire, "x") == there
            assert held(again) == (MANY - there if what == "policy" else None)


def test_a_policy_leaves_names_alone_that_are_too_long(within: Inside) -> None:
    """amqp.md 22.27"""
    with Wire.open(within.port) as wire:
        for length in (255, 244):
            wire.send_bytes(encode_long_declare("x" * length, b"fanout", b""))
            wire.expect(commands.Exchange.DeclareOk)

    within.put_policy("late", "^x", {"delayed-message": True})

    assert within.exchange("x" * 255).waiting is None
    assert within.exchange("x" * 244).waiting is not None


def test_a_policy_that_went_while_the_broker_was_down_releases_what_waits(
    tmp_path: Path,
) -> None:
    with inside(tmp_path / "data") as first, Wire.open(first.port) as wire:
        request = commands.Exchange.Declare(exchange="x", exchange_type="topic", durable=True)
        wire.call(1, request, commands.Exchange.DeclareOk)
        bound(wire, "x", "#")
        first.put_policy("late", "^x$", {"delayed-message": True})
        publish(wire, "x", "waits", LONG_MS)
        assert waiting(wire, "x") == 1
        policies = first.vhost().directory / "policies.json"
    with inside(tmp_path / "data") as second, Wire.open(second.port) as wire:
        assert waiting(wire, "x") == 1
    policies.unlink()

    with inside(tmp_path / "data") as third, Wire.open(third.port) as wire:
        assert bodies(wire, "x", 1) == ["waits"]
        wait_for(lambda: "amq.delayed-x" not in third.vhost().queues, "its queue stays")
    assert not queue_directory(tmp_path / "data", "amq.delayed-x").exists()


def test_a_duplicate_is_dropped_when_published_and_not_when_released(
    wire: Wire, unique: UniqueName
) -> None:
    """edge-cases.md 223"""
    name = unique("delayed-dedup")
    arguments = {
        "x-delayed-type": "fanout", "x-message-deduplication": True, "x-cache-size": 10,
    }  # fmt: skip
    wire.call(
        1,
        commands.Exchange.Declare(
            exchange=name, exchange_type="x-delayed-message", arguments=arguments
        ),
        commands.Exchange.DeclareOk,
    )
    wire.call(1, commands.Queue.Declare(queue=name, exclusive=True), commands.Queue.DeclareOk)
    bind = commands.Queue.Bind(queue=name, exchange=name, routing_key="")
    wire.call(1, bind, commands.Queue.BindOk)
    headers = {"x-delay": 150, "x-deduplication-header": "key"}
    for body in (b"first", b"duplicate while it waits"):
        wire.publish(1, name, "", body, commands.Basic.Properties(headers=headers))
    ask = commands.Queue.Declare(0, name, passive=True)

    def ready() -> int:
        return wire.call(1, ask, commands.Queue.DeclareOk).message_count or 0

    wait_for(lambda: ready() == 1, "the first message was not released")
    wire.publish(
        1, name, "", b"duplicate after", commands.Basic.Properties(headers=headers | {"x-delay": 1})
    )
    wire.publish(1, name, "", b"other", commands.Basic.Properties(headers={"x-delay": 1}))

    wait_for(lambda: ready() == 2, "the other message was not released")
