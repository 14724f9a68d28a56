"""Ways in beside plain TCP and TLS: PROXY headers, unix sockets, systemd, a socket handed over."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from lavinmq.amqp.connection import Connection, welcome_socket
from lavinmq.listeners.endpoints import TlsInfo
from tests.conftest import BrokerFactory
from tests.support.hostile import login
from tests.support.inside import Inside, inside
from tests.support.nursery import broker_command
from tests.support.patience import PATIENCE
from tests.support.ports import HOST, free_port
from tests.support.proxy import entry, ssl_entry, v2
from tests.support.waiting import wait_for
from tests.support.wire import encode

TIMEOUT_S = 20.0 * PATIENCE
HEADER = b"AMQP\x00\x00\x09\x01"
OPEN_OK = encode(0, commands.Connection.OpenOk())
REMOTE = struct.pack("!4s4sHH", bytes((10, 1, 2, 3)), bytes((10, 9, 9, 9)), 4000, 5672)
LOCAL_PEER = struct.pack("!4s4sHH", bytes((127, 0, 0, 9)), bytes((10, 9, 9, 9)), 4000, 5672)


@pytest.fixture
def unix_path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:  # short: a path has 107 bytes
        yield f"{directory}/amqp.sock"


def tcp(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), TIMEOUT_S)


def unix(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(TIMEOUT_S)
    sock.connect(path)
    return sock


def logs_in(sock: socket.socket, before: bytes = b"") -> bool:
    """Whether `guest` gets in when these bytes come first; the connection stays open."""
    sock.sendall(before + login())
    answer = b""
    while OPEN_OK not in answer:
        try:
            piece = sock.recv(65536)
        except ConnectionError:
            return False
        if not piece:
            return False
        answer += piece
    return True


def only_connection(broker: Inside) -> Connection:
    (ours,) = broker.inner.connections
    return ours


# --- PROXY headers on TCP


@pytest.fixture(scope="module")
def proxied() -> Iterator[Inside]:
    """A broker behind a proxy on this machine."""
    with inside(tcp_proxy_protocol=True, proxy_protocol_trusted_sources="127.0.0.0/8") as made:
        yield made


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (b"PROXY TCP4 127.0.0.9 10.9.9.9 4000 5672\r\n", "127.0.0.9:4000 -> 10.9.9.9:5672"),
        (b"PROXY TCP6 ::1 2001:db8::1 4000 5672\r\n", "[::1]:4000 -> [2001:db8::1]:5672"),
        (v2(LOCAL_PEER), "127.0.0.9:4000 -> 10.9.9.9:5672"),
        (v2(LOCAL_PEER + entry(0xEA, b"vpc")), "127.0.0.9:4000 -> 10.9.9.9:5672"),
    ],
)
def test_a_connection_is_that_of_the_client_behind_the_proxy(
    proxied: Inside, header: bytes, name: str
) -> None:
    with tcp(proxied.port) as sock:
        assert logs_in(sock, header)
        assert only_connection(proxied).name == name
    wait_for(lambda: not proxied.inner.connections, "it lives on")


@pytest.mark.parametrize("header", [b"", b"PROXY UNKNOWN\r\n", v2(REMOTE, command=0x20)])
def test_without_an_address_that_of_the_socket_counts(proxied: Inside, header: bytes) -> None:
    with tcp(proxied.port) as sock:
        assert logs_in(sock, header)
        assert only_connection(proxied).ends.peer_port == sock.getsockname()[1]
    wait_for(lambda: not proxied.inner.connections, "it lives on")


def test_the_rule_for_the_default_user_is_for_the_client_not_for_the_proxy(
    proxied: Inside,
) -> None:
    with tcp(proxied.port) as sock:
        assert not logs_in(sock, v2(REMOTE))


def test_the_tls_between_client_and_proxy_is_shown(proxied: Inside) -> None:
    with tcp(proxied.port) as sock:
        assert logs_in(sock, v2(LOCAL_PEER + ssl_entry()))
        ours = only_connection(proxied)
        assert ours.ends.tls == TlsInfo("TLSv1.3", "TLS_AES_128_GCM_SHA256")
    wait_for(lambda: not proxied.inner.connections, "it lives on")


def test_a_header_may_come_byte_by_byte(proxied: Inside) -> None:
    header = b"PROXY TCP4 127.0.0.9 10.9.9.9 4000 5672\r\n"
    with tcp(proxied.port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in header:
            sock.sendall(bytes((byte,)))
        assert logs_in(sock)
        assert only_connection(proxied).ends.peer_host == "127.0.0.9"
    wait_for(lambda: not proxied.inner.connections, "it lives on")


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n",
        b"PROXY " + b"x" * 200,
        v2(REMOTE, family=0x12),
        v2(REMOTE + b"\x20"),
    ],
)
def test_a_malformed_header_is_closed_without_a_word(proxied: Inside, header: bytes) -> None:
    with tcp(proxied.port) as sock:
        sock.sendall(header + HEADER)
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""


def test_a_beginning_that_is_neither_gets_the_answer_of_amqp(proxied: Inside) -> None:
    with tcp(proxied.port) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\n\r\n")
        assert sock.recv(8) == HEADER


def test_a_header_from_elsewhere_is_read_ignored_and_told(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    ini = tmp_path / "lavinmq.ini"
    ini.write_text("[amqp]\ntcp_proxy_protocol=1\nproxy_protocol_trusted_sources=192.0.2.0/24\n")
    broker = broker_factory(["--config", str(ini)])
    for header in (v2(REMOTE), v2(LOCAL_PEER), v2(REMOTE, command=0x20)):
        with tcp(broker.port) as sock:
            assert not logs_in(sock, header), "nobody knows whether its client is on this machine"
    with tcp(broker.port) as sock:
        assert logs_in(sock)
    assert "PROXY header is ignored" in broker.log_text()


def test_trusting_everybody_is_told_at_the_start(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    ini = tmp_path / "lavinmq.ini"
    ini.write_text("[amqp]\ntcp_proxy_protocol=2\n")

    broker = broker_factory(["--config", str(ini)])

    assert "PROXY headers of every client are believed" in broker.log_text()
    with tcp(broker.port) as sock:
        assert logs_in(sock, v2(LOCAL_PEER))


def test_without_the_setting_a_header_is_no_amqp(broker_factory: BrokerFactory) -> None:
    with tcp(broker_factory().port) as sock:
        sock.sendall(b"PROXY UNKNOWN\r\n")
        assert sock.recv(8) == HEADER


# --- PROXY headers of the cluster's nodes


@pytest.fixture(scope="module")
def leading() -> Iterator[Inside]:
    """A broker with a follower on this machine."""
    with inside(http_port=0) as made:
        made.server.peers.add("127.0.0.1")
        yield made


def test_a_client_of_a_follower_is_judged_by_its_own_address(leading: Inside) -> None:
    """`guest` may log in on its own machine only, be it the leader's or a follower's."""
    with tcp(leading.port) as sock:
        assert not logs_in(sock, v2(REMOTE))
    with tcp(leading.port) as sock:
        assert logs_in(sock, v2(LOCAL_PEER))
        assert only_connection(leading).ends.peer == "127.0.0.9:4000"
    wait_for(lambda: not leading.inner.connections, "it lives on")


@pytest.mark.parametrize(("address", "status"), [(REMOTE, b"401"), (LOCAL_PEER, b"200")])
def test_a_request_by_way_of_a_follower_is_judged_by_its_own_address(
    leading: Inside, address: bytes, status: bytes
) -> None:
    with tcp(leading.server.http_port) as sock:
        sock.sendall(
            v2(address) + b"GET /api/whoami HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n\r\n"
        )
        assert sock.recv(4096).split()[1] == status


def test_a_follower_itself_needs_no_header(leading: Inside) -> None:
    with tcp(leading.port) as sock:
        assert logs_in(sock)
    wait_for(lambda: not leading.inner.connections, "it lives on")


def test_who_is_no_follower_brings_nobody(leading: Inside) -> None:
    with socket.create_connection((HOST, leading.port), TIMEOUT_S, ("127.0.0.2", 0)) as sock:
        sock.sendall(v2(LOCAL_PEER))
        assert sock.recv(8) == HEADER


# --- unix sockets


def test_a_unix_socket_takes_clients_with_and_without_a_header(unix_path: str) -> None:
    with inside(amqp_unix_path=unix_path, amqp_port=-1) as broker:
        with unix(unix_path) as sock:
            assert logs_in(sock)
            assert only_connection(broker).name == "127.0.0.1:0 -> 127.0.0.1:0"
        wait_for(lambda: not broker.inner.connections, "it lives on")
        with unix(unix_path) as sock:
            assert logs_in(sock, v2(LOCAL_PEER))
            assert only_connection(broker).ends.peer == "127.0.0.9:4000"
        with unix(unix_path) as sock:
            assert not logs_in(sock, v2(REMOTE))
    assert not os.path.exists(unix_path)


# --- a socket handed over


@pytest.mark.parametrize("tls", [None, TlsInfo("TLSv1.2", "X")])
def test_a_socket_of_any_kind_becomes_a_connection(
    broker_inside: Inside, tls: TlsInfo | None
) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.settimeout(TIMEOUT_S)
        made = broker_inside.call(
            welcome_socket, broker_inside.inner, ours, ("::ffff:10.1.2.3", 5),
            ("10.0.0.1", 15672), True, tls,
        )  # fmt: skip

        assert logs_in(theirs)
        assert made.name == "10.1.2.3:5 -> 10.0.0.1:15672"
        assert made.ends.tls == tls
    wait_for(lambda: made not in broker_inside.inner.connections, "it lives on")


@pytest.fixture(scope="module")
def broker_inside() -> Iterator[Inside]:
    with inside() as made:
        yield made


# --- systemd


LAUNCHER = """
import os, sys
for index, fd in enumerate(sys.argv[1].split(",")):
    os.dup2(int(fd), 3 + index, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execvp(sys.argv[2], sys.argv[2:])
"""


def started(
    stack: ExitStack, directory: Path, sockets: list[socket.socket], *flags: str, **env: str
) -> tuple[subprocess.Popen[bytes], Path]:
    """A broker that systemd would have started with these sockets, and its log."""
    log_path = directory / "log"
    for sock in sockets:
        # High numbers: none is overwritten before it is moved.
        os.dup2(sock.fileno(), sock.fileno(), inheritable=True)
    fds = ",".join(str(sock.fileno()) for sock in sockets)
    command = [
        *broker_command(), "-D", str(directory / "data"), "--http-port", "-1",
        "--metrics-http-port", "-1", "--control-unix-path", "", "--mqtt-port", "-1", *flags,
    ]  # fmt: skip
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, fds, *command] if sockets else command,
            stdout=log, stderr=log, pass_fds=[sock.fileno() for sock in sockets],
            env=os.environ | {"LISTEN_FDS": str(len(sockets))} | env,
        )  # fmt: skip

    def end() -> None:
        process.kill()
        process.wait()

    stack.callback(end)
    return process, log_path


def passed_socket(stack: ExitStack, number: int, address: Any, family: Any = socket.AF_INET) -> Any:
    """A listening socket with a high descriptor."""
    with socket.socket(family) as made:
        # A port may be that of a test that has just ended.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        made.bind(address)
        made.listen()
        os.dup2(made.fileno(), number)
    return stack.enter_context(socket.socket(fileno=number))


def test_a_socket_of_systemd_serves_http(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one = passed_socket(stack, 703, (HOST, free_port()))
        address = one.getsockname()
        names = {"LISTEN_FDNAMES": "lavinmq-http.socket"}
        started(stack, tmp_path, [one], "-p", str(free_port()), **names)

        with tcp(address[1]) as sock:
            sock.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_sockets_of_systemd_are_served(tmp_path: Path, unix_path: str) -> None:
    with ExitStack() as stack:
        one = passed_socket(stack, 700, (HOST, free_port()))
        two = passed_socket(stack, 701, unix_path, socket.AF_UNIX)
        other = passed_socket(stack, 702, (HOST, free_port()))
        names = "lavinmq-amqp.socket:lavinmq-amqp.socket:what.socket"
        port = one.getsockname()[1]
        process, log_path = started(
            stack, tmp_path, [one, two, other], "-p", str(port), LISTEN_FDNAMES=names
        )
        with tcp(port) as sock:  # it waits in the queue until the broker is there
            assert logs_in(sock)
        with unix(unix_path) as sock:
            assert logs_in(sock)

        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert os.path.exists(unix_path)
        assert "socket 'what.socket' of systemd is not used" in log_path.read_text()
        with tcp(port):
            pass  # systemd still listens


def test_the_name_of_the_sockets_is_a_setting(tmp_path: Path) -> None:
    ini = tmp_path / "lavinmq.ini"
    ini.write_text("[amqp]\nport = -1\namqp_systemd_socket_name = mine\n")
    with ExitStack() as stack:
        one = passed_socket(stack, 710, (HOST, free_port()))
        started(stack, tmp_path, [one], "--config", str(ini), LISTEN_FDNAMES="mine")

        with tcp(one.getsockname()[1]) as sock:
            assert logs_in(sock)


class Manager:
    """Listens to what a service says of itself."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(TIMEOUT_S)

    def next(self, *, skips: str = "WATCHDOG=1") -> dict[str, str]:
        """What comes next, without signs of life."""
        while True:
            text = self.socket.recv(4096).decode()
            if text != skips:
                return dict(line.split("=", 1) for line in text.split("\n"))


def test_systemd_is_told_of_start_reload_and_stop(tmp_path: Path, unix_path: str) -> None:
    ini = tmp_path / "lavinmq.ini"
    ini.write_text("[main]\n")
    port = free_port()
    with ExitStack() as stack:
        manager = Manager(unix_path)
        stack.enter_context(manager.socket)
        process, _ = started(
            stack, tmp_path, [], "-p", str(port), "--config", str(ini),
            NOTIFY_SOCKET=unix_path, WATCHDOG_USEC="200000",
        )  # fmt: skip
        ready = manager.next()
        assert ready == {"READY": "1", "STATUS": f"Listening on {HOST}:{port}"}
        tcp(port).close()

        before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        for text in ("[main]\nlog_level = debug\n", "[nonsense]\n"):
            ini.write_text(text)
            process.send_signal(signal.SIGHUP)
            reloading = manager.next()
            assert reloading["RELOADING"] == "1"
            assert int(reloading["MONOTONIC_USEC"]) >= before_us
            assert manager.next()["READY"] == "1", "also when nothing could be taken over"

        for _ in range(2):
            assert manager.socket.recv(4096) == b"WATCHDOG=1"

        process.send_signal(signal.SIGTERM)
        assert manager.next()["STOPPING"] == "1"
        assert process.wait(TIMEOUT_S) == 0
