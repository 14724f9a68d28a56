"""A stream with retention and a tracked consumer, killed at calls to its files, and on a full disk.

Message n has offset n and says so in its body, whatever happens: offsets are neither used twice nor
left out, and what was confirmed is there unless retention has removed it.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.conftest import EVERY_READING, BrokerFactory, DiskFactory
from tests.crash.test_stream_sigkill import Client, Gone
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.patience import PATIENCE
from tests.support.power_loss import Reading, Survivors
from tests.support.replay import Mismatch
from tests.support.segments import queue_directory

NAME, TAG = "s", "reader"
OF_STREAM = f"*/{queue_directory(Path(), NAME).name}/*"
OF_OFFSETS = f"{OF_STREAM[:-1]}consumer_offsets"
ARGUMENTS = [["x-queue-type", "S", "stream"], ["x-max-length-bytes", "I", 12000]]
FILLING = bytes(900)
MESSAGES = 40
DEADLINE_S = 15.0 * PATIENCE
POINTS = {Call.OPEN: (9, 14), Call.WRITE: (33,), Call.UNLINK: (2, 4)}
"""Calls that surely are made; the long form tries those before them, too."""

pytestmark = pytest.mark.crash


@pytest.fixture
def on_disk(
    disk_shim: Path, tmp_path: Path, broker_factory: BrokerFactory
) -> Iterator[DiskFactory]:
    with contextlib.closing(DiskFactory(disk_shim, tmp_path, broker_factory)) as factory:
        yield factory


def start(on_disk: DiskFactory) -> tuple[Broker, Disk]:
    broker, disk = on_disk(segment_size=4096)
    broker.start()
    with Client(broker.port) as client:
        client.call("queue.declare", queue=NAME, durable=True, arguments=ARGUMENTS)
    return broker, disk


def number_of(body: bytes) -> int:
    return int(body.split()[0])


def leave_behind(port: int) -> None:
    """A consumer that acknowledges one message, whose offset is dropped with it later."""
    with Client(port) as client:
        client.call("basic.qos", prefetch_count=1)
        client.call("basic.consume", queue=NAME, consumer_tag="behind")
        client.send("basic.ack", delivery_tag=client.take()["args"]["delivery_tag"])
        client.take()


def run(port: int, first: int, n: int) -> int:
    """Publish n messages with confirms, and consume with tracking. Returns: the last confirmed."""
    confirmed = first - 1
    with contextlib.suppress(Gone, Mismatch, OSError):
        publisher, consumer = Client(port), Client(port)
        with publisher, consumer:
            publisher.call("confirm.select")
            consumer.call("basic.qos", prefetch_count=10)
            consumer.call("basic.consume", queue=NAME, consumer_tag=TAG)
            for number in range(first, first + n):
                publisher.publish("", NAME, b"%d " % number + FILLING)
                assert publisher.take()["method"] == "basic.ack"
                confirmed = number
                if number == 2:
                    leave_behind(port)
                while (unit := consumer.poll(0)) is not None:
                    assert unit["props"]["headers"][-1][2] == number_of(unit["_raw_body"])
                    consumer.send("basic.ack", delivery_tag=unit["args"]["delivery_tag"])
    return confirmed


def offsets(port: int) -> list[int]:
    with Client(port) as client:
        units = client.read_stream(NAME)
    found = [unit["props"]["headers"][-1][2] for unit in units]
    assert [number_of(unit["body"]) for unit in units] == found
    assert found == list(range(found[0], found[-1] + 1)) if found else True
    return found


@pytest.mark.parametrize("kind", POINTS, ids=lambda kind: kind.name)
def test_offsets_go_on_wherever_the_broker_is_killed(
    on_disk: DiskFactory, kind: Call, is_long: bool
) -> None:
    """amqp.md 22.38; edge-cases.md 253, 258."""
    for number in range(1, max(POINTS[kind]) + 1) if is_long else POINTS[kind]:
        for action in (Action.KILL_BEFORE, Action.KILL_AFTER)[: 2 if is_long else 1]:
            broker, disk = start(on_disk)
            disk.plan(action, kind, OF_STREAM, first=number)
            confirmed = run(broker.port, 1, MESSAGES)
            assert disk.struck == 1, (kind, number, action)
            disk.heal()
            broker.close()
            broker.start()

            found = offsets(broker.port)
            last = found[-1] if found else 0
            assert last >= confirmed, (kind, number, action)
            assert run(broker.port, last + 1, 20) == last + 20
            assert offsets(broker.port)[-1] == last + 20
            broker.close()


@pytest.mark.parametrize("action", [Action.KILL_BEFORE, Action.KILL_MIDDLE, Action.KILL_AFTER])
@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.SYNC, Call.RENAME])
def test_offsets_stay_wherever_the_broker_is_killed_while_their_file_is_written_anew(
    on_disk: DiskFactory, kind: Call, action: Action
) -> None:
    """The one that is forgotten is forgotten or not; the others are there."""
    broker, disk = on_disk(segment_size=4096, http=True)
    api = Api(broker.start())
    place = f"/api/queues/%2F/{NAME}/stream/consumers"
    with Client(broker.port) as client:
        client.call("queue.declare", queue=NAME, durable=True, arguments=ARGUMENTS)
    assert run(broker.port, 1, 5) == 5
    for name, offset in (("kept", 3), ("gone", 2)):
        assert api("PUT", f"{place}/{name}", {"offset": offset}).status == 204
    disk.plan(action, kind, f"{OF_OFFSETS}.tmp", first=1)

    with contextlib.suppress(OSError, http.client.HTTPException):
        assert api("DELETE", f"{place}/gone").status == 204
    disk.wait_for_strikes(1)
    disk.heal()
    broker.close()
    broker.start()

    stored = {each["name"]: each["offset"] for each in api("GET", place).json}
    assert stored["kept"] == 3
    assert stored.get("gone", 2) == 2


def test_stored_offsets_wait_for_room_on_the_disk(on_disk: DiskFactory) -> None:
    """edge-cases.md 262: nothing is lost, publishers are held meanwhile."""
    broker, disk = start(on_disk)
    assert run(broker.port, 1, 5) == 5
    disk.plan(Action.FAIL, Call.OPEN | Call.WRITE, OF_OFFSETS, error=errno.ENOSPC)
    with Client(broker.port) as client:
        client.call("basic.qos", prefetch_count=3)
        client.call("basic.consume", queue=NAME, consumer_tag="two")
        units = [client.take() for _ in range(3)]
        client.send("basic.ack", delivery_tag=3, multiple=True)
        disk.wait_for_strikes(2)
        assert [number_of(unit["_raw_body"]) for unit in units] == [1, 2, 3]
        disk.heal()
        path = queue_directory(broker.data_dir, NAME) / "consumer_offsets"
        deadline = time.monotonic() + DEADLINE_S
        while not (path.exists() and path.read_bytes().endswith(b"\x03two\x04" + bytes(7))):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert f"Cannot write {path}" in broker.log_text()
    broker.kill()
    assert run(broker.start().port, 6, 5) == 10


def identities(data_dir: Path) -> list[str]:
    return [path.name for path in queue_directory(data_dir, NAME).glob("created.*")]


@EVERY_READING
def test_an_identity_is_as_safe_as_the_declaration(
    on_disk: DiskFactory, tmp_path: Path, reading: Reading
) -> None:
    """What a client has seen of a stream that was declared, it sees after a loss of power."""
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    broker, disk = on_disk(log=True)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    with Client(broker.port) as client:
        client.call("queue.declare", queue=NAME, durable=True, arguments=ARGUMENTS)
    records = disk.records()
    wanted = identities(broker.data_dir)
    broker.kill()
    assert len(wanted) == 1

    for number in range(20):
        root = tmp_path / f"cut-{number}"
        Survivors(records, reading=reading).write(root, random.Random(seed + number))
        assert identities(root) == wanted


def test_a_stream_works_without_an_identity(on_disk: DiskFactory) -> None:
    """The disk refuses the file: the stream is there all the same, and has one later."""
    broker, disk = on_disk()
    broker.start()
    disk.plan(Action.FAIL, Call.OPEN, "*/created.*", error=errno.ENOSPC)
    with Client(broker.port) as client:
        client.call("queue.declare", queue=NAME, durable=True, arguments=ARGUMENTS)
    assert disk.struck == 1
    assert identities(broker.data_dir) == []
    assert f"the identity of stream '{NAME}' cannot be stored" in broker.log_text()
    assert run(broker.port, 1, 5) == 5
    disk.heal()

    broker.restart()

    assert len(identities(broker.data_dir)) == 1
    assert offsets(broker.port) == [1, 2, 3, 4, 5]
