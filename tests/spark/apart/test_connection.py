"""`lavinmq/spark/connection.py`: against a broker with TLS, and against peers that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pamqp import base, commands

from lavinmq.spark.connection import Connection, ConnectionFailure, connect
from lavinmq.spark.options import ConnectionOptions, Node, OptionError
from tests.support import raw_wire as wire
from tests.support.broker import Broker
from tests.support.certificates import Authority
from tests.support.inside import inside
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for

TIMEOUT_S = 20.0


class Peer:
    """A broker that does what a test says, on one connection, in a thread of its own."""

    def __init__(self, behave: Callable[[Peer], None], heartbeat: int) -> None:
        self._behave = behave
        self._heartbeat = heartbeat
        self._listener = socket.create_server((HOST, 0))
        self._reader = wire.FrameReader()
        self._thread = threading.Thread(target=self._serve)
        self.node = Node(HOST, self._listener.getsockname()[1])
        self.is_done = threading.Event()

    def __enter__(self) -> Peer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_done.set()
        self._listener.close()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(TIMEOUT_S)
        with self.socket:
            assert self.socket.recv(8) == wire.PROTOCOL_HEADER
            tune = {"channel_max": 9, "frame_max": 8192, "heartbeat": self._heartbeat}
            self.send(0, wire.build(commands.Connection.Start, server_properties={}))
            self.frame()
            self.send(0, wire.build(commands.Connection.Tune, **tune))
            self.frame()
            self.frame()
            self.send(0, commands.Connection.OpenOk())
            self.frame()
            self.send(1, commands.Channel.OpenOk())
            self._behave(self)

    def send(self, channel: int, method: base.Frame) -> None:
        """Send a method."""
        self.socket.sendall(wire.encode_method(channel, method))

    def frame(self) -> wire.RawFrame:
        """The next frame of the client."""
        while (frame := self._reader.next()) is None:
            data = self.socket.recv(65536)
            assert data, "the client hung up"
            self._reader.feed(data)
        return frame


@contextmanager
def connected(behave: Callable[[Peer], None], heartbeat: int = 0) -> Iterator[Connection]:
    """A connection to such a peer."""
    with Peer(behave, heartbeat) as peer:
        connection = connect(ConnectionOptions((peer.node,)), "queue 'q'", patience_s=0)
        try:
            yield connection
        finally:
            connection.abort()


def next_frame(connection: Connection, timeout_s: float) -> wire.RawFrame | None:
    """The next frame that is the channel's; None when none came in time."""
    reader = wire.FrameReader()
    deadline = time.monotonic() + timeout_s
    buffer = bytearray(65536)
    while (left_s := deadline - time.monotonic()) > 0:
        reader.feed(bytes(buffer[: connection.read_into(memoryview(buffer), left_s)]))
        while (frame := reader.next()) is not None:
            if not connection.take(*frame):
                assert not reader.take()
                return frame
    return None


def wait(peer: Peer) -> None:
    """Say nothing more."""
    peer.is_done.wait(TIMEOUT_S)


# ---- nodes and log-in ----------------------------------------------------------------------------


def test_nodes_are_tried_in_their_order(broker: Broker) -> None:
    nodes = (Node(HOST, free_port()), Node(broker.host, broker.port))

    with connect(ConnectionOptions(nodes), patience_s=0) as connection:
        qos = connection.call("basic.qos", 0, 1, False)

    assert qos == ()


def test_connecting_is_tried_for_as_long_as_one_likes() -> None:
    port = free_port()
    options = ConnectionOptions((Node(HOST, port),))

    with pytest.raises(ConnectionFailure, match="cannot connect") as caught:
        connect(options, "queue 'q'", patience_s=0.2)

    assert caught.value.is_transient
    assert str(caught.value).startswith(f"{HOST}:{port} vhost '/' queue 'q': ")


def test_the_password_comes_from_a_file(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "password"
    options = ConnectionOptions(
        (Node(broker.host, broker.port),), password="", password_file=str(file)
    )

    with pytest.raises(OptionError, match="passwordFile"):
        connect(options, patience_s=0)
    file.write_text("guest\n")
    connect(options, patience_s=0).close()
    file.write_text("another-secret\n")
    with pytest.raises(ConnectionFailure, match="403 ACCESS_REFUSED") as caught:
        connect(options, patience_s=5)

    assert "another-secret" not in str(caught.value)


def test_a_refusal_closes_with_its_words(broker: Broker) -> None:
    options = ConnectionOptions((Node(broker.host, broker.port),))

    with (
        connect(options, "queue 'no-such'", patience_s=0) as connection,
        pytest.raises(ConnectionFailure, match="404 NOT_FOUND") as caught,
    ):
        connection.count("no-such")

    assert (caught.value.code, caught.value.is_transient) == (404, False)


def test_tls_verifies_the_broker_and_shows_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("server", ("localhost", HOST))
    client = authority.issue("client")
    others = Authority(tmp_path / "others", "others")
    with inside(
        tls_cert=server.cert, tls_key=server.key, tls_verify_peer=True, tls_ca_cert=authority.path
    ) as broker:
        nodes = (Node(HOST, broker.server.tls_port, tls=True),)

        def options(**files: object) -> ConnectionOptions:
            return ConnectionOptions(nodes, **files)  # type: ignore[arg-type]

        shown = {"ssl_cert_file": str(client.cert), "ssl_key_file": str(client.key)}
        with connect(options(ssl_ca_file=str(authority.path), **shown)) as connection:
            qos = connection.call("basic.qos", 0, 1, False)
        connect(options(ssl_verify=False, **shown)).close()
        with pytest.raises(ConnectionFailure, match="cannot verify the broker") as caught:
            connect(options(ssl_ca_file=str(others.path), **shown))
        with pytest.raises(ConnectionFailure, match="sslCaFile: cannot read /no/file"):
            connect(options(ssl_ca_file="/no/file"))

    assert qos == ()
    assert not caught.value.is_transient


def test_plain_text_where_tls_is_wanted_is_not_tried_again(broker: Broker) -> None:
    options = ConnectionOptions((Node(broker.host, broker.port, tls=True),))

    with pytest.raises(ConnectionFailure, match="no TLS") as caught:
        connect(options, patience_s=60)

    assert not caught.value.is_transient


# ---- life ----------------------------------------------------------------------------------------


def test_heartbeats_are_sent_while_nobody_uses_the_connection() -> None:
    seen: list[wire.RawFrame] = []
    enough = threading.Event()

    def count(peer: Peer) -> None:
        while len(seen) < 3:
            seen.append(peer.frame())
        enough.set()

    with connected(count, heartbeat=1):
        assert enough.wait(TIMEOUT_S)

    assert {frame.kind for frame in seen} == {wire.FRAME_HEARTBEAT}


def test_a_peer_that_is_silent_for_two_heartbeats_is_dead() -> None:
    with (
        connected(wait, heartbeat=1) as connection,
        pytest.raises(ConnectionFailure, match="nothing heard for 2 s") as caught,
    ):
        next_frame(connection, TIMEOUT_S)

    assert caught.value.is_transient


def test_a_peer_that_hangs_up_is_lost() -> None:
    with (
        connected(lambda peer: None) as connection,
        pytest.raises(ConnectionFailure, match=r"hung up|connection lost") as caught,
    ):
        next_frame(connection, TIMEOUT_S)

    assert caught.value.is_transient


def test_a_broker_that_stops_is_worth_another_try() -> None:
    fields = {"reply_code": 320, "reply_text": "CONNECTION_FORCED - Broker shutdown"}

    def close(peer: Peer) -> None:
        peer.send(0, wire.build(commands.Connection.Close, **fields, class_id=0, method_id=0))
        peer.frame()

    with (
        connected(close) as connection,
        pytest.raises(ConnectionFailure, match="320 CONNECTION_FORCED") as caught,
    ):
        next_frame(connection, TIMEOUT_S)

    assert (caught.value.code, caught.value.is_transient) == (320, True)


def test_a_blocked_connection_says_so_until_it_is_unblocked() -> None:
    go_on = threading.Event()

    def block(peer: Peer) -> None:
        peer.send(0, wire.build(commands.Connection.Blocked, reason="low on disk"))
        peer.send(1, commands.Basic.QosOk())
        go_on.wait(TIMEOUT_S)
        peer.send(0, commands.Connection.Unblocked())
        peer.send(1, commands.Basic.QosOk())
        wait(peer)

    with connected(block) as connection:
        assert connection.blocked is None
        assert next_frame(connection, TIMEOUT_S) is not None
        blocked = connection.blocked
        go_on.set()
        assert next_frame(connection, TIMEOUT_S) is not None
        unblocked = connection.blocked

    assert (blocked, unblocked) == ("low on disk", None)


def test_a_write_that_is_not_taken_fails_and_keeps_what_came() -> None:
    def ignore(peer: Peer) -> None:
        peer.send(1, wire.build(commands.Basic.Ack, delivery_tag=7))
        wait(peer)

    with connected(ignore) as connection:
        connection.stall_s = 0.5
        with pytest.raises(ConnectionFailure, match=r"takes nothing for 0.5 s"):
            connection.write(bytes(64 << 20))
        kept = next_frame(connection, TIMEOUT_S)

    assert kept is not None and kept.payload[:4] == b"\x00\x3c\x00\x50"


def test_a_write_waits_for_a_broker_that_has_said_why_it_takes_nothing() -> None:
    data = bytes(32 << 20)
    logged = threading.Event()

    def block(peer: Peer) -> None:
        peer.send(0, wire.build(commands.Connection.Blocked, reason="low\non disk"))
        logged.wait(TIMEOUT_S)
        left = len(data)
        while left:
            left -= len(peer.socket.recv(1 << 20))

    with connected(block) as connection:
        connection.stall_s = 0.2
        wait_for(
            lambda: not next_frame(connection, 0.05) and bool(connection.blocked), "it is said"
        )
        later = threading.Timer(1.0, logged.set)
        later.start()
        connection.write(data)

    assert connection.blocked == "low on disk"


def test_what_comes_before_a_reply_is_read_afterwards() -> None:
    ack = wire.build(commands.Basic.Ack, delivery_tag=7)

    def answer(peer: Peer) -> None:
        peer.frame()
        peer.send(1, ack)
        peer.send(1, commands.Basic.QosOk())
        wait(peer)

    with connected(answer) as connection:
        connection.call("basic.qos", 0, 1, False)
        buffer = bytearray(100)
        n = connection.read_into(memoryview(buffer), 0)

    assert buffer[:n] == wire.encode_method(1, ack)


def test_a_reply_that_does_not_come_is_not_waited_for_longer() -> None:
    with (
        connected(wait) as connection,
        pytest.raises(ConnectionFailure, match=r"no basic.qos-ok within 0.2 s"),
    ):
        connection.call("basic.qos", 0, 1, False, timeout_s=0.2)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01\x00\x01\x7f\xff\xff\xff\x00", "frame size"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0b\xff", "frame end"),
        (b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x32\xce", "cut short"),
    ],
)
def test_what_is_no_amqp_is_refused(data: bytes, reason: str) -> None:
    def babble(peer: Peer) -> None:
        peer.socket.sendall(data)
        wait(peer)

    with connected(babble) as connection, pytest.raises(ConnectionFailure, match=reason):
        connection.call("basic.qos", 0, 1, False)
