"""Definitions that wait for the disk: who is answered, when, and what is there after a restart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands

import lavinmq
from lavinmq.vhost.recorded import Recorded
from tests.support.waiting import wait_for
from tests.support.wire import Wire


def open_on(broker: lavinmq.Broker, stack: ExitStack, count: int) -> list[Wire]:
    """Connections, each with a durable queue named by its number."""
    wires = [stack.enter_context(Wire.open(broker.port)) for _ in range(count)]
    for number, wire in enumerate(wires):
        declare = commands.Queue.Declare(queue=f"q{number}", durable=True)
        wire.call(1, declare, commands.Queue.DeclareOk)
    return wires


def bind_of(number: int, key: str) -> commands.Queue.Bind:
    return commands.Queue.Bind(queue=f"q{number}", exchange="amq.direct", routing_key=key)


def test_clients_that_bind_at_once_are_all_answered_and_their_bindings_are_kept(
    tmp_path: Path,
) -> None:
    keys = [str(key) for key in range(20)]
    with lavinmq.run(data_dir=tmp_path / "data", sync=True) as broker, ExitStack() as stack:
        wires = open_on(broker, stack, 4)
        for key in keys:
            for number, wire in enumerate(wires):
                wire.send(1, bind_of(number, key))
            for wire in wires:
                wire.expect(commands.Queue.BindOk)
        # Several requests in one write: each waits for the one before it.
        check = commands.Queue.Declare(queue="q0", passive=True)
        wires[0].send(1, bind_of(0, "more"), check, bind_of(0, "most"), check)
        for reply in (commands.Queue.BindOk, commands.Queue.DeclareOk) * 2:
            wires[0].expect(reply)

    with lavinmq.run(data_dir=tmp_path / "data") as broker:
        exchange = broker._server.broker.vhosts["/"].exchanges["amq.direct"]
        found = sorted((to.name, key) for to, key, _ in exchange.bindings)
    bound = [(f"q{number}", key) for number in range(4) for key in keys]
    assert found == sorted([*bound, ("q0", "more"), ("q0", "most")])


def test_a_client_that_goes_while_its_binding_waits_for_the_disk_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lavinmq.run(data_dir=tmp_path / "data", sync=True) as broker, ExitStack() as stack:
        gone, other = open_on(broker, stack, 2)
        waiting: list[Callable[[], None]] = []
        monkeypatch.setattr(Recorded, "when_synced", lambda _recorded, call: waiting.append(call))
        gone.send(1, bind_of(0, "k"))
        other.send(1, bind_of(1, "k"))
        wait_for(lambda: len(waiting) == 2, "the bindings are not recorded")
        assert other.receive_all(0.0) == []

        gone.reset()
        wait_for(lambda: len(broker._server.broker.connections) == 1, "the client is not missed")
        for callback in waiting:
            broker._server.events.call_soon_threadsafe(callback)
        other.expect(commands.Queue.BindOk)
        other.call(1, bind_of(0, "k"), commands.Queue.BindOk)  # it exists: nothing to wait for
