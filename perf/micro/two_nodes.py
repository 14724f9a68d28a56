"""A leader's and a follower's thread in one process, and what they take of the processor.

Used by measurements of what goes between nodes of a cluster: they make changes and wait.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from lavinmq import _core
from lavinmq._cluster import Channel, Feed, Follower, Peer, Ring
from lavinmq.files.changes import Changes

RING: Final = 64 << 20
Connection = socket.socket | Channel


@dataclass(slots=True)
class TwoNodes:
    """What the leader changes and how far its follower is."""

    file: Path
    changes: Changes
    feed: Feed
    peer: Peer
    cpu_s: dict[str, float] = field(default_factory=dict)
    """Of both threads, by name, once they have ended."""


@contextmanager
def two_nodes(
    root: Path, ours: Connection, theirs: Connection, compression: str | None = None
) -> Iterator[TwoNodes]:
    """Both, with files below a directory that is made and removed.

    Args: ours, theirs: the ends of the leader and of the follower, which are closed; compression:
        of blocks, None: there are none.
    """
    (root / "leader").mkdir(parents=True)
    (root / "follower").mkdir()
    events = asyncio.new_event_loop()
    loop = _core.Loop(events, str(root / "leader"), True, lambda *_: None, lambda: None)
    feed = Feed(Ring(RING))
    _core.observe_copies(loop, str(root / "leader"), feed.note, feed.address)
    changes = Changes()
    changes.note = partial(_core.note_change, loop)
    peer = Peer(feed, ours, 0, compression)
    follower = Follower(Ring(RING), str(root / "follower"))
    found = TwoNodes(root / "leader" / "file", changes, feed, peer)

    def measured(name: str, work: Callable[[], Any]) -> None:
        began = time.thread_time()
        work()
        found.cpu_s[name] = time.thread_time() - began

    receive = partial(follower.run, theirs, in_blocks=compression is not None)
    threads = [
        threading.Thread(target=measured, args=("leader", peer.serve)),
        threading.Thread(target=measured, args=("follower", receive)),
    ]
    for each in threads:
        each.start()
    try:
        yield found
    finally:
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
