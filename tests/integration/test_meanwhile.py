"""What changes while a client of AMQP waits, and who goes meanwhile."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pamqp import commands

from lavinmq.policy.parameters import Parameter
from tests.support import wire as wires
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for
from tests.support.wire import Wire

ALL = (".*", ".*", ".*")


@pytest.fixture(scope="module")
def broker() -> Iterator[Inside]:
    with inside() as started:
        yield started


def test_what_was_asked_for_first_is_done_first_when_a_channel_is_closed_meanwhile(
    broker: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right to read goes, with which a client loses a channel that knows no other way to hear
    of it. Another channel's frames wait for a directory, and go on waiting."""
    monkeypatch.setitem(wires.CAPABILITIES, "consumer_cancel_notify", False)
    broker.add_user("ann", rights=ALL)
    files = broker.vhost().files
    wish, begun = files.wish, threading.Event()
    wishes: list[Callable[[], object]] = []

    def later(*args: Any, **more: Any) -> None:
        wishes.append(lambda: wish(*args, **more))
        begun.set()

    with Wire.open(broker.port, user="ann", password="ann", channels=(1, 2)) as wire:
        wire.call(1, commands.Queue.Declare(queue="read"), commands.Queue.DeclareOk)
        wire.call(1, commands.Basic.Consume(queue="read"), commands.Basic.ConsumeOk)
        monkeypatch.setattr(files, "wish", later)
        wire.send(
            2,
            commands.Queue.Declare(queue="made", durable=True, nowait=True),
            commands.Queue.Bind(queue="made", exchange="amq.direct", routing_key="x"),
        )
        assert begun.wait(20)
        broker.call(broker.inner.accounts.set_permissions, "ann", "/", ".*", "^amq", ".*")
        wire.expect(commands.Channel.Close, 1)
        broker.call(lambda: [each() for each in wishes])

        wire.expect(commands.Queue.BindOk, 2)


def test_consumers_hear_of_a_deletion_whose_author_has_gone(
    broker: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on disk when nobody is there to be told so."""
    recorded = broker.vhost().recorded
    when_synced, begun = recorded.when_synced, threading.Event()
    waiting: list[Callable[[], object]] = []

    def later(callback: Callable[[], object]) -> None:
        waiting.append(lambda: when_synced(callback))
        begun.set()

    with Wire.open(broker.port) as reader:
        declare = commands.Queue.Declare(queue="kept", durable=True)
        reader.call(1, declare, commands.Queue.DeclareOk)
        tag = reader.call(1, commands.Basic.Consume(queue="kept"), commands.Basic.ConsumeOk)
        n_before = len(broker.inner.connections)
        with Wire.open(broker.port) as author:
            monkeypatch.setattr(recorded, "when_synced", later)
            author.send(1, commands.Queue.Delete(queue="kept"))
            assert begun.wait(20)
            author._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_for(lambda: len(broker.inner.connections) == n_before, "the author has gone")
        broker.call(lambda: [each() for each in waiting])

        assert reader.expect(commands.Basic.Cancel, 1).consumer_tag == tag.consumer_tag


def test_what_is_saved_late_does_not_come_to_the_next_virtual_host_of_the_name(
    broker: Inside,
) -> None:
    """A file that takes long to be made, and where a shovel is that ends behind its host: a restart
    would bring back what was deleted."""
    vhosts = broker.inner.vhosts
    broker.call(vhosts.create, "again")
    old = broker.vhost("again")
    many = [Parameter("x", str(n), "") for n in range(10_000)]

    put = broker.submit(old.rules.parameters.put, *many)
    deleted, created = broker.submit(vhosts.delete, "again"), broker.submit(vhosts.create, "again")
    assert deleted.result(20)
    assert created.result(20)
    put.result(20)
    broker.call(old.rules.offsets.put, Parameter("shovel", "s", 7))

    new = broker.vhost("again")
    assert new is not old
    assert new.directory == old.directory
    assert not list(new.directory.glob("*.json"))
