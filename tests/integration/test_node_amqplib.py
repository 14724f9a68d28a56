"""Node: amqplib by scenarios and over a restart; heartbeats for the strict amqp-client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.integration.client_program import Command, environment, program, run
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

DEADLINE_S = 50.0
RECOVERY_TIMEOUT_S = 40.0
NODE_DIRECTORY = Path(__file__).with_name("node")


@pytest.fixture(scope="module")
def node() -> Command:
    """The command that runs a scenario. Fails when node, or the library, is not installed."""
    if not (NODE_DIRECTORY / "node_modules" / "amqplib").is_dir():
        pytest.fail(f"run `npm ci` in {NODE_DIRECTORY}", pytrace=False)
    return [program("node"), NODE_DIRECTORY / "scenarios.js"]


def test_a_thousand_messages_arrive_in_order(node: Command, broker: Broker) -> None:
    outcome = run(node, broker, "publishAndConsume")

    assert outcome == {"bodies": [str(n) for n in range(1000)], "redelivered": False}


def test_a_confirm_channel_hears_of_every_publish(node: Command, broker: Broker) -> None:
    assert run(node, broker, "confirms") == {"confirmed": 500, "messageCount": 500}


def test_a_publish_that_the_queue_refuses_is_nacked(node: Command, broker: Broker) -> None:
    assert run(node, broker, "nackedPublish") == {"first": True, "second": False}


def test_an_unroutable_message_is_returned_before_its_confirm(
    node: Command, broker: Broker
) -> None:
    returned = {
        "replyCode": 312,
        "replyText": "NO_ROUTE",
        "exchange": "amq.direct",
        "routingKey": "no such key",
        "messageId": "m1",
        "body": "back",
    }

    assert run(node, broker, "returned") == {"events": [returned, "confirmed"]}


def test_headers_and_properties_arrive_as_they_were_sent(node: Command, broker: Broker) -> None:
    outcome = run(node, broker, "headers")

    assert outcome["headers"] == {
        "text": "ünïcode",
        "whole": 42,
        "negative": -7,
        "large": 2**40,
        "fraction": 1.5,
        "yes": True,
        "nothing": None,
        "list": [1, "two", {"three": 3}],
        "nested": {"a": {"b": "c"}},
        "bytes": [0, 255],
    }
    assert outcome["properties"] == {
        "contentType": "application/json",
        "contentEncoding": "utf-8",
        "deliveryMode": 2,
        "priority": 5,
        "correlationId": "c1",
        "replyTo": "r1",
        "expiration": "60000",
        "messageId": "m1",
        "timestamp": 1700000000,
        "type": "t1",
        "appId": "a1",
    }


def test_a_headers_exchange_matches_all_or_any(
    node: Command, broker: Broker, unique: UniqueName
) -> None:
    outcome = run(node, broker, "headersExchange", unique("node-headers"))

    assert outcome == {"all": ["both", "end"], "any": ["both", "one", "end"]}


def test_a_nacked_message_comes_again_and_a_dropped_one_does_not(
    node: Command, broker: Broker
) -> None:
    outcome = run(node, broker, "ackAndNack")

    seen = [["acked", False], ["again", False], ["again", True], ["dropped", False]]
    assert outcome == {"seen": seen, "left": 0}


def test_get_answers_for_empty_and_filled_queues(node: Command, broker: Broker) -> None:
    assert run(node, broker, "get") == {"empty": False, "body": "1", "left": 1}


def test_large_and_empty_messages_arrive_whole(node: Command, broker: Broker) -> None:
    outcome = run(node, broker, "largeMessage")

    assert outcome == {"same": True, "lengths": [8 * 1024 * 1024 + 1, 0]}


def test_a_channel_error_leaves_other_channels_alone(node: Command, broker: Broker) -> None:
    outcome = run(node, broker, "channelError")

    events = [["error", 404], ["close"]]
    assert outcome == {"failure": 404, "events": events, "bodies": ["fine"]}


def test_a_request_is_answered_by_direct_reply(node: Command, broker: Broker) -> None:
    outcome = run(node, broker, "directReplyTo")

    assert outcome == {"body": "question answered", "correlationId": "c1"}


def test_a_recovering_client_is_back_after_a_restart(node: Command, own_broker: Broker) -> None:
    command = [node[0], "reconnect.js", str(own_broker.port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=NODE_DIRECTORY, env=environment(), stdout=pipe, stderr=pipe, text=True
    ) as client:
        assert client.stdout is not None
        try:
            first = client.stdout.readline()
            assert first, f"the client ended: {client.communicate()[1]}"
            own_broker.restart()
            output, errors = client.communicate(timeout=RECOVERY_TIMEOUT_S)
        finally:
            client.kill()

    events = [json.loads(line) for line in [first, *output.splitlines()]]
    assert client.returncode == 0, f"{events}\n{errors}"
    assert [event["event"] for event in events] == ["ready", "disconnected", "stored", "received"]
    assert events[2]["bodies"] == [str(number) for number in range(50)]
    assert events[3]["body"] == "after"


def test_a_strict_client_keeps_its_connections(broker: Broker) -> None:
    """amqp-client gives up when nothing has come for one interval, here a second."""
    strict = [program("node"), NODE_DIRECTORY / "heartbeats.js", str(broker.port), "40", "5"]

    done = subprocess.run(
        strict, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment()
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"open": 40, "lost": 0}
