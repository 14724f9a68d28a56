"""The exchange type `x-consistent-hash` as clients see it: pika declares, binds and publishes.

Which destination a key gets is in `tests/unit/match/test_hash_ring.py`; here every part of the
broker that a hash exchange goes through is asked once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from lavinmq.fieldtable import FieldTable
from lavinmq.files.definitions import DefinitionsFile, ExchangeDef
from tests.integration.conftest import OpenConnection, UniqueName
from tests.integration.pika_actions import ready_count
from tests.support.broker import Broker
from tests.support.segments import directory_name
from tests.support.waiting import wait_for

TYPE = "x-consistent-hash"
KEYS = [f"key.{n}" for n in range(60)]
ALGORITHMS = ["ring", "jump"]

Taken = dict[str, list[str]]
MakeBroker = Callable[..., Broker]


@pytest.fixture
def channel(connect: OpenConnection) -> BlockingChannel:
    return connect().channel()


@pytest.fixture
def queues(channel: BlockingChannel, unique: UniqueName) -> Iterator[list[str]]:
    """Three queues, which a closed channel does not delete."""
    names = [unique(word) for word in ("a", "b", "c")]
    for name in names:
        channel.queue_declare(name, exclusive=True)
    return names


def declare(channel: BlockingChannel, name: str, **arguments: object) -> None:
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.exchange_declare(name, TYPE, auto_delete=False, arguments=given)


def publish(
    channel: BlockingChannel, exchange: str, headers: dict[str, object] | None = None
) -> None:
    """Publish each key as routing key and body."""
    for key in KEYS:
        channel.basic_publish(exchange, key, key, pika.BasicProperties(headers=headers))


def take(channel: BlockingChannel, queues: list[str]) -> Taken:
    """Empty the queues and return what was in each."""
    found: Taken = {queue: [] for queue in queues}
    for queue in queues:
        for _ in range(ready_count(channel, queue)):
            found[queue].append(channel.basic_get(queue, auto_ack=True)[2].decode())
    return found


def bodies(found: Taken) -> list[str]:
    return sorted(body for each in found.values() for body in each)


def refusal(action: Callable[[], object]) -> str:
    """Return the code and text with which the broker closes the channel."""
    with pytest.raises(ChannelClosedByBroker) as raised:
        action()
    return f"{raised.value.reply_code} {raised.value.reply_text}"


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "JUMP", "Ring", "nonsense"])
def test_every_message_goes_to_one_queue_and_equal_keys_to_the_same(
    channel: BlockingChannel, queues: list[str], unique: UniqueName, algorithm: str
) -> None:
    """edge-cases.md 106"""
    exchange = unique("hash")
    declare(channel, exchange, algorithm=algorithm)
    for queue in queues:
        channel.queue_bind(queue, exchange, "50")

    publish(channel, exchange)
    found = take(channel, queues)
    publish(channel, exchange)

    assert bodies(found) == sorted(KEYS)
    assert all(found.values())
    assert take(channel, queues) == found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_queue_that_is_unbound_gets_nothing_more(
    channel: BlockingChannel, queues: list[str], unique: UniqueName, algorithm: str
) -> None:
    exchange = unique("hash")
    declare(channel, exchange, algorithm=algorithm)
    for queue in queues:
        channel.queue_bind(queue, exchange, "50")
        channel.queue_bind(queue, exchange, "50", {"other": True})

    channel.queue_unbind(queues[1], exchange, "50")
    publish(channel, exchange)
    assert len(take(channel, queues)[queues[1]]) > 0, "its other binding is still there"
    channel.queue_unbind(queues[1], exchange, "50", {"other": True})
    publish(channel, exchange)

    found = take(channel, queues)
    assert found[queues[1]] == []
    assert bodies(found) == sorted(KEYS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_queue_that_is_deleted_leaves_its_keys_to_the_others(
    channel: BlockingChannel, queues: list[str], unique: UniqueName, algorithm: str
) -> None:
    exchange = unique("hash")
    declare(channel, exchange, algorithm=algorithm)
    for queue in queues:
        channel.queue_bind(queue, exchange, "50")

    channel.queue_delete(queues[0])
    publish(channel, exchange)

    assert bodies(take(channel, queues[1:])) == sorted(KEYS)


def test_a_header_is_hashed_and_the_key_does_not_matter(
    channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    exchange, plain = unique("hash"), unique("plain")
    declare(channel, exchange, hash_on="id")
    declare(channel, plain)
    for queue in queues:
        channel.queue_bind(queue, exchange, "50")
        channel.queue_bind(queue, plain, "50")

    publish(channel, exchange, {"id": "always"})
    assert sorted(map(len, take(channel, queues).values())) == [0, 0, len(KEYS)]
    publish(channel, exchange)
    assert sorted(map(len, take(channel, queues).values())) == [0, 0, len(KEYS)]
    for key in KEYS:
        channel.basic_publish(exchange, "same", key, pika.BasicProperties(headers={"id": key}))
    by_header = take(channel, queues)
    publish(channel, plain)

    assert take(channel, queues) == by_header


def test_an_argument_that_is_no_string_does_not_choose_a_header(
    channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    exchange = unique("hash")
    declare(channel, exchange, hash_on=5)
    channel.queue_bind(queues[0], exchange, "1")

    publish(channel, exchange, {"5": 5})

    assert len(take(channel, queues)[queues[0]]) == len(KEYS)


def publish_number(channel: BlockingChannel, exchange: str, **more: object) -> None:
    properties = pika.BasicProperties(headers={"id": 5, **more})
    channel.basic_publish(exchange, "k", b"m", properties)


def test_a_header_that_is_no_string_closes_the_channel(
    connect: OpenConnection, channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    """edge-cases.md 104"""
    exchange, outer = unique("hash"), unique("outer")
    declare(channel, exchange, hash_on="id")
    channel.queue_bind(queues[0], exchange, "1")
    channel.exchange_declare(outer, "fanout", auto_delete=False)
    channel.queue_bind(queues[1], outer)
    channel.exchange_bind(exchange, outer)
    connection = connect()

    for source, more in ((exchange, {}), (outer, {}), (exchange, {"CC": ["x"]})):
        publisher = connection.channel()
        publisher.confirm_delivery()
        said = refusal(lambda: publish_number(publisher, source, **more))  # noqa: B023
        assert said == "406 PRECONDITION_FAILED - Routing header must be string"

    assert bodies(take(channel, queues)) == [], "nothing of it was stored"


def test_a_commit_with_such_a_header_leaves_nothing_behind(
    connect: OpenConnection, channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    """amqp.md 22.29"""
    exchange = unique("hash")
    declare(channel, exchange, hash_on="id")
    channel.queue_bind(queues[0], exchange, "1")
    publisher = connect().channel()
    publisher.tx_select()
    publish(publisher, exchange, {"id": "good"})
    publish_number(publisher, exchange)

    said = refusal(publisher.tx_commit)

    assert said == "406 PRECONDITION_FAILED - Routing header must be string"
    assert bodies(take(channel, queues)) == []


def test_a_commit_with_strings_is_carried_out(
    channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    exchange = unique("hash")
    declare(channel, exchange, hash_on="id")
    channel.queue_bind(queues[0], exchange, "1")
    channel.tx_select()
    publish(channel, exchange, {"id": "good"})

    channel.tx_commit()

    assert bodies(take(channel, queues)) == sorted(KEYS)


# --- properties -------------------------------------------------------------------------------

PROPERTIES = ("message_id", "correlation_id", "timestamp")
ROUTES = ("publish", "copies", "copies elsewhere", "exchange", "alternate", "dead letter",
          "delayed", "commit")  # fmt: skip


def declare_by_property(channel: BlockingChannel, name: str, value: object, **more: object) -> None:
    channel.exchange_declare(name, TYPE, arguments={"hash-property": value, **more})


def source_of(channel: BlockingChannel, name: str, exchange: str, route: str) -> str:
    """Declare what leads to a hash exchange; returns where to publish."""
    if route in ("exchange", "copies elsewhere"):
        channel.exchange_declare(name, "direct")
        for key in ("copy", "other", *KEYS[: len(KEYS) if route == "exchange" else 0]):
            channel.exchange_bind(exchange, name, key)
        return name
    if route == "alternate":
        channel.exchange_declare(name, "direct", arguments={"alternate-exchange": exchange})
        return name
    if route == "dead letter":
        arguments = {"x-max-length": 0, "x-dead-letter-exchange": exchange}
        channel.exchange_declare(name, "fanout")
        channel.queue_declare(name, exclusive=True, arguments=arguments)
        channel.queue_bind(name, name)
        return name
    return exchange


@pytest.mark.parametrize("name", PROPERTIES)
@pytest.mark.parametrize("route", ROUTES)
def test_a_property_is_hashed_on_every_way_to_the_exchange(
    connect: OpenConnection, channel: BlockingChannel, queues: list[str], unique: UniqueName,
    route: str, name: str,
) -> None:  # fmt: skip
    plain, exchange = unique("plain"), unique("hash")
    declare(channel, plain)
    more = {"x-delayed-exchange": True} if route == "delayed" else {}
    declare_by_property(channel, exchange, name, **more)
    for queue in queues:
        channel.queue_bind(queue, plain, "50")
        channel.queue_bind(queue, exchange, "50")
    for n, key in enumerate(KEYS):
        channel.basic_publish(plain, str(n) if name == "timestamp" else key, key)
    expected = take(channel, queues)
    source = source_of(channel, unique("source"), exchange, route)
    headers: dict[str, object] = {"x": 1}
    if route.startswith("copies"):
        headers["CC"], headers["BCC"] = ["copy", "other"], ["copy"]
    if route == "delayed":
        headers["x-delay"] = 1
    publisher = connect().channel()
    if route == "commit":
        publisher.tx_select()
    else:
        publisher.confirm_delivery()

    for n, key in enumerate(KEYS):
        given: dict[str, object] = {name: n if name == "timestamp" else key}
        publisher.basic_publish(
            source, key if route == "exchange" else f"k{n}", key,
            pika.BasicProperties("text/plain", headers=headers, reply_to="r", **given),
        )  # fmt: skip
    if route == "commit":
        publisher.tx_commit()

    wait_for(
        lambda: sum(ready_count(channel, queue) for queue in queues) == len(KEYS), "not all came"
    )
    found = take(channel, queues)
    assert {queue: sorted(each) for queue, each in found.items()} == {
        queue: sorted(each) for queue, each in expected.items()
    }
    assert all(found.values())


def test_without_the_property_the_key_does_not_matter(
    channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    exchange = unique("hash")
    declare_by_property(channel, exchange, "message_id")
    for queue in queues:
        channel.queue_bind(queue, exchange, "50")

    publish(channel, exchange, {"message_id": "not this one"})

    assert sorted(map(len, take(channel, queues).values())) == [0, 0, len(KEYS)]


def test_the_header_may_be_named_as_with_rabbitmq(
    channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    ours, theirs = unique("ours"), unique("theirs")
    declare(channel, ours, hash_on="id")
    channel.exchange_declare(theirs, TYPE, arguments={"hash-header": "id"})
    found = []
    for exchange in (ours, theirs):
        for queue in queues:
            channel.queue_bind(queue, exchange, "50")
        for key in KEYS:
            channel.basic_publish(exchange, "same", key, pika.BasicProperties(headers={"id": key}))
        found.append(take(channel, queues))

    assert found[0] == found[1]
    assert all(found[0].values())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"hash-property": "app_id"},
         "argument 'hash-property' must be one of message_id, correlation_id, timestamp"),
        ({"hash-property": "timestamp", "hash-header": "id"},
         "arguments 'hash-header' and 'hash-property' exclude each other"),
        ({"hash-property": "timestamp", "x-hash-on": "id"},
         "arguments 'x-hash-on' and 'hash-property' exclude each other"),
    ],
)  # fmt: skip
def test_what_cannot_be_hashed_is_refused(
    connect: OpenConnection, unique: UniqueName, arguments: dict[str, object], text: str
) -> None:
    exchange = unique("hash")
    connection = connect()

    for kind, more in ((TYPE, {}), ("x-delayed-message", {"x-delayed-type": TYPE})):
        channel = connection.channel()
        given = {**arguments, **more}
        said = refusal(lambda: channel.exchange_declare(exchange, kind, arguments=given))  # noqa: B023
        assert said == f"406 PRECONDITION_FAILED - {text}"
    assert "404" in refusal(lambda: connection.channel().exchange_declare(exchange, passive=True))
    connection.channel().exchange_declare(exchange, "direct", arguments=arguments)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_property_is_hashed_after_a_restart_too(own_broker: Broker, end: str) -> None:
    names = ["q0", "q1", "q2"]

    def sent() -> Taken:
        """Publish and take in a connection of its own."""
        with pika.BlockingConnection(pika.ConnectionParameters(port=own_broker.port)) as connection:
            channel = connection.channel()
            for key in KEYS:
                channel.basic_publish("hash", "same", key, pika.BasicProperties(message_id=key))
            return take(channel, names)

    with pika.BlockingConnection(pika.ConnectionParameters(port=own_broker.port)) as connection:
        channel = connection.channel()
        arguments = {"hash-property": "message_id"}
        channel.exchange_declare("hash", TYPE, durable=True, arguments=arguments)
        for name in names:
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "hash", "20")
    before = sent()

    if end == "kill":
        own_broker.kill()
        own_broker.start()
    else:
        own_broker.restart()

    assert all(before.values())
    assert sent() == before


def test_a_stored_argument_that_is_refused_today_means_the_routing_key(own_broker: Broker) -> None:
    """LavinMQ stores what it does not know."""
    own_broker.stop()
    arguments = FieldTable({"hash-property": "app_id"})
    file = DefinitionsFile(own_broker.data_dir / directory_name("/") / "definitions.amqp")
    file.load()
    file.append_declare_exchange(ExchangeDef("hash", TYPE, True, arguments=arguments))
    file.close()

    own_broker.start()

    said = own_broker.log_text()
    assert "exchange 'hash' hashes the routing key in place of what it was declared" in said
    assert "declared with: argument 'hash-property'" in said
    with pika.BlockingConnection(pika.ConnectionParameters(port=own_broker.port)) as connection:
        channel = connection.channel()
        names = ["q0", "q1", "q2"]
        for name in names:
            channel.queue_declare(name)
            channel.queue_bind(name, "hash", "50")
        publish(channel, "hash")
        assert all(take(channel, names).values())


# --- weights, other exchanges, restarts ---------------------------------------------------------


@pytest.mark.parametrize("key", ["", "a", "-1", "4294967296"])
def test_a_weight_that_is_no_number_is_refused(
    connect: OpenConnection, queues: list[str], unique: UniqueName, channel: BlockingChannel,
    key: str,
) -> None:  # fmt: skip
    """edge-cases.md 100"""
    exchange = unique("hash")
    declare(channel, exchange)
    channel.queue_declare(queue := unique("open"), auto_delete=True)
    connection = connect()

    for name in ("queue_bind", "queue_unbind"):
        method = getattr(connection.channel(), name)
        said = refusal(lambda: method(queue, exchange, key))  # noqa: B023
        assert said == "406 PRECONDITION_FAILED - Routing key must to be a number"
    for name in ("exchange_bind", "exchange_unbind"):
        method = getattr(connection.channel(), name)
        said = refusal(lambda: method("amq.fanout", exchange, key))  # noqa: B023
        assert said == "406 PRECONDITION_FAILED - Routing key must to be a number"

    channel.exchange_delete(exchange, if_unused=True)
    channel.queue_delete(queue)


def test_the_heaviest_weight_fits_a_jump_and_no_ring(
    connect: OpenConnection, queues: list[str], unique: UniqueName, channel: BlockingChannel
) -> None:
    ring, jump = unique("ring"), unique("jump")
    declare(channel, ring)
    declare(channel, jump, algorithm="jump")
    channel.queue_bind(queues[0], jump, "4294967295")
    channel.queue_declare(queue := unique("open"), auto_delete=True)

    said = refusal(lambda: connect().channel().queue_bind(queue, ring, "4294967295"))

    limit = "weights of a hash ring are limited to 262144 in all"
    assert said == f"406 PRECONDITION_FAILED - {limit}"
    publish(channel, jump)
    assert bodies(take(channel, queues)) == sorted(KEYS)
    channel.queue_delete(queue)


def test_exchanges_are_destinations_and_alternates_take_what_is_left(
    channel: BlockingChannel, queues: list[str], unique: UniqueName
) -> None:
    """edge-cases.md 109"""
    exchange, inner, spare = unique("hash"), unique("inner"), unique("spare")
    channel.exchange_declare(spare, "fanout", auto_delete=False)
    channel.queue_bind(queues[2], spare)
    declare(channel, exchange, alternate_exchange=spare)
    channel.exchange_declare(inner, "fanout", auto_delete=False)
    channel.queue_bind(queues[1], inner)

    publish(channel, exchange)
    assert len(take(channel, queues)[queues[2]]) == len(KEYS)
    channel.queue_bind(queues[0], exchange, "50")
    channel.exchange_bind(inner, exchange, "50")
    publish(channel, exchange)

    found = take(channel, queues)
    assert bodies(found) == sorted(KEYS)
    assert found[queues[0]] and found[queues[1]] and not found[queues[2]]


@pytest.mark.parametrize("end", ["restart", "kill"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_durable_bindings_choose_the_same_queues_after_a_restart(
    own_broker: Broker, algorithm: str, end: str
) -> None:
    names = ["q2", "q0", "q1"]

    def connected() -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters(port=own_broker.port))

    with connected() as connection:
        channel = connection.channel()
        arguments = {"x-algorithm": algorithm}
        channel.exchange_declare("hash", TYPE, durable=True, arguments=arguments)
        for name in names:
            channel.queue_declare(name, durable=True)
            channel.queue_bind(name, "hash", "20", {"first": True})
        for name in reversed(names):
            channel.queue_bind(name, "hash", "20")
        for name in names[:2]:
            channel.queue_unbind(name, "hash", "20", {"first": True})
        publish(channel, "hash")
        before = take(channel, names)
    if end == "kill":
        own_broker.kill()
        own_broker.start()
    else:
        own_broker.restart()

    with connected() as connection:
        channel = connection.channel()
        publish(channel, "hash")

        assert all(before.values())
        assert take(channel, names) == before


def test_the_setting_decides_where_the_exchange_does_not(
    broker_factory: MakeBroker, tmp_path: Path
) -> None:
    """edge-cases.md 106"""
    path = tmp_path / "jump.ini"
    path.write_text("[main]\ndefault_consistent_hash_algorithm = jump\n")
    started = broker_factory(["-c", str(path)])
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=started.port))
    names = ["0", "1", "2"]

    with connection:
        channel = connection.channel()
        declared: dict[str, dict[str, object]] = {
            "default": {}, "unknown": {"algorithm": "?"}, "jump": {"algorithm": "jump"},
            "ring": {"algorithm": "ring"},
        }  # fmt: skip
        for exchange, arguments in declared.items():
            declare(channel, exchange, **arguments)
        for name in names:
            channel.queue_declare(name)
            for exchange in declared:
                channel.queue_bind(name, exchange, "20")
        found = {}
        for exchange in declared:
            publish(channel, exchange)
            found[exchange] = take(channel, names)

    assert found["default"] == found["unknown"] == found["jump"] != found["ring"]
