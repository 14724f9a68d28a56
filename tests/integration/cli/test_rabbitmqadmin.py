"""rabbitmqadmin, RabbitMQ's command line for its management API: objects and messages."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.integration.client_program import environment, program
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

TOOL_TIMEOUT_S = 25.0


class Admin:
    """Runs the tool against one broker."""

    def __init__(self, broker: Broker) -> None:
        self._options = ["-H", broker.host, "-P", str(broker.http_port), "-f", "raw_json"]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        return subprocess.run(
            [program("rabbitmqadmin"), *self._options, *arguments],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )

    def __call__(self, *arguments: str) -> str:
        """What it prints. Raises AssertionError when it fails or complains."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        """The rows that it prints."""
        rows: list[dict[str, Any]] = json.loads(self(*arguments))
        return rows

    def named(self, kind: str, name: str) -> list[dict[str, Any]]:
        """The rows of a kind that have the name."""
        return [row for row in self.listed("list", kind) if row["name"] == name]


@pytest.fixture
def admin(broker: Broker) -> Admin:
    """The tool, pointed at the shared broker."""
    return Admin(broker)


def test_queues_are_declared_listed_purged_and_deleted(admin: Admin, unique: UniqueName) -> None:
    name = unique("q/ü")
    arguments = json.dumps({"x-max-length": 10})

    said = admin("declare", "queue", f"name={name}", "durable=true", f"arguments={arguments}")

    assert said == "queue declared\n"
    (row,) = admin.named("queues", name)
    assert (row["durable"], row["arguments"]) == (True, {"x-max-length": 10})
    assert admin("purge", "queue", f"name={name}") == "queue purged\n"
    assert admin("delete", "queue", f"name={name}") == "queue deleted\n"
    assert admin.named("queues", name) == []


def test_exchanges_are_declared_listed_and_deleted(admin: Admin, unique: UniqueName) -> None:
    name = unique("x")

    assert admin("declare", "exchange", f"name={name}", "type=topic") == "exchange declared\n"

    (row,) = admin.named("exchanges", name)
    assert (row["type"], row["durable"], row["internal"]) == ("topic", True, False)
    assert admin("delete", "exchange", f"name={name}") == "exchange deleted\n"
    assert admin.named("exchanges", name) == []


@pytest.mark.parametrize("key", ["a.#", "k/ü", ""])
def test_bindings_are_declared_listed_and_deleted(
    admin: Admin, unique: UniqueName, key: str
) -> None:
    exchange, queue = unique("x"), unique("q")
    admin("declare", "exchange", f"name={exchange}", "type=topic")
    admin("declare", "queue", f"name={queue}")
    ends = [f"source={exchange}", f"destination={queue}"]

    assert admin("declare", "binding", *ends, f"routing_key={key}") == "binding declared\n"

    (row,) = [each for each in admin.listed("list", "bindings") if each["source"] == exchange]
    assert (row["destination"], row["routing_key"]) == (queue, key)
    found = f"properties_key={row['properties_key']}"
    said = admin("delete", "binding", *ends, "destination_type=queue", found)
    assert said == "binding deleted\n"
    assert not [each for each in admin.listed("list", "bindings") if each["source"] == exchange]


def test_messages_are_published_looked_at_and_taken(admin: Admin, unique: UniqueName) -> None:
    name = unique("q")
    admin("declare", "queue", f"name={name}")
    properties = json.dumps({"delivery_mode": 2, "headers": {"h": [1, "x"]}, "priority": 1})
    message = ["exchange=amq.default", f"routing_key={name}", "payload=grüße"]

    assert admin("publish", *message, f"properties={properties}") == "Message published\n"
    assert "NOT routed" in admin("publish", *message[:1], f"routing_key={name}-", "payload=x")
    # It looks at messages and puts them back unless told otherwise.
    (seen,) = admin.listed("get", f"queue={name}", "count=5")
    assert (seen["payload"], seen["properties"]) == ("grüße", json.loads(properties))
    (taken,) = admin.listed("get", f"queue={name}", "count=5", "ackmode=ack_requeue_false")
    assert taken["redelivered"] is True
    assert admin.listed("get", f"queue={name}") == []


def test_what_is_refused_is_told(admin: Admin) -> None:
    done = admin.run("declare", "queue", "name=amq.mine")

    assert done.returncode != 0
    assert 'Prefix ["mqtt.", "amq."] forbidden' in done.stdout + done.stderr
