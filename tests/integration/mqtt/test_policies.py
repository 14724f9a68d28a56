"""Policies on sessions: each key that counts for a queue counts for a session."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

from tests.support import mqtt_bytes
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, V311
from tests.support.mqtt_peer import Peer

TIMEOUT_S = 15.0
Policy = Callable[..., None]


@pytest.fixture
def name() -> str:
    """A client identifier that no other test has."""
    return uuid.uuid4().hex


@pytest.fixture
def policy(mqtt: Broker, name: str) -> Iterator[Policy]:
    """Call it with a definition for the session of that client."""
    api = Api(mqtt)

    def put(**definition: Any) -> None:
        given = {key.replace("_", "-"): value for key, value in definition.items()}
        body = {"pattern": f"^mqtt\\.{name}$", "apply-to": "queues", "definition": given}
        assert api("PUT", f"/api/policies/%2F/{name}", body).status in (201, 204)

    yield put
    api("DELETE", f"/api/policies/%2F/{name}")


def session(mqtt: Broker, name: str) -> None:
    """A session with a subscription of QoS 1, whose client is away."""
    with Peer(mqtt.mqtt_port, V311) as peer:
        peer.connect(name, clean=False)
        assert peer.subscribe((f"{name}/#", 1)) == [1]
        peer.disconnect()


def publish(mqtt: Broker, name: str, *bodies: bytes, level: int = V311) -> None:
    with Peer(mqtt.mqtt_port, level) as peer:
        peer.connect(f"p-{name}")
        for body in bodies:
            peer.publish(f"{name}/t", body, 1)


def left(mqtt: Broker, name: str, n: int) -> list[bytes]:
    """What the client gets, n messages and no more."""
    with Peer(mqtt.mqtt_port, V311) as peer:
        peer.connect(name, clean=False)
        found = [peer.message().payload for _ in range(n)]
        peer.ping()
        assert not peer.early_messages()
        peer.disconnect()
    return found


def waits(mqtt: Broker, name: str) -> int:
    return int(Api(mqtt).get(f"/api/queues/%2F/mqtt.{name}")["messages"])


def until(mqtt: Broker, name: str, n: int) -> None:
    """Wait until n messages are in the session."""
    deadline = time.monotonic() + TIMEOUT_S
    while waits(mqtt, name) != n:
        assert time.monotonic() < deadline, waits(mqtt, name)
        time.sleep(0.05)


def test_max_length_drops_the_oldest_also_of_what_waits(
    mqtt: Broker, name: str, policy: Policy
) -> None:
    session(mqtt, name)
    publish(mqtt, name, b"1", b"2", b"3")

    policy(max_length=2)
    until(mqtt, name, 2)
    publish(mqtt, name, b"4")

    assert left(mqtt, name, 2) == [b"3", b"4"]


def test_max_length_bytes_drops_the_oldest(mqtt: Broker, name: str, policy: Policy) -> None:
    session(mqtt, name)
    policy(max_length_bytes=1000)

    publish(mqtt, name, b"a" * 400, b"b" * 400, b"c" * 400)

    assert left(mqtt, name, 2) == [b"b" * 400, b"c" * 400]


def test_a_full_session_that_rejects_refuses_the_publish(
    mqtt: Broker, name: str, policy: Policy
) -> None:
    session(mqtt, name)
    policy(max_length=1, overflow="reject-publish")
    publish(mqtt, name, b"1")

    with Peer(mqtt.mqtt_port, V5) as peer:
        peer.connect(f"p-{name}")
        topic = f"{name}/t".encode()
        packet = len(topic).to_bytes(2, "big") + topic + b"\0\7\0" + b"2"
        peer.send(bytes([0x32, len(packet)]) + packet)
        assert peer.expect(4).body == b"\0\7\x97"

    assert left(mqtt, name, 1) == [b"1"]


def test_message_ttl_expires_what_waits(mqtt: Broker, name: str, policy: Policy) -> None:
    session(mqtt, name)
    policy(message_ttl=100)

    publish(mqtt, name, b"1", b"2")
    until(mqtt, name, 0)

    policy(message_ttl=600_000)
    publish(mqtt, name, b"3")
    assert left(mqtt, name, 1) == [b"3"]


def test_expires_ends_a_session_whose_client_is_away(
    mqtt: Broker, name: str, policy: Policy
) -> None:
    session(mqtt, name)

    policy(expires=200)

    deadline = time.monotonic() + TIMEOUT_S
    while Api(mqtt)("GET", f"/api/queues/%2F/mqtt.{name}").status == 200:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with Peer(mqtt.mqtt_port, V311) as peer:
        assert peer.connect(name, clean=False)[0] == 0


@pytest.mark.parametrize("how", ["too long", "too old"])
def test_dead_letters_go_to_the_exchange_with_the_key_of_the_topic(
    mqtt: Broker, name: str, policy: Policy, how: str
) -> None:
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", mqtt.port))
    channel = connection.channel()
    channel.queue_declare(name)
    channel.exchange_declare(name, "topic")
    channel.queue_bind(name, name, f"{name}.t")
    session(mqtt, name)
    limit = {"max_length": 1} if how == "too long" else {"message_ttl": 100}
    policy(dead_letter_exchange=name, **limit)

    publish(mqtt, name, b"1", b"2")

    deadline = time.monotonic() + TIMEOUT_S
    while True:
        method, properties, body = channel.basic_get(name, auto_ack=True)
        if method is not None:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert body == b"1"
    assert method.routing_key == f"{name}.t"
    death = properties.headers["x-death"][0]
    assert death["queue"] == f"mqtt.{name}"
    assert death["reason"] == ("maxlen" if how == "too long" else "expired")
    channel.queue_delete(name)
    channel.exchange_delete(name)
    connection.close()


def test_a_policy_that_goes_lifts_its_limit(mqtt: Broker, name: str, policy: Policy) -> None:
    session(mqtt, name)
    policy(max_length=1)
    publish(mqtt, name, b"1", b"2")

    assert Api(mqtt)("DELETE", f"/api/policies/%2F/{name}").status == 204
    publish(mqtt, name, b"3", b"4")

    assert left(mqtt, name, 3) == [b"2", b"3", b"4"]


def test_a_retained_message_that_a_full_session_refuses_dies_once_and_reaches_nobody(
    mqtt: Broker, name: str, policy: Policy
) -> None:
    """Nor does it take the place of the one of before."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", mqtt.port))
    channel = connection.channel()
    channel.queue_declare(name)
    session(mqtt, name)
    policy(
        max_length=1, overflow="reject-publish-dlx", dead_letter_exchange="",
        dead_letter_routing_key=name,
    )  # fmt: skip
    with Peer(mqtt.mqtt_port, V5) as peer, Peer(mqtt.mqtt_port, V5) as other:
        other.connect(f"o-{name}")
        other.subscribe((f"{name}/t", 1))
        peer.connect(f"p-{name}")
        peer.publish(f"{name}/t", b"1", 1, retain=True)
        assert other.message().payload == b"1"

        peer.send(mqtt_bytes.publish(V5, f"{name}/t", b"2", qos=1, packet_id=7, retain=True))

        assert peer.expect(4).body == b"\0\7\x97"
        other.ping()
        assert not other.early_messages()
        peer.subscribe((f"{name}/t", 1))
        assert peer.message().payload == b"1"
        peer.publish(f"{name}/t", b"", retain=True)

    assert channel.basic_get(name, auto_ack=True)[2] == b"2"
    assert channel.basic_get(name, auto_ack=True)[0] is None
    channel.queue_delete(name)
    connection.close()
