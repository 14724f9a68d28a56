"""pika connects and errs: refused logins, channel errors, closing, heartbeats, frozen clients."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ConnectionWrongStateError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from tests.integration.conftest import OpenConnection, UniqueName
from tests.integration.pika_actions import get_all, get_soon, publish, serve_until, start_consumer
from tests.support.broker import PROTOCOL_HEADER, Broker

# pika gives a silent server `heartbeat + 5` seconds, so idle must last longer to prove anything.
HEARTBEAT_S = 1
IDLE_S = 8.0
SILENCE_TIMEOUT_S = 20.0

FROZEN_CLIENT = """
import sys, pika
port, queue = sys.argv[1:]
parameters = pika.ConnectionParameters("127.0.0.1", int(port), heartbeat=1)
connection = pika.BlockingConnection(parameters)
channel = connection.channel()
method, _, _ = channel.basic_get(queue)
print("took", method.delivery_tag, flush=True)
while True:
    connection.process_data_events(time_limit=1)
"""


@pytest.mark.parametrize(
    ("user", "password"),
    [("guest", "wrong"), ("guest", ""), ("nobody", "guest"), ("", "")],
)
def test_a_wrong_login_is_refused(connect: OpenConnection, user: str, password: str) -> None:
    """edge-cases.md 12"""
    with pytest.raises((ProbableAuthenticationError, ConnectionClosedByBroker)) as refused:
        connect(credentials=pika.PlainCredentials(user, password))

    # pika announces that it wants a close frame, and wraps it.
    assert "403" in repr(refused.value), f"expected ACCESS_REFUSED, got {refused.value!r}"


def test_an_unknown_vhost_is_refused(connect: OpenConnection, unique: UniqueName) -> None:
    with pytest.raises((ProbableAccessDeniedError, ConnectionClosedByBroker)) as refused:
        connect(virtual_host=unique("vhost"))

    assert "530" in repr(refused.value), f"expected NOT_ALLOWED, got {refused.value!r}"


def unknown_queue(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, passive=True)


def unknown_exchange(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, passive=True)


def publish_to_unknown_exchange(channel: BlockingChannel, name: str) -> None:
    channel.confirm_delivery()
    channel.basic_publish(name, "", b"x" * 500_000)


def consume_unknown_queue(channel: BlockingChannel, name: str) -> None:
    start_consumer(channel, name)


def get_from_unknown_queue(channel: BlockingChannel, name: str) -> None:
    channel.basic_get(name)


def bind_to_unknown_exchange(channel: BlockingChannel, name: str) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, name)


def redeclare_queue_differently(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True)
    channel.queue_declare(name, exclusive=True, arguments={"x-max-length": 5})


def redeclare_exchange_differently(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare("amq.topic", "fanout", durable=True)


def declare_with_bad_argument(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, exclusive=True, arguments={"x-message-ttl": "soon"})


def declare_reserved_name(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare("amq." + name)


def ack_unknown_tag(channel: BlockingChannel, name: str) -> None:
    channel.basic_ack(17)
    channel.queue_declare("", exclusive=True)


def ack_twice(channel: BlockingChannel, name: str) -> None:
    queue = channel.queue_declare("", exclusive=True).method.queue
    publish(channel, queue, [b"once"])
    tag = get_soon(channel, queue).tag
    channel.basic_ack(tag)
    channel.basic_ack(tag)
    channel.queue_declare("", exclusive=True)


@pytest.mark.parametrize(
    ("mistake", "reply_code"),
    [
        (unknown_queue, 404),
        (unknown_exchange, 404),
        (publish_to_unknown_exchange, 404),
        (consume_unknown_queue, 404),
        (get_from_unknown_queue, 404),
        (bind_to_unknown_exchange, 404),
        (redeclare_queue_differently, 406),
        (redeclare_exchange_differently, 406),
        (declare_with_bad_argument, 406),
        (declare_reserved_name, 403),
        (ack_unknown_tag, 406),
        (ack_twice, 406),
    ],
)
def test_a_mistake_closes_its_channel_and_nothing_else(
    connection: pika.BlockingConnection,
    channel: BlockingChannel,
    queue: str,
    unique: UniqueName,
    mistake: Callable[[BlockingChannel, str], None],
    reply_code: int,
) -> None:
    mistaken = connection.channel()

    with pytest.raises(ChannelClosedByBroker) as closed:
        mistake(mistaken, unique("mistake"))

    assert closed.value.reply_code == reply_code, f"unexpected answer: {closed.value!r}"
    again = connection.channel(mistaken.channel_number)
    publish(again, queue, [b"new channel of the same number"])
    again.close()
    publish(channel, queue, [b"neighbour"])
    assert get_all(channel, queue) == [b"new channel of the same number", b"neighbour"]


def test_a_hundred_mistakes_in_a_row_leave_the_connection_usable(
    connection: pika.BlockingConnection, unique: UniqueName
) -> None:
    for _ in range(100):
        with pytest.raises(ChannelClosedByBroker):
            connection.channel().queue_declare(unique("missing"), passive=True)

    assert connection.channel().queue_declare("", exclusive=True).method.queue


def test_closing_is_answered_and_ends_everything(
    connect: OpenConnection, unique: UniqueName
) -> None:
    connection = connect()
    channel = connection.channel()
    start_consumer(channel, channel.queue_declare("", exclusive=True).method.queue)

    connection.close(reply_code=200, reply_text="had enough")

    assert connection.is_closed
    with pytest.raises(ConnectionWrongStateError):
        connection.channel()


def test_connections_come_and_go(connect: OpenConnection, channel: BlockingChannel) -> None:
    for _ in range(50):
        passing = connect()
        name = passing.channel().queue_declare("", exclusive=True).method.queue
        publish(passing.channel(), name, [b"left behind"])
        passing.close()

    assert channel.queue_declare("", exclusive=True).method.message_count == 0


def test_the_broker_introduces_itself_with_its_capabilities(
    connection: pika.BlockingConnection,
) -> None:
    supported = {
        "publisher confirms": connection.publisher_confirms_supported,
        "exchange to exchange bindings": connection.exchange_exchange_bindings_supported,
        "basic.nack": connection.basic_nack_supported,
        "consumer cancel notification": connection.consumer_cancel_notify_supported,
    }

    assert supported == dict.fromkeys(supported, True)


def test_a_password_user_may_update_the_secret(connection: pika.BlockingConnection) -> None:
    connection.update_secret("guest", "rotation")

    assert connection.channel().queue_declare("", exclusive=True).method.queue


def test_an_idle_connection_with_a_short_heartbeat_stays(connect: OpenConnection) -> None:
    connection = connect(heartbeat=HEARTBEAT_S)
    channel = connection.channel()
    name = channel.queue_declare("", exclusive=True).method.queue

    idle_until = time.monotonic() + IDLE_S
    while time.monotonic() < idle_until:
        connection.process_data_events(time_limit=0.5)

    publish(channel, name, [b"still here"])
    assert get_all(channel, name) == [b"still here"]


def test_a_frozen_client_is_dropped_and_its_message_returns(
    broker: Broker, channel: BlockingChannel, unique: UniqueName
) -> None:
    name = unique("frozen")
    channel.queue_declare(name)
    publish(channel, name, [b"held"])
    command = [sys.executable, "-c", FROZEN_CLIENT, str(broker.port), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        try:
            assert client.stdout.readline() == "took 1\n"
            client.send_signal(signal.SIGSTOP)

            returned = get_soon(channel, name, timeout_s=SILENCE_TIMEOUT_S)
        finally:
            client.kill()

    assert (returned.body, returned.redelivered) == (b"held", True)
    channel.queue_delete(name)


def test_a_shut_down_broker_says_so(own_broker: Broker) -> None:
    parameters = pika.ConnectionParameters(own_broker.host, own_broker.port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    start_consumer(channel, channel.queue_declare("", exclusive=True).method.queue)

    # The stop waits for the client's close-ok, so the client is served meanwhile.
    with ThreadPoolExecutor(max_workers=1) as background:
        exit_code = background.submit(own_broker.stop)
        with pytest.raises(AMQPConnectionError) as closed:
            serve_until(channel, lambda: False, timeout_s=SILENCE_TIMEOUT_S)

    assert isinstance(closed.value, ConnectionClosedByBroker), f"got {closed.value!r}"
    assert closed.value.reply_code == 320
    assert exit_code.result() == 0


def test_a_client_within_its_handshake_does_not_disturb_the_stop(own_broker: Broker) -> None:
    with socket.create_connection((own_broker.host, own_broker.port), SILENCE_TIMEOUT_S) as client:
        client.sendall(PROTOCOL_HEADER)
        assert client.recv(1), "no connection.start"

        assert own_broker.stop() == 0

    assert "Traceback" not in own_broker.log_text()
