"""The ways to the broker besides plain TCP: WebSocket, TLS, unix sockets with PROXY headers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.integration.mqtt.conftest import NewBroker
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.mqtt_bytes import V5, V311, connect, publish, subscribe
from tests.support.mqtt_peer import Peer
from tests.support.ports import free_port
from tests.support.websocket import close


@pytest.mark.parametrize(
    ("path", "headers"),
    [("/", {"Sec-WebSocket-Protocol": "mqtt"}), ("/any", {"Sec-WebSocket-Protocol": "MQTTv3.1"}),
     ("/mqtt", {}), ("/ws/mqtt", {})],
)  # fmt: skip
def test_websocket(mqtt: Broker, path: str, headers: dict[str, str]) -> None:
    """3.1.1 [MQTT-6.0.0-2], [MQTT-7.1.1-1], 5.0 [MQTT-6.0.0-2]: packets begin and end anywhere in
    binary frames."""

    async def talk() -> bytes:
        request = HTTPRequest(f"ws://{mqtt.host}:{mqtt.http_port}{path}", headers=headers)
        client = await websocket_connect(request)
        sent = connect(V311, "") + subscribe(V311, 1, ("ws", 0)) + publish(V311, "ws", b"hello")
        for at in range(0, len(sent), 7):
            await client.write_message(sent[at : at + 7], binary=True)
        found = b""
        while not found.endswith(b"hello"):
            message = await client.read_message()
            assert isinstance(message, bytes)
            found += message
        await close(client)
        return found

    found = asyncio.run(asyncio.wait_for(talk(), 15))
    assert found == b"\x20\2\0\0" + b"\x90\3\0\1\0" + publish(V311, "ws", b"hello")


def test_tls_and_certificates_as_users(own: NewBroker, tmp_path: Path) -> None:
    """A client without a name is who its verified certificate says; one with a password is not."""
    authority = Authority(tmp_path / "ca")
    server = authority.issue("server", ("localhost",))
    port = free_port()
    broker = own(
        f"[main]\ntls_cert = {server.cert}\ntls_key = {server.key}\n"
        f"tls_ca_cert = {authority.path}\ntls_verify_peer = true\n"
        f"[mqtt]\ntls_port = {port}\n[amqp]\ntls_port = -1\n",
        flags=("--mqtts-port", str(port), "--amqps-port", "-1"),
    )
    Api(broker).as_user("device", "", **{"/": ("", "", "")})
    identity = authority.issue("device")
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(identity.cert, identity.key)
    for options, code in (({}, 0), ({"user": "guest", "password": "wrong"}, 5)):
        sock = context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), 15), server_hostname="localhost"
        )
        with Peer(port, V311, sock) as client:
            assert client.connect("d", **({"user": None, "password": None} | options))[1] == code
    listening = Api(broker).get("/api/overview")["listeners"]
    assert {"mqtt", "mqtts"} <= {each["protocol"] for each in listening}


def test_a_unix_socket(own: NewBroker, tmp_path: Path) -> None:
    """With a PROXY header that says whose connection it is, and without."""
    path = tmp_path / "mqtt.sock"
    broker = own(f"[mqtt]\nunix_path = {path}\n")
    for header, peer in ((b"", "127.0.0.1"), (b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n", "1.2.3.4")):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(path))
        sock.sendall(header)
        with Peer(0, V5, sock) as client:
            user = Api(broker).as_user("far", "", **{"/": ("", "", "")})
            assert user
            assert client.connect("u", user="far", password="far-pw")[1] == 0
            rows = Api(broker).get("/api/connections")
            assert [each["peer_host"] for each in rows if each.get("client_id") == "u"] == [peer]
