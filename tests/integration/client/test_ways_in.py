"""Ways to a broker (TLS, EXTERNAL, unix sockets, WebSocket), and peers at their end that lie."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lavinmq.client import Client, ClientConnectionError, ConfigError, ConnectionState, Error
from lavinmq.client.errors import AuthenticationError, ProtocolViolation
from tests.support.broker import Broker
from tests.support.certificates import Authority, Identity
from tests.support.client_frames import frame, method
from tests.support.inside import Inside, inside
from tests.support.ports import HOST
from tests.support.waiting import wait_for

DEADLINE_S = 120.0
QUICK = "reconnect_initial_delay=0.02&reconnect_max_delay=0.1&health_interval=0.1"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("client-ca"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Identity:
    return authority.issue("server", ("localhost", HOST))


@pytest.fixture(scope="module")
def tls_broker(authority: Authority, server: Identity) -> Iterator[Inside]:
    """A broker that lets nobody in without a certificate."""
    with inside(
        tls_cert=server.cert, tls_key=server.key, tls_verify_peer=True, tls_ca_cert=authority.path
    ) as made:
        made.add_user("carol", rights=(".*", ".*", ".*"))
        yield made


def there_and_back(client: Client) -> None:
    """Publish a message and fetch it."""
    body = bytes(300_000)
    client.producer("ways-in").publish(body).result(10)
    message = client.get("ways-in")
    assert message is not None and message.body == body
    client.delete_queue("ways-in")


def test_tls_with_a_certificate_and_a_password(tls_broker: Inside, authority: Authority) -> None:
    who = authority.issue("anyone")
    url = f"amqps://guest:guest@localhost:{tls_broker.server.tls_port}/"
    with Client(
        url, cacertfile=str(authority.path), certfile=str(who.cert), keyfile=str(who.key)
    ) as client:
        there_and_back(client)


def test_a_client_that_is_closed_leaves_no_socket_open(
    tls_broker: Inside, authority: Authority
) -> None:
    """Both sides of TLS say goodbye: the loop of the client ended before they had."""
    who = authority.issue("tidy")
    gc.collect()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            with Client(
                f"amqps://guest:guest@localhost:{tls_broker.server.tls_port}/",
                cacertfile=str(authority.path), certfile=str(who.cert), keyfile=str(who.key),
            ) as client:  # fmt: skip
                there_and_back(client)
            del client
        gc.collect()

    assert [str(each.message) for each in said if each.category is ResourceWarning] == []


def test_external_takes_the_certificate_for_the_user(
    tls_broker: Inside, authority: Authority
) -> None:
    who = authority.issue("carol")
    url = f"amqps://localhost:{tls_broker.server.tls_port}/?auth=external"
    options = {"cacertfile": str(authority.path), "certfile": str(who.cert)}
    with Client(url, keyfile=str(who.key), **options) as client:
        there_and_back(client)


def test_a_certificate_of_a_stranger_is_not_trusted(tls_broker: Inside) -> None:
    client = Client(f"amqps://localhost:{tls_broker.server.tls_port}/", fail_fast=False)
    client.start()
    wait_for(lambda: client.state is ConnectionState.CLOSED, "given up", 20)

    assert "certificate" in str(client.last_error).lower()
    client.close()


def test_a_file_that_is_missing_is_said(tls_broker: Inside) -> None:
    url = f"amqps://localhost:{tls_broker.server.tls_port}/"
    with pytest.raises(ConfigError, match="cacertfile"):
        Client(url, cacertfile="/no/such/file").start()


def test_external_is_refused_when_it_is_not_offered(broker: Broker) -> None:
    with pytest.raises(AuthenticationError, match="EXTERNAL"):
        Client(f"amqp://{broker.host}:{broker.port}/", auth="external").start()


def test_amqplain_and_tokens_are_ways_to_log_in(broker: Broker) -> None:
    with Client(broker.uri, auth="amqplain") as client:
        there_and_back(client)
    with Client(f"amqp://guest:none@{broker.host}:{broker.port}/", auth="token",
                token=lambda: "guest") as client:  # fmt: skip
        there_and_back(client)


def test_a_unix_socket() -> None:
    with tempfile.TemporaryDirectory() as directory:  # short: a path has 107 bytes
        path = f"{directory}/amqp.sock"
        with inside(amqp_unix_path=path, amqp_port=-1), Client(f"unix://{path}") as client:
            there_and_back(client)


def test_a_websocket(broker: Broker) -> None:
    with Client(f"ws://guest:guest@{broker.host}:{broker.http_port}/any/path") as client:
        there_and_back(client)
        with client.consumer("ways-in") as consumer:
            client.producer("ways-in").publish_batch([b"x" * 100] * 2000).result(20)
            for _ in range(2000):
                message = consumer.get(5)
                assert message is not None and message.ack()
        client.delete_queue("ways-in")


def test_no_websocket_where_there_is_none(broker: Broker) -> None:
    with pytest.raises((ClientConnectionError, ProtocolViolation)):
        Client(f"ws://{broker.host}:{broker.port}/", connect_timeout=2).start()


def test_a_virtual_host_that_is_not_there(broker: Broker) -> None:
    with pytest.raises((AuthenticationError, ClientConnectionError), match=r"no-such|530|403|404"):
        Client(f"amqp://guest:guest@{broker.host}:{broker.port}/no-such").start()


# ---- liars

Play = Callable[[socket.socket], None]


class Liar:
    """Listens, and plays a part on each connection."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.listener = socket.create_server((HOST, 0))
        self.url = f"amqp://{HOST}:{self.listener.getsockname()[1]}/?{QUICK}"
        self.connections = 0
        self._parts: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            sock.settimeout(5)
            self._parts.append(threading.Thread(target=self._one, args=(sock,), daemon=True))
            self._parts[-1].start()

    def _one(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            self._play(sock)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in (self._thread, *self._parts):
            each.join(10)
            assert not each.is_alive(), "a thread of the test goes on"


START = method(0, "connection.start", 0, 9, {"product": "liar"}, b"PLAIN", b"en_US")


def shake_hands(sock: socket.socket, tune: tuple[int, int, int] = (0, 131072, 0)) -> None:
    """The part of an honest broker, up to open-ok."""
    sock.recv(8)
    sock.sendall(START)
    sock.recv(4096)
    sock.sendall(method(0, "connection.tune", *tune))
    data = b""
    while b"\x00\x0a\x00\x28" not in data:
        more = sock.recv(4096)
        if not more:
            raise ConnectionError("the client has gone")  # and no loop that never ends
        data += more
    sock.sendall(method(0, "connection.open-ok", ""))


def then(data: bytes) -> Play:
    """Shake hands, say something, and listen on."""

    def play(sock: socket.socket) -> None:
        shake_hands(sock)
        sock.sendall(data)
        while sock.recv(4096):
            pass

    return play


def garbage(sock: socket.socket) -> None:
    sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    time.sleep(0.1)


def silence(sock: socket.socket) -> None:
    while sock.recv(4096):
        pass


LIES: dict[str, Play] = {
    "it closes at once": lambda sock: None,
    "it speaks another protocol": garbage,
    "it says nothing": silence,
    "its frames are too small": lambda sock: shake_hands(sock, (0, 100, 0)),
    "it answers what nobody asked": then(method(0, "channel.open-ok", b"")),
    "it speaks on a channel that is not open": then(method(7, "basic.ack", 1, False)),
    "it sends a frame without an end": then(b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x3d\x00"),
    "it sends a frame larger than agreed": then(b"\x01\x00\x00\x7f\xff\xff\xff"),
    "it sends an unknown method": then(frame(1, 0, struct.pack(">HH", 10, 99))),
    "it sends a body on channel 0": then(frame(3, 0, b"x")),
    "it closes after the handshake": shake_hands,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_left_and_asked_again_with_pauses(lie: str) -> None:
    """A clear state, an error that says something, no busy loop, and an end in time."""
    liar = Liar(LIES[lie])
    client = Client(
        liar.url, fail_fast=False, connect_timeout=0.3, reconnect_max_attempts=4, close_timeout=0.1
    )
    try:
        client.start()
        receipt = client.producer("q").publish(b"x") if client.state.value != "closed" else None
        wait_for(lambda: client.state is ConnectionState.CLOSED, "given up", 60)

        assert client.last_error is not None
        assert liar.connections <= 6
        wait_for(lambda: receipt is None or receipt.status == "dropped", "told of its message", 60)
    except Error:  # who starts or publishes in that moment hears of it, and the tries go on
        client.close()
        assert client.state is ConnectionState.CLOSED
    finally:
        client.close()
        liar.close()


def test_nobody_there_is_said_with_the_place() -> None:
    with pytest.raises(ClientConnectionError, match=r"amqp://127\.0\.0\.1:1"):
        Client("amqp://u:topsecret@127.0.0.1:1/").start()


def test_a_disk_that_is_full_is_no_reason_to_lose_a_message(tmp_path: Path) -> None:
    """A spill that has reached its bound says so to who publishes."""
    from lavinmq.client import BufferFullError

    client = Client(
        "amqp://127.0.0.1:1/", fail_fast=False, spill_directory=str(tmp_path), spill_bytes=300,
        close_timeout=0.1,
    )  # fmt: skip
    producer = client.producer("q", buffer_policy="spill", buffer_size=2)
    with pytest.raises(BufferFullError, match="spill"):
        for _ in range(20):
            producer.publish(b"x" * 50)
    client.close()
