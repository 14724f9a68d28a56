"""`lavinmqperf mqtt` as users run it, against a running broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from tests.support.broker import Broker
from tests.support.lavinmqperf import perf, running
from tests.support.mqtt_peer import Peer


@pytest.fixture(scope="module")
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("perf") / "data", http=True, mqtt=True)
    broker.start()
    yield broker
    broker.stop()


def uri(broker: Broker) -> str:
    return f"mqtt://127.0.0.1:{broker.mqtt_port}"


@pytest.mark.parametrize("qos", ["0", "1"])
def test_all_that_is_published_is_consumed(mqtt: Broker, qos: str) -> None:
    more = ["-c", "50"] if qos == "1" else ["-r", "5000"]
    done = perf(
        "mqtt", "throughput", "-u", uri(mqtt), "-t", f"t-{uuid.uuid4()}", "--qos", qos, "-x", "2",
        "-y", "2", "-C", "2000", "-D", "4000", "-s", "40", "-V", "-l", "-j",
        "--clean-session", *more,
    )  # fmt: skip

    found = json.loads(done.output)
    assert (found["total_published"], found["total_consumed"]) == (2000, 4000)
    assert found["latency_count"] == 4000
    assert {"elapsed_seconds", "avg_pub_rate", "avg_consume_rate"} <= set(found)


def test_sessions_that_are_not_clean_go_on(mqtt: Broker) -> None:
    topic = f"t-{uuid.uuid4()}"
    options = [
        "mqtt",
        "throughput",
        "--uri",
        uri(mqtt),
        "-t",
        topic,
        "--qos",
        "1",
        "-q",
        "-c",
        "20",
    ]
    perf(*options, "-x", "0", "-z", "0.2")

    perf(*options, "-y", "0", "-C", "100", "--random-bodies")
    done = perf(*options, "-x", "0", "-D", "100")

    assert "Average consume rate" in done.output


def test_retained_messages_stay(mqtt: Broker) -> None:
    topic = f"t-{uuid.uuid4()}"
    perf("mqtt", "throughput", "-u", uri(mqtt), "-t", topic, "-y", "0", "-C", "1", "--retain")

    with Peer(mqtt.mqtt_port) as peer:
        peer.connect(topic)
        peer.subscribe((topic, 0))
        assert peer.message().retain


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-x", "0", "-y", "0"], "nothing to do"),
        (["--qos", "2"], "--qos is 0 or 1"),
        (["-c", "0"], "--confirm must be in"),
        (["-l", "-s", "4"], "--measure-latency needs"),
        (["-u", "amqp://x"], "invalid URI"),
        (["-u", "mqtts://x?verify=some"], "verify is none or peer"),
        (["-t", "a/#"], "no topic"),
    ],
)
def test_a_senseless_command_line_is_refused(options: list[str], text: str) -> None:
    assert text in perf("mqtt", "throughput", *options, status=1).errors


def test_who_may_not_log_in_is_told(mqtt: Broker) -> None:
    address = f"mqtt://guest:wrong@127.0.0.1:{mqtt.mqtt_port}"

    done = perf("mqtt", "throughput", "-u", address, "-z", "0.5", status=1)

    assert "not authorised" in done.errors


def test_connections_are_held(mqtt: Broker) -> None:
    command = ["mqtt", "connection-count", "-u", uri(mqtt), "-x", "20", "-y", "2"]
    with running(*command, "--clean-session", "-k", "60:3:10") as process:
        text = process.read_until("connections, ")
        process.enter()
        text = process.read_until("40 connections")
        done = process.finish()

    assert "40 connections, 80 subscriptions" in text
    assert done.status == 0
