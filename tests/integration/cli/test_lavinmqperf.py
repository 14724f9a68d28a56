"""lavinmqperf as users run it: a process, its options and output, against a running broker."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest

from lavinmq.client import ChannelClosed, Client
from lavinmq.client.blocking import Channel
from tests.support.broker import Broker
from tests.support.lavinmqperf import COMMAND, TIMEOUT_S, until


@pytest.fixture
def channel(broker: Broker) -> Iterator[Channel]:
    with Client(broker.uri) as client:
        yield client.channel()


@pytest.fixture
def queue(broker: Broker) -> Iterator[str]:
    """A queue name of the test's own; the queue is deleted afterwards."""
    name = f"perf-{uuid.uuid4()}"
    yield name
    with Client(broker.uri) as client:
        client.channel().queue_delete(name)


def throughput(
    broker: Broker, queue: str, *options: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `throughput` to its end and check its exit status."""
    command = [*COMMAND, "throughput", "--uri", broker.uri, "-u", queue, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == status, done.stderr
    return done


def ready(channel: Channel, queue: str) -> int:
    return channel.queue_declare(queue, passive=True).message_count


def fill(channel: Channel, queue: str, *bodies: bytes) -> None:
    channel.queue_declare(queue, durable=True)
    for body in bodies:
        channel.basic_publish("", queue, body)
    until(lambda: ready(channel, queue) == len(bodies))


def test_exactly_the_messages_asked_for_are_published(
    broker: Broker, channel: Channel, queue: str
) -> None:
    throughput(broker, queue, "-y", "0", "-x", "3", "-C", "1000")

    assert ready(channel, queue) == 1000


def test_exactly_the_messages_asked_for_are_consumed(
    broker: Broker, channel: Channel, queue: str
) -> None:
    fill(channel, queue, *[b"x"] * 100)

    throughput(broker, queue, "-x", "0", "-y", "2", "-D", "70", "-a", "8")

    until(lambda: ready(channel, queue) == 30)


@pytest.mark.parametrize(
    "options",
    [
        ["-c", "10"],
        ["-c", "1", "-p"],
        ["-t", "7"],
        ["-a", "1"],
        ["-a", "10", "-P", "20"],
        ["-T", "10", "-P", "20"],
        ["-a", "3", "-T", "10"],
        ["-g"],
        ["-g", "-a", "1"],
        ["-x", "3", "-y", "3"],
        ["-s", "0"],
        ["-s", "300000"],
        ["-s", "300000", "--random-bodies"],
        ["-r", "2000", "-R", "2000"],
        ["-l", "-s", "8"],
    ],
    ids=" ".join,
)
def test_all_that_is_published_is_consumed_unharmed(
    options: list[str], broker: Broker, channel: Channel, queue: str
) -> None:
    throughput(broker, queue, "-V", "-C", "200", "-D", "200", *options)

    assert ready(channel, queue) == 0


def test_the_summary_shows_average_rates(broker: Broker, queue: str) -> None:
    done = throughput(broker, queue, "-C", "100", "-D", "100")

    form = r"\nSummary:\nAverage publish rate: \d+ msgs/s\nAverage consume rate: \d+ msgs/s\n"
    assert re.fullmatch(form, done.stdout)


def test_each_second_has_a_line_unless_quiet(broker: Broker, queue: str) -> None:
    loud = throughput(broker, queue, "-z", "1.2", "-r", "100", "-l")
    quiet = throughput(broker, queue, "-z", "1.2", "-r", "100", "-q")

    number = r"\d+\.\d{3}"
    assert re.match(
        r"Publish rate: \d+ msgs/s Consume rate: \d+ msgs/s"
        r" \| Latency \(ms\) min/median/75th/95th/99th: "
        rf"{number}/{number}/{number}/{number}/{number}\n",
        loud.stdout,
    )
    assert "Publish rate" not in quiet.stdout


def test_json_is_all_that_is_printed_when_asked_for(broker: Broker, queue: str) -> None:
    done = throughput(broker, queue, "-C", "100", "-D", "100", "-l", "-j")

    result = json.loads(done.stdout)
    assert result["latency_count"] == 100
    assert 0 < result["latency_min_ms"] <= result["latency_median_ms"] <= result["latency_p99_ms"]


def test_measuring_latency_purges_the_queue_first(
    broker: Broker, channel: Channel, queue: str
) -> None:
    fill(channel, queue, *[b"stale message"] * 50)

    done = throughput(broker, queue, "-C", "10", "-D", "10", "-l", "-j")

    assert json.loads(done.stdout)["latency_count"] == 10
    assert ready(channel, queue) == 0


def test_a_message_that_differs_makes_verification_fail(
    broker: Broker, channel: Channel, queue: str
) -> None:
    fill(channel, queue, b"@ABCDEFGHIJKLMNO", b"@ABCDEFGHIJKLMN?", b"@")

    done = throughput(broker, queue, "-x", "0", "-D", "3", "-V", status=1)

    assert "2 messages differed from what was published, first: wrong byte at 15" in done.stderr


def test_an_existing_queue_with_other_arguments_is_used(
    broker: Broker, channel: Channel, queue: str
) -> None:
    channel.queue_declare(queue, durable=False, arguments={"x-max-length": 100000})

    throughput(broker, queue, "-C", "10", "-D", "10")

    assert ready(channel, queue) == 0


def test_arguments_that_no_queue_can_have_are_told(broker: Broker) -> None:
    """It said that there was no queue of that name."""
    arguments = ("--queue-args", '{"x-max-length": "a"}')

    done = throughput(broker, f"perf-{uuid.uuid4()}", "-z", "3", "-x", "0", *arguments, status=1)

    said = done.stdout + done.stderr
    assert "406 PRECONDITION_FAILED - x-max-length header not" in said
    assert "404" not in said


@pytest.mark.parametrize("count", ["-C", "-D"])
def test_a_refused_declaration_ends_a_run_that_has_no_time(broker: Broker, count: str) -> None:
    """It was tried again for ever."""
    arguments = (count, "10", "--queue-args", '{"x-max-length": "a"}')

    done = throughput(broker, f"perf-{uuid.uuid4()}", *arguments, status=1)

    assert "406 PRECONDITION_FAILED - x-max-length header not" in done.stderr
    assert "2 of 2 clients never got to work" in done.stderr


def test_the_queue_is_durable_and_has_the_arguments_given(
    broker: Broker, channel: Channel, queue: str
) -> None:
    throughput(broker, queue, "-C", "10", "-y", "0", "--queue-args", '{"x-max-length": 10}')

    arguments = {"x-max-length": 10}
    assert channel.queue_declare(queue, durable=True, arguments=arguments).message_count == 10
    with pytest.raises(ChannelClosed, match="406"):
        channel.queue_declare(queue, durable=True)


def test_messages_carry_the_properties_given(broker: Broker, channel: Channel, queue: str) -> None:
    properties = '{"content_type": "text/plain", "headers": {"a": 1}, "priority": 3}'

    throughput(broker, queue, "-y", "0", "-C", "1", "-p", "--properties", properties)

    message = channel.basic_get(queue, no_ack=True)
    assert message is not None
    assert message.delivery_mode == 2
    assert message.content_type == "text/plain"
    assert message.headers == {"a": 1}
    assert message.priority == 3
    assert message.body == b"@ABCDEFGHIJKLMNO"


def test_publishers_rotate_over_the_queues_of_a_pattern(
    broker: Broker, channel: Channel, queue: str
) -> None:
    options = ["--queue-pattern", f"{queue}-%", "--queue-pattern-to", "3"]

    throughput(broker, queue, "-y", "0", "-C", "30", *options)

    counts = [channel.queue_delete(f"{queue}-{number}") for number in (1, 2, 3)]
    assert counts == [10, 10, 10]


def test_consumers_are_spread_over_the_queues_of_a_pattern(
    broker: Broker, channel: Channel, queue: str
) -> None:
    options = ["--queue-pattern", f"{queue}-%", "--queue-pattern-to", "3"]

    throughput(broker, queue, "-y", "3", "-C", "30", "-D", "30", *options)

    counts = [channel.queue_delete(f"{queue}-{number}") for number in (1, 2, 3)]
    assert counts == [0, 0, 0]


def test_consumers_bind_their_queue_to_the_exchange(broker: Broker, queue: str) -> None:
    done = throughput(
        broker, queue, "-e", "amq.topic", "-k", f"{queue}.key", "-C", "50", "-D", "50", "-j"
    )

    assert json.loads(done.stdout)["avg_consume_rate"] > 0


def test_an_empty_queue_name_gives_each_consumer_a_queue_of_its_own(
    broker: Broker, queue: str
) -> None:
    options = ["-e", "amq.fanout", "-y", "2", "-C", "20", "-D", "40"]

    throughput(broker, "", *options)


def test_a_hundred_clients_run_at_once(broker: Broker, channel: Channel, queue: str) -> None:
    throughput(broker, queue, "-x", "50", "-y", "50", "-C", "5000", "-D", "5000")

    assert ready(channel, queue) == 0


def test_a_consumer_comes_back_after_its_queue_was_deleted(
    broker: Broker, channel: Channel, queue: str
) -> None:
    def consumers() -> int:
        with Client(broker.uri) as client:
            try:
                reply = client.channel().queue_declare(queue, passive=True)
            except ChannelClosed:
                return 0
            return reply.consumer_count

    command = [*COMMAND, "throughput", "--uri", broker.uri, "-u", queue, "-x", "0", "-D", "5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: consumers() == 1)
            channel.queue_delete(queue)
            until(lambda: consumers() == 1)
            for _ in range(5):
                channel.basic_publish("", queue, b"x")

            _, errors = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()

    assert process.returncode == 0
    assert "consumer 1: the consumer was cancelled by the broker" in errors


def test_an_interrupt_stops_the_run_and_prints_the_summary(broker: Broker, queue: str) -> None:
    command = [*COMMAND, "throughput", "--uri", broker.uri, "-u", queue, "-r", "100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("Publish rate: ")
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()

    assert process.returncode == 0
    assert "\nSummary:\nAverage publish rate: " in output


def test_a_second_interrupt_aborts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"amqp://127.0.0.1:{silent.getsockname()[1]}"
        command = [*COMMAND, "throughput", "--uri", uri]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                # Once it has connected, it waits for an answer that never comes.
                silent.settimeout(TIMEOUT_S)
                client, _ = silent.accept()

                def has_ended() -> bool:
                    process.send_signal(signal.SIGINT)
                    return process.poll() is not None

                until(has_ended)
                client.close()
                _, errors = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()

    assert (process.returncode, errors) == (1, "Aborting\n")


def test_an_unreachable_broker_is_reported_and_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    uri = f"amqp://127.0.0.1:{port}"

    command = [*COMMAND, "throughput", "--uri", uri, "-y", "0", "-z", "1.5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert done.returncode == 1
    refused = f"publisher 1: Cannot connect to 127.0.0.1:{port}: Connection refused\n"
    assert done.stderr.count(refused) == 2
    assert done.stderr.endswith("1 of 1 clients never got to work\n")
    assert "Average publish rate: 0 msgs/s" in done.stdout


def test_a_port_where_nobody_answers_does_not_make_a_run_longer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [*COMMAND, "throughput", "--uri", f"amqp://127.0.0.1:{server.getsockname()[1]}"]
        started = time.monotonic()
        done = subprocess.run(
            [*command, "-z", "2"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        took_s = time.monotonic() - started

    assert (done.returncode, done.stderr) == (1, "2 of 2 clients never got to work\n")
    assert took_s < 10  # each waited 15 s before


@pytest.mark.parametrize("ending", [["-z", "1"], ["-C", "100"]], ids=" ".join)
def test_messages_for_an_exchange_that_is_not_there_make_a_run_fail(
    broker: Broker, queue: str, ending: list[str]
) -> None:
    done = throughput(broker, queue, "-y", "0", "-e", "nope", *ending, status=1)

    assert "1 of 1 publishers lost messages with their channel: 404 NOT_FOUND" in done.stderr


def test_a_client_needs_one_descriptor(broker: Broker, channel: Channel, queue: str) -> None:
    command = [*COMMAND, "throughput", "--uri", broker.uri, "-u", queue, "-x", "30", "-y", "30"]
    limited = ["prlimit", "--nofile=90:4096", *command, "-C", "300", "-D", "300"]

    done = subprocess.run(limited, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert ready(channel, queue) == 0
