"""A disk that does not answer holds up who asked for it, and nobody else: here it keeps back the
calls that make, rename and remove files, while another client is served."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from lavinmq.files.directories import hashed
from tests.crash.conftest import DiskFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.disk import Action, Call, Disk
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for
from tests.support.wire import Wire
from tests.support.wire_actions import synchronise

pytestmark = pytest.mark.crash

NAMES = Call.OPEN | Call.MKDIR | Call.RENAME | Call.UNLINK | Call.RMDIR
DECLARE_OK, STREAM = commands.Queue.DeclareOk, {"x-queue-type": "stream"}
QUEUE = queue_directory(Path(), "q").name
VHOST = hashed("/")


def declared(name: str, **options: Any) -> commands.Queue.Declare:
    return commands.Queue.Declare(queue=name, durable=True, **options)


@pytest.fixture
def broker_and_disk(on_disk: DiskFactory) -> tuple[Broker, Disk]:
    broker, disk = on_disk(http=True)
    return broker.start(), disk


@contextmanager
def held(disk: Disk, kinds: Call, pattern: str, broker: Broker) -> Iterator[None]:
    """In the block a call is kept back, and another client has been served meanwhile."""
    disk.plan(Action.HOLD, kinds, pattern)
    try:
        yield
        disk.wait_for_strikes()
        with Wire.open(broker.port) as other:
            other.call(1, commands.Queue.Declare(queue="another"), DECLARE_OK)
            other.publish(1, "", "another", b"served")
            other.send(1, commands.Basic.Get(queue="another", no_ack=True))
            assert other.expect_unit(commands.Basic.GetOk, 1).body == b"served"
    finally:
        disk.heal()


@pytest.mark.parametrize(
    ("kind", "file", "arguments"),
    [
        (Call.MKDIR, "", {}),
        (Call.OPEN, "/.queue", {}),
        (Call.WRITE, "/.queue", {"x-max-priority": 2}),
        (Call.OPEN, "/created.*", STREAM),
    ],
    ids=["directory", "name", "content", "identity"],
)
def test_a_declaration_waits_for_its_directory_and_holds_nobody_up(
    broker_and_disk: tuple[Broker, Disk], kind: Call, file: str, arguments: dict[str, Any]
) -> None:
    broker, disk = broker_and_disk
    with Wire.open(broker.port) as wire:
        with held(disk, kind, f"{VHOST}/{QUEUE}{file}", broker):
            wire.send(1, declared("q", arguments=arguments))
            wire.send(1, commands.Confirm.Select())
            wire.publish(1, "", "q", b"right behind")  # not walked before

        wire.expect(DECLARE_OK, 1)
        wire.expect(commands.Confirm.SelectOk, 1)
        wire.expect(commands.Basic.Ack, 1)
        assert wire.call(1, declared("q", passive=True), DECLARE_OK).message_count == 1


def test_an_import_waits_for_its_directories_and_holds_nobody_up(
    broker_and_disk: tuple[Broker, Disk],
) -> None:
    broker, disk = broker_and_disk
    names = [f"imported-{number}" for number in range(300)]  # more than are made at once
    queues = [{"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in names]
    statuses: list[int] = []
    client = threading.Thread(
        target=lambda: statuses.append(
            Api(broker)("POST", "/api/definitions", {"queues": queues}).status
        )
    )
    with held(disk, Call.MKDIR, f"{VHOST}/{hashed(names[7])}", broker):
        client.start()
    client.join()

    assert statuses == [200]
    assert {queue["name"] for queue in Api(broker).get("/api/queues")} >= set(names)
    broker.restart()
    assert {queue["name"] for queue in Api(broker).get("/api/queues")} >= set(names)


@pytest.mark.parametrize("kind", [Call.RENAME, Call.UNLINK, Call.RMDIR], ids=lambda kind: kind.name)
def test_the_files_of_a_deleted_queue_hold_nobody_up(
    broker_and_disk: tuple[Broker, Disk], kind: Call
) -> None:
    """Whoever declares it anew waits for its name alone, and has it empty."""
    broker, disk = broker_and_disk
    with Wire.open(broker.port) as wire:
        wire.call(1, declared("q"), DECLARE_OK)
        wire.publish(1, "", "q", b"old")
        synchronise(wire)
        with held(disk, kind, f"{VHOST}/{QUEUE}*", broker):
            wire.call(1, commands.Queue.Delete(queue="q"), commands.Queue.DeleteOk)
            wire.send(1, declared("q"))
        assert wire.expect(DECLARE_OK, 1).message_count == 0
    directory = broker.data_dir / VHOST
    wait_for(lambda: not list(directory.glob("*.deleted-*")), "files are left")
    assert not list(directory.glob("*.left-*"))


def test_a_deleted_virtual_host_holds_nobody_up(broker_and_disk: tuple[Broker, Disk]) -> None:
    broker, disk = broker_and_disk
    api = Api(broker)
    assert api("PUT", "/api/vhosts/gone").status == 201
    client = threading.Thread(target=lambda: api("DELETE", "/api/vhosts/gone"))
    with held(disk, Call.RENAME, hashed("gone"), broker):
        client.start()
    client.join()

    assert {vhost["name"] for vhost in api.get("/api/vhosts")} == {"/"}


@pytest.mark.parametrize(
    ("action", "kind"), [("pause", Call.OPEN), ("resume", Call.UNLINK)], ids=["pause", "resume"]
)
def test_the_mark_of_a_paused_queue_holds_nobody_up(
    broker_and_disk: tuple[Broker, Disk], action: str, kind: Call
) -> None:
    broker, disk = broker_and_disk
    api, path = Api(broker), "/api/queues/%2F/q"
    assert api("PUT", path, {"durable": True}).status == 201
    if action == "resume":
        assert api("PUT", f"{path}/pause").status == 204
    client = threading.Thread(target=lambda: api("PUT", f"{path}/{action}"))
    with held(disk, kind, f"{VHOST}/{QUEUE}/paused", broker):
        client.start()
    client.join()

    assert api.get(path)["state"] == ("paused" if action == "pause" else "running")


def test_who_declares_the_same_meanwhile_waits_for_the_same_directory(
    broker_and_disk: tuple[Broker, Disk],
) -> None:
    broker, disk = broker_and_disk
    wires = [Wire.open(broker.port) for _ in range(3)]
    with held(disk, Call.MKDIR, f"{VHOST}/{QUEUE}", broker):
        wires[0].send(1, declared("q"))
        disk.wait_for_strikes()
        wires[1].send(1, declared("q"))
        wires[2].send(1, declared("q", arguments=STREAM))
        for _ in wires:  # connections are heard in turns: those have been
            with Wire.open(broker.port) as other:
                synchronise(other)

    wires[0].expect(DECLARE_OK, 1)
    wires[1].expect(DECLARE_OK, 1)
    refused = wires[2].expect(commands.Channel.Close, 1)
    assert refused.reply_code == 406 and "other arguments" in refused.reply_text
    for wire in wires:
        wire.close()


@pytest.mark.parametrize(
    ("kind", "error"),
    [(Call.MKDIR, errno.EIO), (Call.OPEN, errno.EMFILE), (Call.WRITE, errno.ENOSPC)],
    ids=["directory", "name", "content"],
)
def test_a_directory_that_cannot_be_made_refuses_the_declaration_and_leaves_nothing(
    broker_and_disk: tuple[Broker, Disk], kind: Call, error: int
) -> None:
    broker, disk = broker_and_disk
    disk.plan(Action.FAIL, kind, f"{VHOST}/{QUEUE}*", error=error)
    with Wire.open(broker.port, channels=(1, 2)) as wire:
        wire.send(1, declared("q"))
        refused = wire.expect(commands.Channel.Close, 1)
        assert refused.reply_code == 406
        assert "queue 'q' cannot be stored" in refused.reply_text
        assert not (broker.data_dir / VHOST / QUEUE).exists()
        disk.heal()
        wire.call(2, declared("q"), DECLARE_OK)
    assert not list((broker.data_dir / VHOST).glob("*.left-*"))


def test_a_record_that_cannot_be_written_leaves_no_directory(
    broker_and_disk: tuple[Broker, Disk],
) -> None:
    broker, disk = broker_and_disk
    disk.plan(Action.FAIL, Call.WRITE, f"{VHOST}/definitions.amqp", error=errno.ENOSPC)
    with Wire.open(broker.port) as wire:
        wire.send(1, declared("q"))
        assert wire.expect(commands.Channel.Close, 1).reply_code == 406
    directory = broker.data_dir / VHOST
    wait_for(lambda: not list(directory.glob(f"{QUEUE}*")), "a directory is left")


def test_a_directory_that_nobody_waits_for_any_more_goes(
    broker_and_disk: tuple[Broker, Disk],
) -> None:
    broker, disk = broker_and_disk
    directory = broker.data_dir / VHOST
    wire = Wire.open(broker.port)
    with held(disk, Call.MKDIR, f"{VHOST}/{QUEUE}", broker):
        wire.send(1, declared("q"))
        disk.wait_for_strikes()
        wire.reset()
        wait_for(lambda: not connections(broker), "it has not gone")
    with Wire.open(broker.port) as other:
        other.call(1, declared("behind"), DECLARE_OK)
    wait_for(lambda: not list(directory.glob(f"{QUEUE}*")), "a directory is left")
    assert {queue["name"] for queue in Api(broker).get("/api/queues")} == {"another", "behind"}


def connections(broker: Broker) -> list[Any]:
    return list(Api(broker).get("/api/connections"))


def test_an_import_that_fails_leaves_no_directory(broker_and_disk: tuple[Broker, Disk]) -> None:
    broker, disk = broker_and_disk
    queues = [
        {"name": name, "vhost": "/", "durable": True, "arguments": {}} for name in ("a", "q", "z")
    ]
    disk.plan(Action.FAIL, Call.MKDIR, f"{VHOST}/{QUEUE}", error=errno.ENOSPC)

    reply = Api(broker)("POST", "/api/definitions", {"queues": queues})

    assert reply.status >= 400 and "queue 'q' cannot be stored" in reply.content.decode()
    directory = broker.data_dir / VHOST
    assert (directory / hashed("a")).exists()
    wait_for(lambda: not list(directory.glob(f"{hashed('z')}*")), "a directory is left")
    assert {queue["name"] for queue in Api(broker).get("/api/queues")} == {"a"}
