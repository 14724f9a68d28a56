"""Changes of files on their way from a feed to followers: all of them, in order, whatever is cut.

A feed hears of changes that `Changes` makes below one directory; followers make them again below
others, by sockets, each in a thread.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq import _core
from lavinmq._cluster import Feed, Follower, Peer, Ring
from lavinmq.files.changes import Change, Changes
from tests.support.follower import differences

SMALL = 4 << 20
WAIT_S = 20.0


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that another thread does."""
    ends_at = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < ends_at, "it does not come"
        time.sleep(0.002)


class Leader:
    """A directory with a feed of its changes, and touches noted for sums, as a broker has."""

    def __init__(self, root: Path, size: int = SMALL) -> None:
        self.root = root
        root.mkdir()
        self.events = asyncio.new_event_loop()
        self.loop = _core.Loop(self.events, str(root), True, lambda *_: None, lambda: None)
        self.feed = Feed(Ring(size))
        _core.observe_copies(self.loop, str(root), self.feed.note, self.feed.address)
        self.loop.wait_for_copies(self.feed.fileno())
        self.touches = os.open(root.with_name(root.name + ".touches"), os.O_CREAT | os.O_RDWR)
        _core.touch_files(self.loop, str(root), self.touches)
        self.changes = Changes()
        self.changes.note = partial(_core.note_change, self.loop)
        self.sizes: dict[str, int] = {}

    def append(self, name: str, data: bytes) -> None:
        path = self.root / name
        fd = self.changes.open(path, os.O_CREAT)
        self.changes.write(path, fd, data, os.fstat(fd).st_size)
        os.close(fd)

    def patch(self, name: str, data: bytes, at: int) -> None:
        path = self.root / name
        fd = self.changes.open(path, 0)
        self.changes.write(path, fd, data, at, Change.PATCH)
        os.close(fd)

    def truncate(self, name: str, size: int) -> None:
        path = self.root / name
        fd = self.changes.open(path, 0)
        self.changes.truncate(path, fd, size)
        os.close(fd)

    def close(self) -> None:
        self.loop.stop()
        self.events.close()
        os.close(self.touches)


class Copy:
    """A follower of a leader, in this process. Args: compression: the changes come in blocks."""

    def __init__(
        self, leader: Leader, root: Path, size: int = SMALL, compression: str | None = None
    ) -> None:
        shutil.copytree(leader.root, root, dirs_exist_ok=True)
        self.leader = leader
        self.root = root
        self.compression = compression
        self.follower = Follower(Ring(size, leader.feed.head), str(root))
        self.ends: list[tuple[str, str]] = []
        self.served: list[str] = []
        self.peer: Peer | None = None
        self._threads: list[threading.Thread] = []
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def connect(
        self, until: int = 0, pair: tuple[socket.socket, socket.socket] | None = None, *,
        beats: bool = False,
    ) -> Peer:  # fmt: skip
        ours, theirs = pair or socket.socketpair()
        in_blocks = self.compression is not None
        try:
            peer = Peer(self.leader.feed, ours.fileno(), self.follower.applied, self.compression)
        except LookupError:
            ours.close()
            theirs.close()
            raise
        self._sockets, self.peer = (ours, theirs), peer
        self._threads = [
            threading.Thread(target=lambda: self.served.append(peer.serve())),
            threading.Thread(
                target=lambda: self.ends.append(
                    self.follower.run(theirs.fileno(), until, in_blocks=in_blocks, beats=beats)
                )
            ),
        ]
        for thread in self._threads:
            thread.start()
        return peer

    def cut(self) -> None:
        if self._sockets is not None and self.peer is not None:
            self.peer.stop()
            for each in self._sockets:
                each.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            for each in self._sockets:
                each.close()
            self.peer.close()
            self.peer = self._sockets = None

    def close(self) -> None:
        self.cut()
        self.follower.close()


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Leader]:
    made = Leader(tmp_path / "leader")
    yield made
    made.close()


@pytest.fixture
def copy(leader: Leader, tmp_path: Path) -> Iterator[Copy]:
    made = Copy(leader, tmp_path / "copy")
    yield made
    made.close()


def has_all(leader: Leader, peer: Peer) -> bool:
    return peer.acked == leader.feed.head


def test_a_follower_says_that_it_is_there(leader: Leader, copy: Copy) -> None:
    """Nothing that it owes is answered by that."""
    peer = copy.connect(beats=True)
    leader.append("a", b"a")  # which nobody waits for, so that nothing is said about it at once
    until(lambda: peer.silent_s > 0.3)
    before, silent_s = peer.acked, peer.silent_s

    assert copy.follower.beat()
    until(lambda: peer.silent_s < silent_s)
    assert (peer.acked, copy.served) == (before, [])


def test_a_follower_of_a_leader_that_knows_no_beats_says_nothing(
    leader: Leader, copy: Copy
) -> None:
    assert not copy.follower.beat()
    peer = copy.connect()
    leader.append("a", b"a")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))
    assert not copy.follower.beat()


def test_every_kind_of_change_is_made_again(leader: Leader, copy: Copy) -> None:
    peer = copy.connect()
    leader.changes.make_directory(leader.root / "d")
    leader.append("d/a", b"abcdef")
    leader.patch("d/a", b"XY", 1)
    leader.append("b", b"b" * 1000)
    leader.truncate("b", 10)
    leader.truncate("b", 5000)
    leader.changes.rename(leader.root / "d", leader.root / "e")
    leader.append("e/a", b"ghi")
    leader.append("c", b"c")
    leader.changes.rename(leader.root / "c", leader.root / "b")
    leader.append("gone", b"x")
    leader.changes.unlink(leader.root / "gone")
    leader.changes.make_directory(leader.root / "f")
    leader.changes.remove_directory(leader.root / "f")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    assert differences(leader.root, copy.root) == []
    assert (copy.root / "e/a").read_bytes() == b"aXYdefghi"
    assert (copy.root / "b").read_bytes() == b"c"


def test_data_of_any_size_comes_whole(leader: Leader, copy: Copy) -> None:
    peer = copy.connect()
    data = os.urandom(3 << 20)
    leader.append("large", data)
    leader.append("large", b"")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    assert (copy.root / "large").read_bytes() == data


def test_what_was_written_is_sent_although_the_file_has_gone(leader: Leader, copy: Copy) -> None:
    leader.append("a", b"first")
    leader.patch("a", b"later", 0)
    leader.changes.rename(leader.root / "a", leader.root / "b")
    leader.changes.unlink(leader.root / "b")
    leader.append("a", b"another")
    peer = copy.connect()
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    assert differences(leader.root, copy.root) == []


def test_it_goes_on_where_it_was_cut(leader: Leader, copy: Copy) -> None:
    for number in range(20):
        copy.connect()
        leader.append(f"{number % 3}", os.urandom(100_000))
        if number % 4 == 0:
            leader.feed.mark()
        copy.cut()
    peer = copy.connect()
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    assert differences(leader.root, copy.root) == []
    assert {kind for kind, _ in copy.ends} == {"lost"}


def test_a_follower_can_lead_those_that_have_less(leader: Leader, tmp_path: Path) -> None:
    ahead, behind = Copy(leader, tmp_path / "ahead"), Copy(leader, tmp_path / "behind")
    peer = behind.connect()
    leader.append("a", b"both")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))
    behind.cut()
    peer = ahead.connect()
    leader.append("a", b" one")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))
    ahead.close()

    feed = Feed(ahead.follower.ring)
    ours, theirs = socket.socketpair()
    again = Peer(feed, ours.fileno(), behind.follower.applied)
    threads = [
        threading.Thread(target=again.serve),
        threading.Thread(target=lambda: behind.follower.run(theirs.fileno())),
    ]
    for thread in threads:
        thread.start()
    position = feed.mark()
    until(lambda: again.acked == position)
    again.stop()
    theirs.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    ours.close()
    theirs.close()
    behind.follower.close()

    assert (behind.root / "a").read_bytes() == b"both one"


def test_what_has_left_the_ring_is_not_offered(leader: Leader, copy: Copy) -> None:
    for _ in range(6):
        leader.append("a", os.urandom(1 << 20))

    assert leader.feed.first > 0
    with pytest.raises(LookupError, match="position 0 is not in the ring"):
        copy.connect()
    with pytest.raises(LookupError):
        Peer(leader.feed, 0, leader.feed.head + 1)


def test_one_that_is_too_far_behind_ends(leader: Leader, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    peer = Peer(leader.feed, ours.fileno(), leader.feed.head)
    ends: list[str] = []
    thread = threading.Thread(target=lambda: ends.append(peer.serve()))
    thread.start()
    for _ in range(8):
        leader.append("a", os.urandom(1 << 20))
        leader.feed.mark()
    # Nobody has read: what comes behind that which the socket took has gone meanwhile.
    theirs.settimeout(0.05)
    while not ends:
        with suppress(TimeoutError):
            theirs.recv(1 << 20)
    thread.join()
    peer.close()
    ours.close()
    theirs.close()

    assert ends == ["it is too far behind"]


@pytest.mark.parametrize("acked", [10**12, -1])
def test_one_that_claims_what_it_was_not_sent_ends(leader: Leader, acked: int) -> None:
    leader.append("a", b"a")
    ours, theirs = socket.socketpair()
    peer = Peer(leader.feed, ours.fileno(), leader.feed.head if acked < 0 else 0)
    theirs.sendall((acked % 2**64 if acked > 0 else 0).to_bytes(8, "little"))

    assert peer.serve() == "it claims to have what it was not sent"
    peer.close()
    ours.close()
    theirs.close()


# ---- who waits for whom


def test_acknowledgements_wait_for_those_that_are_required(leader: Leader, copy: Copy) -> None:
    feed = leader.feed
    leader.append("a", b"a")
    first = feed.mark()
    assert feed.has(first), "there is nobody to wait for"

    feed.require(2, 0)
    leader.append("a", b"a")
    second = feed.mark()
    assert feed.has(first), "that was acknowledged"
    assert not feed.has(second), "there are fewer than there have to be"

    peer = copy.connect()
    until(lambda: has_all(leader, peer))
    assert not feed.has(second), "nobody says that it counts"
    peer.is_required = True
    assert feed.has(second)
    assert feed.n_copies == 2

    copy.cut()
    assert feed.n_copies == 1
    assert not feed.has(feed.mark())


def test_nothing_is_acknowledged_while_one_in_sync_is_missing(leader: Leader) -> None:
    leader.feed.require(1, 1)
    position = leader.feed.mark()
    assert not leader.feed.has(position)

    leader.feed.require(1, 0)
    assert leader.feed.has(position)


def test_the_loop_is_told_of_what_it_waits_for(leader: Leader, copy: Copy) -> None:
    feed, events, told = leader.feed, leader.events, []
    feed.require(2, 0)
    peer = copy.connect()
    peer.is_required = True

    async def wait() -> None:
        for number in range(50):
            leader.append("a", b"a")
            done = asyncio.Event()
            leader.loop.when_copied(done.set)
            await asyncio.wait_for(done.wait(), WAIT_S)
            told.append(number)
            assert peer.acked >= feed.head - 100

    events.run_until_complete(wait())

    assert told == list(range(50))


# ---- what a leader must not say

HEAD = 32


def entry(
    kind: int, path: bytes, target: bytes = b"", start: int = 0, end: int = 0, data: bytes = b"",
    size: int | None = None,
) -> bytes:  # fmt: skip
    """One, as docs/clustering.md has it."""
    whole = HEAD + len(path) + len(target) + len(data)
    return (
        (whole if size is None else size).to_bytes(4, "little")
        + kind.to_bytes(2, "little")
        + len(path).to_bytes(2, "little") + len(target).to_bytes(2, "little") + bytes(6)
        + start.to_bytes(8, "little", signed=True) + end.to_bytes(8, "little", signed=True)
        + path + target + data
    )  # fmt: skip


def followed(root: Path, data: bytes) -> tuple[str, str]:
    """How a follower ends that gets this."""
    ours, theirs = socket.socketpair()
    follower = Follower(Ring(SMALL), str(root))
    ours.sendall(data)
    ours.shutdown(socket.SHUT_WR)
    end = follower.run(theirs.fileno())
    follower.close()
    ours.close()
    theirs.close()
    return end


@pytest.mark.parametrize(
    "path",
    [b"../x", b"/etc/x", b"a/../../x", b".lock", b".clustering_id", b"clean_stop",
     b"schema_version", b"a//b", b"a/./b", b"a/", b"", b"a\0b", b"a/..", b"x" * 5000],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, path: bytes) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").mkdir()
    before = sorted(tmp_path.rglob("*"))

    for sent in (entry(Change.MAKE, path), entry(Change.REMOVE, path),
                 entry(Change.RENAME, b"a", path), entry(Change.MAKE_DIRECTORY, path)):  # fmt: skip
        kind, why = followed(root, sent)
        assert kind == "refused"
        assert "makes no sense" in why

    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside").write_bytes(b"mine")
    (root / "a").symlink_to(tmp_path / "outside")

    kind, _ = followed(root, entry(Change.PATCH, b"a", start=0, end=4, data=b"evil"))

    assert kind == "refused"
    assert (tmp_path / "outside").read_bytes() == b"mine"


@pytest.mark.parametrize(
    "sent",
    [
        entry(Change.APPEND, b"a", start=0, end=5, data=b"four"),
        entry(Change.APPEND, b"a", start=-4, end=0, data=b"four"),
        entry(Change.APPEND, b"a", start=9, end=5, data=b""),
        entry(Change.TRUNCATE, b"a", end=-1),
        entry(Change.MAKE, b"a", data=b"data", end=4),
        entry(0, b"a"), entry(10, b"a"), entry(255, b"a"),
        entry(Change.MAKE, b"a", size=31), entry(Change.MAKE, b"a", size=32),
        entry(Change.MAKE, b"a", size=0), entry(Change.MAKE, b"a", size=2**31),
    ],
    ids=range(12),
)  # fmt: skip
def test_what_makes_no_sense_is_refused(tmp_path: Path, sent: bytes) -> None:
    (tmp_path / "a").write_bytes(b"")

    assert followed(tmp_path, sent)[0] == "refused"


@given(st.binary(max_size=200))
def test_any_bytes_end_without_a_crash(data: bytes) -> None:
    kind, _ = followed(Path("/dev/shm"), data[:31])
    assert kind in ("lost", "refused")


# ---- any changes, any cuts


def test_who_wants_to_know_is_told_of_too_few_copies_and_others_wait(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "leader")
    told: list[str] = []
    loop, feed = leader.loop, leader.feed

    def turn() -> None:
        for _ in range(5):
            leader.events.run_until_complete(asyncio.sleep(0.002))

    feed.require(2, 1)
    loop.after_sync(lambda: told.append("first"), lambda: told.append("first refused"))
    loop.after_sync(lambda: told.append("patient"))
    turn()
    loop.after_sync(lambda: told.append("second"), lambda: told.append("second refused"))
    turn()
    assert not told, "it may be over in a moment"

    loop.is_below = True
    turn()
    assert told == ["first refused", "second refused"]
    loop.after_sync(lambda: told.append("third"), lambda: told.append("third refused"))
    turn()
    assert told[2:] == ["third refused"]

    feed.require(1, 0)
    loop.is_below = False
    turn()
    assert told[3:] == ["patient"], "it waited for what is there now"
    loop.after_sync(lambda: told.append("fourth"), lambda: told.append("fourth refused"))
    turn()
    assert told[4:] == ["fourth"]
    leader.close()


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "e/a"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), NAMES, st.integers(0, 700_000)),
        st.tuples(st.just("patch"), NAMES, st.integers(1, 50)),
        st.tuples(st.just("truncate"), NAMES, st.integers(0, 1000)),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("unlink"), NAMES, st.just(0)),
        st.tuples(st.just("swap"), st.just(""), st.just(0)),
        st.tuples(st.just("cut"), st.just(""), st.just(0)),
        st.tuples(st.just("mark"), st.just(""), st.just(0)),
    ),
    max_size=40,
)  # fmt: skip


def do(leader: Leader, kind: str, name: str, value: int | str) -> None:
    """Make one change, if it can be made."""
    path = leader.root / name
    if kind == "append":
        leader.append(name, bytes([len(name) + int(value) % 200]) * int(value))
    elif kind == "swap":
        leader.changes.rename(leader.root / "d", leader.root / "x")
        leader.changes.rename(leader.root / "e", leader.root / "d")
        leader.changes.rename(leader.root / "x", leader.root / "e")
    elif not path.exists():
        return
    elif kind == "patch":
        leader.patch(name, b"p" * int(value), path.stat().st_size // 2)
    elif kind == "truncate":
        leader.truncate(name, int(value))
    elif kind == "rename":
        leader.changes.rename(path, leader.root / str(value))
    else:
        leader.changes.unlink(path)


@settings(deadline=None, max_examples=40)
@given(steps=STEPS, compression=st.sampled_from([None, "off", "auto", "on"]))
def test_any_changes_with_any_cuts_end_in_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, int | str]],
    compression: str | None,
) -> None:  # fmt: skip
    base = tmp_path_factory.mktemp("any")
    leader = Leader(base / "leader", 32 << 20)
    for name in ("d", "e"):
        leader.changes.make_directory(leader.root / name)
    copy = Copy(leader, base / "copy", compression=compression)
    copy.connect()
    try:
        for kind, name, value in steps:
            if kind == "cut":
                copy.cut()
                copy.connect()
            elif kind == "mark":
                leader.feed.mark()
            else:
                do(leader, kind, name, value)
        leader.feed.mark()
        peer = copy.peer
        assert peer is not None
        until(lambda: has_all(leader, peer))
        assert differences(leader.root, copy.root) == []
    finally:
        copy.close()
        leader.close()
        shutil.rmtree(base)


# --- who reads the log on a follower --------------------------------------------------------------


def test_marks_tell_what_the_disks_of_all_have(leader: Leader, copy: Copy) -> None:
    peer = copy.connect()
    leader.append("a", b"abc")
    position = leader.feed.mark()
    until(lambda: has_all(leader, peer))
    assert copy.follower.common == 0

    leader.feed.tell(position)
    leader.feed.tell(position - 1)
    leader.feed.mark()
    leader.append("a", b"def")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    assert copy.follower.common >= position
    assert copy.follower.common < copy.follower.applied


def test_what_all_have_reaches_over_marks(leader: Leader, copy: Copy) -> None:
    peer = copy.connect()
    leader.append("a", b"abc")
    position = leader.feed.mark()
    until(lambda: has_all(leader, peer))
    leader.feed.tell(position)
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    assert copy.follower.common == copy.follower.applied > position


def test_marks_are_no_changes(leader: Leader) -> None:
    leader.append("a", b"abc")
    behind = leader.feed.changed

    assert leader.feed.mark() > behind
    assert leader.feed.changed == behind
    leader.append("a", b"abc")
    assert leader.feed.changed == leader.feed.head


def test_changes_are_read_from_the_ring_of_a_follower(leader: Leader, copy: Copy) -> None:
    peer, ring = copy.connect(), copy.follower.ring
    since = ring.head
    leader.changes.make_directory(leader.root / "d")
    leader.append("d/a", b"abc")
    leader.feed.mark()
    leader.append("d/a", b"def")
    leader.changes.rename(leader.root / "d/a", leader.root / "d/b")
    leader.feed.mark()
    until(lambda: has_all(leader, peer))

    expected = [
        (Change.MAKE_DIRECTORY, b"d", b"", 0),
        (Change.MAKE, b"d/a", b"", 0),
        (Change.APPEND, b"d/a", b"", 3),
        (Change.APPEND, b"d/a", b"", 6),
        (Change.RENAME, b"d/a", b"d/b", 0),
    ]
    at, found = ring.changes(since, ring.head, 100)
    assert [each[:4] for each in found] == expected
    assert at == ring.head
    at, first = ring.changes(since, ring.head, 2)
    assert first == found[:2]
    assert at == first[-1][4]
    assert ring.changes(at, ring.head, 100) == (ring.head, found[2:])
    assert ring.changes(ring.head, ring.head, 100) == (ring.head, [])


def test_changes_that_the_ring_has_lost_are_missed(leader: Leader, copy: Copy) -> None:
    peer, ring = copy.connect(), copy.follower.ring
    since = ring.head
    for _ in range(12):
        leader.append("a", os.urandom(SMALL // 8))
        leader.feed.mark()
        until(lambda: has_all(leader, peer))

    with pytest.raises(LookupError):
        ring.changes(since, ring.head, 100)
    with pytest.raises(LookupError):
        ring.changes(ring.first - 100, ring.head, 0)


def test_a_ring_that_begins_anew_says_so(tmp_path: Path) -> None:
    ring = Ring(SMALL)
    ring.reset(100)

    assert (ring.n_resets, ring.head) == (1, 100)


def test_an_append_that_fails_leaves_nothing(leader: Leader, copy: Copy) -> None:
    leader.append("a", b"a" * 1000)
    leader.append("a", b"b" * 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        copy.connect()
        leader.feed.mark()
        until(lambda: bool(copy.ends))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert copy.ends[0][0] == "refused"
    assert (copy.root / "a").read_bytes() == b"a" * 1000
