"""Queues with priorities."""

from __future__ import annotations

import random
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from lavinmq.files.directories import hashed
from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import get, get_all, ready_count, start_consumer, wait_for
from tests.integration.rules_actions import declare, holds, send, take, taken


def test_the_highest_priority_comes_first(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 239: in the order of publishing within one; none is 0."""
    queue = declare(channel, unique("q"), max_priority=5)
    for body, priority in (("a", 1), ("b", None), ("c", 5), ("d", 1), ("e", 0), ("f", 5)):
        send(channel, queue, body, priority=priority)
    assert taken(channel, queue, 6) == ["c", "f", "a", "d", "b", "e"]


@pytest.mark.parametrize("highest", [0, 1, 255])
def test_a_priority_above_the_highest_is_the_highest(
    channel: BlockingChannel, unique: UniqueName, highest: int
) -> None:
    """edge-cases.md 238"""
    queue = declare(channel, unique("q"), max_priority=highest)
    send(channel, queue, "low", priority=0)
    send(channel, queue, "high", priority=highest)
    send(channel, queue, "above", priority=255)
    order = ["high", "above"] if highest else ["low", "high", "above"]
    assert taken(channel, queue, 3) == (order if not highest else [*order, "low"])


@pytest.mark.parametrize("how", ["ack", "reject", "requeue", "close"])
def test_a_message_above_the_highest_priority_can_be_settled(
    connection: pika.BlockingConnection, unique: UniqueName, how: str
) -> None:
    """amqp.md 22.32, edge-cases.md 241: it returns to its level, redelivered."""
    channel = connection.channel()
    queue = declare(channel, unique("q"), max_priority=2)
    other = connection.channel()
    send(channel, queue, "1", "2", "3", priority=9)
    send(channel, queue, "low", priority=1)
    messages = [take(other, queue) for _ in range(2)]
    assert not any(message.redelivered for message in messages)
    if how == "ack":
        other.basic_ack(messages[1].tag, multiple=True)
    elif how == "reject":
        other.basic_nack(messages[1].tag, multiple=True, requeue=False)
    elif how == "requeue":
        other.basic_nack(messages[1].tag, multiple=True, requeue=True)
    else:
        other.close()
    back = ["1", "2"] if how in ("requeue", "close") else []
    holds(channel, queue, len(back) + 2)
    for body in [*back, "3", "low"]:
        message = take(channel, queue)
        assert (message.body.decode(), message.redelivered) == (body, body in back)


def test_counts_are_sums_over_the_levels(channel: BlockingChannel, unique: UniqueName) -> None:
    """edge-cases.md 240, 242"""
    queue = declare(channel, unique("q"), max_priority=9)
    for count in range(1, 11):
        send(channel, queue, "x", priority=count % 10)
        assert ready_count(channel, queue) == count
    message = take(channel, queue)
    assert ready_count(channel, queue) == 9
    channel.basic_reject(message.tag, requeue=True)
    assert ready_count(channel, queue) == 10
    assert channel.queue_purge(queue).method.message_count == 10
    assert get(channel, queue) is None
    send(channel, queue, "y", priority=3)
    assert get_all(channel, queue) == [b"y"]
    assert get(channel, queue) is None


def test_a_consumer_gets_a_higher_priority_that_comes_later(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 239"""
    queue = declare(channel, unique("q"), max_priority=9)
    channel.basic_qos(prefetch_count=1)
    send(channel, queue, "first", "low", priority=1)
    received = start_consumer(channel, queue)
    wait_for(channel, received, 1)
    send(channel, queue, "high", priority=9)
    assert ready_count(channel, queue) == 2
    for number in range(2):
        channel.basic_ack(received[number].tag)
        wait_for(channel, received, number + 2)
    assert [message.body for message in received] == [b"first", b"high", b"low"]


def test_overflow_drops_the_highest_priority_first(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 180: the head is what would be delivered next."""
    queue = declare(channel, unique("q"), max_priority=3, max_length=2)
    for body, priority in (("low", 0), ("high", 3), ("middle", 1)):
        send(channel, queue, body, priority=priority)
    assert taken(channel, queue, 2) == ["middle", "low"]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_order_survives_a_restart(broker_factory: BrokerFactory, end: str) -> None:
    """edge-cases.md 243: also with messages added afterwards."""
    own = broker_factory()
    chance = random.Random(5)
    published: list[tuple[int, int]] = []
    for _ in range(2):
        with pika.BlockingConnection(pika.URLParameters(own.uri)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", durable=True, arguments={"x-max-priority": 9})
            channel.confirm_delivery()
            for _ in range(30):
                number, priority = len(published), chance.randrange(10)
                published.append((-priority, number))
                send(channel, "q", str(number), priority=priority)
        own.restart() if end == "restart" else (own.kill(), own.start())
    with pika.BlockingConnection(pika.URLParameters(own.uri)) as connection:
        found = taken(connection.channel(), "q", 60)
    assert found == [str(number) for _, number in sorted(published)]


def test_a_level_without_messages_has_no_files(broker_factory: BrokerFactory) -> None:
    """Neither at once nor after a restart: 255 levels cost nothing until they are used."""
    own = broker_factory()
    uri = pika.URLParameters(own.uri)
    directory = own.data_dir / hashed("/") / hashed("q")

    def levels() -> set[str]:
        return {path.parent.name for path in directory.rglob("msgs.*")}

    with pika.BlockingConnection(uri) as connection:
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 255})
        channel.confirm_delivery()
        assert levels() == set()
        send(channel, "q", "a", priority=3)
        assert levels() == {"prio.003"}
        send(channel, "q", "b", priority=250)
    own.restart()
    assert levels() == {"prio.003", "prio.250"}
    assert {path.name for path in directory.glob("prio.*")} == levels()
    with pika.BlockingConnection(uri) as connection:
        assert taken(connection.channel(), "q", 2) == ["b", "a"]


@pytest.mark.parametrize("crash", [None, "migrating", "migrated"])
def test_an_old_single_store_is_migrated_once(
    broker_factory: BrokerFactory, crash: str | None
) -> None:
    """edge-cases.md 244: also when the broker was killed in the middle of it."""
    own = broker_factory()
    uri = pika.URLParameters(own.uri)
    with pika.BlockingConnection(uri) as connection:
        channel = connection.channel()
        channel.queue_declare("old", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
        channel.confirm_delivery()
        for number in range(61):
            send(channel, "old", str(number), priority=number % 7 or None)
        channel.basic_get("old", auto_ack=True)
    own.stop()
    vhost = own.data_dir / hashed("/")
    into = vhost / hashed("q")
    for file in (vhost / hashed("old")).glob("*.0000000001"):
        file.rename(into / file.name)
    if crash == "migrating":
        (into / "migrating" / "prio.003").mkdir(parents=True)
        (into / "migrating" / "prio.003" / "msgs.0000000001").write_bytes(b"\4\0\0\0half")
    elif crash == "migrated":
        own.start()
        own.kill()
        as_if_killed_before_the_end(into)
    own.start()
    with pika.BlockingConnection(uri) as connection:
        found = [int(body) for body in taken(connection.channel(), "q", 60)]
    expected = sorted(range(1, 61), key=lambda number: (-min(number % 7, 5), number))
    assert found == expected
    assert not list(into.glob("m*"))
    assert not list(into.glob("acks.*"))


def as_if_killed_before_the_end(directory: Path) -> None:
    """Back to when the new stores were whole and the old files had not been removed."""
    (directory / "migrated").mkdir()
    for level in list(directory.glob("prio.*"))[1:]:
        level.rename(directory / "migrated" / level.name)
    (directory / "msgs.0000000001").write_bytes(b"\4\0\0\0not read any more")


def test_what_cannot_be_read_of_an_old_store_is_kept_when_it_is_migrated(
    broker_factory: BrokerFactory,
) -> None:
    own = broker_factory()
    uri = pika.URLParameters(own.uri)
    with pika.BlockingConnection(uri) as connection:
        channel = connection.channel()
        channel.queue_declare("old", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
        channel.confirm_delivery()
        for number in range(9):
            send(channel, "old", f"<{number}>", priority=1)
    own.stop()
    into = own.data_dir / hashed("/") / hashed("q")
    content = (own.data_dir / hashed("/") / hashed("old") / "msgs.0000000001").read_bytes()
    at = content.index(b"<4>") - 8  # the length of its body
    content = content[:at] + b"\xff" * 8 + content[at + 8 :]
    (into / "msgs.0000000001").write_bytes(content)
    own.start()
    with pika.BlockingConnection(uri) as connection:
        found = taken(connection.channel(), "q", 8)
    assert found == [f"<{number}>" for number in range(9) if number != 4]
    assert (into / "msgs.0000000001.damaged").read_bytes() == content
    assert f"{into}/msgs.0000000001 is damaged at byte" in own.log_text()


def test_two_layouts_with_messages_are_left_alone(broker_factory: BrokerFactory) -> None:
    """edge-cases.md 244"""
    own = broker_factory()
    uri = pika.URLParameters(own.uri)
    with pika.BlockingConnection(uri) as connection:
        channel = connection.channel()
        channel.queue_declare("old", durable=True)
        channel.queue_declare("q", durable=True, arguments={"x-max-priority": 5})
        channel.confirm_delivery()
        send(channel, "old", "1")
        send(channel, "q", "2")
    own.stop()
    vhost = own.data_dir / hashed("/")
    (vhost / hashed("old") / "msgs.0000000001").rename(vhost / hashed("q") / "msgs.0000000001")
    own.start()
    assert "both hold messages" in own.log_text()
    own.stop()
    (vhost / hashed("q") / "msgs.0000000001").unlink()
    own.start()
    with pika.BlockingConnection(uri) as connection:
        assert taken(connection.channel(), "q", 1) == ["2"]
