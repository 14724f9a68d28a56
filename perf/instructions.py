"""Counts the broker's instructions for each message of a row: `perf/instructions.py --rows GLOB`.

Owns runs of the broker under callgrind. The counts repeat to about 1 % whatever else the machine
does, so that two builds can be compared where times cannot. The kernel's part is not in them. See
`perf/README.md`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import bench, brokers, management, measure, scenario, topology
from perf.brokers import RunningBroker
from perf.measure import BenchError
from perf.scenario import Row, ScenarioError

REPOSITORY = Path(__file__).resolve().parent.parent
PERF = REPOSITORY / "perf"
CALLGRIND = "valgrind --tool=callgrind --callgrind-out-file={scratch}/callgrind.%p"
# Callgrind counts each byte of `rep movsb` as an instruction. The C library copies much at once by
# it: what is left of a read when a portion is over, which depends on the machine's other load.
COPIES = "GLIBC_TUNABLES=glibc.cpu.x86_rep_movsb_threshold=0x40000000"
TOTALS = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)
TIMEOUT_S = 600.0
SETTLE_S = 0.5
IDLE_CPU_S = 0.1 * SETTLE_S
IDLE_LOOKS = 4
EXCHANGE = "amq.direct"
INNER = "bench.inner"
FOLLOWED = {
    "queue": ("queues/%2F/flood", "-N -q flood"),
    "exchange": (f"exchanges/%2F/{EXCHANGE}", f"-N -q flood -e {EXCHANGE} -k flood"),
    "inner": (f"exchanges/%2F/{INNER}", f"-N -q flood -e {EXCHANGE} -k inner"),
    "undelayed": (
        f"exchanges/%2F/{topology.DELAYED}", f"-N -q flood -e {topology.DELAYED} -k flood"
    ),
    "delayed": (
        f"exchanges/%2F/{topology.DELAYED}",
        f"-N -q flood -e {topology.DELAYED} -k flood -T x-delay=1",
    ),
}  # fmt: skip
"""What is traced, as a path of the API, and how the generator gets messages there: `inner` is
reached through another exchange; messages of a delayed exchange wait a millisecond, or do not."""


@dataclass(frozen=True, slots=True)
class Run:
    """One count. `build`: a checkout; `what`: the row publishes by an exchange, or to a queue, that
    can be traced, "" = as it does; `is_followed`: it is."""

    build: Path
    what: str
    is_followed: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each row; return 1 when one could not be counted."""
    parser = argparse.ArgumentParser(prog="instructions.py", description=__doc__)
    parser.add_argument("--rows", default="publish-only", metavar="GLOB", help="rows by name")
    parser.add_argument("--messages", type=int, default=100_000, help="messages counted per row")
    parser.add_argument("--baseline", type=Path, metavar="DIR", help="a checkout to compare with")
    parser.add_argument("--follow", choices=FOLLOWED, help="what to trace, and not to, in turn")
    parser.add_argument("--profile", type=Path, metavar="DIR", help="keep callgrind's files there")
    options = parser.parse_args(arguments)
    try:
        rows = scenario.select(scenario.load_rows(), options.rows, ["ours"], long=False)
        programs = bench.build_programs(bench.BUILD)
        slow = _slow_clock(bench.BUILD)
        builds = [REPOSITORY] + ([options.baseline] if options.baseline else [])
        runs = [Run(build, options.follow or "") for build in builds]
        if options.follow:
            runs = [Run(REPOSITORY, options.follow, is_followed=True), *runs]
        for row in rows:
            if row.kind not in ("traffic", "drain") or row.generator != "flood":
                continue
            counts = [
                _count(row, run, programs[row.generator], slow, options.messages, options.profile)
                for run in runs
            ]
            change = f"  {100 * (counts[0] / counts[1] - 1):+.1f} %" if counts[1:] else ""
            print(f"{row.name:16}" + "".join(f"{each:10.0f}" for each in counts) + change)
            sys.stdout.flush()
    except (BenchError, ScenarioError, OSError, subprocess.SubprocessError) as error:
        print(f"instructions: {error}", file=sys.stderr)
        return 1
    return 0


def _slow_clock(folder: Path) -> Path:
    library = folder / "slowclock.so"
    argv = [os.environ.get("CC", "cc"), "-O2", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*argv, str(PERF / "slowclock.c"), "-ldl"], check=True)
    return library


def _settle(pid: int) -> None:
    """Wait until the broker has nothing to do: the generator ends before it. On a busy machine it
    may have no processor for a while: only several looks in a row say so."""
    now, n_idle = measure.tree_cpu_s(pid), 0
    while n_idle < IDLE_LOOKS:
        time.sleep(SETTLE_S)
        before, now = now, measure.tree_cpu_s(pid)
        n_idle = n_idle + 1 if now - before <= IDLE_CPU_S else 0


@contextmanager
def _followed(run: Run, launch: brokers.Launch) -> Iterator[None]:
    """Trace what the row publishes to meanwhile, if the run says so."""
    if not run.is_followed:
        yield
        return
    http_port = int(launch.argv[launch.argv.index("--http-port") + 1])
    connection = http.client.HTTPConnection(topology.HOST, http_port)
    path, _ = FOLLOWED[run.what]
    body = json.dumps({"rate": 100, "truncate": 4096})
    headers = management.LOGIN | {"Content-Type": "application/json"}
    connection.request("POST", f"/api/{path}/trace", body, headers)
    answer = connection.getresponse()
    if answer.status != 200:
        raise BenchError(f"trace: {answer.status} {answer.read()!r}")
    reader = threading.Thread(target=_read, args=(answer,), daemon=True)
    reader.start()
    try:
        yield
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        reader.join()
        connection.close()


def _read(answer: http.client.HTTPResponse) -> None:
    with suppress(OSError, http.client.HTTPException):
        while answer.read1(65536):
            pass


def _count(
    row: Row, run: Run, program: Path, slow: Path, messages: int, profile: Path | None
) -> float:
    """Return instructions for each message of a row; a quarter of them come before, unmeasured."""
    build = run.build
    python = build.resolve() / ".venv" / "bin" / "python"
    script = python.with_name("lavinmq")
    valgrind = f"env LD_PRELOAD={slow} {COPIES} {CALLGRIND}"
    command = f"{valgrind} {python} {script} {brokers.DEFAULT_OPTIONS}"
    contender = brokers.ours("ours", "lavinmq", command)
    assert contender.launch is not None
    with tempfile.TemporaryDirectory(prefix="instructions-") as name:
        scratch = Path(name)
        launch = contender.launch(scratch, row.body)
        with RunningBroker(launch, 0, scratch / "output.log", TIMEOUT_S) as broker:
            measure.raise_descriptor_limit()
            topology.declare(row.topology, broker.port)
            more = ""
            if run.what:
                _, more = FOLLOWED[run.what]
                with topology.Client(broker.port).open() as client:
                    client.declare_exchange(INNER, "fanout")
                    client.declare_delayed(topology.DELAYED)
                    client.declare_queue("flood")
                    client.bind("flood", EXCHANGE, "flood")
                    client.bind("flood", topology.DELAYED, "flood")
                    client.bind("flood", INNER)
                    client.bind_exchange(INNER, EXCHANGE, "inner")

            def flood(options: str, count: int) -> None:
                limit = f"-n {count}" if "-D" not in options else ""
                words = (
                    f"{program} -P {broker.port} -s {row.body} {row.queue} {options} {more} {limit}"
                )
                argv = measure.pinned(1, shlex.split(words))
                subprocess.run(argv, check=True, timeout=TIMEOUT_S, stdout=subprocess.DEVNULL)

            fills = row.kind == "drain"
            with _followed(run, launch):
                for count in (messages // 4, messages):
                    if fills:
                        flood("-y 0 -c 100000", count)
                    _settle(broker.pid)
                    _control(broker.pid, "--zero")
                    flood(row.options, count)
                    _settle(broker.pid)
                    _control(broker.pid, "--dump")
            dumps = sorted(scratch.glob("callgrind.*.*"), key=lambda each: each.stat().st_mtime_ns)
            if profile:
                profile.mkdir(parents=True, exist_ok=True)
                kind = f".{run.what}" if run.is_followed else ""
                kept = profile / f"{build.resolve().name}.{row.name}{kind}"
                kept.write_bytes(dumps[-1].read_bytes())
            found = TOTALS.search(dumps[-1].read_text())
            if found is None:
                raise BenchError(f"{dumps[-1].name} has no totals")
            broker.stop()
            return int(found[1]) / messages


def _control(pid: int, action: str) -> None:
    done = subprocess.run(
        ["callgrind_control", action, str(pid)], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    if done.returncode or "OK" not in done.stdout:
        raise BenchError(f"callgrind_control {action}: {done.stdout}{done.stderr}".strip())


if __name__ == "__main__":
    sys.exit(main())
