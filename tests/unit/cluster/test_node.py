"""A node that ends lets go of everything, and one that goes on keeps its lease, whatever else
happens meanwhile."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.cluster.etcd import EtcdError, NoLease
from lavinmq.cluster.history import History
from lavinmq.cluster.leading import Leading
from lavinmq.cluster.node import Node, NodeError
from lavinmq.config.values import load
from lavinmq.process.systemd import Service
from lavinmq.server import Server
from tests.support.ports import free_port


def made(root: Path, events: asyncio.AbstractEventLoop) -> Node:
    """One whose etcd does not answer."""
    config = load(
        ["-D", str(root), "--clustering", "--clustering-advertised-uri", "tcp://127.0.0.1:1",
         "--clustering-etcd-endpoints", f"127.0.0.1:{free_port()}"], {},
    )  # fmt: skip
    return Node(config, events, Service({}), is_clean=True, integrity=None)


@pytest.mark.parametrize("what", ["_end", "stop"])
def test_what_comes_while_a_node_lets_go_does_not_end_that(tmp_path: Path, what: str) -> None:
    """A leader that found again that it is in the way, or a second signal, left a traceback, and
    the lease to its end."""
    with closing(asyncio.new_event_loop()) as events:
        node: Any = made(tmp_path, events)
        revoked: list[int] = []

        async def revoke(lease: int) -> None:
            node.stop() if what == "stop" else node._end("once more", 3)
            await asyncio.sleep(0)
            revoked.append(lease)
            raise EtcdError("nobody answers")

        node._etcd.revoke, node._lease = revoke, 7
        events.call_soon(node._end, "it leads no more", 3)
        events.run_forever()

        events.run_until_complete(node.release())

        assert revoked == [7]
        assert node.exit_code == 3


@pytest.fixture
def events() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as loop:
        yield loop


@pytest.mark.parametrize("n_turns", range(4))
def test_a_change_of_the_cluster_at_the_moment_of_a_stop_does_not_undo_that(
    tmp_path: Path, events: asyncio.AbstractEventLoop, n_turns: int
) -> None:
    """All nodes stopped at once: the leader went on to decide, without its lease, until that was
    over, and ended with 3 as if another one led."""
    node: Any = made(tmp_path, events)

    async def look() -> None:
        pass

    async def main() -> None:
        node._look_at_leader = look
        deciding = asyncio.ensure_future(node._decide())
        await asyncio.sleep(0.01)
        node._changed.set()
        for _ in range(n_turns):
            await asyncio.sleep(0)
        deciding.cancel()
        await asyncio.wait([deciding], timeout=0.05)
        is_over = deciding.cancelled()
        deciding.cancel()
        await asyncio.wait([deciding])
        assert is_over

    events.run_until_complete(main())


@pytest.fixture
def collector() -> Iterator[None]:
    """The garbage collector as it was, afterwards."""
    before, switch_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.enable()
    gc.unfreeze()
    gc.set_threshold(*before)
    sys.setswitchinterval(switch_s)


@pytest.mark.usefixtures("collector")
def test_a_node_collects_garbage_while_it_follows_and_not_while_it_loads(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    """A node that followed for weeks kept all the garbage of that time."""
    node: Any = made(tmp_path, events)
    collects: list[bool] = []

    async def look() -> None:
        collects.append(gc.isenabled())
        raise NodeError("that is enough", 1)

    node._probes.start = bool  # others may have their ports
    node._look_at_files = node._made_server = look
    gc.disable()  # as when the process starts
    with pytest.raises(NodeError, match="enough"):
        events.run_until_complete(node._run())
    with closing(socket.socket()) as listener, pytest.raises(NodeError, match="enough"):
        events.run_until_complete(node._lead(listener))

    assert collects == [True, False]


class Leader:
    """The broker of a node that leads."""

    def __init__(self) -> None:
        self.broker = SimpleNamespace(is_stopping=False)
        self.failure = ""
        self.n_stops = self.n_cuts = 0

    def stop(self) -> None:
        """In order; again: at once."""
        self.broker.is_stopping = True
        self.n_stops += 1

    def cut(self) -> None:
        """Serve nobody."""
        self.n_cuts += 1


def test_a_node_that_makes_way_stops_in_order_whoever_else_asks_for_that(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    """Two orders to hand over, or one and a stop of the service, ended the broker at once."""
    node: Any = made(tmp_path, events)
    node.server = leader = Leader()

    node._make_way()
    node._make_way()
    events.run_until_complete(asyncio.sleep(0.3))
    assert leader.n_stops == 1
    node.stop()  # of the service

    assert leader.n_stops == 1
    node.stop()
    assert leader.n_stops == 2, "who insists is heard"


def test_a_stop_that_comes_before_a_node_makes_way_is_the_only_one(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    node: Any = made(tmp_path, events)
    node.server = leader = Leader()

    node._make_way()
    node.stop()
    events.run_until_complete(asyncio.sleep(0.3))

    assert leader.n_stops == 1


def kept(node: Any, seconds: float = 0.2) -> None:
    """Have its lease renewed for a moment."""
    node._config = SimpleNamespace(clustering_lease_ttl=0.02)

    async def run() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await node._keep_lease()

    node._events.run_until_complete(run())


def test_a_node_that_could_not_say_that_it_is_there_says_it_later(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    """With its second lease it was there by nothing, and kept the lease for ever: nobody found
    where it serves clients."""
    node: Any = made(tmp_path, events)
    leases, said = [7], []

    async def keep_alive(lease: int) -> int:
        if lease not in leases:
            raise NoLease("it is gone")
        return 10

    async def grant(_: int) -> tuple[int, int]:
        leases.append(leases[-1] + 1 if leases else 8)
        return leases[-1], 10

    async def register(lease: int) -> str:
        said.append(lease)
        if len(said) == 1:
            raise EtcdError("no answer")
        return ""

    node._etcd = SimpleNamespace(keep_alive=keep_alive, grant=grant)
    node._coordinator.register = register
    node._lease = 7
    leases.clear()

    kept(node)

    assert len(said) == 2
    assert node._lease == said[-1]


def test_a_late_answer_does_not_shorten_a_lease(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    """While a leader loads a thread renews its lease. What was asked before that, and is answered
    after it, had the leader end."""
    node: Any = made(tmp_path, events)

    async def keep_alive(_: int) -> int:
        node._renewed(time.monotonic() + 1000)
        return 10

    node._etcd = SimpleNamespace(keep_alive=keep_alive)

    kept(node)

    assert node._deadline > time.monotonic() + 900


def test_a_node_that_stops_waits_for_who_follows(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    """It was about to leave its leader: it said how its files stand while they were changed."""
    node: Any = made(tmp_path, events)
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def stop() -> None:
        begun.set()
        may_end.wait(20)
        ended.set()

    node._following = SimpleNamespace(stop=stop, history=History([(5, 0)]))

    async def run() -> None:
        leaving = asyncio.create_task(node._unfollow())
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 20)
        leaving.cancel()
        await asyncio.wait([leaving])
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await node._unfollow()

    events.run_until_complete(run())

    may_end.set()
    assert ended.is_set()
    assert node._history.epoch == 5
    assert node._following is None


def test_a_leader_that_has_failed_serves_nobody_while_it_lets_go(
    tmp_path: Path, events: asyncio.AbstractEventLoop
) -> None:
    """Etcd may take seconds to hear of it."""
    node: Any = made(tmp_path, events)
    node.server = leader = Leader()
    leader.failure = "etcd has not renewed the lease in time"
    n_cuts = []

    async def revoke(_: int) -> None:
        n_cuts.append(leader.n_cuts)

    node._etcd.revoke, node._lease = revoke, 7
    node.server.has_sync_failed = False

    events.run_until_complete(node.release())

    assert n_cuts == [1]


@pytest.mark.parametrize("left_s", [-1, 60])
def test_a_leader_whose_lease_has_ended_while_it_loaded_serves_nobody(
    tmp_path: Path, events: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch, left_s: int
) -> None:
    """It served until its next look, as a leader that another one has replaced."""
    node: Any = made(tmp_path, events)
    what = []
    monkeypatch.setattr(Server, "start", lambda _: what.append("loads"))
    monkeypatch.setattr(Server, "cut", lambda _: what.append("is cut"))
    monkeypatch.setattr(Leading, "start", lambda _: what.append("leads"))

    async def lead() -> None:
        node._deadline = time.monotonic() + left_s
        with socket.create_server(("127.0.0.1", 0)) as sock, suppress(NodeError):
            await node._lead(sock)

    try:
        events.run_until_complete(lead())
        assert what == ["loads", "leads" if left_s > 0 else "is cut"]
    finally:
        node._leading.close()
        node.server.release()


def test_an_operator_has_an_answer_before_the_node_that_is_ordered_to_lead_does(
    tmp_path: Path, events: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Etcd told the node of its own order before it had answered it: the control socket was
    closed, and `recover_cluster` failed although it was done."""
    node: Any = made(tmp_path, events)
    monkeypatch.setattr(Server, "start", lambda _: None)
    monkeypatch.setattr(Leading, "start", lambda _: None)
    is_in_etcd, answers = asyncio.Event(), asyncio.Event()
    what = []
    node._probes = SimpleNamespace(close=lambda: what.append("the socket is closed"))

    async def go_on_alone(_: object) -> bool:
        is_in_etcd.set()
        await answers.wait()
        return True

    async def report() -> dict[str, Any]:
        known = {"epoch": 1, "position": 2, "damaged_files": 0, "lost": []}
        return {**known, "refusal": "", "seen": [1], "cluster": {"in_sync": []}}

    async def order() -> None:
        assert await node._recovery.recover([1]) == ""
        what.append("the order is answered")

    async def lead() -> None:
        node._deadline = time.monotonic() + 60
        ordered = asyncio.ensure_future(order())
        await is_in_etcd.wait()
        events.call_later(0.05, answers.set)
        with socket.create_server(("127.0.0.1", 0)) as sock:
            await node._lead(sock)
        await ordered

    node._recovery.report, node._coordinator.go_on_alone = report, go_on_alone
    try:
        events.run_until_complete(lead())
        assert what == ["the order is answered", "the socket is closed"]
    finally:
        node._leading.close()
        node.server.release()
