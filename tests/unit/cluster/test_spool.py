"""What is changed while a node joins is made again later, however much it was."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lavinmq._cluster import Follower, Peer, Ring
from lavinmq.cluster.spool import Spool
from tests.support.follower import differences
from tests.unit.cluster.test_changes import SMALL, Leader, until


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path / "leader")
    yield made
    made.close()


def test_more_than_the_leader_keeps_comes_whole(leader: Leader, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(leader.root, copy)
    ours, theirs = socket.socketpair()
    peer = Peer(leader.feed, ours.fileno(), 0)
    thread = threading.Thread(target=peer.serve)
    thread.start()
    spool = Spool(theirs, str(tmp_path / "spool"))
    for number in range(20):
        leader.append(f"{number % 3}", os.urandom(SMALL // 4))
        position = leader.feed.mark()
        until(lambda: peer.sent == leader.feed.head)

    assert leader.feed.first > 0
    follower = Follower(Ring(SMALL), str(copy))
    assert spool.replay(follower, position // 2) == ("there", "")
    follower.sync()
    # And from there it goes on.
    again, other = socket.socketpair()
    last = Peer(leader.feed, again.fileno(), follower.applied)
    threads = [threading.Thread(target=last.serve),
               threading.Thread(target=lambda: follower.run(other.fileno()))]  # fmt: skip
    for each in threads:
        each.start()
    position = leader.feed.mark()
    until(lambda: last.acked == position)
    for each in (peer, last):
        each.stop()
    for sock in (ours, again, other):
        sock.shutdown(socket.SHUT_RDWR)
    for each_thread in (thread, *threads):
        each_thread.join()
    spool.release()
    follower.close()
    for sock in (ours, again, other):
        sock.close()
    for each in (peer, last):
        each.close()

    assert differences(leader.root, copy) == []
    assert not (tmp_path / "spool").exists()


def test_a_connection_that_ends_too_early_is_told(leader: Leader, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(leader.root, copy)
    ours, theirs = socket.socketpair()
    spool = Spool(theirs, str(tmp_path / "spool"))
    ours.close()
    follower = Follower(Ring(SMALL), str(copy))

    assert spool.replay(follower, 100) == ("lost", "the leader has closed the connection")
    spool.release()
    follower.close()
