"""`lavinmqperf amqp queue-count`: declares batches of queues and leaves them there."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pamqp import commands

from lavinmq.cli.perf.counts import Dots, repeat
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.options import Parser, check, json_object
from lavinmq.client.connection import Channel, Connection, parse_uri
from lavinmq.client.wire import build


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

    Raises: UsageError, Information, ValueError, OSError, ClientError.
    """
    options = parse(argv)
    address = parse_uri(options.uri)
    with (
        Interrupts() as interrupts,
        Connection.open(address, name="lavinmqperf queue-count") as connection,
    ):
        batches = Batches(options, connection.channel(), interrupts)
        repeat(batches.declare, batches.totals, interrupts, {})
    return 0


class Batches:
    """The queues of a run, which have names of their own."""

    def __init__(
        self, options: QueueCountOptions, channel: Channel, interrupts: Interrupts
    ) -> None:
        self._options = options
        self._channel = channel
        self._interrupts = interrupts
        self._name = f"queue-count-{secrets.token_hex(4)}"
        self._sent = 0
        self._count = 0

    def declare(self) -> None:
        """Declare one batch. Raises: ClientError, ValueError for arguments AMQP does not know."""
        with Dots(self._options.queues) as dots:
            for _ in range(self._options.queues):
                if self._interrupts.happened:
                    break
                self._declare()
                dots.count()
            if self._sent > self._count:
                # Answered when all before it are done, or refused if one of them was.
                self._channel.declare_queue(f"{self._name}-{self._sent}", passive=True)
                self._count = self._sent

    def totals(self) -> str:
        """Say how many queues there are by now, and their names."""
        return f"{self._count} queues {self._name}-1..{self._count}"

    def _declare(self) -> None:
        name = f"{self._name}-{self._sent + 1}"
        durable = self._options.durable
        kind: dict[str, Any] = {"durable": durable, "exclusive": not durable}
        kind["arguments"] = self._options.arguments
        if self._options.no_wait:
            method = build(commands.Queue.Declare, queue=name, nowait=True, **kind)
            self._channel.send(method)
        else:
            self._channel.declare_queue(name, **kind)
            self._count += 1
        self._sent += 1
