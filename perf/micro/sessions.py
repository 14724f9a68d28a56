"""Sessions and filters of MQTT without sockets: `python -m perf.micro.sessions [COUNT ...]`.

Makes COUNT sessions (1000 10000 100000 1000000) with a filter each in a virtual host of a broker
that listens for nobody, in portions as clients would ask for it, and publishes to some of them.
Prints what each takes of memory and of the processor's time, what a publish takes, and the longest
step of each kind, by the processor's time: so long everybody else waits for it. Sessions are not
stored: each of those that are has a directory. Every COUNT has a process of its own, because what
one frees the next would find; a million takes 1.8 GiB.
"""

from __future__ import annotations

import asyncio
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from lavinmq import _core
from lavinmq.config.values import from_keywords
from lavinmq.mqtt.requests import Wish
from lavinmq.mqtt.service import Service
from lavinmq.mqtt.sessions import Sessions
from lavinmq.server import opened, spare_collections

COUNTS = ("1000", "10000", "100000", "1000000")
PUBLISHED = 20_000
FILTER = "fleet/{:07d}/+/temperature"
TOPIC = b"fleet/%07d/engine/temperature"


def resident_bytes() -> int:
    """Memory of this process that no file stands behind."""
    text = Path("/proc/self/smaps_rollup").read_text()
    line = next(each for each in text.splitlines() if each.startswith("Anonymous:"))
    return int(line.split()[1]) * 1024


def timed(title: str, n: int, step: Callable[[int], object]) -> None:
    """Take n steps; print what each has taken of time and memory, and the longest."""
    memory, began, longest = resident_bytes(), time.process_time(), 0.0
    for number in range(n):
        before = time.thread_time()
        step(number)
        longest = max(longest, time.thread_time() - before)
    cpu_us = (time.process_time() - began) / n * 1e6
    grown = (resident_bytes() - memory) / n
    print(f"{title:32s} {cpu_us:8.2f} us {grown:8.0f} B   longest {longest * 1e3:6.2f} ms")
    sys.stdout.flush()


def measure(count: int, sessions: Sessions, loop: _core.Loop) -> None:
    """Make them all, publish, and take them away."""
    spare_collections()  # as a broker does: full passes would be the longest steps
    made = []

    def make(number: int) -> None:
        outcome = sessions.make(f"device-{number:07d}", 0)
        assert isinstance(outcome, tuple)
        made.append(outcome[0])

    def subscribe(number: int) -> None:
        wish = Wish(FILTER.format(number), 0)
        sessions.subscriptions.add(made[number], wish, 0, apart=True)

    chance = random.Random(1)
    topics = [TOPIC % chance.randrange(count) for _ in range(PUBLISHED)]
    misses = [TOPIC % (count + number) for number in range(PUBLISHED)]

    def publish(topic: bytes) -> None:
        _core.mqtt_publish(loop, sessions.exchange.core, topic, b"x", 0, False)

    timed("a session", count, make)
    timed("a filter with a wildcard", count, subscribe)
    timed("a publish that one matches", PUBLISHED, lambda number: publish(topics[number]))
    timed("a publish that none matches", PUBLISHED, lambda number: publish(misses[number]))
    timed("an end of a session", count, lambda number: sessions.remove(made[number]))


def main(count: int) -> None:
    """Have a broker for it, whose loop only turns for what it does at its start."""
    events = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory() as name:
        closed = dict.fromkeys(("amqp", "amqp_tls", "mgmt", "mgmt_tls", "mqtt", "mqtt_tls"), -1)
        ports = {f"{each}_port": port for each, port in closed.items()}
        config = from_keywords({
            "data_dir": name, "metrics_http_port": -1, "control_unix_path": "", "sync": False,
            **ports,
        })  # fmt: skip
        with opened(config, events, wait=False) as server:
            server.start()
            events.run_until_complete(asyncio.sleep(0.1))
            broker = server.broker
            service = broker.mqtt
            assert isinstance(service, Service)
            measure(count, service.of(broker.vhosts["/"]), broker.loop)
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    counts = sys.argv[1:] or COUNTS
    if len(counts) == 1:
        main(int(counts[0]))
    else:
        for each in counts:
            print(f"{each} sessions", flush=True)
            subprocess.run([sys.executable, "-m", "perf.micro.sessions", each], check=True)
