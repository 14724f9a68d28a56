"""Any bytes from a client that has logged in, through the real walker, without a broker.

The session answers as simply as it can: an error closes the channel if there is one, else the
connection; methods are decoded. Afterwards nothing is unacked and the queue can be emptied.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lavinmq import _core
from lavinmq.amqp import methods
from tests.fuzz.targets import Target
from tests.support.core import Bench, FakeEvents, publish

CONFIRMING, TRANSACTIONAL = 2, 3
CHANNELS = (1, CONFIRMING, TRANSACTIONAL)
QUEUE = "q"
EXPIRY_S = 0.05
"""What expires later is not waited for."""


class Answering:
    """A session without a broker behind it."""

    def __init__(self, link: _core.Link, exchange: _core.Exchange, history: _core.Exchange) -> None:
        self._link = link
        self._exchange = exchange
        self._history = history
        self._channels = set(CHANNELS)

    def on_method(self, channel: int, payload: bytes) -> None:
        """Decode it, and answer nothing."""
        try:
            methods.decode(payload)
        except (methods.UnknownMethod, methods.MalformedMethod):
            self._give_up(0)

    def on_route_miss(self, channel: int, kind: int, name: bytes, keys: list[bytes]) -> None:
        """There is one exchange, under two names; on one of them each key is asked about. Another
        one keeps messages."""
        if name == b"":
            self._link.learn(name, self._exchange)
        elif name == b"x":
            self._link.allow(kind, name, keys, self._exchange)
        elif name == b"h":
            self._link.allow(kind, name, keys, self._history)
        else:
            self._give_up(channel)

    def on_error(self, kind: int, channel: int, method: int, a: int, b: int, text: bytes) -> None:
        """A broken rule."""
        self._give_up(channel)

    def on_illegal_frame(self) -> None:
        """Never happens after the handshake."""
        raise AssertionError("an open connection has no illegal frames")

    def on_lost(self, why: str) -> None:
        """The socket pair does not break."""
        raise AssertionError(f"lost: {why}")

    def _give_up(self, channel: int) -> None:
        if channel in self._channels:
            self._channels.remove(channel)
            self._link.close_channel(channel, True)
        else:
            self._link.state = _core.STATE_CLOSING


def received(bench: Bench) -> bytes:
    """Return what was sent to the client so far."""
    pieces = []
    while True:
        try:
            pieces.append(bench.client.recv(1 << 20))
        except BlockingIOError:
            if not bench.link.unsent_bytes:
                return b"".join(pieces)
            bench.link.on_writable()


def assert_frames(data: bytes) -> None:
    """The output is whole frames back to back, whatever the client sent."""
    at = 0
    while at < len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        assert kind in (1, 2, 3), kind
        assert data[at + 7 + size] == 0xCE, "frame end is missing"
        at += 8 + size


def converse(bench: Bench, data: bytes) -> None:
    """Have a client with consumers and unacked deliveries say `data`."""
    history = _core.Exchange(_core.FANOUT, 1)
    bench.vhost.add(b"h", history)
    history.set_history(bench.queue("kept", durable=False), 3)
    bench.link.session = Answering(bench.link, bench.exchange, history)  # type: ignore[assignment]
    queue = bench.queue(QUEUE, durable=False)
    for channel in CHANNELS[1:]:
        bench.link.open_channel(channel, 10)
    bench.link.select_confirms(CONFIRMING)
    bench.link.select_transactions(TRANSACTIONAL)
    bench.send(publish(QUEUE.encode(), b"first") * 3)
    bench.link.get(1, queue, False)
    consumers = [bench.link.add_consumer(id, queue, b"c", id == 1) for id in CHANNELS]
    for consumer in consumers[1:]:
        consumer.start()
    bench.run()
    half = len(data) // 2
    for part in (data[:half], data[half:]):
        bench.send(part)
        bench.run()
        assert_frames(received(bench))
    assert all(_core.Replay(history, queue))
    for consumer in consumers:
        consumer.cancel()
    bench.link.close()
    bench.run()
    assert queue.unacked == 0, "a delivery outlives its connection"
    queue.purge()
    assert queue.ready == 0
    queue.close()
    assert not bench.failures


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        with (
            tempfile.TemporaryDirectory(dir=directory) as own,
            closing(Bench(Path(own), FakeEvents(EXPIRY_S))) as bench,
        ):
            converse(bench, data)

    yield read
