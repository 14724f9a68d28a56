"""Long appends to messages of segments, which go to followers from the file that they are in."""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lavinmq._cluster import Feed, Follower, Peer, Ring
from lavinmq.cluster.certificates import Certificates
from lavinmq.files.changes import Change
from tests.support.certificates import Authority
from tests.support.follower import differences
from tests.support.secure_nodes import HOST, linked, of
from tests.support.waiting import wait_for

SIZE = 4 << 20
LONG = 40_000
SHORT = 100
MOST_FILES = 64
NOTE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint8, ctypes.c_char_p, ctypes.c_char_p,
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64,
)  # fmt: skip
"""An observe_t."""


class Leader:
    """A directory with the segments of queues, whose changes a feed hears of. Args: certificates:
    followers speak TLS; compression: they get blocks."""

    def __init__(
        self, root: Path, certificates: Certificates | None = None, compression: str | None = None
    ) -> None:
        self.root = root
        self.certificates = certificates
        self.compression = compression
        root.mkdir()
        self.feed = Feed(Ring(SIZE))
        self._note = NOTE(self.feed.note)

    def note(
        self, kind: Change, path: str, fd: int = -1, data: bytes | None = None, start: int = 0,
        end: int = 0,
    ) -> None:  # fmt: skip
        """Tell the feed of a change that was made."""
        self._note(self.feed.address, 0, kind, path.encode(), None, fd, data, start, end)

    def make(self, path: str) -> None:
        """A file, below a directory of its own."""
        (self.root / path).parent.mkdir(exist_ok=True)
        (self.root / path).touch()
        self.note(Change.MAKE_DIRECTORY, str(Path(path).parent))
        self.note(Change.MAKE, path)

    def append(self, path: str, data: bytes, told: bytes | None = None) -> None:
        """Append to a file. Args: told: what the feed is told that it was, if not that."""
        fd = os.open(self.root / path, os.O_RDWR | os.O_APPEND)
        try:
            start = os.fstat(fd).st_size
            os.write(fd, data)
            self.note(Change.APPEND, path, fd, told or data, start, start + len(data))
        finally:
            os.close(fd)

    def rename(self, path: str, to: str) -> None:
        """Give a file the name of another."""
        (self.root / path).rename(self.root / to)
        self._note(
            self.feed.address, 0, Change.RENAME, path.encode(), to.encode(), -1, None, 0, 0
        )  # fmt: skip

    def follow(self, at: int, copy: Path) -> Feed:
        """Have a directory get all that comes behind a position. Returns: what it would lead by."""
        copy.mkdir(exist_ok=True)
        pair = socket.socketpair()
        ours, theirs = linked(pair, self.certificates) if self.certificates else pair
        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32768)  # all goes in parts
        ring = Ring(SIZE, at)
        follower = Follower(ring, str(copy))
        peer = Peer(self.feed, ours, at, self.compression)
        in_blocks = self.compression is not None
        try:
            with ours, theirs:
                thread = threading.Thread(target=peer.serve)
                thread.start()
                ended = follower.run(theirs, self.feed.mark(), in_blocks=in_blocks)
                peer.stop()
                thread.join()
        finally:
            peer.close()
            follower.close()
        assert ended == ("there", "")
        return Feed(ring)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    return of(authority, authority.issue("node", (HOST,)))


@pytest.fixture(params=["plain", "tls", "plain off", "tls on", "plain on"])
def leader(
    tmp_path: Path, request: pytest.FixtureRequest, certificates: Certificates
) -> Iterator[Leader]:
    link, _, compression = request.param.partition(" ")
    yield Leader(tmp_path / "leader", certificates if link == "tls" else None, compression or None)


def test_a_long_append_comes_from_the_file_and_a_short_one_from_memory(
    leader: Leader, tmp_path: Path
) -> None:
    leader.make("q/msgs.0000000001")
    leader.append("q/msgs.0000000001", b"f" * LONG, told=b"m" * LONG)
    leader.append("q/msgs.0000000001", b"f" * SHORT, told=b"m" * SHORT)
    leader.follow(0, tmp_path / "copy")
    found = (tmp_path / "copy/q/msgs.0000000001").read_bytes()
    assert found == b"f" * LONG + b"m" * SHORT


def test_other_files_are_copied_when_they_are_written(leader: Leader, tmp_path: Path) -> None:
    leader.make("q/acks.0000000001")
    leader.append("q/acks.0000000001", b"f" * LONG, told=b"m" * LONG)
    leader.follow(0, tmp_path / "copy")
    assert (tmp_path / "copy/q/acks.0000000001").read_bytes() == b"m" * LONG


def test_what_is_in_a_file_that_was_removed_comes_all_the_same(
    leader: Leader, tmp_path: Path
) -> None:
    leader.make("q/msgs.0000000001")
    position = leader.feed.head
    shutil.copytree(leader.root, tmp_path / "copy")
    leader.append("q/msgs.0000000001", b"one" * LONG)
    os.rename(leader.root / "q/msgs.0000000001", tmp_path / "aside")
    (leader.root / "q/msgs.0000000001").write_bytes(b"another file of the same name")
    (tmp_path / "aside").unlink()
    leader.follow(position, tmp_path / "copy")
    assert (tmp_path / "copy/q/msgs.0000000001").read_bytes() == b"one" * LONG


def test_what_was_cut_is_as_long_as_it_was_until_the_cut_comes(
    leader: Leader, tmp_path: Path
) -> None:
    leader.make("q/msgs.0000000001")
    leader.append("q/msgs.0000000001", b"m" * LONG)
    os.truncate(leader.root / "q/msgs.0000000001", SHORT)
    before = leader.feed.head
    leader.note(Change.TRUNCATE, "q/msgs.0000000001", end=SHORT)
    leader.append("q/msgs.0000000001", b"n" * SHORT)
    assert leader.feed.head > before
    leader.follow(0, tmp_path / "copy")
    assert differences(leader.root, tmp_path / "copy") == []


def n_held(root: Path) -> int:
    """Descriptors of files below a directory."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{root}/")
    return found


def test_descriptors_are_few_and_go_with_the_ring(leader: Leader, tmp_path: Path) -> None:
    for number in range(MOST_FILES + 20):
        leader.make(f"q{number}/msgs.0000000001")
        leader.append(f"q{number}/msgs.0000000001", bytes([number]) * LONG)
    assert n_held(leader.root) == MOST_FILES
    leader.follow(0, tmp_path / "copy")
    assert differences(leader.root, tmp_path / "copy") == []
    for _ in range(SIZE // LONG + 1):
        leader.append("q0/msgs.0000000001", b"n" * LONG)
    wait_for(lambda: n_held(leader.root) == 1, "a thread closes them")


def test_a_follower_goes_on_in_the_middle_of_a_long_append(leader: Leader, tmp_path: Path) -> None:
    leader.make("q/msgs.0000000001")
    for number in range(30):
        leader.append("q/msgs.0000000001", os.urandom(LONG) + bytes([number]))
    half = tmp_path / "half"
    half.mkdir()
    ours, theirs = socket.socketpair()
    follower, peer = Follower(Ring(SIZE, 0), str(half)), Peer(leader.feed, ours.fileno(), 0)
    # What comes is cut after some bytes, wherever that is.
    thread = threading.Thread(target=peer.serve)
    thread.start()
    come = b""
    while len(come) < 10 * LONG + LONG // 2:
        come += theirs.recv(65536)
    peer.stop()
    ours.shutdown(socket.SHUT_RDWR)
    thread.join()
    peer.close()
    feeding, fed = socket.socketpair()
    with ours, theirs, fed:
        writer = threading.Thread(target=_feed, args=(feeding, come))
        writer.start()
        follower.run(fed.fileno())
        writer.join()
    follower.sync()
    at = follower.applied
    follower.close()
    assert 0 < at <= len(come)  # it may be cut where a change ends
    leader.follow(at, half)
    assert differences(leader.root, half) == []


def _feed(sock: socket.socket, data: bytes) -> None:
    with sock:
        sock.sendall(data)
