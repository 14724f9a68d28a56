"""Plain sockets of many connections behind one descriptor of the loop, with peers of all kinds."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lavinmq.client.sockets import Sockets, SocketTransport

HIGH = 64 << 10
MANY = 200


class FakeLink:
    """Has what came, and how it ended."""

    def __init__(self, *, is_broken: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.got = bytearray()
        self.is_paused = False
        self.lost: list[Exception | None] = []
        self._is_broken = is_broken
        self._buffer = bytearray(1 << 16)

    def connection_made(self, transport: SocketTransport) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH)

    def get_buffer(self, _: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, n_bytes: int) -> None:
        if self._is_broken:
            raise RuntimeError("a bug")
        self.got += self._buffer[:n_bytes]

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


def joined(sockets: Sockets, *, is_broken: bool = False) -> tuple[FakeLink, socket.socket]:
    """A link, and the peer's end, which does not block."""
    link = FakeLink(is_broken=is_broken)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    sockets.add(link, ours)  # type: ignore[arg-type]  # as much of one as is needed
    return link, theirs


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def test_all_that_is_sent_arrives_in_order_at_one_who_reads_slowly() -> None:
    async def main() -> None:
        sockets = Sockets()
        link, theirs = joined(sockets)
        by_chance = random.Random(7)
        sent = bytearray()
        for _ in range(40):
            piece = by_chance.randbytes(by_chance.choice((1, 100, 50_000)))
            sent += piece
            link.transport.write(piece)
        assert link.is_paused
        link.transport.close()  # what is left goes out nevertheless
        got = bytearray()
        async with asyncio.timeout(30):
            while piece := await link.loop.sock_recv(theirs, 10_000):
                got += piece
        assert got == sent and not link.is_paused
        await until(lambda: link.lost == [None])
        assert len(sockets) == 0
        theirs.close()

    run(main)


def test_who_is_held_reads_nothing_and_asks_the_kernel_nothing() -> None:
    """Even when its peer has gone, of which the kernel would tell without end."""

    async def main() -> None:
        sockets = Sockets()
        link, theirs = joined(sockets)
        link.transport.pause_reading()
        theirs.send(b"later")
        theirs.close()
        before = time.process_time()
        await asyncio.sleep(0.2)
        assert time.process_time() - before < 0.1
        assert not link.got and not link.lost
        link.transport.resume_reading()
        await until(lambda: link.lost)
        assert link.got == b"later" and link.lost == [None]

    run(main)


def test_a_reset_is_an_end_that_has_a_cause() -> None:
    async def main() -> None:
        sockets = Sockets()
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
        link = FakeLink()
        sockets.add(link, ours)  # type: ignore[arg-type]
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        await until(lambda: link.lost)
        assert isinstance(link.lost[0], ConnectionResetError)
        link.transport.write(b"nobody")
        link.transport.abort()
        link.transport.close()
        await asyncio.sleep(0)
        assert len(link.lost) == 1 and link.transport.fileno() == -1

    run(main)


def test_who_writes_to_one_who_has_gone_hears_of_it_once_and_later() -> None:
    async def main() -> None:
        sockets = Sockets()
        link, theirs = joined(sockets)
        theirs.close()
        link.transport.write(b"x")
        link.transport.write(b"y")
        assert not link.lost and link.transport.is_closing()
        await until(lambda: link.lost)
        assert len(link.lost) == 1 and isinstance(link.lost[0], OSError)

    run(main)


def test_an_abort_ends_it_whatever_is_left() -> None:
    async def main() -> None:
        sockets = Sockets()
        link, theirs = joined(sockets)
        link.transport.write(bytes(4 << 20))
        link.transport.close()
        await asyncio.sleep(0.01)
        assert not link.lost
        link.transport.abort()
        assert not link.lost  # in another turn: who aborts is in the midst of something
        await until(lambda: link.lost == [None])
        theirs.close()

    run(main)


def test_one_that_fails_stops_no_other() -> None:
    async def main() -> None:
        sockets = Sockets()
        told: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        pairs = [joined(sockets, is_broken=n == 3) for n in range(8)]
        for _, theirs in pairs:
            theirs.send(b"x")
        await until(lambda: sum(bool(link.got) for link, _ in pairs) == 7)
        assert len(told) == 1 and isinstance(pairs[3][0].lost[0], RuntimeError)
        for link, theirs in pairs:
            link.transport.abort()
            theirs.close()
        await until(lambda: not len(sockets))

    run(main)


def test_descriptors_that_come_again_are_others() -> None:
    """What was told of a socket that is closed meanwhile means nothing for its follower."""

    async def main() -> None:
        sockets = Sockets()
        first = [joined(sockets) for _ in range(MANY)]
        for link, theirs in first:
            theirs.send(b"old")
            link.transport.abort()
        await until(lambda: not len(sockets))
        again = [joined(sockets) for _ in range(MANY)]
        for _, theirs in first:
            theirs.close()
        for n, (_, theirs) in enumerate(again):
            theirs.send(b"new %d" % n)
        await until(lambda: all(link.got for link, _ in again))
        assert [bytes(link.got) for link, _ in again] == [b"new %d" % n for n in range(MANY)]
        assert not any(link.lost for link, _ in again)
        for link, theirs in again:
            link.transport.abort()
            theirs.close()
        await until(lambda: not len(sockets))

    run(main)


@pytest.mark.parametrize("is_held", [False, True])
def test_no_descriptor_is_left(is_held: bool) -> None:
    async def main() -> None:
        sockets = Sockets()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            pairs = [joined(sockets) for _ in range(10)]
            for link, theirs in pairs:
                if is_held:
                    link.transport.pause_reading()
                theirs.close()
                link.transport.close()
            await until(lambda: not len(sockets))
        assert len(os.listdir("/proc/self/fd")) == before

    run(main)
