"""An independent reader of the files a broker writes, for comparing them byte by byte.

Reads message segments, ack files, meta files and definitions of a stopped broker, and writes the
bytes a record must have. Shares no code with the broker, on purpose: it is a second reading of
the storage format. Source: docs/formats.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SEGMENT_VERSION = 4
DEFINITIONS_VERSION = 1
FIRST_POSITION = 4
TIMESTAMP_SIZE = 8
FRAME_END = 0xCE

SHORT_STRING, TABLE, OCTET, TIMESTAMP = "short string", "table", "octet", "timestamp"
PROPERTIES = (
    ("content_type", 0x8000, SHORT_STRING),
    ("content_encoding", 0x4000, SHORT_STRING),
    ("headers", 0x2000, TABLE),
    ("delivery_mode", 0x1000, OCTET),
    ("priority", 0x0800, OCTET),
    ("correlation_id", 0x0400, SHORT_STRING),
    ("reply_to", 0x0200, SHORT_STRING),
    ("expiration", 0x0100, SHORT_STRING),
    ("message_id", 0x0080, SHORT_STRING),
    ("timestamp", 0x0040, TIMESTAMP),
    ("type", 0x0020, SHORT_STRING),
    ("user_id", 0x0010, SHORT_STRING),
    ("app_id", 0x0008, SHORT_STRING),
    ("reserved", 0x0004, SHORT_STRING),
)

Property = bytes | int


class FormatError(Exception):
    """A file is not what the format says."""


@dataclass(frozen=True, slots=True)
class Record:
    """A message record. `raw` is all of it, `position` where it starts in its segment."""

    position: int
    timestamp_ms: int
    exchange: bytes
    routing_key: bytes
    properties: Mapping[str, Property]
    body: bytes
    raw: bytes

    @property
    def without_timestamp(self) -> bytes:
        """The bytes that do not depend on when the message came."""
        return self.raw[TIMESTAMP_SIZE:]


@dataclass(frozen=True, slots=True)
class Definition:
    """One record of definitions.amqp; `fields` is what follows the method id."""

    class_id: int
    method_id: int
    fields: bytes
    raw: bytes


def directory_name(name: str) -> str:
    """Return the directory name of a vhost or queue."""
    return hashlib.sha1(name.encode()).hexdigest()


def queue_directory(data_dir: Path, queue: str, vhost: str = "/") -> Path:
    """Return where a durable queue keeps its files."""
    return data_dir / directory_name(vhost) / directory_name(queue)


def segment_path(directory: Path, number: int = 1) -> Path:
    """Return the path of a message segment."""
    return directory / f"msgs.{number:010}"


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of the segments a queue directory holds."""
    return sorted(int(path.suffix[1:]) for path in directory.glob("msgs.*"))


def read_segment(path: Path) -> list[Record]:
    """Return every record of a segment. Raises FormatError when the rest is not zero bytes."""
    data = path.read_bytes()
    if data[:FIRST_POSITION] != struct.pack("<i", SEGMENT_VERSION):
        raise FormatError(f"{path}: starts with {data[:FIRST_POSITION].hex()}")
    return list(_records(path, data))


def read_live_segment(path: Path) -> list[Record]:
    """Return the records of a segment of a running broker, which may have filling behind them."""
    found = []
    with suppress(FormatError):
        for record in _records(path, path.read_bytes()):
            found.append(record)
    return found


def readable_end(path: Path) -> int:
    """Return where the first thing stands that cannot be a record, reading one after the other."""
    end = FIRST_POSITION
    records = _records(path, path.read_bytes())
    with suppress(FormatError):
        for record in records:
            end = record.position + len(record.raw)
    return end


def read_acks(path: Path) -> list[int]:
    """Return the positions of an ack file in the order written, without the zero tail."""
    data = path.read_bytes()
    if len(data) % 4:
        raise FormatError(f"{path}: {len(data)} bytes are no whole number of positions")
    positions = [position for (position,) in struct.iter_unpack("<I", data)]
    used = positions.index(0) if 0 in positions else len(positions)
    if any(positions[used:]):
        raise FormatError(f"{path}: positions behind the end at {used}")
    return positions[:used]


def read_queue(directory: Path) -> list[Record]:
    """Return the records of all segments of a queue that no ack file names, oldest first."""
    live = []
    for number in segment_numbers(directory):
        acks = directory / f"acks.{number:010}"
        deleted = set(read_acks(acks)) if acks.exists() else set()
        records = read_segment(segment_path(directory, number))
        live += [record for record in records if record.position not in deleted]
    return live


def read_meta(path: Path) -> int:
    """Return the message count of a finished segment."""
    data = path.read_bytes()
    if len(data) != 4:
        raise FormatError(f"{path}: {len(data)} bytes, wanted 4")
    return int.from_bytes(data, "little")


def read_definitions(path: Path) -> list[Definition]:
    """Return every record of a definitions.amqp."""
    data = path.read_bytes()
    if data[:4] != struct.pack("<i", DEFINITIONS_VERSION):
        raise FormatError(f"{path}: starts with {data[:4].hex()}")
    return list(_definitions(path, data))


def encode_record(
    exchange: bytes, routing_key: bytes, properties: Mapping[str, Property], body: bytes
) -> bytes:
    """Return a record's bytes but for its timestamp. `headers` is the table's content as sent."""
    flags = sum(flag for name, flag, _ in PROPERTIES if name in properties)
    values = [
        _encode_property(properties[name], kind)
        for name, _, kind in PROPERTIES
        if name in properties
    ]
    names = _short_string(exchange) + _short_string(routing_key)
    return names + struct.pack("<H", flags) + b"".join(values) + struct.pack("<Q", len(body)) + body


def _encode_property(value: Property, kind: str) -> bytes:
    if isinstance(value, bytes):
        return (
            _short_string(value) if kind == SHORT_STRING else struct.pack("<I", len(value)) + value
        )
    return struct.pack("<q" if kind == TIMESTAMP else "<B", value)


def _short_string(value: bytes) -> bytes:
    return bytes([len(value)]) + value


class _Cursor:
    """Walks over a record or frame; running past the end is a FormatError."""

    def __init__(self, path: Path, data: bytes, position: int) -> None:
        self._path = path
        self._data = data
        self.position = position

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self._data):
            raise FormatError(f"{self._path}: cut at {self.position}, {size} bytes wanted")
        taken = self._data[self.position : end]
        self.position = end
        return taken

    def number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def short_string(self) -> bytes:
        return self.take(self.number(1))

    def property(self, kind: str) -> Property:
        if kind == SHORT_STRING:
            return self.short_string()
        if kind == TABLE:
            return self.take(self.number(4))
        return self.number(8, signed=True) if kind == TIMESTAMP else self.number(1)


def _records(path: Path, data: bytes) -> Iterator[Record]:
    cursor = _Cursor(path, data, FIRST_POSITION)
    while cursor.position < len(data):
        start = cursor.position
        if not any(data[start : start + TIMESTAMP_SIZE]):
            if data.count(0, start) != len(data) - start:
                raise FormatError(f"{path}: something stands behind the end at {start}")
            return
        yield _record(data, cursor)


def _record(data: bytes, cursor: _Cursor) -> Record:
    start = cursor.position
    timestamp_ms = cursor.number(TIMESTAMP_SIZE, signed=True)
    exchange = cursor.short_string()
    routing_key = cursor.short_string()
    flags = cursor.number(2)
    if flags & 0b11:
        raise FormatError(f"record at {start}: property flags {flags:016b}")
    properties = {name: cursor.property(kind) for name, flag, kind in PROPERTIES if flags & flag}
    body = cursor.take(cursor.number(8))
    raw = data[start : cursor.position]
    return Record(start, timestamp_ms, exchange, routing_key, properties, body, raw)


def _definitions(path: Path, data: bytes) -> Iterator[Definition]:
    cursor = _Cursor(path, data, 4)
    while cursor.position < len(data):
        start = cursor.position
        # The channel is that of the client that declared, or 0: it has no meaning here.
        frame_type, _, size = struct.unpack("<BHI", cursor.take(7))
        class_id, method_id = struct.unpack("<HH", cursor.take(4))
        fields = cursor.take(size - 4)
        end = cursor.number(1)
        if (frame_type, end) != (1, FRAME_END):
            raise FormatError(f"{path}: no frame at {start}")
        yield Definition(class_id, method_id, fields, data[start : cursor.position])
