"""Epochs of streams through a whole broker: who has read what a loss of power took is told so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker

from tests.integration.stream.test_streams import STREAM, Reader
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.segments import queue_directory, segment_path

NAME = "s"
QUEUES = "/api/queues/%2F"
Client = Callable[[Broker], BlockingChannel]


@pytest.fixture
def client() -> Iterator[Client]:
    """Call it with a broker to get a channel of a new connection."""
    opened: list[pika.BlockingConnection] = []

    def open_channel(broker: Broker) -> BlockingChannel:
        opened.append(pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port)))
        return opened[-1].channel()

    yield open_channel
    for connection in opened:
        with suppress(AMQPError):  # its broker may have been killed
            connection.close()


def fill(channel: BlockingChannel, n: int) -> None:
    """Publish so many messages, and wait until they are on disk."""
    channel.queue_declare(NAME, durable=True, arguments=STREAM)
    channel.confirm_delivery()
    for number in range(n):
        channel.basic_publish("", NAME, b"%08d" % number)


def epochs(broker: Broker) -> list[tuple[int, int]]:
    stream = Api(broker).get(f"{QUEUES}/{NAME}")["stream"]
    found = [(each["epoch"], each["first_offset"]) for each in stream["epochs"]]
    assert stream["epoch"] == found[-1][0]
    return found


def lose_power(broker: Broker, n_left: int) -> None:
    """End the broker; of its stream only so many messages were on disk. Then start it."""
    broker.kill()
    path = segment_path(queue_directory(broker.data_dir, NAME))
    record = 4 + (8 + 1 + 1 + len(NAME) + 2 + 8 + 8) * n_left
    assert path.stat().st_size > record
    os.truncate(path, record)
    broker.start()


def refused(channel: BlockingChannel, **arguments: Any) -> str:
    """The text with which consuming is refused."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        Reader(channel, NAME, **arguments)
    assert caught.value.reply_code == 406
    return str(caught.value.reply_text)


def test_an_end_without_order_begins_an_epoch_and_an_orderly_stop_does_not(
    http_broker: Broker, client: Client
) -> None:
    channel = client(http_broker)
    fill(channel, 5)
    assert epochs(http_broker) == [(1, 1)]

    channel.connection.close()  # an orderly stop waits for clients
    http_broker.restart()
    assert epochs(http_broker) == [(1, 1)]
    http_broker.kill()
    http_broker.start()
    assert epochs(http_broker) == [(1, 1), (2, 6)]
    http_broker.restart()
    assert epochs(http_broker) == [(1, 1), (2, 6)]
    fill(client(http_broker), 2)
    http_broker.kill()
    http_broker.start()

    assert epochs(http_broker) == [(1, 1), (2, 6), (3, 8)]
    file = queue_directory(http_broker.data_dir, NAME) / "epochs"
    assert file.read_text() == "1 1\n2 6\n3 8\n"
    assert "stream 's': epoch 3 begins at offset 8" in http_broker.log_text()


def test_who_opened_the_directory_in_between_is_noticed(
    http_broker: Broker, client: Client
) -> None:
    """A broker that does not know the mark leaves it, but not the lock file."""
    channel = client(http_broker)
    fill(channel, 5)
    channel.connection.close()
    http_broker.stop()
    assert (http_broker.data_dir / "clean_stop").exists()
    (http_broker.data_dir / ".lock").write_text("PID 1 @ elsewhere")
    os.truncate(http_broker.data_dir / ".lock", 0)

    http_broker.start()

    assert not (http_broker.data_dir / "clean_stop").exists()
    assert epochs(http_broker) == [(1, 1), (2, 6)]


def test_a_new_stream_begins_with_the_first_epoch_whatever_was_before(
    http_broker: Broker, client: Client
) -> None:
    fill(client(http_broker), 5)
    http_broker.kill()
    http_broker.start()
    channel = client(http_broker)
    channel.queue_delete(NAME)
    fill(channel, 1)

    assert epochs(http_broker) == [(1, 1)]


def test_a_consumer_that_has_read_what_is_lost_is_refused(
    http_broker: Broker, client: Client
) -> None:
    fill(client(http_broker), 8)
    reader = Reader(client(http_broker), NAME, stream_offset="first", stream_epoch=True)
    assert reader.wait(8) == list(range(1, 9))
    lose_power(http_broker, 5)
    fill(client(http_broker), 4)

    text = refused(client(http_broker), stream_offset=9, stream_epoch=1)
    assert text == (
        "PRECONDITION_FAILED - Stream 's' in vhost '/' is another from offset 6 on: epoch 2 begins "
        "there, and offset 9 was reached in epoch 1"
    )
    refused(client(http_broker), stream_offset=7, stream_epoch=1)
    same = Reader(client(http_broker), NAME, stream_offset=6, stream_epoch=1)
    assert same.wait(4) == [6, 7, 8, 9]
    now = Reader(client(http_broker), NAME, stream_offset=9, stream_epoch=2)
    assert now.wait(1) == [9]
    unknown = refused(client(http_broker), stream_offset=1, stream_epoch=7)
    assert "epoch 2 begins there, and offset 1 was reached in epoch 7" in unknown


def test_deliveries_tell_the_epoch_to_those_who_ask(http_broker: Broker, client: Client) -> None:
    fill(client(http_broker), 3)
    http_broker.kill()
    http_broker.start()
    channel = client(http_broker)
    fill(channel, 2)
    told: list[dict[str, Any]] = []
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume(
        NAME,
        lambda _c, _m, properties, _b: told.append(properties.headers),
        arguments={"x-stream-offset": "first", "x-stream-epoch": True, "x-stream-timestamp": True},
    )
    while len(told) < 5:
        channel.connection.process_data_events(1)

    assert [each["x-stream-epoch"] for each in told] == [1, 1, 1, 2, 2]
    assert [each["x-stream-offset"] for each in told] == [1, 2, 3, 4, 5]
    plain = Reader(channel, NAME, stream_offset="first")
    assert plain.wait(5) == [1, 2, 3, 4, 5]


def test_a_reader_of_records_is_told_too(http_broker: Broker, client: Client) -> None:
    fill(client(http_broker), 8)
    lose_power(http_broker, 5)
    fill(client(http_broker), 4)
    api, path = Api(http_broker), f"{QUEUES}/{NAME}/stream/raw"

    answer = api("GET", f"{path}?offset=8&epoch=1")

    assert answer.status == 409
    assert answer.json["reason"] == (
        "The stream is another from offset 6 on: epoch 2 begins there, and offset 8 was reached in "
        "epoch 1"
    )
    assert api("GET", f"{path}?offset=6&epoch=1").status == 200
    assert api("GET", f"{path}?offset=8&epoch=2").status == 200
    assert api("GET", f"{path}?offset=8").status == 200
    assert api("GET", f"{path}?offset=8&epoch=x").status == 400


def test_a_position_on_the_broker_goes_back_to_where_the_epoch_begins(
    http_broker: Broker, client: Client
) -> None:
    channel = client(http_broker)
    fill(channel, 8)
    reader = Reader(channel, NAME, tag="me")
    reader.wait(8)
    channel.basic_ack(reader.tags[-1], multiple=True)
    channel.queue_declare(NAME, passive=True)
    lose_power(http_broker, 5)

    [position] = Api(http_broker).get(f"{QUEUES}/{NAME}/stream/consumers")
    assert (position["name"], position["offset"], position["lag"]) == ("me", 6, 0)
    assert "consumer 'me' was at offset 9 and goes on at 6" in http_broker.log_text()
    channel = client(http_broker)
    fill(channel, 4)
    assert Reader(channel, NAME, tag="me").wait(4) == [6, 7, 8, 9]


def test_a_stream_without_confirms_is_planned_to_its_end(
    http_broker: Broker, client: Client
) -> None:
    """Who asks has the disk catch up: what the broker had got by then is told."""
    channel = client(http_broker)
    channel.queue_declare(NAME, durable=True, arguments=STREAM)
    for number in range(50):
        channel.basic_publish("", NAME, b"%d" % number)
    channel.queue_declare(NAME, passive=True)
    api = Api(http_broker)

    assert api.get(f"{QUEUES}/{NAME}")["stream"]["last_offset"] == 50
    assert api.get(f"{QUEUES}/{NAME}")["next_offset"] == 51
    assert [each["messages"] for each in api.get(f"{QUEUES}/{NAME}/stream/segments")] == [50]


@pytest.mark.parametrize("sync", ["true", "false"])
def test_a_list_of_streams_asks_for_what_it_cannot_tell_yet(
    broker_factory: Callable[..., Broker], client: Client, sync: str
) -> None:
    broker = broker_factory([] if sync == "true" else ["--no-sync"], http=True)
    channel = client(broker)
    channel.queue_declare(NAME, durable=True, arguments=STREAM)
    channel.basic_publish("", NAME, b"one")
    channel.queue_declare(NAME, passive=True)
    api = Api(broker)

    found = []
    while 2 not in found:
        found.append(api.get(QUEUES)[0]["next_offset"])
        assert len(found) < 100, found


def harm(broker: Broker, number: int) -> None:
    """End the broker in order, make junk of a message of its stream's first segment, and start it.

    Args: number: among those that were published.
    """
    broker.stop()
    path = min(queue_directory(broker.data_dir, NAME).glob("msgs.??????????"))
    record = 8 + 1 + 1 + len(NAME) + 2 + 8 + 8
    with path.open("r+b") as file:
        file.seek(4 + record * (number - 1))
        file.write(b"\xff" * record)
    broker.start()


def fill_around_damage(broker: Broker, client: Client, n_behind: int) -> None:
    """Have eight messages, of which the third is harmed, and then some in the next segment."""
    channel = client(broker)
    fill(channel, 8)
    channel.connection.close()
    harm(broker, 3)
    channel = client(broker)
    fill(channel, n_behind)
    channel.connection.close()


def test_messages_behind_damage_have_their_offsets_in_another_epoch(
    http_broker: Broker, client: Client
) -> None:
    """Nobody knows how many there were in it, so those behind it are counted anew."""
    channel = client(http_broker)
    fill(channel, 8)
    channel.connection.close()

    harm(http_broker, 3)

    assert epochs(http_broker) == [(1, 1), (2, 3)]
    reader = Reader(client(http_broker), NAME, stream_offset="first", stream_epoch=True)
    assert reader.wait(7) == list(range(1, 8))
    text = refused(client(http_broker), stream_offset=6, stream_epoch=1)
    assert "another from offset 3 on: epoch 2 begins there, and offset 6" in text
    before = Reader(client(http_broker), NAME, stream_offset=3, stream_epoch=1)
    assert before.wait(5) == [3, 4, 5, 6, 7]


def test_damage_that_is_known_begins_no_epoch_more(http_broker: Broker, client: Client) -> None:
    fill_around_damage(http_broker, client, 2)

    http_broker.restart()
    assert epochs(http_broker) == [(1, 1), (2, 3)]
    http_broker.kill()
    http_broker.start()

    assert epochs(http_broker) == [(1, 1), (2, 3), (3, 10)]


def test_messages_between_damage_and_a_known_end_keep_their_offsets(
    http_broker: Broker, client: Client
) -> None:
    fill_around_damage(http_broker, client, 1)

    harm(http_broker, 2)

    assert epochs(http_broker) == [(1, 1), (2, 3)]
    reader = Reader(client(http_broker), NAME, stream_offset="first")
    assert reader.wait(7) == [1, 3, 4, 5, 6, 7, 8]


def test_messages_that_are_numbered_back_over_damage_have_another_epoch(
    http_broker: Broker, client: Client
) -> None:
    """Where nobody knows how the segment begins, those before the damage are counted anew."""
    fill_around_damage(http_broker, client, 1)
    http_broker.stop()
    directory = queue_directory(http_broker.data_dir, NAME)
    (directory / "msgs.0000000002").rename(directory / "msgs.0000000004")
    (directory / "first.0000000002.8").rename(directory / "first.0000000004.8")
    (directory / "msgs.0000000001").rename(directory / "msgs.0000000003")

    harm(http_broker, 5)

    assert epochs(http_broker) == [(1, 1), (2, 3), (3, 3)]
