"""Keys of duplicates when the broker is killed, or the power goes: retrying never loses a message.

A client publishes numbered messages with their number as key, to a queue and to an exchange that
drop duplicates. After the end it sends all of them again, as a client would that knows nothing:
every message must be there then, and after a kill those that had been confirmed only once.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.support.broker import Broker, BrokerError
from tests.support.disk import Action, Call, Disk
from tests.support.power_loss import Survivors
from tests.support.wire import Wire, WireClosed

QUEUE, EXCHANGE, BEHIND = "own", "x", "behind"
BATCHES, BATCH = 4, 15
SEGMENT_SIZE = 4096
DEDUP = {"x-message-deduplication": True, "x-cache-size": 1000}
KINDS = Call.OPEN | Call.WRITE | Call.RENAME | Call.SYNC
SAMPLE, SHORT_CUTS, LONG_CUTS = 3, 2, 100
BOOT_AT = 8

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]
Message = tuple[str, int]


class Client:
    """What it has published, and what of it was confirmed, by where it went and its number."""

    def __init__(self) -> None:
        self.published: list[Message] = []
        self.confirmed: set[Message] = set()

    def run(self, broker: Broker) -> bool:
        """Two lives of the broker; return False when it ended before."""
        try:
            for life in range(2):
                broker.start()
                with Wire.open(broker.port) as wire:
                    declare(wire)
                    self._publish(wire, range(life * 1000, life * 1000 + BATCHES * BATCH))
                if broker.stop() != 0:
                    return False
        except (WireClosed, BrokerError, ConnectionError):
            broker.kill()  # and wait until it is dead
            return False
        return True

    def _publish(self, wire: Wire, numbers: range) -> None:
        tag = 0
        for start in range(numbers.start, numbers.stop, BATCH):
            batch = [(to, n) for n in range(start, start + BATCH) for to in (QUEUE, BEHIND)]
            self.published += batch
            send(wire, batch)
            tag += len(batch)
            wait_for(wire, tag)
            self.confirmed.update(batch)

    def retry(self, port: int) -> Counter[Message]:
        """Send all again, and return how often each message is in its queue."""
        with Wire.open(port) as wire:
            declare(wire)
            send(wire, self.published)
            if self.published:
                wait_for(wire, len(self.published))
            return Counter(
                (queue, number) for queue in (QUEUE, BEHIND) for number in taken(wire, queue)
            )


def declare(wire: Wire) -> None:
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for queue, arguments in ((QUEUE, DEDUP), (BEHIND, {})):
        request = commands.Queue.Declare(queue=queue, durable=True, arguments=arguments)
        wire.call(1, request, commands.Queue.DeclareOk)
    exchange = commands.Exchange.Declare(
        exchange=EXCHANGE, exchange_type="fanout", durable=True, arguments=DEDUP
    )
    wire.call(1, exchange, commands.Exchange.DeclareOk)
    bind = commands.Queue.Bind(queue=BEHIND, exchange=EXCHANGE)
    wire.call(1, bind, commands.Queue.BindOk)


def send(wire: Wire, messages: list[Message]) -> None:
    for to, number in messages:
        properties = commands.Basic.Properties(headers={"x-deduplication-header": number})
        exchange, key = ("", QUEUE) if to == QUEUE else (EXCHANGE, "")
        wire.publish(1, exchange, key, b"%d" % number, properties)


def wait_for(wire: Wire, tag: int) -> None:
    while wire.expect(commands.Basic.Ack, 1).delivery_tag != tag:
        pass


def taken(wire: Wire, queue: str) -> Iterator[int]:
    """Numbers of the messages in a queue, which is empty then."""
    while True:
        wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
        unit = wire.receive()
        if isinstance(unit.method, commands.Basic.GetEmpty):
            return
        yield int(unit.body)


def points_of(disk: Disk, is_long: bool, chance: random.Random) -> list[tuple[Action, int]]:
    """Around calls for files of messages and keys."""
    actions = (Action.KILL_BEFORE, Action.KILL_AFTER, Action.KILL_MIDDLE)
    everything = [
        (action, record.number)
        for record in disk.records()
        if record.number and ("dedup" in record.path or "msgs." in record.path)
        for action in actions
        if action is not Action.KILL_MIDDLE or record.kind is Call.WRITE
    ]
    assert any("dedup" in record.path for record in disk.records())
    return everything if is_long else chance.sample(everything, SAMPLE)


def test_after_a_kill_a_retry_completes_and_repeats_nothing_confirmed(
    on_disk: DiskFactory, is_long: bool
) -> None:
    """amqp.md 22.10"""
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, KINDS)
    client = Client()
    assert client.run(broker), "it does not even work without a kill"
    broker.start()
    found = client.retry(broker.port)
    assert found == dict.fromkeys(client.published, 1)

    for action, number in points_of(disk, is_long, random.Random()):
        print(f"{action.name} call {number}")
        broker, killing = on_disk(segment_size=SEGMENT_SIZE)
        killing.plan(action, KINDS, first=number, last=number)
        client = Client()

        client.run(broker)

        killing.heal()
        broker.start()
        found = client.retry(broker.port)
        assert set(found) == set(client.published), "a message is lost"
        twice = {message for message, count in found.items() if count > 1}
        assert twice & client.confirmed == set(), "confirmed, and there twice"
        assert broker.stop() == 0
        assert "Traceback" not in broker.log_text()


def other_boot(root: Path) -> None:
    """Let the files of keys be of a boot that is over; those that are complete still count."""
    for path in [*root.rglob("dedup"), *root.rglob("dedup.*")]:
        content = bytearray(path.read_bytes())
        if len(content) > BOOT_AT:
            content[BOOT_AT] ^= 0x80
            path.write_bytes(content)


def test_after_a_loss_of_power_a_retry_completes(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES)
    client = Client()
    assert client.run(broker)
    records = disk.records()
    keys = [at for at, record in enumerate(records) if "dedup" in record.path]

    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        cut = chance.randrange(keys[0], len(records))
        print(f"seed {seed}, cut {number}: after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(records[:cut]).write(root, chance)
        other_boot(root)
        broker = broker_factory(data_dir=root, start=False).start()
        found = client.retry(broker.port)
        assert set(found) == set(client.published), "a message is lost"
        assert broker.stop() == 0


def test_the_confirm_of_a_duplicate_waits_for_the_disk(on_disk: DiskFactory) -> None:
    """It says that the first message is safe, whose publisher may not have asked."""
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        declare(wire)
        declared = syncs(disk)
        properties = commands.Basic.Properties(headers={"x-deduplication-header": "a"})
        for exchange, key in (("", QUEUE), (EXCHANGE, "")):
            wire.publish(2, exchange, key, b"1", properties)
            wire.call(2, commands.Basic.Qos(), commands.Basic.QosOk)
        before = syncs(disk)
        assert before == declared, "nobody asked for it"

        for tag, (exchange, key) in enumerate((("", QUEUE), (EXCHANGE, "")), 1):
            wire.publish(1, exchange, key, b"1", properties)
            wait_for(wire, tag)

            assert syncs(disk) > before
            before = syncs(disk)
        assert list(taken(wire, QUEUE)) == list(taken(wire, BEHIND)) == [1]


def syncs(disk: Disk) -> int:
    return sum(record.kind is Call.SYNCED for record in disk.records())


def test_keys_of_a_deleted_exchange_that_the_disk_keeps_are_not_those_of_the_next(
    on_disk: DiskFactory,
) -> None:
    """A declaration looks for them on the disk in that case alone, and is refused while they stay.
    It has not happened then."""
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        declare(wire)
        send(wire, [(BEHIND, 1)])
        wait_for(wire, 1)
        disk.plan(Action.FAIL, Call.UNLINK, "*/dedup.*", error=errno.EIO)
        wire.call(1, commands.Exchange.Delete(exchange=EXCHANGE), commands.Exchange.DeleteOk)
        again = commands.Exchange.Declare(
            exchange=EXCHANGE, exchange_type="fanout", durable=True, arguments=DEDUP
        )
        wire.send(2, again)
        assert "cannot be stored" in wire.expect_channel_close(2, 406).reply_text
        assert disk.struck >= 2
        disk.plan(Action.NOTHING, Call.UNLINK)
        declare(wire)
        assert disk.matched
        plain = commands.Exchange.Declare(exchange="other", durable=True)
        matched = disk.matched
        wire.call(1, plain, commands.Exchange.DeclareOk)
        assert disk.matched == matched
    broker.restart()

    with Wire.open(broker.port) as wire:
        declare(wire)
        send(wire, [(BEHIND, 1)])
        wait_for(wire, 1)
        assert list(taken(wire, BEHIND)) == [1, 1]
