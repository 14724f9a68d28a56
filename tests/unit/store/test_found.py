"""What a start finds in a queue's directory: it goes by one look at the names, and one walk tells
the deleted messages from the others."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support.core import Bench
from tests.support.segments import encode_record, read_acks

NOW_MS = 1_790_000_000_000
HEADER = struct.pack("<i", 4)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as made:
        yield made


def record(size: int) -> bytes:
    """A message with such a body."""
    return struct.pack("<q", NOW_MS) + encode_record(b"", b"q", {}, bytes(size))


def made(bench: Bench, directory: Path) -> _core.Queue:
    """The queue of a directory, which is not read yet."""
    return _core.Queue(bench.loop, str(directory), 1 << 20, True, name=b"q", vhost=bench.vhost)


def write(directory: Path, sizes: list[int], number: int = 1) -> list[int]:
    """A segment of messages with such bodies. Returns: where they begin, and the end."""
    directory.mkdir(exist_ok=True)
    at, starts, data = len(HEADER), [], [HEADER]
    for size in sizes:
        starts.append(at)
        data.append(record(size))
        at += len(data[-1])
    (directory / f"msgs.{number:010d}").write_bytes(b"".join(data))
    return [*starts, at]


def acks(directory: Path, positions: list[int], number: int = 1) -> None:
    path = directory / f"acks.{number:010d}"
    path.write_bytes(b"".join(struct.pack("<I", each) for each in positions))


def test_entries_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")

    entries = _core.entries_in(str(tmp_path))

    assert entries is not None
    assert {name: entry.is_file() for name, entry in entries.items()} == {
        "file": True, "link": True,
    }  # fmt: skip
    assert _core.entries_in(str(tmp_path / "missing")) is None
    with pytest.raises(NotADirectoryError):
        _core.entries_in(str(tmp_path / "file"))


def test_what_is_not_in_the_list_is_not_asked_for(bench: Bench) -> None:
    directory = bench.directory / "q"
    starts = write(directory, [5] * 4)
    acks(directory, starts[:1])
    entries = _core.entries_in(str(directory))
    assert entries is not None
    del entries["acks.0000000001"]
    queue = made(bench, directory)

    assert queue.load(entries) == []

    assert queue.ready == 4


def test_what_is_removed_is_taken_out_of_the_list(bench: Bench) -> None:
    directory = bench.directory / "q"
    write(directory, [5] * 4)
    (directory / "msgs.0000000002").write_bytes(bytes(100))
    for name in ("acks.0000000002", "meta.0000000003", "tmp.acks.0000000001"):
        (directory / name).write_bytes(bytes(4))
    entries = _core.entries_in(str(directory))
    assert entries is not None
    queue = made(bench, directory)

    notes = queue.load(entries)

    assert len(notes) == 4
    assert set(entries) == set(os.listdir(directory)) == {"msgs.0000000001"}
    assert queue.ready == 4


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_one_walk_finds_what_was_deleted(bench: Bench, data: st.DataObject) -> None:
    """In any order, twice, and among positions that are nothing."""
    sizes = data.draw(st.lists(st.integers(0, 60), min_size=1, max_size=30))
    directory = bench.directory / "walked"
    starts = write(directory, sizes)
    end = starts.pop()
    positions = data.draw(
        st.lists(st.one_of(st.sampled_from(starts), st.integers(1, end + 40)), max_size=40)
    )
    acks(directory, positions)
    deleted = sorted(set(starts) & set(positions))
    left = [size for size, start in zip(sizes, starts, strict=True) if start not in deleted]
    queue = made(bench, directory)

    notes = queue.load()

    assert queue.ready == len(left)
    assert queue.ready_bytes == sum(len(record(size)) for size in left)
    assert bool(notes) == (len(deleted) != len(positions))
    if (directory / "acks.0000000001").exists():
        assert sorted(read_acks(directory / "acks.0000000001")) == deleted
    assert [len(got.body) for _ in left if (got := bench.get(queue)) is not None] == left
    queue.delete()
    for path in directory.iterdir():
        path.unlink()
