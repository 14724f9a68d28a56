"""The text for Prometheus: `python perf/micro/exposition.py [QUEUES]`.

Writes seven numbers of so many queues (10000) by our own lines, as `/metrics/detailed` does, and by
the client library of Prometheus. Prints the CPU time of each (the least of five), what it keeps in
memory at its peak, and the longest time between two places where others may be served. What is read
of a queue costs the same in both and is left out.
"""

from __future__ import annotations

import argparse
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from lavinmq.http.metrics.exposition import Exposition, counter, gauge

REPETITIONS = 5
METRICS = [gauge(f"detailed_queue_{name}", f"Messages {name}") for name in ("ready", "unacked")] + [
    counter(f"detailed_queue_{name}_total", f"Messages {name}")
    for name in ("all", "deduplication", "published", "delivered", "acked")
]


def own(names: list[str]) -> Iterator[str]:
    """Our lines, one by one."""
    out = Exposition("lavinmq", is_open=False)
    for metric in METRICS:
        yield out.head(metric)
        for value, name in enumerate(names):
            yield out.sample(metric, value, out.labels(vhost="/", queue=name))


class Queues(Collector):
    """The same as the library takes it."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    def collect(self) -> Iterable[Metric]:
        """All of it."""
        for metric in METRICS:
            family = CounterMetricFamily(
                f"lavinmq_{metric.name}", metric.help, labels=["vhost", "queue"]
            )
            for value, name in enumerate(self._names):
                family.add_metric(["/", name], value)
            yield family


def library(names: list[str]) -> Iterator[bytes]:
    """The whole answer: there is nothing before it."""
    registry = CollectorRegistry()
    registry.register(Queues(names))
    yield generate_latest(registry)


def cpu_s(write: Callable[[list[str]], Iterator[object]], names: list[str]) -> tuple[float, float]:
    """The CPU time of an answer, and the longest of its steps."""
    least, longest = float("inf"), float("inf")
    for _ in range(REPETITIONS):
        steps = []
        began = time.process_time()
        for _ in write(names):
            steps.append(time.process_time())
        took = steps[-1] - began
        least = min(least, took)
        longest = min(longest, max(b - a for a, b in zip([began, *steps], steps, strict=False)))
    return least, longest


def peak_bytes(write: Callable[[list[str]], Iterator[object]], names: list[str]) -> int:
    """What it holds at most while nobody keeps what it gives."""
    tracemalloc.start()
    for _ in write(names):
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def main() -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queues", nargs="?", type=int, default=10_000)
    names = [f"queue-{number}" for number in range(parser.parse_args().queues)]
    for name, write in (("own lines", own), ("prometheus_client", library)):
        took, longest = cpu_s(write, names)
        peak = peak_bytes(write, names)
        print(
            f"{name}: {took * 1000:.0f} ms, longest step {longest * 1000:.2f} ms, "
            f"{peak / 1024:.0f} KiB at most"
        )


if __name__ == "__main__":
    main()
