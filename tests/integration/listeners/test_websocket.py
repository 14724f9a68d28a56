"""AMQP over WebSocket, as browsers speak it, by the WebSocket client of Tornado."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.support.broker import Broker
from tests.support.websocket import close

HEADER = b"AMQP\x00\x00\x09\x01"


async def connect(broker: Broker, path: str = "/", **headers: str) -> WebSocketClientConnection:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = HTTPRequest(f"ws://{broker.host}:{broker.http_port}{path}", headers=named)
    return await websocket_connect(request)


class Bridge:
    """Gives an ordinary client a port that ends in a WebSocket, cut into messages of any size."""

    def __init__(self, broker: Broker, size: int) -> None:
        self._broker, self._size = broker, size
        self.bytes_back = 0
        self._done = asyncio.Event()

    async def __aenter__(self) -> Bridge:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._done.wait()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = await connect(self._broker, "/any/path", Sec_WebSocket_Protocol="amqp")

        async def back() -> None:
            while (message := await connection.read_message()) is not None:
                assert isinstance(message, bytes)
                self.bytes_back += len(message)
                writer.write(message)
                await writer.drain()

        task = asyncio.create_task(back())
        while data := await reader.read(self._size):
            await connection.write_message(data, binary=True)
        connection.close()
        await task
        writer.close()
        await writer.wait_closed()
        self._done.set()


def upgrade(broker: Broker, headers: str) -> tuple[int, bytes]:
    """Ask for a WebSocket with these headers; return the status and the beginning of the answer."""
    request = (
        "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"{headers}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection((broker.host, broker.http_port), timeout=10) as connection:
        connection.sendall(request.encode())
        answer = connection.recv(4096)
    return int(answer.split()[1]), answer


@pytest.mark.parametrize("size", [7, 65536])
def test_a_client_publishes_and_reads_by_a_websocket(broker: Broker, size: int) -> None:
    body = bytes(range(256)) * (16 if size == 7 else 4096)

    def client(port: int) -> list[bytes]:
        uri = broker.uri.replace(f":{broker.port}/", f":{port}/")
        with Client(uri) as client:
            channel = client.channel()
            queue = channel.queue_declare("", exclusive=True).name
            for _ in range(3):
                channel.basic_publish("", queue, body)
            bodies = []
            while len(bodies) < 3:
                message = channel.basic_get(queue)
                if message is not None:
                    bodies.append(message.body)
            return bodies

    async def run() -> tuple[list[bytes], int]:
        async with Bridge(broker, size) as bridge:
            return await asyncio.to_thread(client, bridge.port), bridge.bytes_back

    bodies, back = asyncio.run(asyncio.wait_for(run(), 60))
    assert bodies == [body] * 3
    assert back > 3 * len(body)


@pytest.mark.parametrize(
    ("offered", "echoed"), [("amqp", "amqp"), ("x, AMQP0.9.1, amqp", "AMQP0.9.1"), ("", None)]
)
def test_the_first_protocol_it_speaks_is_chosen(
    broker: Broker, offered: str, echoed: str | None
) -> None:
    async def run() -> str | None:
        headers = {"Sec_WebSocket_Protocol": offered} if offered else {}
        connection = await connect(broker, **headers)
        chosen = connection.headers.get("Sec-WebSocket-Protocol")
        await close(connection)
        return chosen

    assert asyncio.run(run()) == echoed


def test_text_is_ignored_and_a_close_ends_the_connection(broker: Broker) -> None:
    async def run() -> bytes:
        connection = await connect(broker)
        await connection.write_message("AMQP?")
        await connection.write_message(HEADER, binary=True)
        start = await connection.read_message()
        assert isinstance(start, bytes)
        await connection.write_message(b"nonsense" * 10, binary=True)
        while (message := await connection.read_message()) is not None:
            start += message if isinstance(message, bytes) else b""
        connection.close()
        return start

    assert asyncio.run(asyncio.wait_for(run(), 30))[:1] == b"\x01"


@pytest.mark.parametrize(("version", "status"), [("Sec-WebSocket-Version: 12\r\n", 426), ("", 426)])
def test_another_version_is_refused(broker: Broker, version: str, status: int) -> None:
    found, answer = upgrade(broker, version)

    assert found == status
    assert b"Sec-Websocket-Version: 13" in answer


def test_only_listed_origins_may_connect(broker_factory: BrokerFactory) -> None:
    config = broker_factory(start=False).data_dir.with_name("origins.ini")
    config.write_text("[mgmt]\nwebsocket_allowed_origins = https://a.example\n")
    broker = broker_factory(["-c", str(config)], http=True)

    # Without Tornado's client, which leaves a refused connection unclosed.
    assert upgrade(broker, "Origin: https://a.example\r\nSec-WebSocket-Version: 13\r\n")[0] == 101
    assert upgrade(broker, "Origin: https://b.example\r\nSec-WebSocket-Version: 13\r\n")[0] == 403


# --- frames that no client library sends ------------------------------------------------------


def frame(opcode: int, data: bytes, *, is_last: bool = True, rsv: int = 0, size: int = -1) -> bytes:
    """A frame of a client, its mask all zeros; `size`: what it claims, as a long length."""
    length = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack(">BH", 254, len(data))
    if size >= 0:
        length = struct.pack(">BQ", 255, size)
    return bytes([is_last << 7 | rsv << 4 | opcode]) + length + bytes(4) + data


def raw(broker: Broker) -> socket.socket:
    """A WebSocket of which nothing has been read but the head."""
    connection = socket.create_connection((broker.host, broker.http_port), timeout=10)
    connection.sendall(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    assert b" 101 " in head
    return connection


@pytest.mark.parametrize(
    "bad",
    [
        frame(2, HEADER, rsv=4),
        frame(3, HEADER),
        frame(0, HEADER),
        frame(2, HEADER, is_last=False) + frame(2, HEADER),
        frame(9, b"x", is_last=False),
        frame(9, b"x" * 126),
        frame(1, b"\xff"),
        frame(2, HEADER, size=8 << 20),
        frame(2, HEADER, size=1 << 63),
    ],
    ids=[
        "reserved bit", "unknown kind", "nothing to go on with", "two begun", "a ping in pieces",
        "a long ping", "no text", "too long", "much too long",
    ],
)  # fmt: skip
def test_a_frame_that_cannot_be_ends_the_websocket(broker: Broker, bad: bytes) -> None:
    with raw(broker) as connection:
        connection.sendall(bad + frame(2, HEADER))
        answer = b""
        while data := connection.recv(4096):
            answer += data

    assert b"product" not in answer, "what came behind it was listened to"


def test_frames_of_one_byte_with_pings_between_them_are_one_stream(broker: Broker) -> None:
    last = len(HEADER) - 1
    with raw(broker) as connection:
        for at in range(len(HEADER)):
            kind = 0 if at else 2
            piece = frame(kind, HEADER[at : at + 1], is_last=at == last)
            connection.sendall(piece + frame(9, b"?"))
        answer = b""
        while b"product" not in answer:
            data = connection.recv(4096)
            assert data, answer
            answer += data

    assert answer.startswith(frame(10, b"?").replace(b"\x81\0\0\0\0", b"\x01"))
