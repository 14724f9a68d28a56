"""x-rtopic: exchanges whose messages say with wildcards which queues they are for."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(body)
    return found


@pytest.fixture
def channel(connect: Callable[..., pika.BlockingConnection]) -> BlockingChannel:
    made = connect().channel()
    made.confirm_delivery()
    return made


def bound(channel: BlockingChannel, x: str, *keys: str) -> dict[str, str]:
    """A queue for each key."""
    channel.exchange_declare(x, "x-rtopic", durable=True)
    queues = {key: f"{x} {key}" for key in keys}
    for key, queue in queues.items():
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, x, key)
    return queues


def test_a_message_reaches_the_queues_that_its_key_stands_for(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    x = unique("x")
    queues = bound(channel, x, "a.1", "a.2", "b.1", "a.1.z")

    for key in ("a.*", "a.1", "#", "*.1", "a.#.z"):
        channel.basic_publish(x, key, key.encode(), mandatory=True)

    assert {key: bodies(channel, queue) for key, queue in queues.items()} == {
        "a.1": [b"a.*", b"a.1", b"#", b"*.1"],
        "a.2": [b"a.*", b"#"],
        "b.1": [b"#", b"*.1"],
        "a.1.z": [b"#", b"a.#.z"],
    }
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(x, "c.*", b"", mandatory=True)


def test_what_was_routed_before_does_not_hide_a_new_binding(
    channel: BlockingChannel, unique: UniqueName
) -> None:
    x = unique("x")
    queues = bound(channel, x, "a.1")
    channel.basic_publish(x, "a.*", b"first", mandatory=True)

    queues |= bound(channel, x, "a.2")
    channel.basic_publish(x, "a.*", b"second", mandatory=True)
    channel.queue_unbind(queues["a.1"], x, "a.1")
    channel.basic_publish(x, "a.*", b"third", mandatory=True)

    assert bodies(channel, queues["a.1"]) == [b"first", b"second"]
    assert bodies(channel, queues["a.2"]) == [b"second", b"third"]


def test_it_is_there_after_a_kill(broker_factory: BrokerFactory) -> None:
    broker = broker_factory()
    with _connection(broker) as connection:
        bound(connection.channel(), "x", "a.1", "b.1")
    broker.kill()
    broker.start()

    with _connection(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", "x-rtopic", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("x", "*.1", b"m", mandatory=True)
        assert bodies(channel, "x a.1") == bodies(channel, "x b.1") == [b"m"]


def _connection(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))
