"""What the management pages cost the broker: open pages, browsing, tracing, maps; and their weight.

Run from the root of the repository, on a machine with nothing else to do:

    .venv/bin/python perf/pages.py [--seconds 20] [--reps 3] [--queues 10000] [--only NAME,...]

"Longest turn" is the processor time that the broker's main thread used while a client waited for a
round trip (`bystander.py`), which other work on the machine does not make longer. The result goes
to standard output, and to a file with `--out`.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf import brokers, generator, management, measure, topology
from perf.bystander import Bystander

ONE = "queues/%2F/idle-7"
TABLE = "queues?page=1&page_size=100"
PAGES = (
    ("overview", "advice"), (TABLE,), (TABLE + "&sort=messages&sort_reverse=true",),
    ("queues?page=7&page_size=100",), ("overview", "advice"), (TABLE,), ("nodes",),
    ("connections?page=1&page_size=100",), ("exchanges?page=1&page_size=100",),
    (f"{ONE}?consumer_list_length=20", f"{ONE}/bindings?page=1&page_size=100"),
)  # fmt: skip
"""What ten pages watch."""
STATIC = management.ROOT / "lavinmq" / "http" / "ui" / "static"

BROWSES = 100
PUBLISHER_STARTS_S = 1.5
Result = dict[str, Any]


class Bench(management.Bench):
    """The same broker, and what pages do with it."""

    @contextmanager
    def streams(self, pages: tuple[tuple[str, ...], ...]) -> Iterator[list[int]]:
        """Have pages open; yields how many bytes each of them was told so far."""
        told = [0] * len(pages)
        connections = []

        def read(at: int, answer: http.client.HTTPResponse) -> None:
            with suppress(OSError, http.client.HTTPException, AttributeError, ValueError):
                while piece := answer.read1(65536):
                    told[at] += len(piece)

        for at, views in enumerate(pages):
            query = "&".join(f"view={quote(view, safe='')}" for view in views)
            connection = http.client.HTTPConnection(topology.HOST, self.http, timeout=60)
            headers = management.LOGIN | {"Accept-Encoding": "gzip"}
            connection.request("GET", f"/api/live?rate=5&{query}", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise measure.BenchError(f"live: {answer.status} {answer.read()!r}")
            connections.append((connection, answer))
            threading.Thread(target=read, args=(at, answer), daemon=True).start()
        try:
            yield told
        finally:
            for connection, _ in connections:
                if connection.sock is not None:
                    connection.sock.close()
                connection.close()

    def publishing(self, broker: brokers.RunningBroker, more: str) -> tuple[float, float]:
        """Messages per second of one publisher with a consumer, and the broker's processor
        seconds for a million of them."""
        argv = [str(self.flood), "-P", str(broker.port), "-z", str(self.options.seconds)]
        run = generator.run_generator(
            [*argv, *more.split()], management.GENERATOR_CORE, broker.pid,
            self.options.seconds + 60,
        )  # fmt: skip
        millions = run.report["published"] / 1e6
        return float(run.report["publish_rate"]), run.broker_cpu_s / millions

    def compared(
        self,
        broker: brokers.RunningBroker,
        more: str,
        beside: Callable[[], AbstractContextManager[list[float]]],
    ) -> Result:
        """A publisher alone and beside something, in turn; the longest turn of each."""
        alone, with_it = [], []
        for _ in range(self.options.reps):
            alone.append(self.publishing(broker, more))
            with beside():
                with_it.append(self.publishing(broker, more))
        pairs = list(zip(with_it, alone, strict=True))
        ratios = sorted(this[0] / that[0] for this, that in pairs)
        return {
            "alone_per_s": _middle(rate for rate, _ in alone),
            "with_per_s": _middle(rate for rate, _ in with_it),
            "rate_ratio": _middle(ratios),
            "rate_ratio_quartiles": [ratios[len(ratios) // 4], ratios[len(ratios) * 3 // 4]],
            "cpu_ratio": _middle(this[1] / that[1] for this, that in pairs),
        }

    @contextmanager
    def doing(self, ask: Callable[[int], object]) -> Iterator[list[float]]:
        """Ask for something again and again meanwhile; yields the seconds that answers took."""
        took: list[float] = []
        done = threading.Event()

        def work() -> None:
            at = 0
            while not done.is_set():
                began = time.perf_counter()
                ask(at)
                took.append(time.perf_counter() - began)
                at += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield took
        finally:
            done.set()
            thread.join()

    def post(self, path: str, body: Result) -> Any:
        """A POST on a connection of its own. Returns the JSON of the answer."""
        connection = http.client.HTTPConnection(topology.HOST, self.http, timeout=120)
        try:
            headers = management.LOGIN | {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise measure.BenchError(f"{path}: {answer.status} {content[:200]!r}")
            return json.loads(content) if path.endswith("browse") else content
        finally:
            connection.close()


def open_pages(bench: Bench) -> Result:
    """Ten pages over thousands of queues: processor time, longest turn, memory, bytes told."""
    seconds = bench.options.seconds
    with bench.broker(tls=False) as broker:
        bench.declare(broker.port)
        for view in {view for page in PAGES for view in page}:
            bench.get(f"/api/{view}")
        time.sleep(6)
        before = measure.tree_memory(broker.pid).anon_mib
        idle = _cpu(broker, seconds)
        result: Result = {"queues": bench.options.queues, "idle_core": idle}
        for name, pages in (("different", PAGES), ("alike", (PAGES[1],) * 10)):
            with (
                bench.streams(pages) as told,
                Bystander(broker.port, broker.pid, management.GENERATOR_CORE) as bystander,
            ):
                time.sleep(6)
                shared = list(told)
                with bystander.watch() as longest:
                    time.sleep(seconds)
                bystander._pipe.send("stop")  # its round trips are no pages
                cpu = _cpu(broker, seconds)
                result[name] = {
                    "core": cpu - idle, "longest_turn_ms": longest["computed_ms"],
                    "bytes_per_page_and_s": sum(b - a for a, b in zip(shared, told, strict=True))
                    / len(pages) / (2 * seconds),
                }  # fmt: skip
        time.sleep(6)
        result["memory_growth_mib"] = measure.tree_memory(broker.pid).anon_mib - before
    return result


def _middle(values: Iterable[float]) -> float:
    several = sorted(values)
    return several[len(several) // 2]


def _cpu(broker: brokers.RunningBroker, seconds: float) -> float:
    began = measure.tree_cpu_s(broker.pid)
    time.sleep(seconds)
    return (measure.tree_cpu_s(broker.pid) - began) / seconds


def browse(bench: Bench) -> Result:
    """Browsing millions of messages at random positions with filters, beside a publisher."""
    n, rng = bench.options.messages, random.Random(7)
    with bench.broker(tls=False) as broker:
        fill = [str(bench.flood), "-P", str(broker.port), "-q", "deep", "-d", "-p", "-y", "0",
                "-n", str(n), "-z", "600", "-c", "100000"]  # fmt: skip
        subprocess.run(fill, check=True, stdout=subprocess.DEVNULL)

        filters: tuple[Result, ...] = ({}, {"text": "nowhere"}, {"routing_key": "nowhere"})

        def ask(at: int) -> None:
            body: Result = {"position": rng.randrange(n), "count": 100, "scan": 1_000_000}
            bench.post("/api/queues/%2F/deep/browse", body | filters[at % 3])

        result: Result = {"messages": json.loads(bench.get("/api/queues/%2F/deep"))["messages"]}
        for at, name in enumerate(("plain", "by_text", "by_key")):
            began = measure.tree_cpu_s(broker.pid)
            for _ in range(BROWSES):
                ask(at)
            result[f"{name}_cpu_ms"] = (measure.tree_cpu_s(broker.pid) - began) / BROWSES * 1e3
        with Bystander(broker.port, broker.pid, management.GENERATOR_CORE) as bystander:
            with bystander.watch() as calm:
                time.sleep(bench.options.seconds)
            with bystander.watch() as longest, bench.doing(ask) as took:
                time.sleep(bench.options.seconds)
        result |= {
            "browses": len(took), "browse_s_median": sorted(took)[len(took) // 2],
            "longest_turn_calm_ms": calm["computed_ms"],
            "longest_turn_ms": longest["computed_ms"],
        }  # fmt: skip
        result |= bench.compared(broker, "-q beside", lambda: bench.doing(ask))
        # Rates differ by more than a browse takes, and before and behind a publisher it is alone:
        # how long the same work takes beside one says which part of the loop it gets.
        publisher = threading.Thread(target=bench.publishing, args=(broker, "-q beside"))
        publisher.start()
        time.sleep(PUBLISHER_STARTS_S)
        began = time.perf_counter()
        ask_text = {"position": 0, "count": 100, "scan": 1_000_000, "text": "nowhere"}
        bench.post("/api/queues/%2F/deep/browse", ask_text)
        took_s = time.perf_counter() - began
        publisher.join()
        return result | {
            "by_text_beside_s": took_s, "share_beside": result["by_text_cpu_ms"] / 1e3 / took_s,
        }  # fmt: skip


def trace(bench: Bench) -> Result:
    """Following a queue, and an exchange, at full speed."""
    result: Result = {}
    body = {"seconds": bench.options.seconds, "rate": 100, "truncate": 4096}
    with bench.broker(tls=False) as broker:
        with topology.Client(broker.port).open() as client:
            client.declare_queue("passed")
            client.bind("passed", "amq.direct", "passed")
        for name, path, more in (
            ("queue", "/api/queues/%2F/passed/trace", "-N -q passed"),
            ("exchange", "/api/exchanges/%2F/amq.direct/trace",
             "-N -q passed -e amq.direct -k passed"),
        ):  # fmt: skip

            def ask(_: int, path: str = path) -> None:
                bench.post(path, body)

            result[name] = bench.compared(broker, more, partial(bench.doing, ask))
            with (
                Bystander(broker.port, broker.pid, management.GENERATOR_CORE) as bystander,
                bench.doing(ask),
                bystander.watch() as longest,
            ):
                time.sleep(bench.options.seconds)
            result[name]["longest_turn_ms"] = longest["computed_ms"]
    return result


def maps(bench: Bench) -> Result:
    """The lists that a map of thousands of objects reads, one after the other."""
    paths = [f"/api/{kind}?page={page}&page_size=1000&columns=name,vhost"
             for kind in ("queues", "exchanges", "bindings") for page in range(1, 11)]  # fmt: skip
    with bench.broker(tls=False) as broker:
        bench.declare(broker.port)
        with (
            Bystander(broker.port, broker.pid, management.GENERATOR_CORE) as bystander,
            bench.doing(lambda at: bench.get(paths[at % len(paths)])) as took,
            bystander.watch() as longest,
        ):
            time.sleep(bench.options.seconds)
    return {"lists": len(took), "longest_turn_ms": longest["computed_ms"]}


def weight(_: Bench) -> Result:
    """Bytes of a first load, compressed as they are served: frame, style, and a page's modules."""
    pages: Result = {}
    for page in sorted((STATIC / "pages").glob("*.js")):
        if page.stem in ("docs",):
            continue
        seen: set[Path] = {
            STATIC / "shell.html", page, page.with_suffix(".html"), *STATIC.glob("*.css"),
            STATIC / "icons.svg",
        }  # fmt: skip
        html = page.with_suffix(".html").read_text()
        if "uplot" in html:
            seen |= {STATIC / "vendor" / "uplot.js", STATIC / "vendor" / "uplot.css"}
        _imports(page, seen)
        files = [each for each in seen if each.is_file()]
        pages[page.stem] = sum(len(gzip.compress(each.read_bytes(), 9)) for each in files)
    return {"largest": max(pages.items(), key=lambda each: each[1]), "pages": pages}


def _imports(module: Path, seen: set[Path]) -> None:
    for line in module.read_text().splitlines():
        if line.startswith(("import ", "} from ")) and '"' in line:
            found = (module.parent / line.rsplit('"', 2)[1]).resolve()
            if found not in seen:
                seen.add(found)
                _imports(found, seen)


PARTS: dict[str, Callable[[Bench], Result]] = {
    "weight": weight, "open_pages": open_pages, "trace": trace, "maps": maps, "browse": browse,
}  # fmt: skip


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--messages", type=int, default=10_000_000)
    return management.run_parts(parser, PARTS, Bench)


if __name__ == "__main__":
    sys.exit(main())
