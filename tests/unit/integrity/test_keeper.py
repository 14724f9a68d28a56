"""Damage is found, whatever file it is in, and what the broker or others have done is none.

Files are old for these tests, so that they count as at rest, and are changed by plain writes, as a
person would; what the broker does is noted as it notes it.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.files.changes import Change
from lavinmq.integrity import damage, scrub
from lavinmq.integrity.damage import Damages
from lavinmq.integrity.keeper import Integrity, Lock
from lavinmq.integrity.life import Life
from lavinmq.integrity.sums import BLOCK
from lavinmq.integrity.touches import HEAD

VHOST, QUEUE = "a" * 40, "b" * 40
SEGMENT = f"{VHOST}/{QUEUE}/msgs.0000000001"
FILES = {
    "users.json": b"[]", "vhosts.json": b"[{}]", f"{VHOST}/definitions.amqp": b"definitions" * 99,
    f"{VHOST}/policies.json": b"[1]", f"{VHOST}/{QUEUE}/.queue": b"orders",
    SEGMENT: os.urandom(3 * BLOCK + 5), f"{VHOST}/{QUEUE}/acks.0000000001": b"\4\0\0\0",
    f"{VHOST}/{QUEUE}/meta.0000000001": b"\1\0\0\0",
}  # fmt: skip
OLD_S = 100
LOCK = Lock(b"1\n", b"1\n")


def age(path: Path) -> None:
    """Have a file be at rest."""
    then = time.time() - OLD_S
    os.utime(path, (then, then))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for notes in these tests."""
    monkeypatch.setattr(scrub, "SETTLE_S", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory."""
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        age(path)
    return tmp_path


class Lives:
    """One life of a broker after the other, on one data directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now: Integrity | None = None

    def begin(self, lock: Lock = LOCK) -> Integrity:
        """The next one; the one before was killed, if it did not end."""
        if self.now is not None and self.now._touches is not None:
            self.now._touches.close()
        self.now = Integrity(str(self.root), lock, rate=1 << 40, pause_s=3600, lazy=False)
        return self.now

    def end(self) -> None:
        """It stops in order."""
        assert self.now is not None
        self.now.close(is_orderly=True)
        self.now = None

    def kinds(self) -> dict[str, str]:
        """What a pass over all files finds."""
        assert self.now is not None
        self.now._pass()
        return {each.path: each.kind for each in self.now.damages.all()}

    def note(self, kind: Change, path: str, target: str = "", start: int = 0, end: int = 0) -> None:
        """The broker has done something."""
        assert self.now is not None
        raw, to = path.encode(), target.encode()
        os.write(self.now.touches_fd, HEAD.pack(kind, len(raw), len(to), start, end) + raw + to)


@pytest.fixture
def lives(root: Path) -> Iterator[Lives]:
    """A first one, that knows all files."""
    found = Lives(root)
    found.begin()
    assert found.kinds() == {}
    yield found
    if found.now is not None:
        found.now.close(is_orderly=False)


def flip(path: Path, at: int = 0, *, keeps_time: bool = False) -> None:
    """Change a byte. Args: keeps_time: as a disk does."""
    times = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x40]))
    if keeps_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("keeps_time", [True, False])
@pytest.mark.parametrize("is_running", [True, False])
def test_flipped_bytes_are_found(
    lives: Lives, root: Path, *, is_running: bool, keeps_time: bool
) -> None:
    if not is_running:
        lives.end()
    for name in FILES:
        flip(root / name, keeps_time=keeps_time)
    if not is_running:
        lives.begin().first_look()

    expected = "differs" if is_running or keeps_time else "changed"
    assert lives.kinds() == dict.fromkeys(FILES, expected)
    assert lives.kinds() == dict.fromkeys(FILES, expected), "it does not go away"


def test_files_that_were_cut_or_removed_are_found(lives: Lives, root: Path) -> None:
    for name in FILES:
        os.truncate(root / name, 1)
    assert lives.kinds() == dict.fromkeys(FILES, "short")

    for name in FILES:
        (root / name).unlink()
    assert lives.kinds() == dict.fromkeys(FILES, "missing")


def test_a_queue_that_is_gone_is_found(lives: Lives, root: Path) -> None:
    shutil.rmtree(root / VHOST / QUEUE)

    assert lives.kinds() == dict.fromkeys(
        [name for name in FILES if name.startswith(f"{VHOST}/{QUEUE}")], "missing"
    )


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_was_done_while_no_broker_ran_is_known_before_the_next_one_changes_anything(
    lives: Lives, root: Path, *, is_killed: bool
) -> None:
    if not is_killed:
        lives.end()
    flip(root / SEGMENT, 2 * BLOCK)
    (root / "users.json").unlink()

    now = lives.begin()
    now.first_look()

    assert [(each.path, each.kind, each.blocks) for each in now.damages.all()] == [
        (SEGMENT, "changed", (2,)), ("users.json", "missing", ())
    ]  # fmt: skip


def test_damage_is_remembered(lives: Lives, root: Path) -> None:
    flip(root / SEGMENT)
    lives.kinds()
    lives.end()

    assert [each.path for each in lives.begin().damages.all()] == [SEGMENT]


def test_a_file_that_is_as_it_was_is_damaged_no_more(lives: Lives, root: Path) -> None:
    flip(root / SEGMENT)
    assert lives.kinds()

    flip(root / SEGMENT)

    assert lives.kinds() == {}


# ---- what is no damage


def own_changes(lives: Lives, root: Path) -> None:
    """Whatever a broker does to its files that takes something back."""
    segment = root / SEGMENT
    with segment.open("r+b") as file:
        file.seek(BLOCK)
        file.write(bytes(BLOCK))
    lives.note(Change.HOLE, SEGMENT, start=BLOCK, end=2 * BLOCK)
    os.truncate(segment, 2 * BLOCK + 7)
    lives.note(Change.TRUNCATE, SEGMENT, start=len(FILES[SEGMENT]), end=2 * BLOCK + 7)
    with segment.open("ab") as file:
        file.write(b"more" * BLOCK)
    beside = root / "users.json.tmp"
    beside.write_bytes(b"[2]")
    beside.rename(root / "users.json")
    lives.note(Change.RENAME, "users.json.tmp", "users.json")
    (root / VHOST / "policies.json").unlink()
    lives.note(Change.REMOVE, f"{VHOST}/policies.json")
    with (root / VHOST / "definitions.amqp").open("ab") as file:
        file.write(b"declared")


@pytest.mark.parametrize("end", ["runs", "stops", "is killed"])
def test_what_the_broker_has_changed_is_no_damage(lives: Lives, root: Path, end: str) -> None:
    own_changes(lives, root)
    if end == "stops":
        lives.end()
    if end != "runs":
        lives.begin().first_look()

    assert lives.kinds() == {}
    for name in ("users.json", SEGMENT, f"{VHOST}/definitions.amqp"):
        age(root / name)
    assert lives.kinds() == {}
    flip(root / SEGMENT, len(FILES[SEGMENT]) + 9)
    flip(root / "users.json")
    assert lives.kinds() == {SEGMENT: "differs", "users.json": "differs"}, "they are known anew"


def test_a_queue_that_the_broker_has_deleted_is_no_damage(lives: Lives, root: Path) -> None:
    doomed = f"{VHOST}/{QUEUE}.deleted-1"
    (root / VHOST / QUEUE).rename(root / doomed)
    lives.note(Change.RENAME, f"{VHOST}/{QUEUE}", doomed)

    assert lives.kinds() == {}
    assert not (root / ".sums" / "files" / VHOST / QUEUE).exists()


def test_damage_beside_what_the_broker_has_changed_is_found(lives: Lives, root: Path) -> None:
    own_changes(lives, root)
    flip(root / SEGMENT, 5)

    assert lives.kinds() == {SEGMENT: "differs"}


def test_a_file_that_others_have_cut_before_the_broker_did_is_damaged(
    lives: Lives, root: Path
) -> None:
    os.truncate(root / SEGMENT, 100)
    os.truncate(root / SEGMENT, 90)  # the end of its last whole message
    lives.note(Change.TRUNCATE, SEGMENT, start=100, end=90)

    assert lives.kinds() == {SEGMENT: "short"}


def test_what_another_broker_has_done_is_no_damage_but_rot_is(lives: Lives, root: Path) -> None:
    """LavinMQ, or a release that has no sums: the lock tells that it was there."""
    lives.end()
    flip(root / "users.json")
    (root / VHOST / QUEUE / "acks.0000000001").unlink()
    flip(root / SEGMENT, keeps_time=True)

    lives.begin(Lock(b"2\n", b"3\n")).first_look()

    assert lives.kinds() == {SEGMENT: "differs"}


def test_without_a_lock_nobody_knows_who_was_there(lives: Lives, root: Path) -> None:
    lives.end()
    flip(root / "users.json")

    lives.begin(Lock()).first_look()

    assert lives.kinds() == {}


def test_files_that_a_loss_of_power_has_taken_back_are_no_damage(
    lives: Lives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavinmq.integrity.life.boot", lambda: "another one")
    (root / VHOST / "policies.json").unlink()
    flip(root / SEGMENT, keeps_time=True)
    os.truncate(root / f"{VHOST}/definitions.amqp", 3)
    for name in ("", VHOST):
        age(root / name)
    age(root / f"{VHOST}/definitions.amqp")
    monkeypatch.setattr(Life, "booted_ns", property(lambda _: time.time_ns(), lambda *_: None),
                        raising=False)  # fmt: skip

    lives.begin().first_look()

    assert lives.kinds() == {}
    flip(root / "vhosts.json")
    assert lives.kinds() == {"vhosts.json": "differs"}, "it was looked at since"


def test_sums_of_nobody_knows_whom_are_thrown_away(lives: Lives, root: Path) -> None:
    lives.end()
    (root / ".sums" / "life").write_bytes(b"nonsense")
    flip(root / SEGMENT)

    lives.begin().first_look()

    assert lives.kinds() == {}


def test_a_backup_that_was_restored_has_no_damage(lives: Lives, root: Path, tmp_path: Path) -> None:
    lives.end()
    restored = tmp_path / "restored"
    shutil.copytree(root, restored, ignore=lambda *_: [".sums", "restored"])

    others = Lives(restored)
    others.begin().first_look()

    assert others.kinds() == {}
    others.end()


def test_nothing_is_made_before_the_first_pass_where_nothing_was(root: Path) -> None:
    now = Integrity(str(root), LOCK, rate=1, pause_s=3600, lazy=True)
    now.first_look()

    assert not (root / ".sums").exists()
    now.close(is_orderly=True)
    assert not (root / ".sums").exists()


def test_what_is_not_kept_has_no_sums(lives: Lives, root: Path) -> None:
    names = [
        ".lock", "clean_stop", f"{VHOST}/transient/{QUEUE}.1/msgs.0000000001", "lost+found/x",
        f"{VHOST}/{QUEUE}.deleted-1/msgs.0000000001", f"{VHOST}/{QUEUE}/tmp.acks.0000000001",
        f"{VHOST}/{QUEUE}/msgs.0000000001.damaged", "somebody's", f"{VHOST}/policies.json.tmp",
    ]  # fmt: skip
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
        age(root / name)

    assert lives.kinds() == {}
    for name in names:
        flip(root / name)
    assert lives.kinds() == {}


# ---- the thread


def wait_for(condition: Any) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_pass_can_be_asked_for_and_tells_of_damage(root: Path) -> None:
    now = Integrity(str(root), LOCK, rate=1, pause_s=3600, lazy=True)
    told: list[str] = []
    now.on_damage = lambda damage: told.append(damage.path)
    now.start()
    try:
        number = now.verify()
        wait_for(lambda: now.status()["verified"] >= number)
        flip(root / SEGMENT)

        number = now.verify()
        wait_for(lambda: now.status()["verified"] >= number)

        assert told == [SEGMENT]
        assert [each["path"] for each in now.status()["damaged_files"]] == [SEGMENT]
        assert now.status()["files"] == len(FILES)
        assert now.is_damaged(SEGMENT)
        assert not now.is_damaged("users.json")
    finally:
        now.close(is_orderly=True)


def test_a_disk_that_cannot_sync_is_told_of(
    lives: Lives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    told: list[str] = []
    assert lives.now is not None
    lives.now.on_sync_failed = lambda path, _: told.append(path)
    with (root / SEGMENT).open("ab") as file:
        file.write(b"x")
    age(root / SEGMENT)
    monkeypatch.setattr(os, "fdatasync", fails)

    lives.kinds()

    assert told == [str(root / SEGMENT)]


def test_a_file_that_the_disk_does_not_give_is_damaged(
    lives: Lives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int, n: int, at: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == str(root / SEGMENT):
            raise OSError(5, "Input/output error")
        return pread(fd, n, at)

    pread = os.pread
    monkeypatch.setattr(os, "pread", fails)

    assert lives.kinds() == {SEGMENT: "unreadable"}


# ---- an operator's mistakes, and a disk that fails or is full


def damaged_despite(lives: Lives, root: Path) -> None:
    """Whatever else is there, damage is found: that of the last file, too."""
    last = f"{'f' * 40}/{QUEUE}/msgs.0000000001"
    (root / last).parent.mkdir(parents=True)
    (root / last).write_bytes(b"x" * 100)
    age(root / last)
    assert lives.kinds() == {}
    flip(root / last)
    flip(root / SEGMENT)
    assert lives.kinds() == {SEGMENT: "differs", last: "differs"}


def test_a_file_in_the_place_of_a_virtual_host_ends_no_pass(lives: Lives, root: Path) -> None:
    (root / ("b" * 40)).write_bytes(b"no directory")
    damaged_despite(lives, root)
    assert lives.now is not None
    lives.end()
    lives.begin().first_look()


def test_a_directory_that_cannot_be_read_ends_no_pass_and_nothing_of_it_is_missing(
    lives: Lives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: str) -> Any:
        if path.endswith("c" * 40):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    scandir = os.scandir
    (root / VHOST / ("c" * 40)).mkdir()
    (root / VHOST / ("c" * 40) / "msgs.0000000001").write_bytes(b"y")
    age(root / VHOST / ("c" * 40) / "msgs.0000000001")
    assert lives.kinds() == {}
    monkeypatch.setattr(os, "scandir", fails)
    damaged_despite(lives, root)


def test_names_that_are_no_text_end_no_pass(lives: Lives, root: Path) -> None:
    directory = os.fsencode(root / VHOST) + b"/\xff\xfe\n"
    os.mkdir(directory)
    for name in (b"msgs.0000000001", b"msgs.0000000001\n", b"\xff"):
        with open(directory + b"/" + name, "wb") as file:
            file.write(b"x")
        os.utime(directory + b"/" + name, (1, 1))
    (root / VHOST / "loop").symlink_to(root)
    (root / VHOST / QUEUE / "msgs.0000000007").symlink_to(root / SEGMENT)
    os.mkfifo(root / VHOST / QUEUE / "msgs.0000000008")
    damaged_despite(lives, root)


def test_a_disk_without_room_for_sums_makes_no_damage_of_what_the_broker_has_changed(
    lives: Lives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        if "/files/" in source:
            raise OSError(28, "No space left on device", source)
        rename(source, target)

    rename = os.rename
    assert lives.now is not None
    flip(root / SEGMENT)
    lives.note(Change.PATCH, SEGMENT, start=0, end=1)
    with monkeypatch.context() as broken:
        broken.setattr(os, "rename", full)
        with pytest.raises(OSError, match="No space"):
            lives.kinds()
    flip(root / VHOST / "policies.json")
    lives.note(Change.PATCH, f"{VHOST}/policies.json", start=0, end=1)
    assert lives.now._scrub is not None
    lives.now._scrub.take_in()
    lives.begin().first_look()  # after a kill

    assert lives.kinds() == {}


def test_damage_is_told_of_on_a_disk_without_room(
    lives: Lives, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    told: list[str] = []
    assert lives.now is not None
    lives.now.on_damage = lambda found: told.append(found.path)
    flip(root / SEGMENT)
    with monkeypatch.context() as broken:
        broken.setattr(damage, "write_atomic", full)
        assert lives.kinds() == {SEGMENT: "differs"}
    assert told == [SEGMENT]

    lives.kinds()  # there is room again

    assert SEGMENT in Damages(str(root))


def begun(work: Any) -> threading.Thread:
    """Something that a thread does."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_a_broker_that_comes_while_another_one_learns_the_sums_learns_them_too(
    lives: Lives,
) -> None:
    """Readers of a follower, and the broker of the same node that leads next."""
    kept: Any = lives.begin()
    is_loading, may_load = threading.Event(), threading.Event()
    loaded: list[str] = []

    def load(loop: str, *_: object) -> None:
        loaded.append(loop)
        is_loading.set()
        may_load.wait(20)

    readers, kept._readers = kept._readers, SimpleNamespace(loops=("one",), load=load)
    kept._thread = threading.current_thread()  # `_greet` is its work
    first = begun(kept.before_reading)
    wait_for(lambda: kept._newcomers)
    greeting = begun(kept._greet)
    assert is_loading.wait(20)
    kept._readers.loops = ("two",)
    second = begun(kept.before_reading)
    wait_for(lambda: kept._newcomers != ["one"])
    may_load.set()
    greeting.join(20)
    kept._greet()
    for each in (first, second):
        each.join(20)
        assert not each.is_alive()
    kept._thread, kept._readers = None, readers

    assert loaded == ["one", "two"]


def test_a_disk_that_refuses_notes_keeps_neither_a_broker_from_reading_nor_the_thread_awake(
    lives: Lives, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread tried without a pause, and a new leader stood still for a minute."""
    kept: Any = lives.begin()
    tries: list[None] = []

    def refuses() -> None:
        tries.append(None)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept._scrub, "take_in", refuses)
    kept._suspects.append(SEGMENT)
    kept._newcomers.append("a broker")
    kept.start()
    wait_for(lambda: not kept._newcomers)
    n = len(tries)
    time.sleep(0.3)

    assert len(tries) - n < 5
    monkeypatch.undo()
    kept.stop()


def test_the_end_comes_behind_a_first_look(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a node that is told to stop meanwhile: the notes were closed under it."""
    lives.begin()
    kept: Any = lives.begin()
    is_looking = threading.Event()

    def run(pace: Any, **_: object) -> None:
        is_looking.set()
        for _ in range(2000):
            pace(1)
            time.sleep(0.001)

    monkeypatch.setattr(kept._scrub, "run", run)
    look = begun(kept.first_look)
    assert is_looking.wait(20)

    kept.close(is_orderly=True)

    assert not look.is_alive()
    assert not kept._scrub._has_looked
    kept.first_look()  # it does nothing any more
