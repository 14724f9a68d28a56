"""What an operator is told before a node goes on without those that are lost."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lavinmq.cluster.coordinator import State
from lavinmq.cluster.recovery import Recovery


async def nothing() -> int:
    """Etcd has nothing new."""
    return 1


def loss(*, is_in_sync: bool, n_damaged: int) -> tuple[int, str]:
    """How many files are damaged, and what may be lost."""
    in_sync = ("a", "me") if is_in_sync else ("a", "b")
    state = State(in_sync=in_sync, members=("a", "b", "me"), epoch=7, epoch_leader="a")
    coordinator: Any = SimpleNamespace(
        look=nothing, state=state, me="me", left_over=lambda: {"me"}, seen=lambda: (1, 2, 3)
    )
    found = Recovery(cast("Any", coordinator), 0, lambda: (True, 7, 100), lambda: n_damaged)
    report = asyncio.run(found.report())
    return report["damaged_files"], report["loss"]


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_damage_of_the_node_that_is_to_lead_is_told_of(*, is_in_sync: bool) -> None:
    n_good, good = loss(is_in_sync=is_in_sync, n_damaged=0)
    n_bad, bad = loss(is_in_sync=is_in_sync, n_damaged=3)

    assert (n_good, n_bad) == (0, 3)
    assert "damaged" not in good
    assert "what is damaged in 3 files of this node" in bad
    assert bad.endswith(good)
