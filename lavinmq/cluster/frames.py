"""What nodes say to each other before changes flow: who they are, and JSON with a length before it.

Both prove that they have the cluster's secret, which never crosses. All is bounded, in bytes and in
time. Blocking sockets, or TLS over them (certificates.py), in threads. Source: docs/clustering.md.

    follower: "LAVINMQ-CLUSTER1" nonce(32)
    leader:   "LAVINMQ-CLUSTER1" nonce(32) hmac(secret, "leader" follower's nonce, leader's nonce)
    follower: hmac(secret, "follower" leader's nonce, follower's nonce)
    both:     frames: length:u32 JSON                                            (little-endian)

A leader that refuses may send a frame at any time: {"refused": why}.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import time
from contextlib import suppress
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

if TYPE_CHECKING:
    from lavinmq._cluster import BlockReceiver, BlockSender, Channel

Link: TypeAlias = "socket.socket | Channel"
"""With another node: plain, or with TLS."""
Connection: TypeAlias = "Link | BlockSender | BlockReceiver"
"""The same, or one whose stream goes in blocks."""

MAGIC: Final = b"LAVINMQ-CLUSTER1"
NONCE: Final = 32
MOST: Final = 4 << 20
PIECE: Final = 1 << 18
GREETING_S: Final = 5.0
GONE_MS: Final = 10_000
PART_S: Final = 1.0
PART_BYTES: Final = 1 << 16
MOST_REFUSED: Final = 4096
TLS_HANDSHAKE: Final = 0x16
"""The first byte of a node that speaks TLS."""
_LENGTH: Final = Struct("<I")
_LAST_ACK: Final = Struct("56xI")
"""`tcpi_last_ack_recv` of what the kernel knows of a connection: milliseconds."""


class PeerError(Exception):
    """The node at the other end says what it must not, or is none of this cluster."""


def tune(sock: socket.socket) -> None:
    """Have the kernel send at once, and notice within seconds that the other node is not there.
    Raises: OSError."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, GONE_MS)


def is_heard(sock: socket.socket, within_s: float) -> bool:
    """Whether the other machine has acknowledged something within a time, of a connection by which
    something is sent all the time."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK.size)
    except OSError:
        return False
    return len(info) == _LAST_ACK.size and _LAST_ACK.unpack(info)[0] < within_s * 1000


def words(error: Exception) -> str:
    """Why it has failed, for people."""
    text = getattr(error, "strerror", None) or str(error)
    _, is_alert, alert = text.rpartition("ALERT_")
    return f"TLS: it says: {alert.lower().replace('_', ' ')}" if is_alert else text


def part(sock: Connection) -> None:
    """Let the other node read what it was told last: when a connection is closed that still brings
    something, what is on its way is lost. Takes a second at most."""
    ends_at, n = time.monotonic() + PART_S, 0
    with suppress(OSError):
        sock.shutdown(socket.SHUT_WR)
        while n < PART_BYTES and (left := ends_at - time.monotonic()) > 0:
            sock.settimeout(left)
            piece = sock.recv(PART_BYTES)
            if not piece:
                return
            n += len(piece)


def send(sock: Connection, value: dict[str, Any]) -> None:
    """Send a frame. Raises: OSError."""
    data = orjson.dumps(value)
    sock.sendall(_LENGTH.pack(len(data)) + data)


def receive(sock: Connection, most: int = MOST) -> dict[str, Any]:
    """The next frame. Raises: OSError, PeerError."""
    (n,) = _LENGTH.unpack(exactly(sock, _LENGTH.size))
    if n > most:
        raise PeerError(f"a frame of {n} bytes, at most {most} are read")
    return _taken(exactly(sock, n))


def _taken(data: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise PeerError(f"a frame that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise PeerError("a frame that is no object")
    if isinstance(value.get("refused"), str):
        raise PeerError(f"refused: {value['refused'][:500]}")
    return value


def exactly(sock: Connection, n: int) -> bytes:
    """So many bytes. Raises: OSError."""
    data = bytearray()
    while len(data) < n:
        data += some(sock, n - len(data))
    return bytes(data)


def some(sock: Connection, most: int) -> bytes:
    """What there is, one byte at least, so many at most. Raises: OSError."""
    piece = sock.recv(min(most, PIECE))
    if not piece:
        raise ConnectionResetError("the other node has closed the connection")
    return piece


def number(value: dict[str, Any], name: str) -> int:
    """A field that is a number, not below 0. Raises: PeerError."""
    found = value.get(name)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise PeerError(f"{name!r} is {found!r}, not a number")
    return found


def text(value: dict[str, Any], name: str) -> str:
    """A field that is a text. Raises: PeerError."""
    found = value.get(name)
    if not isinstance(found, str):
        raise PeerError(f"{name!r} is {found!r}, not a text")
    return found


def items(value: dict[str, Any], name: str) -> list[Any]:
    """A field that is a list. Raises: PeerError."""
    found = value.get(name)
    if not isinstance(found, list):
        raise PeerError(f"{name!r} is {found!r}, not a list")
    return found


def _proof(secret: bytes, who: bytes, theirs: bytes, ours: bytes) -> bytes:
    return hmac.digest(secret, who + theirs + ours, hashlib.sha256)


def greet_leader(sock: Connection, secret: bytes) -> None:
    """A follower's half. Raises: OSError, PeerError."""
    sock.settimeout(GREETING_S)
    ours = os.urandom(NONCE)
    sock.sendall(MAGIC + ours)
    begin = exactly(sock, len(MAGIC))
    if begin != MAGIC:
        _refused(sock, begin)
        raise PeerError("it is no node of a cluster of this release")
    theirs = exactly(sock, NONCE)
    if not hmac.compare_digest(exactly(sock, 32), _proof(secret, b"leader", ours, theirs)):
        raise PeerError("it does not have the secret of this cluster")
    sock.sendall(_proof(secret, b"follower", theirs, ours))


def _refused(sock: Connection, begin: bytes) -> None:
    """If that is how a refusal begins, raise it. Raises: OSError, PeerError."""
    (n,) = _LENGTH.unpack_from(begin)
    left = n - (len(begin) - _LENGTH.size)
    if begin[_LENGTH.size :].startswith(b'{"refused":') and 0 < left < MOST_REFUSED:
        _taken(begin[_LENGTH.size :] + exactly(sock, left))


def greet_follower(sock: Connection, secret: bytes) -> None:
    """A leader's half. Raises: OSError, PeerError."""
    sock.settimeout(GREETING_S)
    begin = exactly(sock, len(MAGIC))
    if begin[0] == TLS_HANDSHAKE:
        raise PeerError("it speaks TLS, for which 'tls_cert' in [clustering] is missing here")
    if begin != MAGIC:
        raise PeerError("it is no node of a cluster of this release")
    theirs, ours = exactly(sock, NONCE), os.urandom(NONCE)
    sock.sendall(MAGIC + ours + _proof(secret, b"leader", theirs, ours))
    if not hmac.compare_digest(exactly(sock, 32), _proof(secret, b"follower", ours, theirs)):
        raise PeerError("it does not have the secret of this cluster")
