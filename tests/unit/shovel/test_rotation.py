"""Which URI of a list comes next."""

from __future__ import annotations

import pytest

from lavinmq.shovel.connecting import LEAST_DELAY_S, MOST_DELAY_S, Rotation, pause_s

PLACES = ("a", "b", "c")


def turns(rotation: Rotation[str], count: int) -> str:
    return "".join(rotation.turn() for _ in range(count))


def test_an_order_begins_with_the_first_again_once_one_works() -> None:
    rotation = Rotation(PLACES, "ordered")
    assert turns(rotation, 4) == "abca"
    rotation.turn()
    rotation.worked()
    assert turns(rotation, 2) == "ab"


def test_round_robin_goes_on_where_it_was() -> None:
    rotation = Rotation(PLACES, "round-robin")
    assert turns(rotation, 2) == "ab"
    rotation.worked()
    assert turns(rotation, 4) == "cabc"


def test_by_chance_means_an_order_by_chance_and_each_one_in_turn() -> None:
    found = {turns(Rotation(PLACES, "shuffle"), 3) for _ in range(200)}
    assert len(found) == 6 and all(sorted(each) == ["a", "b", "c"] for each in found)


def test_another_place_is_told_once_it_works() -> None:
    rotation, told = Rotation(PLACES, "ordered"), []
    rotation.moved = lambda: told.append(rotation.place)
    for _ in range(2):
        rotation.turn()
        rotation.turn()
        rotation.worked()
    assert told == ["b"]


def test_the_place_is_the_last_that_worked_while_others_are_tried() -> None:
    """`x-shovelled` names it: the messages that are under way are its own."""
    rotation, told = Rotation(PLACES, "round-robin"), []
    rotation.moved = lambda: told.append(rotation.place)
    rotation.turn()
    rotation.worked()
    assert turns(rotation, 2) == "bc"
    assert rotation.place == "a"
    rotation.turn()
    rotation.worked()
    assert (rotation.place, told) == ("a", [])


@pytest.mark.parametrize("first_s", [0.0, 1.0, 5.0, 1e9])
def test_pauses_have_full_jitter_and_end_at_five_minutes(first_s: float) -> None:
    for failures in range(40):
        drawn = [pause_s(first_s, failures) for _ in range(20)]
        assert all(LEAST_DELAY_S <= each <= MOST_DELAY_S for each in drawn)
        assert len(set(drawn)) > 1 or first_s == 0.0
