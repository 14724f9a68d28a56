"""`lavinmqperf amqp queue-count`: declares batches of queues and leaves them there."""

import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lavinmq.cli.perf.conversation import Conversations, Script, Step, step
from lavinmq.cli.perf.counts import Dots, repeat
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.options import Parser, check, json_object
from lavinmq.cli.perf.peer import Broker
from lavinmq.client import frames

CHANNEL = 1
DECLARED = frames.id_of("queue.declare-ok")
PIECE = 1000  # declarations that are sent at once
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCountOptions:
    """How many queues make a batch, and of which kind."""

    uri: str = "amqp://guest:guest@localhost"
    queues: int = 100
    durable: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    no_wait: bool = False


def queue_count_parser() -> Parser:
    """Return the table of options of `amqp queue-count`."""
    parser = Parser("amqp queue-count", QueueCountOptions())
    parser.value("-q", "--queues", text="queues of each batch, default 100")
    parser.flag("-D", "--durable", text="durable queues, which are left over; else exclusive ones")
    parser.value("--arguments", convert=json_object, metavar="JSON", text="of queue.declare")
    parser.flag("-n", "--no-wait", text="do not wait for the answer to each declaration")
    return parser


def parse(argv: Sequence[str]) -> QueueCountOptions:
    """Read and check the options. Raises: UsageError, Information."""
    options = QueueCountOptions(**queue_count_parser().read(argv))
    check({"--queues must be at least 1": not options.queues})
    return options


def run(argv: Sequence[str]) -> int:
    """Run the scenario with these options; returns the exit status.

    Raises: UsageError, Information, ValueError, OSError, Error.
    """
    options = parse(argv)
    with (
        Interrupts() as interrupts,
        Broker(options.uri) as broker,
        broker.open("lavinmqperf queue-count") as connection,
    ):
        connection.open_channel()
        connection.borrow()
        batches = Batches(options, connection.socket, interrupts)
        repeat(batches.declare, batches.totals, interrupts, {})
    return 0


class Batches:
    """The queues of a run, which have names of their own."""

    def __init__(
        self, options: QueueCountOptions, sock: socket.socket, interrupts: Interrupts
    ) -> None:
        self._options = options
        self._socket = sock
        self._interrupts = interrupts
        self._name = f"queue-count-{secrets.token_hex(4)}"
        self._count = 0

    def declare(self) -> None:
        """Declare one batch. Raises: Error, ValueError for arguments AMQP does not know."""
        with Dots(self._options.queues) as dots, Conversations() as conversations:
            script = self._without_waiting(dots) if self._options.no_wait else self._waiting(dots)
            conversations.start(self._socket, script)
            while conversations:
                conversations.poll(POLL_S)

    def totals(self) -> str:
        """Say how many queues there are by now, and their names."""
        return f"{self._count} queues {self._name}-1..{self._count}"

    def _waiting(self, dots: Dots) -> Script:
        for _ in range(self._options.queues):
            if self._interrupts.happened:
                return
            yield Step(self._method(self._count + 1), DECLARED)
            self._count += 1
            dots.count()

    def _without_waiting(self, dots: Dots) -> Script:
        last = self._count + self._options.queues
        while self._count < last and not self._interrupts.happened:
            end = min(self._count + PIECE, last)
            requests = [self._method(number) for number in range(self._count + 1, end + 1)]
            # Answered when all before it are done, or refused if one of them was.
            flags = (True, False, False, False, False)
            looked_for = step(CHANNEL, "queue.declare", 0, f"{self._name}-{end}", *flags, {})
            yield Step(b"".join(requests) + looked_for.request, looked_for.reply)
            for _ in requests:
                dots.count()
            self._count = end

    def _method(self, number: int) -> bytes:
        durable = self._options.durable
        flags = (False, durable, not durable, False, self._options.no_wait)
        return frames.method(
            *(CHANNEL, "queue.declare", 0, f"{self._name}-{number}"),
            *flags,
            self._options.arguments,
        )
