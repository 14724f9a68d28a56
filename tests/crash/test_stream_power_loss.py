# mypy: disable-error-code="no-untyped-call"
"""The power goes while readers of a stream keep offsets that are not on disk yet.

Syncs are held, so consumers see messages long before these are safe. Who plans by the HTTP API has
only been told of what is there afterwards; who has read more is told that others have its offsets.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.crash.conftest import DiskFactory
from tests.crash.test_stream_sigkill import STREAM, Client, Publisher
from tests.crash.test_stream_sigkill import Books as Published
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Record
from tests.support.power_loss import Survivors
from tests.support.segments import queue_directory
from tests.support.typed import Unit

NAME = "s"
FACTS = f"/api/queues/%2F/{NAME}"
SAFE, AT_RISK, OTHERS = 20, 80, 120
SHORT_SYNC_US, HELD_US = 3000, 3_000_000_000
CUTS, LONG_CUTS = 3, 60
EPOCH = [["x-stream-epoch", "t", True], ["x-stream-offset", "S", "first"]]

pytestmark = pytest.mark.crash
BrokerFactory = Callable[..., Broker]
T = TypeVar("T")


class Unlucky(random.Random):
    """Of what was not synced nothing survives."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        """The first one: no luck, and the last change that is lost is the first."""
        return seq[0]


@dataclass(slots=True)
class Run:
    """What readers knew, and the calls to the disk until the power goes."""

    records: list[Record] = field(default_factory=list)
    planned: list[tuple[int, int]] = field(default_factory=list)
    """When the API had told an end, and that end."""
    read: list[tuple[int, int, bytes]] = field(default_factory=list)
    """When a consumer had got a message, its offset and body."""

    def before(self, cut: int) -> tuple[int, dict[int, bytes]]:
        """The last end that was told, and what had been read, when the power goes after so many
        calls."""
        until_ns = self.records[cut].time_ns if cut < len(self.records) else time.monotonic_ns()
        ends = [end for at_ns, end in self.planned if at_ns < until_ns]
        return max(ends, default=1), {o: body for at, o, body in self.read if at < until_ns}


def headers_of(unit: Unit) -> dict[str, Any]:
    return {name: value for name, _, value in unit["props"]["headers"]}


def plan(api: Api, run: Run) -> int:
    """Ask for the end of the stream, as one who plans a batch does."""
    shown = api.get(FACTS)
    assert shown["next_offset"] == shown["stream"]["last_offset"] + 1
    run.planned.append((time.monotonic_ns(), shown["next_offset"]))
    return int(shown["next_offset"])


def take(consumer: Client, run: Run, n: int) -> None:
    for _ in range(n):
        unit = consumer.take()
        headers = headers_of(unit)
        assert headers["x-stream-epoch"] == 1
        run.read.append((time.monotonic_ns(), headers["x-stream-offset"], unit["_raw_body"]))


@pytest.fixture
def run(on_disk: DiskFactory) -> Run:
    """A reader that gets everything, and a planner, while the disk hangs."""
    broker, disk = on_disk(log=True, http=True)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SHORT_SYNC_US)
    broker.start()
    api, found = Api(broker), Run()
    consumer = Client(broker.port)
    consumer.call("queue.declare", queue=NAME, durable=True, arguments=STREAM)
    publisher = Publisher(broker.port, Published())
    consumer.call("basic.qos", prefetch_count=1000)
    consumer.call("basic.consume", queue=NAME, consumer_tag="amq.ctag-r", arguments=EPOCH)
    for _ in range(SAFE):
        publisher.publish(100)
        publisher.settle(0)
        plan(api, found)
    take(consumer, found, SAFE)
    assert found.planned[-1][1] == SAFE + 1

    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=HELD_US)
    for _ in range(AT_RISK):
        publisher.publish(100)
    take(consumer, found, AT_RISK)
    assert plan(api, found) == SAFE + 1  # waits for a while, and tells what is there
    broker.kill()
    publisher.client.close()
    consumer.close()
    found.records = disk.records()
    return found


def publish_others(port: int) -> None:
    """What comes after the loss."""
    with Client(port) as client:
        client.call("confirm.select")
        for number in range(OTHERS):
            client.publish("", NAME, b"other %d" % number)
            assert client.take()["method"] == "basic.ack"


def stream_now(port: int) -> dict[int, bytes]:
    with Client(port) as client:
        units = client.read_stream(NAME)
    return {headers_of(each)["x-stream-offset"]: each["_raw_body"] for each in units}


def resume(port: int, offset: int, epoch: int) -> str:
    """Go on reading where the last message was. Returns: why that is refused, if it is."""
    with Client(port) as client:
        client.call("basic.qos", prefetch_count=10)
        arguments = [["x-stream-offset", "l", offset], ["x-stream-epoch", "l", epoch]]
        answer = client.call("basic.consume", queue=NAME, consumer_tag="t", arguments=arguments)
    if answer["method"] == "basic.consume-ok":
        return ""
    assert answer["args"]["reply_code"] == 406, answer
    return str(answer["args"]["reply_text"])


def check(run: Run, cut: int, broker: Broker) -> int:
    """Returns: how many messages that the reader had are lost, and it is told so."""
    end, read = run.before(cut)
    broker.start()
    stream = Api(broker).get(FACTS)["stream"]
    assert [each["epoch"] for each in stream["epochs"]] == [1, 2]
    first = stream["epochs"][1]["first_offset"]
    publish_others(broker.port)
    now = stream_now(broker.port)

    published = {offset: body for _, offset, body in run.read}
    assert {o: now[o] for o in range(1, end)} == {o: published[o] for o in range(1, end)}
    lost = [offset for offset, body in read.items() if now[offset] != body]
    refusal = resume(broker.port, max(read, default=0) + 1, 1)
    assert bool(refusal) == bool(lost), (refusal, lost)
    if lost:
        assert lost == list(range(first, max(read) + 1))
        assert f"from offset {first} on: epoch 2 begins there" in refusal
        assert f"offset {max(read) + 1} was reached in epoch 1" in refusal
    assert resume(broker.port, first, 1) == ""
    assert resume(broker.port, first + OTHERS, 2) == ""
    assert broker.stop() == 0
    return len(lost)


def cuts_of(run: Run, count: int, chance: random.Random) -> Iterator[int]:
    """The end, and calls behind which the power goes while messages come."""
    yield len(run.records)
    writes = [
        at for at, record in enumerate(run.records, 1)
        if record.kind is Call.WRITE and "/msgs." in record.path
    ]  # fmt: skip
    for _ in range(count):
        yield chance.choice(writes)


def test_who_has_read_what_the_power_took_is_told_and_plans_hold(
    run: Run, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool
) -> None:
    root = tmp_path / "unlucky"
    Survivors(run.records).write(root, Unlucky())
    lost = check(run, len(run.records), broker_factory(data_dir=root, start=False, http=True))
    assert lost == AT_RISK

    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    for number, cut in enumerate(cuts_of(run, LONG_CUTS if is_long else CUTS, chance)):
        print(f"seed {seed}, cut {number}: after call {cut} of {len(run.records)}")
        root = tmp_path / f"cut-{number}"
        Survivors(run.records[:cut]).write(root, chance)
        check(run, cut, broker_factory(data_dir=root, start=False, http=True))


def test_a_stream_that_was_broken_begins_an_epoch_when_it_is_restarted(
    on_disk: DiskFactory,
) -> None:
    """Consumers had what waited in memory for the disk that broke: others get its offsets."""
    broker, disk = on_disk(log=True, http=True)
    broker.start()
    api = Api(broker)
    with Client(broker.port) as client:
        client.call("queue.declare", queue=NAME, durable=True, arguments=STREAM)
        client.call("confirm.select")
        for number in range(SAFE):
            client.publish("", NAME, b"%d" % number)
            assert client.take()["method"] == "basic.ack"
        disk.plan(Action.FAIL, Call.WRITE, "*/msgs.*", error=errno.EIO)
        client.publish("", NAME, b"lost")
        assert client.take()["method"] == "basic.nack"
    disk.heal()
    assert api("GET", f"{FACTS}/stream/offset?timestamp=0").status == 403
    before = len(disk.records())

    assert api("PUT", f"{FACTS}/restart").status == 204

    syncs = [record for record in disk.records()[before:] if record.kind is Call.SYNCED]
    assert any(each.path.endswith("/epochs") or each.inode == 0 for each in syncs)
    stream = api.get(FACTS)["stream"]
    assert [each["epoch"] for each in stream["epochs"]] == [1, 2]
    first = stream["epochs"][1]["first_offset"]
    assert first == SAFE + 1
    publish_others(broker.port)
    assert "epoch 2 begins there" in resume(broker.port, first + 1, 1)
    assert resume(broker.port, first, 1) == ""
    assert len(stream_now(broker.port)) == SAFE + OTHERS


def test_an_orderly_stop_syncs_what_nobody_wanted_confirms_for(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """Then all that is there is on disk, and no epoch has to begin."""
    broker, disk = on_disk(log=True, http=True)
    broker.start()
    with Client(broker.port) as client:
        client.call("queue.declare", queue=NAME, durable=True, arguments=STREAM)
        for number in range(AT_RISK):
            client.publish("", NAME, b"%d " % number + bytes(1000))
        client.call("queue.declare", queue=NAME, passive=True)
    assert len(list(queue_directory(broker.data_dir, NAME).glob("msgs.*"))) > 3
    assert broker.stop() == 0

    root = tmp_path / "unlucky"
    Survivors(disk.records()).write(root, Unlucky())
    again = broker_factory(data_dir=root, http=True)
    broker.start()

    assert list(stream_now(again.port)) == list(range(1, AT_RISK + 1))
    assert Api(broker).get(FACTS)["stream"]["epoch"] == 1
    assert Api(broker).get(FACTS)["next_offset"] == AT_RISK + 1
