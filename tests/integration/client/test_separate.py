"""Clients of several connections: publishers that are held up hold no consumer, and one fate."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from lavinmq.client import AsyncClient, Client, ConnectionPool, ConnectionState
from lavinmq.client.errors import AuthenticationError, ClientConnectionError, ClosedError
from tests.support.broker import Broker
from tests.support.client_frames import method
from tests.support.fault_proxy import FaultProxy
from tests.support.waiting import wait_for

QUICK: dict[str, Any] = {
    "reconnect_initial_delay": 0.02,
    "reconnect_max_delay": 0.2,
    "health_interval": 0.2,
}
APART: dict[str, Any] = {**QUICK, "separate_connections": True}
DEADLINE_S = 120.0


def publisher(client: Client, proxy: FaultProxy) -> Any:
    """The proxy's end of the client's publishing connection."""
    link = client._together.cores[1].link
    assert link is not None and link.transport is not None
    port = link.transport.get_extra_info("sockname")[1]
    return next(pair for pair in proxy.pairs if pair.client.getpeername()[1] == port)


def test_a_publisher_that_is_blocked_holds_no_consumer(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    seen: list[str] = []
    with Client(proxy.url, **APART) as client, Client(broker.uri) as other:
        client.on_blocked(lambda reason: seen.append(reason))
        producer, consumer = client.producer(queue), client.consumer(queue)
        assert producer.core is not consumer.core
        pair = publisher(client, proxy)
        pair.say(method(0, "connection.blocked", "no room"))
        wait_for(lambda: client.blocked, "blocked")
        # As RabbitMQ does it: it reads nothing more of a connection that it has blocked.
        proxy.hold(pair)
        receipt = producer.publish(b"held")
        other.producer(queue).publish(b"free").result(10)

        message = consumer.get(10)
        assert message is not None and message.body == b"free" and message.ack()
        wait_for(lambda: consumer.unacked == 0 and not receipt.done(), "settled meanwhile")
        pair.say(method(0, "connection.unblocked"))
        proxy.release(pair)
        assert receipt.result(10) == "confirmed" and seen == ["no room"]
        held = consumer.get(10)
        assert held is not None and held.ack()


def test_a_publishing_connection_that_is_lost_comes_back_alone(
    proxy: FaultProxy, queue: str
) -> None:
    steps: list[tuple[str, str]] = []
    recovered: list[int] = []
    with Client(proxy.url, **APART) as client:
        client.on_state_change(lambda old, new, cause: steps.append((old.value, new.value)))
        client.on_recovered(lambda: recovered.append(1))
        client.queue(queue)
        producer, consumer = client.producer(queue), client.consumer(queue)
        publisher(client, proxy).end(reset=True)
        wait_for(lambda: client.metrics().reconnects == 1 and client.connected, "came back")
        assert producer.publish(b"x").result(10) == "confirmed"
        message = consumer.get(10)
        assert message is not None and message.ack()
        wait_for(lambda: recovered == [1], "told once")

        assert consumer.tracker.incarnation == 1
        assert client.metrics().connections == 2
    assert steps == [
        ("connected", "reconnecting"), ("reconnecting", "connected"),
        ("connected", "closing"), ("closing", "closed"),
    ]  # fmt: skip


def test_producers_take_turns_in_a_pool(broker: Broker, queue: str) -> None:
    with Client(broker.uri, pool_size=3) as client:
        client.queue(queue)
        producers = [client.producer(queue) for _ in range(6)]
        for producer in producers:
            assert producer.publish(b"x").result(10) == "confirmed"
        consumer = client.consumer(queue)

        assert [client._together.cores.index(each.core) for each in producers] == [1, 2, 3, 1, 2, 3]
        assert consumer.core is client._together.first
        metrics = client.metrics()
        assert (metrics.connections, metrics.confirmed) == (4, 6)


def test_what_was_declared_is_there_before_a_publisher_goes_on(own_broker: Broker) -> None:
    """Neither connection publishes into a queue that the other has still to restore."""
    with Client(own_broker.uri, **APART) as client:
        client.exchange("e", "topic", durable=False)
        client.queue("q", durable=False)
        mine = client.queue("", durable=False, exclusive=True).name
        client.bind("q", "e", "#")
        client.bind(mine, "e", "#")
        producer = client.producer(exchange="e", routing_key="k", mandatory=True)
        failed: list[Any] = []
        client.on_recovery_failed(lambda what, error: failed.append((what, error)))
        own_broker.kill()
        receipts = [producer.publish(b"%d" % n) for n in range(50)]
        own_broker.start()

        assert {each.result(30) for each in receipts} == {"confirmed"}
        wait_for(lambda: client.connected, "both are back")
        assert client.queue("q", passive=True, durable=False).message_count == 50
        assert failed == []


def test_they_give_up_as_one(broker: Broker) -> None:
    url = f"amqp://guest:wrong@{broker.host}:{broker.port}/"
    client = Client(url, **APART)
    with pytest.raises(AuthenticationError):
        client.start()
    assert client.state is ConnectionState.CLOSED
    with pytest.raises(ClosedError):
        client.producer("q")
    client.close()

    with pytest.raises(ClientConnectionError):
        Client("amqp://127.0.0.1:1", pool_size=2, **QUICK).start()


def test_when_one_gives_up_what_the_others_hold_ends(proxy: FaultProxy, queue: str) -> None:
    with Client(proxy.url, **APART, reconnect_max_attempts=2) as client:
        producer, consumer = client.producer(queue), client.consumer(queue)
        proxy.is_refusing = True
        publisher(client, proxy).end(reset=True)
        wait_for(lambda: client.state is ConnectionState.CLOSED, "given up", 20)

        with pytest.raises(ClosedError):
            producer.publish(b"x")
        # The state is told when the first gives up, just before it takes the other with it.
        wait_for(lambda: consumer.closed and not client.metrics().connections, "the other ended")
        with pytest.raises(ClosedError):
            client.queue(queue)


def test_a_pool_is_connected_as_a_whole_or_not_at_all(proxy: FaultProxy, queue: str) -> None:
    told: list[str] = []
    with ConnectionPool(proxy.url, 3, **QUICK) as pool:
        pool.on_pool_connect(lambda number: told.append(f"connect {number}"))
        pool.on_pool_disconnect(lambda number: told.append(f"disconnect {number}"))
        pool.on_pool_error(lambda number, error: told.append(f"error {number} {error}"))
        assert pool.healthy and pool.healthy_count == pool.size == 3
        for _ in range(6):
            assert pool.connection().producer(queue).publish(b"x").result(10) == "confirmed"
        proxy.cut()
        wait_for(lambda: len(told) >= 6 and pool.healthy_count == 3, "all came back")
        pool.clients[1]._core.tell("error", ValueError("by test"))
        wait_for(lambda: "error 1 by test" in told, "told")
    for what in ("connect", "disconnect"):
        assert [told.count(f"{what} {number}") for number in range(3)] == [1, 1, 1]

    proxy.is_refusing = True
    before = threading.active_count()
    with pytest.raises(ClientConnectionError), ConnectionPool(proxy.url, 3, **QUICK):
        pass
    assert threading.active_count() <= before


def test_drops_are_counted_by_reason(own_broker: Broker) -> None:
    with Client(own_broker.uri, buffer_while_disconnected=False, **QUICK) as client:
        producer = client.producer("q")
        own_broker.kill()
        wait_for(lambda: not client.connected, "lost")
        for _ in range(3):
            producer.publish(b"x")
        metrics = client.metrics()

    assert metrics.dropped == 3 and metrics.drops == {"disconnected": 3}
    assert 'amqp_messages_dropped_total{queue="q",reason="disconnected"} 3' in metrics.exposition()


def test_in_a_forked_child_all_of_them_are_closed(broker: Broker, queue: str) -> None:
    with Client(broker.uri, separate_connections=True) as client:
        producer = client.producer(queue)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                producer.publish(b"child")
            except ClosedError:
                code = int(client.state is not ConnectionState.CLOSED)
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert producer.publish(b"after").result(5) == "confirmed"


def test_with_asyncio_too(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri, pool_size=2) as client:
            await client.queue(queue)
            producers = [await client.producer(queue) for _ in range(2)]
            receipts = [await each.publish(b"x") for each in producers for _ in range(10)]
            assert {await receipt for receipt in receipts} == {"confirmed"}
            async with client.consumer(queue) as consumer:
                for _ in range(20):
                    message = await consumer.get(10)
                    assert message is not None and message.ack()
            await client.wait_connected(5)
            assert client.metrics().connections == 3
        assert client.state is ConnectionState.CLOSED

    asyncio.run(main(), debug=True)
