"""Whom a leader takes for silent, and when it makes way: by what its followers say, and etcd."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.cluster.coordinator import Coordinator, State
from lavinmq.cluster.etcd import Unreachable
from lavinmq.cluster.leading import HAND_OVER_S, Leading
from tests.simulation.etcd import Client, Store

NODES = ("a", "b", "c")
STATE = State(
    epoch=1, epoch_leader="a", in_sync=NODES, members=NODES, nodes={each: {} for each in NODES}
)


class Leader:
    """Node a, which leads b and c."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.alive = {"b", "c"}
        self.leading: Any = Leading.__new__(Leading)
        self.leading.sessions = set()
        self.leading._coordinator = SimpleNamespace(me="a", state=STATE, alive=self._alive)
        self.leading._on_lost = self.lost.append
        self.leading._wanted, self.leading._lease_ttl = 0, 4
        self.leading._maybe, self.leading._patient_until = set(), {}
        self.leading._is_over, self.leading._said, self.leading._peers = False, ("", ""), set()
        self.leading._feed = SimpleNamespace(require=lambda *_: None)
        self.leading._short_since = 0.0
        self.leading._broker = SimpleNamespace(loop=SimpleNamespace(is_below=False))
        self.leading._stuck_since, self.leading._is_asking = 0.0, True

    async def _alive(self, nodes: set[str], _: float) -> set[str]:
        return nodes & self.alive

    def follower(self, node: str, *, lag_s: float = 0.0, silent_s: float = 0.0,
                 is_beating: bool = True, sock: socket.socket | None = None) -> Any:  # fmt: skip
        """One that follows."""
        peer = SimpleNamespace(lag_s=lag_s, silent_s=silent_s, is_required=True)
        # A session is known by itself.
        session = type("Session", (), {})()
        session.__dict__.update(
            node=node, peer=peer, is_beating=is_beating, is_ended=False, tcp=sock, is_known=False,
        )  # fmt: skip
        self.leading.sessions.add(session)
        return session

    def is_silent(self, session: Any) -> bool:
        found: bool = self.leading._is_silent(session, session.peer)
        return found

    def stuck(self, seconds: float) -> None:
        """Nothing can be acknowledged for so long."""
        self.leading._stuck_since = time.monotonic() - seconds

    def gone(self, node: str, *, unheard_s: float | None = None) -> None:
        """The connection of a follower has ended: by its silence, or by itself."""
        peer = SimpleNamespace(is_required=True, close=lambda: None)
        session = type("Session", (), {})()
        session.__dict__.update(
            node=node, where="w", peer=peer, spool=None, is_known=True, is_ended=True,
            heard_at=None if unheard_s is None else time.monotonic() - unheard_s,
        )  # fmt: skip
        self.leading._ended(session, "")

    def makes_way(self) -> bool:
        asyncio.run(self.leading._make_way())
        return bool(self.lost)


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    """A connection whose other end's machine answers."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as ours,
        server.accept()[0],
    ):
        ours.sendall(b"x")
        yield ours


def test_a_follower_that_owes_nothing_is_not_silent(leader: Leader) -> None:
    assert not leader.is_silent(leader.follower("b", silent_s=100.0))


def test_a_follower_that_is_at_its_disk_is_not_silent(leader: Leader) -> None:
    """As long as the others could not do without it, and it says that it is there."""
    one = leader.follower("b", lag_s=60.0, silent_s=0.5)
    leader.follower("c", lag_s=60.0)
    assert not leader.is_silent(one)
    one.peer.silent_s = 3.5
    assert leader.is_silent(one)


def test_a_slow_follower_is_left_when_the_others_can_do_without_it(leader: Leader) -> None:
    one = leader.follower("b", lag_s=3.5, silent_s=0.5)
    leader.follower("c")
    assert leader.is_silent(one)


def test_a_machine_counts_only_for_a_follower_that_does_not_beat(
    leader: Leader, sock: socket.socket
) -> None:
    """What is in between may answer for a machine."""
    leader.follower("c", lag_s=5.0)
    old = leader.follower("b", lag_s=5.0, silent_s=5.0, is_beating=False, sock=sock)
    assert not leader.is_silent(old)
    old.is_beating = True
    assert leader.is_silent(old)


def test_a_leader_that_is_cut_off_makes_way(leader: Leader) -> None:
    for each in ("b", "c"):
        leader.gone(each, unheard_s=3.6)
    assert leader.makes_way()


@pytest.mark.parametrize("alive", [set(), {"b"}])
def test_a_leader_whose_followers_have_ended_leads_on(leader: Leader, alive: set[str]) -> None:
    for each in ("b", "c"):
        leader.gone(each, unheard_s=3.6)
    leader.alive = alive
    assert not leader.makes_way()


def test_a_leader_gives_its_followers_time(leader: Leader) -> None:
    leader.stuck(5.0)  # they have not been here yet
    assert not leader.makes_way()
    leader.gone("b", unheard_s=3.0)
    leader.gone("c", unheard_s=3.6)
    assert not leader.makes_way()
    leader.stuck(60.0)
    leader.gone("b")  # it has joined, and makes another connection
    assert not leader.makes_way()


def test_a_leader_to_which_nobody_comes_makes_way(leader: Leader) -> None:
    leader.stuck(6.1)
    assert leader.makes_way()


def test_a_leader_that_reaches_one_of_two_leads_on(leader: Leader) -> None:
    leader.follower("b")
    leader.gone("c", unheard_s=60.0)
    assert not leader.makes_way()


def test_a_follower_that_gets_its_files_is_not_cut_off(
    leader: Leader, sock: socket.socket
) -> None:  # fmt: skip
    leader.follower("b", sock=sock).peer = None
    leader.gone("c", unheard_s=60.0)
    assert not leader.makes_way()


def test_a_change_of_the_set_that_comes_late_is_none(leader: Leader) -> None:
    """Etcd may carry out what it was asked for after the leader has looked whether it was. Who was
    in sync then was waited for by nobody, and could have led without what was acknowledged."""
    store = Store()
    client: Any = Client(store, random.Random(0))
    leading, transact = leader.leading, client.transact
    leading._coordinator = coordinator = Coordinator(client, "c", "a", {})
    leading.epoch, leading._feed.head = 1, 0

    async def late(*work: Any) -> None:
        store.late.append(work)
        client.transact = transact
        error = Unreachable("no answer")
        error.maybe_done = True
        raise error

    async def change() -> tuple[str, ...]:
        leading._changing = asyncio.Lock()
        lease, _ = await client.grant(10)
        await coordinator.look()
        assert await coordinator.take_over(coordinator.state, lease, "tcp://a")
        client.transact = late
        work = asyncio.create_task(leading._guarded(leading._change({"a", "b"})))
        await asyncio.sleep(0.01)
        assert leading.in_sync == {"a", "b"}, "it may be made now"
        async with asyncio.timeout(5):
            await work
        assert not leading._maybe
        assert len(store.late) == 1
        store.catch_up()
        await coordinator.look()
        return coordinator.state.in_sync

    assert asyncio.run(change()) == ("a",)
    assert not leader.lost


def test_a_leader_at_a_limit_of_threads_keeps_nothing_of_a_follower(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes again every moment, and each time a place and a descriptor were lost."""

    def none(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    leading = leader.leading
    leading._events = SimpleNamespace(call_later=lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        leading._socket = server
        with socket.create_connection(server.getsockname(), 20) as ours:
            leading._accept()
            assert not leading.sessions
            assert ours.recv(1) == b""


def test_a_leader_without_descriptors_looks_again_later(
    leader: Leader, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection waits still: the loop called again in each turn, and nobody was told."""

    def full() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    leading, calls = leader.leading, []
    leading._socket = SimpleNamespace(accept=full, fileno=lambda: 7)
    leading._events = SimpleNamespace(
        add_reader=lambda *args: calls.append(("add", *args)),
        remove_reader=lambda *args: calls.append(("remove", *args)),
        call_later=lambda _, call, *args: calls.append(("later", call, *args)),
    )

    leading._accept()

    assert calls == [("remove", 7), ("later", leading._listen)]
    assert "Too many open files" in caplog.text
    leading._listen()
    assert calls[2:] == [("add", 7, leading._accept)]
    leading._socket.fileno = lambda: -1
    leading._listen()
    assert len(calls) == 3


async def handed_over(leading: Any, position: int) -> None:
    """Hand over what has come up to a position."""
    leading._feed = SimpleNamespace(mark=lambda: position)
    async with asyncio.timeout(HAND_OVER_S / 2):
        await leading.hand_over()


def test_who_goes_away_while_a_leader_hands_over_is_not_waited_for(leader: Leader) -> None:
    """Its position stood still for ever: the stop of the leader took three seconds."""
    leader.follower("b").peer.acked = 7
    gone, leading = leader.follower("c"), leader.leading
    gone.peer.acked = 3

    async def run() -> None:
        asyncio.get_running_loop().call_later(0.03, leading.sessions.discard, gone)
        await handed_over(leading, 7)

    asyncio.run(run())


def test_a_leader_hands_over_to_all_that_are_there(leader: Leader) -> None:
    """Not to one that it has given up."""
    leader.follower("b").peer.acked = 7
    new, leading = leader.follower("c"), leader.leading
    new.peer.acked = 3
    silent = leader.follower("d")
    silent.peer.acked, silent.is_ended = 3, True

    async def run() -> None:
        work = asyncio.create_task(handed_over(leading, 7))
        await asyncio.sleep(0.05)
        assert not work.done()
        new.peer.acked = 7
        await work

    asyncio.run(run())
