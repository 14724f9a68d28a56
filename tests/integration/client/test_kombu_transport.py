"""The transport of kombu: what its options mean, how it tells of failures, and that it ends well.

What works as with py-amqp is in `test_kombu.py` and `test_celery.py`, which run on both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import amqp
import pytest
from kombu import Connection, Consumer, Exchange, Queue

import lavinmq.client.kombu  # noqa: F401  # makes lavinmq:// known
from lavinmq.client.errors import ConfigError
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker
from tests.support.ports import free_port

WAIT_S = 10.0


def place(broker: Broker) -> str:
    return broker.uri.replace("amqp:", "lavinmq:")


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    """An open connection."""
    with Connection(place(broker)) as made:
        made.connect()
        yield made


def test_a_refused_publish_raises_without_being_asked_to(
    connection: Connection, unique: UniqueName
) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = Queue(unique("full"), queue_arguments=arguments, durable=False, auto_delete=True)
    queue = queue(connection.default_channel)
    queue.declare()
    with connection.Producer() as producer:
        producer.publish("fits", routing_key=queue.name)
        with pytest.raises(amqp.exceptions.MessageNacked):
            producer.publish("too many", routing_key=queue.name)
    queue.delete()


def test_a_publish_to_a_missing_exchange_names_it(
    connection: Connection, unique: UniqueName
) -> None:
    missing = unique("missing")
    producer = connection.Producer(auto_declare=False)

    with pytest.raises(amqp.NotFound, match=missing):
        producer.publish("lost", exchange=missing, routing_key="x")

    assert connection.connected
    with pytest.raises(TimeoutError):
        connection.drain_events(timeout=0.1)  # it was told


def test_without_confirms_a_closed_channel_is_told_when_events_are_drained(
    broker: Broker, unique: UniqueName
) -> None:
    options = {"confirm_publish": False}
    with Connection(place(broker), transport_options=options) as connection:
        channel = connection.channel()
        channel.basic_publish(channel.prepare_message(b"x"), unique("missing"), "x")

        with pytest.raises(amqp.NotFound):
            connection.drain_events(timeout=WAIT_S)
        assert not channel.is_open
        assert connection.channel().is_open


def test_without_confirms_returned_messages_come_when_events_are_drained(broker: Broker) -> None:
    returned: list[str] = []
    with Connection(place(broker), transport_options={"confirm_publish": False}) as connection:
        producer = connection.Producer(on_return=lambda *given: returned.append(given[2]))
        producer.publish("x", routing_key="nowhere-at-all", mandatory=True)
        while not returned:
            connection.drain_events(timeout=WAIT_S)

    assert returned == ["nowhere-at-all"]


@pytest.mark.parametrize(
    ("option", "hint"), [("prefetsh", "prefetch"), ("confirm_publsh", "no option")]
)
def test_an_option_that_is_none_is_refused_by_name(broker: Broker, option: str, hint: str) -> None:
    connection = Connection(place(broker), transport_options={option: 1})

    with pytest.raises(ConfigError, match=hint) as failure:
        connection.connect()

    assert option in str(failure.value)


def test_a_tls_option_that_is_none_is_refused_by_name(broker: Broker) -> None:
    connection = Connection(place(broker), ssl={"ca_cert": "/nowhere"})

    with pytest.raises(ConfigError, match=r"'ca_cert'.*ca_certs"):
        connection.connect()


def test_a_wrong_password_is_the_error_that_kombu_knows(broker: Broker) -> None:
    with (
        Connection(place(broker).replace(":guest@", ":secret-wrong@")) as connection,
        pytest.raises(amqp.AccessRefused) as failure,
    ):
        connection.connect()

    assert "secret-wrong" not in str(failure.value)


def test_a_broker_that_is_not_there_is_a_connection_error() -> None:
    connection = Connection(f"lavinmq://guest:guest@127.0.0.1:{free_port()}")

    with pytest.raises(connection.recoverable_connection_errors):
        connection.connect()


def test_a_password_may_be_a_function(broker: Broker) -> None:
    uri = place(broker).replace("guest:guest@", "")
    with Connection(uri, userid="guest", password=lambda: "guest") as connection:
        assert connection.connect().connected


def test_kombu_is_told_of_a_loss_once_and_then_connects_anew(
    own_broker: Broker, unique: UniqueName
) -> None:
    queue = Queue(unique("lost"), Exchange(""), unique("lost"))
    with Connection(place(own_broker)) as connection:
        first = connection.connect()
        with Consumer(connection.channel(), queue) as consumer:
            own_broker.restart()
            with pytest.raises(connection.recoverable_connection_errors):
                while True:
                    connection.drain_events(timeout=WAIT_S)
            consumer._active_tags.clear()

        assert not first.connected
        assert connection.default_channel.is_open
        assert connection.connection is not first


def test_a_producer_alone_connects_anew_after_one_error(own_broker: Broker) -> None:
    with Connection(place(own_broker)) as connection:
        channel = connection.default_channel
        own_broker.restart()
        with pytest.raises((amqp.RecoverableConnectionError, OSError)):
            channel.queue_declare("kept", durable=True, auto_delete=False)

        assert connection.default_channel.queue_declare("kept", durable=True, auto_delete=False)


def test_a_message_of_a_consumer_that_was_cancelled_goes_back(
    connection: Connection, unique: UniqueName
) -> None:
    queue = Queue(unique("back"), durable=False)(connection.default_channel)
    queue.declare()
    with connection.Producer() as producer:
        producer.publish("again", routing_key=queue.name)
    taken: list[Any] = []
    channel = connection.channel()
    channel.basic_consume(queue.name, consumer_tag="gone", callback=taken.append)
    channel.basic_cancel("gone")
    # Delivered before the cancel; nobody's any more.
    connection.drain_events(timeout=WAIT_S)

    message = None
    while message is None:
        message = queue.get()
    message.ack()
    queue.delete()
    assert not taken
    assert message.payload == "again"


def test_nothing_is_left_when_it_is_closed(broker: Broker) -> None:
    before = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Connection(place(broker)) as connection:
            connection.default_channel.queue_declare(exclusive=True)

    assert set(threading.enumerate()) <= before[0]
    assert len(os.listdir("/proc/self/fd")) <= before[1]


def test_after_a_fork_the_child_connects_by_itself(broker: Broker, unique: UniqueName) -> None:
    name = unique("forked")
    with Connection(place(broker)) as connection:
        connection.default_channel.queue_declare(name, durable=False, auto_delete=False)
        child = os.fork()
        if not child:
            code = 1
            try:
                connection.collect()
                with connection.Producer() as producer:
                    producer.publish("from the child", routing_key=name)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        message = Queue(name)(connection.default_channel).get(no_ack=True)
        connection.default_channel.queue_delete(name)

    assert os.waitstatus_to_exitcode(status) == 0
    assert message.payload == "from the child"
