"""What comes and goes a thousand times leaves no memory and no descriptor behind.

`LAVINMQ_TEST_LEAK_ROUNDS=10000` looks closer: what one round may leave behind shrinks with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest
from pamqp import commands

from perf import measure
from tests.support.broker import Broker
from tests.support.wire import Wire, encode

ROUNDS_VARIABLE = "LAVINMQ_TEST_LEAK_ROUNDS"
ROUNDS = int(os.environ.get(ROUNDS_VARIABLE, "500"))
WARM_UP = max(100, ROUNDS // 5)
# The allocators of C and of Python grow in steps; a step or two is no leak.
ALLOWED_MIB = 1.5
SETTLE_S = 20.0
DEADLINE_S = 600.0
CUT_PUBLISH = (
    encode(1, commands.Basic.Publish(routing_key="leak-cut"))
    + b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\xce"
    + b"\x03\x00\x01\x00\x00\x01\x00half of a body"
)


@pytest.fixture(scope="module")
def worn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker for all tests of this module."""
    directory = tmp_path_factory.mktemp("leaks")
    # The sums of files open files of their own, once, half a minute after the start.
    settings = directory / "lavinmq.ini"
    settings.write_text("[main]\nscrub_rate = 0\n")
    broker = Broker(directory / "data", ["--no-sync", "-c", str(settings)])
    try:
        yield broker.start()
    finally:
        broker.close()


def connections(port: int, count: int) -> None:
    for _ in range(count):
        Wire.open(port).close()


def channels(port: int, count: int) -> None:
    with Wire.open(port) as wire:
        for _ in range(count):
            wire.open_channel(2)
            wire.call(2, commands.Confirm.Select(), commands.Confirm.SelectOk)
            wire.call(2, commands.Channel.Close(200, "", 0, 0), commands.Channel.CloseOk)


def use_queues(port: int, count: int, *, durable: bool) -> None:
    with Wire.open(port) as wire:
        for number in range(count):
            name = f"leak-{number}"
            declare = commands.Queue.Declare(queue=name, durable=durable)
            wire.call(1, declare, commands.Queue.DeclareOk)
            bind = commands.Queue.Bind(queue=name, exchange="amq.topic", routing_key=f"{number}.#")
            wire.call(1, bind, commands.Queue.BindOk)
            wire.publish(1, "", name, b"x" * 100)
            wire.call(1, commands.Queue.Delete(queue=name), commands.Queue.DeleteOk)


def durable_queues(port: int, count: int) -> None:
    use_queues(port, count, durable=True)


def transient_queues(port: int, count: int) -> None:
    use_queues(port, count, durable=False)


def exchanges(port: int, count: int) -> None:
    kinds = ("topic", "headers", "direct", "fanout")
    with Wire.open(port) as wire:
        for number in range(count):
            name, kind = f"leak-{number}", kinds[number % len(kinds)]
            declare = commands.Exchange.Declare(exchange=name, exchange_type=kind)
            wire.call(1, declare, commands.Exchange.DeclareOk)
            bind = commands.Exchange.Bind(
                destination="amq.fanout", source=name, routing_key="k", arguments={"a": 1}
            )
            wire.call(1, bind, commands.Exchange.BindOk)
            wire.publish(1, name, "k", b"x")
            wire.call(1, commands.Exchange.Delete(exchange=name), commands.Exchange.DeleteOk)


def consumers(port: int, count: int) -> None:
    with Wire.open(port) as wire:
        declare = commands.Queue.Declare(queue="leak", exclusive=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
        for number in range(count):
            tag = f"tag-{number}"
            consume = commands.Basic.Consume(queue="leak", consumer_tag=tag)
            wire.call(1, consume, commands.Basic.ConsumeOk)
            wire.publish(1, "", "leak", b"x" * 50)
            deliver = wire.expect(commands.Basic.Deliver, 1)
            wire.send(1, commands.Basic.Nack(deliver.delivery_tag or 0, requeue=False))
            wire.call(1, commands.Basic.Cancel(consumer_tag=tag), commands.Basic.CancelOk)


def transactions(port: int, count: int) -> None:
    with Wire.open(port) as wire:
        declare = commands.Queue.Declare(queue="leak", exclusive=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        for _ in range(count):
            wire.publish(1, "", "leak", b"x" * 3000)
            wire.call(1, commands.Tx.Rollback(), commands.Tx.RollbackOk)
            wire.publish(1, "", "leak", b"x" * 3000)
            wire.call(1, commands.Tx.Commit(), commands.Tx.CommitOk)
            wire.call(1, commands.Queue.Purge(queue="leak"), commands.Queue.PurgeOk)


def channel_errors(port: int, count: int) -> None:
    with Wire.open(port, channels=()) as wire:
        for _ in range(count):
            wire.open_channel(1)
            wire.send(1, commands.Basic.Get(queue="leak-missing"))
            wire.expect_channel_close(1, 404)


def connections_cut_in_a_body(port: int, count: int) -> None:
    for _ in range(count):
        with Wire.open(port) as wire:
            declare = commands.Queue.Declare(queue="leak-cut", auto_delete=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
            wire.call(1, commands.Basic.Consume(queue="leak-cut"), commands.Basic.ConsumeOk)
            wire.send_bytes(CUT_PUBLISH)


def settled(broker: Broker, descriptors: int = 0) -> measure.Footprint:
    """What the broker holds once it has noticed that the connections are gone."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        held = measure.footprint(broker.pid)
        if held.descriptors <= descriptors or time.monotonic() > deadline:
            return held
        time.sleep(0.05)


@pytest.mark.parametrize(
    "wear",
    [
        connections,
        channels,
        durable_queues,
        transient_queues,
        exchanges,
        consumers,
        transactions,
        channel_errors,
        connections_cut_in_a_body,
    ],
)
def test_nothing_is_left_behind(worn: Broker, wear: Callable[[int, int], None]) -> None:
    idle = measure.footprint(worn.pid)
    wear(worn.port, WARM_UP)
    before = settled(worn, idle.descriptors)

    wear(worn.port, ROUNDS)

    after = settled(worn, before.descriptors)
    assert after.descriptors <= before.descriptors
    assert after.anon_mib - before.anon_mib < ALLOWED_MIB
