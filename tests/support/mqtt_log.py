"""An independent writer and reader of the logs of MQTT, as docs/formats.md describes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

RETAINED, SESSIONS = 1, 2
HEADER = struct.Struct("<IIQQ")
HEAD = struct.Struct("<IIQ")
VERSION = 1
SALT = 0x0123456789ABCDEF
_MASK = (1 << 64) - 1


def _fold(a: int, b: int) -> int:
    product = a * b
    return (product & _MASK) ^ (product >> 64)


def hash_bytes(data: bytes, seed: int) -> int:
    """The hash of `cext/bytes.pxd`."""
    h = seed ^ 0x9E3779B97F4A7C15
    n = left = len(data)
    at = 0
    while left > 16:
        a, b = struct.unpack_from("<QQ", data, at)
        h = _fold(a ^ 0xA0761D6478BD642F, b ^ h)
        at += 16
        left -= 16
    rest = data[at:]
    a = b = 0
    if left >= 8:
        a, b = struct.unpack("<Q", rest[:8])[0], struct.unpack("<Q", rest[-8:])[0]
    elif left >= 4:
        a, b = struct.unpack("<I", rest[:4])[0], struct.unpack("<I", rest[-4:])[0]
    elif left:
        a = rest[0] << 16 | rest[left >> 1] << 8 | rest[-1]
    return _fold(0xE7037ED1A0B428DB ^ n, _fold(a ^ 0x8EBC6AF09C88C6E3, b ^ h))


def header(kind: int, version: int = VERSION) -> bytes:
    """What a file begins with."""
    first = struct.pack("<IIQ", version, kind, SALT)
    return first + struct.pack("<Q", hash_bytes(first, VERSION))


def entry(body: bytes, number: int, position: int) -> bytes:
    """A whole entry at a position of a file."""
    seed = SALT ^ number << 32 ^ position
    size = struct.pack("<I", len(body))
    mark = hash_bytes(size, seed) & 0xFFFFFFFF
    data = size + struct.pack("<IQ", mark, hash_bytes(body, seed)) + body
    return data + bytes(-len(data) % 8)


def file_of(kind: int, bodies: Iterable[bytes], number: int = 1) -> bytes:
    """A file with these entries."""
    data = header(kind)
    for body in bodies:
        data += entry(body, number, len(data))
    return data


def bodies_in(data: bytes, number: int) -> Iterator[bytes]:
    """The entries of a file that is whole."""
    version, _kind, salt, check = HEADER.unpack_from(data)
    assert (version, check) == (VERSION, hash_bytes(data[:16], VERSION))
    at = HEADER.size
    while at < len(data):
        size, mark, check = HEAD.unpack_from(data, at)
        seed = salt ^ number << 32 ^ at
        body = data[at + HEAD.size : at + HEAD.size + size]
        assert mark == hash_bytes(data[at : at + 4], seed) & 0xFFFFFFFF
        assert check == hash_bytes(body, seed)
        yield body
        at += (HEAD.size + size + 7) & ~7


def split(data: bytes) -> list[bytes]:
    """Bodies in an input of a fuzzer: each behind its length, a big-endian u16."""
    found = []
    while len(data) > 2:
        size = int.from_bytes(data[:2], "big")
        if data[2 : 2 + size]:
            found.append(data[2 : 2 + size])
        data = data[2 + size :]
    return found


def joined(bodies: Iterable[bytes]) -> bytes:
    """The input that stands for these bodies."""
    return b"".join(len(body).to_bytes(2, "big") + body for body in bodies)


def file_from(kind: int, data: bytes) -> bytes:
    """The file that an input of a fuzzer stands for: its first byte says whether the rest are
    bodies of entries that are whole, or any file."""
    return file_of(kind, split(data[1:])) if data[:1] == b"\1" else data[1:]
