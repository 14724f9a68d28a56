"""Connections for HTTP that take long, or are many: heads have a time, descriptors a share."""

from __future__ import annotations

import http.client
import resource
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.waiting import wait_for
from tests.support.wire import Wire

Configured = Callable[[str], Broker]


@pytest.fixture
def configured(broker_factory: BrokerFactory, tmp_path: Path) -> Configured:
    """A broker with this ini file."""

    def start(ini: str) -> Broker:
        path = tmp_path / "held.ini"
        path.write_text(ini)
        return broker_factory(["-c", str(path)], http=True)

    return start


def connected(broker: Broker) -> socket.socket:
    return socket.create_connection((broker.host, broker.http_port), 20)


def rest(client: socket.socket) -> bytes:
    """All that comes until the broker closes."""
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "])
def test_a_head_that_is_not_complete_in_time_ends_the_connection(
    configured: Configured, begun: bytes
) -> None:
    broker = configured("[mgmt]\nhead_timeout = 1\n")
    with connected(broker) as client:
        client.sendall(begun)

        assert rest(client).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_trickles_gets_no_more_time(configured: Configured) -> None:
    broker = configured("[mgmt]\nhead_timeout = 1\n")
    with connected(broker) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        client.settimeout(0.05)
        answer = b""
        while not answer:
            try:
                answer = client.recv(65536)
            except TimeoutError:
                client.sendall(b"x")

    assert answer.startswith(b"HTTP/1.1 408 ")


def test_a_connection_may_rest_between_two_requests_but_not_within_the_second_head(
    configured: Configured,
) -> None:
    broker = configured("[mgmt]\nhead_timeout = 1\n")
    with connected(broker) as resting, connected(broker) as slow:
        for client in (resting, slow):
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        slow.sendall(b"GET /healthz HT")

        assert rest(slow).startswith(b"HTTP/1.1 408 ")
        # Later than any head may take: the first connection is as it was.
        resting.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert resting.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_a_head_in_two_pieces_and_two_heads_in_one_are_answered(broker: Broker) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(broker) as client:
        client.sendall(head + head[:7])
        assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
        client.sendall(head[7:] + head.replace(b"Host", b"Connection: close\r\nHost"))

        assert rest(client).count(b"HTTP/1.1 200 ") == 2


def test_connections_above_the_limit_are_refused_and_amqp_goes_on(configured: Configured) -> None:
    broker = configured("[mgmt]\nmax_connections = 3\n")
    with ExitStack() as stack:
        several = [stack.enter_context(connected(broker)) for _ in range(3)]
        several[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert several[-1].recv(65536).startswith(b"HTTP/1.1 200 ")

        with connected(broker) as client:
            assert rest(client).startswith(b"HTTP/1.1 503 ")
        Wire.open(broker.port).close()
        assert "connections are refused: 3 are open" in broker.log_text()
        several.pop().close()
        wait_for(lambda: answers(broker), "there is room for one again")


def answers(broker: Broker) -> bool:
    try:
        return Api(broker)("GET", "/api/whoami").status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_a_quarter_of_the_descriptors_is_the_share_of_http(http_broker: Broker) -> None:
    _, hard = resource.prlimit(http_broker.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(http_broker.pid, resource.RLIMIT_NOFILE, (240, hard))
    with ExitStack() as stack:
        several = [stack.enter_context(connected(http_broker)) for _ in range(61)]
        assert rest(several[-1]).startswith(b"HTTP/1.1 503 ")

        for _ in range(30):
            stack.enter_context(Wire.open(http_broker.port))
