"""lavinmqctl as a process of its own, by the control socket of a running broker.

A test says which requests it needs, and is left out as long as the API does not answer them.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.conftest import BrokerFactory
from tests.support.broker import Broker

pytest.importorskip("lavinmq.http.server")

import lavinmq.http.api  # noqa: F401  # registers the routes
from lavinmq.http.routes import ROUTES

TIMEOUT_S = 30
Run = Callable[..., str]


def needs(*requests: str) -> pytest.MarkDecorator:
    """Leave a test out unless the API answers all of these, given as `GET /api/...`."""
    missing = [each for each in requests if ROUTES.find(*each.split(" ", 1)) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not there yet: {', '.join(missing)}")


def process(broker: Broker, *argv: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run lavinmqctl on the control socket of a broker."""
    return subprocess.run(
        [sys.executable, "-m", "lavinmq.cli.ctl", *argv, "--control-unix-path",
         broker.control_path],
        input=typed, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def runner(broker: Broker, *options: str) -> Run:
    """Runs a command that must succeed and gives what it prints."""

    def run(*argv: str, typed: str = "") -> str:
        done = process(broker, "-q", *options, *argv, typed=typed)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run


@pytest.fixture
def ctl(broker: Broker) -> Run:
    """Runs a command on the shared broker."""
    if not broker.control_path:
        pytest.skip("the broker has no control socket")
    return runner(broker)


@pytest.fixture
def vhost(broker: Broker, ctl: Run) -> Iterator[str]:
    """A virtual host of this test, with a name that has to be encoded."""
    name = f"ctl/{secrets.token_hex(4)} é"
    ctl("add_vhost", name)
    yield name
    ctl("delete_vhost", name)


@pytest.fixture
def inside(broker: Broker, vhost: str) -> Run:
    """Runs a command on that virtual host."""
    return runner(broker, "-p", vhost)


def rows(text: str) -> list[list[str]]:
    """The rows of a list without its header."""
    return [line.split("\t") for line in text.splitlines()[1:]]


@needs("GET /api/vhosts", "PUT /api/vhosts/x", "DELETE /api/vhosts/x")
def test_virtual_hosts_come_and_go(ctl: Run) -> None:
    name = f"ctl-{secrets.token_hex(4)}/a b"

    ctl("add_vhost", name)
    there = ctl("list_vhosts")
    ctl("delete_vhost", name)
    gone = ctl("list_vhosts")

    assert [name] in rows(there)
    assert [name] not in rows(gone)


@needs("DELETE /api/vhosts/x")
def test_an_error_of_the_broker_is_on_standard_error(broker: Broker, ctl: Run) -> None:
    done = process(broker, "delete_vhost", "no such thing")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: 40")


@needs("GET /api/vhosts")
def test_it_talks_tcp_with_a_login(broker: Broker, ctl: Run) -> None:
    def over_tcp(password: str) -> subprocess.CompletedProcess[str]:
        return process(
            broker, "list_vhosts", "-U", f"http://guest:{password}@127.0.0.1:{broker.http_port}"
        )

    assert over_tcp("guest").returncode == 0
    wrong = over_tcp("wrong")
    assert (wrong.returncode, wrong.stderr) == (1, "Error: 401 - Unauthorized\n")


def test_without_a_broker_there_is_a_hint(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    broker.stop()

    done = process(broker, "list_vhosts")

    assert done.returncode == 1
    assert "Is LavinMQ running?" in done.stderr


@needs("GET /api/overview")
def test_wait_ends_when_the_broker_is_there(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True, start=False)
    command = [sys.executable, "-m", "lavinmq.cli.ctl", "wait",
               "--control-unix-path", broker.control_path]  # fmt: skip

    with subprocess.Popen(command) as waiting:
        broker.start()
        assert waiting.wait(TIMEOUT_S) == 0


@needs("GET /api/overview")
def test_status_counts(ctl: Run) -> None:
    status = json.loads(ctl("status", "-f", "json"))

    assert status["Exchanges"] >= 5
    assert status["Version"]


@needs("GET /api/users", "PUT /api/users/x", "GET /api/users/x", "PUT /api/permissions/v/x")
def test_users_and_their_permissions(broker: Broker, ctl: Run, inside: Run, vhost: str) -> None:
    name = f"ctl/{secrets.token_hex(4)}"

    ctl("add_user", name, typed="first\n")
    ctl("set_user_tags", name, "management", "policymaker")
    inside("set_permissions", name, "c.*", "w.*", "r.*")
    ctl("change_password", name, "second")

    assert [name, "management,policymaker"] in rows(ctl("list_users"))
    assert [name, "c.*", "w.*", "r.*"] in rows(inside("list_permissions"))
    assert rows(ctl("list_user_permissions", name)) == [[vhost, "c.*", "w.*", "r.*"]]
    credentials = pika.PlainCredentials(name, "second")
    pika.BlockingConnection(
        pika.ConnectionParameters(broker.host, broker.port, vhost, credentials)
    ).close()
    inside("clear_permissions", name)
    assert rows(ctl("list_user_permissions", name)) == []
    for exchange in ("a/b", "c"):
        inside("set_topic_permissions", name, exchange, "^w", "^r")
    assert rows(inside("list_topic_permissions")) == [
        [name, "a/b", "^w", "^r"], [name, "c", "^w", "^r"]
    ]  # fmt: skip
    inside("clear_topic_permissions", name, "a/b")
    assert rows(ctl("list_user_topic_permissions", name)) == [[vhost, "c", "^w", "^r"]]
    inside("clear_topic_permissions", name)
    assert rows(inside("list_topic_permissions")) == []
    ctl("delete_user", name)
    assert process(broker, "change_password", name, "x").returncode == 1


@needs("PUT /api/queues/v/q", "GET /api/queues/v", "PUT /api/queues/v/q/pause")
def test_queues_with_all_options(inside: Run) -> None:
    inside(
        "create_queue", "a/b", "--durable", "--expires", "3600000", "--max-length=5",
        "--message-ttl", "60000", "--delivery-limit=3", "--reject-on-overflow",
        "--dead-letter-exchange", "amq.fanout", "--dead-letter-routing-key=k",
    )  # fmt: skip
    inside("create_queue", "s", "--stream-queue")
    listed = json.loads(inside("list_queues", "name", "durable", "arguments", "-f", "json"))
    inside("pause_queue", "a/b")
    paused = inside("list_queues", "name", "state")
    inside("resume_queue", "a/b")
    inside("purge_queue", "a/b")
    inside("delete_queue", "a/b")

    by_name = {row["name"]: row for row in listed}
    assert by_name["a/b"] == {
        "name": "a/b", "durable": True,
        "arguments": {"x-expires": 3600000, "x-max-length": 5, "x-message-ttl": 60000,
                      "x-delivery-limit": 3, "x-overflow": "reject-publish",
                      "x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "k"},
    }  # fmt: skip
    assert by_name["s"]["arguments"]["x-queue-type"] == "stream"
    assert ["a/b", "paused"] in rows(paused)
    assert [row[0] for row in rows(inside("list_queues"))] == ["s"]


@needs("PUT /api/exchanges/v/x", "GET /api/exchanges/v", "DELETE /api/exchanges/v/x")
def test_exchanges(inside: Run) -> None:
    inside("create_exchange", "topic", "x/1", "--durable", "--alternate-exchange", "amq.fanout")
    inside("create_exchange", "direct", "late", "--delayed")

    listed = json.loads(inside("list_exchanges", "name", "type", "arguments", "-fjson"))

    by_name = {row["name"]: row for row in listed}
    assert by_name["x/1"]["arguments"] == {"x-alternate-exchange": "amq.fanout"}
    assert "late" in by_name
    inside("delete_exchange", "x/1")
    assert "x/1" not in inside("list_exchanges")


@needs("PUT /api/policies/v/p", "GET /api/policies/v", "PUT /api/operator-policies/v/p",
       "GET /api/parameters", "PUT /api/parameters/c/v/n")  # fmt: skip
def test_policies_and_parameters(inside: Run, vhost: str) -> None:
    inside("set_policy", "p/1", "^q", '{"max-length": 5}', "--priority", "7", "--apply-to=queues")
    inside("set_operator_policy", "o", ".*", '{"expires": 60000}')
    inside("set_parameter", "own", "n/1", '{"a": [1]}')

    assert rows(inside("list_policies")) == [
        [vhost, "p/1", "^q", "queues", "7", '{"max-length": 5}']
    ]
    assert rows(inside("list_operator_policies"))[0][1] == "o"
    assert rows(inside("list_parameters", "own")) == [["own", "n/1", '{"a": [1]}']]
    assert ["own", "n/1", '{"a": [1]}'] in rows(inside("list_parameters"))
    inside("clear_policy", "p/1")
    inside("clear_operator_policy", "o")
    inside("clear_parameter", "own", "n/1")
    assert rows(inside("list_policies")) == rows(inside("list_parameters")) == []


@needs("PUT /api/vhost-limits/v/max-queues", "GET /api/vhost-limits/v")
def test_limits_of_a_vhost(inside: Run, vhost: str) -> None:
    inside("set_vhost_limits", '{"max-queues": 5, "max-connections": 6}')
    there = inside("list_vhost_limits")
    inside("clear_vhost_limits")

    assert rows(there) == [[vhost, "6", "5"]]
    assert rows(inside("list_vhost_limits")) == []


@needs("GET /api/connections", "DELETE /api/connections/x", "GET /api/channels",
       "GET /api/consumers")  # fmt: skip
def test_connections_are_listed_and_closed(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(http=True)
    ctl = runner(broker)
    connection = pika.BlockingConnection(pika.ConnectionParameters(broker.host, broker.port))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_consume("q", lambda *_: None, consumer_tag="mine")

    name = rows(ctl("list_connections", "name"))[0][0]
    properties = ctl("list_connections", "client_properties")
    consumers = rows(ctl("list_consumers"))
    channels = rows(ctl("list_channels"))
    ctl("close_connection", name, "be gone")

    assert '{"product","Pika' in properties
    assert consumers[0][0] == "q"
    assert consumers[0][2] == "mine"
    assert channels[0][2] == "1"
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="be gone"):
        connection.process_data_events(TIMEOUT_S)
    assert ctl("close_all_connections") == "closed_connections\n"


@needs("GET /api/definitions", "POST /api/definitions", "PUT /api/queues/v/q",
       "PUT /api/exchanges/v/x", "PUT /api/policies/v/p")  # fmt: skip
def test_definitions_go_from_broker_to_broker(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    source, target = broker_factory(http=True), broker_factory(http=True)
    ctl = runner(source)
    ctl("add_vhost", "v")
    ctl("create_queue", "q", "--durable", "-p", "v")
    ctl("create_exchange", "direct", "late", "--delayed", "--durable", "-p", "v")
    ctl("set_policy", "p", ".*", '{"max-length": 5}', "-p", "v")
    path = tmp_path / "definitions.json"
    path.write_text(ctl("export_definitions"))

    runner(target)("import_definitions", str(path), "--dry-run")
    assert "v" not in [row[0] for row in rows(runner(target)("list_vhosts"))]
    runner(target)("import_definitions", str(path))

    assert _without_version(runner(target)("export_definitions")) == _without_version(
        path.read_text()
    )


@needs("POST /api/definitions", "GET /api/definitions", "PUT /api/queues/v/q",
       "PUT /api/users/x", "PUT /api/vhost-limits/v/max-queues")  # fmt: skip
def test_definitions_of_a_data_directory_can_be_imported(
    broker_factory: BrokerFactory, tmp_path: Path
) -> None:
    source, target = broker_factory(http=True), broker_factory(http=True)
    ctl = runner(source)
    ctl("add_vhost", "v")
    ctl("create_queue", "q", "--durable", "-p", "v")
    ctl("create_exchange", "topic", "x", "--durable", "-p", "v")
    ctl("create_exchange", "direct", "late", "--delayed", "--durable", "-p", "v")
    ctl("add_user", "bo", "pw")
    ctl("set_permissions", "bo", "a", "b", "c", "-p", "v")
    ctl("set_vhost_limits", '{"max-queues": 5}', "-p", "v")
    path = tmp_path / "definitions.json"
    path.write_text(ctl("definitions", str(source.data_dir)))

    runner(target)("import_definitions", str(path))

    imported = runner(target)
    assert ["bo", "a", "b", "c"] in rows(imported("list_permissions", "-p", "v"))
    assert ["q", "0"] in rows(imported("list_queues", "-p", "v"))
    exchanges = dict(rows(imported("list_exchanges", "-p", "v")))
    assert exchanges["x"] == "topic"
    assert "late" in exchanges
    assert rows(imported("list_vhost_limits", "-p", "v")) == [["v", "", "5"]]


@needs("GET /api/health/checks/alarms", "GET /api/health/checks/port-listener/1")
def test_health_checks(broker: Broker, ctl: Run) -> None:
    for check in ("check_alarms", "check_local_alarms", "check_virtual_hosts", "check_running"):
        assert ctl(check).startswith("status: ok\n")
    assert ctl("check_port_listener", str(broker.port)).startswith("status: ok\n")

    failed = process(broker, "check_port_listener", "1")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("Error: The check has failed: ")


def _without_version(text: str) -> dict[str, Any]:
    """An export whose lists are in order, so that two can be compared."""
    content: dict[str, Any] = json.loads(text)
    content.pop("lavinmq_version", None)
    return {key: sorted(rows, key=json.dumps) for key, rows in content.items()}
