"""The client over a network that is cut every 50 ms, for as long as wanted: `make soak-client`.

A client publishes to a queue and another consumes it, once with confirms and once without. Between
them and the broker is a process that resets each of the four connections at a random age: some in
the handshake, some in a frame. The books say what broke a promise: with confirms each number comes,
in order, and ends once; without, none is sent again. The result is a table and a JSON file; exit
code 1 says that a promise was broken, that nothing moved, or that the clients' memory grew.

Usage: python perf/client_soak.py [--minutes N] [--broker ours|rabbitmq] [--every-ms N] [--out FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lavinmq.client import Client, Consumer, Message, Producer
from perf import brokers, measure
from perf.brokers import RunningBroker
from perf.measure import BenchError

BUILD = Path(__file__).resolve().parent.parent / "build" / "perf"
HOST = "127.0.0.1"
MODES = ("confirm", "fire_and_forget")
CONNECTIONS = 4
MOST_AHEAD = 20_000
"""Messages that may wait in a queue before its publisher pauses."""
SAMPLES = 30
WARM = 0.1
"""The part of a run that memory is not judged by."""
GROWTH_MIB = 16.0
PATIENCE_S = 120.0
START_S = 300.0
OPTIONS: dict[str, Any] = {
    "reconnect_initial_delay": 0.002,
    "reconnect_max_delay": 0.1,
    "health_interval": 0.2,
    "close_timeout": PATIENCE_S,
    "block_timeout": PATIENCE_S,
}


# ---- the network


class End(asyncio.Protocol):
    """One side of a connection; what comes in goes out at the other."""

    def __init__(self, network: Network, other: End | None = None) -> None:
        self.network, self.other = network, other
        self.transport: asyncio.Transport | None = None
        self.early = b""
        self.is_gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A side is there; that of the client has the broker's made."""
        self.transport = cast("asyncio.Transport", transport)
        if self.other is None:
            self.network.doom(self)
            self.network.reach(self)
        elif self.other.transport is not None and self.other.early:
            self.transport.write(self.other.early)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        if self.other is None or self.other.transport is None:
            self.early += data
        elif not self.other.is_gone:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        """Whoever reads here is slow: do not read there."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """One side is gone, so the other goes."""
        self.is_gone = True
        if self.other is not None and self.other.transport is not None:
            self.other.transport.abort()

    def reset(self) -> None:
        """End it as a network does that breaks: what is under way is lost."""
        if self.transport is None or self.is_gone:
            return
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class Network:
    """Carries connections to a port, and resets each at an age of so many seconds in the mean."""

    def __init__(self, port: int, every_s: float) -> None:
        self._port, self._every_s = port, every_s
        self.cuts = 0
        self._is_calm = False
        self._reaching: set[asyncio.Task[Any]] = set()

    def doom(self, end: End) -> None:
        """Say when a connection is to end."""
        age = random.expovariate(1 / self._every_s)
        asyncio.get_running_loop().call_later(age, self._cut, end)

    def _cut(self, end: End) -> None:
        if not end.is_gone and not self._is_calm:
            self.cuts += 1
            for each in (end, end.other):
                if each is not None:
                    each.reset()

    def reach(self, end: End) -> None:
        """Connect to the broker for a client."""
        task = asyncio.get_running_loop().create_task(self._reach(end))
        self._reaching.add(task)
        task.add_done_callback(self._reaching.discard)

    async def _reach(self, end: End) -> None:
        loop = asyncio.get_running_loop()
        end.other = other = End(self, end)
        try:
            await loop.create_connection(lambda: other, HOST, self._port)
        except OSError:
            if end.transport is not None:
                end.transport.abort()

    async def serve(self) -> None:
        """Say the port, cut until a line comes in, say how often, and carry on to the end."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: End(self), HOST, 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        self._is_calm = True
        print(self.cuts, flush=True)
        await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def network(port: int, every_ms: float) -> Iterator[tuple[int, Callable[[], int]]]:
    """A network in a process of its own; yields its port, and what calms it: how often it cut."""
    argv = [sys.executable, __file__, "--network", str(port), "--every-ms", str(every_ms)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    words, answers = process.stdin, process.stdout

    def calm() -> int:
        print("calm", file=words, flush=True)
        return int(answers.readline())

    try:
        yield int(answers.readline()), calm
    finally:
        process.kill()
        process.wait()
        words.close()
        answers.close()


# ---- the books


class Books:
    """What a producer was given and how it ended, and what a consumer got."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.given = self.ended = self.next = self.again = self.late = 0
        self.gaps: list[tuple[int, int]] = []
        """Numbers that have not come, from one up to another; in order."""
        self.failures: list[str] = []

    def give(self) -> bytes:
        """The body of the next message, of 16 bytes."""
        self.given += 1
        return b"%016d" % (self.given - 1)

    def end(self, message: Message) -> None:
        """A message was confirmed: in order, each once."""
        number = int(message.body)
        if number != self.ended:
            self._fail(f"{number} was confirmed, where {self.ended} was to be")
        self.ended = number + 1

    def drop(self, message: Message, reason: object) -> None:
        """A message was given up, which no policy here allows."""
        self._fail(f"{int(message.body)} was dropped: {reason}")

    def come(self, message: Message) -> None:
        """A message was delivered."""
        number = int(message.body)
        if number >= self.next:
            if number > self.next:
                self.gaps.append((self.next, number))
                if self.mode == "confirm":
                    self._fail(f"{number} came, where {self.next} was to come")
            self.next = number + 1
        elif self._fills(number):
            # A connection that was cut had it still under way, when the next one began.
            self.late += 1
        elif self.mode != "confirm" and not message.redelivered:
            self._fail(f"{number} came twice, though it is sent once")
        else:
            self.again += 1

    def _fills(self, number: int) -> bool:
        """Whether it was missing, which it is no more."""
        at = bisect_right(self.gaps, (number, sys.maxsize)) - 1
        if at < 0 or number >= self.gaps[at][1]:
            return False
        first, end = self.gaps[at]
        parts = ((first, number), (number + 1, end))
        self.gaps[at : at + 1] = [part for part in parts if part[0] < part[1]]
        return True

    @property
    def missing(self) -> int:
        """How many of those before the newest one have not come."""
        return sum(end - first for first, end in self.gaps)

    def close(self, producer: Producer) -> None:
        """Compare both sides, when all is over."""
        ends = {name: producer.count_of(name) for name in ("confirmed", "sent", "dropped")}
        good = "confirmed" if self.mode == "confirm" else "sent"
        if ends != {"confirmed": 0, "sent": 0, "dropped": 0} | {good: self.given}:
            self._fail(f"{self.given} were given, and ended as {ends}")
        if self.mode == "confirm" and not self.given == self.ended == self.next:
            self._fail(f"{self.given} given, {self.ended} confirmed, {self.next} have come")
        if not self.next:
            self._fail("none has come")

    def _fail(self, text: str) -> None:
        if len(self.failures) < 20:
            self.failures.append(f"{self.mode}: {text}")


class Pair:
    """A producer and a consumer of one queue, each with a thread and a client of its own."""

    def __init__(self, mode: str, url: str) -> None:
        self.books, self.queue = Books(mode), f"client-soak-{mode}"
        self.publishing, self.consuming = (
            Client(url, name=f"{self.queue}-{part}", fail_fast=False, **OPTIONS)
            for part in ("publisher", "consumer")
        )
        self.stop, self.drained = threading.Event(), threading.Event()
        self.producer: Producer = self.publishing.producer(self.queue, mode)
        self.producer.on_confirm(self.books.end)
        self.producer.on_drop(self.books.drop)
        self.consumer: Consumer = self.consuming.consumer(self.queue, prefetch=1000)
        self.threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True)
                        for work in (self._publish, self._consume)]  # fmt: skip
        for thread in self.threads:
            thread.start()

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the run goes on, and fails
            self.books.failures.append(f"{self.books.mode}: {error!r}")

    def _publish(self) -> None:
        while not self.stop.is_set():
            if self.books.given - self.books.next > MOST_AHEAD:
                time.sleep(0.01)
                if self.books.mode != "confirm" and not self.producer.count:
                    # What was lost on the way does not come any more.
                    self.producer.publish(self.books.give())
                continue
            for _ in range(50):
                self.producer.publish(self.books.give())

    def _consume(self) -> None:
        quiet = 0
        while quiet < 3:
            message = self.consumer.get(2.0)
            if message is None:
                quiet += self.drained.is_set()
                continue
            quiet = 0
            self.books.come(message)
            message.ack()

    def finish(self) -> None:
        """Publish no more, wait for what is under way, and look at the books."""
        self.stop.set()
        self.threads[0].join(PATIENCE_S)
        self._guarded(partial(self.producer.flush, PATIENCE_S))
        self.drained.set()
        self.threads[1].join(2 * PATIENCE_S)
        self.books.close(self.producer)
        self.consuming.close()
        self.publishing.close()


# ---- a run


def soak(port: int, minutes: float, every_ms: float) -> dict[str, Any]:
    """Load a broker through a network that is cut; return the figures. Raises: BenchError."""
    with network(port, every_ms) as (way, calm):
        url = f"amqp://guest:guest@{HOST}:{way}/%2F"
        pairs = [Pair(mode, url) for mode in MODES]
        begin, seconds, samples = time.monotonic(), minutes * 60, []
        for n in range(1, SAMPLES + 1):
            time.sleep(max(0.0, begin + seconds * n / SAMPLES - time.monotonic()))
            samples.append(_sample(time.monotonic() - begin, pairs))
            print(json.dumps(samples[-1]), flush=True)
        cuts = calm()
        for pair in pairs:
            pair.finish()
    failures = [failure for pair in pairs for failure in pair.books.failures]
    warm = samples[int(len(samples) * WARM)]
    for name, most in (("anon_mib", GROWTH_MIB), ("descriptors", 8), ("threads", 4)):
        if samples[-1][name] - warm[name] > most:
            failures.append(f"{name} grew from {warm[name]:.1f} to {samples[-1][name]:.1f}")
    return {
        "minutes": minutes, "every_ms": every_ms, "cuts": cuts, "failures": failures,
        "begin": warm, "end": samples[-1],
        "reconnects": sum(each.metrics().reconnects for pair in pairs
                          for each in (pair.publishing, pair.consuming)),
        "modes": {pair.books.mode: _figures(pair) for pair in pairs}, "samples": samples,
    }  # fmt: skip


def _sample(at_s: float, pairs: Sequence[Pair]) -> dict[str, Any]:
    counts = {f"{pair.books.mode} came": pair.books.next for pair in pairs}
    buffered = sum(pair.producer.n_bytes for pair in pairs)
    return {"at_s": round(at_s), **asdict(measure.footprint(os.getpid())),
            "buffered_bytes": buffered, **counts}  # fmt: skip


def _figures(pair: Pair) -> dict[str, int]:
    books = pair.books
    return {
        "given": books.given, "confirmed": pair.producer.count_of("confirmed"),
        "sent": pair.producer.count_of("sent"), "resent": pair.producer.resent,
        "came": books.next - books.missing, "came again": books.again,
        "came late": books.late, "lost": books.missing,
        "stale acks": pair.consumer.tracker.stale_acks,
    }  # fmt: skip


def render(result: dict[str, Any]) -> str:
    """The figures as lines."""
    lines = [f"{result['version']}: {result['minutes']:g} minutes, {result['cuts']} cuts every "
             f"{result['every_ms']:g} ms, {result['reconnects']} reconnects"]  # fmt: skip
    for mode, figures in result["modes"].items():
        lines.append(f"{mode}: " + ", ".join(f"{key} {value}" for key, value in figures.items()))
    for name in ("rss_mib", "anon_mib", "descriptors", "threads"):
        lines.append(f"{name}: {result['begin'][name]:.1f} to {result['end'][name]:.1f}")
    return "\n".join([*lines, *(f"FAILURE: {each}" for each in result["failures"])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 0, or 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="client_soak.py", description="The client, cut often.")
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="length of the load (default 60)")
    add("--every-ms", type=float, default=50.0, help="between cuts (default 50)")
    add("--broker", choices=("ours", "rabbitmq"), default="ours")
    add("--broker-command", default=brokers.DEFAULT_COMMAND, metavar="CMD", help="of ours")
    add("--data-dir", type=Path, default=BUILD, help="where it writes (default build/perf)")
    add("--out", type=Path, default=BUILD / "client-soak.json", help="result file")
    add("--network", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.network is not None:
        asyncio.run(Network(options.network, CONNECTIONS * options.every_ms / 1000).serve())
        return 0
    try:
        result = run(options)
    except (BenchError, OSError) as error:
        print(f"client_soak: {error}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(render(result))
    return 1 if result["failures"] else 0


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a broker and soak the client with it. Raises: BenchError."""
    if options.broker == "ours":
        contender = brokers.ours("ours", "lavinmq", options.broker_command)
    else:
        contender = brokers.rabbitmq()
    if contender.launch is None:
        raise BenchError(f"{contender.label} is not installed")
    options.data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.data_dir.resolve()) as root:
        core = min(os.sched_getaffinity(0))
        launch = contender.launch(Path(root), 0)
        log = Path(root) / "broker.out"
        with RunningBroker(launch, core, log, START_S) as broker:
            result = soak(broker.port, options.minutes, options.every_ms)
            return {
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": measure.machine_facts(), "version": broker.version, **result,
            }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
