"""pika takes messages: deliveries, acknowledgements, requeueing, prefetch, basic.get, cancel."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.integration.conftest import OpenConnection, UniqueName
from tests.integration.pika_actions import (
    Message,
    bodies,
    get,
    get_all,
    get_soon,
    publish,
    ready_count,
    serve_until,
    settle,
    start_consumer,
    wait_for,
)


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_a_consumer_gets_what_was_published_with_its_envelope(
    channel: BlockingChannel, queue: str
) -> None:
    received = start_consumer(channel, queue)

    publish(channel, queue, [b"hello"])

    [message] = wait_for(channel, received, 1)
    assert message.body == b"hello"
    assert (message.exchange, message.routing_key) == ("", queue)
    assert (message.tag, message.redelivered) == (1, False)


def test_messages_of_a_channel_arrive_in_publish_order(
    channel: BlockingChannel, queue: str
) -> None:
    sent = numbered(2000)
    received = start_consumer(channel, queue, auto_ack=True)

    publish(channel, queue, sent)

    assert bodies(wait_for(channel, received, len(sent))) == sent


def test_acked_messages_do_not_come_back_when_the_channel_closes(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, numbered(3))
    consumer = connection.channel()
    received = wait_for(consumer, start_consumer(consumer, queue), 3)

    consumer.basic_ack(received[0].tag)
    consumer.basic_ack(received[2].tag)
    consumer.close()

    assert get_all(channel, queue) == [b"1"]


def test_ack_multiple_settles_everything_up_to_its_tag(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, numbered(10))
    consumer = connection.channel()
    received = wait_for(consumer, start_consumer(consumer, queue), 10)

    consumer.basic_ack(received[6].tag, multiple=True)
    consumer.close()

    assert get_all(channel, queue) == numbered(3, start=7)


def test_ack_multiple_with_tag_zero_settles_everything(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, numbered(10))
    consumer = connection.channel()
    wait_for(consumer, start_consumer(consumer, queue), 10)

    consumer.basic_ack(0, multiple=True)
    consumer.close()

    assert get_all(channel, queue) == []


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_a_refused_message_is_redelivered_with_the_flag_before_newer_ones(
    channel: BlockingChannel, queue: str, method: str
) -> None:
    """edge-cases.md 155"""
    publish(channel, queue, numbered(2))
    first = get(channel, queue)
    assert first is not None

    refuse = channel.basic_nack if method == "nack" else channel.basic_reject
    refuse(first.tag, requeue=True)

    again, other = get_soon(channel, queue), get_soon(channel, queue)
    assert (again.body, again.redelivered) == (b"0", True)
    assert (other.body, other.redelivered) == (b"1", False)


@pytest.mark.parametrize("method", ["nack", "reject"])
def test_a_message_refused_without_requeue_is_gone(
    channel: BlockingChannel, queue: str, method: str
) -> None:
    """edge-cases.md 155"""
    publish(channel, queue, numbered(2))
    first = get(channel, queue)
    assert first is not None

    refuse = channel.basic_nack if method == "nack" else channel.basic_reject
    refuse(first.tag, requeue=False)

    assert get_all(channel, queue) == [b"1"]


def test_nack_multiple_requeues_in_the_original_order(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    """edge-cases.md 343"""
    publish(channel, queue, numbered(5))
    reader = connection.channel()
    taken = [get_soon(reader, queue) for _ in range(4)]

    reader.basic_nack(taken[2].tag, multiple=True, requeue=True)
    settle(reader)

    assert get_all(channel, queue) == [b"0", b"1", b"2", b"4"]
    reader.close()
    assert get_all(channel, queue) == [b"3"]


def test_messages_in_flight_return_when_the_connection_of_the_consumer_goes(
    connect: OpenConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 30"""
    name = unique("shared")
    channel.queue_declare(name)
    publish(channel, name, numbered(3))
    other = connect()
    wait_for(consumer := other.channel(), start_consumer(consumer, name), 3)

    other.close()

    returned = [get_soon(channel, name) for _ in range(3)]
    assert bodies(returned) == numbered(3)
    assert all(message.redelivered for message in returned)
    channel.queue_delete(name)


def test_recover_delivers_everything_in_flight_again(channel: BlockingChannel, queue: str) -> None:
    publish(channel, queue, numbered(3))
    received = start_consumer(channel, queue)
    wait_for(channel, received, 3)

    channel.basic_recover(requeue=True)

    again = wait_for(channel, received, 6)[3:]
    assert bodies(again) == numbered(3)
    assert all(message.redelivered for message in again)


def test_get_reports_how_many_messages_stay_and_then_that_none_is_there(
    channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, numbered(3))

    left = []
    while (method := channel.basic_get(queue, auto_ack=True)[0]) is not None:
        left.append(method.message_count)

    assert left == [2, 1, 0]


def test_get_without_ack_hides_the_message_until_it_is_settled(
    channel: BlockingChannel, queue: str
) -> None:
    publish(channel, queue, [b"only"])

    message = get(channel, queue)

    assert message is not None
    assert get(channel, queue) is None
    channel.basic_nack(message.tag, requeue=True)
    assert get_soon(channel, queue).redelivered


def test_prefetch_holds_deliveries_back_until_an_ack_makes_room(
    channel: BlockingChannel, queue: str
) -> None:
    """edge-cases.md 140"""
    publish(channel, queue, numbered(10))
    channel.basic_qos(prefetch_count=3)
    received = start_consumer(channel, queue)
    wait_for(channel, received, 3)
    settle(channel)
    assert ready_count(channel, queue) == 7

    channel.basic_ack(received[1].tag, multiple=True)

    assert bodies(wait_for(channel, received, 5)) == numbered(5)
    settle(channel)
    assert len(received) == 5
    assert ready_count(channel, queue) == 5


def test_global_prefetch_is_shared_by_the_consumers_of_a_channel(
    channel: BlockingChannel, queue: str
) -> None:
    channel.basic_qos(prefetch_count=4, global_qos=True)
    first, second = start_consumer(channel, queue), start_consumer(channel, queue)

    publish(channel, queue, numbered(10))

    assert serve_until(channel, lambda: len(first) + len(second) >= 4)
    settle(channel)
    assert len(first) + len(second) == 4
    assert ready_count(channel, queue) == 6


def test_prefetch_does_not_hold_back_a_consumer_without_acks(
    channel: BlockingChannel, queue: str
) -> None:
    channel.basic_qos(prefetch_count=1)
    received = start_consumer(channel, queue, auto_ack=True)

    publish(channel, queue, numbered(20))

    assert bodies(wait_for(channel, received, 20)) == numbered(20)


def test_a_cancelled_consumer_gets_nothing_more_and_may_still_ack(
    channel: BlockingChannel, queue: str
) -> None:
    received = start_consumer(channel, queue, consumer_tag="going")
    publish(channel, queue, [b"before"])
    [message] = wait_for(channel, received, 1)

    channel.basic_cancel("going")
    publish(channel, queue, [b"after"])
    channel.basic_ack(message.tag)

    assert get_all(channel, queue) == [b"after"]
    assert bodies(received) == [b"before"]


def test_a_consumer_is_told_when_its_queue_is_deleted(
    connect: OpenConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("doomed")
    consumer = connect().channel()
    consumer.queue_declare(name)
    cancelled: list[str] = []
    consumer.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    start_consumer(consumer, name, consumer_tag="watcher")

    channel.queue_delete(name)

    told = serve_until(consumer, lambda: bool(cancelled))
    assert told, "the consumer of a deleted queue got no basic.cancel"
    assert cancelled == ["watcher"]
    assert consumer.is_open


def test_an_exclusive_consumer_keeps_others_out_until_it_leaves(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str
) -> None:
    start_consumer(channel, queue, exclusive=True, consumer_tag="owner")

    with pytest.raises(ChannelClosedByBroker) as refused:
        start_consumer(connection.channel(), queue)

    assert refused.value.reply_code == 403
    channel.basic_cancel("owner")
    start_consumer(connection.channel(), queue)
    assert channel.queue_declare(queue, passive=True).method.consumer_count == 1


def test_a_consumer_of_lower_priority_waits_for_one_of_higher(
    channel: BlockingChannel, queue: str
) -> None:
    low = start_consumer(channel, queue, arguments={"x-priority": 1})
    high = start_consumer(channel, queue, arguments={"x-priority": 5})

    publish(channel, queue, numbered(20))

    assert bodies(wait_for(channel, high, 20)) == numbered(20)
    assert low == []


def test_many_consumers_share_a_queue_without_loss_or_copies(
    connect: OpenConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("shared")
    channel.queue_declare(name)
    consumers: list[list[Message]] = []
    worker = connect().channel()
    worker.basic_qos(prefetch_count=5)
    for _ in range(100):
        consumers.append(start_consumer(worker, name))

    sent = numbered(500)
    publish(channel, name, sent)
    # With 100 x 5 credits every message can be out at once, so nobody needs an ack to go on.
    arrived = serve_until(worker, lambda: sum(map(len, consumers)) >= len(sent))

    assert arrived, f"{sum(map(len, consumers))} of {len(sent)} messages were delivered"
    assert sorted(body for one in consumers for body in bodies(one)) == sorted(sent)
    worker.basic_ack(0, multiple=True)
    settle(worker)
    channel.queue_delete(name)


def test_many_channels_of_one_connection_work_side_by_side(
    connection: pika.BlockingConnection,
) -> None:
    channels = [connection.channel() for _ in range(200)]
    queues = [each.queue_declare("", exclusive=True).method.queue for each in channels]
    received = [
        start_consumer(each, name, auto_ack=True)
        for each, name in zip(channels, queues, strict=True)
    ]

    for index, each in enumerate(channels):
        publish(each, queues[-1 - index], [b"%d" % index])

    arrived = serve_until(channels[0], lambda: all(received))
    assert arrived, f"{sum(map(len, received))} of 200 channels got their message"
    assert [bodies(each) for each in reversed(received)] == [[n] for n in numbered(200)]
