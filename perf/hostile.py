"""How long one client waits while another one does the worst it can: every case, one by one.

Run from the root of the repository, on a machine with nothing else to do:

    .venv/bin/python perf/hostile.py [--only NAME,...] [--list] [--out FILE] [--before FILE]

Each case of `hostile_cases/` gets a broker of its own on one core; the hostile client and the
well-behaved one (`bystander.py`) have the other, on which the hostile one gives way. Printed for
each: the longest wait of the well-behaved one, what the broker's main thread computed in the worst
one, the figure of `--before`, and what the broker refused, if it did. The exit code is 1 when a
wait is above the target.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf import brokers, measure
from perf.bystander import Bystander
from perf.hostile_cases import CASES, Broker
from tests.support.raw_connection import ClientError

TARGET_MS = 10.0
BEFORE = Path(__file__).parent / "results" / "hostile" / "before.json"
CORES = (0, 1)
SETTLED_S = 0.3
COMMAND = f"{sys.executable} -m lavinmq"
OPTIONS = (
    " -D {{data}} -b 127.0.0.1 -p {{port}} --http-port {http} --metrics-http-port -1"
    " --mqtt-port {mqtt} --amqps-port {tls} --cert {cert} --https-port -1 --mqtts-port -1"
    " --log-level warn --control-unix-path {{scratch}}/control.sock"
)

Result = dict[str, Any]


class Attacked(Broker):
    """A broker with a bystander; `refusals` is what it said to the hostile client."""

    def __init__(
        self, running: brokers.RunningBroker, http_port: int, tls_port: int, mqtt_port: int,
        witness: Bystander,
    ) -> None:  # fmt: skip
        super().__init__(running.port, http_port, tls_port, running.pid, mqtt_port)
        self._witness = witness
        self.result: Result = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Measure the bystander for the time of the attack; a refusal is a fair answer to it."""
        with self._witness.watch() as calm:
            time.sleep(SETTLED_S)
        with self._witness.watch() as found:
            began = time.perf_counter()
            try:
                yield
            except (ClientError, OSError, http.client.HTTPException) as error:
                self.refusals.append(str(error) or type(error).__name__)
            attack_s = time.perf_counter() - began
            time.sleep(SETTLED_S)
        self.result = {**found, "calm_ms": calm["longest_ms"], "attack_s": attack_s}


def run(name: str, options: argparse.Namespace, scratch: Path) -> Result:
    """One case on a broker of its own."""
    http_port, tls_port, mqtt_port = brokers.free_ports(3)
    cert = _certificate(scratch)
    command = options.broker_command + OPTIONS.format(
        http=http_port, tls=tls_port, cert=cert, mqtt=mqtt_port
    )
    contender = brokers.ours("ours", "ours", command)
    assert contender.launch is not None
    with tempfile.TemporaryDirectory(dir=scratch) as place:
        launch = contender.launch(Path(place), 16)
        with contextlib.ExitStack() as stack:
            log = Path(place) / "log"
            running = brokers.RunningBroker(launch, CORES[0], log)
            stack.callback(running.kill)  # what is left of the attack need not be written out
            running.__enter__()
            core = CORES[1] if len(os.sched_getaffinity(0)) > 1 else None
            witness = stack.enter_context(Bystander(running.port, running.pid, core))
            broker = Attacked(running, http_port, tls_port, mqtt_port, witness)
            with ThreadPoolExecutor(1, initializer=_give_way, initargs=(core,)) as attacker:
                attacker.submit(CASES[name], broker).result()
            return {**broker.result, "refused": "; ".join(broker.refusals)[:160]}


def _certificate(scratch: Path) -> Path:
    """A file with a key and its certificate, made once."""
    path = scratch / "tls.pem"
    if not path.exists():
        argv = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        subprocess.run(
            [*argv.split(), "-keyout", str(path), "-out", f"{path}.cert"],
            check=True, capture_output=True,
        )  # fmt: skip
        path.write_text(path.read_text() + Path(f"{path}.cert").read_text())
    return path


def _give_way(core: int | None) -> None:
    """Let the bystander go first on their core: it is to wait for the broker alone."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone


def row(name: str, result: Result, before: Result | None) -> str:
    """One line of the table."""
    if "error" in result:
        return f"{name:<26} {result['error']}"
    names = ("longest_ms", "computed_ms")
    figures = [before[each] for each in names if each in before] if before else []
    old = "".join(f"{each:9.1f}" for each in figures) or " " * 18
    return (
        f"{name:<26} {result['longest_ms']:9.1f} {result['computed_ms']:9.1f} {old}"
        f" {result['attack_s']:8.2f} {result['trips']:6d}  {result['refused'][:70]}"
    )


def main() -> int:
    """Measure what was asked for. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(CASES), help="names of cases, with commas")
    parser.add_argument("--list", action="store_true", help="print the cases and what they do")
    parser.add_argument("--broker-command", default=COMMAND)
    parser.add_argument("--before", type=Path, default=BEFORE, help="the row of before, a result")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.list:
        for name, case in CASES.items():
            print(f"{name:<26} {(case.__doc__ or '').splitlines()[0]}")
        return 0
    before = json.loads(options.before.read_text())["cases"] if options.before.exists() else {}
    results: Result = {"machine": measure.machine_facts(), "cases": {}}
    build = Path(__file__).resolve().parents[1] / "build" / "perf"
    build.mkdir(parents=True, exist_ok=True)
    heads = f"{'wait ms':>9} {'computed':>9} {'before':>9}{'computed':>9} {'attack s':>8}  trips"
    print(f"{'case':<26} {heads}")
    with tempfile.TemporaryDirectory(dir=build) as place:
        for name in options.only.split(","):
            try:
                result = run(name, options, Path(place))
            except (ClientError, OSError, EOFError, measure.BenchError, AssertionError) as error:
                result = {"error": f"{type(error).__name__}: {error}"[:300]}
            results["cases"][name] = result
            print(row(name, result, before.get(name)), flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1) + "\n")
    worst = max(each.get("longest_ms", float("inf")) for each in results["cases"].values())
    return int(worst > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
