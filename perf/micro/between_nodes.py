"""What a change costs the threads between two nodes of a cluster, plain and with TLS.

Run from the root of the repository: `.venv/bin/python perf/micro/between_nodes.py`. A leader's and
a follower's thread of one process, on a loop-back link, with files in /dev/shm; each row twice.
Processor seconds of each thread, per GiB and per change.
"""

from __future__ import annotations

import asyncio
import os
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
from lavinmq._cluster import Channel, Feed, Follower, Peer, Ring
from lavinmq.cluster.certificates import Certificates
from lavinmq.config.values import defaults
from lavinmq.files.changes import Changes
from tests.support.certificates import Authority

HOST: Final = "127.0.0.1"
RING: Final = 64 << 20
ROWS: Final = ((262144, 4000, 64), (1024, 200_000, 200), (1024, 20_000, 1))
"""Bytes of a change, how many there are, and after how many of them the leader waits."""
Connection = socket.socket | Channel


def connected(certificates: Certificates | None) -> tuple[Connection, Connection]:
    """The leader's and the follower's end of a link."""
    with socket.create_server((HOST, 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    for each in (ours, theirs):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if certificates is None:
        return ours, theirs
    found: list[Channel] = []
    thread = threading.Thread(target=lambda: found.append(certificates.accept(ours)))
    thread.start()
    end = certificates.connect(theirs, HOST)
    thread.join()
    return found[0], end


def run(root: Path, certificates: Certificates | None, size: int, n: int, burst: int) -> None:
    """One row."""
    (root / "leader").mkdir(parents=True)
    (root / "follower").mkdir()
    events = asyncio.new_event_loop()
    loop = _core.Loop(events, str(root / "leader"), True, lambda *_: None, lambda: None)
    feed = Feed(Ring(RING))
    _core.observe_copies(loop, str(root / "leader"), feed.note, feed.address)
    changes = Changes()
    changes.note = partial(_core.note_change, loop)
    ours, theirs = connected(certificates)
    peer, follower = Peer(feed, ours, 0), Follower(Ring(RING), str(root / "follower"))
    spent: dict[str, float] = {}

    def measured(name: str, work: Callable[[], Any]) -> None:
        began = time.thread_time()
        work()
        spent[name] = time.thread_time() - began

    threads = [
        threading.Thread(target=measured, args=("leader", peer.serve)),
        threading.Thread(target=measured, args=("follower", partial(follower.run, theirs))),
    ]
    for each in threads:
        each.start()
    path, data = root / "leader" / "file", os.urandom(size)
    fd = changes.open(path, os.O_CREAT)
    for number in range(n):
        changes.write(path, fd, data, number * size)
        if number % burst == burst - 1:
            position = feed.mark()
            while peer.acked < position:
                time.sleep(0.0002)
    os.close(fd)
    peer.stop()
    threads[0].join()
    ours.shutdown(socket.SHUT_RDWR)
    threads[1].join()
    peer.close()
    follower.close()
    loop.stop()
    events.close()
    for end in (ours, theirs):
        end.close()
    shutil.rmtree(root)
    for name, cpu_s in spent.items():
        sys.stdout.write(
            f"{size} bytes, {burst} at once, {'TLS' if certificates else 'plain'}, {name}:"
            f" {cpu_s / (size * n) * (1 << 30):.2f} s/GiB, {cpu_s / n * 1e6:.1f} µs each\n"
        )
    sys.stdout.flush()


def main() -> None:
    """All rows."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        authority = Authority(Path(place) / "authority")
        identity = authority.issue("node", (HOST,))
        config = defaults()
        config.clustering_tls_cert, config.clustering_tls_key = map(str, identity[:2])
        config.clustering_tls_ca_cert = str(authority.path)
        certificates = Certificates(config)
        for row in ROWS:
            for repetition in range(2):
                for each in (None, certificates):
                    root = Path(place) / f"{row[0]}-{row[2]}-{repetition}-{each is not None}"
                    run(root, each, *row)


if __name__ == "__main__":
    main()
