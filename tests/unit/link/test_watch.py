"""What a link and the loop ask of the system while a client waits for the disk: no more than
needed, and nothing that comes meanwhile is lost."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.core import Bench, FakeEvents

DECLARE = b"\x01\0\x01\0\0\0\x04\0\x32\0\x0a\xce"  # left to Python, which does not look closer here
DECLARED = ("on_method", 1, DECLARE[7:-1])


class Watching(FakeEvents):
    """Knows who is watched, and how often that has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[int, Callable[[], Any]] = {}
        self.changes = 0

    def add_reader(self, fd: int, callback: Callable[[], Any]) -> None:
        """Watch."""
        self.changes += 1
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        """Watch no more."""
        self.changes += 1
        return self.readers.pop(fd, None) is not None

    def tell(self) -> None:
        """All that are watched can be read."""
        for callback in list(self.readers.values()):
            callback()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path, Watching())) as made:
        yield made


@pytest.fixture
def events(bench: Bench) -> Watching:
    assert isinstance(bench.events, Watching)
    bench.events.readers.clear()  # the loop's own
    bench.events.changes = 0
    bench.link.start(0)
    return bench.events


# ---- a link that is paused


def test_a_pause_without_input_leaves_the_watch_alone(bench: Bench, events: Watching) -> None:
    for _ in range(3):
        bench.link.pause()
        bench.link.resume()

    assert events.changes == 1
    bench.client.send(DECLARE)
    events.tell()
    assert bench.session.events == [DECLARED]


def test_input_ends_the_watch_of_a_paused_link_and_is_read_afterwards(
    bench: Bench, events: Watching
) -> None:
    bench.link.pause()
    bench.client.send(DECLARE)
    events.tell()
    assert (events.readers, bench.session.events) == ({}, [])

    bench.link.resume()
    events.tell()
    assert bench.session.events == [DECLARED]


def test_what_was_read_before_a_pause_is_walked_after_it_in_order(
    bench: Bench, events: Watching
) -> None:
    def on_method(channel: int, payload: bytes) -> None:
        bench.session.events.append(("on_method", channel, payload))
        bench.link.pause()

    bench.session.on_method = on_method  # type: ignore[attr-defined]
    bench.client.send(DECLARE * 2)
    events.tell()
    assert bench.session.events == [DECLARED]
    bench.client.send(DECLARE)
    events.tell()
    assert bench.session.events == [DECLARED]

    bench.link.resume()
    assert bench.session.events == [DECLARED] * 2
    bench.link.resume()
    events.tell()
    assert bench.session.events == [DECLARED] * 3


@pytest.mark.parametrize("told", [False, True])
def test_a_link_closed_during_a_pause_is_watched_no_more(
    bench: Bench, events: Watching, told: bool
) -> None:
    bench.link.pause()
    if told:
        bench.client.send(DECLARE)
        events.tell()
    bench.link.close()
    bench.link.resume()

    assert (events.readers, events.changes, bench.session.events) == ({}, 2, [])


def test_a_link_that_waits_for_its_turn_stays_watched(bench: Bench, events: Watching) -> None:
    """Ending the watch and beginning it again took two system calls for each turn."""
    bench.loop.portion_units = 1
    bench.client.send(DECLARE * 3)
    events.tell()
    bench.client.send(DECLARE)
    for _ in range(3):
        events.tell()
    assert len(bench.session.events) < 3

    bench.run()
    events.tell()
    bench.run()

    assert bench.session.events == [DECLARED] * 4
    assert events.changes == 1


# ---- a file that has to be on disk


def descriptors() -> int:
    gc.collect()  # what tests before this one have left must not end in the middle
    return len(os.listdir("/proc/self/fd"))


def test_those_who_wait_for_one_file_share_its_sync(bench: Bench, tmp_path: Path) -> None:
    bench.loop.sync = True
    done: list[int] = []
    with (tmp_path / "definitions").open("wb") as file:
        before = descriptors()
        bench.loop.sync_file(file.fileno(), lambda: done.append(1))
        bench.loop.sync_file(file.fileno(), lambda: done.append(2))
        assert descriptors() == before + 1

        assert done == []
        bench.events.ready.pop(0)()
        assert done == [1, 2]
        assert (descriptors(), bench.failures) == (before, [])


def test_a_file_that_took_over_the_number_of_another_is_synced_as_well(
    bench: Bench, tmp_path: Path
) -> None:
    bench.loop.sync = True
    done: list[int] = []
    with (tmp_path / "old").open("wb") as old, (tmp_path / "new").open("wb") as new:
        before = descriptors()
        bench.loop.sync_file(old.fileno(), lambda: done.append(1))
        os.dup2(new.fileno(), old.fileno())
        bench.loop.sync_file(old.fileno(), lambda: done.append(2))
        assert descriptors() == before + 2

        bench.run()
        assert (done, descriptors(), bench.failures) == ([1, 2], before, [])


def test_a_descriptor_that_is_none_is_an_error(bench: Bench) -> None:
    bench.loop.sync = True
    with pytest.raises(OSError, match="Bad file descriptor"):
        bench.loop.sync_file(-1, lambda: None)
