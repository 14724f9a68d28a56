"""The header that a proxy writes in front of a connection to say whose it is, versions 1 and 2.

Bytes in, values out, and version 2 the other way; `arrival.py` reads the socket. Text of any length
comes from anybody, so everything is bounded and checked before it is used.

    v1  "PROXY " ("TCP4" | "TCP6") " " source " " destination " " port " " port CR LF
        "PROXY UNKNOWN" anything CR LF                          at most 107 bytes in all
    v2  signature, 12 bytes
        version (4 bits, 2), command (4 bits: 0 LOCAL, 1 PROXY)
        family (4 bits: 0 none, 1 IPv4, 2 IPv6, 3 unix), transport (4 bits: 0 none, 1 stream)
        length of the rest, 2 bytes
        source and destination address, source and destination port
        entries: type (1 byte), length (2 bytes), value; unknown types are skipped

Source: The PROXY protocol, versions 1 & 2 (haproxy.org), sections 2.1 and 2.2, docs/listeners.md.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lavinmq.listeners.endpoints import TlsInfo, plain

V1_PREFIX: Final = b"PROXY "
V1_BYTES: Final = 107
V2_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
V2_FIXED: Final = 16
MAX_BYTES: Final = 16384
"""Of a whole header; addresses take 52 and a client's certificate a few thousand."""
LOCAL, PROXY = 0, 1
V2_VERSION: Final = 2 << 4
IPV4, IPV6 = 0x11, 0x21
ADDRESS_SIZES: Final = {0x00: 0, IPV4: 12, IPV6: 36, 0x31: 216}
"""Bytes of the addresses, by family and transport."""
TYPE_SSL, SSL_VERSION, SSL_CIPHER = 0x20, 0x21, 0x23
CLIENT_SSL: Final = 1
"""Bit of the SSL entry: the client spoke TLS to the proxy."""
MAX_NAME: Final = 128


class ProxyError(Exception):
    """Bytes that begin like a header and are none."""


class Incomplete(Exception):
    """A header may be there, but not all of it."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a header says. Without addresses those of the socket are right."""

    size: int
    """Bytes that it takes; the client's own follow."""
    peer: tuple[str, int] | None = None
    local: tuple[str, int] | None = None
    tls: TlsInfo | None = None


def parse(data: bytes) -> Header | None:
    """Return the header at the beginning of a connection, or None when there is none.

    Args: data: what has come so far; MAX_BYTES are enough.
    Raises: Incomplete, ProxyError.
    """
    if data.startswith(V1_PREFIX):
        return _parse_v1(data)
    if data.startswith(V2_SIGNATURE):
        return _parse_v2(data)
    if V1_PREFIX.startswith(data) or V2_SIGNATURE.startswith(data):
        raise Incomplete
    return None


def header_v2(peer: tuple[str, int] | None, local: tuple[str, int] | None) -> bytes:
    """Return a header of version 2, as `parse` reads it; without addresses it says LOCAL.

    Args: peer, local: IP address and port of the client, and of what it has connected to.
    """
    if peer is None or local is None:
        return V2_SIGNATURE + struct.pack("!BBH", V2_VERSION | LOCAL, 0, 0)
    hosts = plain(peer[0]), plain(local[0])
    if any(":" in host for host in hosts):
        kind, family = IPV6, socket.AF_INET6
        hosts = _inside_ipv6(hosts[0]), _inside_ipv6(hosts[1])
    else:
        kind, family = IPV4, socket.AF_INET
    addresses = b"".join(socket.inet_pton(family, host) for host in hosts)
    rest = addresses + struct.pack("!HH", peer[1], local[1])
    return V2_SIGNATURE + struct.pack("!BBH", V2_VERSION | PROXY, kind, len(rest)) + rest


def _inside_ipv6(host: str) -> str:
    return host if ":" in host else f"::ffff:{host}"


def _parse_v1(data: bytes) -> Header:
    end = data.find(b"\r\n", 0, V1_BYTES)
    if end < 0:
        if len(data) < V1_BYTES:
            raise Incomplete
        raise ProxyError(f"no end of line within {V1_BYTES} bytes")
    words = data[:end].decode("ascii", "replace").split(" ")
    if words[1] == "UNKNOWN":
        return Header(end + 2)
    if len(words) != 6 or words[1] not in ("TCP4", "TCP6"):
        raise ProxyError("malformed line")
    family = socket.AF_INET if words[1] == "TCP4" else socket.AF_INET6
    peer, local = _host(family, words[2]), _host(family, words[3])
    return Header(end + 2, (peer, _port(words[4])), (local, _port(words[5])))


def _host(family: socket.AddressFamily, text: str) -> str:
    try:
        return plain(socket.inet_ntop(family, socket.inet_pton(family, text)))
    except (OSError, ValueError):
        raise ProxyError("malformed address") from None


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 5 or int(text) > 65535:
        raise ProxyError("malformed port")
    return int(text)


def _parse_v2(data: bytes) -> Header:
    if len(data) < V2_FIXED:
        raise Incomplete
    command, family, length = struct.unpack_from("!BBH", data, len(V2_SIGNATURE))
    if command >> 4 != 2 or command & 15 not in (LOCAL, PROXY):
        raise ProxyError(f"unknown version and command {command:#x}")
    size = V2_FIXED + length
    if size > MAX_BYTES:
        raise ProxyError(f"{size} bytes long, at most {MAX_BYTES} are read")
    if command & 15 == LOCAL:  # the proxy itself speaks, and the family counts for nothing
        if len(data) < size:
            raise Incomplete
        return Header(size)
    if family not in ADDRESS_SIZES:
        raise ProxyError(f"unknown family and transport {family:#x}")
    if length < ADDRESS_SIZES[family]:
        raise ProxyError("too short for its addresses")
    if len(data) < size:
        raise Incomplete
    rest = data[V2_FIXED:size]
    tls = _tls(rest[ADDRESS_SIZES[family] :])
    if family == IPV4:
        return Header(size, *_addresses(socket.AF_INET, rest, 4), tls)
    if family == IPV6:
        return Header(size, *_addresses(socket.AF_INET6, rest, 16), tls)
    return Header(size, tls=tls)


def _addresses(
    family: socket.AddressFamily, data: bytes, size: int
) -> tuple[tuple[str, int], tuple[str, int]]:
    ports = struct.unpack_from("!HH", data, 2 * size)
    peer = socket.inet_ntop(family, data[:size])
    local = socket.inet_ntop(family, data[size : 2 * size])
    return (plain(peer), ports[0]), (plain(local), ports[1])


def _tls(entries: bytes) -> TlsInfo | None:
    """Return what the SSL entry says, if there is one."""
    found = None
    for kind, value in _entries(entries):
        if kind != TYPE_SSL:
            continue
        if len(value) < 5:
            raise ProxyError("SSL entry is too short")
        if value[0] & CLIENT_SSL:
            inner = dict(_entries(value[5:]))
            found = TlsInfo(_name(inner.get(SSL_VERSION)), _name(inner.get(SSL_CIPHER)))
    return found


def _entries(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(data):
        if len(data) - at < 3:
            raise ProxyError("entry is cut off")
        kind, length = struct.unpack_from("!BH", data, at)
        at += 3
        if len(data) - at < length:
            raise ProxyError("entry is longer than the header")
        yield kind, data[at : at + length]
        at += length


def _name(value: bytes | None) -> str:
    return (value or b"")[:MAX_NAME].decode("ascii", "replace")


class TrustedSources:
    """The peers whose headers count: addresses and networks, or everybody if there are none."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self.texts = networks
        if networks:
            from ipaddress import ip_address, ip_network  # 1 MB that few installations need

            self._networks = tuple(ip_network(text, strict=False) for text in networks)
            self._ip_address = ip_address

    def __contains__(self, host: str) -> bool:
        if not self.texts:
            return True
        address = self._ip_address(plain(host))
        forms = [address]
        if address.version == 4:
            forms.append(self._ip_address(f"::ffff:{address}"))
        return any(form in network for network in self._networks for form in forms)
