"""What browse selects, and what was chosen, is the same when nothing of it is in memory.

The page cache of the disk under test has nothing, ever: each place is read by a thread first, in
the midst of a segment, at its beginning, for requeued messages and for large ones.
"""

from __future__ import annotations

import errno
from typing import Any

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.crash.load import messages_in
from tests.support.api import Api
from tests.support.disk import Action, Call, Disk
from tests.support.wire import Wire

QUEUE, OTHER = "q", "other"
BROWSE = f"/api/queues/%2F/{QUEUE}/browse"
MESSAGES, LARGE = 60, 30
"""Messages, and the number of the one that is large; the first ones are requeued."""
SELECTIONS: list[dict[str, Any]] = [
    {},
    {"position": 17, "count": 5},
    {"position": -3},
    {"text": ":4"},
    {"header": "third"},
    {"header": "third", "value": "yes"},
    {"routing_key": QUEUE, "text": "no such text"},
    {"count": 7, "text": "s:"},
]

pytestmark = pytest.mark.crash


def fill(port: int) -> None:
    """Several segments; the first three messages were delivered, and are ready again."""
    with Wire.open(port) as wire:
        for name in (QUEUE, OTHER):
            declare = commands.Queue.Declare(queue=name, durable=True)
            wire.call(1, declare, commands.Queue.DeclareOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(1, MESSAGES + 1):
            headers = {"third": "yes" if number % 2 else "no"} if number % 3 == 0 else {}
            body = (b"s:%d:" % number).ljust(1_200_000 if number == LARGE else 900, b".")
            properties = commands.Basic.Properties(headers=headers)
            wire.publish(1, "", QUEUE, body, properties=properties)
            wire.expect(commands.Basic.Ack, 1)
        for _ in range(3):
            wire.send(1, commands.Basic.Get(queue=QUEUE))
            wire.expect_unit(commands.Basic.GetOk, 1)
        wire.call(1, commands.Basic.Recover(requeue=True), commands.Basic.RecoverOk)


def freeze(disk: Disk) -> None:
    """From now on nothing is in memory."""
    disk.plan(Action.FAIL, Call.CACHED, "*/msgs.*", error=errno.EAGAIN)


def seen(api: Api, **body: Any) -> Any:
    answer = api("POST", BROWSE, {"count": 100, "truncate": 10, **body})
    assert answer.status == 200, answer.content
    return answer.json


def numbers(answer: Any) -> list[int]:
    return [int(row["payload"].split(":")[1]) for row in answer["messages"]]


def test_what_is_selected_is_the_same_when_nothing_is_in_memory(on_disk: DiskFactory) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    fill(broker.port)
    warm = [seen(api, **selection) for selection in SELECTIONS]
    assert numbers(warm[0]) == list(range(1, MESSAGES + 1))
    freeze(disk)

    for selection, expected in zip(SELECTIONS, warm, strict=True):
        before = disk.struck
        assert seen(api, **selection) == expected, selection
        assert disk.struck > before


def test_pages_go_on_where_the_last_one_ended_when_nothing_is_in_memory(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    fill(broker.port)
    freeze(disk)

    found: list[int] = []
    more = None
    while True:
        page = seen(api, count=7, **({"cursor": more} if more else {}))
        found += numbers(page)
        more = page["more"]
        if not more:
            break

    assert found == list(range(1, MESSAGES + 1))
    assert disk.struck > MESSAGES // 7


def test_what_was_chosen_is_found_when_nothing_is_in_memory(on_disk: DiskFactory) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    fill(broker.port)
    ids = {number: row["id"] for number, row in enumerate(seen(api)["messages"], 1)}
    freeze(disk)

    gone = [2, 20, 45]
    moved = [3, LARGE, 59]
    answer = api("POST", f"{BROWSE}/delete", {"ids": [ids[number] for number in gone]})
    assert answer.json == {"deleted": 3, "gone": 0, "refused": 0}
    chosen = {"ids": [ids[number] for number in moved], "destination": OTHER}
    assert api("POST", f"{BROWSE}/move", chosen).json == {"moved": 3, "gone": 0, "refused": 0}

    assert disk.struck >= len(gone)
    left = [number for _, number in messages_in(broker.port, QUEUE)]
    assert left == [number for number in range(1, MESSAGES + 1) if number not in gone + moved]
    assert sorted(number for _, number in messages_in(broker.port, OTHER)) == moved


def test_a_disk_that_cannot_be_read_costs_the_answer_alone(on_disk: DiskFactory) -> None:
    """Also where a thread reads."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    fill(broker.port)
    disk.plan(Action.FAIL, Call.READ | Call.CACHED, "*/msgs.*", error=errno.EIO)

    answer = api("POST", BROWSE, {"count": 100})

    assert answer.status == 500
    disk.heal()
    assert numbers(seen(api)) == list(range(1, MESSAGES + 1))
