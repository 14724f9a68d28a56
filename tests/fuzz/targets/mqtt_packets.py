"""Any bytes from a client of MQTT whose session is open, through the real walker, without a broker.

The first byte says which version, and whether topics are asked about. Afterwards all that was sent
to clients is whole packets, and nothing is unacked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from lavinmq import _core
from tests.fuzz.targets import Target
from tests.support.core import FakeEvents
from tests.support.mqtt_bench import Client, MqttBench, parse

ASKS, PORTIONS = 4, 8
EXPIRY_S = 0.05
"""What expires later is not waited for."""
KINDS = {2, 3, 4, 5, 6, 7, 13}


class Answering:
    """A session that hangs up when a packet is refused."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.is_over = False

    def on_packet(self, kind: int, flags: int, body: bytes) -> None:
        """Of Python: nothing is answered."""
        assert kind in (8, 10, 14, 15)

    def on_packet_error(self, reason: int, text: str) -> None:
        """Refused, with a reason code of an error."""
        assert reason >= 0x80
        assert text
        self.is_over = True
        self._client.link.mqtt_close()

    def on_topic_miss(self, kind: int, topic: bytes) -> None:
        """Some may not be published to."""
        assert kind == 0
        assert topic.decode()
        self._client.link.mqtt_allow(topic, not topic.startswith(b"s"))

    def on_held(self, channel: int) -> None:
        """The disk has room."""
        raise AssertionError("nothing is held")

    def on_lost(self, why: str) -> None:
        """The socket pair does not break."""
        raise AssertionError(f"lost: {why}")


def converse(bench: MqttBench, data: bytes) -> None:
    """Have a client with messages in flight, both ways, say `data`."""
    kind = data[0]
    version = 3 + kind % 3
    bench.loop.portion_units = 1 if kind & PORTIONS else 0
    client = bench.client(
        "f", version, alias_maximum_in=3, alias_maximum_out=2, receive_maximum=5,
        maximum_packet_out=4096, checks_topics=bool(kind & ASKS), is_persistent=True,
    )  # fmt: skip
    client.session = client.link.session = Answering(client)  # type: ignore[assignment]
    other = bench.client("o", 5).subscribe(b"#", 2, subscription_id=200)
    shared = bench.queue("shared")
    bench.exchange.bind(b"t/+", b"", _core.Subscription(shared, 2))
    for each in (client, other):
        each.link.mqtt_share(shared, 1)
    client.subscribe(b"t/#", 2, subscription_id=1).subscribe(b"+/a", 1)
    for qos in (1, 2, 2, 0):
        _core.mqtt_publish(bench.loop, bench.exchange, b"t/a", b"first", qos, False)
    bench.events.run()
    half = len(data) // 2
    for part in (data[1:half], data[max(half, 1) :]):
        client.send(part)
        for each in (client, other):
            assert {got.kind for got in parse(each.raw())} <= KINDS
    client.close()
    other.close()
    bench.clients.clear()
    for queue in (client.queue, other.queue, shared):
        assert queue.unacked == 0, "a delivery outlives its connection"
        queue.purge()
        assert queue.ready == 0
        queue.close()
    assert not bench.failures


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        if not data:
            return
        with (
            tempfile.TemporaryDirectory(dir=directory) as own,
            closing(MqttBench(Path(own), FakeEvents(EXPIRY_S))) as bench,
        ):
            converse(bench, data)

    yield read
