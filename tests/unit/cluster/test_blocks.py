"""The stream to a follower in blocks: it comes as it went, whatever was packed and wherever it was
cut; it is packed where the network holds it up, and nowhere else; what makes no sense is refused.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq._cluster import BlockReceiver, BlockSender, Follower, Peer, Ring
from lavinmq.cluster import frames
from lavinmq.cluster.frames import PeerError
from lavinmq.cluster.spool import Spool
from tests.support.follower import differences
from tests.support.slow_link import pair, why_not
from tests.unit.cluster.test_changes import SMALL, Copy, Leader, entry, has_all, until
from tests.unit.cluster.test_joining import joined, make

HEAD = 8
MOST_PACKED, MOST_PLAIN = 262_144, 1 << 20
TEXT = b"The quick brown fox jumps over the lazy dog. " * 25_000
MAKE = entry(1, b"a")
FAST, SLOW = 1 << 40, 20_000_000
"""Bytes per second."""


def block(n: int, data: bytes = b"", n_packed: int | None = None) -> bytes:
    """One, as pack.pyx has it."""
    packed = len(data) if n_packed is None else n_packed
    return n.to_bytes(4, "little") + packed.to_bytes(4, "little") + data


def literals(data: bytes) -> bytes:
    """What LZ4 takes for these bytes, one behind the other."""
    assert 15 <= len(data) < 270
    return bytes([0xF0, len(data) - 15]) + data


def repeated(n: int) -> bytes:
    """A short block of LZ4 that becomes n bytes, and five at its end."""
    more = n - 1 - 19
    return b"\x1fx\x01\x00" + b"\xff" * (more // 255) + bytes([more % 255]) + b"\x50tail!"


class Wire:
    """A socket that is a list of bytes. Args: cuts: how much is read of it at once."""

    def __init__(self, data: bytes = b"", cuts: Iterable[int] = ()) -> None:
        self.data = bytearray(data)
        self._cuts = iter(cuts)

    def fileno(self) -> int:
        return -1

    def sendall(self, data: bytes) -> None:
        self.data += data

    def recv(self, n: int) -> bytes:
        n = min(n, next(self._cuts, n))
        piece = bytes(self.data[:n])
        del self.data[:n]
        return piece

    def close(self) -> None:
        self.data.clear()


def received(data: bytes, cuts: Iterable[int] = ()) -> bytes:
    """What comes of these bytes."""
    end = BlockReceiver(cast("Any", Wire(data, cuts)))
    found = bytearray()
    while piece := end.recv(1 << 20):
        found += piece
    return bytes(found)


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, 700_000).map(lambda n: (TEXT * 2)[:n]),
        st.integers(0, 300_000).map(os.urandom),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=40)
@given(
    PIECES, st.sampled_from(["off", "auto", "on"]),
    st.lists(st.one_of(st.integers(1, 10), st.integers(1, 300_000)), max_size=50),
)  # fmt: skip
def test_what_is_sent_comes_wherever_it_is_cut(
    pieces: list[bytes], compression: str, cuts: list[int]
) -> None:
    wire = Wire()
    sender = BlockSender(cast("Any", wire), compression)
    for each in pieces:
        sender.sendall(each)

    assert sender.n_sent == sum(map(len, pieces))
    assert sender.n_wire == len(wire.data)
    assert received(bytes(wire.data), cuts) == b"".join(pieces)


def test_what_packs_is_small_and_what_does_not_stays_as_it_is() -> None:
    wire = Wire()
    sender = BlockSender(cast("Any", wire), "on")
    sender.sendall(TEXT)
    assert len(wire.data) < len(TEXT) // 50

    before = len(wire.data)
    for _ in range(12):
        sender.sendall(os.urandom(1 << 20))
    assert len(wire.data) - before == (12 << 20) + 13 * HEAD, "it is tried once"

    for _ in range(5):
        sender.sendall(TEXT)
    before = len(wire.data)
    sender.sendall(TEXT)
    assert len(wire.data) - before < len(TEXT) // 50, "and once more later"


def test_nothing_is_packed_where_that_is_not_wanted() -> None:
    wire = Wire()
    BlockSender(cast("Any", wire), "off").sendall(TEXT)
    assert len(wire.data) == len(TEXT) + HEAD * 2
    with pytest.raises(KeyError):
        BlockSender(cast("Any", wire), "perhaps")


# ---- what a leader must not say

BAD = {
    "nothing": block(0),
    "nothing, packed": block(0, b"x"),
    "too long": block(MOST_PLAIN + 1),
    "far too long": block(2**32 - 1),
    "too long, packed": block(MOST_PACKED + 1, literals(b"x" * 100)),
    "packed to as much": block(100, b"x" * 100),
    "packed to more": block(100, b"x" * 101),
    "packed to far more": block(MOST_PACKED, b"", 2**32 - 1),
    "garbage": block(1000, bytes(range(200))),
    "becomes less": block(101, literals(b"x" * 90)),
    "becomes more": block(1000, repeated(5000)),
    "becomes far more": block(50_000, repeated(9_000_000)),
    "refers to what is before it": block(1000, b"\x1fx\xff\xff" + b"\xff" * 3 + b"\0\x50tail!"),
}


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_a_block_that_makes_no_sense_is_refused(tmp_path: Path, sent: bytes) -> None:
    good = block(len(MAKE)) + MAKE
    with pytest.raises(OSError, match=r"a block of .* makes no sense"):
        received(good + sent)

    assert followed(tmp_path, good + sent) == ("garbled", unpacked_words(sent))
    assert (tmp_path / "a").exists(), "what was before it was done"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def unpacked_words(sent: bytes) -> str:
    n, packed = (int.from_bytes(sent[at : at + 4], "little") for at in (0, 4))
    return f"a block of {n} bytes{f', packed to {packed},' if packed else ''} makes no sense"


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_nothing_comes_behind_a_block_that_makes_no_sense(sent: bytes) -> None:
    end = BlockReceiver(cast("Any", Wire(sent + block(len(MAKE)) + MAKE)))
    for _ in range(3):
        with pytest.raises(OSError, match=r"a block of .* makes no sense"):
            end.recv(1 << 20)


def test_what_becomes_as_much_as_it_says_is_taken() -> None:
    data = received(block(9_000, repeated(9_000 - 5)))
    assert data == b"x" * (9_000 - 5) + b"tail!"


def followed(root: Path, data: bytes) -> tuple[str, str]:
    """How a follower ends that gets this in blocks."""
    ours, theirs = socket.socketpair()
    follower = Follower(Ring(SMALL), str(root))
    ours.sendall(data)
    ours.shutdown(socket.SHUT_WR)
    end = follower.run(theirs.fileno(), in_blocks=True)
    assert follower.ring.head == follower.applied
    follower.close()
    ours.close()
    theirs.close()
    return end


@given(st.binary(max_size=300))
def test_any_bytes_end_without_a_crash(data: bytes) -> None:
    with suppress(OSError):
        received(data)
    packed = block(MOST_PACKED, data) if data else b""
    with suppress(OSError):
        received(packed)
    assert followed(Path("/dev/shm"), data[:31])[0] in ("lost", "garbled", "refused")


@settings(deadline=None, max_examples=50)
@given(st.binary(min_size=1, max_size=12), st.floats(0, 1), st.integers(0, 12), st.booleans())
def test_a_stream_that_is_changed_anywhere_ends_and_the_next_one_is_done(
    put: bytes, where: float, n_out: int, is_packed: bool
) -> None:
    """Whatever a leader says: nothing is left of it for the next connection."""
    wire = Wire()
    sender = BlockSender(cast("Any", wire), "on" if is_packed else "off")
    sender.sendall(MAKE + entry(2, b"a", start=0, end=9_000, data=TEXT[:9_000]) + entry(32, b""))
    at = int(where * len(wire.data))
    wire.data[at : at + n_out] = put

    with TemporaryDirectory(dir="/dev/shm") as root:
        follower = Follower(Ring(SMALL), root)
        for data, kinds in (
            (bytes(wire.data), {"lost", "garbled", "refused"}),
            (block(len(MAKE)) + MAKE.replace(b"a", b"b"), {"lost"}),
        ):
            ours, theirs = socket.socketpair()
            ours.sendall(data)
            ours.close()
            assert follower.run(theirs.fileno(), in_blocks=True)[0] in kinds
            assert follower.ring.head == follower.applied
            theirs.close()
        assert (Path(root) / "b").exists()
        follower.close()


def test_one_that_got_garbage_goes_on_from_where_it_was(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    copy = Copy(leader, tmp_path / "copy", compression="on")
    leader.append("a", TEXT)
    ours, theirs = socket.socketpair()
    ours.sendall(block(20, b"\xff" * 19))
    assert copy.follower.run(theirs.fileno(), in_blocks=True)[0] == "garbled"
    for each in (ours, theirs):
        each.close()

    peer = copy.connect()
    leader.feed.mark()
    until(lambda: has_all(leader, peer))
    copy.close()
    leader.close()
    assert differences(leader.root, copy.root) == []


# ---- by links of some speed


class Link:
    """What is between two ends of a connection: so many bytes a second go by it, one way. It takes
    what comes at once only as far as the kernel has room.

    Args: pairs: sockets, the leader's and ours; ours and the follower's.
    """

    def __init__(self, rate: int, pairs: list[tuple[socket.socket, socket.socket]]) -> None:
        (self.ours, self._in), (self._out, self.theirs) = pairs
        self._threads = [
            threading.Thread(target=self._pass, args=(self._in, self._out, rate)),
            threading.Thread(target=self._pass, args=(self._out, self._in, FAST)),
        ]
        for each in self._threads:
            each.start()

    def _pass(self, source: socket.socket, to: socket.socket, rate: int) -> None:
        due = time.monotonic()
        with suppress(OSError):
            while piece := source.recv(65536):
                to.sendall(piece)
                due = max(due, time.monotonic() - 0.01) + len(piece) / rate
                time.sleep(max(0.0, due - time.monotonic()))
        for each in (source, to):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for sock in (self.ours, self.theirs):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for each in self._threads:
            each.join()
        for sock in (self._in, self._out):
            sock.close()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path / "leader", 64 << 20)
    yield made
    made.close()


def sent_by(
    leader: Leader, root: Path, data: list[bytes], compression: str,
    ends: tuple[socket.socket, socket.socket], link: Link | None = None,
) -> tuple[int, int, int]:  # fmt: skip
    """Have a follower get what is appended. Args: ends: the leader's end, and the follower's.
    Returns: bytes of changes, bytes on the wire, bytes that were packed."""
    copy = Copy(leader, root, 64 << 20, compression)
    try:
        peer = copy.connect(pair=ends)
        for each in data:
            leader.append("a", each)
        leader.feed.mark()
        until(lambda: has_all(leader, peer))
        assert differences(leader.root, root) == []
        return peer.n_sent, peer.n_wire, peer.n_packed
    finally:
        copy.close()
        if link is not None:
            link.close()


slow = pytest.mark.skipif(bool(why_not()), reason=why_not())


@slow
def test_a_slow_link_has_what_packs_well_packed(leader: Leader, tmp_path: Path) -> None:
    n, n_wire, n_packed = sent_by(leader, tmp_path / "copy", [TEXT] * 12, "auto", pair(SLOW))
    assert n_packed > 0  # how soon depends on how busy the machine is
    assert n_wire < n - n_packed + n_packed // 20 + 30 * HEAD


@slow
def test_a_slow_link_has_nothing_packed_that_does_not_pack(leader: Leader, tmp_path: Path) -> None:
    data = [os.urandom(1 << 20) for _ in range(12)]
    n, n_wire, n_packed = sent_by(leader, tmp_path / "copy", data, "auto", pair(SLOW))
    assert n_packed == 0
    assert n < n_wire < n + 30 * HEAD


def test_a_link_of_which_the_kernel_knows_nothing_goes_by_what_waits(
    leader: Leader, tmp_path: Path
) -> None:
    link = Link(SLOW, [socket.socketpair(), socket.socketpair()])
    ends = (link.ours, link.theirs)
    _, __, n_packed = sent_by(leader, tmp_path / "copy", [TEXT] * 8, "auto", ends, link)
    assert n_packed > 0


def test_a_slow_link_has_nothing_packed_where_that_is_not_wanted(
    leader: Leader, tmp_path: Path
) -> None:
    link = Link(SLOW, [socket.socketpair(), socket.socketpair()])
    ends = (link.ours, link.theirs)
    n, n_wire, n_packed = sent_by(leader, tmp_path / "copy", [TEXT] * 4, "off", ends, link)
    assert n_packed == 0
    assert n < n_wire < n + 10 * HEAD


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def test_where_the_other_end_is_slow_nothing_is_packed(leader: Leader, tmp_path: Path) -> None:
    """By TCP the kernel knows that: the link itself has room."""
    link = Link(SLOW, [tcp(), socket.socketpair()])
    ends = (link.ours, link.theirs)
    n, _, n_packed = sent_by(leader, tmp_path / "copy", [TEXT] * 12, "auto", ends, link)
    assert n_packed <= n // 4  # a busy machine may look slow for a moment


def test_a_link_that_has_room_has_nothing_packed(leader: Leader, tmp_path: Path) -> None:
    copy = Copy(leader, tmp_path / "copy", 64 << 20, "auto")
    peer = copy.connect(pair=tcp())
    for _ in range(50):
        leader.append("a", TEXT[:5000])
        position = leader.feed.mark()
        until(lambda position=position: peer.acked >= position)  # type: ignore[misc]
    assert peer.n_packed == 0
    assert peer.n_wire == peer.n_sent + HEAD
    copy.close()


def test_a_spool_gets_what_is_changed_in_blocks(leader: Leader, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(leader.root, copy)
    ours, theirs = socket.socketpair()
    peer = Peer(leader.feed, ours.fileno(), 0, "on")
    thread = threading.Thread(target=peer.serve)
    thread.start()
    spool = Spool(BlockReceiver(theirs), str(tmp_path / "spool"))
    for _ in range(4):
        leader.append("a", TEXT)
    position = leader.feed.mark()
    until(lambda: peer.sent == position)
    follower = Follower(Ring(SMALL), str(copy))

    assert spool.replay(follower, position // 2) == ("there", "")
    assert follower.applied == position
    assert peer.n_wire < peer.n_sent // 20
    follower.sync()
    peer.stop()
    thread.join()
    ours.close()
    spool.release()
    follower.close()
    peer.close()
    assert differences(leader.root, copy) == []


def test_the_files_of_a_join_are_packed(tmp_path: Path) -> None:
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    make(leader, {"text": TEXT * 2, "noise": os.urandom(100_000), "small": b"x"})
    make(follower, {"other": b"y"})
    senders: list[BlockSender] = []

    def packed(sock: socket.socket) -> BlockSender:
        senders.append(BlockSender(sock, "on"))
        return senders[-1]

    came = joined(leader, follower, ours_by=packed, theirs_by=BlockReceiver)

    assert came == 2 * len(TEXT) + 100_001
    assert senders[0].n_wire < 100_000 + len(TEXT) // 10
    assert (follower / "text").read_bytes() == TEXT * 2


def test_a_refusal_comes_in_a_block_too() -> None:
    ours, theirs = socket.socketpair()
    sender, receiver = BlockSender(ours, "auto"), BlockReceiver(theirs)
    frames.send(sender, {"files": []})
    frames.send(sender, {"refused": "no room"})
    assert frames.receive(receiver) == {"files": []}
    with pytest.raises(PeerError, match="refused: no room"):
        frames.receive(receiver)
    frames.send(receiver, {"have": 1})
    assert frames.receive(sender) == {"have": 1}
    receiver.settimeout(0.01)
    with pytest.raises(TimeoutError):
        receiver.recv(10)
    sender.shutdown(socket.SHUT_RDWR)
    assert receiver.recv(10) == b""
    for each in (sender, receiver):
        each.close()
        each.close()
