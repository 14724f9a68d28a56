"""A retained message that is refused: the one of before stays, and nobody gets it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq import _core
from tests.support.mqtt_bench import PUBACK, PUBREC, Client, MqttBench, ack, publish

QUOTA = 0x97
REJECTS = _core.OVERFLOW["reject-publish"]


class Home:
    """A bench with a store of retained messages, and who publishes."""

    def __init__(self, directory: Path) -> None:
        self.bench = MqttBench(directory)
        self.store = _core.RetainedStore(self.bench.loop, str(directory))
        self.store.load()
        self.publisher = self.bench.client("p", 5, retained=self.store)

    def full(self, **limits: Any) -> Client:
        """A session whose client is away, that is full with a message."""
        reader = self.bench.client("full", 5).subscribe(b"t", 1)
        reader.close()
        reader.queue.set_features(overflow=REJECTS, **limits)
        self.publisher.publish(b"t", b"fills it", qos=1, id=1)
        assert self.publisher.raw() == ack(PUBACK, 1)
        return reader

    def retain(self, body: bytes, qos: int = 1, id: int = 2) -> bytes:
        """Returns: what the client is told."""
        self.publisher.publish(b"t", body, qos=qos, id=id, retain=True)
        return self.publisher.raw()

    @property
    def retained(self) -> list[bytes]:
        """Of the topic."""
        walk = self.store.walk(b"t")
        found = [payload for _topic, payload, *_ in walk.some(9)]
        walk.stop()
        return found


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.bench.close()
    made.store.close()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("body", [b"new", b""])
def test_what_a_full_queue_refuses_does_not_replace_the_retained_message(
    home: Home, qos: int, body: bytes
) -> None:
    """An empty one would have ended it."""
    assert home.retain(b"old", id=9) == ack(PUBACK, 9, 0x10)
    other = home.bench.client("other").subscribe(b"t", 1)
    home.full(max_length=1)
    assert other.bodies() == [b"fills it"]

    assert home.retain(body, qos) == ack(PUBREC if qos == 2 else PUBACK, 2, QUOTA)

    assert home.retained == [b"old"]
    assert other.bodies() == []


def test_a_queue_that_is_full_by_its_bytes_refuses_it_as_well(home: Home) -> None:
    home.retain(b"old", id=9)
    reader = home.full(max_bytes=120)

    assert home.retain(b"n" * 100) == ack(PUBACK, 2, QUOTA)
    assert home.retained == [b"old"]
    assert home.retain(b"n") == ack(PUBACK, 2)

    assert home.retained == [b"n"]
    assert reader.queue.ready == 2


def test_what_finds_room_because_its_client_is_there_is_taken(home: Home) -> None:
    reader = home.bench.client("r", 5).subscribe(b"t", 1)
    reader.queue.set_features(max_length=1, overflow=REJECTS)

    for number in range(3):
        assert home.retain(b"%d" % number) == ack(PUBACK, 2)

    assert home.retained == [b"2"]
    assert reader.bodies() == [b"0", b"1", b"2"]


def test_qos_0_is_retained_whoever_is_full(home: Home) -> None:
    """Nobody is told."""
    home.full(max_length=1)

    assert home.retain(b"new", 0) == b""

    assert home.retained == [b"new"]


def test_who_is_full_of_more_than_a_turn_delivers_does_not_get_what_is_refused(home: Home) -> None:
    """Its client comes, and takes what a turn has for it, twice: once before it is found to be
    full, and once more as it is told so. By then there was room, and it got what was refused."""
    home.retain(b"old", id=9)
    reader = home.bench.client("full", 5).subscribe(b"t", 1)
    reader.close()
    for _ in range(100):
        home.publisher.publish(b"t", bytes(60_000), qos=1, id=1)
    home.publisher.raw()
    reader.queue.set_features(max_length=50, overflow=REJECTS)

    again = home.bench.unopened("full", 5)
    again.link.mqtt_open(5, again.queue, home.bench.exchange)
    home.publisher.socket.send(publish(b"t", b"new", qos=1, id=2, retain=True, properties=b""))
    home.bench.loop.portion_units = 1
    home.publisher.link.on_readable()
    home.publisher.link.drain()
    home.bench.loop.portion_units = 0
    home.bench.events.run()

    assert home.publisher.raw() == ack(PUBACK, 2, QUOTA)
    assert home.retained == [b"old"]
    assert {len(each) for each in again.bodies()} == {60_000}
