"""Streams through a whole broker and pika: declaring, reading, tracking, retention, restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from tests.integration.conftest import UniqueName
from tests.integration.files.test_data_dir import manifest_of, unpack
from tests.support.broker import Broker
from tests.support.segments import queue_directory
from tests.support.typed import TypedClient

STREAM = {"x-queue-type": "stream"}
BrokerFactory = Callable[..., Broker]
WAIT_S = 10.0


@pytest.fixture
def stream(channel: BlockingChannel, unique: UniqueName) -> str:
    """Name of an empty stream."""
    name = unique("stream")
    channel.queue_declare(name, durable=True, arguments=STREAM)
    return name


def connect(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))


class Reader:
    """A consumer of a stream that notes what it gets."""

    def __init__(
        self, channel: BlockingChannel, queue: str, tag: str = "", prefetch: int = 100,
        **arguments: Any,
    ) -> None:  # fmt: skip
        self.channel = channel
        self.found: list[tuple[int, bytes]] = []
        self.tags: list[int] = []
        channel.basic_qos(prefetch_count=prefetch)
        table = {"x-" + name.replace("_", "-"): value for name, value in arguments.items()}
        self.tag = channel.basic_consume(
            queue, self.on_message, consumer_tag=tag or None, arguments=table
        )

    def on_message(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.found.append((properties.headers["x-stream-offset"], body))
        self.tags.append(method.delivery_tag)

    def wait(self, n: int) -> list[int]:
        """The offsets of what has come, once there are n of them."""
        deadline = time.monotonic() + WAIT_S
        while len(self.found) < n:
            assert time.monotonic() < deadline, self.found
            self.channel.connection.process_data_events(0.05)
        return [offset for offset, _ in self.found]


def test_messages_stay_and_are_read_by_everybody(channel: BlockingChannel, stream: str) -> None:
    channel.confirm_delivery()
    for number in range(5):
        properties = pika.BasicProperties(expiration="0", headers={"x-stream-offset": "mine"})
        channel.basic_publish("", stream, b"%d" % number, properties, mandatory=True)

    one = Reader(channel, stream, stream_offset="first")
    two = Reader(channel, stream, stream_offset=3)

    assert one.wait(5) == [1, 2, 3, 4, 5]
    assert two.wait(3) == [3, 4, 5]
    assert channel.queue_declare(stream, passive=True).method.message_count == 5


def test_the_newest_messages_are_read_by_a_negative_offset_and_those_of_a_while_by_an_interval(
    channel: BlockingChannel, stream: str
) -> None:
    """amqp.md 20: a negative offset counts from the end; "1h" begins an hour ago."""
    for number in range(5):
        channel.basic_publish("", stream, b"%d" % number)

    assert Reader(channel, stream, stream_offset=-2).wait(2) == [4, 5]
    assert Reader(channel, stream, stream_offset="1h").wait(5) == [1, 2, 3, 4, 5]
    last = Reader(channel, stream, stream_offset="0s")
    channel.basic_publish("", stream, b"new")
    assert last.wait(1)[-1:] == [6]


@pytest.mark.parametrize(
    ("arguments", "flags", "text"),
    [
        ({"x-expires": 1}, {}, "Argument x-expires not allowed for streams"),
        ({"x-dead-letter-exchange": ""}, {}, "Argument x-dead-letter-exchange not allowed"),
        ({"x-delivery-limit": 1}, {}, "Argument x-delivery-limit not allowed for streams"),
        ({"x-overflow": "drop-head"}, {}, "Argument x-overflow not allowed for streams"),
        ({"x-single-active-consumer": True}, {}, "Argument x-single-active-consumer not allowed"),
        ({"x-max-priority": 1}, {}, "Argument x-max-priority not allowed for streams"),
        ({}, {"durable": False}, "A stream cannot be non-durable"),
        ({}, {"exclusive": True}, "A stream cannot be exclusive"),
        ({}, {"auto_delete": True}, "A stream cannot be auto-delete"),
    ],
)
def test_what_a_stream_cannot_be_is_refused(
    channel: BlockingChannel, unique: UniqueName, arguments: Any, flags: Any, text: str
) -> None:
    """amqp.md 10."""
    with pytest.raises(ChannelClosedByBroker, match=text) as caught:
        channel.queue_declare(
            unique("bad"), **{"durable": True} | flags, arguments=STREAM | arguments
        )

    assert caught.value.reply_code == 406


def test_arguments_without_effect_are_accepted(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    """amqp.md 10: x-message-ttl and deduplication do nothing on a stream."""
    name = unique("stream")
    arguments = STREAM | {"x-message-ttl": 0, "x-message-deduplication": True}
    channel.queue_declare(name, durable=True, arguments=arguments)
    for _ in range(2):
        properties = pika.BasicProperties(headers={"x-deduplication-header": "same"})
        channel.basic_publish("", name, b"m", properties)

    assert Reader(channel, name).wait(2) == [1, 2]


def test_a_stream_cannot_be_got_from(channel: BlockingChannel, stream: str) -> None:
    """edge-cases.md 251."""
    with pytest.raises(ConnectionClosedByBroker) as caught:
        channel.basic_get(stream)

    assert caught.value.reply_code == 540


def test_taking_the_prefetch_limit_away_leaves_stream_consumers_theirs(
    channel: BlockingChannel, stream: str
) -> None:
    reader = Reader(channel, stream, prefetch=2)
    channel.basic_qos(prefetch_count=0)
    for number in range(6):
        channel.basic_publish("", stream, b"%d" % number)

    assert reader.wait(2) == [1, 2]
    channel.queue_declare(stream, passive=True)
    channel.connection.process_data_events(0)
    assert len(reader.found) == 2


def test_deleting_answers_the_deleter_first_and_then_tells_consumers(broker: Broker) -> None:
    """amqp.md 22.44: queue.delete-ok comes before basic.cancel; acks afterwards are harmless.

    edge-cases.md 272, 273.
    """
    with TypedClient(broker.port) as client:
        client.call("queue.declare", queue="gone-stream", durable=True,
                    arguments=[["x-queue-type", "S", "stream"]])  # fmt: skip
        client.publish("", "gone-stream", b"m")
        client.call("basic.qos", prefetch_count=10)
        client.call("basic.consume", queue="gone-stream", consumer_tag="me")
        assert client.take()["method"] == "basic.deliver"

        assert client.call("queue.delete", queue="gone-stream")["method"] == "queue.delete-ok"
        assert client.take()["method"] == "basic.cancel"
        client.send("basic.ack", delivery_tag=1)
        client.synchronise()


def test_consumers_go_on_where_they_acknowledged(own_broker: Broker) -> None:
    """edge-cases.md 261, 270, 274; amqp.md 22.11: after an orderly stop and after a kill."""
    with connect(own_broker) as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments=STREAM)
        for number in range(20):
            channel.basic_publish("", "s", b"%d" % number)
        reader = Reader(channel, "s", tag="me", prefetch=8)
        assert reader.wait(8) == list(range(1, 9))
        for tag in (1, 2, 3, 5, 7):
            channel.basic_ack(tag)
        channel.queue_declare("s", passive=True)
        reader.wait(13)

    for restart in (own_broker.restart, own_broker.kill):
        restart()
        if not own_broker.is_running():
            own_broker.start()
        with connect(own_broker) as connection:
            reader = Reader(connection.channel(), "s", tag="me", prefetch=1, stream_offset=-1,
                            stream_automatic_offset_tracking=True)  # fmt: skip
            assert reader.wait(1) == [4]


def test_retention_follows_the_arguments(tmp_path: Path, broker_factory: BrokerFactory) -> None:
    """edge-cases.md 253, 258; amqp.md 22.38: segments go, and offsets go on after a restart."""
    config = tmp_path / "small.ini"
    config.write_text("[main]\nsegment_size = 4096\n")
    broker = broker_factory(["-c", str(config)])
    with connect(broker) as connection:
        channel = connection.channel()
        channel.queue_declare("s", durable=True, arguments=STREAM | {"x-max-length": 1})
        for _ in range(3):
            channel.basic_publish("", "s", bytes(3000))
        assert channel.queue_declare("s", passive=True).method.message_count == 1
    files = sorted(path.name for path in queue_directory(broker.data_dir, "s").iterdir())
    assert [name for name in files if not name.startswith("created.")] == [
        ".queue", "first.0000000003.3", "msgs.0000000003",
    ]  # fmt: skip

    broker.restart()

    with connect(broker) as connection:
        channel = connection.channel()
        channel.basic_publish("", "s", bytes(3000))
        assert Reader(channel, "s").wait(1) == [4]
        assert channel.queue_purge("s").method.message_count == 0


def test_many_consumers_get_each_message(connection: Any, stream: str) -> None:
    """edge-cases.md 247."""
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    got: list[str] = []
    for _ in range(300):
        channel.basic_consume(stream, lambda _c, m, _p, _b: got.append(m.consumer_tag))

    for number in range(3):
        channel.basic_publish("", stream, b"%d" % number)
    deadline = time.monotonic() + WAIT_S
    while len(got) < 900 and time.monotonic() < deadline:
        connection.process_data_events(0.05)

    assert len(got) == 900
    assert len(set(got)) == 300


def test_a_stream_that_cannot_be_read_is_closed_and_its_consumers_are_told(
    tmp_path: Path, broker_factory: BrokerFactory
) -> None:
    """edge-cases.md 260: publishes to it are dropped without an error."""
    config = tmp_path / "small.ini"
    config.write_text("[main]\nsegment_size = 4096\n")
    broker = broker_factory(["-c", str(config)])
    with TypedClient(broker.port) as client:
        client.call("queue.declare", queue="s", durable=True,
                    arguments=[["x-queue-type", "S", "stream"]])  # fmt: skip
        for _ in range(6):
            client.publish("", "s", bytes(3000))
        client.call("basic.qos", prefetch_count=100)
        (queue_directory(broker.data_dir, "s") / "msgs.0000000003").unlink()

        client.call("basic.consume", queue="s", consumer_tag="me",
                    arguments=[["x-stream-offset", "S", "first"]])  # fmt: skip
        while (unit := client.take())["method"] == "basic.deliver":
            pass

        assert unit["method"] == "basic.cancel"
        client.publish("", "s", b"dropped")
        client.synchronise()
    assert "Queue 's' is closed" in broker.log_text() or "cannot be read" in broker.log_text()


# --- directories of the original ------------------------------------------------------------------


@pytest.mark.parametrize("archive", ["rich", "rich-killed"])
def test_streams_of_the_original_are_read_and_go_on(
    tmp_path: Path, broker_factory: BrokerFactory, archive: str
) -> None:
    """edge-cases.md 248, 262, 277: messages, offsets and stored offsets, also after a kill."""
    config = tmp_path / "small.ini"
    config.write_text("[main]\nsegment_size = 4096\n")
    broker = broker_factory(["-c", str(config)], data_dir=unpack(archive, tmp_path / "data"))
    streams = [q for q in manifest_of(archive)["queues"]
               if q["arguments"].get("x-queue-type") == "stream"]  # fmt: skip
    assert len(streams) == 3
    for queue in streams:
        for tag, offset in queue["consumer_offsets"].items():
            with TypedClient(broker.port, vhost=queue["vhost"]) as client:
                client.call("basic.qos", prefetch_count=1)
                client.call("basic.consume", queue=queue["name"], consumer_tag=tag)
                unit = client.take()
            assert unit["props"]["headers"][-1] == ["x-stream-offset", "l", offset]
    broker.kill()
    broker.start()
    for queue in streams:
        n = queue["messages"]
        with TypedClient(broker.port, vhost=queue["vhost"]) as client:
            found = client.read_stream(queue["name"])
            assert [u["props"]["headers"][-1][2] for u in found] == list(range(1, n + 1))
            client.publish("", queue["name"], b"new")
            client.synchronise()
            assert client.read_stream(queue["name"])[-1]["props"]["headers"] == [
                ["x-stream-offset", "l", n + 1]
            ]


@pytest.mark.parametrize(
    ("archive", "wanted"), [("damaged-stream-tail", 4), ("damaged-stream-offsets", 5)]
)
def test_damage_that_stops_the_original_costs_what_it_covers(
    tmp_path: Path, broker_factory: BrokerFactory, archive: str, wanted: int
) -> None:
    broker = broker_factory(data_dir=unpack(archive, tmp_path / "data"))
    name = next(broker.data_dir.glob("*/*/.queue")).read_text()

    with TypedClient(broker.port) as client:
        assert [u["props"]["headers"][-1][2] for u in client.read_stream(name)] == list(
            range(1, wanted + 1)
        )
        client.publish("", name, b"new")
        client.synchronise()
        assert len(client.read_stream(name)) == wanted + 1
