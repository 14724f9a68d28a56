"""Policies on a running broker: what they give to queues, and alternate exchanges that act."""

from __future__ import annotations

import json
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pamqp import commands

from lavinmq.policy.policies import Policy
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import Wire

RECORDED = Path(__file__).parents[2] / "fixtures" / "data-dir"
THOUSANDS = 4000


@pytest.fixture(scope="module")
def broker() -> Iterator[Inside]:
    """One broker for all tests here; each uses names of its own."""
    with inside() as started:
        yield started


@pytest.fixture
def wire(broker: Inside) -> Iterator[Wire]:
    with Wire.open(broker.port) as opened:
        yield opened


def declare(wire: Wire, queue: str, **arguments: object) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    request = commands.Queue.Declare(queue=queue, durable=True, arguments=given)
    wire.call(1, request, commands.Queue.DeclareOk)


def declare_exchange(wire: Wire, name: str, type_: str = "direct", **arguments: object) -> None:
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    request = commands.Exchange.Declare(exchange=name, exchange_type=type_, arguments=given)
    wire.call(1, request, commands.Exchange.DeclareOk)


def collector(wire: Wire, name: str) -> None:
    """A fanout exchange with a queue of the same name."""
    declare_exchange(wire, name, "fanout")
    declare(wire, name)
    bind = commands.Queue.Bind(queue=name, exchange=name, routing_key="")
    wire.call(1, bind, commands.Queue.BindOk)


def routed(wire: Wire, exchange: str) -> bool:
    """Publish what matches no binding. Returns: whether a queue took it."""
    wire.publish(1, exchange, "matches nothing", b"x", mandatory=True)
    wire.send(1, commands.Basic.Qos(prefetch_count=0))
    unit = wire.receive()
    if isinstance(unit.method, commands.Basic.Return):
        wire.expect(commands.Basic.QosOk)
        return False
    assert isinstance(unit.method, commands.Basic.QosOk)
    return True


# --- queues -----------------------------------------------------------------------------------


def test_a_policy_reaches_a_queue_and_leaves_it(broker: Inside, wire: Wire) -> None:
    """edge-cases.md 288, 289, 293, 297"""
    declare(wire, "a-q", x_max_length=30)
    queue = broker.queue("a-q")
    assert (queue.features.max_length, queue.policy) == (30, None)

    broker.put_policy("a", "^a-", {"max-length": 10, "expires": 60000})
    assert (queue.features.max_length, queue.features.expires_ms) == (10, 60000)
    assert queue.policy == "a"
    broker.put_policy("a", "^a-", {"max-length": 50}, apply_to="queues")
    assert (queue.features.max_length, queue.features.expires_ms) == (30, None)
    broker.put_policy("a", "^a-", {"max-length": 5}, apply_to="exchanges")
    assert (queue.features.max_length, queue.policy) == (30, None)

    assert broker.delete_policy("a")
    assert (queue.features.max_length, queue.policy) == (30, None)


def test_an_operator_policy_tightens(broker: Inside, wire: Wire) -> None:
    """edge-cases.md 294"""
    declare(wire, "b-q")
    broker.put_policy("b", "^b-", {"max-length": 10})
    broker.put_operator_policy("b-op", "^b-", {"max-length": 3})
    queue = broker.queue("b-q")
    assert (queue.features.max_length, queue.operator_policy) == (3, "b-op")

    broker.call(broker.vhost().rules.delete_operator_policy, "b-op")
    broker.settled()

    assert (queue.features.max_length, queue.operator_policy) == (10, None)


def test_a_queue_declared_later_has_the_policy_at_once(broker: Inside, wire: Wire) -> None:
    broker.put_policy("c", "^c-", {"message-ttl": 500})
    declare(wire, "c-q")
    declare(wire, "not-c-q")

    assert broker.queue("c-q").features.message_ttl_ms == 500
    assert broker.queue("not-c-q").features.message_ttl_ms is None


def test_clients_are_served_while_a_policy_comes_to_thousands_of_queues(broker: Inside) -> None:
    with Wire.open(broker.port) as wire:
        for number in range(THOUSANDS):
            wire.send(1, commands.Queue.Declare(queue=f"d-{number}", exclusive=True))
        for _ in range(THOUSANDS):
            wire.expect(commands.Queue.DeclareOk)
        queues = [broker.queue(f"d-{number}") for number in range(THOUSANDS)]
        seen: list[int] = []

        def change(length: int) -> None:
            rules = broker.vhost().rules
            rules.put_policy(Policy.of("d", "^d-", {"max-length": length}))
            # What another client would see, had it been served one turn later.
            broker.server.events.call_soon(broker.server.events.call_soon, look, length)

        def look(length: int) -> None:
            seen.append(sum(queue.features.max_length == length for queue in queues))

        for length in (1, 2):
            broker.call(change, length)
            broker.settled()
            assert {queue.features.max_length for queue in queues} == {length}
        assert len(seen) == 2
        assert max(seen) < THOUSANDS
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
    assert broker.delete_policy("d")


def test_policies_are_there_after_a_restart(tmp_path: Path) -> None:
    with inside(tmp_path) as broker, Wire.open(broker.port) as wire:
        declare(wire, "q")
        collector(wire, "rest")
        broker.put_policy("p", "^q", {"max-length": 7})
        broker.put_policy("ae", "direct", {"alternate-exchange": "rest"}, apply_to="exchanges")
        broker.put_operator_policy("o", "", {"expires": 600000})

    with inside(tmp_path) as broker:
        features = broker.queue("q").features
        assert (features.max_length, features.expires_ms) == (7, 600000)
        assert broker.exchange("amq.direct").alternate_name == "rest"


def test_a_data_directory_of_lavinmq_comes_with_its_rules(tmp_path: Path) -> None:
    with tarfile.open(RECORDED / "rich.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    manifest = json.loads((RECORDED / "rich.json").read_text())
    (recorded,) = [queue for queue in manifest["queues"] if queue["name"] == "pol-q"]

    with inside(tmp_path, segment_size=4096) as broker:
        queue, second = broker.queue("pol-q"), broker.vhost("second/bjbp")

        assert (queue.policy, queue.operator_policy) == ("pol-a", "op-a")
        assert list(queue.features.effective_arguments) == recorded["effective_arguments"]
        assert queue.features.max_length == 20
        assert queue.features.message_ttl_ms == 400000000000
        assert second.rules.limits.all() == {"max-connections": 33, "max-queues": 77}
        assert [p.component for p in second.rules.parameters.all()] == ["own-component"]
        assert [p.name for p in broker.inner.parameters.all()] == ["gp"]
        for entry in manifest["queues"]:
            found = broker.vhost(entry["vhost"]).queues.get(entry["name"])
            if found is not None:
                assert found.policy == entry["policy"], entry["name"]
                effective = sorted(found.features.effective_arguments)
                wanted = entry["effective_arguments"]
                if found.is_session:  # which does not live for ever
                    wanted = [*wanted, "x-expires"]
                assert effective == sorted(wanted), entry["name"]


# --- exchanges --------------------------------------------------------------------------------


def test_an_alternate_exchange_by_policy_takes_what_matches_nothing(
    broker: Inside, wire: Wire
) -> None:
    """edge-cases.md 289, 292"""
    collector(wire, "e-rest")
    declare_exchange(wire, "e-x")
    assert not routed(wire, "e-x")

    broker.put_policy("e", "^e-x", {"alternate-exchange": "e-rest"})
    assert routed(wire, "e-x")
    assert broker.exchange("e-x").policy == "e"
    assert broker.delete_policy("e")
    assert not routed(wire, "e-x")

    reply = wire.call(1, commands.Queue.Purge(queue="e-rest"), commands.Queue.PurgeOk)
    assert reply.message_count == 1


def test_the_alternate_of_the_arguments_stays(broker: Inside, wire: Wire) -> None:
    """edge-cases.md 292"""
    collector(wire, "f-own")
    collector(wire, "f-policy")
    declare_exchange(wire, "f-x", alternate_exchange="f-own")

    broker.put_policy("f", "^f-x", {"alternate-exchange": "f-policy"})
    assert routed(wire, "f-x")
    assert broker.delete_policy("f")
    assert routed(wire, "f-x")

    for queue, messages in (("f-own", 2), ("f-policy", 0)):
        reply = wire.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)
        assert reply.message_count == messages


def test_the_alternate_of_a_policy_may_come_and_go(broker: Inside, wire: Wire) -> None:
    broker.put_policy("g", "^g-x", {"alternate-exchange": "g-rest"})
    declare_exchange(wire, "g-x")
    assert not routed(wire, "g-x")

    collector(wire, "g-rest")
    assert routed(wire, "g-x")
    wire.call(1, commands.Exchange.Delete(exchange="g-rest"), commands.Exchange.DeleteOk)
    assert not routed(wire, "g-x")
    wire.call(1, commands.Exchange.Delete(exchange="g-x"), commands.Exchange.DeleteOk)
    assert broker.delete_policy("g")

    collector(wire, "g-rest")
    declare_exchange(wire, "g-x")
    assert not routed(wire, "g-x")
    assert "g-rest" not in broker.vhost()._alternates


def test_a_policy_that_names_another_alternate_redirects(broker: Inside, wire: Wire) -> None:
    """edge-cases.md 297"""
    collector(wire, "h-one")
    collector(wire, "h-two")
    declare_exchange(wire, "h-x")
    for name in ("h-one", "h-two"):
        broker.put_policy("h", "^h-x", {"alternate-exchange": name})
        assert routed(wire, "h-x")

    for name in ("h-one", "h-two"):
        reply = wire.call(1, commands.Queue.Purge(queue=name), commands.Queue.PurgeOk)
        assert reply.message_count == 1


def test_alternates_by_policy_may_form_a_circle(broker: Inside, wire: Wire) -> None:
    declare_exchange(wire, "i-a")
    declare_exchange(wire, "i-b")
    broker.put_policy("i1", "^i-a", {"alternate-exchange": "i-b"})
    broker.put_policy("i2", "^i-b", {"alternate-exchange": "i-a"})
    assert not routed(wire, "i-a")

    declare(wire, "i-q")
    bind = commands.Queue.Bind(queue="i-q", exchange="i-b", routing_key="matches nothing")
    wire.call(1, bind, commands.Queue.BindOk)

    assert routed(wire, "i-a")


# --- what policies do to messages ---------------------------------------------------------------


def applied(broker: Inside, *policies: Policy) -> None:
    """Put policies, and wait until everything follows them."""
    done = threading.Event()

    def put() -> None:
        rules = broker.vhost().rules
        rules.put_policy(*policies)
        rules.when_applied(done.set)

    broker.call(put)
    assert done.wait(10)


def ready(wire: Wire, queue: str) -> int:
    ask = commands.Queue.Declare(0, queue, passive=True)
    return wire.call(1, ask, commands.Queue.DeclareOk).message_count or 0


def test_a_policy_trims_expires_and_dead_letters_what_is_there(broker: Inside, wire: Wire) -> None:
    """edge-cases.md 178, 181, 184, 189"""
    collector(wire, "dead")
    declare(wire, "live")
    for number in range(10):
        wire.publish(1, "", "live", b"%d" % number)
    assert ready(wire, "live") == 10

    overflow = {"max-length": 4, "dead-letter-exchange": "dead"}
    applied(broker, Policy.of("rule", "^live$", overflow))
    assert (ready(wire, "live"), ready(wire, "dead")) == (4, 6)

    applied(broker, Policy.of("rule", "^live$", {"max-length-bytes": 1}))
    assert ready(wire, "live") == 0
    applied(broker, Policy.of("rule", "^live$", {"max-length": 2}))
    for number in range(3):
        wire.publish(1, "", "live", b"%d" % number)
    assert ready(wire, "live") == 2

    applied(broker, Policy.of("rule", "^live$", {"message-ttl": 0}))
    assert ready(wire, "live") == 0

    broker.call(broker.vhost().rules.delete_policy, "rule")
    wait_for(lambda: broker.queue("live").features.policy is None, "the policy still applies")
    for number in range(5):
        wire.publish(1, "", "live", b"%d" % number)
    assert ready(wire, "live") == 5


def test_a_stream_takes_limits_from_a_policy_and_no_delivery_limit(
    broker: Inside, wire: Wire
) -> None:
    """edge-cases.md 255, 256"""
    declare(wire, "flow", x_queue_type="stream")
    for number in range(3):
        wire.publish(1, "", "flow", bytes(5 << 20) + b"%d" % number)
    assert ready(wire, "flow") == 3

    applied(broker, Policy.of("flow", "^flow$", {"delivery-limit": 1}, apply_to="streams"))
    assert "delivery-limit" not in broker.queue("flow").features.effective_policy_arguments
    assert ready(wire, "flow") == 3

    applied(broker, Policy.of("flow", "^flow$", {"max-length": 1}, apply_to="streams"))
    assert ready(wire, "flow") == 1
    wire.publish(1, "", "flow", b"goes on")
    assert ready(wire, "flow") == 2


def test_policies_from_several_threads_do_no_harm_to_a_stream(broker: Inside, wire: Wire) -> None:
    """edge-cases.md 276"""
    declare(wire, "busy", x_queue_type="stream")

    def change(number: int) -> None:
        for length in range(20):
            definition = {"max-length": 1000 + length}
            broker.call(
                broker.vhost().rules.put_policy,
                Policy.of(f"busy-{number}", "^busy$", definition, number),
            )

    with ThreadPoolExecutor(4) as pool:
        changes = [pool.submit(change, number) for number in range(4)]
        for number in range(500):
            wire.publish(1, "", "busy", b"%d" % number)
        for each in changes:
            each.result()

    assert ready(wire, "busy") == 500
    wait_for(
        lambda: broker.queue("busy").features.max_length == 1019, "the last policy is not in force"
    )


@pytest.mark.parametrize("type_", ["classic", "stream"])
def test_a_queue_has_as_many_consumers_as_a_policy_lets_it(
    broker: Inside, wire: Wire, type_: str
) -> None:
    """Those that it has stay. The lower one of policy and argument counts."""
    name = f"few-{type_}"
    declare(wire, name, x_queue_type=type_, x_max_consumers=2)
    wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
    for tag in ("first", "second"):
        asked = commands.Basic.Consume(queue=name, consumer_tag=tag)
        wire.call(1, asked, commands.Basic.ConsumeOk)
    for most in (2, 1, 0):
        if most < 2:
            broker.put_policy(name, f"^{name}$", {"max-consumers": most})
        wire.open_channel(2)
        wire.call(2, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        refused = wire.call(2, commands.Basic.Consume(queue=name), commands.Channel.Close)
        assert refused.reply_code == 406
        assert f"'{name}' has {most} consumers, as many as may be" in refused.reply_text
        wire.send(2, commands.Channel.CloseOk())
    assert len(broker.queue(name).consumers) == 2
    broker.put_policy(name, f"^{name}$", {"max-consumers": 3})
    wire.call(1, commands.Basic.Cancel("first"), commands.Basic.CancelOk)
    wire.call(1, commands.Basic.Consume(queue=name), commands.Basic.ConsumeOk)


def test_a_consumer_timeout_by_policy_closes_the_channel_of_a_live_queue() -> None:
    """What was delivered before the policy came counts, and the lower of policy and argument;
    queues that it does not name are patient. edge-cases.md 161"""
    with (
        inside(consumer_timeout_loop_interval=1) as own,
        Wire.open(own.port, channels=(1, 2, 3, 4)) as wire,
    ):
        declare(wire, "late-plain")
        declare(wire, "late-argument", x_consumer_timeout=3_600_000)
        declare(wire, "patient")
        for channel, queue in ((2, "late-plain"), (3, "late-argument"), (4, "patient")):
            wire.publish(1, "", queue, b"m")
            wire.call(channel, commands.Basic.Get(queue=queue), commands.Basic.GetOk)

        own.put_policy("timeout", "^late", {"consumer-timeout": 100})

        closes = [wire.expect_unit(commands.Channel.Close) for _ in range(2)]
        assert {unit.channel for unit in closes} == {2, 3}
        for unit in closes:
            assert isinstance(unit.method, commands.Channel.Close)
            assert unit.method.reply_text == "PRECONDITION_FAILED - consumer timeout"
            wire.send(unit.channel, commands.Channel.CloseOk())
        assert (ready(wire, "late-plain"), ready(wire, "late-argument")) == (1, 1)
        wire.call(4, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)

        own.delete_policy("timeout")
        wire.open_channel(2)
        wire.call(2, commands.Basic.Get(queue="late-plain"), commands.Basic.GetOk)
        assert wire.receive_all(2.5) == []
