"""What is long and goes in steps."""

from __future__ import annotations

from collections import deque

import pytest

from lavinmq.process.portions import emptied


@pytest.mark.parametrize(
    "several",
    [[1, 2, 3], {1, 2, 3}, deque([1, 2, 3]), {1: "a", 2: "b", 3: "c"}],
    ids=["list", "set", "deque", "dict"],
)
def test_things_are_let_go_one_in_each_step(
    several: list[int] | set[int] | deque[int] | dict[int, str],
) -> None:
    more = [4]

    left = [len(several) + len(more) for _ in emptied(several, more)]

    assert left == [3, 2, 1, 0]
