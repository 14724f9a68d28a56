"""x-random, x-local-random, x-modulus-hash: exchanges that give a message to one of the queues."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.conftest import BrokerFactory
from tests.integration.conftest import UniqueName
from tests.support.api import Api
from tests.support.broker import Broker

Open = Callable[[], BlockingChannel]
TYPES = ["x-random", "x-local-random", "x-modulus-hash"]
EACH = pytest.mark.parametrize("type_", TYPES)
N = 60


def declared(channel: BlockingChannel, type_: str, name: str, *queues: str, **more: Any) -> None:
    """An exchange with queues bound to it, each by a key of its own."""
    channel.exchange_declare(name, type_, **more)
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, name, routing_key=f"key of {queue}")


def bodies(channel: BlockingChannel, queue: str) -> list[bytes]:
    found = []
    while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
        found.append(body)
    return found


def publish(channel: BlockingChannel, exchange: str, n: int = N, **properties: Any) -> None:
    for number in range(n):
        channel.basic_publish(
            exchange, f"k{number}", b"%d" % number, pika.BasicProperties(**properties),
            mandatory=True,
        )  # fmt: skip


@pytest.fixture
def channel(connect: Callable[..., pika.BlockingConnection]) -> BlockingChannel:
    made = connect().channel()
    made.confirm_delivery()
    return made


@EACH
def test_each_message_goes_to_one_of_the_queues(
    channel: BlockingChannel, unique: UniqueName, type_: str
) -> None:
    x, queues = unique("x"), [unique("q") for _ in range(3)]
    declared(channel, type_, x, *queues)

    publish(channel, x)

    shares = [bodies(channel, queue) for queue in queues]
    assert sorted(map(int, chain(*shares))) == list(range(N))
    assert all(shares)


@EACH
def test_copies_make_no_further_choice(
    channel: BlockingChannel, unique: UniqueName, type_: str
) -> None:
    x, queues = unique("x"), [unique("q") for _ in range(3)]
    declared(channel, type_, x, *queues)

    publish(channel, x, headers={"CC": ["other", "another"]})

    assert sum(len(bodies(channel, queue)) for queue in queues) == N


@EACH
def test_without_a_queue_a_message_comes_back_or_goes_to_the_alternate(
    channel: BlockingChannel, unique: UniqueName, type_: str
) -> None:
    x, other, q = unique("x"), unique("alternate"), unique("q")
    declared(channel, type_, x)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(x, "k", b"", mandatory=True)

    declared(channel, "fanout", other, q)
    declared(channel, type_, x + "2", arguments={"alternate-exchange": other})
    channel.basic_publish(x + "2", "k", b"m", mandatory=True)

    assert bodies(channel, q) == [b"m"]


@EACH
def test_exchanges_may_be_bound_to_it_and_it_to_others(
    channel: BlockingChannel, unique: UniqueName, type_: str
) -> None:
    first, x, last, q = unique("first"), unique("x"), unique("last"), unique("q")
    declared(channel, type_, x)
    declared(channel, "fanout", last, q)
    channel.exchange_declare(first, "fanout")
    channel.exchange_bind(x, first)
    channel.exchange_bind(last, x)

    publish(channel, first, 5)

    assert len(bodies(channel, q)) == 5


@EACH
def test_a_queue_that_is_gone_gets_nothing(
    channel: BlockingChannel, unique: UniqueName, type_: str
) -> None:
    x, queues = unique("x"), [unique("q") for _ in range(3)]
    declared(channel, type_, x, *queues)
    channel.queue_unbind(queues[0], x, f"key of {queues[0]}")
    channel.queue_delete(queues[1])

    publish(channel, x)

    assert len(bodies(channel, queues[2])) == N


@EACH
def test_a_queue_stays_bound_until_its_last_binding_goes(
    channel: BlockingChannel, unique: UniqueName, type_: str
) -> None:
    x, q = unique("x"), unique("q")
    declared(channel, type_, x, q)
    channel.queue_bind(q, x, "again")
    channel.queue_unbind(q, x, "again")
    publish(channel, x, 3)

    channel.queue_unbind(q, x, f"key of {q}")

    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish(x, "k", b"", mandatory=True)
    assert len(bodies(channel, q)) == 3


@EACH
def test_it_is_there_after_a_kill(broker_factory: BrokerFactory, type_: str) -> None:
    broker, queues = broker_factory(), ["a", "b", "c"]
    with _connection(broker) as connection:
        channel = connection.channel()
        declared(channel, type_, "x", *queues, durable=True)
        publish(channel, "x")
        before = [bodies(channel, queue) for queue in queues]
    broker.kill()
    broker.start()

    with _connection(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("x", type_, durable=True)
        publish(channel, "x")
        after = [bodies(channel, queue) for queue in queues]

    assert sorted(map(int, chain(*after))) == list(range(N))
    if type_ == "x-modulus-hash":
        assert after == before


@EACH
def test_definitions_bring_it(http_broker: Broker, type_: str) -> None:
    api = Api(http_broker)
    document = {
        "exchanges": [{"name": "x", "vhost": "/", "type": type_, "arguments": {}}],
        "queues": [{"name": "q", "vhost": "/"}],
        "bindings": [{"source": "x", "destination": "q", "vhost": "/", "routing_key": "any"}],
    }
    assert api("POST", "/api/definitions", document).content == b""

    with _connection(http_broker) as connection:
        channel = connection.channel()
        publish(channel, "x", 3)
        assert len(bodies(channel, "q")) == 3
    exported = api.get("/api/definitions")["exchanges"]
    assert [row["type"] for row in exported if row["name"] == "x"] == [type_]
    assert type_ in [row["name"] for row in api.get("/api/overview")["exchange_types"]]


def test_a_delayed_exchange_may_pick(channel: BlockingChannel, unique: UniqueName) -> None:
    x, q = unique("x"), unique("q")
    declared(channel, "x-delayed-message", x, q, arguments={"x-delayed-type": "x-random"})

    channel.basic_publish(x, "k", b"now", mandatory=True)

    assert bodies(channel, q) == [b"now"]


def test_a_misspelt_type_names_the_known_one(channel: BlockingChannel, unique: UniqueName) -> None:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="did you mean 'x-random'"):
        channel.exchange_declare(unique("x"), "x-randon")


def _connection(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))
