"""How far a stream is on disk, for endpoints by which readers plan.

What is not on disk may be another message after a loss of power: no answer names its offset. Those
who ask about one stream wait a little until all that it has is there; the loop never waits. Called
by the endpoints of queues, messages and streams. Source: docs/streams.md, decision 0036.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from lavinmq import _core

PATIENCE_S: Final = 5.0
"""A disk that takes longer: the answer ends where it is, and the next one further on."""


async def all_synced(core: _core.Queue) -> int:
    """Have the disk catch up with a stream. Returns: the offset behind what is there."""
    events = asyncio.get_running_loop()
    deadline = events.time() + PATIENCE_S
    wanted = core.next_offset
    # An error to open a file leaves the answer short, as a slow disk does.
    with suppress(OSError, TimeoutError):
        while core.synced[0] < wanted:
            done = asyncio.Event()
            if not core.ask_sync(done.set):
                break
            async with asyncio.timeout_at(deadline):
                await done.wait()
    return core.synced[0]


def synced_now(core: _core.Queue) -> int:
    """The offset behind what is on disk now; who asks again finds more."""
    end = core.synced[0]
    if end < core.next_offset:
        with suppress(OSError):
            core.ask_sync(_nothing)
    return end


def _nothing() -> None:
    """Called when a sync is over that nobody waits for."""
