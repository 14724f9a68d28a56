"""What somebody who is told something raises, a bug or a lack of memory: others do not pay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lavinmq import _core
from tests.support.core import Bench, FakeEvents
from tests.support.waiting import wait_for

DECLARE = b"\x01\0\x01\0\0\0\x04\0\x32\0\x0a\xce"


class NotingEvents(FakeEvents):
    """Notes what was raised where nobody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.raised: list[BaseException] = []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.raised.append(context["exception"])


@pytest.fixture
def events() -> NotingEvents:
    return NotingEvents()


@pytest.fixture
def bench(tmp_path: Path, events: NotingEvents) -> Iterator[Bench]:
    with closing(Bench(tmp_path, events)) as made:
        made.link.start(0)
        yield made


def failing(*_args: object) -> None:
    """A bug."""
    raise MemoryError


def test_what_comes_behind_a_bug_is_not_taken_for_what_comes_first(
    bench: Bench, events: NotingEvents
) -> None:
    """A publish that was in the same read as what has failed was never seen: one that comes later
    must not be confirmed in its place."""
    bench.session.on_method = failing  # type: ignore[attr-defined]
    bench.client.send(DECLARE * 2)
    bench.loop.on_found()
    bench.client.send(DECLARE)
    bench.run()
    bench.loop.on_found()

    assert [type(each) for each in events.raised] == [MemoryError]
    assert [each[0] for each in bench.session.events] == ["on_lost"]


def test_links_that_wait_for_their_turn_are_heard_behind_one_that_fails(
    bench: Bench, tmp_path: Path, events: NotingEvents
) -> None:
    bench.session.on_method = failing  # type: ignore[attr-defined]
    with closing(Bench(tmp_path / "other", events)) as other:
        other.loop = bench.loop
        other.link.close()
        link = _core.Link(bench.loop, other._server.fileno(), _core.AMQP)
        link.session = other.session
        link.set_limits(131072, 1 << 30, 0)
        link.state = _core.STATE_OPEN
        link.open_channel(1, 0)
        link.start(0)
        bench.loop.portion_units = 1  # each stops behind its first frame
        for each in (bench, other):
            each.client.send(DECLARE * 2)
        for _ in range(9):
            bench.loop.on_found()
            bench.run()
        link.close()

        assert len(events.raised) == 1
        assert [each[0] for each in other.session.events] == ["on_method"] * 2


def test_all_who_wait_for_a_sync_are_told_behind_one_that_fails(
    bench: Bench, events: NotingEvents
) -> None:
    told: list[str] = []
    for callback in (failing, lambda: told.append("safe")):
        bench.loop.after_sync(callback)
    bench.run()

    assert told == ["safe"]
    assert len(events.raised) == 1


def test_links_are_looked_at_behind_one_that_fails(
    bench: Bench, tmp_path: Path, events: NotingEvents
) -> None:
    """Those that were taken off the wheel with it have their time-outs, too."""
    others = [Bench(tmp_path / f"{n}", events) for n in range(3)]
    links = []
    for other in others:
        other.link.close()
        link = _core.Link(bench.loop, other._server.fileno(), _core.AMQP)
        link.session = other.session
        link.start(1e-9)
        links.append(link)
    others[1].session.on_timeout = failing  # type: ignore[attr-defined]

    def all_are_looked_at() -> bool:
        while bench.loop.check_links():
            pass
        return bool(others[0].session.events and others[2].session.events and events.raised)

    wait_for(all_are_looked_at, "a link is not looked at any more")
    for link, other in zip(links, others, strict=True):
        link.close()
        other.close()
