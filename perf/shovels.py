"""What shovels, webhooks and links of federation move, and what that costs the broker they run in.

Run from the root of the repository, on a machine with nothing else to do:

    .venv/bin/python perf/shovels.py [--messages 1000000] [--reps 3] [--only NAME,...] [--short]

With `--short` it takes some five minutes: once, a fifth of the messages and of what is idle.
The broker that runs the shovel has a core of its own; the other broker, or the bare HTTP server,
has another. A queue is filled first. What is measured begins when the shovel is set, and ends when
all has arrived; CPU seconds are those of the broker that runs the shovel. RabbitMQ, where it is
installed, runs its own shovel from one of its queues to a broker of ours. Results, the middle of
the repetitions with the lowest and the highest, go to standard output.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lavinmq.client import Client
from perf import brokers, measure

SHOVEL_CORE, OTHER_CORE = 0, 1
LOGIN: Final = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
BATCH: Final = 10_000
START_S: Final = 240.0
"""RabbitMQ needs a minute where others work."""
IDLE: Final = 1000
SHORT: Final = 5
"""What `--short` divides by."""
SETTLED_S: Final = 36.0
"""Two looks of the poll: what a client needs no more is given back."""
SERVE: Final = "--serve"
RABBITMQ: Final = "rabbitmq"
OPTIONS: Final = (
    " -D {{data}} -b 127.0.0.1 -p {{port}} --http-port {http} --metrics-http-port -1"
    " --mqtt-port -1 --control-unix-path {{scratch}}/control.sock"
)


class Site(NamedTuple):
    """A broker and its API."""

    broker: brokers.RunningBroker
    http: int

    @property
    def uri(self) -> str:
        """Where clients connect to."""
        return f"amqp://guest:guest@127.0.0.1:{self.broker.port}"

    def api(self, method: str, path: str, body: Any = None) -> Any:
        """One request. Raises: BenchError for an answer that is no success."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            headers = {**LOGIN, "Content-Type": "application/json"}
            connection.request(method, f"/api/{path}", text, headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status >= 300:
                raise measure.BenchError(f"{path}: {answer.status} {content[:200]!r}")
            return json.loads(content) if content else None
        finally:
            connection.close()

    def set(self, component: str, name: str, value: dict[str, Any]) -> None:
        """A parameter of the default virtual host."""
        self.api("PUT", f"parameters/{component}/%2F/{name}", {"value": value})

    def messages(self, queue: str) -> int:
        """Messages of a queue, whoever has them."""
        return int(self.api("GET", f"queues/%2F/{queue}")["messages"])

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        return measure.tree_cpu_s(self.broker.pid)

    def memory(self) -> int:
        """Bytes that are its own."""
        text = Path(f"/proc/{self.broker.pid}/smaps_rollup").read_text()
        return 1024 * sum(
            int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")
        )


@contextmanager
def site(command: str, core: int) -> Iterator[Site]:
    """A fresh broker on a core."""
    [port] = brokers.free_ports(1)
    if command == RABBITMQ:
        configuration = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
        contender = brokers.rabbitmq(
            "rabbitmq_management,rabbitmq_shovel_management", configuration
        )
    else:
        contender = brokers.ours("ours", "ours", command + OPTIONS.format(http=port))
    if contender.launch is None:
        raise measure.BenchError(f"{contender.label} is not installed")
    with tempfile.TemporaryDirectory() as place:
        launch = contender.launch(Path(place), 16)
        with brokers.RunningBroker(launch, core, Path(place) / "output", START_S) as running:
            yield Site(running, port)


def fill(uri: str, queue: str, count: int) -> None:
    """So many messages of 16 bytes in a durable queue."""
    with Client(uri) as client:
        producer = client.producer(queue)
        for _ in range(count // BATCH):
            producer.publish_batch([b"x" * 16] * BATCH)
        producer.flush(300)


def until(condition: Callable[[], bool]) -> None:
    """Look twenty times a second."""
    while not condition():
        time.sleep(0.05)


class Result(NamedTuple):
    """What one repetition came to."""

    per_s: float
    cpu_s_per_m: float


def timed(at: Site, count: int, begin: Callable[[], None], is_done: Callable[[], bool]) -> Result:
    """Begin, and wait for the end."""
    cpu, started = at.cpu_s(), time.monotonic()
    begin()
    until(is_done)
    return Result(count / (time.monotonic() - started), (at.cpu_s() - cpu) / count * 1e6)


def moved(
    command: str, count: int, *, local: bool, prefetch: int = 1000, by: str = ""
) -> Result:  # fmt: skip
    """A shovel to a queue of the same broker, or of another one. Args: by: another broker that runs
    it."""
    with site(by or command, SHOVEL_CORE) as here, site(command, OTHER_CORE) as there:
        fill(here.uri, "from", count)
        value = {
            "src-protocol": "amqp091", "dest-protocol": "amqp091",
            "src-uri": here.uri if by else "amqp://", "src-queue": "from", "dest-queue": "to",
            "dest-uri": "amqp://" if local else there.uri, "src-delete-after": "queue-length",
            "src-prefetch-count": prefetch,
        }  # fmt: skip
        return timed(
            here, count, lambda: here.set("shovel", "s", value),
            lambda: not here.api("GET", "shovels/%2F"),
        )  # fmt: skip


def posted(command: str, count: int) -> Result:
    """A webhook with 64 requests in flight, to a server that only answers."""
    [port] = brokers.free_ports(1)
    argv = ["taskset", "-c", str(OTHER_CORE), sys.executable, __file__, SERVE, str(port)]
    with site(command, SHOVEL_CORE) as here, subprocess.Popen(argv) as server:
        try:
            fill(here.uri, "from", count)
            value = {
                "src-uri": "amqp://", "src-queue": "from", "dest-in-flight": 64,
                "dest-uri": f"http://127.0.0.1:{port}/hook",
            }  # fmt: skip
            return timed(
                here, count, lambda: here.set("shovel", "s", value),
                lambda: here.messages("from") == 0,
            )  # fmt: skip
        finally:
            server.kill()


def federated(command: str, count: int) -> Result:
    """A federated exchange: messages wait at the upstream when the link goes on."""
    with site(command, SHOVEL_CORE) as here, site(command, OTHER_CORE) as there:
        with Client(here.uri) as client:
            client.exchange("x", "fanout")
            client.queue("q")
            client.bind("q", "x")
        here.set("federation-upstream", "u", {"uri": there.uri})
        policy = {"pattern": "^x$", "definition": {"federation-upstream": "u"}}
        here.api("PUT", "policies/%2F/p", policy)
        links = "federation-links/%2F"
        until(lambda: [link["status"] for link in here.api("GET", links)] == ["running"])
        here.api("PUT", f"{links}/u/pause")
        with Client(there.uri) as client:
            producer = client.producer(exchange="x", routing_key="")
            for _ in range(count // BATCH):
                producer.publish_batch([b"x" * 16] * BATCH)
            producer.flush(300)
        return timed(
            here, count, lambda: here.api("PUT", f"{links}/u/resume"),
            lambda: here.messages("q") == count,
        )  # fmt: skip


def begin_shovels(here: Site, there: Site, numbers: range) -> None:
    """Shovels between a queue of each of two brokers."""
    value = {"src-uri": "amqp://", "dest-uri": there.uri}
    for n in numbers:
        more = {"src-queue": f"from-{n}", "dest-queue": f"to-{n}"}
        here.set("shovel", f"s{n}", value | more)
    until(lambda: all(row["state"] == "Running" for row in here.api("GET", "shovels/%2F")))


def begin_links(here: Site, there: Site, numbers: range) -> None:
    """Federated exchanges without a binding."""
    if numbers.start == 0:
        here.set("federation-upstream", "u", {"uri": there.uri})
        policy = {"pattern": "^x", "definition": {"federation-upstream": "u"}}
        here.api("PUT", "policies/%2F/p", policy)
    with Client(here.uri) as client:
        for n in numbers:
            client.exchange(f"x{n}", "fanout")
    links = "federation-links/%2F"
    until(lambda: {link["status"] for link in here.api("GET", links)} == {"running"})


def idle(command: str, count: int, begin: Callable[[Site, Site, range], None]) -> str:
    """KiB of each of many shovels or links that have nothing to do."""
    with site(command, SHOVEL_CORE) as here, site(command, OTHER_CORE) as there:
        begin(here, there, range(10))
        time.sleep(SETTLED_S)
        before = here.memory()
        begin(here, there, range(10, 10 + count))
        time.sleep(SETTLED_S)
        kib, cpu = (here.memory() - before) / count / 1024, here.cpu_s()
        time.sleep(10)
        share = (here.cpu_s() - cpu) * 10
        return f"{kib:.1f} KiB each with what they are of, {share:.2f} % of a core"


PARTS: Final[dict[str, tuple[float, Callable[[str, int], Result]]]] = {
    "local": (2.0, lambda command, count: moved(command, count, local=True)),
    "remote": (4.0, lambda command, count: moved(command, count, local=False)),
    "rabbitmq": (0.2, lambda command, count: moved(command, count, local=False, by=RABBITMQ)),
    "remote-20000": (
        4.0, lambda command, count: moved(command, count, local=False, prefetch=20_000)
    ),
    "federation": (2.0, federated),
    "webhook": (0.1, posted),
}  # fmt: skip
"""What is measured, with its share of `--messages`."""
IDLES: Final = {"idle": begin_shovels, "idle-links": begin_links}
"""Of what there are many that do nothing."""


async def serve(port: int) -> None:
    """Answer everything with 200, as cheaply as Python can."""

    class Bare(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport: Any = transport

        def data_received(self, _: bytes) -> None:
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", port)
    await server.serve_forever()


def main() -> int:
    """Measure and print."""
    if sys.argv[1:2] == [SERVE]:
        import uvloop

        uvloop.run(serve(int(sys.argv[2])))
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--broker-command", default=f"{sys.executable} -m lavinmq")
    options = parser.parse_args()
    if options.short:
        options.messages, options.reps = options.messages // SHORT, 1
    is_whole = True
    wanted = [name for name in options.only.split(",") if name] or [*PARTS, *IDLES]
    for name in wanted:
        if name in IDLES:
            count = IDLE // SHORT if options.short else IDLE
            print(f"{name}: {idle(options.broker_command, count, IDLES[name])}", flush=True)
            continue
        share, part = PARTS[name]
        count = max(int(options.messages * share) // BATCH, 1) * BATCH
        try:
            results = [part(options.broker_command, count) for _ in range(options.reps)]
        except measure.BenchError as error:
            print(f"{name}: not measured: {str(error).splitlines()[-1]}", flush=True)
            is_whole = False
            continue
        rates = sorted(each.per_s / 1e3 for each in results)
        cpus = sorted(each.cpu_s_per_m for each in results)
        print(
            f"{name}: {statistics.median(rates):.0f} k/s ({rates[0]:.0f}-{rates[-1]:.0f}),"
            f" {statistics.median(cpus):.2f} CPU s/M ({cpus[0]:.2f}-{cpus[-1]:.2f})",
            flush=True,
        )
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
