"""A shovel inside of a broker moves while the disk does what chance wants: no message is lost.

In each round something is wrong with the files of one of the two queues, or the broker is killed
at one of their calls, while messages are published to the one that the shovel empties. Then all is
well again, and the next round follows. In the end all that was confirmed has arrived.
"""

from __future__ import annotations

import random
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.crash.test_disk_faults import BROKEN, FULL
from tests.crash.test_shovels import BODY, numbers, put, until_moved
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.patience import PATIENCE
from tests.support.segments import queue_directory
from tests.support.wire import Wire, WireClosed, WireTimeout

SEGMENT_SIZE = 4096
QUEUES = "from", "to"
ROUNDS, SEEDS, LONG_SEEDS = 8, 1, 40
MOST = 60
"""Messages of a round."""
ANSWER_S = 0.5 * PATIENCE
"""For which an answer is waited for: who is held has none."""
KINDS = (Call.OPEN, Call.WRITE, Call.TRUNCATE, Call.UNLINK)
KILLS = (Action.KILL_BEFORE, Action.KILL_MIDDLE, Action.KILL_AFTER)

pytestmark = pytest.mark.crash


class Published:
    """Numbers that were sent to the source, and those of them that were confirmed."""

    def __init__(self) -> None:
        self.n = 0
        self.confirmed: set[int] = set()

    def some(self, broker: Broker, n: int) -> None:
        """Publish so many, one after the other, or as many as the broker answers."""
        with suppress(OSError, WireClosed, WireTimeout), Wire.open(broker.port) as wire:
            wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
            for _ in range(n):
                number, self.n = self.n, self.n + 1
                wire.publish(1, "", QUEUES[0], b"%d" % number + b" " * BODY)
                method = wire.receive(ANSWER_S).method
                if isinstance(method, commands.Basic.Ack):
                    self.confirmed.add(number)
                elif not isinstance(method, commands.Basic.Nack):
                    return


def begin_trouble(disk: Disk, chance: random.Random) -> bool:
    """Have something go wrong, or nothing. Returns: whether that ends the broker, if it comes."""
    queue = queue_directory(Path(), chance.choice(QUEUES)).name
    files = f"*/{queue}/{chance.choice(['*', 'msgs.*', 'acks.*'])}"
    first = chance.randint(1, 8)
    last = first + chance.choice([0, 3, 1 << 40])
    kind = chance.choice(KINDS)
    what = chance.choice(["well", "fails", "fails", "short", "killed", "unsynced", "held"])
    match what:
        case "fails":
            error = chance.choice([*FULL, *BROKEN])
            kind = chance.choice([kind, Call.DUP])
            disk.plan(Action.FAIL, kind, files, first=first, last=last, error=error)
        case "short":
            error = chance.choice([FULL[0], BROKEN[0]])
            disk.plan(Action.SHORT, Call.WRITE, files, first=first, last=last, error=error)
        case "killed":
            disk.plan(chance.choice(KILLS), kind, files, first=first, last=first)
        case "unsynced":
            disk.plan(Action.FAIL, Call.SYNC, f"*/{queue}*", first=first, error=BROKEN[0])
        case "held":
            disk.plan(Action.HOLD, Call.SYNC)
        case _:
            disk.plan(Action.NOTHING, Call(0))
    return what in ("killed", "unsynced")


def end_trouble(broker: Broker, disk: Disk, *, ends: bool) -> None:
    """All is well: who has ended is started, and what is closed is opened."""
    disk.heal()
    if ends and disk.struck:
        broker.wait()
    try:
        for queue in QUEUES:
            Api(broker)("PUT", f"/api/queues/%2F/{queue}/restart")
    except (OSError, HTTPException):
        broker.wait()
    if not broker.is_running():
        broker.start()


def test_a_shovel_inside_of_a_broker_loses_nothing_whatever_its_disk_does(
    on_disk: DiskFactory, is_long: bool
) -> None:
    for _ in range(LONG_SEEDS if is_long else SEEDS):
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"seed {seed}")
        chance = random.Random(seed)
        broker, disk = on_disk(http=True, segment_size=SEGMENT_SIZE)
        broker.start()
        with Wire.open(broker.port) as wire:
            for queue in QUEUES:
                declare = commands.Queue.Declare(queue=queue, durable=True)
                wire.call(1, declare, commands.Queue.DeclareOk)
        places = {"src-uri": "amqp://", "src-queue": QUEUES[0]}
        places |= {"dest-uri": "amqp://", "dest-queue": QUEUES[1]}
        put(broker, "parameters/shovel/%2F/s", {"value": {**places, "reconnect-delay": 0}})
        published = Published()
        for _ in range(ROUNDS):
            ends = begin_trouble(disk, chance)
            published.some(broker, chance.randint(1, MOST))
            if chance.random() < 0.2:
                with suppress(OSError):
                    broker.kill()
            end_trouble(broker, disk, ends=ends)
            if chance.random() < 0.3:
                until_moved(broker)
        until_moved(broker)

        found = numbers(broker, QUEUES[1])

        missing = published.confirmed - found
        assert not missing, f"{len(missing)} are lost, the first is {min(missing)}"
        assert found <= set(range(published.n))
        broker.kill()
