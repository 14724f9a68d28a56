"""`lavinmqperf queue-count` and `connection-count` as users run them, against a running broker."""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Iterator

import pytest

from lavinmq.client import ChannelClosed, Client
from lavinmq.client.blocking import Channel
from tests.conftest import BrokerFactory
from tests.support.broker import Broker
from tests.support.lavinmqperf import perf, running, sockets, until

PROMPT = "Press Enter"
LOCKED, NOT_FOUND, PRECONDITION_FAILED = 405, 404, 406


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.uri) as client:
        yield client


@pytest.fixture
def queue() -> str:
    return f"count-{uuid.uuid4()}"


def refusal(client: Client, queue: str, **options: bool) -> int:
    """Return the reply code of a declaration, 0 if it went well."""
    channel = client.channel()
    try:
        channel.queue_declare(queue, **options)
    except ChannelClosed as error:
        return error.code
    channel.close()
    return 0


def consumers(client: Client, queue: str) -> int:
    channel = client.channel()
    reply = channel.queue_declare(queue, passive=True)
    channel.close()
    return reply.consumer_count


def prefix_of(output: str, count: int) -> str:
    """Return what the names of the queues begin with; there are to be `count` of them."""
    match = re.search(r"^(\d+) queues (\S+-)1\.\.(\d+), own memory \d+\.\d MiB$", output, re.M)
    assert match, output
    assert (match[1], match[3]) == (str(count), str(count))
    return match[2]


def timers(port: int) -> list[str]:
    """Return the timers of the connections to this port, as their clients' sockets have them."""
    return [one.timer for one in sockets() if one.remote_port == port]


@pytest.mark.parametrize("options", [[], ["-n"]], ids=["waiting", "no-wait"])
def test_durable_queues_are_declared_with_arguments_and_stay(
    options: list[str], broker: Broker, client: Client
) -> None:
    arguments = ["-q", "25", "-D", "--arguments", '{"x-expires": 60000}']

    done = perf("queue-count", "--uri", broker.uri, *arguments, *options)

    name = prefix_of(done.output, 25)
    assert re.match(r"\.\.\. \d+ ms\n", done.output)
    assert refusal(client, f"{name}26", passive=True) == NOT_FOUND
    assert refusal(client, f"{name}1", durable=True) == PRECONDITION_FAILED  # x-expires
    channel = client.channel()
    for number in range(1, 26):
        channel.queue_declare(f"{name}{number}", durable=True, arguments={"x-expires": 60000})
        channel.queue_delete(f"{name}{number}")


@pytest.mark.parametrize("options", [[], ["-n"]], ids=["waiting", "no-wait"])
def test_exclusive_queues_grow_with_each_enter_and_go_with_the_process(
    options: list[str], broker: Broker, client: Client
) -> None:
    with running("queue-count", "--uri", broker.uri, "-q", "10", *options) as process:
        prefix_of(process.read_until(PROMPT), 10)
        process.enter()
        name = prefix_of(process.read_until(PROMPT), 20)
        while_open = [refusal(client, f"{name}{number}", passive=True) for number in (1, 20)]
        done = process.finish()

    assert (done.status, done.errors) == (0, "")
    assert while_open == [LOCKED, LOCKED]
    until(lambda: refusal(client, f"{name}20", passive=True) == NOT_FOUND)


@pytest.mark.parametrize("options", [[], ["-n"]], ids=["waiting", "no-wait"])
def test_a_refused_declaration_is_not_counted(options: list[str], broker: Broker) -> None:
    arguments = ["--arguments", '{"x-expires": "soon"}']

    done = perf("queue-count", "--uri", broker.uri, *arguments, *options, status=1)

    assert "Error: 406 PRECONDITION_FAILED" in done.errors
    prefix_of(done.output, 0)


@pytest.mark.parametrize("scenario", ["queue-count", "connection-count"])
def test_an_interrupt_at_the_prompt_ends_the_run_well(scenario: str, broker: Broker) -> None:
    with running(scenario, "--uri", broker.uri) as process:
        process.read_until(PROMPT)
        process.interrupt()
        process.wait()
        done = process.finish()

    assert (done.status, done.errors) == (0, "")


@pytest.mark.parametrize("scenario", ["queue-count", "connection-count"])
def test_an_unreachable_broker_is_reported(scenario: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    done = perf(scenario, "--uri", f"amqp://127.0.0.1:{port}", status=1)

    assert f"Error: Cannot connect to 127.0.0.1:{port}: Connection refused" in done.errors


def test_connections_have_their_channels_and_consumers(
    broker: Broker, client: Client, queue: str
) -> None:
    arguments = ["-x", "110", "-c", "2", "-C", "3", "-u", queue]
    with running("connection-count", "--uri", broker.uri, *arguments) as process:
        first = process.read_until(PROMPT)
        first_consumers = consumers(client, queue)
        process.enter()
        second = process.read_until(PROMPT)
        second_consumers = consumers(client, queue)
        done = process.finish()

    assert (done.status, done.errors) == (0, "")
    assert re.match(
        r"\.{10} \d+ ms\n\. \d+ ms\n"
        r"110 connections, 220 channels, 660 consumers, own memory \d+\.\d MiB\n",
        first,
    )
    assert "\n220 connections, 440 channels, 1320 consumers, " in second
    assert (first_consumers, second_consumers) == (660, 1320)
    # Auto-delete: it goes with the last consumer.
    assert refusal(client, queue, passive=True) == NOT_FOUND


def test_an_existing_queue_is_consumed_as_it_is_and_deliveries_do_no_harm(
    broker: Broker, client: Client, queue: str
) -> None:
    channel = client.channel()
    channel.queue_declare(queue, durable=True)
    for _ in range(100):
        channel.basic_publish("", queue, b"x" * 10_000)

    arguments = ["-x", "3", "-C", "1", "-u", queue]
    with running("connection-count", "--uri", broker.uri, *arguments) as process:
        process.read_until(PROMPT)
        until(lambda: ready(channel, queue) == 0)
        process.enter()
        output = process.read_until(PROMPT)
        done = process.finish()

    assert (done.status, done.errors) == (0, "")
    assert "\n6 connections, 6 channels, 6 consumers, own memory" in output
    channel.queue_delete(queue)


def ready(channel: Channel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).message_count


def test_connections_are_spread_over_the_loopback_network(broker_factory: BrokerFactory) -> None:
    broker = broker_factory(["-b", "0.0.0.0"])

    arguments = ["-x", "20", "-l", "-k", "100:3:5"]
    with running("connection-count", "--uri", broker.uri, *arguments) as process:
        process.read_until(PROMPT)
        # The system lists sockets piece by piece while others come and go: one may show up twice
        # or not at all, and one with data on its way shows that timer instead of its own.
        until(lambda: timers(broker.port) == ["02"] * 20)
        accepted = {one for one in sockets() if one.local_port == broker.port}

    assert all(one.local.startswith("127.0.") for one in accepted)
    assert len({one.local for one in accepted}) > 10


def test_connections_the_broker_closed_are_counted_as_lost(own_broker: Broker) -> None:
    with running("connection-count", "--uri", own_broker.uri, "-x", "5") as process:
        process.read_until(PROMPT)
        own_broker.kill()
        process.enter()
        done = process.finish()

    assert done.status == 1
    assert "Error: [Errno 111] Connection refused" in done.errors
    assert "\n0 connections, 0 channels, 0 consumers, 5 lost, own memory" in done.output


def test_more_channels_than_the_broker_allows_are_refused_in_words(broker: Broker) -> None:
    done = perf("connection-count", "--uri", broker.uri, "-c", "60000", status=1)

    assert re.search(r"Error: the broker allows \d+ channels per connection", done.errors)
