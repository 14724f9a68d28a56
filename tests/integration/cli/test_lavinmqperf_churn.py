"""The churn scenarios of lavinmqperf as users run them, against a running broker."""

from __future__ import annotations

import contextlib
import json
import re
import socket

import pytest

from lavinmq.cli.perf import __main__ as program
from lavinmq.client import ChannelClosed, Client, ReturnedError
from tests.support.broker import Broker
from tests.support.lavinmqperf import TIMEOUT_S, perf, running, sockets, until

NAMES = {
    "bind-churn": ["bind non-durable queue", "bind durable queue"],
    "queue-churn": ["create/delete transient queue", "create/delete durable queue"],
    "connection-churn": ["open/close connection with channel"],
    "channel-churn": ["open/close channel"],
    "consumer-churn": ["consume/cancel"],
}
NUMBERS = r" +[\d.]+[ kM] \( *[\d.]+(ns|µs|ms|s)\) \(± *\d+%\)"


def is_measuring(broker: Broker) -> bool:
    """Tell whether a client is connected, besides the first connection of a run."""
    return sum(one.remote_port == broker.port for one in sockets()) >= 2


@pytest.mark.parametrize("scenario", NAMES)
def test_every_operation_gets_a_line(scenario: str, broker: Broker) -> None:
    done = perf(scenario, "--uri", broker.uri, "-z", "0.2")

    assert done.errors == ""
    lines = done.output.splitlines()
    assert len(lines) == len(NAMES[scenario])
    for name, line in zip(NAMES[scenario], lines, strict=True):
        compared = r" (fastest|[\d.]+x slower)" if len(lines) > 1 else ""
        assert re.fullmatch(re.escape(name) + NUMBERS + compared, line)


@pytest.mark.parametrize("scenario", NAMES)
def test_several_clients_measure_at_once_and_give_json(scenario: str, broker: Broker) -> None:
    done = perf(scenario, "--uri", broker.uri, "-z", "0.2", "-x", "5", "--json")

    result = json.loads(done.output)
    assert (result["scenario"], result["clients"]) == (scenario, 5)
    assert [one["name"] for one in result["operations"]] == NAMES[scenario]
    assert all(one["iterations"] > 0 for one in result["operations"])
    assert all(one["iterations_per_second"] > 0 for one in result["operations"])


def test_no_durable_queue_is_left_behind(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")

    assert program.main(["bind-churn", "--uri", broker.uri, "-z", "0.1", "-x", "2"]) == 0

    with Client(broker.uri) as client:
        for number in (0, 1):
            queue = f"lavinmqperf-bind-churn-known-{number}-durable"
            with pytest.raises(ChannelClosed, match="404"):
                client.channel().queue_declare(queue, passive=True)


def test_each_iteration_binds_with_a_key_of_its_own(own_broker: Broker) -> None:
    with Client(own_broker.uri) as client:
        channel = client.channel()
        channel.confirm_select()

        def is_bound(key: str) -> bool:
            channel.returned.clear()
            receipt = channel.basic_publish("amq.direct", key, b"", mandatory=True)
            with contextlib.suppress(ReturnedError):
                channel.wait_for_confirm(receipt, TIMEOUT_S)
            return not channel.returned

        with running("bind-churn", "--uri", own_broker.uri, "-z", "20") as process:
            until(lambda: is_bound("00000001"))
            assert is_bound("00000000")
            process.interrupt()
            done = process.finish()

    assert (done.status, done.errors) == (0, "")


def test_an_interrupt_ends_the_run_well(own_broker: Broker) -> None:
    with running("bind-churn", "--uri", own_broker.uri, "-z", "20") as process:
        until(lambda: is_measuring(own_broker))
        process.interrupt()
        process.wait()
        done = process.finish()

    assert (done.status, done.errors) == (0, "")


def test_a_second_interrupt_aborts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        with running("queue-churn", "--uri", uri) as process:
            silent.settimeout(TIMEOUT_S)
            client, _ = silent.accept()
            process.abort()
            done = process.finish()
            client.close()

    assert (done.status, done.errors) == (1, "Aborting\n")


@pytest.mark.parametrize("scenario", ["bind-churn", "connection-churn"])
def test_a_broker_that_goes_away_ends_the_run(scenario: str, own_broker: Broker) -> None:
    with running(scenario, "--uri", own_broker.uri, "-z", "20", "-x", "2") as process:
        until(lambda: is_measuring(own_broker))
        own_broker.kill()
        process.wait()
        done = process.finish()

    assert done.status == 1
    assert "Error: " in done.errors
    assert "Traceback" not in done.errors


def test_wrong_credentials_are_reported(broker: Broker) -> None:
    uri = broker.uri.replace("guest:guest", "guest:wrong")

    done = perf("channel-churn", "--uri", uri, status=1)

    assert "Error: 403 ACCESS_REFUSED" in done.errors
