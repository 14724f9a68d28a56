"""Messages that an operator has chosen and moves are never in neither queue.

Killed at any call, after a loss of power, and when the destination cannot be written: each one that
was chosen is in its queue or in the other one, and where the answer says it is; none of the others
has moved. Small and large ones, which go in pieces.
"""

from __future__ import annotations

import errno
import random
import threading
from collections import Counter
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.crash.conftest import EVERY_READING, BrokerFactory, DiskFactory
from tests.crash.load import DAMAGED, messages_in
from tests.support.api import Answer, Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call
from tests.support.power_loss import Reading, Survivors
from tests.support.segments import queue_directory
from tests.support.wire import Wire

FROM, TO = "from", "to"
SIZES = (900, 1_200_000, 900, 1_200_000, 900)
CHOSEN = (1, 3, 4)
"""The numbers of those that move: two small ones with a large one behind."""
SEGMENT_SIZE = 8 << 20
POINTS, SEEDS, LONG_SEEDS = 3, 4, 40
BROWSE = f"/api/queues/%2F/{FROM}/browse"

pytestmark = pytest.mark.crash


def fill(broker: Broker) -> list[str]:
    """Make both queues, publish to the first one, and return the ids of those that are chosen."""
    with Wire.open(broker.port) as wire:
        for name in (FROM, TO):
            declare = commands.Queue.Declare(queue=name, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number, size in enumerate(SIZES, 1):
            wire.publish(1, "", FROM, (b"s:%d:" % number).ljust(size, b"."))
            wire.expect(commands.Basic.Ack, 1)
    rows = Api(broker)("POST", BROWSE, {"count": len(SIZES), "truncate": 10}).json["messages"]
    ids = {int(row["payload"].split(":")[1]): row["id"] for row in rows}
    return [ids[number] for number in CHOSEN]


def move(broker: Broker, ids: list[str]) -> Answer:
    return Api(broker)("POST", f"{BROWSE}/move", {"ids": ids, "destination": TO})


def numbers_in(broker: Broker, queue: str) -> list[int]:
    return [number for _, number in messages_in(broker.port, queue, count_is_exact=False)]


def check(broker: Broker, *, is_answered: bool = False, reading: Reading | None = None) -> None:
    """Nothing is in neither queue, nothing twice in one; what was not chosen has stayed."""
    here, there = numbers_in(broker, FROM), numbers_in(broker, TO)
    if reading is Reading.POSIX and not is_answered:
        # What was not synced yet may come back with zeros: docs/durability.md.
        there = [number for number in there if number != DAMAGED[1]]
    assert max(Counter(here).values(), default=1) == max(Counter(there).values(), default=1) == 1
    assert sorted({*here, *there}) == list(range(1, len(SIZES) + 1))
    assert set(there) <= set(CHOSEN)
    assert here == sorted(here)
    if is_answered:
        assert sorted(there) == list(CHOSEN)


@EVERY_READING
def test_a_loss_of_power_takes_no_chosen_message(
    on_disk: DiskFactory, tmp_path: Path, broker_factory: BrokerFactory, is_long: bool,
    reading: Reading,
) -> None:  # fmt: skip
    broker, disk = on_disk(log=True, http=True, segment_size=SEGMENT_SIZE)
    disk.plan(Action.NOTHING, Call.CHANGES)
    broker.start()
    ids = fill(broker)
    before = len(disk.records())
    assert move(broker, ids).json == {"moved": len(CHOSEN), "gone": 0, "refused": 0}
    broker.kill()
    records = disk.records()

    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    cuts = range(before, len(records) + 1)
    some = list(cuts) if is_long else [*chance.sample(cuts, SEEDS - 1), len(records)]
    for cut in some:
        for again in range(LONG_SEEDS if is_long and cut == len(records) else 1):
            root = tmp_path / f"cut-{cut}-{again}"
            print(f"seed {seed}, cut {cut} of {len(records)}, {again}")
            Survivors(records[:cut], reading=reading).write(root, random.Random(seed + again))
            found = broker_factory(data_dir=root, start=False).start()
            check(found, is_answered=cut == len(records), reading=reading)
            found.kill()


@pytest.mark.parametrize("action", [Action.KILL_BEFORE, Action.KILL_MIDDLE])
def test_a_kill_takes_no_chosen_message(
    on_disk: DiskFactory, action: Action, is_long: bool
) -> None:
    broker, disk = on_disk(http=True, segment_size=SEGMENT_SIZE)
    broker.start()
    disk.plan(Action.NOTHING, Call.CHANGES)
    ids = fill(broker)
    first = disk.matched
    move(broker, ids)
    calls = disk.matched - first
    broker.stop()
    assert calls > len(CHOSEN)

    seed = random.randrange(1 << 32)
    numbers = range(1, calls + 1)
    for number in numbers if is_long else random.Random(seed).sample(numbers, POINTS):
        print(f"seed {seed}, call {number} of {calls}")
        broker, disk = on_disk(http=True, segment_size=SEGMENT_SIZE)
        broker.start()
        ids = fill(broker)
        disk.plan(action, Call.CHANGES, first=number, last=number)
        try:
            is_answered = move(broker, ids).status == 200
        except (HTTPException, OSError):
            is_answered = False
        broker.kill()
        disk.heal()
        broker.start()
        check(broker, is_answered=is_answered)
        broker.kill()


FAULTS: list[Any] = [
    pytest.param(error, path, id=f"{errno.errorcode[error]}-{name}")
    for error in (errno.EIO, errno.ENOSPC)
    for name, path in (("any", "*msgs.*"), ("large", "tmp.msgs.*"), ("name", "*msgs.*"))
]


@pytest.mark.parametrize(("error", "path"), FAULTS)
def test_a_destination_that_cannot_be_written_takes_no_chosen_message(
    on_disk: DiskFactory, request: pytest.FixtureRequest, error: int, path: str
) -> None:
    broker, disk = on_disk(http=True, segment_size=SEGMENT_SIZE)
    broker.start()
    ids = fill(broker)
    to = queue_directory(Path(), TO).name
    kinds = Call.RENAME if request.node.callspec.id.endswith("name") else Call.OPEN | Call.WRITE
    disk.plan(Action.FAIL, kinds, f"*/{to}/{path}", error=error)

    answers: list[Answer] = []

    def order() -> None:
        with suppress(HTTPException, OSError):  # while there is no room it waits, until the kill
            answers.append(move(broker, ids))

    asking = threading.Thread(target=order)
    asking.start()
    disk.wait_for_strikes()
    if error != errno.ENOSPC:
        asking.join()
        assert answers[0].status == 500 or answers[0].json["refused"]
    broker.kill()
    asking.join()
    disk.heal()
    broker.start()
    check(broker)
    # And once it is well, all go.
    api = Api(broker)
    rows = api("POST", BROWSE, {"count": len(SIZES), "truncate": 10}).json["messages"]
    numbers = {int(row["payload"].split(":")[1]): row["id"] for row in rows}
    there = numbers_in(broker, TO)
    left = [numbers[number] for number in CHOSEN if number in numbers and number not in there]
    assert move(broker, left).json["moved"] == len(left)
    check(broker)
