"""Files of a broker that runs, was killed, or acknowledges meanwhile, read without asking it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lavinmq.spark.segment_scan import Report
from tests.conftest import BrokerFactory
from tests.support.broker import Broker
from tests.support.raw_connection import Address, Channel, Connection, Properties
from tests.support.segment_files import bodies, rows
from tests.support.segments import queue_directory
from tests.support.waiting import wait_for

SMALL = 65536


@pytest.fixture
def broker(broker_factory: BrokerFactory, tmp_path: Path) -> Broker:
    """A broker with small segments."""
    settings = tmp_path / "small.ini"
    settings.write_text(f"[main]\nsegment_size = {SMALL}\n")
    return broker_factory(["-c", str(settings)])


@contextmanager
def channel(broker: Broker) -> Iterator[Channel]:
    with Connection.open(Address(broker.host, broker.port)) as connection:
        yield connection.channel()


def body(number: int) -> bytes:
    return b"%06d" % number * (1 + number % 60)


def number_of(found: bytes) -> int:
    return int(found[:6])


def publish(broker: Broker, queue: str, numbers: range, **properties: Any) -> None:
    """Publish bodies of these numbers; returns when all are confirmed."""
    with channel(broker) as opened:
        opened.confirm_select()
        for number in numbers:
            opened.publish("", queue, body(number), Properties(delivery_mode=2, **properties))
        confirmed = 0
        while confirmed < len(numbers):
            confirmed = opened.confirm(30).delivery_tag or 0


def declare(broker: Broker, queue: str, **arguments: Any) -> Path:
    with channel(broker) as opened:
        opened.declare_queue(queue, durable=True, arguments=arguments)
    return queue_directory(broker.data_dir, queue)


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_a_directory_is_read_while_messages_are_published(broker: Broker, kind: str) -> None:
    """Every look finds the messages up to some moment, whole and in order, and never fewer."""
    arguments = {"x-queue-type": "stream"} if kind == "stream" else {}
    directory = declare(broker, "live", **arguments)
    publish(broker, "live", range(50))
    total = 12_000
    publisher = threading.Thread(target=publish, args=(broker, "live", range(50, total)))
    publisher.start()

    seen, looks = 0, 0
    try:
        while publisher.is_alive():
            found = bodies(directory, onCorrupt="fail")
            assert found == [body(number) for number in range(len(found))]
            assert len(found) >= max(50, seen)
            seen, looks = len(found), looks + 1
    finally:
        publisher.join()

    assert looks > 0
    assert len(bodies(directory, onCorrupt="fail")) == total


def test_all_that_was_confirmed_is_found_after_a_kill(broker: Broker) -> None:
    directory = declare(broker, "killed")
    publish(broker, "killed", range(2000))
    with channel(broker) as opened:
        for number in range(2000, 4000):
            opened.publish("", "killed", body(number))
        broker.kill()

    found = bodies(directory, onCorrupt="fail")

    assert len(found) >= 2000
    assert found == [body(number) for number in range(len(found))]


def test_a_tail_that_a_crash_has_torn_is_left_out(broker: Broker) -> None:
    directory = declare(broker, "torn")
    publish(broker, "torn", range(20))
    broker.kill()
    newest = max(directory.glob("msgs.*"))
    whole = newest.read_bytes()
    end = whole.rindex(body(19)) + len(body(19))
    report = Report()

    newest.write_bytes(whole[: end - 3])

    assert bodies(directory, report, onCorrupt="fail") == [body(n) for n in range(19)]
    assert report.torn == 1


def test_acknowledged_messages_are_left_out_or_marked(broker: Broker) -> None:
    directory = declare(broker, "acked")
    publish(broker, "acked", range(300))
    with channel(broker) as opened:
        opened.qos(300)
        opened.consume("acked")
        tags = [opened.receive(10).delivery_tag for _ in range(300)]
        for tag in tags[::3]:
            opened.ack(tag)
        left = [body(number) for number in range(300) if number % 3]
        wait_for(lambda: bodies(directory) == left, "acks are not in the files")

        found = rows(directory, includeAcked=True)

    marked = {number_of(row["body"]) for row in found if row["acked"]}
    assert marked == set(range(0, 300, 3))
    assert len(found) == 300


def test_few_messages_that_keep_their_segments_are_found_alone(broker: Broker) -> None:
    directory = declare(broker, "kept")
    publish(broker, "kept", range(3000))
    with channel(broker) as opened:
        opened.qos(0)
        opened.consume("kept")
        tags = [opened.receive(10).delivery_tag for _ in range(3000)]
        for number, tag in enumerate(tags):
            if number % 500:
                opened.ack(tag)
    left = [body(number) for number in range(0, 3000, 500)]

    wait_for(lambda: bodies(directory, onCorrupt="fail") == left, "acks are not in the files")
    broker.stop()

    assert bodies(directory, onCorrupt="fail") == left
    # Whatever the broker made of the others: each row is a message, acked or not.
    assert {row["routing_key"] for row in rows(directory, includeAcked=True)} == {"kept"}


def test_a_priority_queue_is_read_by_levels(broker: Broker) -> None:
    directory = declare(broker, "levels", **{"x-max-priority": 5})
    for priority in (0, 3, 5):
        publish(broker, "levels", range(priority * 10, priority * 10 + 3), priority=priority)

    found = rows(directory)

    assert [number_of(row["body"]) for row in found] == [50, 51, 52, 30, 31, 32, 0, 1, 2]
    assert [row["priority"] for row in found] == [5, 5, 5, 3, 3, 3, 0, 0, 0]
    assert {row["queue_type"] for row in found} == {"priority"}


def test_a_stream_that_retention_has_cut_keeps_its_offsets(broker: Broker) -> None:
    directory = declare(
        broker, "cut", **{"x-queue-type": "stream", "x-max-length-bytes": 2 * SMALL}
    )
    publish(broker, "cut", range(5000))

    def has_lost_some() -> bool:
        return number_of(bodies(directory, failOnDataLoss=False)[0]) > 0

    wait_for(has_lost_some, "retention removed nothing")
    for _ in range(2):
        found = rows(directory)
        assert len(found) < 5000
        assert [row["offset"] for row in found] == [number_of(r["body"]) + 1 for r in found]
        assert found[-1]["offset"] == 5000
        broker.stop()


def test_names_with_any_characters_are_found_by_name(broker: Broker) -> None:
    name = "zwölf/drei *"
    declare(broker, name)
    publish(broker, name, range(3))

    found = rows(broker.data_dir, queue=name)

    assert [row["queue"] for row in found] == [name] * 3
    assert {row["vhost"] for row in found} == {"/"}
