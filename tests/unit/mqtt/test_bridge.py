"""The bridge in the message path: what crosses, in which form, and in portions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lavinmq import _core
from tests.support.mqtt_bench import PUBACK, Client, MqttBench, ack, publish


@pytest.fixture
def topics(bench: MqttBench) -> Iterator[_core.Exchange]:
    """The exchange of AMQP."""
    made = _core.Exchange(_core.TOPIC, 1)
    bench.vhost.add(b"amq.topic", made)
    bench.exchange.set_bridge(b"amq.topic", made, bench.vhost)
    yield made
    bench.exchange.set_bridge(b"", None, bench.vhost)


def crossing(bench: MqttBench, name: str = "p", version: int = 4) -> Client:
    return bench.client(name, version, crosses=True)


def test_a_publish_reaches_queues_that_the_key_of_its_topic_does(
    bench: MqttBench, topics: _core.Exchange
) -> None:
    queue, other = bench.queue("q"), bench.queue("other")
    topics.bind(b"a.*.c", b"", queue)
    topics.bind(b"b.#", b"", other)
    publisher = crossing(bench)

    publisher.publish(b"a/b/c", b"x", qos=1, id=3)
    publisher.publish(b"a/b/c", b"y", qos=1, id=4)
    publisher.publish(b"a/b.c", b"z")

    assert (queue.ready, other.ready) == (2, 0)
    assert publisher.raw() == ack(PUBACK, 3) + ack(PUBACK, 4)
    assert topics.counters()["publish_in"] == 2


def test_bindings_of_amqp_that_change_count_at_once(
    bench: MqttBench, topics: _core.Exchange
) -> None:
    queue = bench.queue("q")
    publisher = crossing(bench)
    publisher.publish(b"a/b", b"1")

    topics.bind(b"a.b", b"", queue)
    publisher.publish(b"a/b", b"2")
    topics.unbind(b"a.b", b"", queue)
    publisher.publish(b"a/b", b"3")

    assert queue.ready == 1


def test_who_may_not_does_not_cross(bench: MqttBench, topics: _core.Exchange) -> None:
    queue = bench.queue("q")
    topics.bind(b"#", b"", queue)
    islander = bench.client("p").subscribe(b"#", 1)

    islander.publish(b"a", b"1")
    islander.link.mqtt_cross(True, False)
    islander.publish(b"a", b"2")

    assert islander.bodies() == [b"1", b"2"]
    assert queue.ready == 1


@pytest.mark.parametrize("topic", [b"$SYS/x", b"a" * 256])
def test_what_has_no_key_stays(bench: MqttBench, topics: _core.Exchange, topic: bytes) -> None:
    queue = bench.queue("q")
    topics.bind(b"#", b"", queue)

    crossing(bench).publish(topic, b"x")

    assert queue.ready == 0


@pytest.mark.parametrize("units", [0, 1])
def test_very_many_queues_get_a_message_in_portions(
    bench: MqttBench, topics: _core.Exchange, units: int
) -> None:
    queues = [bench.queue(f"q{n}", durable=False) for n in range(150)]
    for queue in queues:
        topics.bind(b"#", b"", queue)
    readers = [bench.client(f"r{n}").subscribe(b"+/b", 1) for n in range(50)]
    publisher = crossing(bench)
    bench.loop.portion_units = units

    publisher.publish(b"a/b", b"x", qos=1, id=3)
    publisher.publish(b"a/b", b"y" * 100_000, qos=1, id=4)

    assert all(queue.ready == 2 for queue in queues)
    assert all(len(reader.bodies()) == 2 for reader in readers)
    assert publisher.raw() == ack(PUBACK, 3) + ack(PUBACK, 4)


def test_nobody_is_told_of_subscribers_where_a_queue_is_reached(
    bench: MqttBench, topics: _core.Exchange
) -> None:
    """0x10 says that there are no matching subscribers, and a queue is one."""
    publisher = crossing(bench, version=5)
    publisher.publish(b"a", b"x", qos=1, id=3)
    topics.bind(b"#", b"", bench.queue("q"))
    publisher.publish(b"a", b"x", qos=1, id=4)

    assert publisher.raw() == ack(PUBACK, 3, 0x10) + ack(PUBACK, 4)


def test_a_publish_of_the_broker_crosses_if_told(bench: MqttBench, topics: _core.Exchange) -> None:
    queue = bench.queue("q")
    topics.bind(b"#", b"", queue)

    stays = _core.mqtt_publish(bench.loop, bench.exchange, b"a", b"1", 1, False)
    crosses = _core.mqtt_publish(bench.loop, bench.exchange, b"a", b"2", 1, False, crosses=True)

    assert (stays, crosses) == (0, 1)
    assert queue.ready == 1


def test_only_filters_have_a_bridge(bench: MqttBench, topics: _core.Exchange) -> None:
    with pytest.raises(ValueError, match="filters"):
        topics.set_bridge(b"x", bench.exchange, bench.vhost)


def test_an_exchange_that_goes_takes_its_bridge_along(
    bench: MqttBench, topics: _core.Exchange
) -> None:
    queue = bench.queue("q")
    topics.bind(b"#", b"", queue)
    publisher = crossing(bench)
    publisher.publish(b"a", b"1")

    bench.exchange.set_bridge(b"", None, bench.vhost)
    publisher.publish(b"a", b"2")

    assert queue.ready == 1


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("size", [1, 100_000])
def test_a_message_on_its_way_over_a_bridge_that_goes_arrives(
    bench: MqttBench, topics: _core.Exchange, size: int, is_made_again: bool
) -> None:
    """The broker ended when an exchange was deleted, or another parameter set, in between."""
    queues = [bench.queue(f"q{n}", durable=False) for n in range(150)]
    for queue in queues:
        topics.bind(b"#", b"", queue)
    publisher = crossing(bench)
    bench.loop.portion_units = 1
    publisher.socket.send(publish(b"a/b", bytes(size), qos=1, id=3))
    publisher.link.on_readable()
    while not any(queue.ready for queue in queues):
        bench.events.ready.pop(0)()
    assert not all(queue.ready for queue in queues)
    new = _core.Exchange(_core.TOPIC, 1) if is_made_again else None

    bench.exchange.set_bridge(b"amq.topic", new, bench.vhost)
    bench.events.run()
    publisher.link.drain()
    bench.events.run()

    assert all(queue.ready == 1 for queue in queues)
    assert publisher.raw() == ack(PUBACK, 3)
    assert topics.counters()["publish_in"] == 1
    assert new is None or new.counters()["publish_in"] == 0
