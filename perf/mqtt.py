"""Measures MQTT, ours and mosquitto's side by side: `perf/mqtt.py --rows 'qos1*'`.

Owns the rows of MQTT and their report. The generator is `mqttflood.c`, which counts the broker's
processor time in the phase that counts, and checks what arrives. Each row and each broker starts
afresh; the broker has one core, the generator the other. See `perf/README.md`.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Any

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import bench, brokers, measure, topology
from perf.measure import BenchError

REPOSITORY = Path(__file__).resolve().parent.parent
OURS = f"{REPOSITORY}/.venv/bin/lavinmq -D {{data}} --bind 127.0.0.1"
OPTIONS = " -p {amqp} --http-port {http} --metrics-http-port {metrics} --mqtt-port {mqtt}"
MOSQUITTO_CONF = """\
listener {mqtt} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
"""
START_TIMEOUT_S = 60.0
ROW_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Row:
    """What the generator is told. `per`: what a cost is of. `at_most`: CPU seconds per million."""

    name: str
    options: str
    per: str
    at_most: float


ROWS = (
    Row("qos0-publish-only", "-z {s} -f ''", "published", 0.06),
    Row("qos0", "-z {s}", "published", 0.12),
    Row("qos0-v5", "-z {s} -V 5", "published", 0.14),
    Row("qos0-1k", "-z {s} -s 1024", "published", 0.9),
    Row("qos1-w100", "-z {s} -q 1 -Q 1 -w 100", "published", 0.6),
    Row("qos1-w1000", "-z {s} -q 1 -Q 1 -w 1000", "published", 0.35),
    Row("qos1-w100-persistent", "-z {s} -q 1 -Q 1 -w 100 -p", "published", 0.6),
    Row("qos1-w1000-persistent", "-z {s} -q 1 -Q 1 -w 1000 -p", "published", 0.35),
    Row("qos1-1k", "-z {s} -q 1 -Q 1 -w 100 -s 1024", "published", 1.5),
    Row("qos2-w100", "-z {s} -q 2 -Q 2 -w 100", "published", 1.2),
    Row("qos2-w100-persistent", "-z {s} -q 2 -Q 2 -w 100 -p", "published", 1.2),
    Row("fanout-10", "-z {s} -y 10", "delivered", 0.08),
    Row("fanout-1000", "-n 2000 -r 500 -y 1000", "delivered", 0.5),
    Row(
        "one-of-1000", "-z {s} -y 1000 -f flood/%s/+ -t flood/000001/x", "published", 0.15
    ),
    Row("shared-10", "-z {s} -y 10 -f $share/g/flood/t", "published", 0.15),
    Row("shared-10-qos1", "-z {s} -y 10 -f $share/g/flood/t -q 1 -Q 1", "published", 0.6),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each row and broker; return 1 when one failed."""
    parser = argparse.ArgumentParser(prog="mqtt.py", description=__doc__)
    parser.add_argument("--rows", default="*", metavar="GLOB", help="rows by name")
    parser.add_argument("--seconds", type=int, default=3, help="of a row")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row; the median counts")
    parser.add_argument("--ours", default=OURS, metavar="COMMAND", help="how ours is started")
    options = parser.parse_args(arguments)
    rows = [row for row in ROWS if fnmatchcase(row.name, options.rows)]
    names = ["ours"] + (["mosquitto"] if shutil.which("mosquitto") else [])
    try:
        programs = bench.build_programs(bench.BUILD)
        print(
            f"{'CPU seconds per million':26s} {'at most':>8s}" + "".join(f"{n:>24s}" for n in names)
        )
        for row in rows:
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for _ in range(options.repeat):
                for name in names:
                    runs[name].append(run(row, name, programs["mqttflood"], options))
            print(f"{row.name:26s} {row.at_most:8.2f}" + "".join(
                shown(row, runs[name]) for name in names), flush=True)  # fmt: skip
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        print(f"mqtt: {error}", file=sys.stderr)
        return 1
    return 0


def shown(row: Row, runs: list[dict[str, Any]]) -> str:
    """Cost, and messages in thousands per second."""
    cost = median(each[f"cpu_per_M_{row.per}"] for each in runs)
    rate = median(each["publish_rate"] for each in runs)
    return f"{cost:12.3f} {rate / 1e3:9.1f} k/s"


def run(row: Row, name: str, program: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One row on one broker: the generator's report. Raises `BenchError`."""
    with (
        tempfile.TemporaryDirectory(dir=bench.BUILD) as place,
        broker(name, Path(place), options.ours) as (pid, port),
    ):
        login = "-U guest -W guest" if name == "ours" else ""
        command = f"{program} -P {port} -j {pid} {login} {row.options.format(s=options.seconds)}"
        done = subprocess.run(
            measure.pinned(1, shlex.split(command)),
            capture_output=True,
            text=True,
            check=False,
            timeout=ROW_TIMEOUT_S,
        )
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:]
            raise BenchError(f"{row.name}, {name}: {done.returncode} {' '.join(why)}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report


@contextmanager
def broker(name: str, place: Path, ours: str) -> Iterator[tuple[int, int]]:
    """Run a broker on the first core; gives its process id and its port of MQTT."""
    ports = dict(zip(("amqp", "http", "metrics", "mqtt"), brokers.free_ports(4), strict=True))
    if name == "ours":
        command = ours.format(data=place / "data") + OPTIONS.format(**ports)
        (place / "data").mkdir()
    else:
        (place / "conf").write_text(MOSQUITTO_CONF.format(**ports))
        command = f"mosquitto -c {place}/conf"
    with (
        (place / "log").open("wb") as log,
        subprocess.Popen(
            measure.pinned(0, shlex.split(command)), stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            wait_for_port(process, ports["mqtt"], place / "log")
            yield process.pid, ports["mqtt"]
        finally:
            process.kill()


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Wait until somebody listens there. Raises `BenchError` with the end of the log."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection((topology.HOST, port), 1):
            return
        time.sleep(0.05)
    raise BenchError(f"no listener on {port}: {log.read_text(errors='replace')[-2000:]}")


if __name__ == "__main__":
    sys.exit(main())
