"""`lavinmqperf amqp throughput`: connects clients, starts them together, reports, stops them.

Each publisher and consumer has a thread, which connects and declares by the client library and then
stays in `lavinmq._perf` without the GIL. Consumers connect first, then publishers, then all start.
The main thread only waits, prints once a second and sums up. No message passes through this module.
The scenario of MQTT is run by it, too.
"""

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lavinmq import _perf
from lavinmq.cli.perf import clients, report
from lavinmq.cli.perf.interrupts import Interrupts
from lavinmq.cli.perf.peer import Broker, Connection
from lavinmq.cli.perf.throughput_options import parse_throughput
from lavinmq.client.errors import ChannelClosed, Error

RECONNECT_S = 1.0
REPORT_S = 1.0
JOIN_S = 10.0
FIRST_ANSWER_S = 2.0  # a broker with much to do may take so long, however short the run


def run(argv: Sequence[str]) -> int:
    """Run the scenario with these options. Raises: UsageError, Information, ValueError."""
    options = parse_throughput(argv)
    broker = Broker(options.uri)
    shared = _perf.Run(publish_limit=options.pmessages, consume_limit=options.cmessages)
    template = clients.Template(options)
    publishers = [clients.Publisher(template, shared, index) for index in range(options.publishers)]
    consumers = [clients.Consumer(template, shared, index) for index in range(options.consumers)]

    def connect(name: str) -> Connection:
        return broker.open(f"lavinmqperf {name}")

    run = Throughput(options, shared, publishers, consumers, connect, report.summary_json)
    with broker:
        return run.run()


class Options(Protocol):
    """What a run is told, whatever it speaks."""

    @property
    def time(self) -> float:
        """Seconds, 0: without end."""

    @property
    def quiet(self) -> bool:
        """Whether no rates are printed."""

    @property
    def json(self) -> bool:
        """Whether the summary alone is printed, as JSON."""

    @property
    def measure_latency(self) -> bool:
        """Whether latencies are measured."""


class Client(Protocol):
    """What `Throughput` drives: a publisher or a consumer, over any number of connections."""

    name: str
    engine: Any

    def set_up(self, connection: Any) -> None:
        """Declare what is needed on a new connection."""

    def work(self, connection: Any) -> None:
        """Publish or consume until the work is done or the run is stopped."""


class Throughput:
    """One run. Args: connect: opens a connection for the client of that name; summary: the end of
    it as JSON."""

    def __init__(
        self, options: Options, shared: _perf.Run, publishers: Sequence[Client],
        consumers: Sequence[Client], connect: Callable[[str], Any],
        summary: Callable[[report.Totals], str],
    ) -> None:  # fmt: skip
        self._options = options
        self._shared = shared
        self._publishers = publishers
        self._consumers = consumers
        self._connect = connect
        self._summary = summary
        self._threads: list[threading.Thread] = []
        self._arrived = threading.Semaphore(0)
        self._start = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._active = 0
        self._met: set[str] = set()
        self._broken: set[str] = set()
        self._refused: dict[str, ChannelClosed] = {}
        self._began = 0.0
        self._last_complaint: tuple[str, int] = ("", 0)
        self._all_done = os.eventfd(0)
        self._interrupts = Interrupts()

    def run(self) -> int:
        """Run until the totals are reached, the time is over or SIGINT; return the exit status."""
        with self._interrupts:
            totals = self._measure()
        print(self._summary(totals) if self._options.json else report.summary(totals))
        sys.stdout.flush()
        # All are told, whichever comes first.
        return max(
            self._complain_of_messages(), self._complain_of_refusals(),
            self._complain_of_absence(), int(bool(self._broken)),
        )  # fmt: skip

    def _measure(self) -> report.Totals:
        self._began = time.monotonic()
        self._active = len(self._publishers) + len(self._consumers)
        self._launch(self._consumers)
        self._launch(self._publishers)
        started = self._began if self._is_in_vain() else time.monotonic()
        self._start.set()
        totals = self._watch(started)
        self._shared.stop()
        self._stopping.set()
        # Who still waits for a first answer leaves nothing to be counted.
        deadline = time.monotonic() + (0.0 if self._is_in_vain() else JOIN_S)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return totals

    def _is_in_vain(self) -> bool:
        """Whether the time of the run is over and nobody has met the broker."""
        if self._met or not self._options.time:
            return False
        return time.monotonic() - self._began >= max(self._options.time, FIRST_ANSWER_S)

    def _launch(self, group: Sequence[Client]) -> None:
        """Start the threads of a group; wait until each has connected, or failed to, once; not
        longer than the run is to take, while nobody answers."""
        for client in group:
            thread = threading.Thread(target=self._live, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)
        for _ in group:
            while not self._arrived.acquire(timeout=0.1):
                is_over = self._interrupts.happened or self._stopping.is_set()
                if is_over or self._is_in_vain():
                    return

    def _watch(self, started: float) -> report.Totals:
        """Print rates until the end of the run; return what it came to."""
        poll = select.poll()
        poll.register(self._all_done, select.POLLIN)
        poll.register(self._interrupts, select.POLLIN)
        deadline = started + (self._options.time or float("inf"))
        last, last_at, next_at = (0, 0), started, started + REPORT_S
        while True:
            wait_s = min(next_at, deadline) - time.monotonic()
            is_over = bool(poll.poll(max(0.0, wait_s) * 1000))
            now, counts = time.monotonic(), self._counts()
            if now >= next_at:
                done = [new - old for new, old in zip(counts, last, strict=True)]
                self._print_rates(now - last_at, *done)
                last, last_at, next_at = counts, now, next_at + REPORT_S
            if is_over or now >= deadline:
                latency = self._latency(self._shared.latencies)
                return report.Totals(now - started, *counts, latency)

    def _print_rates(self, elapsed_s: float, published: int, consumed: int) -> None:
        if self._options.quiet or self._options.json:
            return
        latency = self._latency(self._shared.interval_latencies)
        print(report.rate_line(report.Totals(elapsed_s, published, consumed, latency)), flush=True)

    def _latency(self, read: Any) -> report.Latency | None:
        if not self._options.measure_latency:
            return None
        count, min_ns, sample = read()
        return report.Latency.of(count, min_ns, sample) if sample else None

    def _counts(self) -> tuple[int, int]:
        return (
            sum(client.engine.published for client in self._publishers if client.engine),
            sum(client.engine.consumed for client in self._consumers),
        )

    def _live(self, client: Client) -> None:
        """Be one client, in its own thread. What nobody expects is printed with its traceback, and
        ends this client alone: the run goes on without it, and fails."""
        try:
            self._work(client)
        except BaseException:
            self._broken.add(client.name)
            raise
        finally:
            with self._lock:
                self._active -= 1
                if self._active == 0:
                    os.eventfd_write(self._all_done, 1)

    def _work(self, client: Client) -> None:
        """Connect, work, and again after an error."""
        has_arrived = False

        def arrive() -> None:
            nonlocal has_arrived
            if not has_arrived:
                self._arrived.release()
            has_arrived = True

        while not self._stopping.is_set():
            try:
                connection = self._connect(client.name)
                try:
                    client.set_up(connection)
                    self._met.add(client.name)
                    arrive()
                    self._start.wait()
                    client.work(connection)
                    connection.close()
                    break
                finally:
                    connection.abort()
            except (Error, OSError, ValueError) as error:
                if isinstance(error, ChannelClosed) and client in self._publishers:
                    self._refused[client.name] = error
                self._complain(client.name, error)
                if isinstance(error, ChannelClosed) and client.name not in self._met:
                    self._end_if_timeless()
            finally:
                arrive()
            self._stopping.wait(RECONNECT_S)

    def _end_if_timeless(self) -> None:
        """A client was refused what it needs to begin. Nothing but totals ends a run without a
        time, and they would never be reached."""
        if not self._options.time:
            self._stopping.set()
            os.eventfd_write(self._all_done, 1)

    def _complain(self, name: str, error: Exception) -> None:
        """Print an error, though not the same one of hundreds of clients in one second."""
        complaint = (str(error), int(time.monotonic()))
        with self._lock:
            if self._shared.stopped or complaint == self._last_complaint:
                return
            self._last_complaint = complaint
        print(f"{name}: {error}", file=sys.stderr, flush=True)

    def _complain_of_refusals(self) -> int:
        """Report publishers whose channel was closed, and what was on its way with it: it counts
        as published and is in no queue, which makes the run a failure."""
        if not self._refused:
            return 0
        count, error = len(self._refused), next(iter(self._refused.values()))
        who = f"{count} of {len(self._publishers)} publishers"
        print(f"{who} lost messages with their channel: {error}", file=sys.stderr)
        return 1

    def _complain_of_absence(self) -> int:
        """Report clients that never came to their work, which make the run a failure."""
        everybody: list[Client] = [*self._publishers, *self._consumers]
        absent = sum(client.name not in self._met for client in everybody)
        if not absent:
            return 0
        print(f"{absent} of {len(everybody)} clients never got to work", file=sys.stderr)
        return 1

    def _complain_of_messages(self) -> int:
        """Report messages refused or damaged; damaged ones make the run a failure."""
        nacked = sum(client.engine.nacked for client in self._publishers if client.engine)
        if nacked:
            print(f"{nacked} messages were nacked by the broker", file=sys.stderr)
        bad = [client.engine for client in self._consumers if client.engine.mismatched]
        if not bad:
            return 0
        size, at = bad[0].first_mismatch
        first = f"size {size}" if at < 0 else f"wrong byte at {at}"
        count = sum(engine.mismatched for engine in bad)
        print(f"{count} messages differed from what was published, first: {first}", file=sys.stderr)
        return 1
