"""A follower's files become those of its leader: whatever it had, and whatever the leader says."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.cluster import frames, joining
from lavinmq.cluster.frames import Connection, PeerError
from lavinmq.cluster.joining import Copy, StageFailed, SyncFailed
from lavinmq.files import gradual
from lavinmq.files.snapshot import Snapshot
from lavinmq.files.standing import Standing
from lavinmq.integrity.keeper import Integrity, Lock
from tests.support.follower import differences
from tests.support.little_disk import files_of_at_most


def itself(sock: socket.socket) -> Connection:
    return sock


def nothing(path: str) -> bool:
    """Nobody knows which files are the same."""
    return False


def joined(
    leader: Path, follower: Path, place: Callable[[Copy], None] = Copy.place,
    is_same: Callable[[str], bool] = nothing,
    ours_by: Callable[[socket.socket], Connection] = itself,
    theirs_by: Callable[[socket.socket], Connection] = itself,
    integrity: Integrity | None = None,
) -> int:  # fmt: skip
    """Have a follower's files be the leader's. Args: ours_by, theirs_by: make what the leader and
    the follower speak by. Returns: bytes that were sent."""
    snapshot = Snapshot(str(leader))
    snapshot.scan()
    snapshot.finish(b"")
    pair = socket.socketpair()
    ours, theirs = ours_by(pair[0]), theirs_by(pair[1])
    sent: list[Any] = []

    def lead() -> None:
        try:
            sent.append(joining.offer(ours, snapshot, is_same))
            joining.staged(ours)
            joining.placed(ours)
        except (OSError, PeerError) as error:
            sent.append(error)
        ours.close()

    thread = threading.Thread(target=lead)
    thread.start()
    try:
        copy = Copy(str(follower), integrity)
        came = copy.take(theirs)
        assert frames.receive(theirs) == {"place": True}
        place(copy)
        if place is Copy.place:
            joining.remove_stage(str(follower))
        frames.send(theirs, {"placed": True})
        thread.join()
        assert sent == [came]
        return came
    finally:
        theirs.close()
        thread.join()
        snapshot.release()


FILES = st.dictionaries(
    st.sampled_from(["a", "b", "d/a", "d/e/a", "f", "f/a"]), st.binary(max_size=30), max_size=6
)


def make(root: Path, files: dict[str, bytes]) -> None:
    root.mkdir()
    for name, content in files.items():
        path = root / name
        if any(parent.is_file() for parent in path.parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for name in (".lock", ".clustering_id", "schema_version"):
        (root / name).write_text(root.name)


@settings(deadline=None)
@given(FILES, FILES)
def test_whatever_it_had_it_has_the_leaders_files(
    tmp_path_factory: pytest.TempPathFactory, theirs: dict[str, bytes], ours: dict[str, bytes]
) -> None:
    base = tmp_path_factory.mktemp("join")
    leader, follower = base / "leader", base / "follower"
    make(leader, theirs)
    make(follower, ours)

    joined(leader, follower)

    for name in (".lock", ".clustering_id", "schema_version"):
        assert (follower / name).read_text() == "follower"
        (leader / name).unlink()
        (follower / name).unlink()
    assert differences(leader, follower) == []
    shutil.rmtree(base)


def test_little_of_what_comes_is_in_memory_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever syncs a file system that a joining node is on, waited for all that had come."""
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    base = os.urandom(1 << 20)
    make(leader, {"large": 6 * base, "grown": base + 3 * base, **{f"{n}": base for n in range(4)}})
    make(follower, {"grown": base})
    monkeypatch.setattr(gradual, "SYNC_BYTES", 2 << 20)
    synced = {each.stat().st_ino: each.stat().st_size for each in follower.iterdir()}
    unsynced = []

    def sync(fd: int) -> None:
        found = [each.stat() for each in follower.rglob("*") if each.is_file()]
        unsynced.append(sum(each.st_size - synced.get(each.st_ino, 0) for each in found))
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    monkeypatch.setattr(os, "fdatasync", sync)

    assert joined(leader, follower) == 13 << 20

    assert max(unsynced) <= (3 << 20) + 4096
    assert len(unsynced) == 3 + 2 + 4 + 1, "and what is placed behind what was there"


def test_a_sync_that_fails_while_files_come_is_no_lack_of_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what is on the disk then: to try again would not tell."""
    make(tmp_path / "leader", {"a": bytes(1 << 20)})
    make(tmp_path / "follower", {})

    def sync(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", sync)
    with pytest.raises(SyncFailed, match="Input/output error"):
        joined(tmp_path / "leader", tmp_path / "follower")


def test_only_what_differs_is_sent(tmp_path: Path) -> None:
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    base = os.urandom(5 << 20)
    make(leader, {"same": base, "grown": base + b"more", "other": b"x" * 10, "shorter": base[:100]})
    make(follower, {"same": base, "grown": base, "other": b"y" * 10, "shorter": base})

    assert joined(leader, follower) == len(b"more") + 10
    assert joined(leader, follower) == 0
    assert (follower / "shorter").read_bytes() == base[:100]


@settings(deadline=None)
@given(FILES, FILES, st.integers(0, 12))
def test_a_node_that_died_while_its_files_were_replaced_goes_on_with_that(
    tmp_path_factory: pytest.TempPathFactory, theirs: dict[str, bytes], ours: dict[str, bytes],
    n_done: int,
) -> None:  # fmt: skip
    base = tmp_path_factory.mktemp("again")
    leader, follower = base / "leader", base / "follower"
    make(leader, theirs)
    make(follower, ours)
    standing = Standing(str(follower))

    def dies(self: Copy) -> None:
        """Do some of it."""
        standing.note(is_whole=False)
        left = n_done
        done = self._place

        def place(staged: joining.Staged) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError("it dies")
            done(staged)

        self._place = place  # type: ignore[method-assign]
        with suppress(OSError):
            Copy.place(self)

    joined(leader, follower, dies)
    joining.finish(str(follower), standing)
    assert standing.is_whole
    assert not (follower / joining.STAGE).exists()

    for name in (".lock", ".clustering_id", "schema_version", ".clustering_state"):
        (leader / name).unlink(missing_ok=True)
        (follower / name).unlink()
    assert differences(leader, follower) == []
    shutil.rmtree(base)


def test_a_stage_without_a_plan_is_removed(tmp_path: Path) -> None:
    make(tmp_path / "f", {"a": b"mine"})
    (tmp_path / "f" / joining.STAGE).mkdir()
    (tmp_path / "f" / joining.STAGE / "0").write_bytes(b"half")
    standing = Standing(str(tmp_path / "f"))
    standing.note(is_whole=False)

    joining.finish(str(tmp_path / "f"), standing)

    assert not standing.is_whole
    (tmp_path / "f" / joining.STAGE).mkdir()
    for plan in (b"{}", b'{"files": [[1]], "directories": []}', b"[]",
                 b'{"files": [["a", "gone", 2, 9]], "directories": []}'):  # fmt: skip
        (tmp_path / "f" / joining.STAGE / joining.PLAN).write_bytes(plan)
        joining.finish(str(tmp_path / "f"), standing)
        assert not standing.is_whole
        assert not (tmp_path / "f" / joining.STAGE).exists()
        (tmp_path / "f" / joining.STAGE).mkdir()
    joining.remove_stage(str(tmp_path / "f"))
    assert not (tmp_path / "f" / joining.STAGE).exists()
    assert (tmp_path / "f" / "a").read_bytes() == b"mine"


def test_nothing_is_touched_before_all_is_there(tmp_path: Path) -> None:
    make(tmp_path / "f", {"a": b"mine"})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, {"files": [["a", 4], ["b", 4]]})
        frames.send(ours, {"from": 0, "size": 4})
        ours.sendall(b"new!")
        frames.send(ours, {"from": 0, "size": 4})
        ours.sendall(b"ne")
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            Copy(str(tmp_path / "f")).take(theirs)

    assert (tmp_path / "f" / "a").read_bytes() == b"mine"
    joining.remove_stage(str(tmp_path / "f"))
    assert not (tmp_path / "f" / joining.STAGE).exists()


@pytest.mark.parametrize(
    "path", ["../a", "/a", ".lock", ".clustering_id", "a/../b", "a//b", "", "a/./b", "a/", None, 1,
             "clean_stop", "schema_version", "lost+found/x", "a\0b", "x" * 5000],
)  # fmt: skip
def test_paths_that_lead_elsewhere_are_refused(tmp_path: Path, path: Any) -> None:
    for frame in ({"files": [[path, 1]]}, {"directories": [path]}):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if "directories" in frame:
                frames.send(ours, {"files": []})
            frames.send(ours, frame)
            with pytest.raises(PeerError):
                Copy(str(tmp_path)).take(theirs)


@pytest.mark.parametrize(
    "sent", [{"files": 1}, {"files": [["a"]]}, {"files": [["a", -1]]}, {"files": [["a", "1"]]}, {}]
)
def test_nonsense_of_a_leader_is_refused(tmp_path: Path, sent: dict[str, Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(ours, sent)
        with pytest.raises(PeerError):
            Copy(str(tmp_path)).take(theirs)


def test_what_is_the_same_is_not_read(tmp_path: Path) -> None:
    make(tmp_path / "l", {"a": b"leader's", "b": b"longer", "c": b"more"})
    make(tmp_path / "f", {"a": b"follower", "b": b"short"})

    # Whether it is the same is the leader's to know; a size that differs is looked at.
    joined(tmp_path / "l", tmp_path / "f", is_same=lambda path: True)

    assert (tmp_path / "f" / "a").read_bytes() == b"follower"
    assert (tmp_path / "f" / "b").read_bytes() == b"longer"
    assert (tmp_path / "f" / "c").read_bytes() == b"more"


def test_a_file_is_the_same_only_if_the_leader_has_said_so(tmp_path: Path) -> None:
    make(tmp_path / "l", {"a": b"abc"})
    snapshot = Snapshot(str(tmp_path / "l"))
    snapshot.scan()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(theirs, {"have": [3, joining.SAME]})
        with pytest.raises(PeerError, match="for the same"):
            joining.offer(ours, snapshot, nothing)
    snapshot.release()


@pytest.mark.parametrize("have", [1, [], [0, "", 1], [-1, ""], [99, ""], ["0", ""], [0], None])
def test_nonsense_of_a_follower_is_refused(tmp_path: Path, have: Any) -> None:
    make(tmp_path / "l", {"a": b"abc"})
    (tmp_path / "l" / ".lock").unlink()
    snapshot = Snapshot(str(tmp_path / "l"))
    snapshot.scan()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        frames.send(theirs, {"have": have})
        with pytest.raises(PeerError):
            joining.offer(ours, snapshot, nothing)
    snapshot.release()


def test_a_damaged_file_comes_as_a_whole_and_others_are_not_read(tmp_path: Path) -> None:
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    files = {name: os.urandom(100_000) for name in ("a", "b", "gone", "d/c")}
    make(leader, files)
    make(follower, files | {"b": files["b"][:50] + b"?" + files["b"][51:]})
    (follower / "gone").unlink()
    integrity = Integrity(str(follower), Lock(), rate=1, pause_s=1, lazy=False)
    integrity.damages.add("b", "differs", (0,))
    integrity.damages.add("gone", "missing")
    copies: list[Copy] = []

    def place(copy: Copy) -> None:
        copies.append(copy)
        copy.place()

    n_bytes = joined(leader, follower, place, lambda _: True, integrity=integrity)

    assert n_bytes == 200_000
    assert (copies[0].n_same, copies[0].n_compared) == (2, 0)
    assert {name: (follower / name).read_bytes() for name in files} == files
    integrity.close(is_orderly=True)


@pytest.mark.parametrize("had", [b"", b"begin" * 20_000], ids=["whole", "rest"])
def test_a_disk_that_takes_a_part_of_what_comes_has_no_file_in_its_place(
    tmp_path: Path, had: bytes
) -> None:
    """What is missing at the end would be zeros, or nothing, and the node would be whole."""
    leader, follower = tmp_path / "leader", tmp_path / "follower"
    content = had + os.urandom(300_000)
    make(leader, {"a": content})
    make(follower, {"a": had})

    with files_of_at_most(200_000), pytest.raises(StageFailed, match="File too large"):
        joined(leader, follower)
    assert (follower / "a").read_bytes() == had

    def too_full(copy: Copy) -> None:
        with files_of_at_most(350_000), pytest.raises(OSError, match="File too large"):
            copy.place()

    if had:  # it has room for the stage, and none beside it
        joined(leader, follower, too_full)
    joined(leader, follower)
    assert (follower / "a").read_bytes() == content
