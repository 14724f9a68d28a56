"""`load_definitions`: a file imported at the start, before anybody can connect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError

from tests.conftest import BrokerFactory
from tests.support.api import Api
from tests.support.broker import Broker, BrokerError
from tests.support.waiting import wait_for

GUEST_HASH = "+pHuxkR9fCyrrwXjOD4BP4XbzO3l8LJr8YkThMgJ0yVHFRE+"
DIGEST = "load_definitions.sha256"

DOCUMENT: dict[str, Any] = {
    "users": [{"name": "boss", "password_hash": GUEST_HASH, "tags": ["administrator"]}],
    "vhosts": [{"name": "v"}],
    "permissions": [{"user": "boss", "vhost": "v", "configure": ".*", "read": ".*", "write": ".*"}],
    "queues": [{"name": "q", "vhost": "v", "durable": True, "arguments": {"x-max-length": 3}}],
    "policies": [{"name": "p", "vhost": "v", "pattern": "x", "definition": {"max-length": 1}}],
    "parameters": [{"name": "n", "vhost": "v", "component": "own", "value": 1}],
}


class Start:
    """A broker that imports a file which tests write."""

    def __init__(self, make: BrokerFactory, directory: Path) -> None:
        self.file = directory / "definitions.json"
        self.config = directory / "lavinmq.ini"
        self.configure()
        self.broker: Broker = make(["-c", str(self.config)], http=True, start=False)

    def configure(self, more: str = "") -> None:
        self.config.write_text(f"[main]\nload_definitions = {self.file}\n{more}")

    def started(self, document: object) -> Api:
        self.file.write_text(document if isinstance(document, str) else json.dumps(document))
        self.broker.restart()
        return Api(self.broker, "boss", "guest")


@pytest.fixture
def start(broker_factory: BrokerFactory, tmp_path: Path) -> Start:
    return Start(broker_factory, tmp_path)


def test_a_new_data_directory_gets_what_is_in_the_file_and_nothing_else(start: Start) -> None:
    api = start.started(DOCUMENT)

    exported = api.get("/api/definitions")
    assert [user["name"] for user in exported["users"]] == ["boss"]
    assert [vhost["name"] for vhost in exported["vhosts"]] == ["v"]
    assert [queue["name"] for queue in exported["queues"]] == ["q"]
    assert exported["permissions"] == DOCUMENT["permissions"]
    with pytest.raises(AMQPError):
        pika.BlockingConnection(pika.URLParameters(start.broker.uri))
    login = pika.PlainCredentials("boss", "guest")
    address = (start.broker.host, start.broker.port, "v", login)
    with pika.BlockingConnection(pika.ConnectionParameters(*address)) as connection:
        connection.channel().queue_declare("q", passive=True)


def test_what_is_there_stays_and_what_is_missing_comes_back(start: Start) -> None:
    api = start.started(DOCUMENT)
    api("PUT", "/api/users/boss", {"tags": "administrator,monitoring"})
    api("PUT", "/api/permissions/v/boss", {"configure": "a", "read": "b", "write": "c"})
    api("PUT", "/api/policies/v/p", {"pattern": "y", "definition": {}})
    api("PUT", "/api/parameters/own/v/n", {"value": 2})
    api("PUT", "/api/vhost-limits/v/max-queues", {"value": 7})
    changed = DOCUMENT | {
        "queues": [{"name": "q", "vhost": "v", "durable": True}, {"name": "r", "vhost": "v"}],
        "parameters": [
            *DOCUMENT["parameters"],
            {"vhost": "v", "component": "vhost-limits", "name": "limits",
             "value": {"max-queues": 1}},
        ],
    }  # fmt: skip

    api = start.started(changed)

    exported = api.get("/api/definitions")
    assert exported["users"][0]["tags"] == ["administrator", "monitoring"]
    assert exported["permissions"][0]["configure"] == "a"
    assert exported["policies"][0]["pattern"] == "y"
    values = {row["component"]: row["value"] for row in exported["parameters"]}
    assert values == {"own": 2, "vhost-limits": {"max-queues": 7}}
    arguments = {row["name"]: row["arguments"] for row in exported["queues"]}
    assert arguments == {"q": {"x-max-length": 3}, "r": {}}
    assert "queues[0] 'q' is left out: exists with other properties" in start.broker.log_text()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "No such file"),
        ("nojson", "Malformed JSON"),
        ("", "Malformed JSON"),
        ('{"users": []\n "queues": []}', "Malformed JSON at line 2, column 2"),
        ('{"queues": [{}]}', "queues[0]: field 'name' is required"),
        ('{"users": [{"name": "u", "password_hash": "x"}]}', "Invalid password hash"),
    ],
)
def test_a_bad_file_stops_the_start_and_leaves_no_trace(
    start: Start, content: str | None, reason: str
) -> None:
    if content is not None:
        start.file.write_text(content)

    with pytest.raises(BrokerError, match="ended with exit code 1"):
        start.broker.start()

    assert f"Cannot start: {start.file}: " in start.broker.log_text()
    assert reason in start.broker.log_text()
    assert not (start.broker.data_dir / "users.json").exists()
    start.started(DOCUMENT).get("/api/whoami")


def test_what_is_left_out_of_a_file_and_what_has_no_effect_is_in_the_log(start: Start) -> None:
    session = "mqtt-subscription-xqos1"
    start.started(
        DOCUMENT | {
            "queus": [{"name": "r"}],
            "queues": [{"name": session, "vhost": "v", "durable": True}],
            "parameters": [{"name": "s", "vhost": "v", "component": "shovel",
                            "value": {"dest-protocol": "amqp10"}}],
        }
    )  # fmt: skip

    log = start.broker.log_text()
    assert f"queues[0] '{session}' is left out: RabbitMQ names sessions of MQTT so" in log
    assert "queus: unknown section, nothing of it is imported; did you mean 'queues'?" in log
    assert "parameters[0] 's': it will not run, AMQP 1.0 is not spoken: dest-protocol" in log


def test_an_unchanged_file_is_skipped_if_so_configured(start: Start) -> None:
    start.configure("load_definitions_skip_if_unchanged = true\n")
    api = start.started(DOCUMENT)
    digest = start.broker.data_dir / DIGEST
    wait_for(digest.exists, "the digest is not kept")
    api("DELETE", "/api/policies/v/p")

    api = start.started(DOCUMENT)
    assert api.get("/api/policies") == []
    assert "are unchanged: not imported" in start.broker.log_text()

    api = start.started(DOCUMENT | {"more": 1})
    assert [policy["name"] for policy in api.get("/api/policies")] == ["p"]


def test_without_that_setting_a_file_is_imported_at_each_start(start: Start) -> None:
    api = start.started(DOCUMENT)
    wait_for((start.broker.data_dir / DIGEST).exists, "the digest is not kept")
    api("DELETE", "/api/policies/v/p")

    assert [policy["name"] for policy in start.started(DOCUMENT).get("/api/policies")] == ["p"]
