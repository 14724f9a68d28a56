"""Connections of MQTT 3.1.1 for lavinmqperf: packets as bytes, and a socket up to its engine.

A TLS connection is one for the engine, too: a thread carries its bytes, in blocks.
"""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import ssl
import threading
from dataclasses import dataclass
from socket import socket as Socket
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit

from lavinmq.cli.perf.peer import reach
from lavinmq.client.errors import ConnectionLost, Error

TIMEOUT_S = 15.0
BLOCK_BYTES = 65536
PORTS = {"mqtt": 1883, "mqtts": 8883}
KEPT_CLOSED = b"\xe0\0"
"""DISCONNECT."""
CONNACK_BYTES = 4
CODES = {
    1: "the broker does not speak this version",
    2: "the client identifier is refused",
    3: "the broker is not available",
    4: "bad user name or password",
    5: "not authorised",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is, and who goes there. `user`: None for nobody; `verifies`: that it is it."""

    host: str
    port: int
    user: str | None
    password: str
    is_tls: bool
    verifies: bool


def parse_uri(uri: str) -> Address:
    """Read `mqtt://user:password@host:port`, or `mqtts`, with `verify=none` or `verify=peer`.

    Raises: ValueError with a message for people.
    """
    expected = f"invalid URI '{uri}': expected mqtt://user:password@host:port, or mqtts"
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"invalid URI '{uri}': {error}") from None
    if parts.scheme not in PORTS or not uri.lower().startswith(f"{parts.scheme}://"):
        raise ValueError(expected)
    verify = parse_qs(parts.query).get("verify", ["peer"])[-1]
    if verify not in ("none", "peer"):
        raise ValueError(f"invalid URI '{uri}': verify is none or peer")
    return Address(
        unquote(parts.hostname or "localhost"),
        PORTS[parts.scheme] if port is None else port,
        "guest" if parts.username is None else unquote(parts.username) or None,
        unquote("guest" if parts.password is None else parts.password),
        parts.scheme == "mqtts",
        verify == "peer",
    )


# --- packets


def varint(number: int) -> bytes:
    """A remaining length."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def text(value: str) -> bytes:
    """UTF-8 behind its length. Raises: ValueError for more than 65 535 bytes."""
    raw = value.encode()
    if len(raw) > 65535:
        raise ValueError("a topic, name or identifier has 65535 bytes at most")
    return len(raw).to_bytes(2, "big") + raw


def packet(first: int, body: bytes) -> bytes:
    """A whole packet."""
    return bytes([first]) + varint(len(body)) + body


def connect(address: Address, client_id: str, *, clean: bool) -> bytes:
    """CONNECT without keep alive."""
    flags, rest = 2 * clean, b""
    if address.user is not None:
        flags |= 0xC0
        rest = text(address.user) + text(address.password)
    return packet(0x10, text("MQTT") + bytes([4, flags, 0, 0]) + text(client_id) + rest)


def publish(topic: str, body: bytes, qos: int, *, retain: bool) -> bytes:
    """PUBLISH; with QoS 1 its identifier is 0, to be filled in. Raises: ValueError."""
    if not topic or "+" in topic or "#" in topic:
        raise ValueError(f"'{topic}' is no topic to publish to")
    head = text(topic) + (b"\0\0" if qos else b"")
    return packet(0x30 | qos << 1 | retain, head + body)


def subscribe(topic: str, qos: int, packet_id: int = 1) -> bytes:
    """SUBSCRIBE with one filter."""
    return packet(0x82, packet_id.to_bytes(2, "big") + text(topic) + bytes([qos]))


def check_connack(reply: bytes) -> None:
    """Raises: Error when a CONNACK says no."""
    if reply[:2] != b"\x20\x02":
        raise ConnectionLost("the server sent what MQTT does not allow here")
    if reply[3]:
        raise Error(CODES.get(reply[3], f"refused with code {reply[3]}"))


# --- connections


class Connection:
    """One open connection. Raises: OSError, Error."""

    def __init__(self, sock: Socket) -> None:
        self._socket = sock
        self._unread = b""
        self._is_resumed = False

    @classmethod
    def open(cls, address: Address, client_id: str = "", *, clean: bool = True) -> Self:
        """Connect and log in. An empty identifier stands for one that nobody else has."""
        sock = reach(address.host, address.port)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made = cls(_encrypted(sock, address) if address.is_tls else sock)
            client_id = client_id or f"lavinmqperf-{secrets.token_hex(8)}"
            made.send(connect(address, client_id, clean=clean))
            reply = made.read(CONNACK_BYTES)
            check_connack(reply)
            made._is_resumed = reply[2] == 1
        except BaseException:
            sock.close()
            raise
        return made

    @property
    def socket(self) -> Socket:
        """Whoever takes it closes it."""
        return self._socket

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._socket.sendall(data)

    def read(self, n: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._unread) < n:
            data = self._socket.recv(BLOCK_BYTES)
            if not data:
                raise ConnectionLost("connection closed by the server")
            self._unread += data
        found, self._unread = self._unread[:n], self._unread[n:]
        return found

    def subscribe(self, topic: str, qos: int) -> None:
        """Subscribe, and wait until that is granted; not where messages come before, because the
        session was there: then the answer is left to who takes them."""
        self.send(subscribe(topic, qos))
        if self._is_resumed:
            return
        reply = self.read(5)
        if reply[:2] != b"\x90\x03":
            raise ConnectionLost("the server sent what MQTT does not allow here")
        if reply[4] > qos:
            raise Error(f"the subscription to '{topic}' is refused")

    def detach(self) -> tuple[int, bytes]:
        """Lend the socket out: its descriptor, and what was read already."""
        unread, self._unread = self._unread, b""
        self._socket.setblocking(False)
        return self._socket.fileno(), unread

    def close(self) -> None:
        """Say goodbye, and close."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(KEPT_CLOSED)
            self._socket.shutdown(socket.SHUT_WR)
        self.abort()

    def abort(self) -> None:
        """Close without a word. Idempotent."""
        self._socket.close()


def _encrypted(sock: socket.socket, address: Address) -> socket.socket:
    """A socket on the near side of a TLS connection."""
    context = ssl.create_default_context()
    if not address.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    far = context.wrap_socket(sock, server_hostname=address.host)
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT_S)
    threading.Thread(target=_carry, args=(far, theirs), daemon=True).start()
    return ours


def _carry(far: ssl.SSLSocket, near: socket.socket) -> None:
    """Carry bytes between a TLS connection and a socket, until one of them ends."""
    far.setblocking(False)
    near.setblocking(False)
    to_far, to_near = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector, far, near:
        for each in (far, near):
            selector.register(each, selectors.EVENT_READ)
        with contextlib.suppress(OSError):
            while True:
                is_at_end = not (_pull(near, to_far) and _pull(far, to_near))
                _push(far, to_far)
                _push(near, to_near)
                if is_at_end:
                    return
                _want(selector, far, bool(to_far), len(to_near) < BLOCK_BYTES)
                _want(selector, near, bool(to_near), len(to_far) < BLOCK_BYTES)
                if not far.pending():
                    selector.select()


def _want(
    selector: selectors.BaseSelector, sock: socket.socket, writes: bool, reads: bool
) -> None:  # fmt: skip
    events = selectors.EVENT_WRITE * writes | selectors.EVENT_READ * reads
    selector.modify(sock, events or selectors.EVENT_WRITE)


def _pull(sock: socket.socket, into: bytearray) -> bool:
    """Read what is there, if there is room. Returns: False at the end."""
    if len(into) >= BLOCK_BYTES:
        return True
    try:
        data = sock.recv(BLOCK_BYTES)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    into += data
    return bool(data)


def _push(sock: socket.socket, out: bytearray) -> None:
    """Send what goes."""
    while out:
        try:
            n = sock.send(bytes(out[:BLOCK_BYTES]))
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        del out[:n]
