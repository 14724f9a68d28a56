"""How addresses of peers are judged and shown, and the end of a listener."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from lavinmq import _core
from lavinmq.config.values import defaults
from lavinmq.listeners import arrival, endpoints, listener
from lavinmq.listeners.endpoints import Endpoints
from lavinmq.listeners.listener import Listener, Places, listeners
from lavinmq.listeners.newcomers import Newcomers
from lavinmq.listeners.proxy_protocol import header_v2
from lavinmq.listeners.tls import Contexts, Protocol
from lavinmq.process.portions import PORTION_S, SharedPortion


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.8.7", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::", False),
        ("2001:db8::127", False),
    ],
)
def test_loopback_may_be_ipv4_inside_ipv6(host: str, is_loopback: bool) -> None:
    """edge-cases.md 13"""
    assert endpoints.is_loopback(host) == is_loopback


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("10.0.0.1", "10.0.0.1:5"),
        ("::ffff:10.0.0.1", "10.0.0.1:5"),
        ("::1", "[::1]:5"),
        ("2001:db8::ffff:1", "[2001:db8::ffff:1]:5"),
    ],
)
def test_ipv4_inside_ipv6_is_shown_as_ipv4(host: str, shown: str) -> None:
    """edge-cases.md 17"""
    assert endpoints.between((host, 5), ("::1", 6)).peer == shown


class Host:
    """As much of a broker as a listener needs."""

    def __init__(self, events: asyncio.AbstractEventLoop) -> None:
        self.events = events
        self.config = defaults()
        self.tls = Contexts(self.config)
        self.arrivals = SharedPortion(events.call_soon)
        self.peers: set[str] = set()
        self.newcomers: Newcomers | None = None
        self.welcomed: list[Endpoints] = []

    def welcome(self, sock: socket.socket, ends: Endpoints) -> None:
        sock.close()
        self.welcomed.append(ends)

    def tcp(self, bind: str = "127.0.0.1", port: int = 0) -> Listener:
        return Listener.tcp(self, bind, port, "amqp", self.welcome, door=self.newcomers)

    def unix(self, path: str) -> Listener:
        return Listener.unix(self, path, "amqp", self.welcome)

    def all(self, *passed: socket.socket, **places: Any) -> list[Listener]:
        given = {"bind": "127.0.0.1", "port": -1, "tls_port": -1, "unix_path": None} | places
        return list(listeners(self, Places(**given), list(passed), "amqp", self.welcome))

    def run(self) -> None:
        """Let what is ready happen."""
        for _ in range(5):
            self.events.run_until_complete(asyncio.sleep(0))

    def run_until(self, condition: Callable[[], bool]) -> None:
        """Let happen what happens until that holds, or five seconds are over."""
        deadline = time.monotonic() + 5
        while not condition():
            assert time.monotonic() < deadline
            self.events.run_until_complete(asyncio.sleep(0.005))


@pytest.fixture
def host() -> Iterator[Host]:
    events = asyncio.new_event_loop()
    yield Host(events)
    events.close()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:  # short: a path has 107 bytes
        yield f"{directory}/amqp.sock"


def test_a_second_listener_on_the_same_port_leaves_the_first_alone(host: Host) -> None:
    """edge-cases.md 19"""
    with closing(host.tcp()) as first:
        first.start()

        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            host.tcp(port=first.port)

        socket.create_connection(("127.0.0.1", first.port), timeout=2).close()


def test_closing_twice_is_harmless(host: Host) -> None:
    """edge-cases.md 18"""
    listening = host.tcp()
    listening.start()
    port = listening.port

    listening.close()
    listening.close()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=2)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_any_address_of_ipv6_serves_ipv4_too(host: Host) -> None:
    with closing(host.tcp("::")) as listening:
        listening.start()

        for address in ("127.0.0.1", "::1"):
            socket.create_connection((address, listening.port), timeout=2).close()
            host.run()

    assert [(each.peer_host, each.host) for each in host.welcomed] == [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
    ]
    assert listening.name == f"[::]:{listening.port}"


# --- unix sockets


def connect(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    return client


def test_a_unix_socket_is_for_everybody_and_goes_with_its_listener(host: Host, path: str) -> None:
    listening = host.unix(path)

    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    assert (listening.path, listening.port, listening.name) == (path, -1, path)
    listening.close()
    assert not os.path.exists(path)


def test_a_directory_below_run_is_made_and_no_other(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no systemd makes it: in a container."""
    monkeypatch.setattr(listener, "RUN", str(tmp_path))
    for _ in range(2):
        host.unix(f"{tmp_path}/lavinmq/ctl.sock").close()

    assert stat.S_IMODE(os.stat(tmp_path / "lavinmq").st_mode) == 0o755
    with pytest.raises(OSError, match=r"cannot listen on .*/no/such/ctl\.sock"):
        host.unix(f"{tmp_path}/no/such/ctl.sock")


def test_the_peer_of_a_unix_socket_is_this_machine(host: Host, path: str) -> None:
    with closing(host.unix(path)) as listening:
        listening.start()
        with connect(path) as client:
            client.send(b"AMQP")
            host.run()

    assert host.welcomed == [endpoints.UNIX]
    assert endpoints.UNIX.name == "127.0.0.1:0 -> 127.0.0.1:0"


def test_a_socket_that_a_dead_broker_left_is_replaced(host: Host, path: str) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()

    with closing(host.unix(path)) as listening:
        listening.start()
        connect(path).close()


def test_a_socket_that_somebody_listens_on_is_left_alone(host: Host, path: str) -> None:
    with closing(host.unix(path)) as first:
        first.start()

        with pytest.raises(OSError, match="another process listens there"):
            host.unix(path)

        connect(path).close()


def test_a_file_that_is_no_socket_is_left_alone(host: Host, path: str) -> None:
    with open(path, "w") as file:
        file.write("precious")

    with pytest.raises(OSError, match="no socket"):
        host.unix(path)

    with open(path) as file:
        assert file.read() == "precious"


def test_a_socket_that_took_the_place_of_ours_is_left_alone(host: Host, path: str) -> None:
    listening = host.unix(path)
    os.rename(path, f"{path}-moved")
    with closing(socket.socket(socket.AF_UNIX)) as other:
        other.bind(path)

        listening.close()

        assert os.path.exists(path)


# --- sockets of systemd


def test_a_passed_socket_takes_the_place_of_the_listener_with_its_port(host: Host) -> None:
    passed = socket.create_server(("127.0.0.1", 0))
    port = passed.getsockname()[1]

    (only,) = host.all(passed, port=port)

    with closing(only):
        only.start()
        assert (only.port, only.is_tls) == (port, False)
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
        host.run()
    assert len(host.welcomed) == 1


def test_a_passed_unix_socket_takes_the_place_of_its_path_and_stays(host: Host, path: str) -> None:
    passed = socket.socket(socket.AF_UNIX)
    passed.bind(path)
    passed.listen()

    (only,) = host.all(passed, unix_path=path)

    assert only.path == path
    only.close()
    assert os.path.exists(path), "it belongs to systemd"


def test_other_passed_sockets_serve_besides(host: Host) -> None:
    made = host.all(
        socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0)), port=0
    )

    assert len({listening.port for listening in made}) == 3
    for listening in made:
        listening.close()


def test_a_passed_socket_of_the_tls_port_does_not_speak_plainly(host: Host) -> None:
    """There is no certificate."""
    passed = socket.create_server(("127.0.0.1", 0))
    port = passed.getsockname()[1]

    assert host.all(passed, tls_port=port) == []

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=2)


def test_an_address_that_cannot_be_had_closes_what_was_passed(host: Host, path: str) -> None:
    passed = socket.create_server(("127.0.0.1", 0))
    with open(path, "w"), pytest.raises(OSError, match="no socket"):
        host.all(passed, unix_path=path)

    assert passed.fileno() == -1


# --- connections that are not through


def test_a_proxy_header_is_awaited_on_unix_sockets(host: Host, path: str) -> None:
    with closing(host.unix(path)) as listening:
        listening.start()
        with connect(path) as client:
            client.send(b"PROXY TCP4 1.2.3.4 5.6.7.8 1")
            host.run()
            assert (len(listening.reception), host.welcomed) == (1, [])

            client.send(b" 2\r\nAMQP")
            host.run_until(lambda: bool(host.welcomed))

    assert [each.name for each in host.welcomed] == ["1.2.3.4:1 -> 5.6.7.8:2"]


def test_those_who_are_not_through_go_with_their_listener(host: Host, path: str) -> None:
    listening = host.unix(path)
    listening.start()
    with connect(path) as client:
        host.run()
        assert len(listening.reception) == 1

        listening.close()

        assert client.recv(1) == b""
        assert len(listening.reception) == 0


# --- nodes of the cluster


def of_peer(host: Host, listening: Listener, sent: bytes) -> socket.socket:
    """One that has come from a peer, and what it says first."""
    host.peers.add("127.0.0.1")
    client = socket.create_connection(("127.0.0.1", listening.port), timeout=2)
    client.sendall(sent)
    return client


@pytest.mark.parametrize("protocol", ["amqp", "mqtt", "http"])
def test_a_peer_says_whom_it_brings(host: Host, protocol: Protocol) -> None:
    """Whatever is spoken, and although PROXY headers are turned off."""
    made = Listener.tcp(host, "127.0.0.1", 0, protocol, host.welcome)
    header = header_v2(("10.1.2.3", 4000), ("10.9.9.9", 5672))
    with closing(made) as listening:
        listening.start()
        with of_peer(host, listening, header + b"AMQP"):
            host.run_until(lambda: bool(host.welcomed))

    (ends,) = host.welcomed
    assert (ends.name, ends.is_loopback) == ("10.1.2.3:4000 -> 10.9.9.9:5672", False)


def test_a_client_of_a_peer_may_be_on_that_machine(host: Host) -> None:
    header = header_v2(("127.0.0.1", 4000), ("127.0.0.1", 5672))
    with closing(host.tcp()) as listening:
        listening.start()
        with of_peer(host, listening, header):
            host.run_until(lambda: bool(host.welcomed))

    (ends,) = host.welcomed
    assert (ends.peer, ends.is_loopback) == ("127.0.0.1:4000", True)


@pytest.mark.parametrize("sent", [b"AMQP\x00\x00\x09\x01", header_v2(None, None)])
def test_a_peer_may_come_itself(host: Host, sent: bytes) -> None:
    with closing(host.tcp()) as listening:
        listening.start()
        with of_peer(host, listening, sent) as client:
            host.run_until(lambda: bool(host.welcomed))
            own_port = client.getsockname()[1]

    assert [each.peer_port for each in host.welcomed] == [own_port]


def test_a_peer_that_is_silent_for_long_is_left_to_its_protocol(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "TIMEOUT_S", 0.05)
    with closing(host.tcp()) as listening:
        listening.start()
        with of_peer(host, listening, b""):
            host.run_until(lambda: bool(host.welcomed))
            assert len(listening.reception) == 0


def test_a_peer_that_ends_within_its_header_is_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "TIMEOUT_S", 0.05)
    with closing(host.tcp()) as listening:
        listening.start()
        with of_peer(host, listening, header_v2(None, None)[:-1]) as client:
            client.setblocking(False)
            host.run_until(lambda: is_reset(client))

    assert (host.welcomed, len(listening.reception)) == ([], 0)


def is_reset(client: socket.socket) -> bool:
    """Whether the other side has closed with something unread."""
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_who_is_no_peer_is_read_by_the_protocol_at_once(host: Host) -> None:
    with closing(host.tcp()) as listening:
        listening.start()
        host.peers.add("127.0.0.2")
        with socket.create_connection(("127.0.0.1", listening.port), timeout=2):
            host.run_until(lambda: bool(host.welcomed))


def test_a_unix_socket_for_http_takes_no_header_of_a_peer(host: Host, path: str) -> None:
    """Its clients have the address of this machine, where a peer may be as well."""
    host.peers.add("127.0.0.1")
    with closing(Listener.unix(host, path, "http", host.welcome)) as listening:
        listening.start()
        with connect(path):
            host.run_until(lambda: bool(host.welcomed))


def test_clients_of_a_peer_have_places_by_their_own_address(host: Host) -> None:
    """One that never logs in keeps nobody else out who comes by way of the same node."""
    host.newcomers = Newcomers(8)
    for _ in range(4):
        host.newcomers.enter(SlowClient(), endpoints.between(("10.1.2.3", 1), ("10.9.9.9", 2)))
    with closing(host.tcp()) as listening, ExitStack() as clients:
        listening.start()
        for peer in ("10.1.2.3", "10.1.2.4", "10.1.2.3"):
            header = header_v2((peer, 1), ("10.9.9.9", 2))
            clients.enter_context(of_peer(host, listening, header))
        host.run_until(lambda: bool(host.welcomed) and len(listening.reception) == 0)

    assert [each.peer_host for each in host.welcomed] == ["10.1.2.4"]
    assert len(host.newcomers) == 4


class SlowClient:
    """One that is not logged in."""

    def make_room(self) -> None:
        raise AssertionError("there is room")


# --- what was accepted


@pytest.mark.parametrize(
    ("family", "bind", "to", "shown"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1", "::ffff:127.0.0.1"),
    ],
)
def test_a_connection_comes_with_both_of_its_ends(
    family: socket.AddressFamily, bind: str, to: str, shown: str
) -> None:
    with socket.socket(family) as listening:
        listening.bind((bind, 0))
        listening.listen()
        listening.setblocking(False)
        assert _core.accept(listening.fileno()) is None
        port = listening.getsockname()[1]
        with socket.create_connection((to, port)) as client:
            accepted = _core.accept(listening.fileno())
            assert accepted is not None
            fd, peer, own = accepted
            with socket.socket(fileno=fd) as ours:
                assert (peer, own) == ((shown, client.getsockname()[1]), (shown, port))
                assert (peer, own) == (ours.getpeername()[:2], ours.getsockname()[:2])
                assert not os.get_blocking(fd)
                assert not os.get_inheritable(fd)


def test_what_does_not_listen_cannot_accept() -> None:
    with socket.socket() as sock, pytest.raises(OSError, match="Invalid argument"):
        _core.accept(sock.fileno())


@pytest.mark.parametrize("is_passed", [False, True])
def test_small_packets_wait_as_the_setting_says(host: Host, is_passed: bool) -> None:
    """Also once it has changed, and of who has come to a socket of systemd before; and never
    because a socket blocks."""
    found: list[tuple[bool, bool]] = []

    def welcome(sock: socket.socket, _: Endpoints) -> None:
        with sock:
            prompt = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            found.append((bool(prompt), sock.getblocking() or os.get_blocking(sock.fileno())))

    with socket.socket() as sock, ExitStack() as clients:
        sock.bind(("127.0.0.1", 0))
        if is_passed:
            sock.listen()
            clients.enter_context(socket.create_connection(sock.getsockname(), timeout=2))
        with closing(Listener(host, sock, "mqtt", welcome)) as listening:
            listening.start()
            for is_prompt in (True, False, True):
                host.config.tcp_nodelay = is_prompt
                if found or not is_passed:
                    address = "127.0.0.1", listening.port
                    clients.enter_context(socket.create_connection(address, timeout=2))
                n_before = len(found)
                host.run_until(lambda n=n_before: len(found) > n)  # type: ignore[misc]

    assert found == [(True, False), (False, False), (True, False)]


# --- many at once


def test_accepting_stops_after_its_share_of_a_turn(host: Host) -> None:
    """By a clock that goes on with each look at it, so that four connections make a portion."""
    looks = count()
    host.arrivals = SharedPortion(host.events.call_soon, lambda: next(looks) * PORTION_S / 4)
    so_far = [0]

    def note() -> None:
        so_far.append(len(host.welcomed))
        host.events.call_soon(note if so_far[-1] < 40 else host.events.stop)

    with closing(host.tcp()) as first, closing(host.tcp()) as second, ExitStack() as clients:
        for listening in (first, second):
            listening.start()
            for _ in range(20):
                clients.enter_context(
                    socket.create_connection(("127.0.0.1", listening.port), timeout=2)
                )
        host.events.call_soon(note)
        host.events.run_forever()

    a_turn = [after - before for before, after in pairwise(so_far)]
    assert max(a_turn) <= 5, "what both share, and one of each in any case"
