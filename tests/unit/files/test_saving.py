"""Saving small files: text in portions, and what waits for whom."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import Disk, SavedFile, at_once, encoded, gathered, json_list, json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


@given(st.lists(VALUES, max_size=4))
def test_the_text_in_pieces_is_that_of_the_whole(values: list[Any]) -> None:
    whole = json.dumps(values, indent=2, ensure_ascii=False)

    assert "".join(json_list(values)) == whole
    assert "".join(json_text(values)) == whole


@given(st.dictionaries(st.text(st.characters()), st.text(st.characters()), max_size=3))
def test_any_text_can_be_written_also_half_a_pair(values: dict[str, str]) -> None:
    assert json.loads(encoded("".join(json_text(values)))) == values
    assert json.loads(encoded("".join(json_text({"a\ud800": "\udfff\u2028"})))) == {
        "a\ud800": "\udfff\u2028"
    }


def test_before_the_start_all_is_done_at_once(tmp_path: Path) -> None:
    path = tmp_path / "f"

    save = SavedFile(path, Disk()).save(lambda: ["text"])

    assert save.is_over and path.read_text() == "text"
    assert at_once(Disk().run(lambda: 7)) == 7
    with pytest.raises(DefinitionsError, match="No such file"):
        SavedFile(tmp_path / "missing" / "f").save(tuple)
    with pytest.raises(RuntimeError):
        at_once(asyncio.sleep(1))


def test_what_a_change_begins_waits_for_the_disk_and_does_not_begin_when_that_refuses(
    tmp_path: Path,
) -> None:
    """In the order of the changes; a mistake in one keeps nobody waiting."""

    async def scenario() -> list[str]:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        begun: list[str] = []
        good, bad = SavedFile(tmp_path / "good", disk), SavedFile(tmp_path / "no" / "bad", disk)
        with pytest.raises(DefinitionsError):
            async with gathered():
                for name in ("first", "second"):
                    good.save(lambda: ["text"], act=partial(begun.append, name))
                good.save(lambda: ["text"], act=partial(begun.remove, "nothing"))
                bad.save(lambda: ["text"], act=partial(begun.append, "bad"))
                assert begun == []
        await good.saved()
        disk.stop()
        return begun

    assert asyncio.run(scenario()) == ["first", "second"]


def test_without_a_disk_it_begins_at_once_and_not_when_that_is_refused(tmp_path: Path) -> None:
    begun: list[str] = []

    SavedFile(tmp_path / "f").save(lambda: ["text"], act=partial(begun.append, "f"))
    with pytest.raises(DefinitionsError):
        SavedFile(tmp_path / "no" / "f").save(lambda: ["text"], act=partial(begun.append, "no"))

    assert begun == ["f"]


def test_a_long_text_is_made_in_portions(tmp_path: Path) -> None:
    turns: list[int] = []

    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        made = 0

        def pieces() -> Iterator[str]:
            nonlocal made
            while made < 200_000:
                made += 1
                yield "x"

        async with gathered():
            save = SavedFile(tmp_path / "f", disk).save(pieces)
            while not save.is_over:
                turns.append(made)
                await asyncio.sleep(0)
        disk.stop()

    asyncio.run(scenario())

    assert (tmp_path / "f").stat().st_size == 200_000
    assert len(set(turns)) > 3


def test_a_block_waits_for_its_own_saves_alone(tmp_path: Path) -> None:
    """Of two files, one of which cannot be written."""

    async def change(file: SavedFile, taken_back: list[str]) -> str:
        try:
            async with gathered():
                file.save(lambda: ["new"], lambda: taken_back.append(file.path.name))
        except DefinitionsError as error:
            return str(error)
        return file.path.read_text()

    async def scenario() -> tuple[list[str], list[str]]:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        back: list[str] = []
        good, bad = SavedFile(tmp_path / "good", disk), SavedFile(tmp_path / "no" / "bad", disk)
        found = await asyncio.gather(change(good, back), change(bad, back))
        disk.stop()
        return found, back

    (good, bad), back = asyncio.run(scenario())

    assert good == "new"
    assert "No such file or directory" in bad
    assert back == ["bad"]


def test_what_takes_a_change_back_is_let_go_in_portions_once_it_is_on_disk(tmp_path: Path) -> None:
    """A hundred thousand deleted users, freed in one go, would hold up the loop."""
    left: list[int] = []

    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        steps = [object() for _ in range(100_000)]
        async with gathered():
            SavedFile(tmp_path / "f", disk).save(lambda: ["text"], bool, steps)
        async with asyncio.timeout(20):
            while steps:
                left.append(len(steps))
                await asyncio.sleep(0)
        disk.stop()

    asyncio.run(scenario())

    assert len(set(left)) > 3


def test_a_change_that_is_refused_has_all_that_takes_it_back(tmp_path: Path) -> None:
    found: list[int] = []

    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        steps = [1, 2, 3]
        with pytest.raises(DefinitionsError):
            async with gathered():
                bad = SavedFile(tmp_path / "no" / "bad", disk)
                bad.save(lambda: ["new"], lambda: found.extend(steps), steps)
        disk.stop()

    asyncio.run(scenario())

    assert found == [1, 2, 3]


def test_what_raises_in_a_thread_is_raised_where_it_is_waited_for() -> None:
    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        assert await disk.run(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await disk.run(lambda: 1 // 0)
        disk.stop()

    asyncio.run(scenario())


def test_a_stop_begins_no_removal_of_what_is_just_losing_its_name() -> None:
    """It began one in a new thread, found no outcome of it, and the broker did not end."""
    removed, renamed = [], []
    may_end = threading.Event()

    def remove() -> None:
        removed.append(1)
        may_end.wait(20)

    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()

        def on_renamed(_: None, error: OSError | None) -> None:
            renamed.append(error)
            disk.removals.add(remove, lambda *_: None)

        disk.names.add(lambda: None, on_renamed)
        disk.stop()

    try:
        asyncio.run(scenario())
    finally:
        may_end.set()

    assert renamed == [None] and not removed


def test_without_threads_files_are_saved_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        async with asyncio.timeout(20), gathered():
            SavedFile(tmp_path / "f", disk).save(lambda: ["text"])
        assert await disk.run(lambda: 7) == await disk.run_in_order(lambda: 7) == 7
        disk.stop()

    asyncio.run(scenario())

    assert (tmp_path / "f").read_text() == "text"


def test_text_that_cannot_be_made_is_a_failure_and_no_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk = Disk(asyncio.get_running_loop())
        disk.start()
        with pytest.raises(DefinitionsError):
            async with gathered():
                SavedFile(tmp_path / "f", disk).save(lambda: json_text(object()))
        disk.stop()

    asyncio.run(scenario())

    assert not (tmp_path / "f").exists()
