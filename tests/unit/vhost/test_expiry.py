"""The countdowns of queues: one timer, whoever comes, goes or changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lavinmq.vhost import expiry
from lavinmq.vhost.expiry import QueueExpiry


@dataclass
class Timer:
    at_s: float
    call: Any
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class Events:
    """A loop whose clock is set by hand."""

    now_s: float = 0.0
    timers: list[Timer] = field(default_factory=list)

    def call_later(self, wait_s: float, call: Any) -> Timer:
        self.timers.append(Timer(self.now_s + wait_s, call))
        return self.timers[-1]

    def waiting(self) -> list[Timer]:
        return [each for each in self.timers if not each.is_cancelled]

    def until(self, now_s: float) -> None:
        """Let time pass."""
        while due := [each for each in self.waiting() if each.at_s <= now_s]:
            first = min(due, key=lambda each: each.at_s)
            self.now_s = max(self.now_s, first.at_s)
            self.timers.remove(first)
            first.call()
        self.now_s = now_s


class Queue(SimpleNamespace):
    """Compared by identity, as queues are."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def queue(expires_ms: int | None) -> Any:
    return Queue(features=SimpleNamespace(expires_ms=expires_ms), consumers=())


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    made = Events()
    monkeypatch.setattr(expiry.time, "monotonic", lambda: made.now_s)
    return made


@pytest.fixture
def expired() -> list[Any]:
    return []


@pytest.fixture
def countdowns(events: Events, expired: list[Any]) -> QueueExpiry:
    return QueueExpiry(cast(asyncio.AbstractEventLoop, events), expired.append)


def test_each_goes_at_its_time_and_all_have_one_timer(
    countdowns: QueueExpiry, events: Events, expired: list[Any]
) -> None:
    late, soon, never = queue(5000), queue(2000), queue(None)
    for each in (late, soon, never):
        countdowns.changed(each)
    assert len(events.waiting()) == 1

    events.until(1.9)
    assert expired == []
    events.until(2.1)
    assert expired == [soon]
    events.until(10.0)
    assert expired == [soon, late]
    assert events.waiting() == []


def test_use_begins_anew(countdowns: QueueExpiry, events: Events, expired: list[Any]) -> None:
    it = queue(2000)
    countdowns.changed(it)
    events.until(1.5)
    countdowns.used(it)
    events.until(3.4)
    assert expired == []
    events.until(3.6)
    assert expired == [it]


def test_who_has_consumers_waits_until_the_last_has_left(
    countdowns: QueueExpiry, events: Events, expired: list[Any]
) -> None:
    it = queue(2000)
    countdowns.changed(it)
    it.consumers = (1,)
    events.until(10.0)
    it.consumers = ()
    countdowns.left(it, 1.5)
    events.until(10.4)
    assert expired == []
    events.until(10.6)
    assert expired == [it]


def test_another_time_counts_from_the_same_moment(
    countdowns: QueueExpiry, events: Events, expired: list[Any]
) -> None:
    sooner, never = queue(9000), queue(2000)
    for each in (sooner, never):
        countdowns.changed(each)
    events.until(1.0)
    sooner.features.expires_ms, never.features.expires_ms = 3000, None
    for each in (sooner, never):
        countdowns.changed(each)
    events.until(2.9)
    assert expired == []
    events.until(20.0)
    assert expired == [sooner]


def test_what_is_forgotten_is_let_go_of(
    countdowns: QueueExpiry, events: Events, expired: list[Any]
) -> None:
    stays = queue(86_400_000)
    countdowns.changed(stays)
    for _ in range(1000):
        it = queue(86_400_000)
        countdowns.changed(it)
        countdowns.left(it, 1.0)
        countdowns.forget(it)

    assert len(countdowns._heap) <= 2 + expiry._STALE
    events.until(90_000.0)
    assert expired == [stays]


def test_one_that_fails_does_not_keep_the_others(events: Events) -> None:
    gone: list[Any] = []

    def expire(it: Any) -> None:
        gone.append(it)
        if len(gone) == 1:
            raise RuntimeError

    countdowns = QueueExpiry(cast(asyncio.AbstractEventLoop, events), expire)
    for each in (queue(1000), queue(1000)):
        countdowns.changed(each)
    with pytest.raises(RuntimeError):
        events.until(2.0)
    events.until(3.0)

    assert len(gone) == 2


def test_nothing_expires_once_it_is_stopped(
    countdowns: QueueExpiry, events: Events, expired: list[Any]
) -> None:
    countdowns.changed(queue(1000))
    countdowns.stop()
    events.until(5.0)
    assert expired == []


def test_what_loses_its_consumers_while_all_of_it_goes_does_not_expire(
    countdowns: QueueExpiry, events: Events, expired: list[Any]
) -> None:
    """A virtual host that is deleted ends its connections behind the countdowns."""
    countdowns.changed(queue(60_000))
    countdowns.stop()

    countdowns.used(queue(1000))
    countdowns.left(queue(1000), 0.0)
    countdowns.changed(queue(1000))
    events.until(5.0)

    assert expired == []
    assert events.waiting() == []
