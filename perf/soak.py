"""An hour of mixed load with random disconnects against a broker of its own: `make soak`.

Owns the command line, the order of a run, the samples of what the broker holds, and the result:
a table, a JSON file, and exit code 1 if a confirmed message was lost, a message came twice without
the redelivered flag, an actor was surprised, or the broker ended. The load is in `soak_load.py`,
the books in `soak_ledger.py`. See `perf/README.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import brokers, measure
from perf.brokers import RunningBroker
from perf.measure import BenchError
from perf.soak_ledger import Ledger
from perf.soak_load import HOW_TO_LEAVE, Load, cast

BUILD = Path(__file__).resolve().parent.parent / "build" / "perf"
SAMPLE_EVERY_S = 10.0
EPISODE_S = 8.0
PATIENCE_S = 30.0
STOP_S = 120.0
QUIET_S = 2.0
# Segments that fill within seconds, so that files come and go all the time.
CONFIGURATION = "[main]\nsegment_size = 1048576\n"
FIGURES = ("rss_mib", "anon_mib", "descriptors", "mappings", "threads", "cpu_s", "disk_mib")

Sample = dict[str, Any]


class Soak:
    """One run: a broker, its load, and samples of both."""

    def __init__(
        self,
        broker: RunningBroker,
        data_dir: Path,
        seconds: float,
        seed: int,
        ends: tuple[str, ...] = HOW_TO_LEAVE,
    ) -> None:
        self.broker = broker
        self.samples: list[Sample] = []
        self.ledger = Ledger()
        self._load = Load(broker.port, self.ledger, min(EPISODE_S, seconds / 6), ends)
        self._data_dir = data_dir
        self._seconds = seconds
        self._seed = seed
        self._started = time.monotonic()

    def run(self) -> None:
        """Load the broker, drain it, and sample before, meanwhile and after."""
        self.sample("idle")
        self._load.prepare()
        self._started = time.monotonic()
        actors = cast(self._load, self._seed)
        for actor in actors:
            actor.start()
        try:
            self._watch()
        finally:
            self._load.stop.set()
        deadline = time.monotonic() + STOP_S
        for actor in actors:
            actor.join(max(0.0, deadline - time.monotonic()))
            if actor.is_alive():
                self.ledger.fail(f"{actor.name}: still waits for the broker")
        self._load.drain(PATIENCE_S)
        self.ledger.close()
        self._load.tidy()
        time.sleep(QUIET_S)
        self.sample("drained")

    def sample(self, phase: str) -> None:
        """Keep what the broker holds now. Raises `BenchError` when it is gone."""
        try:
            held = measure.footprint(self.broker.pid)
        except (OSError, KeyError):
            raise BenchError(f"the broker ended:\n{self.broker.log_tail()}") from None
        at = 0.0 if phase == "idle" else time.monotonic() - self._started
        disk = measure.disk_mib(self._data_dir)
        entry = {"at_s": at, "phase": phase} | asdict(held) | {"disk_mib": disk}
        entry |= {"ready": sum(self._load.ready.values())} | self.ledger.totals
        self.samples.append(entry)
        print(_line(entry), flush=True)

    def _watch(self) -> None:
        end = self._started + self._seconds
        while (left := end - time.monotonic()) > 0 and not self._load.stop.is_set():
            self._load.stop.wait(min(left, SAMPLE_EVERY_S))
            self.sample("load")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 0, or 1 if anything failed."""
    options = parse(arguments)
    try:
        result = run(options)
    except (BenchError, OSError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(render(result))
    print(f"wrote {options.out}")
    return 1 if result["failures"] else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="soak.py", description="Hours of mixed load.")
    add = parser.add_argument
    add("--minutes", type=float, default=60.0, help="length of the load (default 60)")
    add("--seed", type=int, default=random.SystemRandom().randrange(1 << 30), help="of the load")
    add("--orderly", action="store_true", help="no connection is cut, all end by agreement")
    add("--broker-command", default=brokers.DEFAULT_COMMAND, metavar="CMD", help="the broker")
    add("--data-dir", type=Path, default=BUILD, help="where it writes (default build/perf)")
    add("--out", type=Path, default=BUILD / "soak.json", help="result file")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Start a broker, soak it, stop it; return the result. Raises `BenchError`."""
    options.data_dir.mkdir(parents=True, exist_ok=True)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})  # leave the broker's core alone, if there are two
    try:
        with tempfile.TemporaryDirectory(prefix="soak-", dir=options.data_dir.resolve()) as root:
            return _run_in(Path(root), cores[0], options)
    finally:
        os.sched_setaffinity(0, cores)


def at_minute_one(samples: Sequence[Sample]) -> Sample:
    """Return the sample of the load nearest to its first minute's end."""
    loaded = [sample for sample in samples if sample["phase"] == "load"]
    return min(loaded or samples, key=lambda sample: abs(sample["at_s"] - 60))


def render(result: dict[str, Any]) -> str:
    """Return the figures before the load, at minute 1, at its end and after it as a table."""
    columns = [result[name] for name in ("idle", "minute_1", "end", "drained")]
    lines = [f"{'':12}" + "".join(f"{name:>12}" for name in ("idle", "minute 1", "end", "drained"))]
    for figure in FIGURES:
        values = "".join(f"{column[figure]:12.1f}" for column in columns)
        lines.append(f"{figure:12}{values}")
    lines += [f"{name}: {value}" for name, value in sorted(result["totals"].items())]
    lines += [f"FAILURE: {failure}" for failure in result["failures"]]
    return "\n".join(lines)


def _run_in(root: Path, core: int, options: argparse.Namespace) -> dict[str, Any]:
    (root / "lavinmq.ini").write_text(CONFIGURATION)
    contender = brokers.ours("ours", "lavinmq", options.broker_command)
    assert contender.launch is not None
    log = root / "broker.log"
    with RunningBroker(contender.launch(root, 0), core, log) as broker:
        print(f"seed {options.seed}, broker {broker.pid} on port {broker.port}", flush=True)
        ends = ("close",) if options.orderly else HOW_TO_LEAVE
        soak = Soak(broker, root / "data", options.minutes * 60, options.seed, ends)
        soak.run()
        stop_s = broker.stop()
    if "Traceback" in (text := log.read_text(errors="replace")):
        soak.ledger.fail("the broker's log: " + text[text.index("Traceback") :][:2000])
    loaded = [sample for sample in soak.samples if sample["phase"] == "load"]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": measure.machine_facts(),
        "version": broker.version,
        "minutes": options.minutes,
        "seed": options.seed,
        "stop_s": stop_s,
        "idle": soak.samples[0],
        "minute_1": at_minute_one(soak.samples),
        "end": loaded[-1],
        "drained": soak.samples[-1],
        "totals": dict(soak.ledger.totals),
        "failures": soak.ledger.failures,
        "samples": soak.samples,
    }


def _line(sample: Sample) -> str:
    figures = " ".join(f"{name}={sample[name]:.1f}" for name in FIGURES)
    counted = {"at_s", "phase", *FIGURES}
    counts = " ".join(f"{name}={sample[name]}" for name in sorted(sample.keys() - counted))
    return f"{sample['at_s']:7.1f}s {sample['phase']} {figures} {counts}"


if __name__ == "__main__":
    sys.exit(main())
