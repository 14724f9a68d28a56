"""The management interface over TLS: certificates, what is announced, WebSockets, systemd."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.certificates import Authority, Identity
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for
from tests.support.websocket import close

LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
HEADER = b"AMQP\x00\x00\x09\x01"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.issue("server", ("localhost", HOST))


@pytest.fixture(scope="module")
def https_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(
    identity: Identity, https_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    arguments = [
        "--cert", str(identity.cert), "--key", str(identity.key),
        "--https-port", str(https_port), "--amqps-port", "-1",
    ]  # fmt: skip
    started = Broker(tmp_path_factory.mktemp("https") / "data", arguments, http=True)
    try:
        yield started.start()
    finally:
        started.close()


@pytest.fixture(scope="module")
def mutual_port(
    authority: Authority, identity: Identity, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a broker that verifies its clients."""
    directory, port = tmp_path_factory.mktemp("mutual"), free_port()
    crl = authority.revoke(authority.issue("bad"))
    config = directory / "tls.ini"
    config.write_text(
        f"[main]\ntls_cert = {identity.cert}\ntls_key = {identity.key}\n"
        f"tls_verify_peer = true\ntls_ca_cert = {authority.path}\ntls_crl = {crl}\n"
    )
    arguments = ["-c", str(config), "--https-port", str(port), "--amqps-port", "-1"]
    started = Broker(directory / "data", arguments, http=True)
    try:
        started.start()
        yield port
    finally:
        started.close()


def ask(port: int, context: ssl.SSLContext, path: str, host: str = "localhost") -> tuple[Any, Any]:
    """The headers and the JSON of an answer."""
    raw = socket.create_connection((HOST, port), 20)
    connection = http.client.HTTPConnection(HOST, port)
    connection.sock = context.wrap_socket(raw, server_hostname=host)
    try:
        connection.request("GET", path, headers=LOGIN)
        answer = connection.getresponse()
        return answer.headers, json.loads(answer.read())
    finally:
        connection.close()


def test_requests_are_answered_and_browsers_told_to_stay_with_tls(
    broker: Broker, https_port: int, authority: Authority
) -> None:
    headers, user = ask(https_port, authority.client_context(), "/api/whoami")

    assert user["name"] == "guest"
    assert headers["Strict-Transport-Security"] == "max-age=31536000"
    assert "strict-transport-security" not in Api(broker)("GET", "/api/whoami").headers


def test_another_host_is_not_what_the_certificate_says(
    broker: Broker, https_port: int, authority: Authority
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(https_port, authority.client_context(), "/api/whoami", "elsewhere.example")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_tls_and_plain_requests_are_refused(
    broker: Broker, https_port: int, authority: Authority
) -> None:
    old = authority.client_context()
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        ask(https_port, old, "/api/whoami")
    with socket.create_connection((HOST, https_port), 20) as plain:
        plain.sendall(b"GET /api/whoami HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not plain.recv(4096).startswith(b"HTTP")


def test_it_is_listed_as_https(broker: Broker, https_port: int) -> None:
    listeners = Api(broker).get("/api/overview")["listeners"]

    assert [each["protocol"] for each in listeners if each.get("port") == https_port] == ["https"]
    assert [each["tls"] for each in listeners if each.get("port") == https_port] == [True]


def test_many_requests_on_one_connection_and_a_long_answer(
    broker: Broker, https_port: int, authority: Authority
) -> None:
    raw = socket.create_connection((HOST, https_port), 20)
    connection = http.client.HTTPConnection(HOST, https_port)
    connection.sock = authority.client_context().wrap_socket(raw, server_hostname="localhost")
    sizes = set()
    for _ in range(5):
        connection.request("GET", "/docs/openapi.json")
        sizes.add(len(connection.getresponse().read()))
    connection.close()

    assert len(sizes) == 1
    assert sizes.pop() > 50_000


def test_a_websocket_over_tls_is_a_connection_with_tls(
    broker: Broker, https_port: int, authority: Authority
) -> None:
    async def run() -> dict[str, Any]:
        request = HTTPRequest(
            f"wss://localhost:{https_port}/", ssl_options=authority.client_context()
        )
        connection = await websocket_connect(request)
        await connection.write_message(HEADER, binary=True)
        start = await connection.read_message()
        assert isinstance(start, bytes)
        found = await asyncio.to_thread(metrics)
        await close(connection)
        return found

    def metrics() -> dict[str, Any]:
        node: dict[str, Any] = Api(broker).get("/api/nodes")[0]
        return node

    assert asyncio.run(asyncio.wait_for(run(), 30))["sockets_used"] >= 2


def test_a_new_certificate_is_shown_after_a_reload(
    authority: Authority, broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    first, second = authority.issue("first"), authority.issue("second", ("other.example",))
    config = tmp_path / "tls.ini"
    port = free_port()

    def configure(identity: Identity) -> None:
        config.write_text(f"[main]\ntls_cert = {identity.cert}\ntls_key = {identity.key}\n")

    configure(first)
    own = broker_factory(
        ["-c", str(config), "--https-port", str(port), "--amqps-port", "-1"], http=True
    )
    context = authority.client_context()
    context.check_hostname = False

    def shown() -> Any:
        raw = socket.create_connection((HOST, port), 20)
        with context.wrap_socket(raw) as sock:
            return sock.getpeercert()

    before = shown()
    configure(second)
    os.kill(own.pid, signal.SIGHUP)

    wait_for(lambda: shown() != before, "the new certificate")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_nobody_without_a_good_certificate_is_let_in(
    mutual_port: int, authority: Authority, tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    """None, a revoked one, and one of somebody else are refused before any request is read."""
    identities = {
        "none": None,
        "revoked": Identity(authority.directory / "bad.pem", authority.directory / "bad.key", 0),
        "stranger": Authority(tmp_path / "stranger").issue("good"),
    }

    good = authority.client_context(authority.issue("good"))
    good.maximum_version = newest
    assert ask(mutual_port, good, "/api/whoami")[1]["name"] == "guest"
    for identity in identities.values():
        context = authority.client_context(identity)
        context.maximum_version = newest
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(mutual_port, context, "/api/whoami")
