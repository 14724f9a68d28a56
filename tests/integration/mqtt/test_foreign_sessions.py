"""Sessions are their clients': users of AMQP, whatever they may do with queues, neither read, empty
nor fill one. Who may give a client messages is a question of topics and filters."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from pamqp import commands
from pamqp.common import FieldArray

from tests.integration.mqtt.conftest import NewPeer
from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.mqtt_bytes import V5, block
from tests.support.wire import Wire

KEPT = {"clean": False, "properties": block(b"\x11\0\0\0\x64")}
ACCESS_REFUSED = 403


class Purge(commands.Queue.Purge):
    """One that does not refuse characters of topics."""

    def validate(self) -> None:
        pass


@pytest.fixture
def name(mqtt: Broker, peer: NewPeer) -> Iterator[str]:
    """Of a client that is away. One message waits in its session, and one in a shared
    subscription."""
    name = uuid.uuid4().hex[:12]
    with peer(V5) as client:
        client.connect(name, **KEPT)
        client.subscribe((f"own/{name}", 1), (f"$share/g/shared/{name}", 1))
        client.disconnect(b"\0")
    with peer(V5) as sender:
        sender.connect(f"sender-{name}")
        for topic in ("own", "shared"):
            sender.publish(f"{topic}/{name}", b"waits", 1)
    yield name
    with peer(V5) as client:
        client.connect(name)


def queues_of(name: str) -> list[str]:
    return [f"mqtt.{name}", f"mqtt.$share/g/shared/{name}"]


def check(peer: NewPeer, name: str) -> None:
    """The client has what waited, and nothing else."""
    with peer(V5) as client:
        client.connect(name, **KEPT)
        found = [client.message() for _ in range(2)]
        assert {(each.topic, each.payload) for each in found} == {
            (f"own/{name}", b"waits"), (f"shared/{name}", b"waits"),
        }  # fmt: skip
        client.publish(f"own/{name}", b"end", 1)
        assert client.message().payload == b"end"


def test_amqp_does_not_purge_a_session(mqtt: Broker, peer: NewPeer, name: str) -> None:
    for queue in queues_of(name):
        with Wire.open(mqtt.port) as wire:
            wire.send(1, Purge(queue=queue))
            closed = wire.receive().method
            assert isinstance(closed, commands.Channel.Close)
            assert closed.reply_code == ACCESS_REFUSED
    check(peer, name)


@pytest.mark.parametrize("by", ["key", "copy", "api"])
def test_nobody_puts_a_message_into_a_session_past_its_subscriptions(
    mqtt: Broker, peer: NewPeer, name: str, by: str
) -> None:
    """By the name of its queue: with CC it even had any topic that the publisher wanted."""
    for queue in queues_of(name):
        if by == "api":
            body = {"routing_key": queue, "payload": "forged", "payload_encoding": "string",
                    "properties": {}}  # fmt: skip
            answer = Api(mqtt)("POST", "/api/exchanges/%2F/amq.default/publish", body)
            assert answer.json == {"routed": False}
            continue
        copies: FieldArray = [] if by == "key" else [queue]
        key = queue if by == "key" else "any.topic"
        properties = commands.Basic.Properties(headers={"CC": copies})
        with Wire.open(mqtt.port) as wire:
            wire.publish(1, "", key, b"forged", properties, mandatory=True)
            assert isinstance(wire.receive().method, commands.Basic.Return)
    check(peer, name)


def test_dead_letters_do_not_get_into_a_session(mqtt: Broker, peer: NewPeer, name: str) -> None:
    queue = f"dying-{name}"
    with Wire.open(mqtt.port) as wire:
        declare = commands.Queue.Declare(
            queue=queue, durable=True,
            arguments={"x-dead-letter-exchange": "", "x-max-length": 1,
                       "x-dead-letter-routing-key": f"mqtt.{name}"},
        )  # fmt: skip
        wire.call(1, declare, commands.Queue.DeclareOk)
        for _ in range(3):
            wire.publish(1, "", queue, b"forged")
        wire.call(1, commands.Queue.Delete(queue=queue), commands.Queue.DeleteOk)
    check(peer, name)
