"""Any bytes from a broker, through the engine of the client: messages and confirms, or a violation.

The first byte says where the input is cut: what comes out is the same however it arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lavinmq.client import _engine, methods
from lavinmq.client.errors import ProtocolViolation
from tests.fuzz.targets import Target

PUBLISHED = 20


class Reading:
    """A client with a producer on channel 1 and a consumer on channel 2."""

    def __init__(self) -> None:
        self._ring = _engine.Ring()
        self._ring.configure(routing_key="q", retry_nacks=False)
        self._ring.attach(1, 4096)
        self._receipts = [self._ring.add(b"%d" % n, (None, None, 1)) for n in range(PUBLISHED)]
        self._ring.pump(_engine.Output(), 1 << 20)
        self._tracker = _engine.Tracker(0)
        self._tracker.reset(2)
        self._consumer = _engine.Port(2, tracker=self._tracker)
        self._input = _engine.Input(4096, 1 << 20)
        self._input.open(_engine.Port(1, ring=self._ring))
        self._input.open(self._consumer)
        self._is_over = False
        self.events: list[tuple[int, int, bytes, bytes | None]] = []
        self.bodies: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Receive bytes; nothing is read behind what breaks the protocol."""
        if self._is_over:
            return
        try:
            for channel, method, payload, message in self._input.feed(data):
                self.events.append((channel, method, payload, message and message.body))
                if message is not None:
                    message.ack()
                if method in methods.FORMS and payload:
                    # Whoever gets it finds it broken: what came behind it may be read by then.
                    with suppress(ProtocolViolation):
                        _engine.decode_method(payload, methods.FORMS[method])
        except ProtocolViolation:
            self._is_over = True
        for message in self._consumer.take():
            self.bodies.append(message.body)
            try:
                assert isinstance(message.properties, dict)
            except ProtocolViolation:
                message.nack()
            else:
                message.ack()
        self._tracker.flush(_engine.Output())

    def end(self) -> tuple[Any, ...]:
        """What came of it; whatever came, all that is open ends once."""
        before = [receipt.status for receipt in self._receipts if receipt]
        open_ones = sum(status == "sent" for status in before)
        assert self._ring.count == open_ones == self._ring.in_flight
        assert self._ring.give_up("over") == open_ones
        assert self._tracker.count == 0
        return before, self.bodies


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        cut, data = (data[0], data[1:]) if data else (0, b"")
        whole, split = Reading(), Reading()
        whole.feed(data)
        at = len(data) * cut // 256
        split.feed(data[:at])
        split.feed(data[at:])
        assert whole.end()[0] == split.end()[0]

    yield read
