"""`flow`: how much passes, when, how large and how late, by windows of time; and who lags behind.

From a stream as it grows (--checkpoint), from what a stream, an archive or a data directory holds
now (without). Windows go to the console, to Parquet, to an exchange as JSON, and into plots.
"""

from __future__ import annotations

import argparse
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline import plots
from lavinmq.pipeline.arguments import (
    Parser,
    add_broker,
    broker_options,
    check,
    connection_of,
    duration,
    positive,
)
from lavinmq.pipeline.dead_letters import printable
from lavinmq.pipeline.errors import UsageError
from lavinmq.pipeline.flow_figures import COLUMNS, GROUPS, Windows, as_messages, figures
from lavinmq.pipeline.job import Job, Result, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

HELP = (
    "queue:NAMES for streams (several by commas), segments:DIR for a data directory, or an archive"
)
HEAD = (
    *("window", "group", "messages", "per s", "KiB/s", "size p50", "p99", "latency p50, ms"),
    *("p99", "top keys"),
)
NUMBERS = 7
# What the driver keeps for console and plots; Parquet has them all.
WINDOWS_MAX = 20_000
SERIES_MAX = 8
KEYS_MAX = 100
MILLISECOND = 0.001


def configure(parser: Parser) -> None:
    """Add the options of this job."""
    add_broker(parser)
    add = parser.add_argument
    add("source", metavar="SOURCE", help=HELP)
    add(
        "--window",
        type=duration,
        metavar="DURATION",
        default=60.0,
        help="length of a window, default 1m",
    )
    add(
        "--by",
        type=groups,
        metavar="NAMES",
        default=("queue",),
        help=f"count apart by some of {', '.join(GROUPS)}; default queue",
    )
    add("--keys", type=positive, metavar="N", default=5, help="top routing keys, default 5")
    add("--rows", type=positive, metavar="N", default=40, help="windows printed, default 40")
    add("--output", metavar="DIR", help="write the windows there, as Parquet")
    add("--html", metavar="FILE", type=Path, help="write a page with tables and plots")
    add("--plot", metavar="DIR", type=Path, help="write the plots as PNG files")
    add("--publish", metavar="EXCHANGE", help="publish each window there, as JSON")
    add(
        "--routing-key",
        metavar="PREFIX",
        default="flow",
        help="of published windows: this, a dot, the group; default flow",
    )
    live = parser.add_argument_group("a stream as it grows").add_argument
    live("--checkpoint", metavar="DIR", help="follow the stream, and remember there what is done")
    live("--once", action="store_true", help="take what is there now and end")
    live("--trigger", type=duration, metavar="DURATION", default=10.0, help="default 10s")
    live(
        "--lateness",
        type=duration,
        metavar="DURATION",
        default=30.0,
        help="a window is complete this long after its end, default 30s",
    )
    live("--start", metavar="WHERE", default="earliest", help="earliest (default) or latest")


def groups(text: str) -> tuple[str, ...]:
    """Read names of GROUPS."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in GROUPS:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(GROUPS)}, got: {name}")
    return tuple(dict.fromkeys(names))


def run(run: Run) -> Result:
    """Count, and write what was asked for."""
    options = run.options
    streams = stream_names(options.source)
    check(
        {
            "--checkpoint needs queue:NAME as source": bool(options.checkpoint) and not streams,
            "--once needs --checkpoint": options.once and not options.checkpoint,
            f"--keys must be at most {KEYS_MAX}": options.keys > KEYS_MAX,
            "--window must be at least 1ms": options.window < MILLISECOND,
        }
    )
    if options.publish is not None or streams:
        broker_options(options)  # complains now, not after the session has started
    how = Windows(options.window, options.by, options.keys, options.lateness)
    report = Flow(run, how)
    consumers: list[dict[str, Any]] = []
    if options.checkpoint:
        counts = report.follow(streams)
        consumers = lags(options, streams)
    else:
        counts = {}
        if streams:  # asked first: whoever begins anew after a failure publishes once
            consumers = lags(options, streams)
        report.add(figures(open_messages(run, streams), how), f"batch-{uuid.uuid4().hex[:12]}")
    report.draw()
    return Result(
        values={
            "source": options.source,
            "windows": report.total,
            **counts,
            "latest": [json_row(row) for row in list(report.windows)[-options.rows :]],
            "consumers": consumers,
        },
        text=report.text(consumers),
    )


def stream_names(source: str) -> list[str]:
    """Return the streams of a source `queue:NAMES`, none for another one."""
    kind, _, names = source.partition(":")
    found = [name.strip() for name in names.split(",") if name.strip()]
    if kind == "queue" and not found:
        raise UsageError(f"no source: {source!r}; expected {HELP}")
    return found if kind == "queue" else []


def open_messages(run: Run, streams: Sequence[str], *, is_live: bool = False) -> DataFrame:
    """Return what there is, or what comes, with COLUMNS only. Raises: PipelineError."""
    from lavinmq.pipeline.sources import open_archive, parse_source

    options, columns = run.options, ",".join(COLUMNS)
    if streams:
        spark = run.spark
        reader: Any = spark.readStream if is_live else spark.read
        reader = reader.format("lavinmq").options(**broker_options(options))
        reader = reader.option("queue", ",".join(streams)).option("columns", columns)
        if is_live:
            reader = reader.option("startingOffsets", options.start)
        frame: DataFrame = reader.load()
        return frame
    source = parse_source(options.source)
    if source.kind == "segments":
        files = run.spark.read.format("lavinmq-segments").option("path", source.place)
        return files.option("columns", columns).load()
    return open_archive(run.spark, source.place).select(*COLUMNS)


def lags(options: argparse.Namespace, streams: Sequence[str]) -> list[dict[str, Any]]:
    """Return queue, name, offset and lag of every consumer with a position on the broker.

    A broker whose HTTP API is not there, or does not have that, has none to tell.
    """
    from lavinmq.spark.admin import Admin, NotServed

    found = []
    admin = Admin(connection_of(options))
    try:
        for queue in streams:
            for each in admin.consumers(queue):
                names = {"queue": queue, "name": str(each.get("name", ""))}
                found.append(names | {"offset": each.get("offset"), "lag": each.get("lag")})
    except NotServed:
        return []
    finally:
        admin.close()
    return found


def publishing_options(options: argparse.Namespace) -> dict[str, str]:
    """Return how to reach the broker; what else was given is for reading."""
    from lavinmq.spark.options import CONNECTION_NAMES

    names = {name.lower() for name in CONNECTION_NAMES}
    return {key: v for key, v in broker_options(options).items() if key.lower() in names}


class Flow:
    """Takes windows as they are complete: prints, writes, publishes and remembers them."""

    def __init__(self, run: Run, how: Windows) -> None:
        self._run = run
        self._how = how
        # Then windows are shown as they come, not at the end.
        self._is_live = bool(run.options.checkpoint) and not run.options.once
        self.windows: deque[dict[str, Any]] = deque(maxlen=WINDOWS_MAX)
        self.total = 0

    def follow(self, streams: Sequence[str]) -> dict[str, Any]:
        """Count a stream until it ends (--once) or a signal comes; return what was read."""
        from lavinmq.pipeline.files import Files
        from lavinmq.pipeline.jobs.archive import query_id
        from lavinmq.pipeline.streaming import run_stream

        run = self._run
        messages = open_messages(run, streams, is_live=True)
        checkpoint = Files(run.spark, run.options.checkpoint)

        def take(batch: DataFrame, number: int) -> None:
            # A batch that is done again writes the same place again.
            self.add(batch, f"{query_id(checkpoint)[:8]}-{number:09}")
            if self._is_live:
                self.draw()

        windows = figures(messages, self._how)
        writer = windows.writeStream.outputMode("append").foreachBatch(take)
        return run_stream(run, writer, "messages").values()

    def add(self, windows: DataFrame, name: str) -> None:
        """Take complete windows; `name` is unique to them and the same when they come again."""
        options = self._run.options
        windows = windows.orderBy("window_start", *self._how.by).persist()
        try:
            found = [row.asDict(recursive=True) for row in with_times(windows).toLocalIterator()]
            if not found:
                return
            if options.output:
                target = f"{options.output.rstrip('/')}/run={name}"
                windows.coalesce(1).write.mode("overwrite").parquet(target)
            if options.publish is not None:
                rows = as_messages(windows, options.routing_key, self._how.by)
                writer = rows.write.format("lavinmq").mode("append")
                writer = writer.options(**publishing_options(options))
                writer.option("exchange", options.publish).save()
        finally:
            windows.unpersist()
        self.total += len(found)
        self.windows.extend(found)
        if self._is_live and not options.json:
            print(self.table(found), flush=True)

    def table(self, windows: Sequence[Mapping[str, Any]]) -> str:
        """Return the last of these windows for a terminal."""
        rows = [self.cells(row) for row in windows[-self._run.options.rows :]]
        return plots.align(HEAD, rows, NUMBERS, behind=1)

    def cells(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns of HEAD."""
        keys = ", ".join(f"{show(key['routing_key'])} {key['messages']}" for key in row["top_keys"])
        return (
            time_text(row["start_s"]),
            self.group(row),
            f"{row['messages']:,}",
            f"{row['per_s']:,.1f}",
            f"{row['bytes_per_s'] / 1024:,.1f}",
            f"{row['size_p50']:,}",
            f"{row['size_p99']:,}",
            *("–" if row[n] is None else f"{row[n]:,.0f}" for n in ("latency_p50", "latency_p99")),
            keys,
        )

    def group(self, row: Mapping[str, Any]) -> str:
        """Return the name of a window's group."""
        return " ".join(show(row[name]) or "–" for name in self._how.by)

    def text(self, consumers: Sequence[Mapping[str, Any]]) -> str:
        """Return the report for a terminal."""
        parts = []
        if self.windows and not self._is_live:
            parts.append(self.table(list(self.windows)))
        if consumers:
            cells = [
                (
                    show(each["queue"]),
                    show(each["name"]),
                    *map(whole, (each["offset"], each["lag"])),
                )
                for each in consumers
            ]
            parts.append(plots.align(("stream", "consumer", "offset", "lag"), cells, 2))
        shown = min(len(self.windows), self._run.options.rows)
        is_part = shown < self.total and not self._is_live
        left_out = f", the last {shown} are shown" if is_part else ""
        parts.append(f"{self.total:,} windows{left_out}")
        return "\n\n".join(parts)

    def draw(self) -> None:
        """Write page and pictures, if they are asked for."""
        options = self._run.options
        if not self.windows or not (options.html or options.plot):
            return
        drawn = charts(list(self.windows), self.group)
        for name, figure in drawn.items() if options.plot else ():
            plots.save_png(figure, options.plot / f"{name}.png")
        if options.html:
            page = plots.Page(f"Flow of {show(options.source)}")
            for figure in drawn.values():
                page.figure(figure)
            page.heading("windows")
            page.table(HEAD, [self.cells(row) for row in reversed(self.windows)], NUMBERS, behind=1)
            page.save(options.html)


CHARTS = (
    ("rate", "messages per second", "per_s", 1.0),
    ("bytes", "KiB per second", "bytes_per_s", 1024.0),
    ("size", "body size p99, bytes", "size_p99", 1.0),
    ("latency", "latency p99, ms", "latency_p99", 1.0),
)


def charts(windows: Sequence[Mapping[str, Any]], group: Any) -> dict[str, Figure]:
    """Draw each of CHARTS with a line for each of the largest groups."""
    sums: dict[str, int] = {}
    for row in windows:
        sums[group(row)] = sums.get(group(row), 0) + row["messages"]
    largest = sorted(sums, key=lambda name: (-sums[name], name))[:SERIES_MAX]
    found = {}
    for name, unit, column, scale in CHARTS:
        series = {
            each: [
                (row["start_s"], None if row[column] is None else row[column] / scale)
                for row in windows
                if group(row) == each
            ]
            for each in largest
        }
        series = {
            key: points for key, points in series.items() if any(v is not None for _, v in points)
        }
        if series:
            found[name] = plots.lines(unit, series, unit, is_time=True)
    return found


def with_times(windows: DataFrame) -> DataFrame:
    """Give times as unix seconds, which mean the same in every time zone of a driver."""
    from pyspark.sql import functions as f

    moments = (("start_s", "window_start"), ("end_s", "window_end"))
    for name, column in moments:
        windows = windows.withColumn(name, f.unix_micros(column) / 1e6)
    return windows.drop(*(column for _, column in moments))


def json_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a window for --json."""
    times = {"window_start": time_text(row["start_s"]), "window_end": time_text(row["end_s"])}
    return times | {key: value for key, value in row.items() if key not in ("start_s", "end_s")}


def time_text(unix_s: float) -> str:
    """Return a time in UTC as ISO 8601."""
    moment = datetime.fromtimestamp(unix_s, UTC)
    precision = "milliseconds" if moment.microsecond else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def whole(number: int | None) -> str:
    """Return a number for a terminal; a broker may not tell it."""
    return "–" if number is None else f"{number:,}"


def show(name: str | None) -> str:
    """Return a name for a terminal, which must not obey it."""
    return printable((name or "").encode("utf-8", "surrogateescape"))


JOB = Job(
    name="flow",
    help="Rates, sizes, keys, latencies and lags of what passes, by windows of time",
    configure=configure,
    run=run,
)
