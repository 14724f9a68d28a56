"""The disk refuses: full, broken, out of descriptors, at each file call of a queue in turn.

A disk that is full holds publishers and nothing is lost; one that is broken closes the queue that
it concerns; a sync that fails ends the broker; definitions are refused. In the short form a sample
of the points, in the long form all.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pamqp import base, commands

from tests.crash.books import Books, messages_found
from tests.crash.conftest import DiskFactory
from tests.crash.load import Stream, stream_and_number
from tests.support.broker import Broker, BrokerError
from tests.support.disk import Action, Call, Disk
from tests.support.segments import queue_directory
from tests.support.wire import TIMEOUT_S, Unit, Wire, WireClosed, WireTimeout

SEGMENT_SIZE = 4096
FILLING = 900
MESSAGES = 12
LIMIT = 40
TORN = 8
POLL_S = 0.05
SICK, WELL = "sick", "well"
FULL = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
BROKEN = (errno.EIO, errno.EROFS)
OF_MESSAGES = f"*/{queue_directory(Path(), SICK).name}/msgs.*"
OF_QUEUE = f"*/{queue_directory(Path(), SICK).name}/*"
WRITING = Call.OPEN | Call.WRITE | Call.TRUNCATE
# Calls of one kind on the messages of a queue while LIMIT messages are published, at the least.
POINTS = {Call.OPEN: 8, Call.WRITE: 16, Call.TRUNCATE: 8}

pytestmark = pytest.mark.crash


class Publisher:
    """Publishes to one queue, one message at a time, and takes what the broker says to that."""

    def __init__(self, port: int, stream: Stream) -> None:
        self.wire = Wire.open(port)
        self.stream = stream
        self.is_blocked = False
        self.refused = 0
        self.wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def publish(self) -> None:
        """Publish one more message, without waiting."""
        self.stream.published += 1
        body = self.stream.body(self.stream.published, FILLING)
        self.wire.publish(1, "", self.stream.queue, body)

    def take(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait for one word of the broker."""
        method = self.wire.receive(timeout_s).method
        if isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            self.is_blocked = isinstance(method, commands.Connection.Blocked)
        elif isinstance(method, commands.Basic.Nack):
            self.refused = method.delivery_tag
        else:
            assert isinstance(method, commands.Basic.Ack), f"the publisher got {method}"
            self.stream.confirm(method.delivery_tag)

    @property
    def is_answered(self) -> bool:
        """Whether nothing is outstanding."""
        return max(self.stream.confirmed, self.refused) == self.stream.published

    def publish_until(self, condition: Callable[[], bool]) -> None:
        """Publish one after the other, each answered, until the condition holds."""
        while not condition():
            assert self.stream.published < LIMIT, "nothing went wrong"
            self.publish()
            while not (self.is_answered or condition()):
                with suppress(WireTimeout):
                    self.take(POLL_S)

    def finish(self) -> None:
        """Wait until all is answered and publishing is allowed."""
        while self.is_blocked or not self.is_answered:
            self.take()


@pytest.fixture
def chance() -> random.Random:
    """Random numbers whose seed the report of a failure shows."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    return random.Random(seed)


def points(is_long: bool, chance: random.Random) -> Iterator[tuple[Call, int]]:
    """Kinds of calls with numbers: one of each kind, or all."""
    for kind, count in POINTS.items():
        numbers = range(1, count + 1)
        yield from ((kind, number) for number in (numbers if is_long else [chance.choice(numbers)]))


def start_with_queues(on_disk: DiskFactory) -> tuple[Broker, Disk]:
    broker, disk = on_disk(segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Wire.open(broker.port) as wire:
        for queue in (SICK, WELL):
            declare = commands.Queue.Declare(queue=queue, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
    return broker, disk


def consume(port: int, queue: str) -> Wire:
    wire = Wire.open(port)
    wire.call(1, commands.Basic.Consume(queue=queue), commands.Basic.ConsumeOk)
    return wire


def check_well(port: int) -> None:
    """Another queue takes, confirms and gives as ever."""
    with Wire.open(port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", WELL, b"well")
        wire.expect(commands.Basic.Ack, 1)
        wire.send(1, commands.Basic.Get(queue=WELL, no_ack=True))
        assert wire.expect_unit(commands.Basic.GetOk, 1).body == b"well"


def check_after_restart(broker: Broker, stream: Stream) -> None:
    """What was confirmed is there, in order, after one more start; then all works."""
    books = Books()
    books.add([stream])
    broker.start()
    books.check(messages_found(broker.port, [SICK]))
    check_well(broker.port)
    assert broker.stop() == 0


def wait_for_log(broker: Broker, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while text not in broker.log_text():
        assert time.monotonic() < deadline, f"{text!r} is not in the log"
        time.sleep(0.01)


# ---- full ----------------------------------------------------------------------------------------


def block(broker: Broker, disk: Disk, kind: Call, number: int, error: int) -> Publisher:
    """Publish until call `number` of a kind fails and the broker says that it is blocked."""
    disk.plan(Action.FAIL, kind, OF_MESSAGES, first=number, error=error)
    return until_blocked(broker, disk)


def until_blocked(broker: Broker, disk: Disk) -> Publisher:
    """Publish until the plan strikes, and once more: that publish has to wait."""
    publisher = Publisher(broker.port, Stream(SICK, SICK))
    publisher.publish_until(lambda: disk.struck > 0)
    publisher.publish()
    while not publisher.is_blocked:
        publisher.take()
    return publisher


def test_a_full_disk_holds_publishers_until_it_has_room(
    on_disk: DiskFactory, is_long: bool, chance: random.Random
) -> None:
    errors = FULL if is_long else (errno.ENOSPC,)
    for kind, number in points(is_long, chance):
        for error in errors:
            print(f"{kind.name} call {number}: {errno.errorcode[error]}")
            broker, disk = start_with_queues(on_disk)
            publisher = block(broker, disk, kind, number, error)

            # All but the one that waits is delivered, though it is neither written nor confirmed.
            accepted = range(1, publisher.stream.published)
            with consume(broker.port, SICK) as consumer:
                units = [consumer.expect_unit(commands.Basic.Deliver) for _ in accepted]
            assert [stream_and_number(unit.body)[1] for unit in units] == list(accepted)
            disk.wait_for_strikes(disk.struck + 1)
            assert not publisher.is_answered
            wait_for_log(broker, "/msgs.")

            disk.heal()
            publisher.finish()
            publisher.publish_until(lambda: publisher.stream.confirmed >= MESSAGES)  # noqa: B023
            publisher.wire.close()
            broker.kill()
            check_after_restart(broker, publisher.stream)


@pytest.mark.parametrize("error", FULL[1:], ids=lambda error: errno.errorcode[error])
def test_any_lack_of_resources_is_waited_for(on_disk: DiskFactory, error: int) -> None:
    broker, disk = start_with_queues(on_disk)
    publisher = block(broker, disk, WRITING, 6, error)

    disk.heal()

    publisher.finish()
    publisher.wire.close()
    broker.kill()
    check_after_restart(broker, publisher.stream)


def test_what_was_confirmed_before_the_disk_was_full_survives_a_kill(
    on_disk: DiskFactory, chance: random.Random
) -> None:
    broker, disk = start_with_queues(on_disk)
    publisher = block(broker, disk, WRITING, chance.randrange(3, 20), errno.ENOSPC)

    broker.kill()

    disk.heal()
    publisher.wire.close()
    check_after_restart(broker, publisher.stream)


def test_a_write_that_the_full_disk_takes_half_of_is_finished_later(
    on_disk: DiskFactory, chance: random.Random
) -> None:
    broker, disk = start_with_queues(on_disk)
    number = chance.randrange(2, 12)
    disk.plan(Action.SHORT, Call.WRITE, OF_MESSAGES, first=number, error=errno.ENOSPC)
    publisher = until_blocked(broker, disk)

    disk.heal()

    publisher.finish()
    publisher.wire.close()
    broker.kill()
    check_after_restart(broker, publisher.stream)


@pytest.mark.parametrize("file", ["acks", "meta"])
def test_acks_and_counts_that_find_no_room_are_written_later(
    on_disk: DiskFactory, file: str
) -> None:
    broker, disk = start_with_queues(on_disk)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES.replace("msgs", file), error=errno.ENOSPC)
    publisher = Publisher(broker.port, Stream(SICK, SICK))
    for _ in range(MESSAGES):
        publisher.publish()
    acked = []
    with Wire.open(broker.port) as wire:
        for _ in range(2):
            wire.send(1, commands.Basic.Get(queue=SICK))
            unit = wire.expect_unit(commands.Basic.GetOk, 1)
            wire.send(1, commands.Basic.Ack(unit.method.delivery_tag))
            acked.append(stream_and_number(unit.body))
        wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
    disk.wait_for_strikes()
    if file == "acks":  # a count that is missing is counted again by the next start
        wait_for_log(broker, "/acks.")

    disk.heal()

    publisher.finish()
    publisher.wire.close()
    assert broker.stop() == 0
    books = Books(acknowledged=dict.fromkeys(acked, 0), settled=set(acked))
    books.add([publisher.stream])
    broker.start()
    books.check(messages_found(broker.port, [SICK]))


@pytest.mark.parametrize("kind", [Call.DUP, Call.OPEN_READ])
def test_no_descriptor_for_a_sync_only_delays_confirms(on_disk: DiskFactory, kind: Call) -> None:
    broker, disk = start_with_queues(on_disk)
    directory = OF_QUEUE.removesuffix("/*")
    disk.plan(Action.FAIL, kind, f"{directory}*", error=errno.EMFILE)
    publisher = Publisher(broker.port, Stream(SICK, SICK))
    publisher.publish()
    disk.wait_for_strikes(2)
    assert broker.is_running()
    assert not publisher.is_answered

    disk.heal()

    publisher.finish()
    publisher.wire.close()
    broker.kill()
    check_after_restart(broker, publisher.stream)


def test_a_start_on_a_full_disk_lets_consumers_make_room(on_disk: DiskFactory) -> None:
    broker, disk = start_with_queues(on_disk)
    publisher = Publisher(broker.port, Stream(SICK, SICK))
    publisher.publish()
    publisher.finish()
    publisher.wire.close()
    assert broker.stop() == 0
    disk.plan(Action.FAIL, Call.WRITE, error=errno.ENOSPC)

    broker.start()

    assert disk.struck
    assert messages_found(broker.port, [SICK]) == {SICK: [(SICK, 1)]}


def test_a_definition_needs_no_descriptor_to_be_synced(on_disk: DiskFactory) -> None:
    """Else who uses up all of them could end the broker."""
    broker, disk = start_with_queues(on_disk)
    disk.plan(Action.FAIL, Call.DUP, error=errno.EMFILE)
    with Wire.open(broker.port) as wire:
        wire.call(1, REQUESTS["binding"], commands.Queue.BindOk)
        assert disk.struck
        disk.plan(Action.FAIL, Call.DUP | Call.SYNC, error=errno.EIO)
        wire.send(1, REQUESTS["exchange"])
        assert wire.expect_closed() == []
    assert broker.wait() == 1
    assert "Cannot sync" in broker.log_text()


def test_what_a_full_disk_does_not_cut_off_is_no_message_later(on_disk: DiskFactory) -> None:
    """Half of a write is in the file; then its messages are consumed, and others come there."""
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port) as wire:
        declare = commands.Queue.Declare(queue=SICK, durable=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
    with Wire.open(broker.port, channels=(1, 2)) as wire, Wire.open(broker.port) as consumer:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", SICK, b"s:1:")
        wire.expect(commands.Basic.Ack, 1)
        wire.call(2, commands.Tx.Select(), commands.Tx.SelectOk)
        for number in range(2, TORN + 1):
            wire.publish(2, "", SICK, b"s:%d:" % number + b"." * FILLING)
        disk.plan(Action.SHORT, Call.WRITE | Call.TRUNCATE, OF_MESSAGES, error=errno.ENOSPC)
        wire.send(2, commands.Tx.Commit())
        disk.wait_for_strikes(3)
        for _ in range(TORN):
            consumer.send(1, commands.Basic.Get(queue=SICK, no_ack=True))
            consumer.expect_unit(commands.Basic.GetOk, 1)
        while not isinstance(wire.receive().method, commands.Tx.CommitOk):
            pass
        disk.heal()
        wire.publish(1, "", SICK, b"s:9:" + b"." * FILLING)
        while not isinstance(wire.receive().method, commands.Basic.Ack):
            pass
    broker.kill()

    broker.start()

    assert messages_found(broker.port, [SICK]) == {SICK: [("s", TORN + 1)]}
    assert "damaged" not in broker.log_text()


# ---- broken --------------------------------------------------------------------------------------


def test_a_broken_file_closes_its_queue_and_no_other(
    on_disk: DiskFactory, is_long: bool, chance: random.Random
) -> None:
    """edge-cases.md 132, 163"""
    errors = BROKEN if is_long else (chance.choice(BROKEN),)
    for kind, number in points(is_long, chance):
        for error in errors:
            print(f"{kind.name} call {number}: {errno.errorcode[error]}")
            broker, disk = start_with_queues(on_disk)
            disk.plan(Action.FAIL, kind, OF_MESSAGES, first=number, error=error)
            # Its deliveries stay unacked, so that nothing is settled before it is written.
            consumer = consume(broker.port, SICK)
            publisher = Publisher(broker.port, Stream(SICK, SICK))

            publisher.publish_until(lambda: publisher.refused > 0)  # noqa: B023

            assert publisher.refused > publisher.stream.confirmed
            assert _until(consumer, commands.Basic.Cancel)
            wait_for_log(broker, "/msgs.")
            check_well(broker.port)
            consumer.close()
            publisher.wire.close()
            disk.heal()
            broker.stop()
            check_after_restart(broker, publisher.stream)


def _until(wire: Wire, kind: type[base.Frame]) -> Unit:
    """Return the first unit of a kind, and pass over what comes before."""
    while True:
        unit = wire.receive()
        if isinstance(unit.method, kind):
            return unit


def test_an_unreadable_message_stays_until_it_can_be_read(on_disk: DiskFactory) -> None:
    broker, disk = start_with_queues(on_disk)
    publisher = Publisher(broker.port, Stream(SICK, SICK))
    publisher.publish_until(lambda: publisher.stream.confirmed == MESSAGES)
    publisher.wire.close()
    broker.restart()  # nothing is in memory any more
    disk.plan(Action.FAIL, Call.READ, OF_MESSAGES, error=errno.EIO)

    with Wire.open(broker.port) as wire:
        wire.send(1, commands.Basic.Get(queue=SICK))
        wire.expect(commands.Basic.GetEmpty, 1)
    wait_for_log(broker, "queue 'sick' cannot be read")
    check_well(broker.port)

    disk.heal()
    assert messages_found(broker.port, [SICK]) == {SICK: [(SICK, n + 1) for n in range(MESSAGES)]}


# ---- syncs ---------------------------------------------------------------------------------------


def test_a_failed_sync_ends_the_broker_and_confirms_nothing(
    on_disk: DiskFactory, chance: random.Random
) -> None:
    broker, disk = start_with_queues(on_disk)
    number = chance.randrange(1, 12)
    disk.plan(Action.FAIL, Call.SYNC, OF_QUEUE, first=number, last=number, error=errno.EIO)
    publisher = Publisher(broker.port, Stream(SICK, SICK))

    with pytest.raises(WireClosed):
        publisher.publish_until(lambda: False)

    assert publisher.stream.confirmed < publisher.stream.published
    publisher.wire.close()
    assert broker.wait() == 1
    assert "Input/output error. Stopping" in broker.log_text()
    check_after_restart(broker, publisher.stream)


def test_a_sync_that_a_signal_cuts_short_is_done_again(on_disk: DiskFactory) -> None:
    """File systems on a network let signals interrupt a sync. Nothing is wrong with the disk."""
    broker, disk = start_with_queues(on_disk)
    disk.plan(Action.FAIL, Call.SYNC, OF_QUEUE, first=1, last=3, error=errno.EINTR)
    publisher = Publisher(broker.port, Stream(SICK, SICK))

    publisher.publish_until(lambda: publisher.stream.confirmed >= MESSAGES)

    assert disk.struck == 3
    publisher.wire.close()
    broker.kill()
    check_after_restart(broker, publisher.stream)


def test_a_failed_sync_of_the_file_system_ends_the_broker(on_disk: DiskFactory) -> None:
    """A batch with very many files is synced by one call for all."""
    broker, disk = start_with_queues(on_disk)
    with Wire.open(broker.port) as wire:
        for number in range(40):
            declare = commands.Queue.Declare(queue=f"q-{number}", durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
            bind = commands.Queue.Bind(queue=f"q-{number}", exchange="amq.fanout", routing_key="")
            wire.call(1, bind, commands.Queue.BindOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        disk.plan(Action.FAIL, Call.SYNC, error=errno.EIO)

        wire.publish(1, "amq.fanout", "", b"message")

        assert wire.expect_closed() == []
    assert disk.struck == 1
    assert broker.wait() == 1


# ---- definitions and small files -----------------------------------------------------------------

REQUESTS = {
    "queue": commands.Queue.Declare(queue="new", durable=True),
    "exchange": commands.Exchange.Declare(exchange="new", durable=True),
    "binding": commands.Queue.Bind(queue=SICK, exchange="amq.direct", routing_key="new"),
}


@pytest.mark.parametrize("action", [Action.FAIL, Action.SHORT])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_definition_that_cannot_be_written_is_refused_and_does_not_exist(
    on_disk: DiskFactory, action: Action, error: int
) -> None:
    broker, disk = start_with_queues(on_disk)
    with Wire.open(broker.port) as wire:
        for request in REQUESTS.values():
            disk.plan(action, Call.WRITE, "*/definitions.amqp", error=error)
            wire.send(1, request)
            wire.expect_channel_close(1, 406)
            wire.open_channel(1)
    disk.heal()

    for _ in range(2):
        check_new_does_not_exist(broker.port)
        broker.restart()
    assert "damaged" not in broker.log_text()


DELETIONS = {
    "queue": commands.Queue.Delete(queue="old"),
    "exchange": commands.Exchange.Delete(exchange="old"),
    "binding": commands.Queue.Unbind(queue=SICK, exchange="old", routing_key="key"),
}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
def test_a_deletion_that_cannot_be_recorded_is_refused_and_has_not_happened(
    on_disk: DiskFactory, error: int
) -> None:
    broker, disk = start_with_queues(on_disk)
    with Wire.open(broker.port) as wire:
        for made, answer in (
            (commands.Queue.Declare(queue="old", durable=True), commands.Queue.DeclareOk),
            (commands.Exchange.Declare(exchange="old", durable=True), commands.Exchange.DeclareOk),
            (
                commands.Queue.Bind(queue=SICK, exchange="old", routing_key="key"),
                commands.Queue.BindOk,
            ),
        ):
            wire.call(1, made, answer)
        wire.publish(1, "", "old", b"kept")
        for request in DELETIONS.values():
            disk.plan(Action.FAIL, Call.WRITE, "*/definitions.amqp", error=error)
            wire.send(1, request)
            wire.expect_channel_close(1, 406)
            wire.open_channel(1)
    disk.heal()

    for _ in range(2):
        with Wire.open(broker.port) as wire:
            passive = commands.Queue.Declare(queue="old", passive=True)
            assert wire.call(1, passive, commands.Queue.DeclareOk).message_count == 1
            wire.publish(1, "old", "key", b"routed", mandatory=True)
            wire.call(1, commands.Basic.Qos(), commands.Basic.QosOk)
        broker.restart()
    with Wire.open(broker.port) as wire:
        wire.call(1, DELETIONS["binding"], commands.Queue.UnbindOk)
        wire.call(1, DELETIONS["exchange"], commands.Exchange.DeleteOk)
        assert wire.call(1, DELETIONS["queue"], commands.Queue.DeleteOk).message_count == 1


def check_new_does_not_exist(port: int) -> None:
    with Wire.open(port) as wire:
        for request in (
            commands.Queue.Declare(queue="new", passive=True),
            commands.Exchange.Declare(exchange="new", passive=True),
        ):
            wire.send(1, request)
            wire.expect_channel_close(1, 404)
            wire.open_channel(1)
        wire.publish(1, "amq.direct", "new", b"to nobody", mandatory=True)
        wire.expect(commands.Basic.Return, 1)


def test_half_a_definition_that_cannot_be_taken_back_hides_none_that_follows(
    on_disk: DiskFactory,
) -> None:
    broker, disk = start_with_queues(on_disk)
    later = commands.Queue.Declare(queue="later", durable=True)
    with Wire.open(broker.port) as wire:
        kinds = Call.WRITE | Call.TRUNCATE
        disk.plan(Action.SHORT, kinds, "*/definitions.amqp", error=errno.EIO)
        wire.send(1, REQUESTS["exchange"])
        wire.expect_channel_close(1, 406)
        disk.heal()
        wire.open_channel(1)

        wire.call(1, later, commands.Queue.DeclareOk)

    broker.restart()
    with Wire.open(broker.port) as wire:
        passive = commands.Queue.Declare(queue="later", passive=True)
        wire.call(1, passive, commands.Queue.DeclareOk)


@pytest.mark.parametrize("name", ["schema_version", "users.json", "vhosts.json"])
@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.SYNC, Call.RENAME])
def test_a_small_file_that_cannot_be_written_stops_the_start_and_is_named(
    on_disk: DiskFactory, name: str, kind: Call
) -> None:
    broker, disk = on_disk()
    disk.plan(Action.FAIL, kind, f"{name}*", error=errno.ENOSPC)

    with pytest.raises(BrokerError, match="exit code 1"):
        broker.start()

    assert name in broker.log_text()
    assert "Traceback" not in broker.log_text()
    disk.heal()
    broker.start()
    assert broker.stop() == 0
