"""Headers of the PROXY protocol, version 2, as a proxy writes them."""

from __future__ import annotations

import struct

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def v2(rest: bytes, command: int = 0x21, family: int = 0x11) -> bytes:
    """A header: addresses and entries behind the fixed part."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest)) + rest


def entry(kind: int, value: bytes) -> bytes:
    """One entry."""
    return struct.pack("!BH", kind, len(value)) + value


def ssl_entry(client: int = 1) -> bytes:
    """What the client's TLS was like."""
    inner = (
        entry(0x21, b"TLSv1.3") + entry(0x22, b"client") + entry(0x23, b"TLS_AES_128_GCM_SHA256")
    )
    return entry(0x20, struct.pack("!BI", client, 0) + inner)
