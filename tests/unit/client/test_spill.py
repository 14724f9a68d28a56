"""The file of a producer: what comes back of it, whatever became of it meanwhile."""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine
from lavinmq.client import spill as spills
from lavinmq.client.errors import ConfigError
from lavinmq.client.reserve import Reserve
from lavinmq.client.spill import Spill
from tests.support.little_disk import files_of_at_most

LIMIT = 1 << 20
STEPS = st.lists(st.sampled_from(["append", "take", "done", "again", "fails"]), max_size=60)


def record(n: int) -> tuple[int, bytes, bytes, bytes]:
    return n % 2, b"props%d" % n, b"\x00\x01q", b"body %d" % n


def taken(spill: Spill, most: int = 1 << 30) -> list[Any]:
    found: list[Any] = []
    while len(found) < most and (each := spill.read()):
        found.append(each)
        spill.advance(each[1])
    return found


def bodies(spill: Spill) -> list[int]:
    return [int(body.split()[1]) for (_, _, _, body), _ in taken(spill)]


def filled(directory: Path, n: int, n_done: int = 0) -> Path:
    """Leave a spill of so many records, some of them done; return its last segment."""
    spill = Spill(directory, LIMIT)
    for number in range(n):
        spill.append(*record(number))
    for _, place in taken(spill, n_done):
        spill.done(place)
    spill.close()
    return max(directory.glob("*.spill"))


def test_a_spill_gives_back_in_order(tmp_path: Path) -> None:
    spill = Spill(tmp_path, LIMIT)
    assert [spill.append(*record(n)) for n in range(50)] == list(range(50))

    assert [each for each, _ in taken(spill)] == [record(n) for n in range(50)]
    assert spill.count == 0 and spill.n_taken == 50
    spill.close()


def test_another_program_finds_what_was_not_done(tmp_path: Path) -> None:
    filled(tmp_path, 10, 4)

    again = Spill(tmp_path, LIMIT)
    assert again.count == again.n_before == 6
    assert again.append(*record(10)) == 6
    assert [each for each, _ in taken(again)] == [record(n) for n in range(4, 11)]
    assert not again.damaged
    again.close()


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeros", "longer"])
def test_what_cannot_be_read_ends_its_segment_and_is_kept_beside_it(
    tmp_path: Path, damage: str
) -> None:
    path = filled(tmp_path, 5)
    whole = path.read_bytes()
    at = len(whole) - len(whole) // 5
    raw = {
        "cut": whole[:-3],
        "flipped": whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:],
        "zeros": whole[:at] + bytes(4096),
        "longer": whole[:at] + b"\xff\xff\xff\x7f" + whole[at + 4 :],
    }[damage]
    path.write_bytes(raw)

    again = Spill(tmp_path, LIMIT)
    [said] = again.damaged
    [aside] = tmp_path.glob("*.damaged")
    assert bodies(again) == [0, 1, 2, 3]
    assert aside.name in said and aside.read_bytes() == raw[at:]
    again.append(*record(9))
    assert bodies(again) == [9]
    again.close()


@pytest.mark.parametrize("loss", ["segment", "end of it", "done", "half of done", "all but done"])
def test_files_that_do_not_fit_together_are_read_as_far_as_they_do(
    tmp_path: Path, loss: str
) -> None:
    """As after a loss of power: the kernel writes what it likes first."""
    segment, done = filled(tmp_path, 10, 6), tmp_path / "done"
    left = list(range(6, 10))
    if loss == "segment":
        segment.unlink()
        left = []
    elif loss == "end of it":
        os.truncate(segment, 20)
        left = []
    elif loss == "done":
        done.unlink()
        left = list(range(10))
    elif loss == "half of done":
        done.write_bytes(b"\xff" * 8 + done.read_bytes()[8:])
        left = list(range(10))
    else:
        segment.rename(segment.with_name(f"{7:010}.spill"))
        left = list(range(10))

    again = Spill(tmp_path, LIMIT)
    assert bodies(again) == left
    assert bool(again.damaged) is (loss == "half of done")
    again.append(*record(77))
    [(_, place)] = taken(again)
    again.append(*record(78))
    again.done(place)
    again.close()
    last = Spill(tmp_path, LIMIT)
    assert bodies(last) == [78]
    last.close()


def test_segments_that_are_done_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spills, "SEGMENT_BYTES", 500)
    spill = Spill(tmp_path, LIMIT)
    for n in range(100):
        spill.append(*record(n))
        if n % 3 == 0:
            [(_, place)] = taken(spill, 1)
            spill.done(place)
    before = len(list(tmp_path.glob("*.spill")))
    found = taken(spill)
    spill.done(found[-1][1])

    assert [each for each, _ in found] == [record(n) for n in range(34, 100)]
    assert before > 2 and len(list(tmp_path.glob("*.spill"))) == 1
    assert spill.append(*record(100)) == 100 and taken(spill)[0][0] == record(100)
    spill.close()


def test_a_spill_is_bounded_and_one_programs(tmp_path: Path) -> None:
    spill = Spill(tmp_path, 200)
    assert [spill.append(0, b"", b"", b"x" * 80) for _ in range(3)] == [0, 1, None]
    with pytest.raises(ConfigError, match="in use"):
        Spill(tmp_path, 200)
    spill.close()
    Spill(tmp_path, 200).close()


def test_each_target_has_a_directory_of_its_own() -> None:
    targets = [("", "a/b"), ("", "a_b"), ("a-b", "c"), ("a", "b-c"), ("", ".."), ("", "ü" * 127),
               ("x" * 255, "y" * 255), ("x" * 255, "z" * 255)]  # fmt: skip
    names = {spills.name_for(*target) for target in targets}

    assert len(names) == len(targets)
    assert all("/" not in name and len(name.encode()) < 256 and len(name) > 2 for name in names)


def test_a_directory_that_cannot_be_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/here"):
        Spill(tmp_path / "file" / "here", LIMIT)


def test_files_of_others_in_its_directory_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.spill").write_text("mine")
    filled(tmp_path, 3)

    again = Spill(tmp_path, LIMIT)
    assert bodies(again) == [0, 1, 2]
    assert (tmp_path / "notes.spill").read_text() == "mine"
    again.close()


def test_a_write_that_the_disk_takes_in_part_leaves_nothing(tmp_path: Path) -> None:
    spill = Spill(tmp_path, LIMIT)
    spill.append(*record(0))
    with files_of_at_most(spill.n_bytes + 20), pytest.raises(OSError, match="large"):
        spill.append(*record(1))
    assert spill.count == 1
    spill.append(*record(2))

    assert bodies(spill) == [0, 2]
    spill.close()
    again = Spill(tmp_path, LIMIT)
    assert bodies(again) == [0, 2] and not again.damaged
    again.close()


def test_without_room_for_another_segment_the_last_one_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a file that was closed may be another file by now."""

    def refuse(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spills, "SEGMENT_BYTES", 100)
    spill = Spill(tmp_path, LIMIT)
    while spill.n_bytes < 100:
        spill.append(*record(spill.count))
    count = spill.count
    with monkeypatch.context() as full:
        full.setattr(os, "open", refuse)
        for _ in range(2):
            with pytest.raises(OSError, match="space"):
                spill.append(*record(99))
    spill.append(*record(count))

    assert bodies(spill) == list(range(count + 1))
    assert len(list(tmp_path.glob("*.spill"))) == 2
    spill.close()


def test_a_record_that_rots_while_it_waits_is_an_error_and_is_not_sent(tmp_path: Path) -> None:
    spill = Spill(tmp_path, LIMIT)
    spill.append(*record(0))
    [path] = tmp_path.glob("*.spill")
    good = path.read_bytes()
    for bad in (good[:-1] + b"?", good[:5], b""):
        path.write_bytes(bad)
        with pytest.raises(OSError, match="not what was written"):
            spill.read()
    path.write_bytes(good)

    assert bodies(spill) == [0]
    spill.close()


@given(st.data())
def test_whatever_a_crash_leaves_is_read_or_kept(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = filled(Path(directory), 5)
        raw = path.read_bytes()
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] + data.draw(st.binary()))
        again = Spill(Path(directory), LIMIT)
        found = bodies(again)
        again.close()
    assert found == list(range(len(found)))


@given(STEPS)
def test_it_is_a_queue_that_programs_hand_on(steps: list[str]) -> None:
    """Against a list: records go out in order; another program has all that were not done."""
    with pytest.MonkeyPatch.context() as small, tempfile.TemporaryDirectory() as directory:
        small.setattr(spills, "SEGMENT_BYTES", 200)
        spill = Spill(Path(directory), LIMIT)
        waiting: list[int] = []
        out: list[tuple[int, Any]] = []
        number = 0
        for step in steps:
            if step == "append":
                spill.append(*record(number))
                waiting.append(number)
                number += 1
            elif step == "fails":
                with files_of_at_most(8), pytest.raises(OSError, match="large"):
                    spill.append(*record(number))
            elif step == "take" and waiting:
                [(found, place)] = taken(spill, 1)
                assert found == record(waiting[0])
                out.append((waiting.pop(0), place))
            elif step == "done" and out:
                spill.done(out.pop(0)[1])
            elif step == "again":
                spill.close()
                spill = Spill(Path(directory), LIMIT)
                waiting, out = [each for each, _ in out] + waiting, []
            assert spill.count == len(waiting) and not spill.damaged
        assert bodies(spill) == waiting
        spill.close()


def test_who_goes_without_a_word_leaves_it_to_the_next(tmp_path: Path) -> None:
    """As a client does whose event loop has ended before it."""
    spill = Spill(tmp_path / "s", 1000)
    spill.append(0, b"p", b"t", b"body")
    del spill
    gc.collect()
    assert Spill(tmp_path / "s", 1000).count == 1


def test_who_writes_wakes_once_who_could_not_look(tmp_path: Path) -> None:
    """He would be woken for each message, and wait for the lock each time."""
    ring = Ring()
    reserve = Reserve(ring, Spill(tmp_path / "s", 1000), list, print)
    reserve.put(b"1", NOTHING)
    before = ring.woken
    with reserve._lock:
        reserve.look()
    assert reserve.is_missed
    for _ in range(3):
        reserve.put(b"2", NOTHING)
    assert ring.woken == before + 1 and not reserve.is_missed
    reserve.look()
    assert reserve.count == 0 and ring.count == 4
    reserve.close()


class Ring(_engine.Ring):
    """Counts its wake-ups."""

    def __init__(self) -> None:
        self.woken = 0
        self.configure()

    def wake(self) -> None:
        self.woken += 1


NOTHING = (None, None, 0)
