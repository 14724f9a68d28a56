"""Streams of HTTP share each turn of the loop with all others, however much is there to be read."""

from __future__ import annotations

import asyncio
import socket
from itertools import count

from lavinmq.config.values import from_keywords
from lavinmq.http.heads import PlainStream
from lavinmq.process.portions import PORTION_S, SharedPortion

READS = 200
STREAMS = 3


def test_many_short_reads_of_many_streams_leave_turns_to_others() -> None:
    """By a clock that goes on with each look at it, so that five reads make a portion."""
    ticks, config = count(), from_keywords({})

    async def run() -> int:
        loop = asyncio.get_running_loop()
        turns = SharedPortion(loop.call_soon, lambda: next(ticks) * PORTION_S / 5)
        others = 0

        def other() -> None:
            nonlocal others
            others += 1
            loop.call_soon(other)

        async def read(end: socket.socket) -> bytes:
            stream = PlainStream(end, config, turns, None)
            try:
                return b"".join([await stream.read_bytes(1) for _ in range(READS)])
            finally:
                stream.close()

        pairs = [socket.socketpair() for _ in range(STREAMS)]
        sent = bytes(range(READS))
        for _, theirs in pairs:
            theirs.sendall(sent)
        other()
        got = await asyncio.gather(*(read(ours) for ours, _ in pairs))
        for _, theirs in pairs:
            theirs.close()
        assert got == [sent] * STREAMS
        return others

    others = asyncio.run(asyncio.wait_for(run(), 20))

    assert others >= READS // 5, "who waits for one turn after another would wait for long"


def test_a_turn_that_was_not_used_is_not_kept() -> None:
    """The portion begins with the first read of a turn, whenever that is."""
    soon: list[object] = []
    now = [0.0]
    turns = SharedPortion(soon.append, lambda: now[0])

    assert not turns.is_over()
    now[0] += 2 * PORTION_S
    assert turns.is_over()
    (end,) = soon
    assert callable(end)
    end()
    assert not turns.is_over()
