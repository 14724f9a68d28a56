"""A broker compares what it reads with the sums that there are: of before its start, and newer."""

from __future__ import annotations

import os
import shutil
import time
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from lavinmq.integrity import scrub
from lavinmq.integrity.keeper import Integrity, Lock
from lavinmq.integrity.shelves import key_of
from lavinmq.integrity.sums import BLOCK, FileSums
from tests.support.core import Bench, publish
from tests.support.damage import flip

VHOST, QUEUE = "a" * 40, "b" * 40
NAME = f"{VHOST}/{QUEUE}"
SEGMENT_SIZE = 100_000
N, SIZE = 60, 5000
OURS, THEIRS = Lock(b"1\n", b"1\n"), Lock(b"2\n", b"1\n")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for notes in these tests."""
    monkeypatch.setattr(scrub, "SETTLE_S", 0.0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data directory with a queue, at rest."""
    (tmp_path / VHOST).mkdir()
    with closing(Bench(tmp_path)) as bench:
        queue = bench.queue(NAME, SEGMENT_SIZE)
        for number in range(N):
            bench.send(publish(NAME.encode(), bytes([number]) * SIZE, b"\x10\0\x02"))
            bench.run()
        queue.close()
    then = time.time() - 100
    for path in tmp_path.rglob("*.0*"):
        os.utime(path, (then, then))
    return tmp_path


def begun(root: Path, lock: Lock = OURS, *, is_alone: bool = True) -> Integrity:
    return Integrity(str(root), lock, rate=1 << 40, pause_s=3600, lazy=False, is_alone=is_alone)


@pytest.fixture
def summed(root: Path) -> Path:
    """The same with sums of an earlier life."""
    integrity = begun(root)
    integrity._pass()
    integrity.close(is_orderly=True)
    return root


@pytest.fixture
def bench(root: Path) -> Iterator[Bench]:
    """A broker, which has read nothing."""
    with closing(Bench(root)) as found:
        yield found


def spoil(root: Path) -> None:
    flip(root / NAME / "msgs.0000000002", 40_000, keeps_time=True)


def taken(bench: Bench) -> list[int]:
    """All messages of the queue: each is as it was published."""
    queue, found = bench.queue(NAME, SEGMENT_SIZE), []
    while (got := bench.get(queue)) is not None:
        found.append(got.body[0])
        if got.body != bytes(got.body[:1]) * SIZE:
            raise ValueError("it was never published")
    return found


@pytest.mark.parametrize("is_running", [False, True])
def test_sums_of_before_are_known_when_a_broker_begins_to_read(
    summed: Path, bench: Bench, *, is_running: bool
) -> None:
    integrity = begun(summed)
    if is_running:
        integrity.start()
    integrity.observe(bench.loop)
    integrity.before_reading()
    spoil(summed)

    found = taken(bench)

    assert N - 20 < len(found) < N
    integrity.close(is_orderly=True)


def test_sums_that_others_may_have_made_wrong_are_not_believed(summed: Path, bench: Bench) -> None:
    spoil(summed)
    integrity = begun(summed, THEIRS)
    integrity.observe(bench.loop)
    integrity.before_reading()

    with pytest.raises(ValueError, match="never published"):
        taken(bench)
    integrity.close(is_orderly=True)


def test_what_a_pass_has_seen_is_compared_and_damage_is_told_of(root: Path, bench: Bench) -> None:
    told: list[str] = []
    looked: list[bool] = []
    integrity = begun(root)
    integrity.on_damage = lambda damage: told.append(damage.path)
    integrity.on_looked = lambda: looked.append(True)
    integrity.observe(bench.loop)
    integrity.before_reading()
    integrity._pass()
    spoil(root)
    queue = bench.queue(NAME, SEGMENT_SIZE)
    while queue.lost == 0:
        assert bench.get(queue, no_ack=False) is not None

    assert integrity._scrub is not None
    integrity._tick(integrity._scrub)
    integrity._tick(integrity._scrub)

    assert told == [f"{NAME}/msgs.0000000002"]
    assert looked
    integrity.close(is_orderly=True)


def test_more_than_a_segment_can_have_is_nothing_to_compare(summed: Path, bench: Bench) -> None:
    """An operator's file of 5 GiB, with the name of a segment, keeps no broker from starting."""
    covered = 5 << 30
    path = f"{NAME}/msgs.0000000099"
    integrity = begun(summed)
    many = FileSums(covered, covered, 0, 2, array("I", bytes(covered // BLOCK * 4)))
    integrity._shelves.get(key_of(path))["msgs.0000000099"] = many
    integrity._shelves.changed(key_of(path))
    integrity.observe(bench.loop)
    integrity.before_reading()
    integrity._readers.watch(path)
    integrity._readers.know(path, many)

    assert taken(bench) == list(range(N))
    integrity.close(is_orderly=True)


@pytest.mark.parametrize("is_alone", [True, False])
def test_older_files_that_an_operator_has_brought_back_are_taken_as_they_are(
    root: Path, tmp_path_factory: pytest.TempPathFactory, *, is_alone: bool
) -> None:
    """Not in a cluster: there they lack what the node has said to have."""
    before = tmp_path_factory.mktemp("before") / "copy"
    shutil.copytree(root / NAME, before)
    path = root / NAME / "msgs.0000000002"
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, (time.time() - 50,) * 2)
    integrity = begun(root)
    integrity._pass()
    integrity.close(is_orderly=True)
    shutil.copytree(before, root / NAME, dirs_exist_ok=True)

    integrity = begun(root, is_alone=is_alone)
    integrity.first_look(is_shallow=True)
    with closing(Bench(root)) as bench:
        _core.await_peers(bench.loop, not is_alone)
        integrity.observe(bench.loop)
        integrity.before_reading()
        found = taken(bench)
        assert integrity._scrub is not None
        integrity._tick(integrity._scrub)
        integrity._pass()
        integrity.leave(bench.loop)
    integrity.close(is_orderly=True)

    assert found == list(range(N if is_alone else len(found)))
    assert (len(found) == N) is is_alone
    assert [each.kind for each in integrity.damages.all()] == ([] if is_alone else ["changed"])
