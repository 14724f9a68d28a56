"""What dies, is released or moved stays where it is until its destination has it on disk.

The destination cannot be written: it breaks by the message itself, it was closed before, or its
disk is full. The message is still there then, nothing comes twice, and when the destination works
again it arrives.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException

import pytest
from pamqp import commands

from tests.crash.conftest import DiskFactory
from tests.crash.test_disk_faults import OF_MESSAGES, SICK, WELL, WRITING, wait_for_log
from tests.crash.test_refused_publishes import taken
from tests.support.api import Answer, Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.waiting import wait_for
from tests.support.wire import Wire, encode, encode_publish

SOURCE, FANOUT, DELAYED, WAITING = "source", "both", "late", "amq.delayed-late"
STAY = f"stay, because queue '{SICK}' cannot be written"
QUEUE = "/api/queues/%2F"
Death = Callable[[Wire], None]

pytestmark = pytest.mark.crash


def call(wire: Wire, request: object, reply: type) -> None:
    wire.call(1, request, reply)  # type: ignore[arg-type]


def declare(port: int, exchange: str = "", durable: bool = True, **arguments: int) -> None:
    """A source whose dead letters go to a queue, or to two."""
    to_dead = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": SICK}
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    late = {"x-delayed-type": "direct"}
    with Wire.open(port) as wire:
        for name, kind, extra in ((FANOUT, "fanout", {}), (DELAYED, "x-delayed-message", late)):
            request = commands.Exchange.Declare(
                exchange=name, exchange_type=kind, durable=True, arguments=extra
            )
            call(wire, request, commands.Exchange.DeclareOk)
        for queue in (SICK, WELL):
            declared = commands.Queue.Declare(queue=queue, durable=True)
            call(wire, declared, commands.Queue.DeclareOk)
            for name, key in ((FANOUT, ""), (DELAYED, queue)):
                bind = commands.Queue.Bind(queue=queue, exchange=name, routing_key=key)
                call(wire, bind, commands.Queue.BindOk)
        declared = commands.Queue.Declare(queue=SOURCE, durable=durable, arguments=to_dead | given)
        call(wire, declared, commands.Queue.DeclareOk)


def count(port: int, queue: str) -> int:
    with Wire.open(port) as wire:
        passive = commands.Queue.Declare(queue=queue, passive=True)
        return wire.call(1, passive, commands.Queue.DeclareOk).message_count or 0


def publish(wire: Wire, expiration: str | None = None) -> None:
    """One message to the source, confirmed."""
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    wire.publish(1, "", SOURCE, b"m", commands.Basic.Properties(expiration=expiration))


def take(wire: Wire) -> int:
    wire.send(1, commands.Basic.Get(queue=SOURCE))
    got = wire.expect_unit(commands.Basic.GetOk, 1).method
    assert isinstance(got, commands.Basic.GetOk)
    return got.delivery_tag


def expire(wire: Wire) -> None:
    publish(wire, "50")


def reject(wire: Wire) -> None:
    publish(wire)
    wire.expect(commands.Basic.Ack, 1)
    wire.send(1, commands.Basic.Reject(take(wire), requeue=False))


def reject_at_once(wire: Wire) -> None:
    """Publish, get and reject before anything is written."""
    wire.send_bytes(
        encode_publish(1, "", SOURCE, b"m")
        + encode(1, commands.Basic.Get(queue=SOURCE), commands.Basic.Reject(1, requeue=False))
    )


def try_too_often(wire: Wire) -> None:
    publish(wire)
    wire.expect(commands.Basic.Ack, 1)
    for _ in range(2):
        wire.send(1, commands.Basic.Nack(take(wire), requeue=True))


def overflow(wire: Wire) -> None:
    publish(wire)
    wire.expect(commands.Basic.Ack, 1)
    wire.publish(1, "", SOURCE, b"stays")


def release(wire: Wire) -> None:
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    late = commands.Basic.Properties(headers={"x-delay": 50})
    wire.publish(1, DELAYED, SICK, b"m", late)


DEATHS: dict[str, tuple[Death, dict[str, int]]] = {
    "expired": (expire, {}),
    "rejected": (reject, {}),
    "rejected at once": (reject_at_once, {}),
    "delivery limit": (try_too_often, {"x_delivery_limit": 1}),
    "overflow": (overflow, {"x_max_length": 1}),
    "released": (release, {}),
}


def begin(on_disk: DiskFactory, death: str = "rejected", **options: object) -> tuple[Broker, Disk]:
    broker, disk = on_disk(http=True)
    broker.start()
    declare(broker.port, **options, **DEATHS[death][1])  # type: ignore[arg-type]
    return broker, disk


def die(broker: Broker, death: str = "rejected") -> None:
    with Wire.open(broker.port) as wire:
        DEATHS[death][0](wire)
        wire.send(1, commands.Basic.Qos())
        while not isinstance(wire.receive().method, commands.Basic.QosOk):
            pass


def left_over(death: str) -> int:
    """Messages of the source that are well."""
    return int(death == "overflow")


def source_of(death: str) -> str:
    return WAITING if death == "released" else SOURCE


def break_sick(broker: Broker, disk: Disk) -> None:
    """Have a publish close the destination; the disk is well afterwards."""
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.EIO)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        wire.publish(1, "", SICK, b"breaks it")
        wire.expect(commands.Basic.Nack, 1)
    disk.heal()


def restart_sick(broker: Broker) -> None:
    assert Api(broker)("PUT", f"{QUEUE}/{SICK}/restart").status == 204


def check_it_arrives(broker: Broker, death: str) -> None:
    """Once, and the source has forgotten it then, also on disk."""
    source, left = source_of(death), left_over(death)
    wait_for(lambda: count(broker.port, SICK) == 1, "it never arrives")
    wait_for(lambda: count(broker.port, source) == left, "the source keeps it")
    assert broker.stop() == 0
    broker.start()
    assert count(broker.port, source) == left
    assert taken(broker.port, SICK) == [b"m"]


@pytest.mark.parametrize("death", DEATHS)
def test_a_message_whose_destination_breaks_by_it_stays_and_arrives_later(
    on_disk: DiskFactory, death: str
) -> None:
    broker, disk = begin(on_disk, death)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.EIO)

    die(broker, death)

    wait_for_log(broker, STAY)
    assert count(broker.port, source_of(death)) == 1 + left_over(death)
    assert count(broker.port, SICK) == 0
    disk.heal()
    restart_sick(broker)
    check_it_arrives(broker, death)


@pytest.mark.parametrize("death", DEATHS)
def test_a_message_whose_destination_is_closed_stays_and_arrives_later(
    on_disk: DiskFactory, death: str
) -> None:
    broker, disk = begin(on_disk, death)
    break_sick(broker, disk)

    die(broker, death)

    wait_for_log(broker, STAY)
    assert count(broker.port, source_of(death)) == 1 + left_over(death)
    restart_sick(broker)
    check_it_arrives(broker, death)
    assert broker.log_text().count(STAY) == 1


@pytest.mark.parametrize("death", [each for each in DEATHS if each != "rejected at once"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_a_message_that_could_not_be_moved_is_there_after_a_kill(
    on_disk: DiskFactory, death: str, error: int
) -> None:
    broker, disk = begin(on_disk, death)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=error)
    die(broker, death)
    disk.wait_for_strikes()

    broker.kill()

    disk.heal()
    broker.start()
    source = source_of(death)
    wait_for(lambda: count(broker.port, source) + count(broker.port, SICK) > left_over(death), "")
    if death in ("expired", "overflow", "released"):
        check_it_arrives(broker, death)
    else:
        assert (count(broker.port, SOURCE), count(broker.port, SICK)) == (1, 0)


def test_a_full_disk_delays_letters_and_an_orderly_stop_meanwhile_loses_none(
    on_disk: DiskFactory,
) -> None:
    """The first one waits in memory, the second one in its own queue."""
    broker, disk = begin(on_disk)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.ENOSPC)
    with Wire.open(broker.port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(2):
            wire.publish(1, "", SOURCE, b"%d" % number)
        while wire.expect(commands.Basic.Ack, 1).delivery_tag != 2:
            pass
        for number in range(2):
            wire.send(1, commands.Basic.Reject(take(wire), requeue=False))
            disk.wait_for_strikes(number + 1)
    wait_for_log(broker, STAY)
    assert (count(broker.port, SOURCE), count(broker.port, SICK)) == (1, 1)

    broker.stop()

    disk.heal()
    broker.start()
    assert sorted(taken(broker.port, SOURCE) + taken(broker.port, SICK)) == [b"0", b"1"]


def test_letters_that_a_full_disk_held_up_go_on_when_there_is_room(on_disk: DiskFactory) -> None:
    broker, disk = begin(on_disk)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.ENOSPC)
    die(broker)
    disk.wait_for_strikes()

    disk.heal()

    check_it_arrives(broker, "rejected")


def test_one_destination_of_several_that_cannot_be_written_refuses_the_whole(
    on_disk: DiskFactory,
) -> None:
    broker, disk = begin(on_disk, exchange=FANOUT)
    break_sick(broker, disk)

    die(broker)

    wait_for_log(broker, STAY)
    assert (count(broker.port, SOURCE), count(broker.port, WELL)) == (1, 0)
    restart_sick(broker)
    check_it_arrives(broker, "rejected")
    assert taken(broker.port, WELL) == [b"m"]


def test_a_transient_source_keeps_its_message_too(on_disk: DiskFactory) -> None:
    broker, disk = begin(on_disk, durable=False)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.EIO)

    die(broker)

    wait_for_log(broker, STAY)
    assert count(broker.port, SOURCE) == 1
    disk.heal()
    restart_sick(broker)
    wait_for(lambda: count(broker.port, SICK) == 1, "it never arrives")
    assert count(broker.port, SOURCE) == 0


@pytest.mark.parametrize("ends_by_kill", [False, True])
def test_what_cannot_be_read_when_it_is_rejected_stays_and_arrives_later(
    on_disk: DiskFactory, ends_by_kill: bool
) -> None:
    broker, disk = begin(on_disk)
    with Wire.open(broker.port) as wire:
        publish(wire)
        wire.expect(commands.Basic.Ack, 1)
        tag = take(wire)
        # Others leave neither the message in memory nor its place in the window.
        for _ in range(2):
            wire.publish(1, "", SOURCE, bytes(300_000))
            wire.expect(commands.Basic.Ack, 1)
            last = take(wire)
        disk.plan(Action.FAIL, Call.READ, error=errno.EIO)
        wire.send(1, commands.Basic.Reject(tag, requeue=False))
        wait_for_log(broker, "stay, because they cannot be read")
        disk.heal()
        if not ends_by_kill:
            wait_for(lambda: count(broker.port, SICK) == 1, "it never arrives")
            wire.send(1, commands.Basic.Ack(last, multiple=True))
    if ends_by_kill:
        broker.kill()
        broker.start()

    assert count(broker.port, SICK) + count(broker.port, SOURCE) == (3 if ends_by_kill else 1)


def test_what_stays_can_be_purged_and_goes_with_its_destination(on_disk: DiskFactory) -> None:
    broker, disk = begin(on_disk)
    break_sick(broker, disk)
    for _ in range(2):
        die(broker)
    with Wire.open(broker.port) as wire:
        purged = wire.call(1, commands.Queue.Purge(queue=SOURCE), commands.Queue.PurgeOk)
        assert purged.message_count == 2
        assert count(broker.port, SOURCE) == 0
        die(broker)
        assert count(broker.port, SOURCE) == 1

        wire.call(1, commands.Queue.Delete(queue=SICK), commands.Queue.DeleteOk)

    wait_for(lambda: count(broker.port, SOURCE) == 0, "it has nowhere to go any more")
    assert broker.stop() == 0
    broker.start()
    assert count(broker.port, SOURCE) == 0


# ---- moved by an operator ------------------------------------------------------------------------


def move(broker: Broker) -> Answer:
    return Api(broker)("POST", f"{QUEUE}/{SOURCE}/move", {"destination": SICK})


def fill(broker: Broker) -> None:
    with Wire.open(broker.port) as wire:
        publish(wire)
        wire.expect(commands.Basic.Ack, 1)


def test_a_message_that_could_not_be_moved_is_back_and_the_answer_says_so(
    on_disk: DiskFactory,
) -> None:
    broker, disk = begin(on_disk)
    fill(broker)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.EIO)

    answer = move(broker)

    reason = f"Queue '{SICK}' cannot be written: 0 messages were moved"
    assert answer.status == 500
    assert answer.json["reason"].startswith(reason)
    wait_for_log(broker, "1 messages that were to be moved are back")
    with Wire.open(broker.port) as wire:
        wire.send(1, commands.Basic.Get(queue=SOURCE))
        unit = wire.expect_unit(commands.Basic.GetOk, 1)
        assert isinstance(unit.method, commands.Basic.GetOk)
        assert (unit.body, unit.method.redelivered) == (b"m", False)
    answer = move(broker)
    assert (answer.status, answer.json["reason"][: len(reason)]) == (500, reason)
    disk.heal()
    restart_sick(broker)
    assert move(broker).json == {"moved": 1}
    check_it_arrives(broker, "rejected")


def test_a_message_that_a_full_disk_did_not_take_is_there_after_a_kill(
    on_disk: DiskFactory,
) -> None:
    broker, disk = begin(on_disk)
    fill(broker)
    disk.plan(Action.FAIL, WRITING, OF_MESSAGES, error=errno.ENOSPC)
    answers: list[Answer] = []

    def ask() -> None:
        with suppress(OSError, HTTPException):
            answers.append(move(broker))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    disk.wait_for_strikes(2)
    assert answers == []

    broker.kill()

    disk.heal()
    broker.start()
    assert taken(broker.port, SOURCE) == [b"m"]
    thread.join()
