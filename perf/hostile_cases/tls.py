"""Floods below the application: records of one byte, and new keys again and again.

OpenSSL makes what is sent, in memory, and it is sent at once: the broker finds all of it. Python's
own module has no way to ask for new keys, so the library is called by `ctypes`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from pamqp import commands

from perf.hostile_cases.peer import HOST, TIMEOUT_S, Broker, published
from tests.support import raw_wire as wire
from tests.support.raw_wire import build

RECORDS = 200_000
KEYS = 50_000
HEADER = b"AMQP\x00\x00\x09\x01"
_SET_MIN_VERSION, _SET_MAX_VERSION = 123, 124
VERSIONS = {"1.2": 0x0303, "1.3": 0x0304}
WANTED, NOT_WANTED = 1, 0
"""Whether the peer has to change its keys as well."""


class Tls:
    """A client of TLS whose records are bytes in memory. Source: OpenSSL's manual, ssl(7)."""

    def __init__(self, sock: socket.socket, version: str) -> None:
        name = ctypes.util.find_library("ssl")
        assert name, "there is no libssl"
        self._lib = lib = ctypes.CDLL(name)
        crypto = ctypes.CDLL(ctypes.util.find_library("crypto"))
        for function in (lib.TLS_client_method, lib.SSL_CTX_new, lib.SSL_new, crypto.BIO_s_mem,
                         crypto.BIO_new):  # fmt: skip
            function.restype = ctypes.c_void_p
        self._bio_read, self._bio_write = crypto.BIO_read, crypto.BIO_write
        self._pending = crypto.BIO_ctrl_pending
        self._pending.restype = ctypes.c_size_t
        context = ctypes.c_void_p(lib.SSL_CTX_new(ctypes.c_void_p(lib.TLS_client_method())))
        for option in (_SET_MIN_VERSION, _SET_MAX_VERSION):
            lib.SSL_CTX_ctrl(context, option, ctypes.c_long(VERSIONS[version]), None)
        self._ssl = ctypes.c_void_p(lib.SSL_new(context))
        memory = ctypes.c_void_p(crypto.BIO_s_mem())
        self._in, self._out = (ctypes.c_void_p(crypto.BIO_new(memory)) for _ in range(2))
        lib.SSL_set_bio(self._ssl, self._in, self._out)
        lib.SSL_set_connect_state(self._ssl)
        self._socket = sock
        while lib.SSL_do_handshake(self._ssl) != 1:
            sock.sendall(self.made())
            self._take(sock.recv(1 << 16))
        sock.sendall(self.made())

    def _take(self, data: bytes) -> None:
        assert data, "the broker has closed the connection"
        self._bio_write(self._in, data, len(data))

    def made(self) -> bytes:
        """What is to be sent."""
        buffer = ctypes.create_string_buffer(self._pending(self._out) or 1)
        n = self._bio_read(self._out, buffer, len(buffer))
        return buffer.raw[: max(0, n)]

    def write(self, data: bytes) -> None:
        """One record."""
        assert self._lib.SSL_write(self._ssl, data, len(data)) == len(data)

    def new_keys(self, kind: int) -> None:
        """A change of keys, of TLS 1.3."""
        assert self._lib.SSL_key_update(self._ssl, kind) == 1
        assert self._lib.SSL_do_handshake(self._ssl) == 1

    def hello(self) -> None:
        """A handshake anew, of TLS 1.2: the broker refuses it, or answers."""
        self._lib.SSL_renegotiate(self._ssl)
        self._lib.SSL_do_handshake(self._ssl)


@contextmanager
def _secured(broker: Broker, version: str) -> Iterator[tuple[socket.socket, Tls]]:
    with closing(socket.create_connection((HOST, broker.tls_port), TIMEOUT_S)) as sock:
        yield sock, Tls(sock, version)


def _flood(broker: Broker, sock: socket.socket, data: bytes) -> None:
    """Send it, and wait until the broker has answered, or closed, or has nothing more to say."""
    with broker.watched():
        # It may close, with a part of the flood unread.
        with suppress(TimeoutError, ConnectionError):
            sock.sendall(data)
            sock.settimeout(2.0)
            while sock.recv(1 << 16):
                pass
        time.sleep(0.5)


def _log_in(sock: socket.socket, tls: Tls) -> None:
    """Have channel 1 open; what the broker says is not looked at."""
    start_ok = wire.start_ok("guest", "guest")
    tune_ok = build(commands.Connection.TuneOk, channel_max=1, frame_max=131072, heartbeat=0)
    vhost = build(commands.Connection.Open, virtual_host="/")
    for said in (
        HEADER,
        wire.encode_method(0, start_ok),
        wire.encode_method(0, tune_ok) + wire.encode_method(0, vhost),
        wire.encode_method(1, build(commands.Channel.Open)),
    ):
        tls.write(said)
        sock.sendall(tls.made())
        assert sock.recv(1 << 16), "the broker has closed the connection"


def _records(broker: Broker, version: str) -> None:
    with _secured(broker, version) as (sock, tls):
        _log_in(sock, tls)
        one = published("", "nobody")
        for n in range(RECORDS):
            tls.write(one[n % len(one) : n % len(one) + 1])
        _flood(broker, sock, tls.made())


def tls_records(broker: Broker) -> None:
    """200 000 records of TLS 1.3 with a byte in each."""
    _records(broker, "1.3")


def tls_records_old(broker: Broker) -> None:
    """200 000 records of TLS 1.2 with a byte in each."""
    _records(broker, "1.2")


def _keys(broker: Broker, kind: int) -> None:
    with _secured(broker, "1.3") as (sock, tls):
        tls.write(HEADER)
        parts: list[Any] = []
        for _ in range(KEYS):
            tls.new_keys(kind)
            parts.append(tls.made())
        _flood(broker, sock, b"".join(parts))


def tls_keys(broker: Broker) -> None:
    """50 000 changes of keys of TLS 1.3, which the broker need not answer."""
    _keys(broker, NOT_WANTED)


def tls_keys_wanted(broker: Broker) -> None:
    """50 000 changes of keys of TLS 1.3, each of which wants one of the broker."""
    _keys(broker, WANTED)


CASES = (tls_records, tls_records_old, tls_keys, tls_keys_wanted)
