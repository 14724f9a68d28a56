"""Large messages from end to end: whole, in order, for slow clients, over HTTP, and a restart."""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import Callable

import pytest
from pamqp import commands

from tests.support.api import Api
from tests.support.broker import Broker
from tests.support.wire import Wire
from tests.support.wire_actions import declare, synchronise

BODY = random.Random(5).randbytes(24 << 20)
TIMEOUT_S = 60.0


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def publish_confirmed(wire: Wire, queue: str, *bodies: bytes) -> None:
    wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
    for body in bodies:
        wire.publish(1, "", queue, body)
        wire.receive(TIMEOUT_S)


def get(wire: Wire, queue: str) -> bytes:
    wire.send(1, commands.Basic.Get(queue=queue, no_ack=True))
    return wire.expect_unit(commands.Basic.GetOk, 1, TIMEOUT_S).body


@pytest.mark.parametrize("durable", [True, False])
def test_a_large_message_comes_out_as_it_went_in(broker: Broker, durable: bool) -> None:
    with Wire.open(broker.port) as wire:
        queue = declare(wire, f"large {durable}", durable=durable)
        publish_confirmed(wire, queue, b"before", BODY, b"behind")

        assert get(wire, queue) == b"before"
        assert digest(get(wire, queue)) == digest(BODY)
        assert get(wire, queue) == b"behind"


def test_a_restart_finds_it(broker_factory: Callable[..., Broker]) -> None:
    broker = broker_factory()
    with Wire.open(broker.port) as wire:
        declare(wire, "q", durable=True, exclusive=False)
        publish_confirmed(wire, "q", b"before", BODY, b"behind")

    broker.kill()
    broker.start()

    with Wire.open(broker.port) as wire:
        assert get(wire, "q") == b"before"
        assert digest(get(wire, "q")) == digest(BODY)
        assert get(wire, "q") == b"behind"


def test_a_slow_client_gets_what_is_purged_and_deleted_meanwhile(broker: Broker) -> None:
    with Wire.open(broker.port) as slow, Wire.open(broker.port) as other:
        declare(other, "slow", durable=True, exclusive=False)
        publish_confirmed(other, "slow", BODY, b"behind")
        slow.send(1, commands.Basic.Get(queue="slow", no_ack=True))
        time.sleep(0.2)  # it does not read

        other.call(1, commands.Queue.Purge(queue="slow"), commands.Queue.PurgeOk)
        other.call(1, commands.Queue.Delete(queue="slow"), commands.Queue.DeleteOk)
        declare(other, "slow", durable=True, exclusive=False)
        publish_confirmed(other, "slow", b"another")

        assert digest(slow.expect_unit(commands.Basic.GetOk, 1, TIMEOUT_S).body) == digest(BODY)
        assert get(slow, "slow") == b"another"
        synchronise(slow)


def test_http_publishes_and_shows_it(broker_factory: Callable[..., Broker]) -> None:
    broker = broker_factory(http=True)
    api = Api(broker)
    body = BODY[: 8 << 20]
    with Wire.open(broker.port) as wire:
        declare(wire, "q", durable=True, exclusive=False)
    message = {
        "properties": {}, "routing_key": "q", "payload_encoding": "base64",
        "payload": base64.b64encode(body).decode(),
    }  # fmt: skip

    assert api("POST", "/api/exchanges/%2F/amq.default/publish", message).json == {"routed": True}
    (shown,) = api("POST", "/api/queues/%2F/q/get", {"count": 1, "ack_mode": "get"}).json

    assert shown["payload_encoding"] == "base64"
    assert digest(base64.urlsafe_b64decode(shown["payload"])) == digest(body)
