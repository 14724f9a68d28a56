"""The last elections, as etcd has them, and what they say of who led before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from lavinmq.cluster.coordinator import Coordinator
from lavinmq.cluster.elections import (
    GONE,
    MOST,
    MOST_CHARACTERS,
    Election,
    began,
    of_json,
    to_json,
)
from lavinmq.cluster.etcd import Etcd, Put, Unreachable
from tests.simulation.etcd import Client, Store


class Steady:
    """No answer is ever lost."""

    def random(self) -> float:
        """More than anything."""
        return 1.0


class World:
    """Nodes of an etcd in memory."""

    def __init__(self) -> None:
        self.store = Store()

    def node(self, name: str) -> tuple[Coordinator, int]:
        """A node with a lease."""
        client = Client(self.store, cast(Any, Steady()))
        lease, _ = now(client.grant(100))
        coordinator = Coordinator(cast(Etcd, client), "c", name, {})
        now(coordinator.look())
        return coordinator, lease

    def lead(self, name: str) -> tuple[Coordinator, int]:
        """A node that leads from now on."""
        node, lease = self.node(name)
        self.store.transact([], [Put("c/isr", b"a,b")])
        now(node.look())
        assert now(node.take_over(node.state, lease, f"tcp://{name}"))
        return node, lease


def now(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


@pytest.fixture
def world() -> World:
    return World()


def shown(node: Coordinator) -> list[tuple[int, str, str]]:
    now(node.look())
    return [(each.epoch, each.node, each.ended) for each in node.state.elections]


def test_an_election_is_there_as_soon_as_somebody_leads(world: World) -> None:
    node, _ = world.lead("a")

    (election,) = node.state.elections
    assert election[:3] == (1, "a", "tcp://a")
    assert election.at > 1e9
    assert election.ended == ""


def test_a_leader_whose_lease_is_gone_is_said_to_have_ended_so(world: World) -> None:
    _, lease = world.lead("a")
    world.store.drop(lease)

    node, _ = world.lead("b")

    assert shown(node) == [(1, "a", "its lease ended"), (2, "b", "")]


def test_a_leader_that_is_dead_is_said_to_have_refused_connections(world: World) -> None:
    world.lead("a")

    node, _ = world.lead("b")

    assert shown(node)[0] == (1, "a", "its address refused connections")


def test_a_leader_whose_time_is_over_before_etcd_says_so_is_said_to_have_ended_so(
    world: World,
) -> None:
    world.lead("a")
    node, lease = world.node("b")

    assert now(node.take_over(node.state, lease, "tcp://b", GONE))

    assert shown(node) == [(1, "a", "its lease ended"), (2, "b", "")]


def test_a_leader_that_has_been_started_anew_is_said_to_be(world: World) -> None:
    world.lead("a")

    node, lease = world.lead("a")
    assert shown(node)[0] == (1, "a", "it was started anew")
    assert now(node.take_over(node.state, lease, "tcp://a"))

    assert shown(node)[1] == (2, "a", "it had not learnt that it led")


def test_what_a_leader_says_itself_counts(world: World) -> None:
    leader, lease = world.lead("a")
    asyncio.run(leader.note_end("it was stopped"))
    world.store.drop(lease)

    node, _ = world.lead("b")

    assert shown(node) == [(1, "a", "it was stopped"), (2, "b", "")]


def test_who_leads_no_more_says_nothing_of_others(world: World) -> None:
    leader, _ = world.lead("a")
    node, _ = world.lead("b")

    asyncio.run(leader.note_end("it was stopped"))  # it has not heard of the other one
    now(leader.look())
    asyncio.run(leader.note_end("it was stopped"))

    assert shown(node) == [(1, "a", "its address refused connections"), (2, "b", "")]


def test_a_leader_ends_also_when_etcd_does_not_hear_why(world: World) -> None:
    leader, _ = world.lead("a")
    cast(Client, leader.etcd).is_cut = True

    asyncio.run(leader.note_end("it was stopped"))

    with pytest.raises(Unreachable):
        now(leader.look())


def test_no_more_than_twenty_are_kept() -> None:
    elections: list[Election] = []
    for epoch in range(1, 100):
        elections = began(elections, epoch, "n" * 9, "tcp://" + "x" * 5000, "it was stopped")

    kept = of_json(to_json(elections))

    assert [each.epoch for each in kept] == list(range(100 - MOST, 100))
    assert [each.ended for each in kept] == ["it was stopped"] * (MOST - 1) + [""]
    assert len(to_json(kept)) < MOST * (MOST_CHARACTERS + 200)


@pytest.mark.parametrize("kept", [b"", b"{", b"{}", b"5", b"[5, null, []]", b"\xff"])
def test_nonsense_in_etcd_is_no_election(kept: bytes) -> None:
    assert of_json(kept) == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [("epoch", "1"), ("node", 5), ("uri", None), ("at", "now"), ("ended", "x" * 501)],
)
def test_an_election_with_nonsense_is_left_out(name: str, value: object) -> None:
    good = Election(1, "a", "u", 1.5)
    bad = good._asdict() | {name: value}

    assert of_json(json.dumps([bad, good._asdict()]).encode()) == (good,)
