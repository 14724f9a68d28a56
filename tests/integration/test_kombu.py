"""kombu: declared entities, pools, simple queues, replies, and recovery over a broker restart.

On py-amqp, and on this project's own client (`lavinmq://`).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest
from kombu import Connection, Consumer, Exchange, Message, Producer, Queue
from kombu.common import Broadcast, collect_replies, itermessages, send_reply, uuid
from kombu.mixins import ConsumerMixin

import lavinmq.client.kombu  # noqa: F401  # makes lavinmq:// known
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

WAIT_S = 10.0
RETRY = {"max_retries": 20, "interval_start": 0.05, "interval_step": 0, "interval_max": 0.05}


@pytest.fixture(params=["amqp", "lavinmq"])
def scheme(request: pytest.FixtureRequest) -> str:
    """What kombu uses: py-amqp, or our client."""
    return str(request.param)


@pytest.fixture
def kombu(broker: Broker, scheme: str) -> Iterator[Connection]:
    """An open kombu connection whose publishes are confirmed."""
    options = {"confirm_publish": True}
    with Connection(uri_of(broker, scheme), transport_options=options) as connection:
        yield connection.connect() and connection


@pytest.fixture
def line(kombu: Connection, unique: UniqueName) -> Iterator[Queue]:
    """An empty queue, bound to a direct exchange that goes with it."""
    exchange = Exchange(unique("kombu"), "direct", durable=False, auto_delete=True)
    # Not exclusive: kombu would have that queue deleted with its first consumer.
    queue = declared(Queue(unique("kombu"), exchange, "key", durable=False), kombu)
    yield queue
    queue.delete()


def uri_of(broker: Broker, scheme: str) -> str:
    return broker.uri.replace("amqp:", f"{scheme}:")


def declared(queue: Queue, connection: Connection) -> Queue:
    bound = queue(connection.default_channel)
    bound.declare()
    return bound


def publish(connection: Connection, queue: Queue, *bodies: object, **options: object) -> None:
    producer = Producer(connection, queue.exchange, queue.routing_key)
    for body in bodies:
        producer.publish(body, **options)


def take(connection: Connection, queue: Queue, count: int) -> list[object]:
    """Consume and ack `count` messages and return their bodies, decoded."""
    channel = connection.channel()
    messages = itermessages(connection, channel, queue, limit=count, timeout=WAIT_S)
    bodies = []
    for body, message in messages:
        message.ack()
        bodies.append(body)
    channel.close()
    return bodies


def drain(connection: Connection, queue: Queue) -> list[object]:
    """Return the bodies of all ready messages, which are thereby gone."""
    bound = queue(connection.default_channel)
    messages = iter(lambda: bound.get(no_ack=True), None)
    return [message.payload for message in messages]


def test_a_thousand_messages_arrive_in_order(kombu: Connection, line: Queue) -> None:
    publish(kombu, line, *range(1000))

    assert take(kombu, line, 1000) == list(range(1000))
    assert drain(kombu, line) == []


@pytest.mark.parametrize("serializer", ["json", "pickle", "raw"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_bodies_arrive_as_they_were_sent(
    kombu: Connection, line: Queue, serializer: str, compression: str | None
) -> None:
    body: Any = b"\x00\xff" * (512 * 1024)
    if serializer != "raw":
        body = {"list": [1, 2.5, None, True], "text": "ünïcode" * 1000}

    publish(kombu, line, body, serializer=serializer, compression=compression)

    channel = kombu.channel()
    with Consumer(channel, line, accept=["json", "pickle", "application/data"]) as consumer:
        received: list[object] = []
        consumer.on_message = lambda message: received.append(message.payload)
        kombu.drain_events(timeout=WAIT_S)
    assert received == [body]


def test_a_message_is_requeued_or_rejected(kombu: Connection, line: Queue) -> None:
    publish(kombu, line, "again", "dropped")
    seen: list[tuple[str, bool]] = []

    def settle(body: str, message: Message) -> None:
        seen.append((body, message.delivery_info["redelivered"]))
        if body == "dropped":
            message.reject()
        elif len(seen) == 1:
            message.requeue()
        else:
            message.ack()

    with Consumer(kombu.channel(), line, callbacks=[settle], prefetch_count=1):
        while len(seen) < 3:
            kombu.drain_events(timeout=WAIT_S)

    assert seen == [("again", False), ("again", True), ("dropped", False)]
    assert drain(kombu, line) == []


def test_a_consumer_waits_no_longer_than_it_was_told(kombu: Connection, line: Queue) -> None:
    with Consumer(kombu.channel(), line), pytest.raises(socket.timeout):
        kombu.drain_events(timeout=0.05)

    publish(kombu, line, "later")
    assert take(kombu, line, 1) == ["later"]


def test_an_unroutable_message_is_returned(kombu: Connection, line: Queue) -> None:
    returned: list[tuple[int, str, object]] = []

    def on_return(error: Exception, exchange: str, key: str, message: Message) -> None:
        returned.append((error.reply_code, key, message.body))

    producer = Producer(kombu, line.exchange, on_return=on_return, auto_declare=False)
    producer.publish("back", routing_key="nowhere", mandatory=True, serializer="raw")
    producer.publish("kept", routing_key="key", mandatory=True)

    assert returned == [(312, "nowhere", "back")]
    assert drain(kombu, line) == ["kept"]


def test_a_queue_of_several_bindings_gets_each_message_once(
    kombu: Connection, unique: UniqueName
) -> None:
    topic = Exchange(unique("topic"), "topic", durable=False, auto_delete=True)
    headers = Exchange(unique("headers"), "headers", durable=False, auto_delete=True)
    wanted = {"x-match": "all", "nested": {"list": [1, {"x": None}]}}
    bindings = [topic.binding("a.#"), topic.binding("#.b"), headers.binding(arguments=wanted)]
    queue = Queue(unique("bound"), bindings=bindings, durable=False, exclusive=True)
    declared(queue, kombu)

    with kombu.Producer() as producer:
        for key in ("a.b", "x.b", "a", "x"):
            producer.publish(key, exchange=topic, routing_key=key)
        for value in (None, 1):
            nested = {"list": [1, {"x": value}]}
            producer.publish(value, exchange=headers, headers={"nested": nested})

    assert drain(kombu, queue) == ["a.b", "x.b", "a", None]


def test_a_broadcast_reaches_every_listener(kombu: Connection, unique: UniqueName) -> None:
    name = unique("broadcast")
    listeners = [declared(Broadcast(name), kombu) for _ in range(3)]

    publish(kombu, listeners[0], "news")

    heard = [drain(kombu, listener) for listener in listeners]
    for listener in listeners:
        listener.delete()
    listeners[0].exchange.delete()
    assert heard == [["news"]] * 3


def test_a_simple_queue_is_put_to_and_got_from(kombu: Connection, unique: UniqueName) -> None:
    name = unique("simple")

    with kombu.SimpleQueue(name) as queue:
        with pytest.raises(queue.Empty):
            queue.get(block=False)
        queue.put({"n": 1}, headers={"h": "1"})
        queue.put({"n": 2})
        size = queue.qsize()
        first = queue.get(timeout=WAIT_S)
        first.ack()
        second = queue.get(timeout=WAIT_S)
        second.ack()
        entity = queue.queue
    left = entity.delete()
    entity.exchange.delete()

    assert (size, first.payload, first.headers["h"], second.payload) == (2, {"n": 1}, "1", {"n": 2})
    assert left == 0


def test_replies_are_collected_from_a_queue_of_their_own(kombu: Connection, line: Queue) -> None:
    replies = Queue(uuid(), exchange=Exchange(""), durable=False, exclusive=True)
    replies = declared(replies, kombu)
    publish(kombu, line, *range(3), reply_to=replies.name, correlation_id="c1")

    requests = list(itermessages(kombu, kombu.channel(), line, limit=3, timeout=WAIT_S))
    with kombu.Producer() as producer:
        for body, message in requests:
            send_reply(Exchange(""), message, body * body, producer)
            message.ack()
    collected = list(collect_replies(kombu, kombu.channel(), replies, limit=3, timeout=WAIT_S))

    assert collected == [0, 1, 4]


def test_a_missing_queue_is_a_channel_error(kombu: Connection, unique: UniqueName) -> None:
    channel = kombu.channel()

    with pytest.raises(kombu.channel_errors) as failure:
        Queue(unique("missing"), channel=channel).queue_declare(passive=True)

    assert isinstance(failure.value, amqp.NotFound)
    assert kombu.connected
    assert kombu.channel().is_open


def test_a_consumer_of_a_deleted_queue_is_told(kombu: Connection, line: Queue) -> None:
    with Consumer(kombu.channel(), line) as consumer:
        line.delete()
        with pytest.raises(amqp.ConsumerCancelled):
            kombu.drain_events(timeout=WAIT_S)
        # Nothing to cancel any more.
        consumer._active_tags.clear()

    assert kombu.connected


def test_a_pool_hands_out_connections_of_its_own(kombu: Connection, line: Queue) -> None:
    pool = kombu.Pool(2)

    with pool.acquire(block=True) as one, pool.acquire(block=True) as other:
        ports = {each.connect().sock.getsockname()[1] for each in (one, other)}
        publish(one, line, "one")
        publish(other, line, "other")
        taken = take(one, line, 2)
    pool.force_close_all()

    assert len(ports) == 2
    assert taken == ["one", "other"]


class Worker(ConsumerMixin):
    """Takes `count` messages, however often the connection is lost; the broker dies at half."""

    def __init__(self, broker: Broker, scheme: str, queue: Queue, count: int) -> None:
        self.connection = Connection(uri_of(broker, scheme))
        self.bodies: list[int] = []
        self.connections = 0
        self._broker = broker
        self._queue = queue
        self._count = count
        self._deadline = time.monotonic() + WAIT_S

    def get_consumers(self, consumer: Callable[..., Consumer], channel: object) -> list[Consumer]:
        """Return the one consumer; called anew on each connection."""
        self.connections += 1
        return [consumer(self._queue, on_message=self.on_message, prefetch_count=1)]

    def on_message(self, message: Message) -> None:
        """Note a body and ack it."""
        self.bodies.append(message.payload)
        message.ack()
        if len(self.bodies) == self._count // 2:
            self._broker.kill()
            self._broker.start()
        self.should_stop = set(self.bodies) == set(range(self._count))

    def on_iteration(self) -> None:
        """Give up in the end: the loop takes the test's own deadline for a lost connection."""
        self.should_stop = self.should_stop or time.monotonic() > self._deadline


def test_publisher_and_worker_are_back_after_a_crash(
    own_broker: Broker, scheme: str, unique: UniqueName
) -> None:
    queue = Queue(unique("kept"), Exchange(unique("kept")), "key")
    worker = Worker(own_broker, scheme, queue, 20)
    uri, options = uri_of(own_broker, scheme), {"confirm_publish": True}

    with Connection(uri, transport_options=options) as connection:
        producer = Producer(connection, queue.exchange, "key")
        for number in range(20):
            producer.publish(number, declare=[queue])
        worker.run()
        producer.publish(20, retry=True, retry_policy=RETRY)
        last = drain(connection, queue)

    # The last acks before the crash may be lost with it: one, and one for what was on its way.
    assert list(dict.fromkeys(worker.bodies)) == list(range(20))
    assert len(worker.bodies) <= 22
    assert worker.connections == 2
    assert last == [20]


def test_its_manager_works_with_the_http_api(
    broker: Broker, scheme: str, unique: UniqueName
) -> None:
    name = unique("managed")
    options = {"manager_hostname": broker.host, "manager_port": broker.http_port}
    with Connection(uri_of(broker, scheme), transport_options=options) as connection:
        manager = connection.get_manager()

        manager.create_queue("/", name, durable=True)
        manager.create_exchange("/", name, "direct")
        manager.create_binding("/", name, name, "key")
        assert manager.publish("/", name, "key", "hello")
        assert name in [each["name"] for each in manager.get_queues("/")]
        assert [each["payload"] for each in manager.get_messages("/", name)] == ["hello"]
        assert [each["source"] for each in manager.get_queue_bindings("/", name)] == ["", name]
        manager.delete_exchange("/", name)
        manager.delete_queue("/", name)
        for kept in manager.http.client.connections.values():
            kept.close()
