"""The journal of changes, and where a copy of a segment that is being written ends."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq import _core
from lavinmq.files.changes import Change
from tests.support.core import Bench, FakeEvents, publish

HEAD = struct.Struct("<BHHqq")
WAIT_S = 30.0
SIZES = st.lists(st.integers(0, 3000), max_size=30)


def notes_in(raw: bytes) -> list[tuple[int, str, str, int, int]]:
    """Notes as the stub says."""
    found, at = [], 0
    while at < len(raw):
        kind, n, n_target, start, end = HEAD.unpack_from(raw, at)
        at += HEAD.size
        path, target = raw[at : at + n], raw[at + n : at + n + n_target]
        at += n + n_target
        found.append((kind, path.decode(), target.decode(), start, end))
    return found


@pytest.fixture
def loop(tmp_path: Path) -> _core.Loop:
    """One without queues."""
    return _core.Loop(FakeEvents(), str(tmp_path), False, lambda *_: None, lambda: None)


def note(loop: _core.Loop, root: Path, kind: Change, path: str, start: int, end: int) -> None:
    """A change of Python's."""
    target = str(root / f"{path}2") if kind is Change.RENAME else ""
    _core.note_change(loop, kind, str(root / path), target, -1, start, end)


def test_notes_are_kept_in_order_and_once(loop: _core.Loop, tmp_path: Path) -> None:
    journal = _core.Journal(loop, str(tmp_path), 1 << 20)
    note(loop, tmp_path, Change.MAKE, "a", 0, 0)
    note(loop, tmp_path, Change.APPEND, "a", 0, 5)
    note(loop, tmp_path, Change.APPEND, "a", 5, 9)
    note(loop, tmp_path, Change.APPEND, "ab", 9, 12)
    note(loop, tmp_path, Change.APPEND, "a", 9, 10)
    note(loop, tmp_path, Change.RENAME, "a", 0, 0)
    _core.note_change(loop, Change.MAKE, "/elsewhere", "", -1, 0, 0)

    assert notes_in(journal.take()) == [
        (Change.MAKE, "a", "", 0, 0), (Change.APPEND, "a", "", 0, 9),
        (Change.APPEND, "ab", "", 9, 12), (Change.APPEND, "a", "", 9, 10),
        (Change.RENAME, "a", "a2", 0, 0),
    ]  # fmt: skip
    assert journal.take() == b""
    note(loop, tmp_path, Change.APPEND, "a", 10, 11)
    assert notes_in(journal.take()) == [(Change.APPEND, "a", "", 10, 11)]
    journal.close()
    note(loop, tmp_path, Change.REMOVE, "a", 0, 0)
    assert not journal.is_overrun and journal.take() == b""


def test_there_are_three_at_once_and_each_has_its_own_notes(
    loop: _core.Loop, tmp_path: Path
) -> None:
    first, second, third = (_core.Journal(loop, str(tmp_path), 1 << 20) for _ in range(3))
    with pytest.raises(RuntimeError, match="copied"):
        _core.Journal(loop, str(tmp_path), 100)
    note(loop, tmp_path, Change.MAKE, "a", 0, 0)
    assert len(notes_in(first.take())) == 1

    first.close()
    first.close()
    note(loop, tmp_path, Change.MAKE, "b", 0, 0)
    again = _core.Journal(loop, str(tmp_path), 100)
    note(loop, tmp_path, Change.MAKE, "c", 0, 0)

    assert [path for _, path, *_ in notes_in(second.take())] == ["a", "b", "c"]
    second.close()
    note(loop, tmp_path, Change.MAKE, "d", 0, 0)
    assert [path for _, path, *_ in notes_in(again.take())] == ["c", "d"]
    assert [path for _, path, *_ in notes_in(third.take())] == ["a", "b", "c", "d"]
    for each in (again, third):
        each.close()
    note(loop, tmp_path, Change.MAKE, "e", 0, 0)
    assert again.take() == third.take() == b""


def test_what_has_too_many_notes_says_so(loop: _core.Loop, tmp_path: Path) -> None:
    journal = _core.Journal(loop, str(tmp_path), 10 * (HEAD.size + 2))
    for number in range(11):
        assert not journal.is_overrun
        note(loop, tmp_path, Change.MAKE, f"{number:02}", 0, 0)
    assert journal.is_overrun
    assert len(notes_in(journal.take())) == 10
    note(loop, tmp_path, Change.MAKE, "12", 0, 0)
    assert journal.take() == b"", "some are missing: none that follows is of use"
    journal.close()
    again = _core.Journal(loop, str(tmp_path), 100)
    assert not again.is_overrun
    again.close()


# ---- segments


def record(size: int) -> bytes:
    """A message with a body of so many bytes."""
    return (
        struct.pack("<Q", 1_700_000_000_000)
        + b"\0\1q"
        + bytes(2)
        + struct.pack("<Q", size)
        + (b"x" * size)
    )


@given(sizes=SIZES, more=st.sampled_from([0, 8, 5000]), data=st.data())
def test_a_copy_ends_behind_the_last_whole_record(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], more: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("segment") / "msgs.0000000001"
    ends = [4]
    content = struct.pack("<I", 4)
    for size in sizes:
        content += record(size)
        ends.append(len(content))
    path.write_bytes(content + bytes(more))
    with open(path, "rb") as file:
        size = data.draw(st.integers(4, len(content) + more))
        wanted = max(end for end in ends if end <= size)
        found = _core.whole_end(file.fileno(), size)
    if size > len(content):
        assert found in (wanted, size)  # what is too short for filling may stay
    else:
        assert found == wanted


@pytest.mark.parametrize("size", [100, 300_000, 3_000_000])
def test_what_the_file_does_not_have_whole_is_not_cut(tmp_path: Path, size: int) -> None:
    path = tmp_path / "msgs.0000000001"
    content = struct.pack("<I", 4) + record(50) + record(size)
    path.write_bytes(content[:-1])
    with open(path, "rb") as file:
        assert _core.whole_end(file.fileno(), len(content) - 1) == len(content) - 1
        assert _core.whole_end(file.fileno(), len(content) - 10) == len(content) - 10
    path.write_bytes(content + record(3))
    with open(path, "rb") as file:
        assert _core.whole_end(file.fileno(), len(content)) == len(content)
        assert _core.whole_end(file.fileno(), len(content) - 1) == 4 + len(record(50))


def test_damage_is_copied_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "msgs.0000000001"
    content = struct.pack("<I", 4) + record(500) + b"\xff" * 40 + record(500) * 5
    path.write_bytes(content)
    with open(path, "rb") as file:
        assert _core.whole_end(file.fileno(), len(content)) == len(content)
    os.truncate(path, 2)
    with open(path, "rb") as file:
        assert _core.whole_end(file.fileno(), 2) == 2
        assert _core.whole_end(file.fileno(), 100) == 100


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Bench, Path]]:
    """A queue whose segment has filling behind its data."""
    with closing(Bench(tmp_path)) as bench:
        bench.loop.sync = True
        bench.link.select_confirms(1)
        queue = bench.queue("q", 1 << 20)
        path = tmp_path / "q" / "msgs.0000000001"
        for number in range(100):
            bench.send(publish(b"q", b"%d" % number * 100, b"\x10\0\x02"))
            bench.run()
        ends = time.monotonic() + WAIT_S
        while path.stat().st_size < 30_000:
            assert time.monotonic() < ends, "no sync has filled it"
            bench.send(publish(b"q", b"", b"\x10\0\x02"))
            bench.run()
            bench.loop.on_lingered()
            bench.loop.on_synced()
            bench.run()
            time.sleep(0.001)
        yield bench, path
        del queue
        bench.loop.stop()


def test_filling_is_left_out_also_when_data_is_written_over_it(
    filled: tuple[Bench, Path],
) -> None:
    bench, path = filled
    size = path.stat().st_size
    with open(path, "rb") as file:
        end = _core.whole_end(file.fileno(), size)
        assert 20_000 < end < size - 4096, "there is filling"
        for number in range(20):
            bench.send(publish(b"q", b"%d" % number * 200, b"\x10\0\x02"))
            bench.run()
            later = _core.whole_end(file.fileno(), size)
            assert end < later <= size
            end = later
            cut = _core.whole_end(file.fileno(), end - 1)
            assert end - 1000 < cut < end - 1, "the last record is not whole within that"
