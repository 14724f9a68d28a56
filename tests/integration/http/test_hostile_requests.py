"""Requests that two readers could take for different ones: none is taken for more than it is.

What stands behind such a request would be answered to a proxy that takes it for a body.
"""

from __future__ import annotations

import socket

import pytest

from tests.support.broker import Broker

HOST = b"Host: localhost\r\n"
BEHIND = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LOGIN = b"Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
PUT = b"PUT /api/vhosts/%2F HTTP/1.1\r\n" + HOST + LOGIN


def answers(broker: Broker, request: bytes) -> list[int]:
    """The statuses of all answers until the broker closes the connection."""
    with socket.create_connection((broker.host, broker.http_port), timeout=20) as connection:
        connection.sendall(request)
        got = b""
        while data := connection.recv(65536):
            got += data
    return [int(each[:3]) for each in got.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"0x2\r\n{}\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked\r\n", b"2\n{}\n0\n\n"),
        (b"Content-Length: 2\r\nContent-Length: 9\r\n", b"{}"),
        (b"Content-Length: +2\r\n", b"{}"),
        (b"Content-Length: -1\r\n", b"{}"),
        (b"Content-Length: \xb2\r\n", b"{}"),
        (b"Content-Length: 2\r\n" + HOST, b"{}"),
        (b"X: a\rContent-Length: 2\r\n", b"{}"),
        (b"X: a\0b\r\n", b""),
    ],
)
def test_a_request_of_uncertain_length_is_refused_with_all_behind_it(
    broker: Broker, head: bytes, body: bytes
) -> None:
    assert answers(broker, PUT + head + b"\r\n" + body + BEHIND) == [400]


def test_what_is_certain_is_answered_with_what_stands_behind_it(broker: Broker) -> None:
    assert answers(broker, PUT + b"Content-Length: 2\r\n\r\n{}" + BEHIND)[1:] == [200]


def test_a_length_beyond_all_numbers_leaves_no_body(broker: Broker) -> None:
    length = b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"
    assert answers(broker, PUT + length + b"{}") in ([400], [413])


@pytest.mark.parametrize("method", [b"TRACE", b"CONNECT", b"get"])
def test_a_method_that_nobody_knows_is_no_bug(broker: Broker, method: bytes) -> None:
    request = method + b" /api/users HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"

    assert answers(broker, request) == [405]

    assert "Uncaught exception" not in broker.log_text()
