"""A broker whose shovels are set and watched over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.support.api import Answer, Api
from tests.support.broker import Broker

WAIT_S = 60.0
LOCAL = {"src_uri": "amqp://", "dest_uri": "amqp://"}


def until(condition: Callable[[], Any], what: str, seconds: float = WAIT_S) -> None:
    """Wait until it is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


class Bench:
    """A broker with shovels."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.api = Api(broker)

    def put(self, name: str, **value: Any) -> None:
        """Set one; keywords have underscores."""
        answer = self.try_to_put(name, **value)
        assert answer.status in (201, 204), answer

    def try_to_put(self, name: str, **value: Any) -> Answer:
        """Set one, or not."""
        fields = {key.replace("_", "-"): each for key, each in value.items()}
        path = f"/api/parameters/shovel/%2F/{quote(name, safe='')}"
        return self.api("PUT", path, {"value": fields})

    def row(self, name: str) -> dict[str, Any]:
        """How it goes."""
        found: dict[str, Any] = self.api.get(f"/api/shovels/%2F/{quote(name, safe='')}")
        return found

    def state(self, name: str) -> str:
        """Its state."""
        return str(self.row(name)["state"])

    def ask(self, name: str, what: str) -> int:
        """Pause or resume it."""
        return self.api("PUT", f"/api/shovels/%2F/{quote(name, safe='')}/{what}").status

    def is_gone(self, name: str) -> bool:
        """Whether it is not listed."""
        return name not in [each["name"] for each in self.api.get("/api/shovels/%2F")]

    def ready(self, queue: str) -> int:
        """Messages of a queue, whoever has them; 0 if there is none."""
        answer = self.api("GET", f"/api/queues/%2F/{queue}")
        return int(answer.json["messages"]) if answer.status == 200 else 0


@pytest.fixture
def bench(broker_factory: BrokerFactory) -> Bench:
    """A broker of its own."""
    return Bench(broker_factory(http=True, mqtt=True))


def fill(client: Client, queue: str, count: int) -> None:
    """Publish numbers to a queue."""
    client.producer(queue).publish_batch([b"%d" % n for n in range(count)]).result(WAIT_S)


def bodies(client: Client, queue: str, count: int) -> list[bytes]:
    """So many bodies of a queue, taken."""
    found = []
    with client.consumer(queue) as consumer:
        while len(found) < count:
            message = consumer.get(WAIT_S)
            assert message is not None, f"{len(found)} of {count}"
            found.append(message.body)
            message.ack()
    return found
