"""`lavinmqperf amqp queue-count`: declares batches of queues and leaves them there."""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lavinmq.cli.perf.counts import Dots, repeat
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.options import Parser, check, json_object
from lavinmq.cli.perf.peer import Broker, Connection

PIECE = 64


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
        batches = Batches(options, broker, connection, interrupts)
        repeat(batches.declare, batches.totals, interrupts, {})
    return 0


class Batches:
    """The queues of a run, which have names of their own."""

    def __init__(
        self,
        options: QueueCountOptions,
        broker: Broker,
        connection: Connection,
        interrupts: Interrupts,
    ) -> None:
        self._options = options
        self._broker = broker
        self._connection = connection
        self._interrupts = interrupts
        self._name = f"queue-count-{secrets.token_hex(4)}"
        self._sent = 0
        self._count = 0

    def declare(self) -> None:
        """Declare one batch. Raises: Error, ValueError for arguments AMQP does not know."""
        self._broker.run(self._declare_all())

    async def _declare_all(self) -> None:
        with Dots(self._options.queues) as dots:
            for _ in range(self._options.queues):
                if self._interrupts.happened:
                    break
                await self._declare()
                dots.count()
            if self._sent > self._count:
                # Answered when all before it are done, or refused if one of them was.
                last = f"{self._name}-{self._sent}"
                flags = (True, False, False, False, False)
                await self._connection.chan.call("queue.declare", 0, last, *flags, {})
                self._count = self._sent

    def totals(self) -> str:
        """Say how many queues there are by now, and their names."""
        return f"{self._count} queues {self._name}-1..{self._count}"

    async def _declare(self) -> None:
        name = f"{self._name}-{self._sent + 1}"
        durable, no_wait = self._options.durable, self._options.no_wait
        flags = (False, durable, not durable, False, no_wait)
        declare = ("queue.declare", 0, name, *flags, self._options.arguments)
        chan = self._connection.chan
        if no_wait:
            chan.send(*declare)
            if not self._sent % PIECE:
                await asyncio.sleep(0)  # what was gathered goes out
                await chan.link.writable()
        else:
            await chan.call(*declare)
            self._count += 1
        self._sent += 1
