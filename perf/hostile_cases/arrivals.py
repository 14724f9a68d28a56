"""Connections that come and never get on, and requests in crumbs."""

from __future__ import annotations

import base64
import socket
import ssl
import time
from contextlib import ExitStack, suppress

from perf.hostile_cases.peer import HOST, TIMEOUT_S, Broker
from perf.measure import raise_descriptor_limit

MANY = 5_000
"""Connections."""
CHUNKS = 300_000
HEADER = b"AMQP\x00\x00\x09\x01"
# The first bytes of a record with a ClientHello that does not come.
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


def _come(broker: Broker, port: int, said: bytes) -> None:
    raise_descriptor_limit()
    with ExitStack() as stack, broker.watched():
        for n in range(MANY):
            sock = stack.enter_context(socket.socket())
            sock.bind((f"127.0.1.{1 + n % 250}", 0))
            with suppress(OSError):  # it may be refused
                sock.connect((HOST, port))
                sock.send(said)
        time.sleep(2)


def arrivals_amqp(broker: Broker) -> None:
    """5 000 connections that say only the header of AMQP."""
    _come(broker, broker.port, HEADER)


def arrivals_tls(broker: Broker) -> None:
    """5 000 connections that begin a handshake of TLS, and do not go on."""
    _come(broker, broker.tls_port, HALF_HELLO)


def arrivals_end(broker: Broker) -> None:
    """The end of 5 000 connections that have said only the header, at once."""
    raise_descriptor_limit()
    with ExitStack() as stack:
        for n in range(MANY):
            sock = stack.enter_context(socket.socket())
            sock.bind((f"127.0.1.{1 + n % 250}", 0))
            sock.connect((HOST, broker.port))
            sock.send(HEADER)
        time.sleep(2)
        with broker.watched():
            stack.close()
            time.sleep(1)


def handshakes_tls(broker: Broker) -> None:
    """500 whole handshakes of TLS, twenty under way at a time."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with broker.watched():
        for _ in range(25):
            with ExitStack() as stack:
                socks = [
                    stack.enter_context(
                        socket.create_connection((HOST, broker.tls_port), TIMEOUT_S)
                    )
                    for _ in range(20)
                ]
                secured = [
                    stack.enter_context(context.wrap_socket(sock, do_handshake_on_connect=False))
                    for sock in socks
                ]
                for each in secured:
                    each.do_handshake()


def http_chunks(broker: Broker) -> None:
    """A body in 300 000 chunks of one byte."""
    login = base64.b64encode(b"guest:guest").decode()
    head = (
        "POST /api/definitions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Basic {login}\r\nTransfer-Encoding: chunked\r\n"
        "Content-Type: application/json\r\n\r\n"
    )
    body = b"1\r\n{\r\n" + b"1\r\n \r\n" * CHUNKS + b"1\r\n}\r\n0\r\n\r\n"
    with broker.watched():
        sock = socket.create_connection((HOST, broker.http_port), TIMEOUT_S)
        with sock, sock.makefile("rb") as answer:
            sock.sendall(head.encode() + body)
            status = answer.readline()
    if b" 2" not in status[:12]:
        broker.refusals.append(status.decode(errors="replace").strip())


CASES = (arrivals_amqp, arrivals_tls, arrivals_end, handshakes_tls, http_chunks)
