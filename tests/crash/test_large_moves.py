"""Large messages go from queue to queue: kill, cut the power, let the disk fail on their way.

Each run publishes small and large messages to a queue, each confirmed, and rejects them all; each
dead letter goes to two queues. A message is then in both, or still in the first one.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from http.client import HTTPException
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.books import messages_found
from tests.crash.conftest import EVERY_READING, BrokerFactory, DiskFactory
from tests.crash.kills import calls_of, each_killed
from tests.crash.load import DAMAGED, Message, Stream
from tests.support.api import Api
from tests.support.broker import Broker, BrokerError
from tests.support.disk import Action, Call
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for
from tests.support.wire import Wire, WireClosed

SOURCE, TARGETS, FAN = "source", ("one", "two"), "fan"
SMALL, LARGE = 900, (1 << 20) + 200_000
SIZES = (LARGE, SMALL, LARGE, LARGE)
SEGMENT_SIZE = 8 << 20
CUTS, LONG_CUTS = 12, 200
ENOUGH_S = 30.0

pytestmark = pytest.mark.crash


class Run:
    """A broker with a queue whose dead letters go to two others."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.stream = Stream(SOURCE, SOURCE)
        broker.start()
        with Wire.open(broker.port) as wire:
            fan = commands.Exchange.Declare(exchange=FAN, exchange_type="fanout", durable=True)
            wire.call(1, fan, commands.Exchange.DeclareOk)
            for name in (SOURCE, *TARGETS):
                to_fan = {"x-dead-letter-exchange": FAN} if name == SOURCE else {}
                declare = commands.Queue.Declare(queue=name, durable=True, arguments=to_fan)
                wire.call(1, declare, commands.Queue.DeclareOk)
                if name != SOURCE:
                    bind = commands.Queue.Bind(queue=name, exchange=FAN)
                    wire.call(1, bind, commands.Queue.BindOk)

    def publish(self) -> None:
        """Publish all, each confirmed before the next."""
        with Wire.open(self.broker.port) as wire:
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            for size in SIZES:
                self.stream.published += 1
                wire.publish(1, "", SOURCE, self.stream.body(self.stream.published, size))
                wire.expect(commands.Basic.Ack, 1)
                self.stream.confirm(self.stream.published)

    def reject(self) -> None:
        """Take all, and reject each."""
        with Wire.open(self.broker.port) as wire:
            for _ in range(self.stream.published):
                wire.send(1, commands.Basic.Get(queue=SOURCE))
                got = wire.expect_unit(commands.Basic.GetOk, 1).method
                assert isinstance(got, commands.Basic.GetOk)
                wire.send(1, commands.Basic.Reject(got.delivery_tag, requeue=False))
            wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)

    def await_letters(self, targets: tuple[str, ...] = TARGETS) -> None:
        for name in targets:
            wait_for(lambda name=name: self.count(name) == self.stream.published,  # type: ignore[misc]
                     f"not all are in {name}", ENOUGH_S)  # fmt: skip

    def count(self, queue: str) -> int:
        with Wire.open(self.broker.port) as wire:
            passive = commands.Queue.Declare(queue=queue, passive=True)
            return wire.call(1, passive, commands.Queue.DeclareOk).message_count or 0

    def try_all(self) -> bool:
        """All of that; False when the broker ended before."""
        try:
            self.publish()
            self.reject()
            self.await_letters()
        except (WireClosed, BrokerError, ConnectionError):
            self.broker.kill()
            return False
        return True

    def check(
        self, broker: Broker, *, before_ns: int = 1 << 63, reading: Reading | None = None
    ) -> dict[str, list[Message]]:
        """Start once more, and compare; returns what is where."""
        before = len(broker.log_text()) if broker.log_path.exists() else 0
        broker.start()
        queues = (SOURCE, *TARGETS)
        found = messages_found(broker.port, queues, count_is_exact=reading is None)
        for name, messages in found.items():
            if reading is Reading.POSIX:
                messages[:] = [each for each in messages if each != DAMAGED]
            assert all(number <= self.stream.published for _, number in messages)
            twice = [each for each, n in Counter(messages).items() if n > 1]
            assert not twice, f"{name}: more than once: {twice}"
        for number in range(1, self.stream.confirmed_before(before_ns) + 1):
            message = (SOURCE, number)
            assert message in found[SOURCE] or all(message in found[name] for name in TARGETS), (
                f"message {number} is lost: {found}"
            )
        assert broker.stop() == 0
        assert "is closed" not in broker.log_text()[before:]
        assert list(broker.data_dir.rglob("tmp.msgs.*")) == []
        return found


def files_for(broker: Broker, queue: str) -> str:
    """A pattern of the files that are written ahead for a queue."""
    return f"*/{queue_directory(broker.data_dir, queue).name}/tmp.msgs.*"


def test_a_kill_at_any_call_leaves_each_message_in_one_place_or_the_other(
    on_disk: DiskFactory, is_long: bool
) -> None:
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    run = Run(broker)
    assert run.try_all()
    broker.kill()
    run.check(broker)
    letters = files_for(broker, random.choice(TARGETS))
    calls = calls_of(disk, letters)

    for broker, killing in each_killed(on_disk, calls, letters, SEGMENT_SIZE, is_long=is_long):
        run = Run(broker)
        run.try_all()
        broker.kill()
        killing.heal()
        run.check(broker)


@EVERY_READING
def test_a_loss_of_power_leaves_each_message_in_one_place_or_the_other(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    broker, disk = on_disk(log=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=2000)
    run = Run(broker)
    run.publish()
    published = len(disk.records())
    run.reject()
    run.await_letters()
    wait_for(lambda: run.count(SOURCE) == 0, "the source does not forget")
    broker.kill()
    records = disk.records()
    kinds = (Call.RENAME, Call.SYNCED, Call.UNLINK)
    cuts = [at for at in range(published + 1, len(records)) if records[at - 1].kind in kinds]
    chance.shuffle(cuts)

    for number, cut in enumerate(cuts[: LONG_CUTS if is_long else CUTS]):
        print(f"seed {seed}, after call {cut} of {len(records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(records[:cut], reading=reading).write(root, chance)
        run.check(broker_factory(data_dir=root, start=False), reading=reading)


@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.RENAME], ids=lambda kind: kind.name)
@pytest.mark.parametrize("target", TARGETS)
def test_a_broken_disk_below_one_target_keeps_the_letters(
    on_disk: DiskFactory, kind: Call, target: str
) -> None:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    run = Run(broker)
    run.publish()
    pattern = files_for(broker, target)
    disk.plan(Action.FAIL, kind, pattern, first=2, last=2, error=errno.EIO)

    run.reject()
    wait_for(lambda: "stay" in broker.log_text(), "nothing is said")

    assert disk.struck == 1
    assert run.count(SOURCE) > 0
    assert list(broker.data_dir.rglob("tmp.msgs.*")) == []
    broker.kill()
    disk.heal()
    run.check(broker)


@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.RENAME], ids=lambda kind: kind.name)
def test_a_full_disk_is_waited_for(on_disk: DiskFactory, kind: Call) -> None:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    run = Run(broker)
    run.publish()
    disk.plan(Action.FAIL, kind, files_for(broker, TARGETS[0]), first=2, last=2, error=errno.ENOSPC)

    run.reject()
    run.await_letters()
    wait_for(lambda: run.count(SOURCE) == 0, "the source does not forget")

    assert disk.struck == 1
    broker.kill()
    found = run.check(broker)
    assert all(len(found[name]) == len(SIZES) for name in TARGETS)


def test_letters_of_a_queue_that_is_deleted_arrive(on_disk: DiskFactory) -> None:
    broker, _disk = on_disk(segment_size=SEGMENT_SIZE)
    run = Run(broker)
    run.publish()
    with Wire.open(broker.port) as wire:
        run.reject()
        wire.call(1, commands.Queue.Delete(queue=SOURCE), commands.Queue.DeleteOk)

    run.await_letters()

    assert broker.stop() == 0
    assert list(broker.data_dir.rglob("tmp.msgs.*")) == []


def test_a_stop_with_letters_on_their_way_loses_none(on_disk: DiskFactory) -> None:
    broker, _disk = on_disk(segment_size=SEGMENT_SIZE)
    run = Run(broker)
    run.publish()
    run.reject()

    assert broker.stop() == 0

    run.check(broker)


def test_an_operator_moves_them_and_a_kill_leaves_them_in_one_place_or_the_other(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE, http=True)
    run = Run(broker)
    run.publish()
    disk.plan(Action.KILL_BEFORE, Call.RENAME, files_for(broker, TARGETS[0]), first=2, last=2)
    move = f"/api/queues/%2f/{SOURCE}/move"

    with pytest.raises((HTTPException, ConnectionError)):
        Api(broker)("POST", move, {"destination": TARGETS[0]})
    disk.heal()
    broker.kill()
    broker.start()

    found = messages_found(broker.port, (SOURCE, TARGETS[0]))
    assert set(found[SOURCE] + found[TARGETS[0]]) == {(SOURCE, n + 1) for n in range(len(SIZES))}
    assert Api(broker)("POST", move, {"destination": TARGETS[0]}).status == 200
    assert run.count(SOURCE) == 0
