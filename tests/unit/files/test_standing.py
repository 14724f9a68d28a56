"""What is noted of a node's files, by whom, and what of it is there after a crash."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from lavinmq.files.standing import STATE_FILE, Standing, leave_cluster

HISTORY = [[1, 0], [2, 500]]


def loaded(root: Path) -> Standing:
    """What a process that starts finds."""
    standing = Standing(str(root))
    assert standing.load()
    return standing


def test_a_position_is_there_once_after_an_orderly_stop(tmp_path: Path) -> None:
    Standing(str(tmp_path)).note(is_whole=True, position=700, history=HISTORY)

    found = loaded(tmp_path)
    assert (found.is_whole, found.position, found.history) == (True, 700, HISTORY)
    assert loaded(tmp_path).position == 0


def test_what_they_have_at_least_outlives_any_number_of_crashes(tmp_path: Path) -> None:
    standing = Standing(str(tmp_path))
    standing.note(is_whole=True)
    standing.note_progress(2, 600)
    standing.note_progress(2, 700)

    for _ in range(2):
        found = loaded(tmp_path)
        assert (found.position, found.at_least) == (0, (2, 700))


def test_files_that_are_replaced_have_nothing_at_least(tmp_path: Path) -> None:
    standing = Standing(str(tmp_path))
    standing.note(is_whole=True)
    standing.note_progress(2, 700)
    standing.note(is_whole=False)
    standing.note_progress(2, 800)  # of a thread that did not know

    found = loaded(tmp_path)
    assert (found.is_whole, found.at_least) == (False, None)


def test_progress_that_comes_behind_an_orderly_stop_takes_nothing_back(tmp_path: Path) -> None:
    standing = Standing(str(tmp_path))
    standing.note(is_whole=True, position=900, history=HISTORY)
    standing.note_progress(2, 800)

    assert loaded(tmp_path).position == 900


def test_damage_is_kept_with_the_progress(tmp_path: Path) -> None:
    standing = Standing(str(tmp_path))
    standing.note(is_whole=True)
    standing.note_damage(is_damaged=True)
    standing.note_progress(2, 700)

    assert loaded(tmp_path).is_damaged


def test_a_broker_of_its_own_takes_out_what_they_have(tmp_path: Path) -> None:
    Standing(str(tmp_path)).note(is_whole=True)
    loaded(tmp_path).note_progress(2, 700)
    leave_cluster(str(tmp_path))

    assert loaded(tmp_path).at_least is None


def test_of_which_cluster_they_are_stays_whatever_else_is_noted(tmp_path: Path) -> None:
    one = Standing(str(tmp_path))
    one.note(is_whole=True)
    one.note_progress(3, 100)
    one.note_cluster("abc")
    assert one.at_least == (3, 100)
    one.note_damage(is_damaged=True)
    one.note(is_whole=True, position=5, history=[])
    for _ in range(2):
        again = Standing(str(tmp_path))
        again.load()
        assert again.cluster == "abc"


@pytest.mark.parametrize("least", [None, 7, [2], [2, "x"], [2, 700, 1], [True, 700], {}])
def test_nonsense_is_nothing_at_least(tmp_path: Path, least: object) -> None:
    (tmp_path / STATE_FILE).write_bytes(orjson.dumps({"whole": True, "at_least": least}))

    found = loaded(tmp_path)
    assert (found.is_whole, found.at_least) == (True, None)
