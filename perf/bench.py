"""Measures the broker against its targets, RabbitMQ and the null broker: `make bench`.

Owns the command line and the order of a run: every row, every repetition, every broker in turn,
all in one run on one machine. The work is in `procedure.py`, the broker processes in
`brokers.py`, the page in `report.py`. See `perf/README.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import brokers, measure, procedure, record, report, scenario
from perf.brokers import Contender
from perf.measure import BenchError
from perf.procedure import Bench
from perf.scenario import Row, ScenarioError

REPOSITORY = Path(__file__).resolve().parent.parent
PERF = REPOSITORY / "perf"
BUILD = REPOSITORY / "build" / "perf"
DOCUMENT = REPOSITORY / "docs" / "performance.md"
PROFILES = REPOSITORY / "docs" / "performance-profiles.md"
PROGRAMS = (
    "flood", "topicflood", "churnflood", "syncloop", "nullbroker", "mqttflood", "mqttfloor",
)  # fmt: skip
NAMES = ("ours", "rabbitmq", "null")
MIN_FREE_GIB = 10
LONG_S, SHORT_S = 10, 2
NOT_SHORT = {"topic-100k", "restart-10m", "enqueue-10m"}
"""Rows that take RabbitMQ more than half a minute; without it they are short."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0, 1 for an error or a failed repetition, 130 for an interrupt."""
    options = parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        if options.render:
            return _render(record.load(options.render), options.report or DOCUMENT)
        return run(options)
    except (BenchError, ScenarioError, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: interrupted; the rows so far are in the result file", file=sys.stderr)
        return 130


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line and fill in where results go."""
    parser = argparse.ArgumentParser(prog="bench.py", description="Broker benchmark.")
    add = parser.add_argument
    add("--rows", default="*", metavar="GLOB", help="rows by name, several with commas")
    add("--seconds", type=_positive, help="length of a row (default 10, or 2 with --short)")
    add("--reps", type=_positive, default=3, help="repetitions of a row (default 3)")
    add("--short", action="store_true", help="20 minutes: RabbitMQ once, and not its slowest rows")
    add("--brokers", default=",".join(NAMES), help="of: ours,rabbitmq,null (default all)")
    add("--broker-command", default=brokers.DEFAULT_COMMAND, metavar="CMD", help="our broker")
    add("--baseline", metavar="CMD", help="a second build of ours to compare with")
    add("--long", action="store_true", help="also 100 million messages (5 GB of disk)")
    add("--data-dir", type=Path, default=BUILD, help="where brokers write (default build/perf)")
    add("--out", type=Path, help="result file (default perf/results/<date>.json for a full run)")
    add("--report", type=Path, help="page to write (default docs/performance.md for a full run)")
    add("--render", type=Path, metavar="JSON", help="only write the page of an earlier result")
    options = parser.parse_args(arguments)
    options.seconds = options.seconds or (SHORT_S if options.short else LONG_S)
    options.brokers = options.brokers.split(",")
    if unknown := set(options.brokers) - set(NAMES):
        parser.error(f"unknown broker {', '.join(sorted(unknown))}")
    if options.baseline:
        options.brokers.insert(1, "baseline")
    is_full = options.rows == "*"
    if options.report is None and not options.render:
        # Only a full run may replace the committed page.
        beside = (options.out or BUILD / "last.json").with_suffix(".md")
        options.report = DOCUMENT if is_full and options.out is None else beside
    if options.out is None:
        today = f"{datetime.now(UTC):%Y-%m-%d}.json"
        options.out = PERF / "results" / today if is_full else BUILD / "last.json"
    return options


def run(options: argparse.Namespace) -> int:
    """Measure, save after every row, and write the page."""
    rows = scenario.select(scenario.load_rows(), options.rows, options.brokers, long=options.long)
    programs = build_programs(BUILD)
    contenders = [_contender(name, options, programs) for name in options.brokers]
    result = _new_record(options, contenders)
    broker_core, generator_core = _cores()
    bench = Bench(programs, broker_core, generator_core, options.seconds)
    measure.raise_descriptor_limit()
    os.sched_setaffinity(0, {generator_core})  # keep the broker's core free of this script, too
    failed = 0
    with _data_root(options.data_dir) as root:
        for row in rows:
            reps = {each.name: _repetitions(row, each, options) for each in contenders}
            entry, failures = _measure_row(row, contenders, bench, reps, root, result)
            failed += failures
            result["rows"].append(entry)
            record.save(result, options.out)
    print(f"wrote {options.out}")
    _render(result, options.report)
    return 1 if failed else 0


def build_programs(folder: Path) -> Mapping[str, Path]:
    """Compile the C programs into a folder; return their paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        source, target = PERF / f"{name}.c", folder / name
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-pthread", "-o", target, source], check=True)
    return {name: folder / name for name in PROGRAMS}


def _repetitions(row: Row, contender: Contender, options: argparse.Namespace) -> int:
    """Return how often a row is measured for a broker."""
    if options.short and contender.name == "rabbitmq":
        return int(row.name not in NOT_SHORT)
    return int(options.reps)


def _measure_row(
    row: Row,
    contenders: Sequence[Contender],
    bench: Bench,
    reps: Mapping[str, int],
    root: Path,
    result: dict[str, Any],
) -> tuple[dict[str, Any], int]:
    """Measure one row: repetitions outside, brokers inside, so that drift meets them all."""
    taking_part = [
        each for each in contenders if each.launch and row.runs_on(each.name) and reps[each.name]
    ]
    taken: dict[str, list[dict[str, Any]]] = {each.name: [] for each in taking_part}
    for number in range(1, max(reps.values()) + 1):
        for contender in taking_part:
            if number > reps[contender.name]:
                continue
            of = reps[contender.name]
            print(f"{row.name} {number}/{of} {contender.label}", end=": ", flush=True)
            figures = _measure_once(row, contender, bench, root, result)
            taken[contender.name].append(figures)
            print(figures.get(record.ERROR) or report.one_line(figures), flush=True)
    results = {name: {"repetitions": each} | record.summarise(each) for name, each in taken.items()}
    entry = {"name": row.name, "title": row.title, "note": row.note, "floor": list(row.floor)}
    failures = sum(record.ERROR in each for many in taken.values() for each in many)
    return entry | {"results": results}, failures


def _measure_once(
    row: Row, contender: Contender, bench: Bench, root: Path, result: dict[str, Any]
) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix=f"{contender.name}-", dir=root))
    try:
        figures, version = procedure.take(row, contender, bench, scratch)
    except BenchError as error:
        return {record.ERROR: str(error)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if version:
        result["brokers"][contender.name]["version"] = version
    return dict(figures)


def _contender(name: str, options: argparse.Namespace, programs: Mapping[str, Path]) -> Contender:
    if name == "ours":
        return brokers.ours(name, "lavinmq", options.broker_command)
    if name == "baseline":
        return brokers.ours(name, "baseline", options.baseline)
    return brokers.null_broker(programs["nullbroker"]) if name == "null" else brokers.rabbitmq()


def _new_record(options: argparse.Namespace, contenders: Sequence[Contender]) -> dict[str, Any]:
    return {
        "format": record.FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": options.seconds,
        "repetitions": options.reps,
        "short": options.short,
        "machine": measure.machine_facts(),
        "brokers": {
            each.name: {"label": each.label, "installed": each.launch is not None}
            for each in contenders
        },
        "rows": [],
    }


def _cores() -> tuple[int, int]:
    """Return the broker's and the generator's core; one and the same if there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[1 % len(allowed)]


@contextmanager
def _data_root(parent: Path) -> Iterator[Path]:
    """Give a new directory on a real file system with enough space, and remove it afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    parent = parent.resolve()
    kind = measure.file_system(parent, Path("/proc/mounts").read_text())
    if kind in ("tmpfs", "ramfs"):
        raise BenchError(f"{parent} is on {kind}: memory, not a disk (see --data-dir)")
    if shutil.disk_usage(parent).free < MIN_FREE_GIB * 1024**3:
        raise BenchError(f"less than {MIN_FREE_GIB} GiB free below {parent} (see --data-dir)")
    with tempfile.TemporaryDirectory(prefix="data-", dir=parent) as root:
        yield Path(root)


def _render(result: Mapping[str, Any], path: Path) -> int:
    profiles = PROFILES.read_text() if PROFILES.exists() else ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.render(result, scenario.load_targets(), profiles))
    print(f"wrote {path}")
    return 0


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
