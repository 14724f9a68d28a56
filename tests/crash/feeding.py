"""A leader whose files a follower is sent while they cannot be read: a program.

`python -m tests.crash.feeding ROOT COMPRESSION`. It appends to a segment below ROOT what goes to
followers from the file, says "sends" on its output, and waits for a line; then it makes more
changes than its ring has room for, says "written", and waits again. In the end it says why the
follower has ended.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from pathlib import Path

from lavinmq._cluster import Feed, Peer, Ring
from lavinmq.files.changes import Change
from tests.support.follower import NOTE

SIZE = 4 << 20
LONG = 100_000
PIECE = 16_000


def main(root: Path, compression: str) -> None:
    """Do it."""
    feed = Feed(Ring(SIZE))
    note = NOTE(feed.note)
    path = root / "q" / "msgs.0000000001"
    path.parent.mkdir(parents=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)

    def append(data: bytes) -> None:
        start = os.fstat(fd).st_size
        os.write(fd, data)
        told = ctypes.create_string_buffer(data, len(data))
        note(feed.address, 0, Change.APPEND, b"q/msgs.0000000001", None, fd, told, start,
             start + len(data))  # fmt: skip

    append(bytes(LONG))
    ours, theirs = socket.socketpair()
    peer = Peer(feed, ours, 0, compression)
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(peer.serve()))
    thread.start()
    print("sends", flush=True)
    input()
    while feed.first < LONG + PIECE:
        append(bytes(PIECE))
    print("written", flush=True)
    input()
    theirs.setblocking(False)
    while thread.is_alive():
        thread.join(0.01)
        try:
            while theirs.recv(1 << 20):
                pass
        except BlockingIOError:
            pass
    print(*ended, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
