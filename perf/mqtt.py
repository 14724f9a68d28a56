"""Measures MQTT, ours and mosquitto's side by side: `perf/mqtt.py --rows 'qos1*'`.

Owns the rows of MQTT and their report. The generator is `mqttflood.c`, which counts the broker's
processor time in the phase that counts, and checks what arrives. Each row and each broker starts
afresh, in turns, so that whatever else the machine does meets all of them; the broker has one core,
the generator the other. See `perf/README.md`.
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
from collections.abc import Callable, Iterator, Sequence
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
OURS = (
    f"{REPOSITORY}/.venv/bin/lavinmq -D {{data}} --bind 127.0.0.1 --control-unix-path {{data}}.sock"
)
OPTIONS = " -p {amqp} --http-port {http} --metrics-http-port {metrics} --mqtt-port {mqtt}"
MOSQUITTO_CONF = """\
listener {mqtt} 127.0.0.1
allow_anonymous true
max_queued_messages 0
max_inflight_messages 0
"""
FLOORED = (
    "qos0", "qos1-w100-persistent", "qos1-w1000-persistent", "fanout-10", "fanout-1000",
    "shared-10", "shared-10-qos1", "stored", "idle",
)  # fmt: skip
"""Rows of which `mqttfloor.c` has the system calls."""
START_TIMEOUT_S = 60.0
ROW_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Figure:
    """What a row comes to, out of the generator's report. `at_most`: the target; None: none but
    what mosquitto has in the same run."""

    name: str
    value: Callable[[dict[str, Any]], float]
    at_most: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """What the generator is told, and what is read from what it says."""

    name: str
    options: str
    figures: tuple[Figure, ...]


def flow(name: str, options: str, at_most: float, per: str = "published") -> Row:
    """Processor seconds of a million messages that are published, or delivered."""
    figure = Figure(f"CPU s per M {per}", lambda got: float(got[f"cpu_per_M_{per}"]), at_most)
    return Row(name, options, (figure,))


def told(name: str, key: str, at_most: float) -> Figure:
    """A figure that stands in the report."""
    return Figure(name, lambda got: float(got[key]), at_most)


def each_connect(got: dict[str, Any]) -> float:
    """Processor time of a CONNECT with its CONNACK, microseconds."""
    return float(got["connect"]["cpu_s"]) / int(got["connect"]["n"]) * 1e6


def each_idle(got: dict[str, Any]) -> float:
    """Memory of a connection with its session, bytes."""
    grown_kb = int(got["hold"]["anon_kb"]) - int(got["connect"]["anon_kb"][0])
    return grown_kb * 1024 / int(got["connect"]["n"])


def idle(name: str, count: int) -> Row:
    """So many clients with a clean session that come, and do nothing."""
    return Row(name, f"-x 0 -f '' -y {count} -z 1 -h 2", (
        Figure("CPU us per CONNECT", each_connect, 60),
        Figure("bytes per connection", each_idle, 1024),
    ))  # fmt: skip


def latency(share: str) -> Callable[[dict[str, Any]], float]:
    """Microseconds from the moment when a message was due."""
    return lambda got: float(got["latency_us"][share])


ROWS = (
    flow("qos0-publish-only", "-z {s} -f ''", 0.06),
    flow("qos0", "-z {s}", 0.12),
    flow("qos0-v5", "-z {s} -V 5", 0.14),
    flow("qos0-1k", "-z {s} -s 1024", 0.9),
    flow("qos1-w100", "-z {s} -q 1 -Q 1 -w 100", 0.6),
    flow("qos1-w1000", "-z {s} -q 1 -Q 1 -w 1000", 0.35),
    flow("qos1-w100-persistent", "-z {s} -q 1 -Q 1 -w 100 -p", 0.6),
    flow("qos1-w1000-persistent", "-z {s} -q 1 -Q 1 -w 1000 -p", 0.35),
    flow("qos1-1k", "-z {s} -q 1 -Q 1 -w 100 -s 1024", 1.5),
    flow("qos2-w100", "-z {s} -q 2 -Q 2 -w 100", 1.2),
    flow("qos2-w100-persistent", "-z {s} -q 2 -Q 2 -w 100 -p", 1.2),
    flow("fanout-10", "-z {s} -y 10", 0.08, "delivered"),
    flow("fanout-1000", "-n 2000 -r 500 -y 1000", 0.5, "delivered"),
    flow("one-of-1000", "-z {s} -y 1000 -f flood/%s/+ -t flood/000001/x", 0.15),
    flow("one-of-19000", "-z {s} -y 19000 -f flood/%s/+ -t flood/000001/x", 0.15),
    flow("shared-10", "-z {s} -y 10 -f $share/g/flood/t", 0.15),
    flow("shared-10-qos1", "-z {s} -y 10 -f $share/g/flood/t -q 1 -Q 1", 0.6),
    Row("retained", "-m retained -n 300000 -t r/%n -q 1 -w 1000 -f r/#", (
        told("CPU s per M stored", "publish_cpu_per_M", 0.4),
        told("CPU s per M given", "subscribe_cpu_per_M", 0.2),
    )),
    flow("stored", "-n 300000 -t r/%n -N 300000 -q 1 -w 1000 -R -y 0 -f ''", 0.4),
    Row("offline", "-m backlog -n 1000000 -w 1000", (
        told("CPU s per M enqueued", "enqueue_cpu_per_M", 0.35),
        told("CPU s per M delivered", "deliver_cpu_per_M", 0.3),
        told("bytes per message", "anon_bytes_each", 64),
    )),
    Row("filters", "-m storm -y 100 -F 1000 -f fleet/%s/%k/+", (
        told("bytes per filter", "anon_bytes_each", 350),
        told("CPU s per M subscribed", "subscribe_cpu_per_M", 60),
    )),
    idle("idle", 8000),
    idle("idle-1000", 1000),
    idle("idle-19000", 19_000),
    Row("latency", "-z {s} -r 10000 -q 1 -Q 1 -I", (
        Figure("p50, us", latency("p50"), None),
        Figure("p99, us", latency("p99"), None),
    )),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each row and broker; return 1 when one failed."""
    parser = argparse.ArgumentParser(prog="mqtt.py", description=__doc__)
    parser.add_argument("--rows", default="*", metavar="GLOB", help="rows by name")
    parser.add_argument("--seconds", type=int, default=3, help="of a row")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each row; the median counts")
    parser.add_argument("--ours", default=OURS, metavar="COMMAND", help="how ours is started")
    parser.add_argument(
        "--before", metavar="COMMAND", help="an earlier one of ours, for comparison"
    )
    parser.add_argument(
        "--floor", action="store_true", help="what the kernel alone takes of a row, too"
    )
    parser.add_argument("--realtime", action="store_true", help="above all else on the machine")
    parser.add_argument("--out", type=Path, metavar="FILE", help="all figures, as JSON")
    options = parser.parse_args(arguments)
    for name in ("ours", "before"):
        command = getattr(options, name)
        if command is not None and "{data}" not in command:
            # It would write where a broker of this machine has its data, and find what is there.
            parser.error(f"--{name}: {{data}} stands for its data directory, and is missing")
    rows = [row for row in ROWS if fnmatchcase(row.name, options.rows)]
    contenders = ["ours"] + (["before"] if options.before else [])
    contenders += ["mosquitto"] if shutil.which("mosquitto") else []
    contenders += ["floor"] if options.floor else []
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    try:
        programs = bench.build_programs(bench.BUILD)
        heads = "".join(f"{name:>28s}" for name in contenders)
        print(f"{'row':22s} {'figure':24s} {'at most':>8s}{heads}")
        for row in rows:
            names = [each for each in contenders if each != "floor" or row.name in FLOORED]
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for _ in range(options.repeat):
                for name in names:
                    runs[name].append(run(row, name, programs["mqttflood"], options))
            for figure in row.figures:
                values = {name: [figure.value(got) for got in runs[name]] for name in names}
                found.setdefault(row.name, {})[figure.name] = values
                most = "" if figure.at_most is None else f"{figure.at_most:g}"
                cells = "".join(shown(values[name]) for name in names)
                print(f"{row.name:22s} {figure.name:24s} {most:>8s}{cells}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    except (BenchError, OSError, subprocess.SubprocessError) as error:
        print(f"mqtt: {error}", file=sys.stderr)
        return 1
    return 0


def shown(values: list[float]) -> str:
    """The median, and from where to where."""
    text = f"{median(values):.3g} ({min(values):.3g} ... {max(values):.3g})"
    return f"{text:>28s}"


def run(row: Row, name: str, program: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One row on one broker: the generator's report. Raises `BenchError`."""
    with (
        tempfile.TemporaryDirectory(dir=bench.BUILD) as place,
        broker(name, Path(place), options, row) as (pid, port),
    ):
        login = "" if name in ("mosquitto", "floor") else "-U guest -W guest"
        command = f"{program} -P {port} -j {pid} {login} {row.options.format(s=options.seconds)}"
        done = subprocess.run(
            placed(1, command, options),
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
def broker(
    name: str, place: Path, options: argparse.Namespace, row: Row
) -> Iterator[tuple[int, int]]:
    """Run a broker on the first core; gives its process id and its port of MQTT."""
    ports = dict(zip(("amqp", "http", "metrics", "mqtt"), brokers.free_ports(4), strict=True))
    if name == "floor":
        how = "share" if "$share" in row.options else "each"
        window = row.options.partition("-w ")[2].split(" ")[0] or "100"
        command = f"{bench.BUILD}/mqttfloor {place} {ports['mqtt']} {window} {how}"
    elif name != "mosquitto":
        template = options.ours if name == "ours" else options.before
        command = template.format(data=place / "data") + OPTIONS.format(**ports)
        (place / "data").mkdir()
    else:
        (place / "conf").write_text(MOSQUITTO_CONF.format(**ports))
        command = f"mosquitto -c {place}/conf"
    with (
        (place / "log").open("wb") as log,
        subprocess.Popen(
            placed(0, command, options), stdout=log, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            wait_for_port(process, ports["mqtt"], place / "log")
            yield process.pid, ports["mqtt"]
        finally:
            process.kill()


def placed(core: int, command: str, options: argparse.Namespace) -> list[str]:
    """A command on its core, and above others there if that is wanted."""
    pinned = measure.pinned(core, shlex.split(command))
    return ["chrt", "-f", "50", *pinned] if options.realtime else pinned


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
