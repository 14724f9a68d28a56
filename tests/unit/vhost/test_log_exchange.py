"""The log as messages: what is bounded, what is left out, what happens without the vhost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq import _core
from lavinmq.errors import ChannelError, ReplyCode
from lavinmq.process import log
from lavinmq.vhost.log_exchange import EXCHANGE, MOST_WAITING, LogExchange
from tests.support.core import Bench, FakeEvents


class Events(FakeEvents):
    """Callbacks of other threads come like all others."""

    def call_soon_threadsafe(self, callback: Callable[[], Any]) -> None:
        self.call_soon(callback)


class VHost:
    """As much of a virtual host as is published to."""

    def __init__(self, bench: Bench) -> None:
        self.core = bench.vhost
        self.is_refusing = False
        self._exchange = _core.Exchange(_core.TOPIC, 1)
        self._exchange.bind(b"#", b"", bench.queue("log"))
        self.core.add(EXCHANGE.encode(), self._exchange)

    def own_exchange(self, name: str, type_: str) -> SimpleNamespace:
        assert (name, type_) == (EXCHANGE, "topic")
        if self.is_refusing:
            raise ChannelError(ReplyCode.PRECONDITION_FAILED, "no room")
        return SimpleNamespace(core=self._exchange)


class World(Bench):
    """A message path with a log that is published."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, Events())
        self.there = VHost(self)
        self.vhosts: dict[str, VHost] = {"/": self.there}
        self.log = LogExchange(self.loop, self.vhosts)  # type: ignore[arg-type]
        self.log.start()

    def bodies(self) -> list[bytes]:
        """What was published since the last call."""
        self.run()
        found = []
        while (got := self.get(self._queues[0])) is not None:
            found.append(got.body)
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path / "bench")) as made:
        level = logging.getLogger("lmq").level
        logging.getLogger("lmq").setLevel(log.TRACE)
        try:
            yield made
        finally:
            made.log.stop()
            logging.getLogger("lmq").setLevel(level)


def test_an_entry_is_published_with_its_source_and_its_exception(world: World) -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        log.get("lmq.x").error("text %d", 5, exc_info=error)

    (body,) = world.bodies()
    assert body.startswith(b"lmq.x - text 5\nTraceback")
    assert body.endswith(b"ValueError: why")


def test_entries_of_other_threads_are_published(world: World) -> None:
    thread = threading.Thread(target=log.get("lmq.x").info, args=("elsewhere",))
    thread.start()
    thread.join()

    assert world.bodies() == [b"lmq.x - elsewhere"]


def test_of_too_many_entries_the_newest_are_published(world: World) -> None:
    for at in range(MOST_WAITING + 10):
        log.get("lmq.x").info("%d", at)

    bodies = world.bodies()

    assert len(bodies) == MOST_WAITING
    assert bodies[-1] == b"lmq.x - %d" % (MOST_WAITING + 9)


def test_what_publishing_logs_is_left_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    own_exchange = world.there.own_exchange

    def talkative(name: str, type_: str) -> SimpleNamespace:
        log.get("lmq.vhost").info("asked")
        return own_exchange(name, type_)

    monkeypatch.setattr(world.there, "own_exchange", talkative)
    log.get("lmq.x").info("text")

    assert world.bodies() == [b"lmq.x - text"]
    assert world.bodies() == []


def test_entries_are_left_out_while_publishers_are_held(world: World) -> None:
    world.loop.is_low = True
    log.get("lmq.x").info("text")
    assert world.bodies() == []

    world.loop.is_low = False
    log.get("lmq.x").info("later")
    assert world.bodies() == [b"lmq.x - later"]


def test_the_vhost_may_go_and_come_back(world: World) -> None:
    log.get("lmq.x").info("one")
    assert world.bodies() == [b"lmq.x - one"]

    del world.vhosts["/"]
    log.get("lmq.x").info("two")
    assert world.bodies() == []

    world.vhosts["/"] = world.there
    log.get("lmq.x").info("three")
    assert world.bodies() == [b"lmq.x - three"]


def test_an_exchange_that_cannot_be_made_is_asked_for_again(world: World) -> None:
    world.there.is_refusing = True
    log.get("lmq.x").info("one")
    assert world.bodies() == []

    world.there.is_refusing = False
    log.get("lmq.x").info("two")
    assert world.bodies() == [b"lmq.x - two"]


def test_a_log_call_that_makes_no_sense_hurts_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    world.log.handle(
        logging.makeLogRecord({"name": "lmq.x", "levelno": 20, "msg": "%d", "args": ("x",)})
    )

    assert world.bodies() == []


def test_nothing_is_published_after_the_end(world: World) -> None:
    log.get("lmq.x").info("text")
    world.log.stop()
    world.log.stop()
    log.get("lmq.x").info("late")

    assert world.bodies() == []
