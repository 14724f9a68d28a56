"""What a slow link between two nodes of a cluster carries, with and without packing.

Run as root from the root of the repository: `.venv/bin/python perf/micro/slow_link.py`. A leader's
and a follower's thread of one process, by a network of the kernel that is held to so many MB/s,
with files in /dev/shm. Events are small JSON documents that differ, noise is random bytes. MB of
changes per second, what of them went over the network, and processor seconds per GiB of changes.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from perf.micro.two_nodes import RING, two_nodes
from tests.support.slow_link import pair

BATCH: Final = 65_536
ROWS: Final = ((10_000_000, 60 << 20), (100_000_000, 400 << 20))
"""Bytes per second that the network carries, and how many are to go."""


def events(chance: random.Random) -> bytes:
    """Documents as services send them to each other."""
    found = bytearray()
    while len(found) < BATCH:
        found += json.dumps({
            "id": f"{chance.getrandbits(128):032x}", "type": "order.created", "version": 3,
            "at": f"2026-11-28T12:{chance.randrange(60):02}:{chance.randrange(60):02}.120Z",
            "customer": chance.randrange(10**9), "currency": "EUR",
            "lines": [{"sku": chance.randrange(10**6), "quantity": chance.randrange(1, 9),
                       "price": chance.randrange(10**5) / 100} for _ in range(3)],
        }).encode()  # fmt: skip
    return bytes(found[:BATCH])


def run(root: Path, rate: int, n: int, batches: list[bytes], compression: str) -> str:
    """One row."""
    with two_nodes(root, *pair(rate), compression) as nodes:
        fd = nodes.changes.open(nodes.file, os.O_CREAT)
        began, at = time.monotonic(), 0
        while at < n:
            nodes.changes.write(nodes.file, fd, batches[at // BATCH % len(batches)], at)
            at += BATCH
            while nodes.feed.head - nodes.peer.acked > RING // 2:  # as publishers wait
                nodes.feed.mark()
                time.sleep(0.002)
        position = nodes.feed.mark()
        while nodes.peer.acked < position:
            time.sleep(0.002)
        took_s = time.monotonic() - began
        os.close(fd)
        share = nodes.peer.n_wire / nodes.peer.n_sent
    s_per_gib = {name: cpu_s / n * (1 << 30) for name, cpu_s in nodes.cpu_s.items()}
    return (
        f"{n / took_s / 1e6:.1f} MB/s, {share:.0%} of it on the network;"
        f" leader {s_per_gib['leader']:.1f} s/GiB, follower {s_per_gib['follower']:.1f} s/GiB"
    )


def main() -> None:
    """All rows."""
    chance = random.Random(1)
    bodies = {
        "events": [events(chance) for _ in range(64)],
        "noise": [os.urandom(BATCH) for _ in range(64)],
    }
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        for rate, n in ROWS:
            for name, batches in bodies.items():
                for compression in ("off", "auto", "on"):
                    root = Path(place) / f"{rate}-{name}-{compression}"
                    figures = run(root, rate, n, batches, compression)
                    sys.stdout.write(f"{rate // 10**6} MB/s, {name}, {compression}: {figures}\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
