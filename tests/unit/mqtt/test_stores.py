"""Retained messages and the log of sessions, as clients of MQTT have to do with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq import _core
from tests.support.little_disk import broken
from tests.support.mqtt_bench import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Client,
    MqttBench,
    ack,
)
from tests.unit.mqtt.test_retained import Refusing


class Stores:
    """Both of one virtual host."""

    def __init__(self, bench: MqttBench) -> None:
        self.bench = bench
        self.directory = bench.directory
        self.retained, self.log = self._opened()

    def _opened(self) -> tuple[_core.RetainedStore, _core.SessionLog]:
        retained = _core.RetainedStore(self.bench.loop, str(self.directory))
        log = _core.SessionLog(self.bench.loop, str(self.directory))
        assert retained.load() + log.load() == []
        return retained, log

    def reopen(self) -> None:
        """Kill the broker behind a turn: what was not written is lost."""
        self.retained, self.log = self._opened()

    def client(self, name: str = "a", version: int = 5, **options: Any) -> Client:
        """A client with a session that outlives it."""
        if name.encode() not in self.log:
            self.log.make(name.encode())
        return self.bench.client(
            name, version, retained=self.retained, log=self.log, is_persistent=True, **options
        )

    def give(self, filter: bytes, client: Client, granted: int = 2, id: int = 0) -> int:
        """What a subscription does. Returns: how the last portion ended."""
        gift = self.retained.give(filter, client.queue, granted, id)
        answer = gift.some()
        while answer == _core.RETAINED_MORE:
            self.bench.events.run()
            answer = gift.some()
        self.bench.events.run()
        return answer


@pytest.fixture
def stores(bench: MqttBench) -> Iterator[Stores]:
    made = Stores(bench)
    yield made
    made.retained.close()
    made.log.close()


def test_a_retained_publish_is_given_to_who_subscribes_later(stores: Stores) -> None:
    publisher = stores.client("p")
    publisher.publish(b"a/b", b"payload", qos=1, retain=True, properties=b"\x03\x00\x04text")
    assert publisher.raw()[:1] == bytes([PUBACK << 4])
    subscriber = stores.client("s")

    assert stores.give(b"a/+", subscriber, 2, 7) == _core.RETAINED_OVER

    (got,) = subscriber.got()
    assert (got.topic, got.body, got.qos, got.retain) == (b"a/b", b"payload", 1, True)
    assert got.properties == b"\x0b\x07\x03\x00\x04text"


def test_the_qos_of_a_retained_message_is_the_lower_one(stores: Stores) -> None:
    publisher = stores.client("p")
    for qos in range(3):
        publisher.publish(b"q/%d" % qos, b"x", qos=qos, id=1 + qos, retain=True)
    subscriber = stores.client("s", 4)

    stores.give(b"q/#", subscriber, 1)

    assert [got.qos for got in subscriber.got()] == [0, 1, 1]


def test_what_has_come_since_the_subscription_is_not_given_again(stores: Stores) -> None:
    """It went to the session as it came. A clock that was set back hides nothing."""
    now_ms = stores.retained.mark[1]
    stores.retained.put(b"old", b"old", 1, b"", now_ms)
    stores.retained.put(b"before the clock", b"clock", 1, b"", now_ms + 3_600_000)
    subscriber = stores.client("s", 4)
    mark = stores.retained.mark
    gift = stores.retained.give(b"#", subscriber.queue, 1, 0, mark)
    stores.retained.put(b"new", b"new", 1, b"", mark[1])

    while gift.some() == _core.RETAINED_MORE:
        stores.bench.events.run()
    stores.bench.events.run()

    assert sorted(subscriber.bodies()) == [b"clock", b"old"]


def test_an_empty_retained_publish_forgets_the_message(stores: Stores) -> None:
    publisher = stores.client("p", 4)
    publisher.publish(b"a", b"x", qos=1, retain=True)
    publisher.publish(b"a", b"", qos=1, id=2, retain=True)

    assert len(stores.retained) == 0
    stores.reopen()
    assert len(stores.retained) == 0


def test_expiry_counts_on_and_ends_it(stores: Stores) -> None:
    stores.bench.loop.clock_offset_ms = 0
    publisher = stores.client("p")
    publisher.publish(b"a", b"x", retain=True, properties=b"\x02" + (100).to_bytes(4, "big"))
    subscriber = stores.client("s")
    stores.bench.loop.clock_offset_ms = 40_000

    stores.give(b"a", subscriber)

    (got,) = subscriber.got()
    assert got.properties[:1] == b"\x02"
    assert 59 <= int.from_bytes(got.properties[1:], "big") <= 60
    stores.bench.loop.clock_offset_ms = 101_000
    stores.give(b"a", subscriber)
    assert subscriber.got() == []


@pytest.mark.parametrize("version", [4, 5])
def test_a_retained_publish_that_cannot_be_written_is_refused(stores: Stores, version: int) -> None:
    publisher = stores.client("p", version)
    publisher.publish(b"a", b"old", qos=1, retain=True)
    publisher.raw()
    size = (stores.directory / "mqtt_retained.0000000001").stat().st_size

    with Refusing(size + 20):
        publisher.publish(b"a", b"new" * 100, qos=1, id=2, retain=True)

    heard = publisher.heard()
    if version == 5:
        assert heard[0].first == PUBACK << 4
        assert heard[0].body[2] >= 0x80
    else:
        assert heard == []
    stores.reopen()
    assert [payload for _, payload, *_ in stores.retained.walk(b"a").some(9)] == [b"old"]


def test_a_large_retained_publish_is_refused_and_one_of_qos_0_still_delivered(
    stores: Stores,
) -> None:
    publisher = stores.client("p")
    subscriber = stores.client("s").subscribe(b"a")
    publisher.publish(b"a", bytes(8388608), qos=1, retain=True)
    assert publisher.heard()[0].body[2] == 0x97

    publisher.publish(b"a", bytes(8388608), retain=True)

    assert len(stores.retained) == 0
    assert [len(body) for body in subscriber.bodies()] == [8388608]


def test_before_version_5_a_large_retained_publish_ends_the_connection_with_the_reason(
    stores: Stores,
) -> None:
    publisher = stores.client("p", 4)

    publisher.publish(b"a", bytes(8388609), qos=1, retain=True)

    told = ("on_packet_error", 0x97, "a retained message has 8 MiB at most")
    assert publisher.session.events == [told]


def test_pubrel_of_a_kept_session_is_no_confirm_of_a_publish(stores: Stores) -> None:
    publisher = stores.client("p", 4)
    client = stores.client("c", 4).subscribe(b"a")
    for id in (1, 2):
        publisher.publish(b"a", b"x", qos=2, id=id)
    first, second = client.got()

    client.send(ack(PUBREC, first.id) + ack(PUBREC, second.id) + ack(PUBREC, first.id))

    assert client.raw() == b"".join(ack(PUBREL, each.id) for each in (first, second, first))
    assert client.link.channel_counters(1)["confirm"] == 0
    assert client.link.mqtt_counters()["in_flight"] == 2


def test_all_of_many_come_while_the_client_reads(stores: Stores) -> None:
    for number in range(5000):
        stores.retained.put(b"t/%04d" % number, bytes(1000), 1, b"", 1)
    subscriber = stores.client("s", 4)
    gift = stores.retained.give(b"#", subscriber.queue, 1)
    answers = set()
    topics: list[bytes] = []
    answer = _core.RETAINED_MORE
    while answer != _core.RETAINED_OVER:
        answer = gift.some()
        answers.add(answer)
        stores.bench.events.run()
        if answer != _core.RETAINED_MORE:
            for got in subscriber.got():
                topics.append(got.topic)
                subscriber.send(ack(PUBACK, got.id))
    while got_now := subscriber.got():
        for got in got_now:
            topics.append(got.topic)
            subscriber.send(ack(PUBACK, got.id))

    assert topics == [b"t/%04d" % number for number in range(5000)]


def test_a_gift_to_a_queue_that_goes_is_over(stores: Stores) -> None:
    stores.retained.put(b"a", b"x", 1, b"", 1)
    subscriber = stores.client("s", 4)
    gift = stores.retained.give(b"#", subscriber.queue, 1)
    subscriber.close()
    subscriber.queue.delete()

    assert gift.some() == _core.RETAINED_OVER


def test_ids_of_qos_2_are_in_the_log_when_they_are_answered(stores: Stores) -> None:
    client = stores.client("c", 4)
    client.publish(b"a", b"x", qos=2, id=9)
    assert client.heard()[0].kind == PUBREC
    stores.reopen()
    assert stores.log.packets(b"c") == ([9], [], [])

    again = stores.client("c", 4)
    _core.mqtt_restore(again.queue, *stores.log.packets(b"c"))
    again.publish(b"a", b"x", qos=2, id=9, dup=True)
    again.send(ack(PUBREL, 9))

    assert [each.kind for each in again.heard()] == [PUBREC, PUBCOMP]
    stores.reopen()
    assert stores.log.packets(b"c") == ([], [], [])


def test_ids_of_deliveries_are_in_the_log_before_they_are_sent(stores: Stores) -> None:
    client = stores.client("c", 4).subscribe(b"a")
    publisher = stores.client("p", 4)
    for number in range(3):
        publisher.publish(b"a", b"%d" % number, qos=2, id=1 + number)
        publisher.send(ack(PUBREL, 1 + number))
    first, second, third = client.got()
    client.send(ack(PUBREC, second.id))
    client.send(ack(PUBCOMP, second.id))
    client.send(ack(PUBREC, first.id))

    stores.reopen()

    received, sent, released = stores.log.packets(b"c")
    assert received == []
    assert [id for id, _seg, _pos in sent] == [third.id]
    assert released == [first.id]


def test_a_session_without_a_log_entry_is_not_told_that_it_is_safe(stores: Stores) -> None:
    """Python has not made it, or has ended it meanwhile."""
    client = stores.client("c", 5)
    stores.log.end(b"c")

    client.publish(b"a", b"x", qos=2, id=9)

    assert [each.kind for each in client.heard()] == []
    assert client.session.events[-1][0] == "on_packet_error"


def test_a_log_that_cannot_be_written_refuses_until_it_can(stores: Stores) -> None:
    client = stores.client("c", 5)
    stores.bench.events.run()
    with broken(stores.directory / "mqtt_sessions.0000000001"):
        client.publish(b"a", b"x", qos=2, id=9)
    (refused,) = client.heard()
    assert refused.kind == PUBREC
    assert refused.body[2] >= 0x80

    client.publish(b"a", b"x", qos=2, id=9)

    assert [each.kind for each in client.heard()] == [PUBREC]
    stores.reopen()
    assert stores.log.packets(b"c") == ([9], [], [])


def test_a_log_without_room_has_its_publishers_wait(stores: Stores) -> None:
    """What is refused may be in a queue already, and comes twice when it is published again."""
    client = stores.client("c", 5)
    stores.bench.events.run()
    with Refusing((stores.directory / "mqtt_sessions.0000000001").stat().st_size):
        client.publish(b"a", b"x", qos=2, id=9)
        assert client.heard() == []
        stores.log.retry()
        stores.bench.events.run()
        assert client.heard() == []
        assert stores.bench.loop.is_held

    stores.log.retry()
    stores.bench.events.run()

    assert [(each.kind, each.body) for each in client.heard()] == [
        (PUBREC, b"\0\x09\x10")  # nobody has subscribed
    ]
    assert not stores.bench.loop.is_held


def test_a_virtual_host_that_goes_with_a_log_without_room_holds_nobody(stores: Stores) -> None:
    client = stores.client("c", 5)
    stores.bench.events.run()
    with Refusing((stores.directory / "mqtt_sessions.0000000001").stat().st_size):
        client.publish(b"a", b"x", qos=2, id=9)
        assert stores.bench.loop.is_held

        stores.log.release()

        assert not stores.bench.loop.is_held


def test_syncs_of_a_publish_cover_both_files(tmp_path: Path) -> None:
    """With a disk that is waited for: nothing is answered before."""
    bench = MqttBench(tmp_path, sync=True)
    stores = Stores(bench)
    client = stores.client("c", 5)

    client.publish(b"a", b"x", qos=2, id=9, retain=True)

    deadline = time.monotonic() + 10
    while not (heard := client.heard()):
        assert time.monotonic() < deadline
        bench.loop.on_synced()
    assert [each.kind for each in heard] == [PUBREC]
    assert bench.failures == []
    client.close()
    stores.retained.close()
    stores.log.close()
    bench.close()
