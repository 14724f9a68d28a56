"""Advice about MQTT: sessions that grow without their clients, clients that acknowledge nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lavinmq.http import advice
from tests.support.managed import Managed, managed
from tests.support.mqtt_bytes import V5, V311, block
from tests.support.mqtt_peer import Peer
from tests.support.waiting import wait_for

KEPT = block(b"\x11\0\0\0\x64")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Managed]:
    """A broker whose history is long enough; one sample is taken in an hour, unless told."""
    monkeypatch.setattr(advice, "GROWING", 20)
    with managed(mqtt_port=0) as broker:
        broker.sample()
        yield broker


def port(broker: Managed) -> int:
    return broker.server.mqtt_port


def told(broker: Managed) -> list[Any]:
    found: list[Any] = broker.api.get("/api/advice")["advice"]
    return found


def ready(broker: Managed, name: str) -> int:
    queue = broker.inner.vhosts["/"].queues.get(f"mqtt.{name}")
    return -1 if queue is None else queue.core.ready


def publish(broker: Managed, topic: str, n: int) -> None:
    with Peer(port(broker), V311) as sender:
        sender.connect("sender")
        for _ in range(n):
            sender.publish(topic, b"x", 1)


def left(broker: Managed, filter_: str) -> None:
    """A session whose client is away."""
    with Peer(port(broker), V5) as client:
        client.connect("left", properties=KEPT)
        client.subscribe((filter_, 1))
    inner = broker.inner.vhosts["/"]
    wait_for(lambda: not inner.queues["mqtt.left"].consumers, "the client has gone")
    broker.sample()


def test_a_session_that_grows_without_its_client_is_told(broker: Managed) -> None:
    left(broker, "t")
    publish(broker, "t", 19)
    broker.sample()
    assert told(broker) == []  # it is short
    publish(broker, "t", 1)
    broker.sample()
    (one,) = told(broker)
    assert (one["kind"], one["level"], one["page"]) == ("growing_session", "warning", "queue")
    assert (one["vhost"], one["name"]) == ("/", "mqtt.left")
    assert "20 messages" in one["text"]


def test_a_session_with_a_limit_is_none(broker: Managed) -> None:
    policy = {"pattern": "^mqtt[.]", "definition": {"max-length": 100}, "apply-to": "queues"}
    assert broker.api("PUT", "/api/policies/%2F/bounded", policy).status == 201
    left(broker, "t")
    publish(broker, "t", 30)
    broker.sample()
    assert ready(broker, "left") == 30
    assert told(broker) == []


def test_a_client_that_acknowledges_nothing_is_told(broker: Managed) -> None:
    with Peer(port(broker), V5) as client:
        client.connect("silent", properties=block(b"\x21\0\2"))
        client.subscribe(("t", 1))
        publish(broker, "t", 5)
        wait_for(lambda: ready(broker, "silent") == 3, "it has as many as it may")
        broker.sample()
        broker.sample()
        assert told(broker) == []  # some were delivered in the time of the history
        queue = broker.inner.vhosts["/"].queues["mqtt.silent"]
        broker.call(_forget, queue)
        publish(broker, "t", 5)
        broker.sample()
        (one,) = told(broker)
        assert (one["kind"], one["name"]) == ("silent_client", "mqtt.silent")
        assert "silent has 2 messages" in one["text"] and "8 wait" in one["text"]


def _forget(queue: Any) -> None:
    """As if the history had come to its end: what was delivered before is out of it."""
    for _ in range(3):
        queue.track.sample(queue.counters(), 5.0, 1)


def test_files_that_cannot_be_read_are_told(broker: Managed) -> None:
    with Peer(port(broker), V5) as client:
        client.connect("here")
    stores = broker.server.mqtt.of(broker.inner.vhosts["/"]).stores
    broker.call(setattr, stores, "log", None)
    (one,) = told(broker)
    assert (one["kind"], one["level"], one["page"]) == ("mqtt_files", "error", "mqtt")
    assert broker.api.get("/api/mqtt")[0]["is_well"] is False
