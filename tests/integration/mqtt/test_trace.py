"""What MQTT publishes passes the exchange that it shares with AMQP once, whoever follows it."""

from __future__ import annotations

import http.client
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pika
import pytest

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_peer import Peer

N = 50


class Trace:
    """Follows `amq.topic`, a message a second of it, or more."""

    def __init__(self, broker: Broker, rate: int = 1) -> None:
        self._connection = http.client.HTTPConnection(broker.host, broker.http_port, timeout=20)
        headers = Api(broker).login | {"Content-Type": "application/json"}
        body = json.dumps({"seconds": 20, "rate": rate})
        self._connection.request("POST", "/api/exchanges/%2F/amq.topic/trace", body, headers)
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self._answer.readline()

    def seen_after(self, n: int) -> int:
        """How many have passed, as soon as it is so many, a few looks later."""
        more = 3
        while True:
            said: Any = json.loads(self._answer.readline())
            if said.get("seen", 0) >= n:
                more -= 1
                if not more:
                    return int(said["seen"])

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


@pytest.fixture
def follow(mqtt: Broker) -> Iterator[Callable[..., Trace]]:
    """Call it to follow the exchange."""
    with ExitStack() as stack:
        yield lambda rate=1: stack.enter_context(closing(Trace(mqtt, rate)))


@pytest.fixture
def channel(mqtt: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", mqtt.port))
    yield connection.channel()
    connection.close()


def test_a_publish_that_crosses_to_a_queue_is_counted_once(
    mqtt: Broker, channel: Any, follow: Callable[..., Trace]
) -> None:
    queue, word = channel.queue_declare("", exclusive=True).method.queue, uuid.uuid4().hex
    channel.queue_bind(queue, "amq.topic", f"{word}.#")
    trace = follow()
    with Peer(mqtt.mqtt_port) as client:
        client.connect(word)
        for _ in range(N):
            client.publish(f"{word}/a", b"x", 1)
    assert trace.seen_after(N) == N


def test_what_is_shown_is_counted_once(
    mqtt: Broker, channel: Any, follow: Callable[..., Trace]
) -> None:
    """The sample opens and closes with each: the exchange's own count goes on meanwhile."""
    queue, word = channel.queue_declare("", exclusive=True).method.queue, uuid.uuid4().hex
    channel.queue_bind(queue, "amq.topic", f"{word}.#")
    trace = follow(2)
    with Peer(mqtt.mqtt_port) as client:
        client.connect(word)
        for n in range(1, 6):
            client.publish(f"{word}/a", b"x", 1)
            assert trace.seen_after(n) == n


def test_a_publish_that_reaches_nobody_is_told_so_while_it_is_followed(
    mqtt: Broker, follow: Callable[..., Trace]
) -> None:
    word = uuid.uuid4().hex
    trace = follow(100)
    before = Api(mqtt)("GET", "/api/exchanges/%2F/amq.topic").json["message_stats"]
    with Peer(mqtt.mqtt_port, 5) as client:
        client.connect(word)
        client.send(mqtt_bytes.publish(5, f"{word}/a", b"x", qos=1, packet_id=7))
        assert client.expect(4).body == b"\0\7\x10"
    assert trace.seen_after(1) == 1
    after = Api(mqtt)("GET", "/api/exchanges/%2F/amq.topic").json["message_stats"]
    assert after.get("publish_out", 0) == before.get("publish_out", 0)
