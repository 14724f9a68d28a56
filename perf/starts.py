"""What a start costs with many queues, after an end without order: CPU seconds until it serves.

Run from the root of the repository:

    .venv/bin/python perf/starts.py [--queues 2000,20000] [--reps 3] [--broker-command CMD]

All queues are durable; one in ten has 20 messages of 100 bytes, of which 5 are acknowledged. A
start without queues is taken off: what is left is told for each queue. Results go to standard
output. Take-overs of a cluster with many queues: `perf/clusters.py --queues`.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pamqp import commands

from perf import brokers
from tests.support.wire import Wire

PLACE: Final = Path("build/perf")
GUEST: Final = "Basic " + base64.b64encode(b"guest:guest").decode()
WITH_MESSAGES: Final = 10
MESSAGES: Final = 20
ACKED: Final = 5
BODY: Final = b"x" * 100
PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)


def declare(http_port: int, n: int) -> None:
    """Declare so many durable queues."""
    queues = [
        {"name": f"q{i}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for i in range(n)
    ]
    request = urllib.request.Request(
        f"http://127.0.0.1:{http_port}/api/definitions",
        json.dumps({"queues": queues}).encode(),
        {"Authorization": GUEST, "Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=600).close()


def fill(port: int, n: int) -> None:
    """Give some of so many queues messages, and take some of these."""
    with Wire.open(port) as wire:
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for i in range(0, n, WITH_MESSAGES):
            for _ in range(MESSAGES):
                wire.publish(1, "", f"q{i}", BODY, PERSISTENT)
        confirmed, published = 0, n // WITH_MESSAGES * MESSAGES
        while confirmed < published:
            confirmed = wire.expect(commands.Basic.Ack).delivery_tag
        for i in range(0, n, WITH_MESSAGES):
            for _ in range(ACKED):
                wire.call(1, commands.Basic.Get(queue=f"q{i}", no_ack=True), commands.Basic.GetOk)


def row(command: str, n: int, reps: int) -> tuple[list[float], list[float]]:
    """The CPU seconds, and the seconds, of some starts with so many queues."""
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        scratch = Path(place)
        made = brokers.ours("ours", "ours", command).launch
        assert made is not None
        launch = made(scratch, 0)
        cpu_s, took_s = [], []
        for rep in range(reps + 1):
            broker = brokers.RunningBroker(launch, 0, scratch / "log")
            try:
                with broker:
                    if rep == 0 and n:
                        declare(int(launch.argv[launch.argv.index("--http-port") + 1]), n)
                        fill(broker.port, n)
                    elif rep:
                        cpu_s.append(broker.startup_cpu_s)
                        took_s.append(broker.startup_s)
                    broker.kill()
            finally:
                broker.kill()
    return cpu_s, took_s


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queues", default="2000,20000")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--broker-command", default=brokers.DEFAULT_COMMAND)
    options = parser.parse_args()
    PLACE.mkdir(parents=True, exist_ok=True)
    empty_s = statistics.median(row(options.broker_command, 0, options.reps)[0])
    sys.stdout.write(f"0 queues: {empty_s:.3f} CPU s\n")
    for n in map(int, options.queues.split(",")):
        cpu_s, took_s = (
            statistics.median(each) for each in row(options.broker_command, n, options.reps)
        )
        sys.stdout.write(
            f"{n} queues: {cpu_s:.3f} CPU s, {took_s:.3f} s;"
            f" {1e6 * (cpu_s - empty_s) / n:.1f} CPU us for each queue\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
