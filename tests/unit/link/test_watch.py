"""What a link and the loop ask of the system while a client waits for the disk: no more than
needed, and nothing that comes meanwhile is lost."""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, Session

DECLARE = b"\x01\0\x01\0\0\0\x04\0\x32\0\x0a\xce"  # left to Python, which does not look closer here
DECLARED = ("on_method", 1, DECLARE[7:-1])


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as made:
        yield made


@pytest.fixture
def started(bench: Bench) -> Bench:
    bench.link.start(0)
    return bench


# ---- a link that is paused


def test_a_pause_without_input_leaves_the_watch_alone(started: Bench) -> None:
    for _ in range(3):
        started.link.pause()
        started.link.resume()

    assert started.loop.watch_changes == 1
    started.client.send(DECLARE)
    started.loop.on_found()
    assert started.session.events == [DECLARED]


def test_input_ends_the_watch_of_a_paused_link_and_is_read_afterwards(started: Bench) -> None:
    started.link.pause()
    started.client.send(DECLARE)
    started.loop.on_found()
    assert (started.watched, started.session.events) == (0, [])

    started.link.resume()
    started.loop.on_found()
    assert started.session.events == [DECLARED]


def test_what_was_read_before_a_pause_is_walked_after_it_in_order(started: Bench) -> None:
    def on_method(channel: int, payload: bytes) -> None:
        started.session.events.append(("on_method", channel, payload))
        started.link.pause()

    started.session.on_method = on_method  # type: ignore[attr-defined]
    started.client.send(DECLARE * 2)
    started.loop.on_found()
    assert started.session.events == [DECLARED]
    started.client.send(DECLARE)
    started.loop.on_found()
    assert started.session.events == [DECLARED]

    started.link.resume()
    assert started.session.events == [DECLARED] * 2
    started.link.resume()
    started.loop.on_found()
    started.run()  # on a busy machine the portion may be over
    assert started.session.events == [DECLARED] * 3


@pytest.mark.parametrize("told", [False, True])
def test_a_link_closed_during_a_pause_is_watched_no_more(started: Bench, told: bool) -> None:
    started.link.pause()
    if told:
        started.client.send(DECLARE)
        started.loop.on_found()
    started.link.close()
    started.link.resume()

    assert (started.watched, started.loop.watch_changes, started.session.events) == (0, 2, [])


def test_a_link_that_waits_for_its_turn_stays_watched(started: Bench) -> None:
    """Ending the watch and beginning it again took two system calls for each turn."""
    started.loop.portion_units = 1
    started.client.send(DECLARE * 3)
    started.loop.on_found()
    started.client.send(DECLARE)
    for _ in range(3):
        started.loop.on_found()
    assert len(started.session.events) < 3

    started.run()
    started.loop.on_found()
    started.run()

    assert started.session.events == [DECLARED] * 4
    assert started.loop.watch_changes == 1


# ---- many links


class Other(Session):
    """Another link of the same loop, which declares when told to."""

    def __init__(self, bench: Bench, on_method: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.told: list[str] = []
        self.on_told = on_method
        self.ours, self.client = socket.socketpair()
        self.ours.setblocking(False)
        self.link = _core.Link(bench.loop, self.ours.fileno(), _core.AMQP)
        self.link.session = self
        self.link.set_limits(1 << 16, 1 << 20, 0)
        self.link.state = _core.STATE_OPEN
        self.link.open_channel(1, 0)
        self.link.start(0)

    def on_method(self, _channel: int, _payload: bytes) -> None:
        self.told.append("method")
        self.on_told()

    def on_lost(self, _why: str) -> None:
        self.told.append("lost")

    def close(self) -> None:
        self.link.close()
        self.ours.close()
        self.client.close()


@contextmanager
def others(bench: Bench, count: int) -> Iterator[list[Other]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Other(bench))) for _ in range(count)]


def test_all_that_have_something_are_heard_once(started: Bench) -> None:
    with others(started, 200) as peers:
        for peer in peers:
            peer.client.send(DECLARE)
        started.loop.on_found()
        assert sum(len(peer.told) for peer in peers) > 0
        for _ in range(200):  # a portion may be over before all are heard
            started.run()
            started.loop.on_found()
        assert [peer.told for peer in peers] == [["method"]] * 200


def test_one_that_another_has_closed_is_not_told_what_was_found(started: Bench) -> None:
    with others(started, 10) as peers:

        def close_all() -> None:
            for peer in peers:
                peer.link.close()

        for peer in peers:
            peer.on_told = close_all
            peer.client.send(DECLARE)
        started.loop.on_found()
        assert sum(len(peer.told) for peer in peers) == 1
        started.loop.on_found()
        assert sum(len(peer.told) for peer in peers) == 1


@pytest.mark.parametrize("units", [0, 1])
def test_ends_are_found_once_and_told_in_portions(started: Bench, units: int) -> None:
    started.loop.portion_units = units
    with others(started, 100) as peers:
        before = started.loop.watch_changes
        for peer in peers:
            peer.client.close()
        started.loop.on_found()
        assert not any(peer.told for peer in peers)
        for _ in range(300):
            started.run()
            started.loop.on_found()

        assert [peer.told for peer in peers] == [["lost"]] * 100
        assert started.loop.watch_changes == before + 100


def test_what_cannot_be_watched_is_lost(started: Bench, tmp_path: Path) -> None:
    with (tmp_path / "plain").open("wb") as file:
        link = _core.Link(started.loop, file.fileno(), _core.AMQP)
        link.session = session = Session()
        link.start(0)
        started.run()
        assert session.events == [("on_lost", os.strerror(errno.EPERM))]
        link.close()


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


def test_those_who_waited_for_one_sync_are_told_in_portions(bench: Bench, tmp_path: Path) -> None:
    bench.loop.sync = True
    bench.loop.portion_units = 1
    done: list[int] = []
    with (tmp_path / "definitions").open("wb") as file:
        for number in range(20):
            bench.loop.sync_file(file.fileno(), partial(done.append, number))
        told = []
        while bench.events.ready:
            bench.events.ready.pop(0)()
            told.append(len(done))

    assert done == list(range(20))
    assert max(after - before for before, after in pairwise([0, *told])) <= 2


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
