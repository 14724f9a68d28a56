"""What the Spark part manages: the compiled loops alone, and queries over a running broker.

Run from the root of the repository, on a machine with nothing else to do:

    .venv/bin/python perf/spark_bench.py [--rows GLOB,...] [--messages 2000000] [--reps 3]

Needs the extra `spark` and Java. Spark runs in this process's JVM as `local[2]`, the broker as a
process of its own beside it. The rows are the functions of `perf/spark_rows.py`. They are measured
in turn, `--reps` times. The result has the form of the others; it goes to standard output, and to
`--out` (`perf/results/<date>-spark.json` at a release).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pamqp import commands

from perf import brokers, measure, record, topology
from tests.support import raw_wire as wire
from tests.support.raw_connection import Address, Connection, Properties

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[1]
BODY = bytes(range(64, 91)) * 4  # 108 bytes
STREAM = "bench"
PUBLISHED_AT_ONCE = 1000
CONFIRM_S = 60.0
OPTIONS = " -D {{data}} -b 127.0.0.1 -p {{port}} --http-port {http} --metrics-http-port -1"
OPTIONS += " --mqtt-port {{mqtt_port}} --control-unix-path {{scratch}}/control.sock"


@dataclass(frozen=True, slots=True)
class Took:
    """What one repetition took; CPU is that of this process and all its children.

    `more` are figures that only this row has.
    """

    rows: int
    seconds: float
    cpu_s: float
    more: Mapping[str, float] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """As it stands in the result."""
        return {
            "rows": self.rows,
            "done_per_s": round(self.rows / self.seconds),
            "cpu_s_per_million": round(self.cpu_s * 1e6 / self.rows, 3),
            **self.more,
        }


class Bench:
    """What rows share: made when the first of them asks for it, ended by `close`.

    `n` is how many messages or rows a row is to handle.
    """

    def __init__(self, messages: int, broker_command: str, scratch: Path) -> None:
        self.n = messages
        self.scratch = scratch
        self._command = broker_command
        (self._http_port,) = brokers.free_ports(1)
        self._stack = ExitStack()

    def close(self) -> None:
        """End the broker and Spark."""
        self._stack.close()

    def timed(self, work: Callable[[], int]) -> Took:
        """Run `work`, which returns how many rows it has handled."""
        cpu_s, began = measure.tree_cpu_s(os.getpid()), time.perf_counter()
        rows = work()
        seconds = time.perf_counter() - began
        if rows <= 0:
            raise measure.BenchError("no rows were handled")
        return Took(rows, seconds, measure.tree_cpu_s(os.getpid()) - cpu_s)

    @cached_property
    def broker(self) -> brokers.RunningBroker:
        """A running broker; its CPU counts as that of a child."""
        command = self._command + OPTIONS.format(http=self._http_port)
        launch = brokers.ours("ours", "ours", command).launch
        assert launch is not None
        directory = self.scratch / "broker"
        directory.mkdir()
        core = max(os.sched_getaffinity(0))
        running = brokers.RunningBroker(launch(directory, len(BODY)), core, directory / "log")
        return self._stack.enter_context(running)

    @cached_property
    def stream(self) -> dict[str, str]:
        """Options of the format `lavinmq` for a stream of `n` messages of 108 bytes."""
        publish = wire.build(commands.Basic.Publish, exchange="", routing_key=STREAM)
        content = wire.encode_content(1, Properties(delivery_mode=2), BODY, wire.FRAME_MAX)
        messages = (wire.encode_method(1, publish) + content) * PUBLISHED_AT_ONCE
        with Connection.open(Address(topology.HOST, self.broker.port)) as connection:
            channel = connection.channel()
            channel.declare_queue(STREAM, durable=True, arguments={"x-queue-type": "stream"})
            channel.confirm_select()
            for sent in range(PUBLISHED_AT_ONCE, self.n + 1, PUBLISHED_AT_ONCE):
                connection.write(messages)
                while (channel.confirm(CONFIRM_S).delivery_tag or 0) < sent:
                    pass
        url = f"amqp://guest:guest@{topology.HOST}:{self.broker.port}/%2F"
        http = f"http://{topology.HOST}:{self._http_port}"
        return {"url": url, "httpUrl": http, "queue": STREAM}

    @cached_property
    def spark(self) -> SparkSession:
        """A session on two cores."""
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = str(ROOT)
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[2]")
            .appName("bench")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "1g")
            .config("spark.driver.host", topology.HOST)
            .config("spark.driver.bindAddress", topology.HOST)
            .config("spark.local.dir", str(self.scratch))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        self._stack.callback(session.stop)
        return session

    def consumed(self, frame: DataFrame) -> int:
        """Have Spark make every row of a frame, and keep none; returns how many there were.

        The sums need all columns, as a real query would, so nothing can be left out.
        """
        from pyspark.sql import functions as F

        sizes = [
            F.sum(F.length(name)) for name, kind in frame.dtypes if kind in ("string", "binary")
        ]
        return int(frame.agg(F.count("*"), *sizes, F.max(frame.columns[0])).collect()[0][0])


Row = Callable[[Bench], Took]


def measured(
    names: list[str], rows: dict[str, Row], bench: Bench, reps: int
) -> list[dict[str, Any]]:
    """Run rows in turn, so that all of them meet the same minutes."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for name in names:
        rows[name](bench)  # the first time is that of imports and of Java's compiler
    for _ in range(reps):
        for name in names:
            runs[name].append(rows[name](bench).figures())
            print(f"{name:24} {json.dumps(runs[name][-1])}", flush=True)
    return [
        {
            "name": name,
            "title": (rows[name].__doc__ or "").strip().splitlines()[0],
            "results": {"ours": {"repetitions": figures, **record.summarise(figures)}},
        }
        for name, figures in runs.items()
    ]


def main() -> int:
    """Measure what was asked for."""
    from perf.spark_rows import ROWS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="*", help=f"of {', '.join(ROWS)}; with wildcards")
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--broker-command", default=f"{sys.executable} -m lavinmq")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    patterns = options.rows.split(",")
    names = [name for name in ROWS if any(fnmatch.fnmatch(name, each) for each in patterns)]
    if not names or options.messages < PUBLISHED_AT_ONCE or options.reps < 1:
        parser.error(f"nothing to measure; there are the rows {', '.join(ROWS)}")
    began = datetime.now(UTC).isoformat(timespec="seconds")
    load = round(os.getloadavg()[0], 1)
    build = ROOT / "build" / "perf"
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as place:
        bench = Bench(options.messages // 1000 * 1000, options.broker_command, Path(place))
        try:
            rows = measured(names, ROWS, bench, options.reps)
        finally:
            bench.close()
    results = {
        "format": record.FORMAT,
        "date": began,
        "machine": measure.machine_facts(),
        "load_before": load,  # above 0, others were busy too: rates are then too low
        "messages": bench.n,
        "repetitions": options.reps,
        "rows": rows,
    }
    text = json.dumps(results, indent=1) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
