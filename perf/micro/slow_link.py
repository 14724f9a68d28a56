"""What a slow link between two nodes of a cluster carries, with and without packing.

Run as root from the root of the repository: `.venv/bin/python perf/micro/slow_link.py`. A leader's
and a follower's thread of one process, by a network of the kernel that is held to so many MB/s,
with files in /dev/shm. Events are small JSON documents that differ, noise is random bytes. MB of
changes per second, what of them went over the network, and processor seconds per GiB of changes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lavinmq import _core
from lavinmq._cluster import Feed, Follower, Peer, Ring
from lavinmq.files.changes import Changes
from tests.support.slow_link import pair

RING: Final = 64 << 20
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
    (root / "leader").mkdir(parents=True)
    (root / "follower").mkdir()
    loop_events = asyncio.new_event_loop()
    loop = _core.Loop(loop_events, str(root / "leader"), True, lambda *_: None, lambda: None)
    feed = Feed(Ring(RING))
    _core.observe_copies(loop, str(root / "leader"), feed.note, feed.address)
    changes = Changes()
    changes.note = partial(_core.note_change, loop)
    ours, theirs = pair(rate)
    peer = Peer(feed, ours, 0, compression)
    follower = Follower(Ring(RING), str(root / "follower"))
    spent: dict[str, float] = {}

    def measured(name: str, work: Callable[[], Any]) -> None:
        began = time.thread_time()
        work()
        spent[name] = time.thread_time() - began

    threads = [
        threading.Thread(target=measured, args=("leader", peer.serve)),
        threading.Thread(
            target=measured, args=("follower", partial(follower.run, theirs, in_blocks=True))
        ),
    ]
    for each in threads:
        each.start()
    path = root / "leader" / "file"
    fd = changes.open(path, os.O_CREAT)
    began, at = time.monotonic(), 0
    while at < n:
        changes.write(path, fd, batches[at // BATCH % len(batches)], at)
        at += BATCH
        while feed.head - peer.acked > RING // 2:  # as publishers wait
            feed.mark()
            time.sleep(0.002)
    position = feed.mark()
    while peer.acked < position:
        time.sleep(0.002)
    took_s = time.monotonic() - began
    os.close(fd)
    peer.stop()
    threads[0].join()
    ours.shutdown(socket.SHUT_RDWR)
    threads[1].join()
    figures = (
        f"{n / took_s / 1e6:.1f} MB/s, {peer.n_wire / peer.n_sent:.0%} of it on the network;"
        f" leader {spent['leader'] / n * (1 << 30):.1f} s/GiB,"
        f" follower {spent['follower'] / n * (1 << 30):.1f} s/GiB"
    )
    peer.close()
    follower.close()
    loop.stop()
    loop_events.close()
    for sock in (ours, theirs):
        sock.close()
    shutil.rmtree(root)
    return figures


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
