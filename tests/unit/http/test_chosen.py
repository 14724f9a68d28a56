"""Chosen messages are counted as what became of them, also when a right goes in the midst."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq import _core
from lavinmq.http.api import chosen

N = 3


class Picked:
    """Stands for `_core.Chosen`: each message takes two turns. Args: on_turn: is told of each."""

    def __init__(self, on_turn: Callable[[int], None]) -> None:
        self.turns = 0
        self._on_turn = on_turn

    def settle(self, *_: int) -> int:
        self.turns += 1
        self._on_turn(self.turns)
        return _core.SETTLED_DONE if self.turns % 2 == 0 else _core.SETTLED_LATER

    def rest(self) -> None:
        """Nothing is held."""


def carried_out(*, lost_in_turn: int) -> dict[str, int]:
    """What is answered about some messages when the caller loses his right in that turn."""
    may = True

    def turn(number: int) -> None:
        nonlocal may
        may = number != lost_in_turn and may

    loop = SimpleNamespace(is_held=False, after_sync=lambda done: done())
    call: Any = SimpleNamespace(is_allowed_still=lambda: may, broker=SimpleNamespace(loop=loop))
    queue: Any = SimpleNamespace(name="q", is_stream=False)
    picked: Any = Picked(turn)
    ids: list[chosen.Id] = [(0, 1, position, 0) for position in range(N)]
    return asyncio.run(chosen._settled(call, queue, picked, ids, "moved"))


@pytest.mark.parametrize(
    ("turn", "done"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (6, 3), (99, 3)]
)
def test_what_is_not_done_when_a_right_is_lost_is_refused(turn: int, done: int) -> None:
    assert carried_out(lost_in_turn=turn) == {"moved": done, "gone": 0, "refused": N - done}
