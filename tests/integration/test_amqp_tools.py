"""rabbitmq-c's command line tools: publish, consume, get, declare and delete from a shell."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import UnroutableError

from tests.integration.client_program import environment, program
from tests.integration.conftest import UniqueName
from tests.integration.pika_actions import get, get_all, publish, ready_count, settle
from tests.support.broker import Broker
from tests.support.waiting import wait_for

TOOL_TIMEOUT_S = 25.0
FAILED, NOTHING_THERE = 1, 2


class Shell:
    """Runs the tools against one broker."""

    def __init__(self, broker: Broker) -> None:
        self._uri = broker.uri

    def command(self, tool: str, *arguments: str, uri: str = "") -> list[str]:
        """Return the command line of a tool with its options in front."""
        return [program(tool), "-u", uri or self._uri, *arguments]

    def run(
        self, tool: str, *arguments: str, send: bytes = b"", uri: str = ""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a tool to its end with `send` on its standard input."""
        command = self.command(tool, *arguments, uri=uri)
        return subprocess.run(
            command,
            env=environment(),
            input=send,
            capture_output=True,
            timeout=TOOL_TIMEOUT_S,
            check=False,
        )

    def output(self, tool: str, *arguments: str, send: bytes = b"") -> bytes:
        """Return what a tool prints. Raises AssertionError when it fails or complains."""
        done = self.run(tool, *arguments, send=send)
        assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
        return done.stdout


@pytest.fixture
def shell(broker: Broker) -> Shell:
    """The tools, pointed at the shared broker."""
    return Shell(broker)


@pytest.fixture
def shared_queue(channel: BlockingChannel, unique: UniqueName) -> Iterator[str]:
    """Name of an empty queue that other connections may use."""
    name = unique("tools")
    channel.queue_declare(name, durable=True)
    yield name
    channel.queue_delete(name)


def test_a_thousand_messages_are_consumed_in_order(
    shell: Shell, channel: BlockingChannel, shared_queue: str
) -> None:
    lines = b"".join(b"%d\n" % number for number in range(1000))

    shell.output("amqp-publish", "-r", shared_queue, "-l", send=lines)
    consumed = shell.output("amqp-consume", "-q", shared_queue, "-c", "1000", "-p", "10", "cat")

    assert consumed == lines
    assert ready_count(channel, shared_queue) == 0


def test_a_message_whose_command_fails_is_not_acked(
    shell: Shell, channel: BlockingChannel, shared_queue: str
) -> None:
    publish(channel, shared_queue, ["1", "2"])
    settle(channel)

    shell.run("amqp-consume", "-q", shared_queue, "-c", "1", "-p", "1", "false")
    # The tool says no goodbye: the message is back when the broker has noticed its end.
    wait_for(lambda: ready_count(channel, shared_queue) == 2, "both are in the queue again")
    messages = [get(channel, shared_queue) for _ in range(2)]

    found = [(message.body, message.redelivered) for message in messages if message]
    assert found == [(b"1", True), (b"2", False)]


def test_get_takes_one_message_and_tells_when_there_is_none(
    shell: Shell, channel: BlockingChannel, shared_queue: str
) -> None:
    publish(channel, shared_queue, ["1", "2"])
    settle(channel)

    bodies = [shell.output("amqp-get", "-q", shared_queue) for _ in range(2)]
    empty = shell.run("amqp-get", "-q", shared_queue)

    assert bodies == [b"1", b"2"]
    assert (empty.returncode, empty.stdout) == (NOTHING_THERE, b"")


def test_a_published_message_has_its_properties(
    shell: Shell, channel: BlockingChannel, shared_queue: str
) -> None:
    options = ["-p", "-C", "text/plain", "-E", "utf-8", "-t", "r1", "-H", "one: 1", "-H", "two: ü"]

    shell.output("amqp-publish", "-r", shared_queue, *options, "-b", "body")

    message = get(channel, shared_queue)
    assert message is not None
    assert message.body == b"body"
    assert message.properties.headers == {"one": "1", "two": "ü"}
    assert message.properties.delivery_mode == pika.DeliveryMode.Persistent.value
    assert message.properties.content_type == "text/plain"
    assert message.properties.content_encoding == "utf-8"
    assert message.properties.reply_to == "r1"


@pytest.mark.parametrize("size", [0, 131_064, 131_065, 1024 * 1024])
def test_a_body_arrives_as_it_was_sent(shell: Shell, shared_queue: str, size: int) -> None:
    body = bytes(number % 251 for number in range(size))

    shell.output("amqp-publish", "-r", shared_queue, send=body)

    assert shell.output("amqp-get", "-q", shared_queue) == body


def test_queues_are_declared_and_deleted(
    shell: Shell, channel: BlockingChannel, unique: UniqueName
) -> None:
    queue = unique("tools")

    declared = shell.output("amqp-declare-queue", "-q", queue, "-d").decode().strip()
    publish(channel, queue, ["1", "2"])
    settle(channel)
    refused = shell.run("amqp-delete-queue", "-q", queue, "--if-empty")
    differs = shell.run("amqp-declare-queue", "-q", queue)
    deleted = shell.output("amqp-delete-queue", "-q", queue).decode().strip()

    assert declared == queue
    assert (refused.returncode, differs.returncode) == (FAILED, FAILED)
    assert b"PRECONDITION_FAILED" in refused.stderr
    assert b"PRECONDITION_FAILED" in differs.stderr
    assert deleted == "2"
    assert b"NOT_FOUND" in shell.run("amqp-get", "-q", queue).stderr


def test_the_broker_names_a_queue_without_a_name(shell: Shell) -> None:
    name = shell.output("amqp-declare-queue", "-q", "").decode().strip()

    deleted = shell.output("amqp-delete-queue", "-q", name).decode().strip()

    assert name.startswith("amq.gen-")
    assert deleted == "0"


def test_a_consumer_binds_an_exclusive_queue_that_goes_with_it(
    shell: Shell, channel: BlockingChannel, unique: UniqueName, tmp_path: Path
) -> None:
    queue, key = unique("tools"), unique("key")
    channel.confirm_delivery()
    options = ["-q", queue, "-x", "-e", "amq.topic", "-r", f"{key}.#", "-c", "1"]
    command = shell.command("amqp-consume", *options, "cat")

    with (tmp_path / "consumed").open("w+b") as output:
        with subprocess.Popen(command, env=environment(), stdout=output) as consumer:
            try:
                publish_once_bound(channel, f"{key}.a.b", b"body")
                code = consumer.wait(TOOL_TIMEOUT_S)
            finally:
                consumer.kill()
        output.seek(0)
        consumed = output.read()

    assert (code, consumed) == (0, b"body")
    # The name is free again.
    channel.queue_declare(queue, exclusive=True)
    assert get_all(channel, queue) == []


def publish_once_bound(channel: BlockingChannel, key: str, body: bytes) -> None:
    """Publish one message to amq.topic as soon as a queue takes it."""
    deadline = time.monotonic() + TOOL_TIMEOUT_S
    while True:
        try:
            channel.basic_publish("amq.topic", key, body, mandatory=True)
        except UnroutableError:
            assert time.monotonic() < deadline, "no queue was bound"
            time.sleep(0.01)
        else:
            return


@pytest.mark.parametrize(
    ("replaced", "by", "complaint"),
    [("guest@", "wrong@", b"ACCESS_REFUSED"), ("%2F", "missing", b"NOT_ALLOWED")],
    ids=["password", "vhost"],
)
def test_a_refused_connection_is_explained(
    shell: Shell, broker: Broker, replaced: str, by: str, complaint: bytes
) -> None:
    uri = broker.uri.replace(replaced, by)

    refused = shell.run("amqp-get", "-q", "any", uri=uri)

    assert refused.returncode == FAILED
    assert complaint in refused.stderr
