"""Streams without a broker: consumers on channels of their own, and what is delivered to them.

For unit tests of `cext/stream/`; built on `tests/support/core.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lavinmq import _core
from lavinmq.arguments.stream import reading
from lavinmq.fieldtable import FieldTable, Value, decode
from tests.support.core import Bench, frame, publish

NAME = "s"
ACK, REJECT = 80, 90
HEADERS = 0x2000


def stored_offsets(core: _core.Queue) -> dict[bytes, int]:
    """Where consumers go on reading, by tag; the oldest commit comes first."""
    return {tag: offset for some in _core.StoredOffsets(core) for tag, offset in some}


class Delivery(NamedTuple):
    """One basic.deliver as the client sees it."""

    channel: int
    tag: int
    redelivered: bool
    offset: int
    headers: FieldTable
    body: bytes


class StreamBench(Bench):
    """A stream and its consumers; each consumer has a channel of its own."""

    def __init__(self, directory: Path, segment_size: int = 4096) -> None:
        super().__init__(directory)
        self.segment_size = segment_size
        self.notes: list[str] = []
        self.consumers: dict[int, _core.Consumer] = {}
        self._next_channel = 2
        self._taken: list[Delivery] = []
        self.open()

    def open(self, *, is_synced: bool = False, is_held: bool = False) -> None:
        """Load the stream from its directory; the arguments are those of `_core.Queue.load`."""
        self.core = _core.Queue(
            self.loop, str(self.directory / NAME), self.segment_size, True, is_stream=True
        )
        self.notes = self.core.load(is_synced=is_synced, is_held=is_held)
        self.exchange.bind(NAME.encode(), b"", self.core)

    def shut(self, *, crash: bool = False) -> None:
        """Stop; in a crash nothing is written any more. Consumers and deliveries are lost."""
        self.deliveries()
        self.exchange.unbind(NAME.encode(), b"", self.core)
        for channel in list(self.consumers):
            self.cancel(channel)
            self.link.close_channel(channel, False)
        self.core.delete() if crash else self.core.close()

    def reopen(self, *, crash: bool = False) -> None:
        """Stop and load again."""
        self.shut(crash=crash)
        self.open()

    def publish(self, body: bytes, headers: dict[str, Value] | None = None) -> None:
        """Publish one message; it is stored with the next `run`."""
        properties = b"\0\0"
        if headers is not None:
            raw = FieldTable(headers).raw
            properties = struct.pack(">HI", HEADERS, len(raw)) + raw
        self.send(publish(NAME.encode(), body, properties))

    def consume(
        self, arguments: dict[str, Value] | None = None, *, tag: str = "t", prefetch: int = 10
    ) -> int:
        """Consume with these arguments. Returns: the channel."""
        how = reading(tag, FieldTable(arguments or {}), 0, 256)
        channel = self._next_channel
        self._next_channel += 1
        self.link.open_channel(channel, prefetch)
        core = self.link.add_consumer(channel, self.core, tag.encode(), False)
        core.read_stream(
            how.start, is_tracked=how.is_tracked, uses_stored=how.uses_stored,
            conditions=how.conditions, is_any=how.is_any, takes_unfiltered=how.takes_unfiltered,
            end=how.end, tells_time=how.tells_time, tells_epoch=how.tells_epoch,
        )  # fmt: skip
        core.start()
        self.link.write(b"")  # as consume-ok: something to do for the loop
        self.consumers[channel] = core
        return channel

    def cancel(self, channel: int) -> None:
        """basic.cancel; what was delivered stays on the channel."""
        self.consumers.pop(channel).cancel()

    def settle(self, channel: int, tag: int, method: int = ACK, flag: bool = False) -> None:
        """basic.ack (the flag: multiple) or basic.reject (the flag: requeue)."""
        self.send(frame(1, struct.pack(">HHQB", 60, method, tag, flag), channel))

    def deliveries(self) -> list[Delivery]:
        """What has been delivered since the last call, once nothing more can be."""
        found: list[Delivery] = []
        while True:
            self.run()
            self.receive()
            if not self._taken:
                return found
            found += self._taken
            self._taken = []

    def _deliveries(self) -> Iterator[Any]:
        at, done, head, body_size = 0, 0, (0, 0, False), 0
        headers, body = FieldTable(), b""
        data = self._received
        while at + 7 <= len(data):
            kind, channel, size = struct.unpack_from(">BHI", data, at)
            payload = data[at + 7 : at + 7 + size]
            if at + size + 8 > len(data):
                break
            assert data[at + 7 + size] == 0xCE, "frame end is missing"
            at += size + 8
            if kind == 1 and payload[:4] == b"\x00\x3c\x00\x3c":
                tag, redelivered = struct.unpack_from(">Q?", payload, 5 + payload[4])
                head, body = (channel, tag, redelivered), b""
                continue
            if kind == 2:
                (body_size,) = struct.unpack_from(">Q", payload, 4)
                headers, _ = decode(payload, 14)
            elif kind == 3:
                body += payload
            else:
                continue
            if len(body) == body_size:
                offset = headers["x-stream-offset"]
                assert isinstance(offset, int)
                self._taken.append(Delivery(*head, offset, headers, body))
                done = at
        self._received = data[done:]
        return iter(())
