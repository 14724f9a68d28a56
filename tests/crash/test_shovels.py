"""A source forgets only what its destination has on disk: shovels and links of federation.

Both brokers have a disk of their own, of which each call is logged, or fails. Both lose their power
at the same moment, which is drawn by lot: what the two disks may hold then has every message. Where
the destination's disk refuses, what it refused is still at the source, and comes when it is well.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lavinmq.client import Client
from lavinmq.client.errors import Error
from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.load import bodies_in
from tests.crash.test_disk_faults import BROKEN, FULL, WRITING
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk, Record
from tests.support.patience import PATIENCE
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory

SHORT_CUTS, LONG_CUTS = 3, 200
SYNC_US = 2000
COUNT = 1500
BODY = 60
WAIT_S = 30.0 * PATIENCE
BrokerFactory = Callable[..., Broker]

pytestmark = pytest.mark.crash


def until(condition: Callable[[], Any], what: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.005)


def until_moved(source: Broker, sink: Broker | None = None) -> None:
    """The source has forgotten all."""
    until(
        lambda: Api(source).get("/api/queues/%2F/from")["messages"] == 0,
        lambda: [
            Api(broker).get(f"/api/{what}/%2F")
            for broker in (source, sink) if broker is not None
            for what in ("shovels", "federation-links")
        ],
    )  # fmt: skip


def put(broker: Broker, path: str, value: dict[str, Any]) -> None:
    assert Api(broker)("PUT", f"/api/{path}", value).status in (201, 204)


def fill(broker: Broker, queue: str) -> None:
    """Numbers, each confirmed."""
    with Client(broker.uri) as client:
        bodies = [b"%d" % n + b" " * BODY for n in range(COUNT)]
        client.producer(queue).publish_batch(bodies).result(WAIT_S)


def numbers(broker: Broker, queue: str) -> set[int]:
    """The messages of a queue, which stay in it; none where there is no such queue."""
    with Client(broker.uri) as client:
        try:
            client.queue(queue, passive=True)
        except Error:
            return set()
    # A page that was not on disk comes back as zeros: no message that was confirmed.
    bodies = [(body.strip(b"\0 "), len(body)) for body in bodies_in(broker.port, queue)[1]]
    return {int(text) for text, size in bodies if text.isdigit() and size > BODY}


# ---- what moves


def shovel_at_the_source(source: Broker, sink: Broker) -> str:
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": sink.uri, "dest-queue": "to"}
    put(source, "parameters/shovel/%2F/s", {"value": value | {"reconnect-delay": 0}})
    return "from"


def shovel_at_the_sink(source: Broker, sink: Broker) -> str:
    value = {"src-uri": source.uri, "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}
    put(sink, "parameters/shovel/%2F/s", {"value": value | {"reconnect-delay": 0}})
    return "from"


def link_of_a_queue(source: Broker, sink: Broker) -> str:
    upstream = {"uri": source.uri, "queue": "from", "reconnect-delay": 0}
    put(sink, "parameters/federation-upstream/%2F/u", {"value": upstream})
    policy = {"pattern": "^to$", "definition": {"federation-upstream": "u"}, "apply-to": "queues"}
    put(sink, "policies/%2F/p", policy)
    return "from"


MOVERS = [shovel_at_the_source, shovel_at_the_sink, link_of_a_queue]
Mover = Callable[[Broker, Broker], str]


def declare(source: Broker, sink: Broker) -> None:
    fill(source, "from")
    with Client(sink.uri) as client:
        client.queue("to")


class Consuming:
    """Somebody who consumes and acknowledges nothing, for links that want one."""

    def __init__(self, broker: Broker) -> None:
        self.client = Client(broker.uri)
        self.client.start()
        self.consumer = self.client.consumer("to", 2 * COUNT, declare=False)

    def close(self) -> None:
        self.client.close(0, flush=False)


# ---- the power goes


def run_and_kill(source: Broker, sink: Broker, mover: Mover) -> None:
    """Move until a part has arrived; then both are killed."""
    declare(source, sink)
    watcher = Consuming(sink) if mover is link_of_a_queue else None
    mover(source, sink)
    api = Api(source)
    until(lambda: api.get("/api/queues/%2F/from")["messages"] < COUNT // 2, lambda: "it moves")
    source.kill()
    sink.kill()
    if watcher is not None:
        watcher.close()


def rebuilt(
    records: list[Record], at_ns: int, root: Path, chance: random.Random, reading: Reading
) -> None:
    """What a disk may hold when its power goes then."""
    Survivors([each for each in records if each.time_ns < at_ns], reading=reading).write(
        root, chance
    )


def check_cuts(
    disks: list[Disk], seed: int, count: int, directory: Path, broker_factory: BrokerFactory,
    reading: Reading,
) -> None:  # fmt: skip
    chance = random.Random(seed)
    logs = [disk.records() for disk in disks]
    # From when all was confirmed at the source on: its last file is older than the first move.
    begin = next(
        each.time_ns for each in logs[1] if queue_directory(Path(), "to").name in each.path
    )
    moments = [each.time_ns for log in logs for each in log if each.time_ns > begin]
    for number in range(count):
        at_ns = chance.choice(moments) if number else max(moments) + 1
        print(f"seed {seed}, cut {number}")
        found: set[int] = set()
        for name, queue, log in (("source", "from", logs[0]), ("sink", "to", logs[1])):
            root = directory / f"{name}-{number}"
            rebuilt(log, at_ns, root, chance, reading)
            broker = broker_factory(data_dir=root, start=False)
            broker.start()
            found |= numbers(broker, queue)
            broker.kill()
        missing = set(range(COUNT)) - found
        assert not missing, f"{len(missing)} are lost, the first is {min(missing)}"


@EVERY_READING
@pytest.mark.parametrize("mover", MOVERS)
def test_all_is_on_one_of_the_disks_when_the_power_of_both_goes(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading, mover: Mover,
) -> None:  # fmt: skip
    seed = random.SystemRandom().randrange(1 << 30)
    made = [on_disk(log=True, http=True) for _ in range(2)]
    for broker, disk in made:
        disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
        broker.start()
    run_and_kill(made[0][0], made[1][0], mover)
    cuts = LONG_CUTS if is_long else SHORT_CUTS
    check_cuts([disk for _, disk in made], seed, cuts, tmp_path, broker_factory, reading)


def test_a_sink_that_syncs_nothing_is_found_out(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """The check must be able to find a loss."""
    source, of_source = on_disk(log=True, http=True)
    sink, of_sink = on_disk("--no-sync", log=True, http=True)
    for broker in (source, sink):
        broker.start()
    run_and_kill(source, sink, shovel_at_the_source)
    with pytest.raises(AssertionError, match="are lost"):
        check_cuts([of_source, of_sink], 1, 20, tmp_path, broker_factory, Reading.JOURNALING)


@EVERY_READING
def test_a_move_inside_of_a_broker_loses_nothing_with_the_power(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    """After the power is back the shovel goes on, and all arrive."""
    seed = random.SystemRandom().randrange(1 << 30)
    chance = random.Random(seed)
    broker, disk = on_disk(log=True, http=True)
    disk.plan(Action.NOTHING, Call.CHANGES, sync_us=SYNC_US)
    broker.start()
    declare(broker, broker)
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}
    put(broker, "parameters/shovel/%2F/s", {"value": value})
    begin = time.monotonic_ns()
    until_moved(broker)
    broker.kill()
    records = disk.records()
    moments = [each.time_ns for each in records if each.time_ns > begin] or [time.monotonic_ns()]
    for number in range(LONG_CUTS if is_long else SHORT_CUTS):
        at_ns = chance.choice(moments) if number else max(moments) + 1
        print(f"seed {seed}, cut {number}")
        root = tmp_path / f"cut-{number}"
        rebuilt(records, at_ns, root, chance, reading)
        again = broker_factory(data_dir=root, start=False, http=True)
        again.start()
        until_moved(again)
        missing = set(range(COUNT)) - numbers(again, "to")
        assert not missing, f"{len(missing)} are lost, the first is {min(missing)}"
        again.kill()


# ---- the disk refuses


@pytest.mark.parametrize("mover", MOVERS)
@pytest.mark.parametrize("error", [FULL[0], BROKEN[0]], ids=errno.errorcode.get)
def test_what_the_disk_of_the_destination_refuses_stays_at_the_source(
    on_disk: DiskFactory, mover: Mover, error: int
) -> None:
    source, _ = on_disk(http=True)
    sink, disk = on_disk(http=True)
    for broker in (source, sink):
        broker.start()
    declare(source, sink)
    messages = f"*/{queue_directory(Path(), 'to').name}/msgs.*"
    disk.plan(Action.FAIL, WRITING, messages, first=5, error=error)
    watcher = Consuming(sink) if mover is link_of_a_queue else None
    mover(source, sink)
    disk.wait_for_strikes(1)
    time.sleep(0.3)
    left = Api(source).get("/api/queues/%2F/from")["messages"]
    assert left > 0, "the source forgot what the destination could not write"

    disk.heal()
    if error in BROKEN:
        Api(sink)("PUT", "/api/queues/%2F/to/restart")
    if watcher is not None:
        watcher.close()
        watcher = Consuming(sink)
    until_moved(source, sink)
    if watcher is not None:
        watcher.close()
    assert numbers(sink, "to") == set(range(COUNT))


@pytest.mark.parametrize("mover", MOVERS)
def test_a_sync_that_fails_ends_the_destination_and_loses_nothing(
    on_disk: DiskFactory, mover: Mover
) -> None:
    source, _ = on_disk(http=True)
    sink, disk = on_disk(http=True, segment_size=1 << 20)  # else all files are synced by one call
    for broker in (source, sink):
        broker.start()
    declare(source, sink)
    watcher = Consuming(sink) if mover is link_of_a_queue else None
    of_queue = f"*/{queue_directory(Path(), 'to').name}/*"
    disk.plan(Action.FAIL, Call.SYNC, of_queue, first=1, error=errno.EIO)
    mover(source, sink)
    disk.wait_for_strikes(1)
    assert sink.wait() != 0
    disk.heal()
    if watcher is not None:
        watcher.close()
    sink.start()
    watcher = Consuming(sink) if mover is link_of_a_queue else None
    until_moved(source, sink)
    if watcher is not None:
        watcher.close()
    assert numbers(sink, "to") == set(range(COUNT))
