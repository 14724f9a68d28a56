"""Bytes between clients of a follower and the leader, and who may come."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import http.client
import json
import logging
import os
import socket
import struct
import tempfile
import threading
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest
import uvloop

from lavinmq.cluster import proxy, relay
from lavinmq.cluster.proxy import Door, Proxy, Target
from lavinmq.cluster.relay import End, Relay
from lavinmq.config.values import Config, defaults
from lavinmq.listeners.proxy_protocol import header_v2
from tests.support.ports import HOST, free_port
from tests.support.waiting import wait_for

TIMEOUT_S = 20.0
LOCAL = header_v2(None, None)
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


class Node:
    """A follower with its loop in a thread, and a leader: a listening socket of this one."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.leader = socket.create_server((HOST, 0))
        self.leader.settimeout(TIMEOUT_S)
        self.target: Target | None = Target(HOST, self.leader.getsockname()[1])
        self.port = free_port()
        self.proxy: Proxy
        self.bugs: list[dict[str, Any]] = []
        self._stack = ExitStack()
        self._events = new_loop()
        self._events.set_exception_handler(lambda _, context: self.bugs.append(context))
        self._thread = threading.Thread(target=self._events.run_forever)
        self._thread.start()

    def start(
        self, protocol: str = "amqp", *, bind: str = HOST, path: str = "", most: int = 100,
        config: Config | None = None,
    ) -> None:  # fmt: skip
        door = Door(protocol, bind, self.port, path)
        self.proxy = Proxy(
            self._events, [door], lambda protocol: self.target, most=most, config=config
        )
        self.call(self.proxy.start)

    def call(self, function: Callable[[], Any]) -> Any:
        """What it returns, or raises, in the loop's thread."""

        async def run() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self._events).result(TIMEOUT_S)

    def connect(self, host: str = HOST) -> socket.socket:
        """A client."""
        made = socket.create_connection((host, self.port), TIMEOUT_S)
        return self._stack.enter_context(made)

    def accept(self, header: bytes) -> socket.socket:
        """What comes to the leader, once its header is as expected."""
        made, _ = self.leader.accept()
        self._stack.enter_context(made)
        made.settimeout(TIMEOUT_S)
        assert read(made, len(header)) == header
        return made

    def pair(self) -> tuple[socket.socket, socket.socket]:
        """A client, and what the leader has of it."""
        client = self.connect()
        return client, self.accept(header_of(client))

    def is_empty(self) -> bool:
        return self.proxy.n_connections == 0

    def close(self) -> None:
        self._stack.close()
        self.leader.close()
        if hasattr(self, "proxy"):
            self.call(self.proxy.close)
            assert self.proxy.n_connections == 0
        self._events.call_soon_threadsafe(self._events.stop)
        self._thread.join()
        self._events.close()
        assert self.bugs == []


def header_of(client: socket.socket) -> bytes:
    return header_v2(client.getsockname()[:2], client.getpeername()[:2])


def read(sock: socket.socket, n_bytes: int) -> bytes:
    """So many, or all that come before the end."""
    data = b""
    while len(data) < n_bytes and (piece := sock.recv(n_bytes - len(data))):
        data += piece
    return data


def is_over(sock: socket.socket) -> bool:
    """Whether the other side has ended, in order or not."""
    with suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


@pytest.fixture(params=LOOPS)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    made = Node(LOOPS[request.param])
    yield made
    made.close()


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:  # short: a path has 107 bytes
        yield f"{directory}/amqp.sock"


# --- bytes


@pytest.mark.parametrize("protocol", ["amqp", "amqps", "mqtt", "mqtts", "http", "https"])
def test_bytes_go_both_ways_behind_a_header(node: Node, protocol: str) -> None:
    node.start(protocol)
    client, leader = node.pair()

    client.sendall(b"PROXY or what it wants")
    assert read(leader, 22) == b"PROXY or what it wants"
    leader.sendall(b"answer")
    assert read(client, 6) == b"answer"
    assert node.proxy.n_connections == 1


def test_what_the_leader_says_first_is_not_lost(node: Node) -> None:
    """It may come before the client is read."""
    node.start()
    for _ in range(20):
        client, leader = node.pair()
        leader.sendall(b"x" * 1000)
        leader.close()
        assert read(client, 2000) == b"x" * 1000
        client.close()
    wait_for(node.is_empty, "some stay")


def test_much_goes_both_ways_at_once(node: Node) -> None:
    node.start()
    client, leader = node.pair()
    sent = os.urandom(1 << 20) * 8
    threads = [threading.Thread(target=sock.sendall, args=(sent,)) for sock in (client, leader)]
    for thread in threads:
        thread.start()

    to_client: list[bytes] = []
    reader = threading.Thread(target=lambda: to_client.append(read_all(client, len(sent))))
    reader.start()
    to_leader = read_all(leader, len(sent))
    for thread in (*threads, reader):
        thread.join()

    assert (to_leader, to_client) == (digest(sent), [digest(sent)])


@pytest.mark.parametrize("is_upward", [True, False])
def test_a_slow_reader_holds_up_who_writes(node: Node, is_upward: bool) -> None:
    """64 MiB go through, and never more than a few blocks are in memory."""
    node.start()
    client, leader = node.pair()
    writer, reader = (client, leader) if is_upward else (leader, client)
    piece, n_pieces = os.urandom(1 << 20), 64
    n_sent = 0

    def send() -> None:
        nonlocal n_sent
        for _ in range(n_pieces):
            writer.sendall(piece)
            n_sent += 1
        writer.shutdown(socket.SHUT_WR)

    tracemalloc.start()
    try:
        sender = threading.Thread(target=send)
        sender.start()
        assert read(reader, 1000) == piece[:1000]
        wait_for(lambda: is_at_rest(lambda: n_sent), "it goes on for ever")
        assert n_sent < n_pieces, "it does not wait"
        digested = read_all(reader, n_pieces * len(piece), hashlib.sha256(piece[:1000]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    sender.join()

    assert digested == digest(piece * n_pieces)
    assert peak < 1 << 20
    assert reader.recv(1) == b""


def is_at_rest(figure: Callable[[], int]) -> bool:
    """Whether it stays for a moment."""
    before = figure()
    threading.Event().wait(0.2)
    return before == figure()


def digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def read_all(sock: socket.socket, n_bytes: int, so_far: Any = None) -> bytes:
    """The digest of so many; they are not kept."""
    found = so_far or hashlib.sha256()
    left = n_bytes - (1000 if so_far else 0)
    while left and (piece := sock.recv(min(left, 1 << 16))):
        found.update(piece)
        left -= len(piece)
    return bytes(found.digest())


def test_nothing_waits_for_more_to_send(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nagle's algorithm is off on both sockets."""
    made: list[Relay] = []

    class Noted(Relay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(proxy, "Relay", Noted)
    node.start()
    client, leader = node.pair()
    leader.sendall(b"x")
    assert read(client, 1) == b"x"

    (both,) = made
    assert [is_nodelay(end) for end in (both.client, both.leader)] == [True, True]


def test_an_ended_connection_leaves_nothing_to_the_garbage_collector(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []

    class Noted(Relay):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.extend(map(weakref.ref, (self, self.client, self.leader)))

    monkeypatch.setattr(proxy, "Relay", Noted)
    node.start()
    gc.disable()
    try:
        client, leader = node.pair()
        client.close()
        leader.close()
        node.target = Target(HOST, free_port())
        assert is_over(node.connect())

        wait_for(lambda: not any(each() for each in made), "some are left")
    finally:
        gc.enable()
    assert len(made) == 6


def is_nodelay(end: End) -> bool:
    assert end.transport is not None
    sock = end.transport.get_extra_info("socket")
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


# --- ends


@pytest.mark.parametrize("is_upward", [True, False])
def test_who_has_ended_still_gets_what_the_other_sends(node: Node, is_upward: bool) -> None:
    node.start()
    client, leader = node.pair()
    first, second = (client, leader) if is_upward else (leader, client)

    first.sendall(b"question")
    first.shutdown(socket.SHUT_WR)
    assert read(second, 100) == b"question"
    second.sendall(b"answer" * 100_000)
    second.shutdown(socket.SHUT_WR)

    assert read(first, 1_000_000) == b"answer" * 100_000
    wait_for(node.is_empty, "it is not over")


@pytest.mark.parametrize("is_upward", [True, False])
def test_a_reset_of_one_ends_the_other(node: Node, is_upward: bool) -> None:
    node.start()
    client, leader = node.pair()
    first, second = (client, leader) if is_upward else (leader, client)
    first.sendall(b"last words")
    assert read(second, 10) == b"last words"

    reset(first)

    assert is_over(second)
    wait_for(node.is_empty, "it is not over")


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def test_a_client_that_takes_nothing_is_ended_after_its_leader(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read of the leader then, so that its end is not to be seen there."""
    monkeypatch.setattr(relay, "LINGER_S", 0.1)
    monkeypatch.setattr(relay, "HALF_S", 0.2)
    node.start()
    client, leader = node.pair()
    leader.settimeout(0.5)
    with suppress(TimeoutError):
        while True:
            leader.sendall(bytes(1 << 16))
    assert node.proxy.n_connections == 1

    reset(leader)

    wait_for(node.is_empty, "it waits for ever")
    client.close()


def test_a_client_that_stays_after_its_leader_is_ended(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's machine has forgotten the connection: nobody else would end it."""
    monkeypatch.setattr(relay, "LINGER_S", 0.1)
    monkeypatch.setattr(relay, "HALF_S", 0.1)
    node.start()
    client, leader = node.pair()

    leader.shutdown(socket.SHUT_WR)

    assert client.recv(1) == b""
    wait_for(node.is_empty, "it stays")
    assert is_over(leader)


def test_dropped_clients_are_ended_and_may_come_again(node: Node) -> None:
    node.start()
    pairs = [node.pair() for _ in range(3)]
    assert node.proxy.n_connections == 3

    node.call(node.proxy.drop)

    assert all(is_over(sock) for pair in pairs for sock in pair)
    wait_for(node.is_empty, "some are left")
    client, leader = node.pair()
    client.sendall(b"again")
    assert read(leader, 5) == b"again"


def test_its_ports_are_free_once_it_is_closed(node: Node) -> None:
    node.start()
    client, leader = node.pair()

    for _ in range(2):
        node.call(node.proxy.close)

    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((HOST, node.port))
        other.listen()
    assert is_over(client)
    assert is_over(leader)
    assert node.is_empty()


def test_it_closes_while_it_drops(node: Node) -> None:
    node.start()
    node.pair()

    async def both() -> None:
        node.proxy.drop()
        await node.proxy.close()
        node.proxy.drop()

    node.call(both)

    assert node.is_empty()


# --- the leader


def test_without_a_leader_clients_are_closed(node: Node) -> None:
    node.target = None
    node.start()

    assert is_over(node.connect())
    assert node.is_empty()


def test_without_a_leader_http_is_told_so(node: Node) -> None:
    node.target = None
    node.start("http")

    status, headers, body = ask(node)

    assert (status, headers["Retry-After"]) == (503, "1")
    assert headers["Content-Type"] == "application/json"
    assert body == (
        b'{"error":"service_unavailable","reason":"this node follows, and no leader is known"}'
    )
    wait_for(node.is_empty, "it stays")


def ask(node: Node, body: bytes = b"") -> tuple[int, http.client.HTTPMessage, bytes]:
    with closing(http.client.HTTPConnection(HOST, node.port, timeout=TIMEOUT_S)) as asking:
        asking.request("POST", "/api/overview", body)
        answer = asking.getresponse()
        return answer.status, answer.headers, answer.read()


def test_a_long_request_without_a_leader_is_answered_too(node: Node) -> None:
    node.target = None
    node.start("http")

    status, _, body = ask(node, bytes(4 << 20))

    assert (status, json.loads(body)["error"]) == (503, "service_unavailable")


def test_who_asks_nothing_without_a_leader_is_closed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "REFUSAL_S", 0.1)
    node.target = None
    node.start("http")

    assert is_over(node.connect())
    wait_for(node.is_empty, "it stays")


def test_a_leader_that_refuses_closes_the_client(node: Node) -> None:
    node.target = Target(HOST, free_port())
    node.start()

    assert is_over(node.connect())
    wait_for(node.is_empty, "it stays")


def test_a_leader_that_refuses_is_told_by_http(node: Node) -> None:
    node.target = Target(HOST, free_port())
    node.start("http")

    status, _, body = ask(node)

    assert (status, json.loads(body)["reason"]) == (
        503, "this node follows, and the leader cannot be reached",
    )  # fmt: skip


@pytest.fixture
def silent_leader(node: Node) -> Iterator[None]:
    """It answers no attempt to connect: as many wait as it has room for."""
    with ExitStack() as stack:
        leader = stack.enter_context(socket.socket())
        leader.bind((HOST, 0))
        leader.listen(0)
        for _ in range(3):
            other = stack.enter_context(socket.socket())
            other.setblocking(False)
            with suppress(BlockingIOError):
                other.connect(leader.getsockname())
        node.target = Target(*leader.getsockname())
        yield


def test_a_leader_that_does_not_answer_is_given_up(
    node: Node, silent_leader: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "CONNECT_S", 0.2)
    node.start()

    assert is_over(node.connect())
    wait_for(node.is_empty, "it stays")


def test_a_client_is_not_read_while_the_leader_is_sought(node: Node, silent_leader: None) -> None:
    node.start()
    client = node.connect()
    client.settimeout(0.5)
    wait_for(lambda: node.proxy.n_connections == 1, "nobody comes")

    with suppress(TimeoutError):
        while True:
            client.sendall(bytes(1 << 16))

    assert node.proxy.n_connections == 1
    node.call(node.proxy.drop)
    assert is_over(client)
    wait_for(node.is_empty, "it stays")


def test_each_client_goes_to_the_leader_of_its_time(node: Node) -> None:
    node.start()
    node.pair()
    with socket.create_server((HOST, 0)) as other:
        node.target = Target(HOST, other.getsockname()[1])

        client = node.connect()

        with closing(other.accept()[0]) as leader:
            assert read(leader, 28) == header_of(client)


# --- addresses


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_any_address_of_ipv6_serves_ipv4_too(node: Node) -> None:
    node.start(bind="::")
    ipv4, ipv6 = node.connect(HOST), None
    node.accept(header_of(ipv4))

    ipv6 = node.connect("::1")

    header = header_of(ipv6)
    assert header[13] == 0x21
    node.accept(header)


def test_clients_of_a_unix_socket_have_no_address(node: Node, path: str) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()
    node.start(path=path)
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT_S)
        client.connect(path)

        client.sendall(b"AMQP")
        leader = node.accept(LOCAL)
        assert read(leader, 4) == b"AMQP"
        leader.sendall(b"answer")
        assert read(client, 6) == b"answer"
        client.shutdown(socket.SHUT_WR)
        assert leader.recv(1) == b""

    node.call(node.proxy.close)
    assert not os.path.exists(path)


def test_a_proxy_at_a_unix_socket_says_whom_it_brings(node: Node, path: str) -> None:
    node.start(path=path)
    header = header_v2(("10.1.2.3", 1), ("10.9.9.9", 2))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
        client.sendall(header + b"AMQP")

        assert read(node.accept(header), 4) == b"AMQP"


@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_proxy_before_this_node_says_whom_it_brings(node: Node, is_trusted: bool) -> None:
    """One that is not trusted makes nobody a client of this machine."""
    config = defaults()
    config.tcp_proxy_protocol = True
    config.proxy_protocol_trusted_sources = ("127.0.0.0/8" if is_trusted else "192.0.2.0/24",)
    node.start(config=config)
    header = header_v2(("10.1.2.3", 1), ("10.9.9.9", 2))

    node.connect().sendall(header + b"AMQP")

    assert read(node.accept(header if is_trusted else LOCAL), 4) == b"AMQP"


# --- how many


def test_there_may_be_so_many_and_no_more(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "lmq.proxy")
    node.start(most=2)
    pairs = [node.pair() for _ in range(2)]

    assert all(is_over(node.connect()) for _ in range(3))

    said = [each.getMessage() for each in caplog.records if each.name == "lmq.proxy"]
    assert said == ["connections are refused: 2 are open"]
    pairs[0][0].close()
    pairs[0][1].close()
    wait_for(lambda: node.proxy.n_connections == 1, "it stays")
    node.pair()


def test_a_place_that_is_taken_leaves_nothing_bound(node: Node, path: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        doors = [
            Door("amqp", HOST, node.port), Door("mqtt", "", -1, path), Door("http", HOST, port),
        ]  # fmt: skip
        node.proxy = Proxy(node._events, doors, lambda protocol: None, most=1)

        with pytest.raises(OSError, match=f"cannot listen on {HOST}:{port}: "):
            node.call(node.proxy.start)

    assert not os.path.exists(path)
    with pytest.raises(ConnectionRefusedError):
        node.connect()


def test_a_thousand_clients_leave_nothing_behind(node: Node) -> None:
    node.start(most=10)
    before = n_descriptors()

    for _ in range(100):
        clients = [node.connect() for _ in range(10)]
        for client in clients:
            client.close()
        for _ in clients:
            node.leader.accept()[0].close()
        wait_for(node.is_empty, "some stay")

    assert n_descriptors() <= before + 1


def n_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
