"""What a change costs the threads between two nodes of a cluster, plain and with TLS.

Run from the root of the repository: `.venv/bin/python perf/micro/between_nodes.py`. A leader's and
a follower's thread of one process, on a loop-back link, with files in /dev/shm; each row twice.
Processor seconds of each thread, per GiB and per change.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lavinmq.cluster.certificates import Certificates
from lavinmq.config.values import defaults
from perf.micro.two_nodes import Connection, two_nodes
from tests.support.certificates import Authority

HOST: Final = "127.0.0.1"
ROWS: Final = ((262144, 4000, 64), (1024, 200_000, 200), (1024, 20_000, 1))
"""Bytes of a change, how many there are, and after how many of them the leader waits."""


def connected(certificates: Certificates | None) -> tuple[Connection, Connection]:
    """The leader's and the follower's end of a link."""
    with socket.create_server((HOST, 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    for each in (ours, theirs):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if certificates is None:
        return ours, theirs
    found: list[Connection] = []
    thread = threading.Thread(target=lambda: found.append(certificates.accept(ours)))
    thread.start()
    end = certificates.connect(theirs, HOST)
    thread.join()
    return found[0], end


def run(root: Path, certificates: Certificates | None, size: int, n: int, burst: int) -> None:
    """One row."""
    with two_nodes(root, *connected(certificates)) as nodes:
        data = os.urandom(size)
        fd = nodes.changes.open(nodes.file, os.O_CREAT)
        for number in range(n):
            nodes.changes.write(nodes.file, fd, data, number * size)
            if number % burst == burst - 1:
                position = nodes.feed.mark()
                while nodes.peer.acked < position:
                    time.sleep(0.0002)
        os.close(fd)
    for name, cpu_s in nodes.cpu_s.items():
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
