"""A connection between nodes with TLS: all bytes come, and its end is seen, whoever waits."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq._cluster import Channel, Follower, Peer, Ring
from lavinmq.cluster import certificates, frames
from tests.support import tls_peer
from tests.support.follower import differences
from tests.support.secure_nodes import Nodes, Pair, at_once, linked, of
from tests.unit.cluster.test_changes import SMALL, Leader, until

WAIT_S = 20.0


# ---- what is said


@pytest.mark.parametrize("size", [1, 16384, 16385, 3_000_000])
def test_bytes_come_as_they_were_sent(ends: list[Channel], size: int) -> None:
    data = os.urandom(size)
    found = at_once(lambda: ends[0].sendall(data), lambda: frames.exactly(ends[1], size))

    assert found == [None, data]


@pytest.mark.parametrize("per_key", [1, 2, 7])
def test_a_node_takes_other_keys_by_itself(
    pair: Pair, nodes: Nodes, per_key: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the size of what is sent shows: a change of keys is a record, too."""
    sizes = []
    for records in (per_key, 1 << 23):
        monkeypatch.setattr(certificates, "RECORDS_PER_KEY", records)
        ours, theirs = socket.socketpair()
        ends = linked((ours, theirs), of(nodes.authority, nodes.good))
        for _ in range(20):
            ends[0].sendall(b"x" * 100)
        sizes.append(len(unread(theirs)))
        assert frames.exactly(ends[1], 2000) == b"x" * 2000
        ends[1].sendall(b"y")
        assert ends[0].recv(1) == b"y"
        for each in ends:
            each.close()

    n_changes = 19 // per_key
    assert sizes[0] - sizes[1] == n_changes * 27


def unread(sock: socket.socket) -> bytes:
    """What the kernel holds for a socket."""
    return sock.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)


def test_nothing_sent_is_nothing_to_read(ends: list[Channel]) -> None:
    ends[0].sendall(b"")
    ends[0].sendall(b"x")
    assert ends[1].recv(10) == b"x"


def test_a_goodbye_is_an_end(ends: list[Channel]) -> None:
    ends[0].sendall(b"last")
    ends[0].close()
    ends[0].close()

    assert ends[1].recv(10) == b"last"
    assert ends[1].recv(10) == b""
    assert ends[1].recv(10) == b""


def test_a_connection_that_is_cut_is_an_end(ends: list[Channel]) -> None:
    ends[0].shutdown(socket.SHUT_RDWR)
    assert ends[1].recv(10) == b""
    with pytest.raises(OSError, match=r".+"):
        for _ in range(100):
            ends[1].sendall(bytes(100_000))


def test_who_waits_for_bytes_ends_when_it_is_shut_down(ends: list[Channel]) -> None:
    ends[0].settimeout(None)
    found = at_once(lambda: ends[0].recv(1), lambda: ends[0].shutdown(socket.SHUT_RDWR))
    assert found[0] == b""


def test_who_waits_for_room_ends_when_it_is_shut_down(ends: list[Channel]) -> None:
    ends[0].settimeout(None)

    def shut() -> None:
        ends[1].recv(1)
        ends[0].shutdown(socket.SHUT_RDWR)

    found = at_once(lambda: ends[0].sendall(bytes(50_000_000)), shut)
    assert isinstance(found[0], OSError)


def test_waiting_has_an_end(ends: list[Channel]) -> None:
    ends[0].settimeout(0.02)
    with pytest.raises(TimeoutError):
        ends[0].recv(1)
    with pytest.raises(TimeoutError):
        ends[0].sendall(bytes(50_000_000))


def test_a_closed_one_says_so(ends: list[Channel]) -> None:
    ends[0].close()
    with pytest.raises(OSError, match=r".+"):
        ends[0].recv(1)
    with pytest.raises(OSError, match=r".+"):
        ends[0].sendall(b"x")
    with pytest.raises(OSError, match=r".+"):
        ends[0].shutdown(socket.SHUT_RDWR)


def test_bytes_that_another_has_put_in_end_it(pair: Pair, nodes: Nodes) -> None:
    leader, _ = linked(pair, of(nodes.authority, nodes.good))
    pair[1].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(OSError, match=r"TLS: .*BAD_RECORD_MAC"):
        leader.recv(1)
    leader.close()


# ---- changes of files


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path / "leader")
    yield made
    made.close()


def small_buffers(pair: Pair) -> None:
    """So that nearly everything is sent in parts."""
    for each in pair:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)


@pytest.mark.parametrize("is_narrow", [False, True])
def test_changes_come_whole(
    leader: Leader, pair: Pair, nodes: Nodes, tmp_path: Path, is_narrow: bool
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(leader.root, copy)
    ends = linked(pair, of(nodes.authority, nodes.good))
    if is_narrow:
        small_buffers(pair)
    peer, follower = Peer(leader.feed, ends[0], 0), Follower(Ring(SMALL), str(copy))
    said: list[Any] = []
    threads = [threading.Thread(target=lambda: said.append(peer.serve())),
               threading.Thread(target=lambda: said.append(follower.run(ends[1])))]  # fmt: skip
    for each in threads:
        each.start()
    for number in range(12):
        for size in (1, 100, 16384, 400_000):
            leader.append(f"{number % 3}", os.urandom(size))
        position = leader.feed.mark()
        until(lambda: peer.acked == position)  # noqa: B023
    peer.stop()
    threads[0].join()
    ends[0].close()
    threads[1].join()

    assert said == ["", ("lost", "the leader has closed the connection")]
    assert differences(leader.root, copy) == []
    follower.close()
    peer.close()
    ends[1].close()


def test_answers_that_come_together_are_all_heard(leader: Leader, ends: list[Channel]) -> None:
    """More of them than are read at once: no event of the socket tells of the rest."""
    position = leader.feed.mark()
    ends[1].sendall(bytes(2000 * 8) + position.to_bytes(8, "little"))
    peer = Peer(leader.feed, ends[0], 0)
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(peer.serve()))
    thread.start()
    until(lambda: peer.acked == position)
    peer.stop()
    thread.join()
    peer.close()

    assert said == [""]


def test_an_answer_to_what_was_sent_in_part_is_no_lie(
    leader: Leader, pair: Pair, nodes: Nodes
) -> None:
    """TLS that waits for room tells of nothing that has gone."""
    ends = linked(pair, of(nodes.authority, nodes.good))
    small_buffers(pair)
    position = leader.feed.mark()
    leader.append("a", bytes(400_000))
    peer = Peer(leader.feed, ends[0], 0)
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(peer.serve()))
    thread.start()
    assert len(frames.exactly(ends[1], position)) == position
    assert peer.sent == 0
    ends[1].sendall(position.to_bytes(8, "little"))
    until(lambda: peer.acked == position or bool(said))
    peer.stop()
    thread.join()
    peer.close()
    for each in ends:
        each.close()

    assert said == [""]


@pytest.mark.skipif(tls_peer.library() is None, reason="needs OpenSSL's library")
def test_new_keys_change_nothing(pair: Pair, nodes: Nodes, leader: Leader) -> None:
    """Of a follower that takes new ones, and asks for new ones, before each answer."""
    ours, theirs = pair
    leads = of(nodes.authority, nodes.good)
    follower = tls_peer.Peer(theirs, identity=nodes.good)
    theirs.setblocking(True)
    channel = at_once(lambda: leads.accept(ours), follower.shake_hands)[0]
    assert isinstance(channel, Channel), channel
    peer = Peer(leader.feed, channel, 0)
    thread = threading.Thread(target=peer.serve)
    thread.start()
    came = 0
    for _ in range(100):
        position = leader.feed.mark()
        while came < position:
            piece = follower.read()
            assert piece
            came += len(piece)
        follower.change_key()
        assert follower.write(position.to_bytes(8, "little")) == 8
        until(lambda: peer.acked == position)  # noqa: B023
    peer.stop()
    thread.join()
    peer.close()
    channel.close()
    follower.close()


def test_what_ends_tls_is_told_in_its_words(
    leader: Leader, pair: Pair, nodes: Nodes, tmp_path: Path
) -> None:
    ends = linked(pair, of(nodes.authority, nodes.good))
    follower = Follower(Ring(SMALL), str(tmp_path))
    pair[0].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    kind, why = follower.run(ends[1])
    assert (kind, "BAD_RECORD_MAC" in why) == ("lost", True)
    follower.close()
    peer = Peer(leader.feed, ends[0], 0)
    pair[1].send(b"\x17\x03\x03\x00\x20" + bytes(32))
    assert peer.serve().startswith("TLS: ")  # that of the follower, or what it thinks of ours
    peer.close()
    for each in ends:
        each.close()
