"""Messages wait in a delayed exchange, and are released, while the broker or its disk fails.

A release stores a message where it goes before it writes down that it does not wait any more: what
was confirmed is there after a crash, waiting or released; what was released shortly before, and not
yet written down, is released a second time, not more. A failure names its seed.
"""

from __future__ import annotations

import errno
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.load import (
    BATCH,
    DAMAGED,
    LONGEST_FILLING,
    Message,
    Publisher,
    Stream,
    messages_in,
)
from tests.crash.test_power_loss import SYNC_US, Run, cuts_of
from tests.crash.test_sigkill import wait_for as wait_for_work
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.power_loss import Reading
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for
from tests.support.wire import Wire, encode_publish

QUEUES = ("late-0", "late-1")
WAITING = "amq.delayed-x"
DIRECTORY = queue_directory(Path(), WAITING).name
HOUR = commands.Basic.Properties(headers={"x-delay": 3600_000})
LONGEST_MS = 80
ENOUGH = 300
SHORT_ROUNDS, LONG_ROUNDS = 3, 50
SHORT_CUTS, LONG_CUTS = 5, 200

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]


class DelayingPublisher(Publisher):
    """Publishes to the delayed exchange, each message with a delay of its own."""

    def _publish_batch(self, channel: int, stream: Stream) -> None:
        first = stream.published + 1
        stream.published += BATCH
        self.wire.send_bytes(
            b"".join(
                encode_publish(
                    channel,
                    "x",
                    stream.queue,
                    stream.body(number, self._random.randrange(LONGEST_FILLING)),
                    commands.Basic.Properties(
                        headers={"x-delay": self._random.randrange(LONGEST_MS)}
                    ),
                )
                for number in range(first, first + BATCH)
            )
        )


def declare(port: int) -> None:
    exchange = commands.Exchange.Declare(
        exchange="x", exchange_type="x-delayed-message", durable=True,
        arguments={"x-delayed-type": "direct"},
    )  # fmt: skip
    with Wire.open(port) as wire:
        wire.call(1, exchange, commands.Exchange.DeclareOk)
        for queue in QUEUES:
            request = commands.Queue.Declare(queue=queue, durable=True)
            wire.call(1, request, commands.Queue.DeclareOk)
            bind = commands.Queue.Bind(queue=queue, exchange="x", routing_key=queue)
            wire.call(1, bind, commands.Queue.BindOk)


def count(wire: Wire, queue: str) -> int:
    request = commands.Queue.Declare(queue=queue, passive=True)
    return wire.call(1, request, commands.Queue.DeclareOk).message_count or 0


def publish_for_a_while(broker: Broker, name: str, seed: int) -> list[Stream]:
    """Publish until enough is confirmed; the broker is killed in the midst of it."""
    streams = [Stream(f"{name}-{queue}", queue) for queue in QUEUES]
    publisher = DelayingPublisher(broker.port, streams, seed)
    publisher.start()
    wait_for_work(lambda: all(each.confirmed >= ENOUGH for each in streams), [publisher])
    broker.kill()
    publisher.finish()
    return streams


def released(broker: Broker) -> dict[str, list[Message]]:
    """All messages, once the last of them is released."""
    with Wire.open(broker.port) as wire:
        wait_for(lambda: count(wire, WAITING) == 0, "messages wait for ever")
    return {queue: messages_in(broker.port, queue, count_is_exact=False) for queue in QUEUES}


def check(streams: Iterable[Stream], found: dict[str, list[Message]], before_ns: int) -> None:
    for stream in streams:
        copies = Counter(found[stream.queue])
        missing = [
            number
            for number in range(1, stream.confirmed_before(before_ns) + 1)
            if (stream.name, number) not in copies
        ]
        assert not missing, f"{stream.name}: confirmed and lost: {missing}"
        assert max(copies.values(), default=0) <= 2
        assert {name for name, _ in copies} <= {stream.name}
        assert all(1 <= number <= stream.published for _, number in copies)


def test_what_was_confirmed_survives_kills_waiting_or_released(
    own_broker: Broker, is_long: bool
) -> None:
    declare(own_broker.port)
    for number in range(LONG_ROUNDS if is_long else SHORT_ROUNDS):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"round {number}: seed {seed}")

        streams = publish_for_a_while(own_broker, f"r{number}", seed)
        own_broker.start()

        check(streams, released(own_broker), 1 << 63)
        with Wire.open(own_broker.port) as wire:
            for queue in QUEUES:
                wire.call(1, commands.Queue.Purge(queue=queue), commands.Queue.PurgeOk)
            wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)


@EVERY_READING
def test_what_was_confirmed_survives_a_loss_of_power_waiting_or_released(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 30)
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    broker.start()
    declare(broker.port)
    streams = publish_for_a_while(broker, "p", seed)
    run = Run(disk.records())

    chance = random.Random(seed)
    for number, cut in enumerate(cuts_of(run, chance, LONG_CUTS if is_long else SHORT_CUTS)):
        print(f"seed {seed}, cut {number}: after call {cut} of {len(run.records)}")
        root = tmp_path / f"cut-{number}"
        run.rebuild(cut, root, chance, reading=reading)
        again = broker_factory(data_dir=root, start=False).start()
        found = released(again) if is_there(again.port) else {queue: [] for queue in QUEUES}
        if reading is Reading.POSIX:
            found = {queue: [each for each in found[queue] if each != DAMAGED] for queue in found}
        check(streams, found, run.next_call_ns(cut))
        assert "is closed" not in again.log_text()
        assert again.stop() == 0


def is_there(port: int) -> bool:
    """Whether the power went after all was declared."""
    with Wire.open(port) as wire:
        for queue in (*QUEUES, WAITING):
            wire.send(1, commands.Queue.Declare(queue=queue, passive=True))
            if not isinstance(wire.receive().method, commands.Queue.DeclareOk):
                return False
    return True


def test_a_disk_that_cannot_be_read_closes_the_internal_queue_alone(on_disk: DiskFactory) -> None:
    """edge-cases.md 233"""
    broker, disk = on_disk()
    broker.start()
    declare(broker.port)
    late = commands.Basic.Properties(headers={"x-delay": 1000})
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(3):
            wire.publish(1, "x", QUEUES[0], b"late:%d:" % number, late)
        while wire.expect(commands.Basic.Ack, 1).delivery_tag != 3:
            pass
        messages = f"*/{queue_directory(Path(), WAITING).name}/msgs.*"

        disk.plan(Action.FAIL, Call.READ, messages, error=errno.EIO)
        disk.wait_for_strikes()

        wire.publish(1, "x", QUEUES[0], b"refused", late, mandatory=True)
        wire.expect(commands.Basic.Nack, 1)
        wire.publish(1, "x", QUEUES[0], b"late:9:")
        wire.expect(commands.Basic.Ack, 1)
        assert (count(wire, QUEUES[0]), count(wire, WAITING)) == (1, 0)
    assert f"queue '{WAITING}' cannot be read" in broker.log_text()
    disk.heal()

    broker.restart()

    found = released(broker)
    assert found[QUEUES[0]] == [("late", number) for number in (9, 0, 1, 2)]


# --- what a deleted exchange has left ---------------------------------------------------------


def declare_plain(wire: Wire, exchange: str) -> None:
    request = commands.Exchange.Declare(exchange=exchange, exchange_type="direct", durable=True)
    wire.call(1, request, commands.Exchange.DeclareOk)


def leave_a_directory(broker: Broker, disk: Disk) -> None:
    """Delete the exchange, in which a message waits, and end before its directory has gone."""
    declare(broker.port)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "x", QUEUES[0], b"late:1:", HOUR)
        wire.expect(commands.Basic.Ack, 1)
        disk.plan(Action.HOLD, Call.RENAME, f"*/{DIRECTORY}")
        wire.call(1, commands.Exchange.Delete(exchange="x"), commands.Exchange.DeleteOk)
        disk.wait_for_strikes()


def found_in_a_plain_one(broker: Broker) -> list[Message]:
    """What is released by a plain exchange of the same name, at once and after a restart."""
    with Wire.open(broker.port) as wire:
        declare_plain(wire, "x")
        bind = commands.Queue.Bind(queue=QUEUES[0], exchange="x", routing_key=QUEUES[0])
        wire.call(1, bind, commands.Queue.BindOk)
    assert broker.stop() == 0
    broker.start()
    with Wire.open(broker.port) as wire:
        wait_for(lambda: not is_queue(wire, WAITING), "something is released for ever")
    return messages_in(broker.port, QUEUES[0])


def is_queue(wire: Wire, queue: str) -> bool:
    wire.send(1, commands.Queue.Declare(queue=queue, passive=True))
    if isinstance(wire.receive().method, commands.Queue.DeclareOk):
        return True
    wire.send(1, commands.Channel.CloseOk())
    wire.open_channel(1)
    return False


def test_what_waited_in_a_deleted_exchange_does_not_come_from_a_new_one_of_its_name(
    on_disk: DiskFactory,
) -> None:
    """A kill came before the directory had lost its name. A start took that for one of the new
    exchange, which a policy had made delayed, and released what was in it."""
    broker, disk = on_disk()
    broker.start()
    leave_a_directory(broker, disk)
    broker.kill()
    disk.heal()
    broker.start()
    broker.restart()

    assert found_in_a_plain_one(broker) == []


def test_a_new_exchange_waits_until_the_directory_of_a_deleted_one_has_lost_its_name(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk()
    broker.start()
    leave_a_directory(broker, disk)
    with Wire.open(broker.port) as wire, Wire.open(broker.port) as other:
        request = commands.Exchange.Declare(exchange="x", exchange_type="direct", durable=True)
        wire.send(1, request)
        for _ in range(2):  # connections are heard in turns: that one has been
            other.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
        other.send(1, commands.Exchange.Declare(exchange="x", passive=True))
        assert isinstance(other.receive().method, commands.Channel.Close)

        disk.heal()

        wire.expect(commands.Exchange.DeclareOk, 1)
        left = queue_directory(broker.data_dir, WAITING)
        assert not left.exists()
    broker.kill()
    broker.start()
    assert found_in_a_plain_one(broker) == []


def test_exchanges_of_both_kinds_declared_at_once_do_not_take_each_other_s_directory(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk()
    broker.start()
    leave_a_directory(broker, disk)
    broker.kill()
    disk.plan(Action.HOLD, Call.RENAME, f"*/{DIRECTORY}")
    broker.start()
    late = commands.Exchange.Declare(
        exchange="x", exchange_type="direct", durable=True, arguments={"x-delayed-exchange": True}
    )
    plain = commands.Exchange.Declare(exchange="x", exchange_type="direct", durable=True)
    with (
        Wire.open(broker.port) as first,
        Wire.open(broker.port) as second,
        Wire.open(broker.port) as other,
    ):
        first.send(1, late)
        disk.wait_for_strikes()
        second.send(1, plain)
        for _ in range(2):
            other.call(1, commands.Basic.Qos(), commands.Basic.QosOk)

        disk.heal()

        first.expect(commands.Exchange.DeclareOk, 1)
        second.expect_channel_close(1, 406)
    assert queue_directory(broker.data_dir, WAITING).is_dir()
    left = queue_directory(broker.data_dir, WAITING).parent.glob(f"{DIRECTORY}.left-*")
    assert len(list(left)) == 1


def test_a_directory_that_keeps_its_name_refuses_a_new_exchange(on_disk: DiskFactory) -> None:
    broker, disk = on_disk()
    broker.start()
    leave_a_directory(broker, disk)
    broker.kill()
    disk.plan(Action.FAIL, Call.RENAME, f"*/{DIRECTORY}", error=errno.EIO)
    broker.start()
    request = commands.Exchange.Declare(exchange="x", exchange_type="direct", durable=True)
    for _ in range(2):
        with Wire.open(broker.port) as wire:
            wire.send(1, request)
            refused = wire.expect(commands.Channel.Close, 1)
            assert refused.reply_code == 406
            assert "exchange 'x' cannot be stored" in refused.reply_text
    disk.heal()

    assert found_in_a_plain_one(broker) == []


@EVERY_READING
def test_what_a_deleted_exchange_has_left_stays_away_after_a_loss_of_power(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """The directory may have its name again when the new exchange has been answered."""
    seed = random.SystemRandom().randrange(1 << 30)
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    broker.start()
    leave_a_directory(broker, disk)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    left = queue_directory(broker.data_dir, WAITING)
    wait_for(lambda: not left.exists(), "it keeps its name")
    with Wire.open(broker.port) as wire:
        declare_plain(wire, "x")
    broker.kill()
    run = Run(disk.records())

    chance = random.Random(seed)
    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        print(f"seed {seed}, cut {number}")
        root = tmp_path / f"cut-{number}"
        run.rebuild(len(run.records), root, chance, reading=reading)
        assert not queue_directory(root, WAITING).exists()
        again = broker_factory(data_dir=root, start=False).start()
        assert found_in_a_plain_one(again) == []
        assert again.stop() == 0


# --- a policy ---------------------------------------------------------------------------------


@EVERY_READING
def test_what_waits_on_account_of_a_policy_survives_a_loss_of_power(
    on_disk: DiskFactory, tmp_path: Path, is_long: bool, reading: Reading
) -> None:
    """The name of its directory was not synced: no declaration is answered behind that."""
    seed = random.SystemRandom().randrange(1 << 30)
    broker, disk = on_disk(log=True, http=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port) as wire:
        declare_plain(wire, "x")
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        policy = {"pattern": "^x$", "definition": {"delayed-message": True}}
        assert Api(broker)("PUT", "/api/policies/%2F/late", policy).status == 201

        wire.publish(1, "x", "k", b"late:1:", HOUR)

        wire.expect(commands.Basic.Ack, 1)
        confirmed_ns = time.monotonic_ns()
    broker.kill()
    run = Run([record for record in disk.records() if record.time_ns < confirmed_ns])

    chance = random.Random(seed)
    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        print(f"seed {seed}, cut {number}")
        root = tmp_path / f"cut-{number}"
        run.rebuild(len(run.records), root, chance, reading=reading)
        segments = list(queue_directory(root, WAITING).glob("msgs.*"))
        assert any(b"late:1:" in segment.read_bytes() for segment in segments)
