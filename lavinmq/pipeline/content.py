"""The properties of a message as the wire has them: looked into, and given other headers.

Whoever moves messages uses this: everything but the header table stays as it came, byte by byte,
and of the table all entries that were not named. Source: AMQP 0-9-1 specification, section 4.2.6;
tables by `lavinmq.fieldtable`.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lavinmq import fieldtable
from lavinmq.fieldtable import FieldTable

# In the order of the wire: first one in the highest bit. s short string, F table, o octet, T time.
FIELDS = (
    *(("content_type", "s"), ("content_encoding", "s"), ("headers", "F"), ("delivery_mode", "o")),
    *(("priority", "o"), ("correlation_id", "s"), ("reply_to", "s"), ("expiration", "s")),
    *(("message_id", "s"), ("timestamp", "T"), ("type", "s"), ("user_id", "s"), ("app_id", "s")),
    ("cluster_id", "s"),
)
BIT = {name: 1 << (15 - place) for place, (name, _) in enumerate(FIELDS)}
SIZES = {"o": 1, "T": 8}


class ContentError(ValueError):
    """The bytes are no list of properties."""


@dataclass(frozen=True, slots=True)
class Properties:
    """Property flags, and the bytes before the header table, the table, and the bytes behind it."""

    flags: int = 0
    before: bytes = b""
    headers: FieldTable = fieldtable.EMPTY
    behind: bytes = b""
    user_id: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> Properties:
        """Read flags and list, as a content header has them. Raises: ContentError."""
        if len(data) < 2:
            raise ContentError("no property flags")
        (flags,) = struct.unpack_from(">H", data)
        if flags & 3:
            raise ContentError(f"property flags {flags:#06x} are not those of a message")
        at, before, user_id = 2, b"", None
        headers = fieldtable.EMPTY
        rest = 2
        for name, kind in FIELDS:
            if not flags & BIT[name]:
                continue
            if kind == "F":
                before = data[2:at]
                try:
                    headers, at = fieldtable.decode(data, at)
                except fieldtable.FieldTableError as error:
                    raise ContentError(str(error)) from None
                rest = at
                continue
            end = at + SIZES[kind] if kind != "s" else at + 1 + int.from_bytes(data[at : at + 1])
            if end > len(data) or at >= len(data):
                raise ContentError(f"property {name} is cut short")
            if name == "user_id":
                user_id = data[at + 1 : end].decode("utf-8", "surrogateescape")
            at = end
        if at != len(data):
            raise ContentError(f"{len(data) - at} bytes behind the properties")
        return cls(flags, before, headers, data[rest:], user_id)

    def amended(self, changes: Mapping[str, Any], removed: Collection[str] = ()) -> Properties:
        """Return them with headers set and left out. Raises: FieldTableError."""
        table = fieldtable.amended(self.headers, changes, removed)
        if self.flags & BIT["headers"]:
            return replace(self, headers=table)
        # Without a table all the bytes are `behind`; those that belong before it are cut off there.
        at = _end_of_strings(self.flags, self.behind)
        return replace(
            self,
            flags=self.flags | BIT["headers"],
            before=self.behind[:at],
            headers=table,
            behind=self.behind[at:],
        )

    def encode(self) -> bytes:
        """Return flags and list."""
        table = b""
        if self.flags & BIT["headers"]:
            table = struct.pack(">I", len(self.headers.raw)) + self.headers.raw
        return struct.pack(">H", self.flags) + self.before + table + self.behind


def _end_of_strings(flags: int, data: bytes) -> int:
    """Return where content_type and content_encoding end, which stand before the table."""
    at = 0
    for name in ("content_type", "content_encoding"):
        if flags & BIT[name]:
            at += 1 + data[at]
    return at
