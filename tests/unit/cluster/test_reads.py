"""Readers of a follower have gone when that is said, whoever else is about to send them away."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.cluster.reads import Reads
from lavinmq.config.values import defaults


class Served:
    """Who serves readers, and takes some time to end."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.n_resets = 0

    async def close(self, why: str) -> None:
        try:
            await asyncio.sleep(0.05)
        finally:
            self.ended.append(why)


def reads() -> tuple[Any, Served]:
    """Of a node that does not follow any more."""
    ring: Any = SimpleNamespace(n_resets=0)
    made: Any = Reads(
        defaults(), asyncio.get_running_loop(), ring, lambda: None, lambda: "n1 leads"
    )
    made._served = served = Served()
    return made, served


@pytest.mark.parametrize("is_told_first", [True, False])
def test_readers_have_gone_before_a_node_leads(is_told_first: bool) -> None:
    """Who sends them away after the other waits for it, too."""

    async def main() -> None:
        made, served = reads()
        if is_told_first:
            first = asyncio.create_task(made._shut("a disk"))
        else:
            made._heard_at = -100.0
            first = asyncio.create_task(made.run())
        await asyncio.sleep(0.01)
        assert not served.ended
        async with asyncio.timeout(10):
            await made.close("it leads")
        assert len(served.ended) == 1
        await first

    asyncio.run(main())
