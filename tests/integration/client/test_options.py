"""Options and callbacks that no other file is about, each by what it changes."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from lavinmq.client import Client, ConnectionState, DropReason, NackError
from lavinmq.client.errors import NotFound, ProtocolViolation
from tests.support.broker import Broker
from tests.support.client_frames import method
from tests.support.fault_proxy import FaultProxy, Frame
from tests.support.waiting import wait_for

QUICK: dict[str, Any] = {
    "reconnect_initial_delay": 0.02,
    "reconnect_max_delay": 0.2,
    "health_interval": 0.05,
}
ACK, NACK = struct.pack(">HH", 60, 80), struct.pack(">HH", 60, 120)
DEADLINE_S = 120.0


def refusing(count: int) -> Any:
    """The broker's first confirms become refusals."""
    left = [count]

    def judge(frame: Frame) -> list[Frame]:
        kind, channel, payload = frame
        if kind == 1 and payload[:4] == ACK and left[0]:
            left[0] -= 1
            return [(kind, channel, NACK + payload[4:])]
        return [frame]

    return judge


def test_the_first_message_waits_for_no_timer(proxy: FaultProxy, queue: str) -> None:
    """Nor does one after a loss: there is no poll that could help, and no heartbeat."""
    with Client(proxy.url, **{**QUICK, "health_interval": 3600.0, "heartbeat": 0}) as client:
        producer = client.producer(queue)
        for n in range(3):
            assert producer.publish(b"x").result(20) == "confirmed"
            proxy.cut()
            wait_for(lambda n=n: client.metrics().reconnects > n, "reconnected")  # type: ignore[misc]
        assert client.metrics().poll_detected == 0


def test_a_refused_message_is_sent_again_and_told_of(proxy: FaultProxy, queue: str) -> None:
    told: list[bytes] = []
    with Client(proxy.url, **QUICK) as client:
        producer = client.producer(queue)
        producer.on_nack(lambda message: told.append(message.body))
        proxy.judge = refusing(4)  # one more than the tries that others give it
        receipt = producer.publish(b"x")
        producer.wait_for_confirms(30)

        assert receipt.status == "confirmed" and told == [b"x"] * 4
        assert producer.nacks == 4 and client.metrics().nacked == 0


def test_without_retry_nacks_a_refusal_is_the_end(proxy: FaultProxy, queue: str) -> None:
    with Client(proxy.url, **QUICK) as client:
        producer = client.producer(queue, retry_nacks=False)
        proxy.judge = refusing(1)
        with pytest.raises(NackError):
            producer.publish(b"x").result(10)
        assert producer.publish(b"y").result(10) == "confirmed"
        assert client.metrics().nacked == 1


def test_without_reconnect_what_was_not_confirmed_in_time_says_so(
    proxy: FaultProxy, queue: str
) -> None:
    reasons: list[DropReason] = []
    with Client(proxy.url, **QUICK, reconnect=False, confirm_timeout=0.2) as client:
        producer = client.producer(queue)
        producer.on_drop(lambda message, reason: reasons.append(reason))
        proxy.judge = lambda frame: [] if frame[2][:4] == ACK else [frame]
        producer.publish(b"x")
        wait_for(lambda: client.state is ConnectionState.CLOSED, "given up", 20)
        wait_for(lambda: reasons == [DropReason.CONFIRM_TIMEOUT], "told")


def test_an_old_delivery_is_told_of(broker: Broker, queue: str) -> None:
    ages: list[float] = []
    with Client(broker.uri, **QUICK) as client:
        client.producer(queue).publish(b"x").result(10)
        consumer = client.consumer(queue, max_unacked_age=0.05)
        consumer.on_unacked_age(ages.append)
        message = consumer.get(10)
        wait_for(lambda: bool(ages), "told", 20)
        assert message is not None and message.ack() and min(ages) >= 0.05


def test_without_recovery_nothing_is_declared_again(own_broker: Broker) -> None:
    options = {**QUICK, "topology_recovery": "off"}
    with Client(own_broker.uri, **options) as client:
        client.queue("q", durable=False)
        own_broker.kill()
        own_broker.start()
        client.wait_connected(20)
        with pytest.raises(NotFound):
            client.queue("q", passive=True)


def test_a_wrong_password_may_be_tried_again(broker: Broker) -> None:
    """As where users are made after programs are started."""
    url = f"amqp://guest:wrong@{broker.host}:{broker.port}/"
    with Client(url, **QUICK, retry_auth=True, fail_fast=False) as client:
        wait_for(lambda: client.metrics().reconnect_attempts >= 2, "tried again", 60)
        assert client.state is ConnectionState.RECONNECTING


def test_a_message_that_is_too_large_ends_the_connection_before_it_comes(
    broker: Broker, queue: str
) -> None:
    with Client(broker.uri) as other, Client(broker.uri, **QUICK, max_message_size=1000) as client:
        client.queue(queue)
        consumer = client.consumer(queue)
        consumer.on_error(lambda error: None)
        other.producer(queue).publish(bytes(2000)).result(10)
        wait_for(lambda: isinstance(client.last_error, ProtocolViolation), "refused", 20)
        assert "2000" in str(client.last_error)
        other.purge(queue)


def test_times_in_states_are_counted_up_to_now(proxy: FaultProxy, queue: str) -> None:
    with Client(proxy.url, **QUICK) as client:
        proxy.say(method(0, "connection.blocked", "full"))
        wait_for(lambda: client.blocked, "blocked")
        wait_for(lambda: client.metrics().blocked_seconds > 0.01, "it counts while it is")
        metrics = client.metrics()
        assert metrics.state_seconds["blocked"] > 0 and metrics.state_seconds["connected"] > 0
        proxy.say(method(0, "connection.unblocked"))
        wait_for(lambda: not client.blocked, "unblocked")
        spent = client.metrics().blocked_seconds
        assert spent > 0.01 and client.metrics().blocked_seconds == spent


def test_messages_are_read_refused_and_told_of(broker: Broker, queue: str) -> None:
    back: list[int] = []
    with Client(broker.uri, **QUICK, client_properties={"team": "orders"}) as client:
        client.producer(queue).publish({"n": 1}).result(10)
        consumer = client.consumer(queue)
        consumer.on_resubscribe(lambda: back.append(1))
        message = consumer.get(10)
        assert message is not None and message.json() == {"n": 1} and not message.redelivered
        assert message.reject(requeue=True) and not message.ack()
        message = consumer.get(10)
        assert message is not None and message.redelivered and message.reject()
        wait_for(lambda: client.queue(queue, passive=True).message_count == 0, "gone")
        client.delete_queue(queue)
        wait_for(lambda: back == [1], "it is back")
        assert client._core.link is not None
        assert client._core.link._properties()["team"] == "orders"
