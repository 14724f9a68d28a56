"""pika declares things: queues of all kinds of life, exchanges of all types, bindings."""

from __future__ import annotations

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from tests.integration.conftest import OpenConnection, UniqueName
from tests.integration.pika_actions import (
    get_all,
    publish,
    ready_count,
    serve_until,
    start_consumer,
)


def is_there(connection: pika.BlockingConnection, queue: str) -> bool:
    """Tell whether a queue exists, asking on a channel that the answer may close."""
    probe = connection.channel()
    try:
        probe.queue_declare(queue, passive=True)
    except ChannelClosedByBroker as closed:
        assert closed.reply_code == 404, f"passive declare answered {closed!r}"
        return False
    probe.close()
    return True


def bound_queue(
    channel: BlockingChannel,
    exchange: str,
    *routing_keys: str,
    arguments: dict[str, object] | None = None,
) -> str:
    """Return the name of a new exclusive queue bound to `exchange`."""
    queue: str = channel.queue_declare("", exclusive=True).method.queue
    for routing_key in routing_keys:
        channel.queue_bind(queue, exchange, routing_key, arguments)
    return queue


@pytest.fixture
def exchange_of(channel: BlockingChannel, unique: UniqueName) -> UniqueName:
    """Call it with a type to get the name of a new exchange of that type."""

    def declare(exchange_type: str) -> str:
        name = unique(exchange_type)
        # Auto-delete tidies up: the exclusive queues take the bindings along.
        channel.exchange_declare(name, exchange_type, auto_delete=True)
        return name

    return declare


def test_the_broker_names_queues_that_have_no_name(channel: BlockingChannel) -> None:
    first = channel.queue_declare("", exclusive=True).method.queue
    second = channel.queue_declare("", exclusive=True).method.queue

    publish(channel, first, [b"1"])

    assert first.startswith("amq.gen-")
    assert first != second
    assert (get_all(channel, second), get_all(channel, first)) == ([], [b"1"])


def test_an_empty_name_means_the_queue_declared_last(channel: BlockingChannel) -> None:
    name = channel.queue_declare("", exclusive=True).method.queue
    channel.confirm_delivery()
    publish(channel, name, [b"1", b"2"])

    assert channel.basic_get("", auto_ack=True)[2] == b"1"
    assert channel.queue_purge("").method.message_count == 1


def test_a_declare_reports_messages_and_consumers(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, [b"1", b"2"])

    counted = channel.queue_declare(queue, passive=True).method
    assert (counted.queue, counted.message_count, counted.consumer_count) == (queue, 2, 0)

    start_consumer(channel, queue)
    again = channel.queue_declare(queue, exclusive=True).method
    assert (again.message_count, again.consumer_count) == (0, 1)


def test_purge_removes_ready_messages_and_counts_them(channel: BlockingChannel, queue: str) -> None:
    channel.confirm_delivery()
    publish(channel, queue, [b"1", b"2", b"3"])
    taken = channel.basic_get(queue)[0]
    assert taken is not None

    assert channel.queue_purge(queue).method.message_count == 2

    channel.basic_nack(taken.delivery_tag, requeue=True)
    assert serve_until(channel, lambda: ready_count(channel, queue) == 1)


def test_delete_counts_the_messages_that_go(
    connection: pika.BlockingConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    """edge-cases.md 51"""
    name = unique("doomed")
    channel.queue_declare(name)
    channel.confirm_delivery()
    publish(channel, name, [b"1", b"2"])

    assert channel.queue_delete(name).method.message_count == 2

    assert not is_there(connection, name)


@pytest.mark.parametrize("condition", ["if_empty", "if_unused"])
def test_a_conditional_delete_spares_a_queue_in_use(
    connection: pika.BlockingConnection, channel: BlockingChannel, queue: str, condition: str
) -> None:
    if condition == "if_empty":
        publish(channel, queue, [b"1"])
    else:
        start_consumer(channel, queue)

    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_delete(queue, **{condition: True})

    assert refused.value.reply_code == 406
    assert is_there(connection, queue)


def test_an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection(
    connect: OpenConnection, connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    """edge-cases.md 52"""
    name = unique("mine")
    owner = connect()
    owner.channel().queue_declare(name, exclusive=True)

    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_declare(name, exclusive=True)
    assert refused.value.reply_code == 405

    owner.close()
    gone = serve_until(connection.channel(), lambda: not is_there(connection, name))
    assert gone, "the exclusive queue outlived its connection"


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connection: pika.BlockingConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("fleeting")
    channel.queue_declare(name, auto_delete=True)
    start_consumer(channel, name, consumer_tag="first")
    start_consumer(channel, name, consumer_tag="second")

    channel.basic_cancel("first")
    assert is_there(connection, name)

    channel.basic_cancel("second")
    assert serve_until(channel, lambda: not is_there(connection, name)), "the queue is still there"


def test_an_auto_delete_queue_without_any_consumer_stays(
    connection: pika.BlockingConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("waiting")
    other = connection.channel()
    other.queue_declare(name, auto_delete=True)
    other.close()

    assert is_there(connection, name)
    channel.queue_delete(name)


def test_a_direct_exchange_routes_by_the_exact_key(
    channel: BlockingChannel, exchange_of: UniqueName
) -> None:
    exchange = exchange_of("direct")
    red = bound_queue(channel, exchange, "red")
    both = bound_queue(channel, exchange, "red", "blue")

    for key in ("red", "blue", "Red", ""):
        channel.basic_publish(exchange, key, key)

    assert get_all(channel, red) == [b"red"]
    assert get_all(channel, both) == [b"red", b"blue"]


def test_a_fanout_exchange_routes_to_every_queue_once(
    channel: BlockingChannel, exchange_of: UniqueName
) -> None:
    exchange = exchange_of("fanout")
    queues = [bound_queue(channel, exchange, "a", "b") for _ in range(20)]

    channel.basic_publish(exchange, "whatever", b"copy")

    assert [get_all(channel, queue) for queue in queues] == [[b"copy"]] * 20


TOPICS = {
    "a.b.c": {"a.b.c", "a.*.c", "a.#", "#.c", "#", "a.*.#", "*.*.*", "a.#.c", "a.*.c.#"},
    "a.c": {"a.#", "#.c", "#", "a.*.#", "a.#.c"},
    "a": {"a.#", "#", "*"},
    "a.b.b.c": {"a.#", "#.c", "#", "a.*.#", "a.#.c"},
    "x.y": {"#"},
}


@pytest.mark.parametrize("routing_key", TOPICS)
def test_a_topic_exchange_routes_by_words(
    channel: BlockingChannel, exchange_of: UniqueName, routing_key: str
) -> None:
    """edge-cases.md 78-85"""
    exchange = exchange_of("topic")
    patterns = sorted(set().union(*TOPICS.values()))
    queues = {pattern: bound_queue(channel, exchange, pattern) for pattern in patterns}

    channel.basic_publish(exchange, routing_key, b"copy")

    matched = {pattern for pattern, queue in queues.items() if get_all(channel, queue)}
    assert matched == TOPICS[routing_key]


@pytest.mark.parametrize(
    ("headers", "matches_all", "matches_any"),
    [
        ({"colour": "red", "size": 3}, True, True),
        ({"colour": "red", "size": 3, "other": True}, True, True),
        ({"colour": "red"}, False, True),
        ({"size": 3}, False, True),
        ({"colour": "blue", "size": 4}, False, False),
        ({"other": "red"}, False, False),
    ],
)
def test_a_headers_exchange_routes_by_all_or_any_headers(
    channel: BlockingChannel,
    exchange_of: UniqueName,
    headers: dict[str, object],
    matches_all: bool,
    matches_any: bool,
) -> None:
    exchange = exchange_of("headers")
    pattern: dict[str, object] = {"colour": "red", "size": 3}
    all_of = bound_queue(channel, exchange, "", arguments=pattern | {"x-match": "all"})
    any_of = bound_queue(channel, exchange, "", arguments=pattern | {"x-match": "any"})

    channel.basic_publish(exchange, "", b"copy", pika.BasicProperties(headers=headers))

    assert bool(get_all(channel, all_of)) == matches_all
    assert bool(get_all(channel, any_of)) == matches_any


@pytest.mark.parametrize(
    ("name", "exchange_type"),
    [
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
    ],
)
def test_the_standard_exchanges_are_there(
    channel: BlockingChannel, name: str, exchange_type: str
) -> None:
    channel.exchange_declare(name, exchange_type, durable=True)

    assert channel.is_open


def test_the_default_exchange_cannot_be_bound_to(
    connection: pika.BlockingConnection, queue: str
) -> None:
    """edge-cases.md 54"""
    with pytest.raises(ChannelClosedByBroker) as refused:
        connection.channel().queue_bind(queue, "", "key")

    assert refused.value.reply_code == 403


def test_an_unbound_queue_gets_nothing_more(
    channel: BlockingChannel, exchange_of: UniqueName
) -> None:
    exchange = exchange_of("direct")
    queue = bound_queue(channel, exchange, "kept", "removed")

    channel.queue_unbind(queue, exchange, "removed")

    for key in ("removed", "kept"):
        channel.basic_publish(exchange, key, key)
    assert get_all(channel, queue) == [b"kept"]


def test_exchanges_bound_to_exchanges_give_a_queue_one_copy(
    channel: BlockingChannel, exchange_of: UniqueName
) -> None:
    source, left, right = exchange_of("topic"), exchange_of("fanout"), exchange_of("direct")
    channel.exchange_bind(left, source, "a.#")
    channel.exchange_bind(right, source, "#.c")
    queue = bound_queue(channel, left, "")
    channel.queue_bind(queue, right, "b.c")
    channel.queue_bind(queue, right, "a.b.c")

    for key in ("a.b.c", "a.b", "b.c", "c.c"):
        channel.basic_publish(source, key, key)

    assert get_all(channel, queue) == [b"a.b.c", b"a.b", b"b.c"]


def test_an_alternate_exchange_takes_what_has_no_route(
    channel: BlockingChannel, exchange_of: UniqueName, unique: UniqueName
) -> None:
    alternate, name = exchange_of("fanout"), unique("main")
    arguments = {"alternate-exchange": alternate}
    channel.exchange_declare(name, "direct", auto_delete=True, arguments=arguments)
    main, spare = bound_queue(channel, name, "known"), bound_queue(channel, alternate, "")

    for key in ("known", "unknown"):
        channel.basic_publish(name, key, key)

    assert (get_all(channel, main), get_all(channel, spare)) == ([b"known"], [b"unknown"])


def test_an_auto_delete_exchange_goes_with_its_last_binding(
    connection: pika.BlockingConnection, channel: BlockingChannel, exchange_of: UniqueName
) -> None:
    """edge-cases.md 43"""
    exchange = exchange_of("direct")
    queue = bound_queue(channel, exchange, "key")

    channel.queue_unbind(queue, exchange, "key")

    with pytest.raises(ChannelClosedByBroker) as missing:
        connection.channel().exchange_declare(exchange, passive=True)
    assert missing.value.reply_code == 404


def test_deleting_an_exchange_leaves_its_queues(
    connection: pika.BlockingConnection, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("doomed")
    channel.exchange_declare(name, "fanout")
    queue = bound_queue(channel, name, "")

    channel.exchange_delete(name)

    assert is_there(connection, queue)
    with pytest.raises(ChannelClosedByBroker) as missing:
        publisher = connection.channel()
        publisher.confirm_delivery()
        publisher.basic_publish(name, "", b"lost")
    assert missing.value.reply_code == 404
