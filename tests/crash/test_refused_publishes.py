"""A queue that the disk has closed refuses publishes for as long as it is closed.

Whoever waits for an answer gets a no, and no other queue has got the message then; others miss
nothing for it. The disk may have been well again for long: a closed queue stays closed until it
or the broker is started anew.
"""

from __future__ import annotations

import errno

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.crash.test_disk_faults import OF_MESSAGES, SICK, WELL, wait_for_log
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.wire import Unit, Wire

FANOUT = "both"
PUBLISH = "/api/exchanges/%2F/{}/publish"
RESTART = f"/api/queues/%2F/{SICK}/restart"

pytestmark = pytest.mark.crash


def declare(wire: Wire) -> None:
    """Two queues, behind an exchange that drops duplicates."""
    exchange = commands.Exchange.Declare(
        exchange=FANOUT, exchange_type="fanout", durable=True,
        arguments={"x-message-deduplication": True},
    )  # fmt: skip
    wire.call(1, exchange, commands.Exchange.DeclareOk)
    for queue in (SICK, WELL):
        declared = commands.Queue.Declare(queue=queue, durable=True)
        wire.call(1, declared, commands.Queue.DeclareOk)
        bind = commands.Queue.Bind(queue=queue, exchange=FANOUT)
        wire.call(1, bind, commands.Queue.BindOk)


def break_queue(on_disk: DiskFactory) -> tuple[Broker, Disk]:
    """A broker with a queue that could not be written, on a disk that is well again."""
    broker, disk = on_disk(http=True)
    broker.start()
    with Wire.open(broker.port) as wire:
        declare(wire)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", SICK, b"before")
        wire.expect(commands.Basic.Ack, 1)
        disk.plan(Action.FAIL, Call.WRITE, OF_MESSAGES, error=errno.EIO)
        wire.publish(1, "", SICK, b"breaks it")
        wire.expect(commands.Basic.Nack, 1)
    wait_for_log(broker, "/msgs.")
    disk.heal()
    return broker, disk


def restart(broker: Broker) -> None:
    """Have the queue's files read again."""
    assert Api(broker)("PUT", RESTART).status == 204


def keyed(key: str) -> commands.Basic.Properties:
    return commands.Basic.Properties(headers={"x-deduplication-header": key})


def taken(port: int, queue: str) -> list[bytes]:
    """All messages of a queue, which is empty then."""
    bodies = []
    with Wire.open(port) as wire:
        while True:
            wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
            unit = wire.receive()
            if isinstance(unit.method, commands.Basic.GetEmpty):
                return bodies
            bodies.append(unit.body)


def answers(wire: Wire, channel: int, count: int) -> dict[int, str]:
    """What each of so many publishes was answered, by number."""
    said: dict[int, str] = {}
    while len(said) < count:
        method = wire.receive().method
        assert isinstance(method, commands.Basic.Ack | commands.Basic.Nack)
        first = method.delivery_tag if not method.multiple else 1
        for tag in range(first, method.delivery_tag + 1):
            said.setdefault(tag, type(method).__name__)
    return said


def test_every_confirmed_publish_to_a_closed_queue_is_nacked_until_it_runs_again(
    on_disk: DiskFactory,
) -> None:
    broker, _ = break_queue(on_disk)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for queue in (SICK, WELL, SICK, WELL):
            wire.publish(1, "", queue, b"to " + queue.encode(), mandatory=True)
        assert answers(wire, 1, 4) == {1: "Nack", 2: "Ack", 3: "Nack", 4: "Ack"}

        restart(broker)
        wire.publish(1, "", SICK, b"after")
        assert wire.expect(commands.Basic.Ack, 1).delivery_tag == 5
    assert taken(broker.port, SICK) == [b"before", b"after"]
    assert taken(broker.port, WELL) == [b"to well"] * 2


def test_one_closed_queue_of_several_makes_the_whole_publish_a_nack(on_disk: DiskFactory) -> None:
    """What is sent again after that comes once to the others: it is no duplicate, either."""
    broker, _ = break_queue(on_disk)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for _ in range(3):
            wire.publish(1, FANOUT, "", b"again", keyed("a"))
        assert set(answers(wire, 1, 3).values()) == {"Nack"}
        passive = commands.Queue.Declare(queue=WELL, passive=True)
        assert wire.call(1, passive, commands.Queue.DeclareOk).message_count == 0

        restart(broker)
        for _ in range(2):
            wire.publish(1, FANOUT, "", b"again", keyed("a"))
        while wire.expect(commands.Basic.Ack, 1).delivery_tag != 5:
            pass
    assert taken(broker.port, SICK) == [b"before", b"again"]
    assert taken(broker.port, WELL) == [b"again"]


@pytest.mark.parametrize("exchange", ["", FANOUT], ids=["queue", "fanout"])
def test_a_commit_that_meets_a_closed_queue_is_refused_whole(
    on_disk: DiskFactory, exchange: str
) -> None:
    broker, _ = break_queue(on_disk)
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        wire.call(2, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(2, "", WELL, b"taken")
        wire.expect(commands.Basic.Ack, 2)
        wire.call(1, commands.Tx.Select(), commands.Tx.SelectOk)
        wire.send(1, commands.Basic.Get(queue=WELL))
        tag = wire.expect_unit(commands.Basic.GetOk, 1).method
        assert isinstance(tag, commands.Basic.GetOk)
        wire.send(1, commands.Basic.Ack(tag.delivery_tag))
        wire.publish(1, "", WELL, b"first")
        wire.publish(1, exchange, SICK, b"second")

        wire.send(1, commands.Tx.Commit())

        close = wire.expect_channel_close(1, 406)
        assert "closed" in close.reply_text
    assert taken(broker.port, WELL) == [b"taken"]


@pytest.mark.parametrize("exchange", ["amq.default", FANOUT])
def test_a_publish_by_http_to_a_closed_queue_is_an_error(
    on_disk: DiskFactory, exchange: str
) -> None:
    broker, _ = break_queue(on_disk)
    body = {
        "properties": {}, "routing_key": SICK, "payload": "x", "payload_encoding": "string",
    }  # fmt: skip

    answer = Api(broker)("POST", PUBLISH.format(exchange), body)

    assert (answer.status, answer.json["reason"]) == (500, "A queue cannot be written")
    assert taken(broker.port, WELL) == []


def test_without_confirms_the_other_queues_take_it_and_the_log_tells_what_was_missed(
    on_disk: DiskFactory,
) -> None:
    broker, _ = break_queue(on_disk)
    with Wire.open(broker.port) as wire:
        for number in range(3):
            wire.publish(1, FANOUT, "", b"%d" % number)
        wire.publish(1, "", SICK, b"back", mandatory=True)
        assert returned(wire).body == b"back"

    assert taken(broker.port, WELL) == [b"0", b"1", b"2"]
    wait_for_log(broker, f"queue '{SICK}' is closed: it misses")
    assert broker.log_text().count("it misses") == 1
    restart(broker)
    assert "it missed 4 that were published without confirms" in broker.log_text()
    assert taken(broker.port, SICK) == [b"before"]


def returned(wire: Wire) -> Unit:
    return wire.expect_unit(commands.Basic.Return, 1)


def test_a_queue_that_could_not_be_read_at_the_start_refuses_publishes(
    on_disk: DiskFactory,
) -> None:
    broker, disk = on_disk()
    broker.start()
    with Wire.open(broker.port) as wire:
        declare(wire)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", SICK, b"before")
        wire.expect(commands.Basic.Ack, 1)
    assert broker.stop() == 0
    disk.plan(Action.FAIL, Call.OPEN | Call.OPEN_READ, OF_MESSAGES, error=errno.EIO)
    broker.start()
    disk.heal()

    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", SICK, b"late")
        wire.publish(1, FANOUT, "", b"late")
        assert answers(wire, 1, 2) == {1: "Nack", 2: "Nack"}
    broker.restart()
    assert taken(broker.port, SICK) == [b"before"]
    assert taken(broker.port, WELL) == []
