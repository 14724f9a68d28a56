"""What operators do to queues: pause, resume, and start a closed one again.

There is no interface for operators yet, so the broker runs in this process and its virtual host is
called on its own thread; clients are real ones.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pika
import pytest
from pamqp import commands

import lavinmq
from lavinmq.amqp.channel import Consumer
from lavinmq.files.directories import hashed
from lavinmq.policy.policies import Policy
from lavinmq.vhost.vhost import VHost
from tests.support.waiting import wait_for
from tests.support.wire import Wire

QUIET_S = 0.2


class Operated:
    """A broker on one data directory that can be started again, seen from an operator's place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.broker = self._start()

    def _start(self) -> lavinmq.Broker:
        return lavinmq.run(data_dir=self.directory, sync=False, segment_size=4096)

    def restart(self) -> None:
        self.broker.stop()
        self.broker = self._start()

    def do(self, action: Callable[[VHost], Any]) -> Any:
        """Call `action` with the virtual host `/`, on the broker's thread, and wait for it."""
        server = self.broker._server

        async def call() -> Any:
            result = action(server.broker.vhosts["/"])
            return await result if inspect.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), server.events).result(10)

    def state(self, queue: str) -> str:
        return self.do(lambda vhost: vhost.queues[queue].state)

    def files(self, queue: str) -> Path:
        """The directory of a queue."""
        return self.directory / hashed("/") / hashed(queue)

    def wire(self, *channels: int) -> Wire:
        return Wire.open(self.broker.port, channels=channels or (1,))

    def declare(self, queue: str, *, durable: bool = True) -> None:
        with self.wire() as wire:
            request = commands.Queue.Declare(queue=queue, durable=durable)
            wire.call(1, request, commands.Queue.DeclareOk)

    def publish(self, queue: str, *bodies: bytes) -> None:
        """Publish and wait until the broker has taken them."""
        with pika.BlockingConnection(pika.URLParameters(self.broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for body in bodies:
                channel.basic_publish("", queue, body)

    def drain(self, queue: str) -> list[bytes]:
        with self.wire() as wire:
            bodies = []
            while True:
                wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
                unit = wire.receive()
                if isinstance(unit.method, commands.Basic.GetEmpty):
                    return bodies
                bodies.append(unit.body)


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[Operated]:
    made = Operated(tmp_path / "data")
    try:
        yield made
    finally:
        made.broker.stop()


def consume(wire: Wire, queue: str, *, no_ack: bool = True, exclusive: bool = False) -> None:
    request = commands.Basic.Consume(
        queue=queue, consumer_tag="c", no_ack=no_ack, exclusive=exclusive
    )
    wire.call(1, request, commands.Basic.ConsumeOk)


# ------------------------------------------------------------------ pause and resume


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "transient"])
def test_a_paused_queue_takes_messages_and_gives_none(operated: Operated, durable: bool) -> None:
    """Consumers that were there, and such that come, wait until it is resumed; a get is empty.
    edge-cases.md 340"""
    operated.declare("q", durable=durable)
    with operated.wire() as before, operated.wire() as after:
        consume(before, "q")
        operated.do(lambda vhost: vhost.operators.pause("q"))
        consume(after, "q")

        operated.publish("q", b"0", b"1")

        assert operated.state("q") == "paused"
        assert before.receive_all(QUIET_S) == after.receive_all(QUIET_S) == []
        after.call(1, commands.Basic.Get(queue="q"), commands.Basic.GetEmpty)
        assert operated.do(lambda vhost: vhost.queues["q"].core.ready) == 2
        operated.do(lambda vhost: vhost.operators.resume("q"))
        got = {each.expect_unit(commands.Basic.Deliver, 1).body for each in (before, after)}
        assert got == {b"0", b"1"}
        assert operated.state("q") == "running"


def test_what_is_requeued_waits_too_while_the_queue_is_paused(operated: Operated) -> None:
    """edge-cases.md 340"""
    operated.declare("q")
    operated.publish("q", b"m")
    with operated.wire() as wire:
        consume(wire, "q", no_ack=False)
        wire.expect(commands.Basic.Deliver, 1)
        operated.do(lambda vhost: vhost.operators.pause("q"))

        wire.send(1, commands.Basic.Reject(delivery_tag=1, requeue=True))

        assert wire.receive_all(QUIET_S) == []
        operated.do(lambda vhost: vhost.operators.resume("q"))
        assert wire.expect(commands.Basic.Deliver, 1).redelivered


def test_a_pause_survives_a_restart_and_ends_with_its_mark(operated: Operated) -> None:
    """edge-cases.md 339"""
    operated.declare("q")
    operated.publish("q", b"m")
    operated.do(lambda vhost: vhost.operators.pause("q"))
    assert (operated.files("q") / "paused").exists()

    operated.restart()

    assert operated.state("q") == "paused"
    assert operated.drain("q") == []
    operated.do(lambda vhost: vhost.operators.resume("q"))
    assert not (operated.files("q") / "paused").exists()
    operated.restart()
    assert operated.state("q") == "running"
    assert operated.drain("q") == [b"m"]


def test_the_older_mark_gets_the_present_name(operated: Operated) -> None:
    """edge-cases.md 339"""
    operated.declare("q")
    (operated.files("q") / ".paused").touch()

    operated.restart()

    assert operated.state("q") == "paused"
    assert not (operated.files("q") / ".paused").exists()
    assert (operated.files("q") / "paused").exists()


def test_a_transient_queue_is_paused_without_a_mark(operated: Operated) -> None:
    operated.declare("q", durable=False)

    operated.do(lambda vhost: vhost.operators.pause("q"))

    assert list(operated.directory.rglob("*paused")) == []


def test_a_deleted_queue_takes_its_pause_along(operated: Operated) -> None:
    operated.declare("q")
    operated.do(lambda vhost: vhost.operators.pause("q"))
    with operated.wire() as wire:
        wire.call(1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)

    operated.declare("q")

    assert operated.state("q") == "running"
    operated.restart()
    assert operated.state("q") == "running"


def test_pausing_twice_and_resuming_what_runs_change_nothing(operated: Operated) -> None:
    operated.declare("q")

    operated.do(lambda vhost: vhost.operators.resume("q"))
    assert operated.state("q") == "running"
    for _ in range(2):
        operated.do(lambda vhost: vhost.operators.pause("q"))
    operated.do(lambda vhost: vhost.operators.resume("q"))

    assert operated.state("q") == "running"


@pytest.mark.parametrize("action", ["pause", "resume", "restart"])
def test_a_queue_that_is_not_there_is_an_error(operated: Operated, action: str) -> None:
    with pytest.raises(KeyError):
        operated.do(lambda vhost: getattr(vhost.operators, action)("missing"))


# ------------------------------------------------------------------ starting a closed queue again


def break_files(operated: Operated, queue: str) -> Path:
    """Have the queue closed by a write that fails. Returns: where its files are now."""
    aside = operated.files(queue).with_name("aside")
    operated.files(queue).rename(aside)
    operated.files(queue).write_bytes(b"")  # no directory: no new segment can be made
    with operated.wire() as wire:
        wire.publish(1, "", queue, b"x" * 5000)
        wire.publish(1, "", queue, b"x" * 5000)
        wait_for(lambda: operated.state(queue) == "closed", "the queue is not closed")
    return aside


def mend_files(operated: Operated, queue: str, aside: Path) -> None:
    operated.files(queue).unlink()
    aside.rename(operated.files(queue))


def test_a_closed_queue_starts_again_with_its_messages(operated: Operated) -> None:
    """Its consumer is told when it closes, the exclusive one is forgotten, bindings hold, and acks
    of what it delivered before do nothing. edge-cases.md 163, 314, 341"""
    operated.declare("q")
    operated.publish("q", b"0", b"1")
    with operated.wire() as wire:
        wire.call(1, commands.Basic.Qos(prefetch_count=2), commands.Basic.QosOk)
        consume(wire, "q", no_ack=False, exclusive=True)
        for tag in (1, 2):
            assert wire.expect(commands.Basic.Deliver, 1).delivery_tag == tag
        aside = break_files(operated, "q")
        assert wire.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
        mend_files(operated, "q", aside)

        operated.do(lambda vhost: vhost.operators.restart("q"))

        assert operated.state("q") == "running"
        wire.send(1, commands.Basic.Ack(delivery_tag=2, multiple=True))
        wire.call(1, commands.Basic.Qos(prefetch_count=0), commands.Basic.QosOk)
        assert operated.do(lambda vhost: vhost.queues["q"].core.unacked) == 0
        operated.publish("q", b"2")
        with operated.wire() as other:
            consume(other, "q", exclusive=True)
            bodies = [other.expect_unit(commands.Basic.Deliver, 1).body for _ in range(3)]
        assert bodies == [b"0", b"1", b"2"]


def test_what_could_not_be_read_at_start_is_read_when_it_is_put_right(operated: Operated) -> None:
    """Who has consumed from it meanwhile is cancelled. edge-cases.md 163, 314, 341"""
    operated.declare("q")
    operated.publish("q", b"m")
    foreign = operated.files("q") / "msgs.0000000002"
    foreign.write_bytes(b"\x09\0\0\0" + b"another version")
    operated.restart()
    assert operated.state("q") == "closed"
    with pytest.raises(ValueError, match="schema version 9"):
        operated.do(lambda vhost: vhost.operators.restart("q"))
    assert operated.state("q") == "closed"
    with operated.wire() as wire:
        consume(wire, "q", exclusive=True)
        foreign.unlink()

        operated.do(lambda vhost: vhost.operators.restart("q"))

        assert wire.expect(commands.Basic.Cancel, 1).consumer_tag == "c"
        assert operated.drain("q") == [b"m"]


def test_a_closed_queue_can_be_deleted(operated: Operated) -> None:
    """edge-cases.md 314"""
    operated.declare("q")
    os.truncate(operated.files("q") / ".queue", 0)
    (operated.files("q") / "msgs.0000000001").write_bytes(b"\x09\0\0\0" + b"another version")
    operated.restart()
    assert operated.state("q") == "closed"

    with operated.wire() as wire:
        wire.call(1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)

    operated.declare("q")
    assert operated.state("q") == "running"


def test_a_running_queue_cannot_be_started_again(operated: Operated) -> None:
    """edge-cases.md 341"""
    operated.declare("q")
    operated.publish("q", b"m")

    with pytest.raises(ValueError, match="'q' is running"):
        operated.do(lambda vhost: vhost.operators.restart("q"))

    assert operated.drain("q") == [b"m"]


def test_a_restarted_queue_is_paused_as_before(operated: Operated) -> None:
    operated.declare("q")
    operated.publish("q", b"m")
    operated.do(lambda vhost: vhost.operators.pause("q"))
    foreign = operated.files("q") / "msgs.0000000002"
    foreign.write_bytes(b"\x09\0\0\0" + b"another version")
    operated.restart()
    foreign.unlink()

    operated.do(lambda vhost: vhost.operators.restart("q"))

    assert operated.state("q") == "paused"
    assert operated.drain("q") == []


def test_a_get_of_a_closed_queue_is_empty(operated: Operated) -> None:
    """edge-cases.md 342"""
    operated.declare("q")
    operated.publish("q", b"m")
    break_files(operated, "q")

    assert operated.drain("q") == []


# ------------------------------------------------------------------ who is active


def test_operators_see_who_is_active(operated: Operated) -> None:
    def active(vhost: VHost) -> tuple[str, list[bool]]:
        queue = vhost.queues["q"]
        consumer = queue.active_consumer
        assert consumer is not None
        return consumer.tag, [cast(Consumer, each).is_active for each in queue.consumers]

    with operated.wire(1, 2) as wire:
        single = {"x-single-active-consumer": True}
        request = commands.Queue.Declare(queue="q", arguments=single)
        wire.call(1, request, commands.Queue.DeclareOk)
        for channel in (1, 2):
            consume_ = commands.Basic.Consume(queue="q", consumer_tag=f"c{channel}")
            wire.call(channel, consume_, commands.Basic.ConsumeOk)
        assert operated.do(active) == ("c1", [True, False])

        wire.call(1, commands.Basic.Cancel(consumer_tag="c1"), commands.Basic.CancelOk)

        assert operated.do(active) == ("c2", [True])


def test_a_restarted_queue_follows_the_policies_of_now(operated: Operated) -> None:
    """edge-cases.md 300"""
    operated.declare("q")
    operated.publish("q", b"0", b"1", b"2")
    with operated.wire() as wire:
        wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        consume(wire, "q", no_ack=False)
        wire.expect(commands.Basic.Deliver, 1)
        aside = break_files(operated, "q")
        wire.expect(commands.Basic.Cancel, 1)
        mend_files(operated, "q", aside)
        policy = Policy.of("short", "^q$", {"max-length": 2})
        operated.do(lambda vhost: vhost.rules.put_policy(policy))
        wait_for(
            lambda: operated.do(lambda vhost: vhost.queues["q"].features.max_length == 2),
            "the policy does not apply",
        )

    operated.do(lambda vhost: vhost.operators.restart("q"))

    operated.publish("q", b"3")
    with operated.wire() as wire:
        consume(wire, "q", no_ack=True)
        bodies = [wire.expect_unit(commands.Basic.Deliver, 1).body for _ in range(2)]
    assert bodies == [b"2", b"3"]
