"""A node whose files become those of a leader, in one process with that leader.

A program for tests that log its calls. Arguments: the node's directory, the leader's, which is
there, and a file with the paths and contents that the node begins with, as JSON. A line of JSON on
standard output, with the monotonic time, when it has begun, and when it has said that its files are
the leader's.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

from lavinmq import _core
from lavinmq._cluster import Ring
from lavinmq.cluster import frames, joining
from lavinmq.cluster.following import Following
from lavinmq.cluster.history import History
from lavinmq.cluster.joining import Copy
from lavinmq.files.snapshot import Snapshot
from lavinmq.files.standing import Standing


def tell(what: str) -> None:
    """Write a line."""
    print(json.dumps({"what": what, "at_ns": time.monotonic_ns()}), flush=True)


def lead(sock: socket.socket, leader: str) -> None:
    """The leader's part of a join."""
    snapshot = Snapshot(leader)
    snapshot.scan()
    snapshot.finish(b"")
    joining.offer(sock, snapshot, lambda path: False)
    joining.staged(sock)
    joining.placed(sock)
    tell("placed")
    frames.send(sock, {"position": 0})
    snapshot.release()


def main(root: str, leader: str, begin: str) -> None:
    """Make the files, and have them replaced."""
    os.mkdir(root)
    for name, text in json.loads(Path(begin).read_text()).items():
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    standing = Standing(root)
    standing.note(is_whole=True)
    _core.sync_file_system(root)
    tell("began")
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lead, args=(ours, leader))
    thread.start()
    node = Following(
        "tcp://127.0.0.1:1", "me", b"", Ring(1 << 22), root, standing, History(),
        certificates=None, call=print, key=str, on_dead=print, on_disk=print,
    )  # fmt: skip
    node._copy(theirs, Copy(root), time.monotonic())
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
