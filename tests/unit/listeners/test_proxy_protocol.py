"""Headers of the PROXY protocol: what is taken, what waits for more, what is refused."""

from __future__ import annotations

import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.listeners.endpoints import TlsInfo, plain
from lavinmq.listeners.proxy_protocol import (
    MAX_BYTES,
    V1_BYTES,
    V2_SIGNATURE,
    Header,
    Incomplete,
    ProxyError,
    TrustedSources,
    header_v2,
    parse,
)
from tests.support.proxy import entry, ssl_entry, v2

ADDRESSES_4 = socket.inet_aton("1.2.3.4") + socket.inet_aton("5.6.7.8") + b"\x00\x01\x00\x02"
ADDRESSES_6 = (
    socket.inet_pton(socket.AF_INET6, "2001:db8::1")
    + socket.inet_pton(socket.AF_INET6, "::ffff:9.9.9.9")
    + b"\xff\xff\x00\x00"
)


def headers() -> list[bytes]:
    """One of each kind that is taken."""
    return [
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
        b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n",
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN whatever it says\r\n",
        v2(ADDRESSES_4),
        v2(ADDRESSES_6, family=0x21),
        v2(ADDRESSES_4 + entry(4, b"") + ssl_entry() + entry(0xEA, b"vpc")),
        v2(b"", command=0x20, family=0),
        v2(bytes(216), family=0x31),
        v2(b"", family=0),
    ]


# --- what is taken


@pytest.mark.parametrize("header", headers())
@pytest.mark.parametrize("following", [b"", b"AMQP\x00\x00\x09\x01", bytes(20_000)])
def test_a_header_ends_where_the_client_begins(header: bytes, following: bytes) -> None:
    found = parse(header + following)

    assert found is not None
    assert found.size == len(header)


def test_version_1_names_both_ends() -> None:
    assert parse(b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n") == Header(
        32, ("1.2.3.4", 1), ("5.6.7.8", 2)
    )


def test_version_2_names_both_ends_and_shows_ipv4_plainly() -> None:
    found = parse(v2(ADDRESSES_6, family=0x21))

    assert found is not None
    assert (found.peer, found.local) == (("2001:db8::1", 65535), ("9.9.9.9", 0))


@pytest.mark.parametrize(
    "header",
    [
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        v2(ADDRESSES_4, command=0x20),
        v2(b"", family=0),
        v2(bytes(216), family=0x31),
    ],
)
def test_without_addresses_those_of_the_socket_are_right(header: bytes) -> None:
    found = parse(header)

    assert found is not None
    assert (found.peer, found.local) == (None, None)


def test_the_ssl_entry_tells_version_and_cipher_among_unknown_entries() -> None:
    found = parse(v2(ADDRESSES_4 + entry(0x99, b"?" * 300) + ssl_entry() + entry(1, b"h2")))

    assert found is not None
    assert found.tls == TlsInfo("TLSv1.3", "TLS_AES_128_GCM_SHA256")


def test_an_ssl_entry_of_a_client_without_tls_tells_nothing() -> None:
    found = parse(v2(ADDRESSES_4 + ssl_entry(client=0)))

    assert found is not None
    assert found.tls is None


@pytest.mark.parametrize(
    "data", [b"AMQP\x00\x00\x09\x01", b"\x10\x0e\x00\x04MQTT", b"POST /", b"\r\nx", b"PROXYS"]
)
def test_other_beginnings_are_no_header(data: bytes) -> None:
    assert parse(data) is None


# --- what waits


@pytest.mark.parametrize("header", headers())
def test_every_part_of_a_header_waits_for_the_rest(header: bytes) -> None:
    for end in range(len(header)):
        with pytest.raises(Incomplete):
            parse(header[:end])


# --- what is refused


@pytest.mark.parametrize(
    "line",
    [
        "TCP4 1.2.3.4 5.6.7.8 1",
        "TCP4 1.2.3.4 5.6.7.8 1 2 3",
        "TCP4  1.2.3.4 5.6.7.8 1 2",
        "TCP4 1.2.3 5.6.7.8 1 2",
        "TCP4 ::1 ::1 1 2",
        "TCP6 1.2.3.4 5.6.7.8 1 2",
        "TCP4 1.2.3.4 5.6.7.8 65536 2",
        "TCP4 1.2.3.4 5.6.7.8 -1 2",
        "TCP4 1.2.3.4 5.6.7.8 \u00b2 2",
        "TCP4 1.2.3.4\0 5.6.7.8 1 2",
        "UDP4 1.2.3.4 5.6.7.8 1 2",
        "",
        " ",
    ],
)
def test_a_malformed_line_is_refused(line: str) -> None:
    with pytest.raises(ProxyError):
        parse(f"PROXY {line}\r\n".encode())


def test_a_line_may_take_107_bytes_with_its_end() -> None:
    longest = b"PROXY UNKNOWN ".ljust(V1_BYTES - 2, b"x") + b"\r\n"
    assert parse(longest) == Header(V1_BYTES)

    with pytest.raises(ProxyError, match="107 bytes"):
        parse(b"x".join((longest[:20], longest[20:])))


@pytest.mark.parametrize(
    "header",
    [
        v2(ADDRESSES_4, command=0x11),
        v2(ADDRESSES_4, command=0x22),
        v2(ADDRESSES_4, family=0x12),
        v2(ADDRESSES_4, family=0x21),
        v2(ADDRESSES_4[:-1]),
        v2(ADDRESSES_4 + b"\x20"),
        v2(ADDRESSES_4 + b"\x04\x00\x01"),
        v2(ADDRESSES_4 + entry(0x20, b"\x01\x00\x00\x00")),
        v2(ADDRESSES_4 + entry(0x20, b"\x01\x00\x00\x00\x00\x21\x00\x09x")),
    ],
)
def test_a_malformed_binary_header_is_refused(header: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(header)


def test_a_header_that_claims_too_much_is_refused_before_it_comes() -> None:
    with pytest.raises(ProxyError, match="at most"):
        parse(V2_SIGNATURE + struct.pack("!BBH", 0x21, 0x11, MAX_BYTES))


@given(st.one_of(st.binary(max_size=300), st.sampled_from(headers())), st.binary(max_size=40))
def test_any_bytes_are_taken_refused_or_waited_for(head: bytes, tail: bytes) -> None:
    data = head + tail
    try:
        found = parse(data)
    except (Incomplete, ProxyError):
        return
    assert found is None or 0 < found.size <= len(data)


# --- what is written

HOSTS = st.ip_addresses().map(str) | st.ip_addresses(v=4).map("::ffff:{}".format)
ENDS = st.tuples(HOSTS, st.integers(0, 65535))


@given(ENDS, ENDS, st.binary(max_size=40))
def test_what_is_written_is_read_back(
    peer: tuple[str, int], local: tuple[str, int], following: bytes
) -> None:
    header = header_v2(peer, local)

    found = parse(header + following)

    assert found is not None
    assert (found.size, found.tls) == (len(header), None)
    assert found.peer == (written(peer[0]), peer[1])
    assert found.local == (written(local[0]), local[1])


def written(host: str) -> str:
    """An address as the kernel writes it, which is not always how `ipaddress` does."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return plain(socket.inet_ntop(family, socket.inet_pton(family, host)))


@pytest.mark.parametrize(
    ("peer", "size"), [("10.0.0.1", 12), ("::ffff:10.0.0.1", 12), ("2001:db8::1", 36)]
)
def test_the_family_is_that_of_the_client(peer: str, size: int) -> None:
    header = header_v2((peer, 1), ("::1" if size == 36 else "127.0.0.1", 2))

    assert header[12:16] == struct.pack("!BBH", 0x21, 0x11 if size == 12 else 0x21, size)


def test_without_addresses_the_proxy_itself_speaks() -> None:
    header = header_v2(None, None)

    assert (header[12:], parse(header)) == (b"\x20\x00\x00\x00", Header(16))


# --- who is trusted


@pytest.mark.parametrize(
    ("networks", "host", "is_trusted"),
    [
        ((), "8.8.8.8", True),
        (("10.0.0.0/8", "::1"), "10.1.2.3", True),
        (("10.0.0.0/8", "::1"), "::ffff:10.1.2.3", True),
        (("10.0.0.0/8", "::1"), "::1", True),
        (("10.0.0.0/8", "::1"), "11.0.0.1", False),
        (("10.0.0.1/8",), "10.9.9.9", True),
        (("::ffff:10.0.0.0/104",), "10.9.9.9", True),
        (("2001:db8::/32",), "2001:db8::1", True),
        (("2001:db8::/32",), "10.0.0.1", False),
        (("192.168.1.1",), "192.168.1.2", False),
    ],
)
def test_trust_is_by_address_and_network(
    networks: tuple[str, ...], host: str, is_trusted: bool
) -> None:
    assert (host in TrustedSources(networks)) == is_trusted
