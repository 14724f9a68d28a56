"""What operating the broker costs its messages: the HTTP API polled, long lists, TLS, memory.

Run from the root of the repository, on a machine with nothing else to do:

    .venv/bin/python perf/management.py [--seconds 5] [--reps 3] [--queues 10000] [--only NAME,...]

Every part starts a broker of its own on one core and does the asking from another. Compared are
runs in turn within one part, with and without what is looked at. The result goes to
`perf/results/<date>-management.json` with `--out`, and to standard output always.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf import brokers, generator, measure, topology

ROOT = Path(__file__).resolve().parents[1]
BROKER_CORE, GENERATOR_CORE = 0, 1
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
POLLS_PER_S = 10
POLLED = (
    "/api/overview",
    "/api/queues?page=1&page_size=100",
    "/api/queues?page=3&page_size=100&sort=messages&sort_reverse=true",
    "/metrics",
    "/api/connections?page=1",
)
LONG = ("/api/queues?page=1&page_size=10000", "/metrics/detailed?family=queue_coarse_metrics")
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    " -subj /CN=localhost -keyout {key} -out {cert}"
)
OPTIONS = (
    " -D {{data}} -b 127.0.0.1 -p {{port}} --http-port {http} --metrics-http-port {metrics}"
    " --amqps-port {amqps} --https-port {https} --mqtt-port {{mqtt_port}}"
    " --control-unix-path {{scratch}}/control.sock"
)

Result = dict[str, Any]


class Bench:
    """One broker with every listener on, and the ways to load it."""

    def __init__(self, options: argparse.Namespace, scratch: Path, flood: Path) -> None:
        self.options = options
        self.scratch = scratch
        self.flood = flood
        self.http, self.metrics, self.amqps, self.https = brokers.free_ports(4)

    @contextmanager
    def broker(self, *, tls: bool) -> Iterator[brokers.RunningBroker]:
        """A fresh broker, pinned."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as place:
            ports = {
                "http": self.http, "metrics": self.metrics,
                "amqps": self.amqps, "https": self.https,
            }  # fmt: skip
            command = self.options.broker_command + OPTIONS.format(**ports)
            if tls:
                cert, key = Path(place) / "cert.pem", Path(place) / "key.pem"
                subprocess.run(
                    CERTIFICATE.format(cert=cert, key=key).split(), check=True, capture_output=True
                )
                command += f" --cert {cert} --key {key}"
            contender = brokers.ours("ours", "ours", command)
            assert contender.launch is not None
            launch = contender.launch(Path(place), 16)
            with brokers.RunningBroker(launch, BROKER_CORE, Path(place) / "log") as running:
                yield running

    def traffic(
        self,
        broker: brokers.RunningBroker,
        port: int,
        more: str = "",
        program: Path | None = None,
    ) -> Result:
        """One producer and one consumer for the seconds of a run. Args: program: not `flood`."""
        argv = [
            str(program or self.flood),
            "-P",
            str(port),
            "-z",
            str(self.options.seconds),
            *more.split(),
        ]
        run = generator.run_generator(
            argv, GENERATOR_CORE, broker.pid, self.options.seconds + 60
        )  # fmt: skip
        millions = run.report["consumed"] / 1e6
        return {"per_s": run.report["consume_rate"], "cpu_s_per_m": run.broker_cpu_s / millions}

    def get(self, path: str) -> bytes:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection(topology.HOST, self.http, timeout=60)
        try:
            connection.request("GET", path, headers=LOGIN)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise measure.BenchError(f"{path}: {answer.status} {content[:200]!r}")
            return content
        finally:
            connection.close()

    @contextmanager
    def asking(self, paths: tuple[str, ...], pause_s: float) -> Iterator[list[float]]:
        """Ask for these in turn meanwhile; yields the seconds that answers took."""
        took: list[float] = []
        done = threading.Event()

        def ask() -> None:
            at = 0
            while not done.wait(pause_s):
                began = time.perf_counter()
                self.get(paths[at % len(paths)])
                took.append(time.perf_counter() - began)
                at += 1

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield took
        finally:
            done.set()
            thread.join()

    def declare(self, port: int) -> None:
        """Many queues that nobody uses."""
        with topology.Client(port).open() as client:
            for number in range(self.options.queues):
                client.declare_queue(f"idle-{number}")


def idle(bench: Bench) -> Result:
    """Memory with every listener on, after a request to each kind."""
    with bench.broker(tls=True) as broker:
        time.sleep(2)
        fresh = measure.tree_memory(broker.pid)
        for path in ("/api/overview", "/api/queues", "/metrics"):
            bench.get(path)
        time.sleep(1)
        used = measure.tree_memory(broker.pid)
    return {
        "resident_mib": fresh.rss_mib, "anonymous_mib": fresh.anon_mib,
        "resident_after_requests_mib": used.rss_mib,
        "anonymous_after_requests_mib": used.anon_mib,
    }  # fmt: skip


def polled(bench: Bench) -> Result:
    """Messages per second and CPU, with the API polled and without, in turn."""
    plain, beside = [], []
    with bench.broker(tls=False) as broker:
        bench.declare(broker.port)
        for _ in range(bench.options.reps):
            plain.append(bench.traffic(broker, broker.port))
            with bench.asking(POLLED, 1 / POLLS_PER_S) as took:
                beside.append(bench.traffic(broker, broker.port))
    return {
        "without": _median(plain), "with": _median(beside), "requests": len(took),
        "rate_ratio": _ratio(beside, plain, "per_s"),
        "cpu_ratio": _ratio(beside, plain, "cpu_s_per_m"),
    }  # fmt: skip


def held_up(bench: Bench) -> Result:
    """How long other clients wait while long lists are made: round trips of a passive declare."""
    with bench.broker(tls=False) as broker:
        bench.declare(broker.port)
        calm = _round_trips(broker.port, bench.options.seconds)
        with bench.asking(LONG, 0.0) as took:
            busy = _round_trips(broker.port, bench.options.seconds)
    return {
        "calm_ms": calm, "with_long_lists_ms": busy,
        "lists": len(took), "list_s": statistics.median(took),
    }  # fmt: skip


def _round_trips(port: int, seconds: float) -> Result:
    took = []
    with topology.Client(port).open() as client:
        client.declare_queue("probe")
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            client.declare_queue("probe")
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(0.001)
    took.sort()
    return {
        "p50": took[len(took) // 2], "p99": took[len(took) * 99 // 100],
        "p999": took[len(took) * 999 // 1000], "max": took[-1],
    }  # fmt: skip


def requests(bench: Bench) -> Result:
    """Requests per second for one queue by kept connections, and the CPU of one."""
    rates, costs = [], []
    with bench.broker(tls=False) as broker:
        bench.declare(broker.port)
        for _ in range(bench.options.reps):
            cpu = measure.tree_cpu_s(broker.pid)
            count = _requests_for(bench, bench.options.seconds)
            rates.append(count / bench.options.seconds)
            costs.append((measure.tree_cpu_s(broker.pid) - cpu) / count * 1e6)
    return {"per_s": statistics.median(rates), "cpu_us": statistics.median(costs)}


def _requests_for(bench: Bench, seconds: float) -> int:
    script = (
        "import http.client,sys,time\n"
        f"c=[http.client.HTTPConnection('{topology.HOST}',{bench.http}) for _ in range(4)]\n"
        f"h={LOGIN!r}\nuntil=time.perf_counter()+{seconds}\nn=0\n"
        "while time.perf_counter()<until:\n"
        "  for each in c: each.request('GET','/api/queues/%2F/idle-7',headers=h)\n"
        "  for each in c:\n"
        "    a=each.getresponse(); a.read(); n+=1\n"
        "    if a.status!=200: sys.exit(f'{a.status}')\n"
        "print(n)"
    )
    argv = measure.pinned(GENERATOR_CORE, [sys.executable, "-c", script])
    return int(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)


def tls(bench: Bench) -> Result:
    """TLS beside plain TCP, both ways at once, by the generator in both of its forms."""
    result: Result = {}
    flood_tls = bench.scratch / "flood-tls"
    source, form = ROOT / "perf" / "flood.c", ROOT / "perf" / "tls_client.h"
    compiler = ["cc", "-O2", "-pthread", "-include", str(form), "-o", str(flood_tls), str(source)]
    subprocess.run([*compiler, "-lssl", "-lcrypto"], check=True)
    with bench.broker(tls=True) as broker:
        result["cipher"] = _cipher(bench.amqps)
        for size in (16, 1024):
            plain, wrapped = [], []
            for _ in range(bench.options.reps):
                plain.append(bench.traffic(broker, broker.port, f"-s {size}"))
                wrapped.append(bench.traffic(broker, bench.amqps, f"-s {size}", flood_tls))
            result[f"{size} bytes"] = {
                "plain": _median(plain), "tls": _median(wrapped),
                "cpu_ratio": _ratio(wrapped, plain, "cpu_s_per_m"),
            }  # fmt: skip
    return result


def _cipher(port: int) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with context.wrap_socket(socket.create_connection((topology.HOST, port))) as connection:
        return str(connection.cipher())


def _median(runs: list[Result]) -> Result:
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _ratio(these: list[Result], those: list[Result], name: str) -> float:
    """The median of the ratios of neighbours."""
    ratios = [this[name] / that[name] for this, that in zip(these, those, strict=True)]
    return float(statistics.median(ratios))


PARTS: dict[str, Callable[[Bench], Result]] = {
    "idle": idle, "polled": polled, "held_up": held_up, "requests": requests, "tls": tls,
}  # fmt: skip


def run_parts(
    parser: argparse.ArgumentParser,
    parts: Mapping[str, Callable[[Any], Result]],
    bench: Callable[[argparse.Namespace, Path, Path], Bench] = Bench,
) -> int:
    """Measure the parts that are asked for, each on a broker of its own, and print them.

    Args: parser: has what the script takes besides; bench: what the parts are given. Returns: 0.
    """
    parser.add_argument("--queues", type=int, default=10_000)
    parser.add_argument("--only", default=",".join(parts))
    parser.add_argument("--broker-command", default=f"{sys.executable} -m lavinmq")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measure.raise_descriptor_limit()
    results: Result = {"machine": measure.machine_facts()}
    if "seconds" in options:
        results["seconds"] = options.seconds
    build = ROOT / "build" / "perf"
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as place:
        flood = Path(place) / "flood"
        compile_flood = ["cc", "-O2", "-pthread", "-o", str(flood), str(ROOT / "perf" / "flood.c")]
        subprocess.run(compile_flood, check=True)
        for name in options.only.split(","):
            results[name] = parts[name](bench(options, Path(place), flood))
            print(name, json.dumps(results[name], indent=1), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--reps", type=int, default=3)
    return run_parts(parser, PARTS)


if __name__ == "__main__":
    sys.exit(main())
