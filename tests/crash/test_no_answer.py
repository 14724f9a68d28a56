"""A disk that does not say what is there: nothing is taken for missing, and written over.

A directory that cannot be listed is not one that is empty.
"""

from __future__ import annotations

import errno

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.crash.load import messages_in
from tests.support.api import Api
from tests.support.disk import Action, Call
from tests.support.segments import queue_directory
from tests.support.wire import Wire

pytestmark = pytest.mark.crash
QUEUE = "q"


def declare(wire: Wire, arguments: dict[str, object]) -> None:
    request = commands.Queue.Declare(queue=QUEUE, durable=True, arguments=arguments)
    wire.call(1, request, commands.Queue.DeclareOk)
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)


def publish(wire: Wire, number: int) -> bool:
    """Publish a message of priority 1. Returns: whether it was confirmed."""
    properties = commands.Basic.Properties(priority=1)
    wire.publish(1, "", QUEUE, b"s:%d:" % number, properties=properties)
    return isinstance(wire.receive().method, commands.Basic.Ack)


def test_a_level_that_cannot_be_listed_closes_its_queue(on_disk: DiskFactory) -> None:
    broker, disk = on_disk()
    with Wire.open(broker.start().port) as wire:
        declare(wire, {"x-max-priority": 3})
        assert publish(wire, 1)
    broker.stop()
    disk.plan(Action.FAIL, Call.OPEN_READ, "*/prio.001", error=errno.EIO)

    broker.start()

    assert disk.struck
    disk.heal()
    with Wire.open(broker.port) as wire:
        declare(wire, {"x-max-priority": 3})
        assert not publish(wire, 2)
    broker.restart()
    assert messages_in(broker.port, QUEUE) == [("s", 1)]


def next_offset(wire: Wire) -> int:
    """Consume from where the tag stands, acknowledge one message, and return its offset."""
    consume = commands.Basic.Consume(queue=QUEUE, consumer_tag="reader")
    wire.call(1, consume, commands.Basic.ConsumeOk)
    unit = wire.expect_unit(commands.Basic.Deliver, 1)
    wire.send(1, commands.Basic.Ack(unit.method.delivery_tag))
    wire.expect_unit(commands.Basic.Deliver, 1)
    headers = unit.properties.headers
    assert headers is not None
    return int(headers["x-stream-offset"])


def test_offsets_that_cannot_be_opened_close_their_stream(on_disk: DiskFactory) -> None:
    broker, disk = on_disk()
    with Wire.open(broker.start().port) as wire:
        declare(wire, {"x-queue-type": "stream"})
        for number in (1, 2, 3):
            assert publish(wire, number)
        wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        first = next_offset(wire)
    broker.stop()
    disk.plan(Action.FAIL, Call.OPEN_READ, "*/consumer_offsets", error=errno.EIO)

    broker.start()

    assert disk.struck
    disk.heal()
    assert "is closed" in broker.log_text()
    with Wire.open(broker.restart().port) as wire:
        wire.call(1, commands.Basic.Qos(prefetch_count=1), commands.Basic.QosOk)
        assert next_offset(wire) == first + 1


def test_policies_that_cannot_be_read_close_their_virtual_host(on_disk: DiskFactory) -> None:
    """Without them a message that is rejected would be deleted, and not go to `dead`."""
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    policy = {"pattern": f"^{QUEUE}$", "definition": definition}
    assert api("PUT", "/api/policies/%2F/letters", policy).status == 201
    with Wire.open(broker.port) as wire:
        declare(wire, {})
        assert publish(wire, 1)
    broker.stop()
    disk.plan(Action.FAIL, Call.OPEN_READ, "*/policies.json", error=errno.EIO)

    broker.start()

    disk.heal()
    with pytest.raises(AssertionError, match="vhost not found"):
        Wire.open(broker.port)
    broker.restart()
    assert messages_in(broker.port, QUEUE) == [("s", 1)]


def test_a_queue_whose_mark_cannot_be_looked_for_stays_paused(on_disk: DiskFactory) -> None:
    broker, disk = on_disk(http=True)
    api = Api(broker.start())
    with Wire.open(broker.port) as wire:
        declare(wire, {})
        assert publish(wire, 1)
    assert api("PUT", f"/api/queues/%2F/{QUEUE}/pause").status == 204
    broker.stop()
    name = queue_directory(broker.data_dir, QUEUE).name
    disk.plan(Action.FAIL, Call.OPEN_READ, f"*/{name}", error=errno.EIO)

    broker.start()

    assert disk.struck
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Basic.Get(queue=QUEUE), commands.Basic.GetEmpty)
    assert "because it cannot be read whether it was" in broker.log_text()


@pytest.mark.parametrize("directory", ["migrating", "migrating/prio.001"])
def test_old_messages_stay_when_the_new_ones_cannot_be_listed_to_be_synced(
    on_disk: DiskFactory, directory: str
) -> None:
    """Of a priority queue that an older release kept in one store, see docs/formats.md."""
    broker, disk = on_disk()
    with Wire.open(broker.start().port) as wire:
        declare(wire, {})
        assert publish(wire, 1)
        wire.call(
            1,
            commands.Queue.Declare(queue="p", durable=True, arguments={"x-max-priority": 3}),
            commands.Queue.DeclareOk,
        )
    broker.stop()
    old, new = (queue_directory(broker.data_dir, name) for name in (QUEUE, "p"))
    for file in old.glob("*.0000000001"):
        file.rename(new / file.name)
    disk.plan(Action.FAIL, Call.OPEN_READ, f"*/{new.name}/{directory}", last=1, error=errno.EIO)

    broker.start()

    assert disk.struck
    assert "queue 'p' is closed, its files are left alone" in broker.log_text()
    assert (new / "msgs.0000000001").exists()
    broker.restart()
    assert messages_in(broker.port, "p") == [("s", 1)]
