"""Epochs of a stream: the file that keeps them, and what they say to who has read before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lavinmq.arguments.stream import reading
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable, Long, Timestamp
from lavinmq.files import stream_epochs
from lavinmq.files.changes import Changes
from lavinmq.files.stream_epochs import FILE, MOST, begin, divergence, load, sync


def synced(fds: list[str], directory: Path) -> list[str]:
    """Names of what was synced, below the directory."""
    return [os.path.relpath(path, directory) for path in fds]


def test_a_stream_without_a_file_is_in_its_first_epoch(tmp_path: Path) -> None:
    assert load(str(tmp_path)) == [(1, 1)]
    assert not list(tmp_path.iterdir())


def test_each_beginning_adds_a_line_and_syncs_file_and_directory(tmp_path: Path) -> None:
    paths: list[str] = []

    def note(fd: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{fd}"))

    assert begin(str(tmp_path), 41, Changes()) == [(1, 1), (2, 41)]
    sync(str(tmp_path), note)
    assert synced(paths, tmp_path) == [FILE, "."]
    assert begin(str(tmp_path), 97, Changes()) == [(1, 1), (2, 41), (3, 97)]

    assert (tmp_path / FILE).read_bytes() == b"1 1\n2 41\n3 97\n"
    assert load(str(tmp_path)) == [(1, 1), (2, 41), (3, 97)]


@pytest.mark.parametrize(
    ("content", "known"),
    [
        (b"", [(1, 1)]),
        (b"1 1\n2 4", [(1, 1)]),
        (b"1 1\n2 4711", [(1, 1)]),
        (b"1 1\n\0\0\0\0\0\0\0", [(1, 1)]),
        (b"1 1\n\0\x0011\n", [(1, 1)]),
        (b"1 1\n2 5\n\xff\xfe 7\n4 9\n", [(1, 1), (2, 5), (4, 9)]),
        (b"1 1\n3 5\n2 7\n", [(1, 1), (3, 5)]),
        (b"1 1\n2 -5\n0 7\n3 0\n", [(1, 1)]),
    ],
)
def test_lines_that_a_crash_has_cut_are_none(
    tmp_path: Path, content: bytes, known: list[tuple[int, int]]
) -> None:
    (tmp_path / FILE).write_bytes(content)

    assert load(str(tmp_path)) == known
    assert begin(str(tmp_path), 50, Changes()) == [*known, (known[-1][0] + 1, 50)]
    assert load(str(tmp_path)) == [*known, (known[-1][0] + 1, 50)]


def test_the_file_has_a_bound_and_the_oldest_go(tmp_path: Path) -> None:
    lines = b"".join(b"%d %d\n" % (number, number) for number in range(1, MOST + 1))
    (tmp_path / FILE).write_bytes(lines)

    epochs = begin(str(tmp_path), MOST + 1, Changes())

    assert len(epochs) == MOST
    assert (epochs[0], epochs[-1]) == ((2, 2), (MOST + 1, MOST + 1))
    assert load(str(tmp_path)) == epochs


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()

    with pytest.raises(OSError, match=r"directory|regular"):
        load(str(tmp_path))
    with pytest.raises(OSError, match=r"directory|regular"):
        begin(str(tmp_path), 5, Changes())


FALLING = [(1, 1), (2, 100), (3, 90), (4, 120)]
"""Epoch 2 was left by a crash of the broker, and then the power took some of it."""


@pytest.mark.parametrize(
    ("number", "offset", "other"),
    [
        (1, 1, None), (1, 90, None), (1, 91, (3, 90)), (1, 500, (3, 90)),
        (2, 90, None), (2, 96, (3, 90)),
        (3, 91, None), (3, 120, None), (3, 121, (4, 120)),
        (4, 121, None), (4, 1 << 60, None),
        (5, 1, (4, 120)),
    ],
)  # fmt: skip
def test_a_reader_is_told_when_what_it_has_read_may_be_other_messages(
    number: int, offset: int, other: tuple[int, int] | None
) -> None:
    assert divergence(FALLING, number, offset) == other


def test_an_epoch_that_is_too_old_to_be_known_is_another(tmp_path: Path) -> None:
    assert divergence([(7, 70), (8, 80)], 6, 75) == (7, 70)
    assert divergence([(7, 70), (8, 80)], 6, 12) == (7, 70)
    assert divergence([], 6, 12) is None


# --- arguments of consumers -----------------------------------------------------------------------


def test_a_consumer_may_ask_for_epochs_without_saying_one() -> None:
    how = reading("t", FieldTable({"x-stream-epoch": True}), 0, 256)
    assert (how.tells_epoch, how.epoch) == (True, 0)
    how = reading("t", FieldTable({"x-stream-epoch": False}), 0, 256)
    assert (how.tells_epoch, how.epoch) == (False, 0)
    how = reading("t", FieldTable({}), 0, 256)
    assert (how.tells_epoch, how.epoch) == (False, 0)


def test_a_consumer_says_its_epoch_with_its_offset() -> None:
    how = reading("t", FieldTable({"x-stream-epoch": 3, "x-stream-offset": Long(50)}), 0, 256)
    assert (how.tells_epoch, how.epoch, how.start) == (True, 3, 50)


@pytest.mark.parametrize("epoch", ["3", 0, -1, 1.5, Timestamp(5), [1]])
def test_what_is_no_epoch_is_refused(epoch: object) -> None:
    arguments = FieldTable({"x-stream-epoch": epoch, "x-stream-offset": 5})  # type: ignore[dict-item]
    with pytest.raises(ChannelError, match="x-stream-epoch must be a boolean or a positive"):
        reading("t", arguments, 0, 256)


@pytest.mark.parametrize("offset", [None, "first", "next", "1h", -3, Timestamp(5)])
def test_an_epoch_says_nothing_without_an_offset(offset: object) -> None:
    arguments = FieldTable({"x-stream-epoch": 2, "x-stream-offset": offset})  # type: ignore[dict-item]
    with pytest.raises(ChannelError, match="x-stream-epoch needs an offset in x-stream-offset"):
        reading("t", arguments, 0, 256)


def test_the_first_epoch_is_the_one_of_a_new_stream() -> None:
    assert stream_epochs.FIRST == (1, 1)
