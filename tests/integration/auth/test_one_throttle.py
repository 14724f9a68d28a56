"""Guesses at a password count together, whatever way they come."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
from collections.abc import Callable
from urllib.parse import quote

from pamqp import commands, encode
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from lavinmq.auth.throttle import SOURCE
from tests.support.inside import Inside, inside
from tests.support.websocket import close
from tests.support.wire import PROTOCOL_HEADER, Wire
from tests.support.wire import encode as encoded

GUESS = base64.b64encode(b"u:guess").decode()


def by_amqp(broker: Inside, mechanism: str, response: str) -> None:
    with Wire(broker.port) as wire:
        wire.send_bytes(PROTOCOL_HEADER)
        wire.expect(commands.Connection.Start)
        wire.send(0, start_ok(mechanism, response))
        wire.expect_connection_close(403)


def start_ok(mechanism: str, response: str) -> commands.Connection.StartOk:
    announced = {"capabilities": {"authentication_failure_close": True}}
    return commands.Connection.StartOk(announced, mechanism, response, "en_US")


def amqplain() -> str:
    table = encode.field_table({"LOGIN": "u", "PASSWORD": "guess"})
    return table[4:].decode("latin1")


def by_http(broker: Inside, method: str, path: str, body: str = "", **headers: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", broker.server.http_port, timeout=20)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} | headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 401
    finally:
        connection.close()


def by_websocket(broker: Inside) -> None:
    async def run() -> None:
        url = f"ws://127.0.0.1:{broker.server.http_port}/"
        connection = await websocket_connect(HTTPRequest(url))
        data = PROTOCOL_HEADER + encoded(0, start_ok("PLAIN", "\0u\0guess"))
        await connection.write_message(data, binary=True)
        got = b""
        while b"ACCESS_REFUSED" not in got:
            message = await connection.read_message()
            assert isinstance(message, bytes), got
            got += message
        await close(connection)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_every_way_to_log_in_counts_for_the_same_wait() -> None:
    form = json.dumps({"username": "u", "password": "guess"})
    ways: list[Callable[[Inside], None]] = [
        lambda broker: by_amqp(broker, "PLAIN", "\0u\0guess"),
        lambda broker: by_amqp(broker, "AMQPLAIN", amqplain()),
        lambda broker: by_http(broker, "GET", "/api/whoami", Authorization=f"Basic {GUESS}"),
        lambda broker: by_http(broker, "GET", "/api/whoami", Cookie=f"m=|:{quote(GUESS, safe='')}"),
        lambda broker: by_http(broker, "POST", "/session", form),
        by_websocket,
    ]
    assert len(ways) > SOURCE.free
    with inside(mgmt_port=0) as broker:
        broker.add_user("u", rights=(".*", ".*", ".*"))
        throttle = broker.inner.chain._throttle
        for number, way in enumerate(ways, 1):
            way(broker)
            wait_s = broker.call(throttle.wait_s, "u", "127.0.0.1", True)
            assert wait_s == SOURCE.wait_s(number), f"guess {number} did not count"
    assert wait_s > 0
