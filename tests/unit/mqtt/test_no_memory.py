"""No memory to note a packet id: that message is refused, or comes later; nothing else suffers."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import TimedEvents
from tests.support.mqtt_bench import PUBACK, PUBREC, MqttBench, ack
from tests.support.mqtt_bench import publish as packet
from tests.support.no_memory import APART, no_memory, run

N = 32768
"""Of ids in use: the room for one more takes megabytes."""


def publish(bench: MqttBench, body: bytes, qos: int = 1, n: int = 1) -> None:
    for _ in range(n):
        _core.mqtt_publish(bench.loop, bench.exchange, b"t", body, qos, False)
    bench.events.run()


def delivery_that_cannot_be_noted(bench: MqttBench) -> None:
    """It comes later. It was written, and the queue of the session was closed for that."""
    client = bench.client().subscribe(b"t", 2)
    publish(bench, b"x", 2)
    client.send(ack(PUBREC, client.got()[0].id))  # an id in use, and no unsettled delivery
    client.raw()
    publish(bench, b"x", n=N - 1)
    client.got()
    gc.collect()
    with no_memory():
        publish(bench, b"one")
    with pytest.raises(BlockingIOError):
        client.socket.recv(1)
    assert not client.queue.is_closed and client.queue.ready == 1

    assert isinstance(bench.events, TimedEvents)
    bench.events.advance(1000)
    publish(bench, b"two")

    got = client.got()
    assert [each.body for each in got] == [b"one", b"two"]
    client.send(b"".join(ack(PUBACK, each.id) for each in got))
    assert (client.queue.ready, client.queue.unacked) == (0, N - 1)


def publish_that_cannot_be_noted(bench: MqttBench) -> None:
    """It is refused. It was stored, and its client, which was let go, sent it once more."""
    reader = bench.client("r").subscribe(b"t", 2)
    client = bench.client("p", 5, receive_maximum_in=65535)
    for first in range(1, N, 1024):
        ids = range(first, first + 1024)
        client.send(b"".join(packet(b"t", b"x", qos=2, id=n, properties=b"") for n in ids))
        client.raw()
        reader.raw()
    gc.collect()
    with no_memory():
        client.publish(b"t", b"one", qos=2, id=N + 1)
    assert client.raw() == ack(PUBREC, N + 1, 0x97)
    assert reader.raw() == b""

    client.publish(b"t", b"two", qos=2, id=N + 1)

    assert client.raw() == ack(PUBREC, N + 1)
    assert reader.bodies() == [b"two"]


@pytest.mark.parametrize("what", [delivery_that_cannot_be_noted, publish_that_cannot_be_noted])
def test_without_memory_one_message_waits(
    what: Callable[[MqttBench], None], tmp_path: Path
) -> None:
    run(__file__, what.__name__, tmp_path, APART)


if __name__ == "__main__":
    with closing(MqttBench(Path(sys.argv[2]), TimedEvents())) as one:
        globals()[sys.argv[1]](one)
    print("passed")
