"""An etcd that says what a test wants: nonsense, half of an answer, nothing, or the truth.

It runs on the loop of the test. `answers` has an answer by call (`kv/range`), or a list of them,
the last of which is given from then on: bytes are sent as they are, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple

CLUSTER = 0xDEADBEEFDEADBEEF
HEADER = {"cluster_id": str(CLUSTER), "member_id": "7", "revision": "9", "raft_term": "2"}
DEADLINE_S = 10.0


class Asked(NamedTuple):
    """One request."""

    path: str
    fields: dict[str, Any]
    headers: dict[str, str]


class Line:
    """The server's end of a connection on which a request has been read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed it."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        """End it the hard way."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger
        )
        self._writer.transport.abort()


Answer = bytes | Callable[[Line], Awaitable[None]]


def coded(value: str | bytes) -> str:
    """Base64, as etcd has keys and values."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def says(fields: object, status: int = 200) -> bytes:
    """A whole answer."""
    return http(json.dumps(fields).encode(), status)


def http(body: bytes, status: int = 200) -> bytes:
    """A whole answer that may be no JSON."""
    return b"HTTP/1.1 %d It\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


def truth(**fields: object) -> bytes:
    """An answer with the header that etcd's have."""
    return says({"header": HEADER} | fields)


def refusal(text: str, code: int, status: int) -> bytes:
    """As etcd refuses: in a chunk, and with a trailer."""
    body = json.dumps({"error": text, "message": text, "code": code}).encode()
    return (
        b"HTTP/1.1 %d No\r\nTrailer: Grpc-Trailer-Content-Type\r\nTransfer-Encoding: chunked\r\n"
        b"\r\n%x\r\n%s\r\n0\r\nGrpc-Trailer-Content-Type: application/grpc\r\n\r\n"
    ) % (status, len(body), body)


def result(**fields: object) -> bytes:
    """A line of a stream, as a chunk."""
    return chunk(json.dumps({"result": {"header": HEADER} | fields}).encode() + b"\n")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CREATED = STREAM + result(created=True)
END = b"0\r\n\r\n"


async def silence(line: Line) -> None:
    """Take the request and say nothing."""
    await line.gone()


async def reset(line: Line) -> None:
    """Take the request and be gone."""
    line.reset()


def sends(*pieces: bytes, then: Callable[[Line], Awaitable[None]] = silence) -> Answer:
    """Sends pieces, and does something else then."""

    async def answer(line: Line) -> None:
        for piece in pieces:
            await line.send(piece)
        await then(line)

    return answer


class LyingEtcd:
    """Use it as a context manager; `stop` refuses connections from then on."""

    def __init__(self, answers: dict[str, Answer | list[Answer]] | None = None,
                 tls: ssl.SSLContext | None = None) -> None:  # fmt: skip
        self.answers = answers or {}
        self.asked: list[Asked] = []
        self.port = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def paths(self) -> list[str]:
        """What it was asked."""
        return [each.path for each in self.asked]

    @property
    def connections(self) -> int:
        """Those that are open."""
        return len(self._tasks)

    async def __aenter__(self) -> LyingEtcd:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.stop()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    async def until_gone(self) -> None:
        """Wait until no connection is left."""
        async with asyncio.timeout(DEADLINE_S):
            while self._tasks:
                await asyncio.sleep(0.01)

    async def until_asked(self, path: str) -> None:
        """Wait until it has been asked that."""
        async with asyncio.timeout(DEADLINE_S):
            while path not in self.paths:
                await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in head[1:] if line)
        }
        body = await reader.readexactly(int(headers["content-length"]))
        path = head[0].split()[1].removeprefix("/v3/")
        self.asked.append(Asked(path, json.loads(body), headers))
        answer = self.answers[path]
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
        else:
            await answer(Line(reader, writer))
