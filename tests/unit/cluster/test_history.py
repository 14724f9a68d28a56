"""Whether what a follower has is a beginning of what a leader has."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.cluster.frames import PeerError
from lavinmq.cluster.history import MOST, History


@pytest.mark.parametrize(
    ("epoch", "position", "has"),
    [
        (1, 0, True), (1, 100, True), (1, 101, False),
        (2, 100, True), (2, 250, True), (2, 251, False),
        (4, 250, True), (4, 300, True), (4, 301, False),
        (3, 100, False), (5, 0, False), (0, 0, False),
    ],
)  # fmt: skip
def test_what_somebody_has_of_an_epoch_is_ours_up_to_the_next_one(
    epoch: int, position: int, has: bool
) -> None:
    history = History([(1, 0), (2, 100), (4, 250)])

    assert history.has(epoch, position, head=300) is has


def test_without_epochs_nobody_has_anything() -> None:
    assert History().epoch == 0
    assert not History().has(0, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1000)), min_size=1))
def test_it_comes_back_as_it_was_sent(steps: list[tuple[int, int]]) -> None:
    history, epoch, position = History(), 0, 0
    for more, further in steps:
        epoch, position = epoch + more, position + further
        history.begin(epoch, position)

    assert History.of_json(history.to_json()).epochs == history.epochs
    assert history.epoch == epoch


def test_epochs_that_began_behind_a_new_ones_beginning_are_not_ours() -> None:
    history = History([(1, 0), (2, 200)])
    history.begin(3, 100)

    assert History.of_json(history.to_json()).epochs == [(1, 0), (3, 100)]
    assert not history.has(1, 180, head=300)


@pytest.mark.parametrize(
    ("position", "epoch"), [(0, 1), (1, 1), (100, 1), (101, 2), (250, 2), (251, 4), (9999, 4)]
)
def test_the_epoch_of_a_position_is_that_of_what_is_before_it(position: int, epoch: int) -> None:
    assert History([(1, 0), (2, 100), (4, 250)]).at(position) == epoch
    assert History().at(position) == 0


def test_it_does_not_grow_for_ever() -> None:
    history = History()
    for epoch in range(1, 3 * MOST):
        history.begin(epoch, epoch)

    assert History.of_json(history.to_json()).epoch == 3 * MOST - 1


@pytest.mark.parametrize(
    "value",
    [None, 1, "x", [1], [[1]], [[1, 2, 3]], [[1, -1]], [[-1, 1]], [[2, 0], [1, 0]],
     [[1, 5], [2, 4]], [[1, 0]] * 2, [["1", 0]], [[1, 0]] + [[n, n] for n in range(2, MOST + 3)]],
    ids=range(13),
)  # fmt: skip
def test_what_is_none_is_refused(value: Any) -> None:
    with pytest.raises(PeerError, match="no history of epochs"):
        History.of_json(value)
