"""How each kind of row is measured, once, on a broker started for it.

Owns the order of steps of one repetition and the names of its figures. Called by `bench.py`.
Never repeats, summarises or prints.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from perf import generator, measure, topology
from perf.brokers import Contender, RunningBroker
from perf.generator import GeneratorRun
from perf.measure import BenchError
from perf.scenario import NULL, Row

# What the generators do beside sending and receiving (see flood.c): consumers get a head start and
# linger at the end; a draining consumer waits for more before it believes that the queue is empty.
HEAD_START_S = 0.3
TAIL_S = 0.1
DRAIN_IDLE_S = 1.1
IDLE_S = 5.0
FILL_CONFIRMS = "-c 100000"  # a window too wide to slow anybody down
SETTLE_TIMEOUT_S = 60.0
STORED_SHARE = 0.99  # without confirms the very last messages may be dropped
SLOWEST_PER_S = 10_000  # a fixed number of messages may take that long, plus a minute
SLOWEST_CHURN_PER_S = 100  # and of connections or queues, that long

Figures = dict[str, float]
# What generators report, and the names of these figures.
FIGURES = {
    "published": "published",
    "consumed": "consumed",
    "publish_rate": "publish_per_s",
    "consume_rate": "consume_per_s",
    "done": "done",
    "rate": "done_per_s",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements of a run share: programs by name, cores and seconds per row."""

    programs: Mapping[str, Path]
    broker_core: int
    generator_core: int
    seconds: int


def take(row: Row, contender: Contender, bench: Bench, scratch: Path) -> tuple[Figures, str]:
    """Measure a row once on a fresh broker; return its figures and the broker's version.

    Args: `scratch` is an empty directory. Raises `BenchError` when the row cannot be measured;
    its text includes the end of the broker's output if the broker died.
    """
    assert contender.launch is not None, "not installed"
    procedures = {
        "traffic": _traffic,
        "drain": _drain,
        "idle": _idle,
        "start": _start,
        "restart": _restart,
        "enqueue": _enqueue,
        "expire": _expire,
        "delayed": _delayed,
        "churn": _churn,
        "sweep": _sweep,
    }
    load = os.getloadavg()[0]
    broker = _broker(row, contender, bench, scratch)
    with broker:
        try:
            it = _Repetition(row, contender, bench, scratch, broker)
            measured = procedures[row.kind]
            figures = _beside_bare_syncs(it, measured) if row.bare_syncs else measured(it)
        except (BenchError, OSError) as error:
            raise BenchError(f"{error}\n{broker.log_tail()}".strip()) from error
        version = broker.version
    return {"load_before": round(load, 2)} | figures, version


@dataclass(slots=True)
class _Repetition:
    row: Row
    contender: Contender
    bench: Bench
    scratch: Path
    broker: RunningBroker

    def generate(self, options: str, limit: str, timeout_s: float) -> GeneratorRun:
        """Run the row's generator with extra options and a limit (`-z` or `-n` or nothing)."""
        argv = self._argv(options, limit)
        return generator.run_generator(argv, self.bench.generator_core, self.broker.pid, timeout_s)

    def staged(
        self, options: str, limit: str, timeout_s: float
    ) -> AbstractContextManager[GeneratorRun]:
        """Run the row's staged generator; within the context its connections are open."""
        return generator.staged_generator(
            self._argv(options, limit), self.bench.generator_core, self.broker.pid, timeout_s
        )

    def timed(self, options: str) -> AbstractContextManager[GeneratorRun]:
        """Run the row's staged generator for the seconds of a row."""
        return self.staged(options, f"-z {self.bench.seconds}", self.bench.seconds + 90)

    def _argv(self, options: str, limit: str) -> list[str]:
        return [
            str(self.bench.programs[self.row.generator]),
            *("-P", str(self.broker.port), "-s", str(self.row.body)),
            *shlex.split(self.row.queue),
            *shlex.split(options),
            *shlex.split(limit),
        ]

    def fill(self, options: str, count: int) -> None:
        """Put exactly `count` messages into the queue.

        With confirms: the generator ends without closing its connection, and a broker may then
        drop what it has read but not yet stored and confirmed.
        """
        self.generate(f"{options} {FILL_CONFIRMS}", f"-n {count}", 60 + count / SLOWEST_PER_S)
        with topology.Client(self.broker.port).open() as client:
            client.wait_for_messages(topology.QUEUE, count, SETTLE_TIMEOUT_S)

    def figures(self, run: GeneratorRun, idle_s: float) -> Figures:
        """Turn a run into figures; in `idle_s` of its life the generator did nothing."""
        messages = run.report[self.row.per]
        if not messages:
            raise BenchError(f"nothing was {self.row.per}: {run.report}")
        counted = {key: run.report[key] for key in FIGURES if key in run.report}
        active_s = run.wall_s - idle_s
        return (
            {FIGURES[key]: value for key, value in counted.items()}
            | {
                "broker_cpu_s": round(run.broker_cpu_s, 2),
                "cpu_s_per_million": cpu_s_per_million(run.broker_cpu_s, messages),
                "broker_cores": round(run.broker_cpu_s / active_s, 3),
                "generator_cpu_s": round(run.generator_cpu_s, 3),
                "generator_cores": round(run.generator_cpu_s / active_s, 3),
                "other_cores": round(run.other_cores, 3),
                "wall_s": round(run.wall_s, 3),
            }
            | _memory(self.broker)
            | _latency(run)
        )


def cpu_s_per_million(cpu_s: float, messages: int) -> float:
    """Return CPU-seconds per million messages."""
    return round(cpu_s / messages * 1e6, 4)


def _broker(row: Row, contender: Contender, bench: Bench, scratch: Path) -> RunningBroker:
    assert contender.launch is not None, "not installed"
    launch = contender.launch(scratch, row.body)
    return RunningBroker(launch, bench.broker_core, scratch / "output.log")


def _latency(run: GeneratorRun) -> Figures:
    latency = run.report.get("latency_us", {})
    keys = ("p50", "p95", "p99", "p999", "max")
    return {f"latency_{key}_ms": latency[key] / 1000 for key in keys if key in latency}


def _traffic(it: _Repetition) -> Figures:
    topology.declare(it.row.topology, it.broker.port)
    seconds = it.bench.seconds
    run = it.generate(it.row.options, f"-z {seconds}", seconds + 90)
    if run.report["consumed"] > 0:
        return it.figures(run, HEAD_START_S + TAIL_S)
    figures = it.figures(run, 0.0)
    if it.contender.name != NULL:
        _check_stored(it, run.report["published"])
    return figures


def _check_stored(it: _Repetition, published: int) -> None:
    """Make sure that what was published without a consumer is in the queues, not dropped.

    The generator counts a little before it stops and ends without closing its connection, so the
    counts cannot be equal.
    """
    queues = {"fanout10": topology.fanout_queues(), "deadletters": [topology.DEAD]}.get(
        it.row.topology, [topology.QUEUE]
    )
    with topology.Client(it.broker.port).open() as client:
        for queue in queues:
            stored = client.settled_count(queue, SETTLE_TIMEOUT_S)
            if stored < STORED_SHARE * published:
                raise BenchError(f"{published} messages published, {stored} in queue {queue}")


def _drain(it: _Repetition) -> Figures:
    count = it.row.fill_per_s[it.contender.name] * it.bench.seconds
    it.fill("-y 0", count)
    run = it.generate(it.row.options, "", 60 + count / SLOWEST_PER_S)
    if run.report["consumed"] != count:
        raise BenchError(f"{count} messages went in, {run.report['consumed']} came out")
    return it.figures(run, DRAIN_IDLE_S + TAIL_S)


def _idle(it: _Repetition) -> Figures:
    cpu = measure.tree_cpu_s(it.broker.pid)
    time.sleep(IDLE_S)
    cpu = measure.tree_cpu_s(it.broker.pid) - cpu
    return _memory(it.broker) | {"idle_cores": round(cpu / IDLE_S, 4)}


def _start(it: _Repetition) -> Figures:
    return _startup(it.broker)


def _restart(it: _Repetition) -> Figures:
    count = it.row.count[it.contender.name]
    it.fill(it.row.options, count)
    it.broker.kill()
    with _broker(it.row, it.contender, it.bench, it.scratch) as crashed:
        _check_restored(crashed, count)
        stop_s = crashed.stop()
        crashed.kill()  # its helper, too: the next one brings its own
    with _broker(it.row, it.contender, it.bench, it.scratch) as again:
        figures = _startup(again) | _memory(again)
        _check_restored(again, count)
    after_kill = {f"crash_{key}": value for key, value in _startup(crashed).items()}
    return {"messages": count, "stop_s": round(stop_s, 3)} | figures | after_kill


def _check_restored(broker: RunningBroker, count: int) -> None:
    with topology.Client(broker.port).open() as client:
        client.wait_for_messages(topology.QUEUE, count, SETTLE_TIMEOUT_S)


def _enqueue(it: _Repetition) -> Figures:
    count = it.row.count[it.contender.name]
    before = measure.tree_memory(it.broker.pid)
    run = it.generate(it.row.options, f"-n {count}", 60 + count / SLOWEST_PER_S)
    with topology.Client(it.broker.port).open() as client:
        stored = client.settled_count(topology.QUEUE, SETTLE_TIMEOUT_S)
    if not STORED_SHARE * count <= stored <= count:
        raise BenchError(f"{count} messages went in, the queue holds {stored}")
    figures = it.figures(run, 0.0)
    growth = figures["anon_mib"] - before.anon_mib
    disk = measure.disk_mib(it.scratch / "data")
    return figures | {
        "stored": stored,
        "anon_growth_mib": round(growth, 1),
        "disk_mib": round(disk, 1),
    }


def _expire(it: _Repetition) -> Figures:
    """Messages that die by themselves: CPU from the first publish until the queue is empty."""
    count = it.row.count[it.contender.name]
    cpu_s = measure.tree_cpu_s(it.broker.pid)
    began = time.monotonic()
    run = it.generate(it.row.options, f"-n {count}", 60 + count / SLOWEST_PER_S)
    figures = it.figures(run, 0.0)
    with topology.Client(it.broker.port).open() as client:
        client.wait_for_messages(topology.QUEUE, count, SETTLE_TIMEOUT_S)
        full = measure.tree_memory(it.broker.pid)
        client.wait_until_empty(topology.QUEUE, SETTLE_TIMEOUT_S + count / SLOWEST_PER_S)
    cpu_s = measure.tree_cpu_s(it.broker.pid) - cpu_s
    return figures | {
        "broker_cpu_s": round(cpu_s, 2),
        "cpu_s_per_million": cpu_s_per_million(cpu_s, count),
        "wall_s": round(time.monotonic() - began, 3),
        "anon_mib": round(full.anon_mib, 1),
    }


def _delayed(it: _Repetition) -> Figures:
    """Publish messages that wait, see them all released, consume them: the CPU of all that."""
    topology.declare(it.row.topology, it.broker.port)
    count = it.row.count[it.contender.name]
    before = measure.tree_memory(it.broker.pid)
    cpu = [measure.tree_cpu_s(it.broker.pid)]
    it.generate(it.row.options, f"-n {count}", 60 + count / SLOWEST_PER_S)
    cpu.append(measure.tree_cpu_s(it.broker.pid))
    growth = measure.tree_memory(it.broker.pid).anon_mib - before.anon_mib
    with topology.Client(it.broker.port).open() as client:
        if client.message_count(topology.QUEUE):
            raise BenchError("messages were released before the last was published")
        client.wait_for_messages(topology.QUEUE, count, SETTLE_TIMEOUT_S)
    cpu.append(measure.tree_cpu_s(it.broker.pid))
    run = it.generate("-x 0 -y 1 -d -D", "", 60 + count / SLOWEST_PER_S)
    if run.report["consumed"] != count:
        raise BenchError(f"{count} messages went in, {run.report['consumed']} came out")
    total = cpu[2] - cpu[0] + run.broker_cpu_s
    return it.figures(run, DRAIN_IDLE_S + TAIL_S) | {
        "broker_cpu_s": round(total, 2),
        "cpu_s_per_million": cpu_s_per_million(total, count),
        "publish_cpu_s_per_million": cpu_s_per_million(cpu[1] - cpu[0], count),
        "release_cpu_s_per_million": cpu_s_per_million(cpu[2] - cpu[1], count),
        "anon_growth_mib": round(growth, 1),
    }


def _churn(it: _Repetition) -> Figures:
    """Connections, channels, queues, bindings: `count` of them, or as many as there is time for."""
    before = measure.tree_memory(it.broker.pid)
    count = it.row.count.get(it.contender.name)
    if count is None:
        with it.timed(it.row.options) as run:
            return it.figures(run, 0.0)
    with it.staged(it.row.options, f"-n {count}", 60 + count / SLOWEST_CHURN_PER_S) as run:
        figures = it.figures(run, 0.0)
        growth_mib = figures["rss_mib"] - before.rss_mib
        return figures | {
            "rss_growth_mib": round(growth_mib, 1),
            "rss_kib_each": round(growth_mib * 1024 / count, 3),
            "mappings": measure.tree_mappings(it.broker.pid),
            "descriptors": measure.tree_descriptors(it.broker.pid),
        }


def _sweep(it: _Repetition) -> Figures:
    """The same work by ever more clients; the row's own figures are those of the last."""
    figures: Figures = {}
    costs = {}
    for clients in it.row.clients:
        with it.timed(f"{it.row.options} -c {clients}") as run:
            figures = it.figures(run, 0.0)
        costs[f"cpu_s_per_million_{clients}"] = figures["cpu_s_per_million"]
    first, *_, last = costs.values()
    return figures | costs | {"cpu_ratio": round(last / first, 3)}


def _beside_bare_syncs(it: _Repetition, measured: Callable[[_Repetition], Figures]) -> Figures:
    """Measure with the bare sync loop before and after it, each for half the time."""
    before = _bare_syncs_per_s(it)
    figures = measured(it)
    per_s = (before + _bare_syncs_per_s(it)) / 2
    ratio = round(figures["done_per_s"] / per_s, 3)
    return figures | {"sync_per_s": round(per_s, 1), "sync_ratio": ratio}


def _bare_syncs_per_s(it: _Repetition) -> float:
    """Run the loop where the broker writes, and on its core: the broker is idle meanwhile."""
    milliseconds = it.bench.seconds * 500
    argv = [str(it.bench.programs["syncloop"]), str(it.scratch), str(milliseconds)]
    run = generator.run_generator(argv, it.bench.broker_core, it.broker.pid, it.bench.seconds + 60)
    return float(run.report["rate"])


def _memory(broker: RunningBroker) -> Figures:
    memory = measure.tree_memory(broker.pid)
    return {"rss_mib": round(memory.rss_mib, 1), "anon_mib": round(memory.anon_mib, 1)}


def _startup(broker: RunningBroker) -> Figures:
    return {
        "startup_s": round(broker.startup_s, 3),
        "startup_cpu_s": round(broker.startup_cpu_s, 2),
    }
