"""A connection of the client that is closed: when that is done its socket is closed, too."""

from __future__ import annotations

import asyncio

from lavinmq.client.config import Config
from lavinmq.client.link import Link
from lavinmq.client.url import parse_url


class Slow(asyncio.Transport):
    """A transport whose end is a matter of both sides, as that of TLS is."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self.link = link
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is written."""

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        """The other side answers later, if it does."""

    def abort(self) -> None:
        self.is_aborted = True
        self.link.connection_lost(None)


async def closing() -> tuple[Link, Slow, asyncio.Task[None]]:
    """A connection that is being closed."""
    link = Link(Config(), parse_url("amqps://localhost"), asyncio.get_running_loop())
    transport = Slow(link)
    link.connection_made(transport)
    task = asyncio.create_task(link.close())
    while link.lost is None:
        await asyncio.sleep(0)
    for _ in range(9):
        await asyncio.sleep(0)
    return link, transport, task


def test_it_is_closed_when_both_sides_have_said_goodbye() -> None:
    """It was before, and who ended the loop then left the socket open."""

    async def run() -> tuple[bool, bool]:
        link, transport, task = await closing()
        was_done = task.done()
        link.connection_lost(None)
        await task
        return was_done, transport.is_aborted

    assert asyncio.run(run()) == (False, False)


def test_a_peer_that_does_not_answer_is_cut_off() -> None:
    async def run() -> bool:
        _, transport, task = await closing()
        await task
        return transport.is_aborted

    assert asyncio.run(run())
