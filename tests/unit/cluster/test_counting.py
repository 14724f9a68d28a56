"""Which nodes count of those of which there have to be most, when one takes the other's place."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq.cluster.coordinator import Coordinator, State
from lavinmq.cluster.etcd import Etcd, Put


def at(uri: str) -> dict[str, Any]:
    """What a node tells of itself."""
    return {"uri": uri}


def coordinator(**state: Any) -> Coordinator:
    """Of node a, whose cluster has b and c at places of their own."""
    made = Coordinator(Etcd(["127.0.0.1:1"]), "p", "a", at("A"))
    places = {"a": "A", "b": "B", "c": "C"} | state.pop("places", {})
    made.state = State(members=tuple(state.pop("members", "abc")), places=places, **state)
    return made


def members(puts: list[Put | Any]) -> set[str]:
    """What a change makes of them; empty: nothing."""
    found = [each.value.decode() for each in puts if each.key == "p/members"]
    return set(found[0].split(",")) if found else set()


def test_the_change_that_takes_one_in_counts_the_one_before_no_more() -> None:
    one = coordinator(in_sync=("a", "b"), nodes={"a": at("A"), "b": at("B"), "d": at("C")})

    assert members(one._counting(one.state, {"a", "b", "d"})) == {"a", "b", "d"}


def test_one_whose_place_was_taken_counts_no_more_although_the_other_is_not_there() -> None:
    one = coordinator(
        members="abcd", places={"d": "C"}, in_sync=("a", "b", "d"),
        nodes={"a": at("A"), "b": at("B")},
    )  # fmt: skip

    assert one.replaced() == {"c"}
    assert one.state.least(0) == 3
    assert members(one._counting(one.state, {"a", "b", "d"})) == {"a", "b", "d"}


@pytest.mark.parametrize(
    "state",
    [
        {"in_sync": ("a", "b", "c"), "nodes": {"a": at("A"), "b": at("B")}},
        {"in_sync": ("a", "b"), "nodes": {"a": at("A"), "b": at("B")}},
        {"in_sync": ("a", "b"), "nodes": {"a": at("A"), "b": at("B"), "c": at("C")}},
        {"in_sync": ("a", "b"), "nodes": {"a": at("A"), "b": at("B"), "d": at("C")}},
    ],
    ids=["in sync", "away", "there", "its successor is not in sync"],
)
def test_others_go_on_counting(state: dict[str, Any]) -> None:
    one = coordinator(**state)

    assert one.replaced() == set()
    assert members(one._counting(one.state, {"a", "b"})) == set()
