"""`lavinmqperf amqp *-churn`: how often a second one rare operation can be done.

Each client has a connection and does its operation again as soon as the last one was answered.
The operations of a scenario are measured one after the other, each with all clients at once.
"""

import itertools
import secrets
import sys
import time
from collections.abc import Iterator, Sequence

from lavinmq.cli.perf import churn_report
from lavinmq.cli.perf.churn_operations import CHANNEL, OPERATIONS, SERIAL, Operation
from lavinmq.cli.perf.churn_options import ChurnOptions, parse_churn
from lavinmq.cli.perf.churn_report import Measurement
from lavinmq.cli.perf.conversation import CLOSE, Conversations, Peer, Script, Step, open_channel
from lavinmq.cli.perf.descriptors import allow_connections
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.peer import Broker
from lavinmq.client.errors import Error

WARM_UP = 0.2  # of the time that is measured
SLICES = 20
SLICE_S_MAX = 0.25
POLL_S = 0.1


def run(scenario: str, argv: Sequence[str]) -> int:
    """Run a churn scenario with these options; returns the exit status.

    Raises: UsageError, Information, ValueError, OSError, Error.
    """
    options = parse_churn(scenario, argv)
    allow_connections(options.clients)
    with (
        Interrupts() as interrupts,
        Broker(options.uri) as broker,
        Peer(broker, f"lavinmqperf {scenario}") as peer,
    ):
        measurements = list(_measure_all(scenario, options, peer, interrupts))
    if options.json:
        print(churn_report.as_json(scenario, options.clients, measurements))
    elif measurements:
        print(churn_report.lines(measurements))
    return 0


def _measure_all(
    scenario: str, options: ChurnOptions, peer: Peer, interrupts: Interrupts
) -> Iterator[Measurement]:
    name = f"lavinmqperf-{scenario}-{secrets.token_hex(4)}"
    by_client = [OPERATIONS[scenario](f"{name}-{n}") for n in range(options.clients)]
    for operations in zip(*by_client, strict=True):
        if interrupts.happened:
            return
        try:
            with Conversations() as conversations:
                churn = Churn(peer, operations, conversations, interrupts)
                measurement = churn.measure(options.time)
        finally:
            _delete_queues(peer, operations)
        if measurement.slices:
            yield measurement


def _delete_queues(peer: Peer, operations: Sequence[Operation]) -> None:
    queues = [operation.durable_queue for operation in operations if operation.durable_queue]
    try:
        peer.control.open_channel()
        for queue in queues:
            peer.control.call("queue.delete", 0, queue, False, False, False)
        peer.control.close_channel()
    except Error as error:
        print(f"cannot delete the durable queues: {error}", file=sys.stderr)


class Churn:
    """The measurement of one operation; `operations` has it once for each client."""

    def __init__(
        self,
        peer: Peer,
        operations: Sequence[Operation],
        conversations: Conversations,
        interrupts: Interrupts,
    ) -> None:
        self._peer = peer
        self._operations = operations
        self._conversations = conversations
        self._interrupts = interrupts
        self._prepared = 0
        self._done = 0
        self._is_over = False

    def measure(self, time_s: float) -> Measurement:
        """Measure for this time, but at least one operation. Raises: OSError, Error."""
        measurement = Measurement(self._operations[0].name, len(self._operations))
        for operation in self._operations:
            self._connect(operation)
        self._warm_up(time_s * WARM_UP)
        slice_s = min(time_s / SLICES, SLICE_S_MAX)
        deadline = time.monotonic() + time_s
        while not self._interrupts.happened:
            measurement.slices.append(self._slice(slice_s))
            if time.monotonic() >= deadline and measurement.iterations:
                break
        self._is_over = True
        while self._conversations:
            self._poll(POLL_S)
        return measurement

    def _warm_up(self, time_s: float) -> None:
        """Let all clients begin, and go on for a while."""
        until = time.monotonic() + time_s
        while self._prepared < len(self._operations) or time.monotonic() < until:
            if self._interrupts.happened:
                return
            self._poll(min(time_s, POLL_S))

    def _slice(self, time_s: float) -> tuple[float, int]:
        """Go on for this time; return how long it was and how much was done."""
        started, done = time.monotonic(), self._done
        while (remaining_s := started + time_s - time.monotonic()) > 0:
            self._poll(remaining_s)
        return time.monotonic() - started, self._done - done

    def _poll(self, timeout_s: float) -> None:
        for sock in self._conversations.poll(timeout_s):
            sock.close()
            if not self._is_over:
                # Only operations that are a connection end by themselves, and these are all alike.
                self._connect(self._operations[0])

    def _connect(self, operation: Operation) -> None:
        self._conversations.start(self._peer.connect(), self._script(operation))

    def _script(self, operation: Operation) -> Script:
        yield from (*self._peer.handshake, open_channel(CHANNEL), *operation.prepare)
        self._prepared += 1
        for number in itertools.count():
            if self._is_over or not operation.body:
                break
            serial = b"%08x" % (number & 0xFFFFFFFF)
            for request, reply in operation.body:
                yield Step(request.replace(SERIAL, serial), reply)
            self._done += 1
        yield CLOSE
        if not operation.body:
            self._done += 1
