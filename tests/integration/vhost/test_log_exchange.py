"""The log as messages: `log_exchange` publishes it to `amq.lavinmq.log`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import BrokerFactory
from tests.integration.conftest import Channels
from tests.support.broker import Broker
from tests.support.waiting import wait_for

EXCHANGE = "amq.lavinmq.log"
Message = tuple[str, str, pika.BasicProperties]


def with_log(tmp_path: Path, broker_factory: BrokerFactory, **settings: str) -> Broker:
    """A broker that publishes its log."""
    config = tmp_path / "lavinmq.ini"
    lines = [f"{key} = {value}" for key, value in ({"log_exchange": "true"} | settings).items()]
    config.write_text("\n".join(["[main]", *lines, ""]))
    return broker_factory(["-c", str(config)])


def listen(channel: BlockingChannel, key: str = "#") -> str:
    """A queue that takes entries of a severity."""
    queue = str(channel.queue_declare("", exclusive=True).method.queue)
    channel.queue_bind(queue, EXCHANGE, key)
    return queue


def published(channel: BlockingChannel, queue: str, text: str) -> Message:
    """The first entry with a text in it."""
    found: list[Message] = []

    def take() -> bool:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is not None and text in body.decode():
            found.append((method.routing_key, body.decode(), properties))
        return bool(found)

    wait_for(take, f"no entry with {text!r} was published")
    return found[0]


def misbehave(channel: BlockingChannel) -> None:
    """Have the broker log that a channel was closed."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        channel.queue_declare("no-such-queue", passive=True)


def test_entries_are_published_with_their_severity_as_key(
    tmp_path: Path, broker_factory: BrokerFactory, channel_of: Channels
) -> None:
    broker = with_log(tmp_path, broker_factory)
    channel = channel_of(broker)
    queue = listen(channel, "Info")
    before = int(time.time())

    misbehave(channel_of(broker))

    key, body, properties = published(channel, queue, "no-such-queue")
    assert key == "Info"
    assert body.startswith("lmq.amqp.client - channel 1 closed: ")
    assert properties.content_type == "text/plain"
    assert before <= properties.timestamp <= time.time()


def test_only_wanted_severities_come(
    tmp_path: Path, broker_factory: BrokerFactory, channel_of: Channels
) -> None:
    broker = with_log(tmp_path, broker_factory)
    channel = channel_of(broker)
    errors, all_ = listen(channel, "Error"), listen(channel)

    misbehave(channel_of(broker))

    published(channel, all_, "no-such-queue")
    assert channel.basic_get(errors) == (None, None, None)


def test_the_exchange_is_internal_and_there_from_the_start(
    tmp_path: Path, broker_factory: BrokerFactory, channel_of: Channels
) -> None:
    broker = with_log(tmp_path, broker_factory)
    channel = channel_of(broker)

    channel.exchange_declare(EXCHANGE, passive=True)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
        channel.basic_publish(EXCHANGE, "Info", b"forged")
        channel.queue_declare("", exclusive=True)

    assert refusal.value.reply_code == 403


def test_bindings_of_durable_queues_last(
    tmp_path: Path, broker_factory: BrokerFactory, channel_of: Channels
) -> None:
    broker = with_log(tmp_path, broker_factory)
    channel = channel_of(broker)
    channel.queue_declare("log", durable=True)
    channel.queue_bind("log", EXCHANGE, "#")
    channel.connection.close()  # an orderly stop waits for clients
    broker.stop()
    broker.start()
    channel = channel_of(broker)

    misbehave(channel_of(broker))

    assert published(channel, "log", "no-such-queue")


def test_a_log_that_talks_about_publishing_does_not_feed_itself(
    tmp_path: Path, broker_factory: BrokerFactory, channel_of: Channels
) -> None:
    """At level trace whatever publishing causes is logged: the number of entries still ends."""
    broker = with_log(tmp_path, broker_factory, log_level="trace")
    channel = channel_of(broker)
    queue = listen(channel)
    misbehave(channel_of(broker))
    published(channel, queue, "no-such-queue")

    def count() -> int:
        return int(channel.queue_declare(queue, passive=True).method.message_count)

    counts = [count()]

    def is_quiet() -> bool:
        time.sleep(0.2)  # four rounds of publishing
        counts.append(count())
        return counts[-1] == counts[-2]

    wait_for(is_quiet, "the log goes on by itself")


def test_without_the_setting_there_is_no_exchange(own_broker: Broker, channel_of: Channels) -> None:
    channel = channel_of(own_broker)

    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refusal:
        channel.exchange_declare(EXCHANGE, passive=True)

    assert refusal.value.reply_code == 404


def test_the_log_of_a_broker_is_json_when_told(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    path = tmp_path / "lavinmq.log"
    with_log(tmp_path, broker_factory, log_format="json", log_file=str(path))

    entries = [json.loads(line) for line in path.read_text().splitlines()]

    assert any(entry["message"].startswith("Finished startup in") for entry in entries)
    assert all(entry["source"].startswith("lmq.") for entry in entries)
