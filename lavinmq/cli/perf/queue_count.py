"""`lavinmqperf amqp queue-count`: declares batches of queues and leaves them there."""

import secrets
import socket
from collections.abc import Sequence

from lavinmq.cli.perf.conversation import Conversations, Script, Step, step
from lavinmq.cli.perf.count_options import QueueCountOptions, parse_queue_count
from lavinmq.cli.perf.counts import Dots, repeat
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.peer import Broker
from lavinmq.client import frames

CHANNEL = 1
DECLARED = frames.id_of("queue.declare-ok")
PIECE = 1000  # declarations that are sent at once
POLL_S = 0.1


def run(argv: Sequence[str]) -> int:
    """Run the scenario with these options; returns the exit status.

    Raises: UsageError, Information, ValueError, OSError, Error.
    """
    options = parse_queue_count(argv)
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
