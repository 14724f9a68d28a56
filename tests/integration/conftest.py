"""What the client tests share: names of their own, pika connections, a deadline for each test.

The broker itself comes from `tests/conftest.py`. The deadline turns a reply that never comes into
a failure with a stack trace, because a blocking client would otherwise wait for ever.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from types import FrameType

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.support.broker import Broker
from tests.support.patience import PATIENCE

DEADLINE_S = 30.0
TEARDOWN_DEADLINE_S = 5.0
PHASES = {
    "pytest_runtest_setup": True, "pytest_runtest_call": True, "pytest_runtest_teardown": True,
    "pytest_runtest_makereport": False,
}  # fmt: skip
"""What pytest does with a test, and whether it takes what is raised meanwhile for a failure."""

UniqueName = Callable[[str], str]
OpenConnection = Callable[..., pika.BlockingConnection]
Channels = Callable[..., BlockingChannel]


def fails_test(frame: FrameType | None) -> bool:
    """Whether what is raised in this frame fails a test. Where a slow machine writes the report of
    one that has failed, it would end the run of all."""
    while frame is not None and frame.f_code.co_name not in PHASES:
        frame = frame.f_back
    return frame is not None and PHASES[frame.f_code.co_name]


@pytest.fixture(autouse=True)
def deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that waits longer than its module's `DEADLINE_S` (default 30 s)."""
    seconds = float(getattr(request.module, "DEADLINE_S", DEADLINE_S)) * PATIENCE

    def give_up(_signal: int, frame: FrameType | None) -> None:
        # A TimeoutError would be an OSError, which a client may take for a lost connection.
        if fails_test(frame):
            pytest.fail(f"the client still waits for the broker after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    # The second alarm and those after it end a tear-down that waits for the same lost reply.
    signal.setitimer(signal.ITIMER_REAL, seconds, TEARDOWN_DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
def unique() -> UniqueName:
    """Call it with a word to get a name for a queue or an exchange that no other test uses."""
    return lambda word: f"test-{word}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(broker: Broker) -> Iterator[OpenConnection]:
    """Call it to open a pika connection; keyword arguments replace connection parameters."""
    opened: list[pika.BlockingConnection] = []

    def open_connection(**parameters: object) -> pika.BlockingConnection:
        arguments: dict[str, object] = {"host": broker.host, "port": broker.port} | parameters
        connection = pika.BlockingConnection(pika.ConnectionParameters(**arguments))
        opened.append(connection)
        return connection

    yield open_connection
    for connection in opened:
        if connection.is_open:
            connection.close()


@pytest.fixture
def connection(connect: OpenConnection) -> pika.BlockingConnection:
    """An open pika connection of the default user to the default virtual host."""
    return connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """An open channel on `connection`."""
    return connection.channel()


@pytest.fixture
def queue(channel: BlockingChannel, unique: UniqueName) -> str:
    """Name of an empty queue that goes when `connection` does."""
    name = unique("queue")
    channel.queue_declare(name, exclusive=True)
    return name


@pytest.fixture
def channel_of() -> Iterator[Channels]:
    """Call it with a broker, and a virtual host, to get a channel on a connection of its own."""
    with ExitStack() as stack:

        def open_(broker: Broker, vhost: str = "/") -> BlockingChannel:
            parameters = pika.ConnectionParameters(broker.host, broker.port, vhost)
            connection = pika.BlockingConnection(parameters)
            stack.callback(_close, connection)
            return connection.channel()

        yield open_


def _close(connection: pika.BlockingConnection) -> None:
    with suppress(pika.exceptions.AMQPError):
        connection.close()
