"""Any bytes as a packet of a client of MQTT that Python reads, in each version.

The first byte is the version, the second that of the fixed header, all others are the body. Refused
as documented; else what was read is the same when it is read again, and shorter is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.mqtt import codec, connect, requests
from lavinmq.mqtt.reasons import PacketError
from tests.fuzz.targets import Target


def whole(steps: Generator[None, None, object]) -> object:
    """What is read in steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


READERS: dict[int, Callable[[int, int, bytes], object]] = {
    codec.CONNECT: lambda level, flags, body: connect.decode(flags, body),
    codec.SUBSCRIBE: lambda *packet: whole(requests.subscribe(*packet)),
    codec.UNSUBSCRIBE: lambda *packet: whole(requests.unsubscribe(*packet)),
    codec.DISCONNECT: requests.disconnect,
    codec.AUTH: requests.auth,
}


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        if len(data) < 2 or data[1] >> 4 not in READERS:
            return
        level, kind, flags, body = 3 + data[0] % 3, data[1] >> 4, data[1] & 15, data[2:]
        try:
            found = READERS[kind](level, flags, body)
        except PacketError as error:
            assert str(error)
            return
        assert READERS[kind](level, flags, body) == found
        if kind == codec.CONNECT:
            try:
                READERS[kind](level, flags, body[:-1])
            except PacketError:
                return
            raise AssertionError("it is taken without its last byte")

    yield read
