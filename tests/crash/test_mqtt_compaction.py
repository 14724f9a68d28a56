"""Files of MQTT are compacted all the time, and the broker is killed, or its power lost: what was
said of messages, sessions and subscriptions is as true as without that.

The stories are those of the other tests of MQTT; here both logs have files of a few entries, which
are written anew behind each other, so that most of the calls of the disk belong to a compaction.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.crash import mqtt_compacting_broker as program
from tests.crash import test_mqtt_faults as faults
from tests.crash import test_mqtt_shared as shared
from tests.crash import test_mqtt_sigkill as answers
from tests.crash import test_mqtt_twice as twice
from tests.crash.conftest import EVERY_READING, DiskFactory
from tests.crash.mqtt_lives import BrokerFactory, after_kills, after_losses_of_power, recorded
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Record
from tests.support.mqtt_bytes import V5, V311
from tests.support.power_loss import Reading

CALLS, SHORT_CALLS = 16, 1

pytestmark = pytest.mark.crash


class Books(Protocol):
    """What clients do, and note, and whether it is true of a broker that comes later."""

    def run(self, broker: Broker) -> None:
        """Do it."""

    def check(self, broker: Broker, before_ns: int) -> None:
        """Look."""


STORIES: dict[str, Callable[[], Books]] = {
    "answers": answers.Books, "twice": twice.Books, "shared": shared.Books,
}  # fmt: skip
EVERY_STORY = pytest.mark.parametrize("story", STORIES)


def compacted(on_disk: DiskFactory, books: Books) -> list[Record]:
    """The file calls of a broker that compacts meanwhile."""
    records = recorded(on_disk, books, program=program)
    assert any("mqtt_sessions.0000000002" in each.path for each in records)
    return records


@EVERY_STORY
def test_what_was_said_is_true_after_a_kill(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool, story: str
) -> None:
    books = STORIES[story]()
    records = compacted(on_disk, books)
    for broker, before_ns in after_kills(records, is_long, tmp_path, broker_factory):
        books.check(broker, before_ns)


@EVERY_READING
@EVERY_STORY
def test_what_was_said_is_true_after_a_loss_of_power(
    on_disk: DiskFactory, broker_factory: BrokerFactory, tmp_path: Path, is_long: bool,
    reading: Reading, story: str,
) -> None:  # fmt: skip
    books = STORIES[story]()
    records = compacted(on_disk, books)
    after = after_losses_of_power(records, reading, is_long, tmp_path, broker_factory)
    for broker, before_ns in after:
        books.check(broker, before_ns)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("kind", [Call.OPEN, Call.WRITE, Call.UNLINK])
def test_nothing_is_lost_where_calls_of_a_compaction_fail(
    on_disk: DiskFactory, is_long: bool, kind: Call, error: int
) -> None:
    """What was acknowledged is there after a kill, once. Old files that cannot be removed bring
    nothing back."""
    for first in range(1, CALLS) if is_long else random.sample(range(1, CALLS), SHORT_CALLS):
        print(f"calls from {first} on fail")
        broker, disk = on_disk(mqtt=True, program=program)
        broker.start()
        faults.reader_of(broker)
        with ExitStack() as stack:
            writers = [faults.Writer(broker, level) for level in (V311, V5)]
            for each in writers:
                stack.enter_context(each.client)
            disk.plan(Action.FAIL, kind, "*/mqtt_*", first=first, last=first + 1, error=error)
            for each in writers:
                each.say_all()
            disk.wait_for_strikes(2)
            for each in writers:
                each.listen()
            broker.kill()
        disk.heal()
        broker.start()
        faults.check(broker, writers)
        broker.kill()
