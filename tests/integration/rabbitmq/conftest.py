"""One RabbitMQ for all tests of a worker, with a virtual host for each; and brokers of ours."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest

from lavinmq.client import Client
from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.rabbitmq import RabbitMQ, is_installed

WAIT_S = 240.0
BATCH = 500


def until(condition: Callable[[], Any], what: Callable[[], object] | str) -> None:
    """Wait until it is true."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.05)


class Side:
    """A virtual host of either broker, by what both have: AMQP and the API."""

    def __init__(self, api: Api, uri: str, vhost: str) -> None:
        self.api, self.vhost = api, vhost
        self.path = quote(vhost, safe="")
        self.uri = f"{uri}/{self.path}"

    def put(self, component: str, name: str, **value: Any) -> None:
        """A parameter; keywords have underscores."""
        fields = {key.replace("_", "-"): each for key, each in value.items()}
        path = f"/api/parameters/{component}/{self.path}/{name}"
        answer = self.api("PUT", path, {"value": fields})
        assert answer.status in (201, 204), answer

    def policy(self, pattern: str, apply_to: str, **definition: Any) -> None:
        """A policy."""
        keys = {key.replace("_", "-"): each for key, each in definition.items()}
        body = {"pattern": pattern, "definition": keys, "apply-to": apply_to}
        assert self.api("PUT", f"/api/policies/{self.path}/p", body).status in (201, 204)

    def rows(self, what: str) -> list[dict[str, Any]]:
        """Shovels or links."""
        found: list[dict[str, Any]] = self.api.get(f"/api/{what}/{self.path}")
        return found

    def links_run(self) -> bool:
        """Whether there are links, and all run."""
        rows = self.rows("federation-links")
        return bool(rows) and all(row["status"] == "running" for row in rows)

    def is_moved(self, name: str) -> bool:
        """Whether a shovel with an end has reached it."""
        return name not in [row["name"] for row in self.rows("shovels")]

    def fill(self, queue: str, numbers: range, **properties: Any) -> None:
        """Publish numbers to a queue, confirmed."""
        with Client(self.uri) as client:
            producer = client.producer(queue)
            for n in numbers:
                producer.publish(b"%d" % n, **properties)
            producer.flush(WAIT_S)

    def taken(self, queue: str, count: int) -> list[Any]:
        """So many messages of a queue."""
        found: list[Any] = []
        with Client(self.uri) as client, client.consumer(queue, declare=False) as consumer:
            while len(found) < count:
                message = consumer.get(WAIT_S)
                assert message is not None, f"{len(found)} of {count}"
                found.append(message)
                message.ack()
        return found

    def numbers(self, queue: str, count: int) -> set[int]:
        """So many different numbers of a queue; some may come twice."""
        found: set[int] = set()
        with Client(self.uri) as client, client.consumer(queue, declare=False) as consumer:
            while len(found) < count:
                message = consumer.get(WAIT_S)
                assert message is not None, f"{len(found)} of {count}"
                found.add(int(message.body))
                message.ack()
        return found

    def has_messages(self, queue: str) -> bool:
        """Whether a queue is there, and not empty."""
        answer = self.api("GET", f"/api/queues/{self.path}/{queue}")
        return answer.status == 200 and answer.json.get("messages", 0) > 0

    def waiting(self, queue: str) -> int:
        """Messages of a queue that are ready."""
        with Client(self.uri) as client:
            return int(client.queue(queue, passive=True).message_count)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    """The node that tests share."""
    if not is_installed():
        pytest.skip("needs Debian's rabbitmq-server")
    made = RabbitMQ(tmp_path_factory.mktemp("rabbitmq") / "node")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def rabbit(node: RabbitMQ) -> Iterator[Side]:
    """A virtual host of RabbitMQ."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    assert node.api("PUT", f"/api/vhosts/{name}").status == 201
    yield Side(node.api, node.uri, name)
    node.api("DELETE", f"/api/vhosts/{name}")


@pytest.fixture
def ours(node: RabbitMQ, broker_factory: BrokerFactory) -> Side:
    """The default virtual host of a broker of ours."""
    broker = broker_factory(http=True)
    uri = f"amqp://guest:guest@{broker.host}:{broker.port}"
    return Side(Api(broker), uri, "/")
