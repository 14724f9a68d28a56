"""A shovel that has an end counts what came back: so many go once more, and none is done before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.shovel import values
from lavinmq.shovel.carrying import Carrying
from lavinmq.shovel.source import Source

WANTED = 10


class Queue:
    """Stands for a queue, of which some messages have come back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.core = SimpleNamespace(returned=0)
        self.is_session = False


class Mover:
    """Stands for `_core.Mover`: all that is wanted has been moved."""

    is_refused = False
    is_over = True

    def __init__(self, n: int) -> None:
        self._n = n

    def counts(self) -> tuple[int, int, int]:
        """As many as were wanted."""
        return self._n, 0, 0

    def close(self) -> None:
        """It moves nothing more."""


class Run(Carrying):
    """Without connections, queues and disks. Args: on_sync: is called when all is on disk or back;
    on_look: at each look."""

    def __init__(self, on_look: Callable[[], None], on_sync: Callable[[], None]) -> None:
        value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://"}
        value |= {"dest-queue": "to", "src-delete-after": WANTED}
        found = values.parse(value, "/")
        broker: Any = SimpleNamespace(rounds=None, sockets=None, is_serving=False)
        to: Any = found.destination
        super().__init__(broker, "s", found, to, None)
        self.source = Queue("from")
        self.wanted: list[int | None] = []
        self._on_look, self._on_sync = on_look, on_sync

    def _found(self, vhost: str, name: str) -> Any:
        return self.source if name == "from" else Queue(name)

    def _move(self, queue: Any, to: Any, left: int | None) -> None:
        assert left is not None
        self.wanted.append(left)
        if self._mover is not None:
            self._before[0] += self._mover.counts()[0]
        mover: Any = Mover(left)
        self._mover = mover

    async def _look(self, queue: Any, to: Any, pause_s: float) -> None:
        self._on_look()

    async def _synced(self) -> None:
        self._on_sync()


def carried(
    monkeypatch: pytest.MonkeyPatch, on_look: Callable[[Run], None], on_sync: Callable[[Run], None]
) -> Run:
    """A run that has come to its end."""

    async def consume(*_: Any) -> None:
        """Nothing comes."""

    monkeypatch.setattr(Source, "consume", consume)

    async def main() -> Run:
        run = Run(lambda: on_look(run), lambda: on_sync(run))
        queue: Any = run.source
        await run._carry(queue, WANTED)
        return run

    return asyncio.run(main())


def nothing(_: Run) -> None:
    """All is well."""


def come_back_once(n: int) -> Callable[[Run], None]:
    """Some messages do, the first time."""

    def come_back(run: Run) -> None:
        run.source.core.returned = n

    return come_back


def test_what_came_back_before_all_had_gone_goes_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = carried(monkeypatch, come_back_once(4), nothing)
    assert run.wanted == [WANTED, 4]
    assert run._safe == WANTED


def test_what_comes_back_by_the_last_sync_goes_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    run = carried(monkeypatch, nothing, come_back_once(3))
    assert run.wanted == [WANTED, 3]
    assert run._safe == WANTED


def test_what_comes_back_while_it_is_waited_for_is_not_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the run ends then, the next one would move fewer than were wanted."""
    done: list[int] = []

    def come_back(run: Run) -> None:
        if run.source.core.returned == 0:
            run.source.core.returned = 6
        else:
            done.append(run._safe)

    carried(monkeypatch, nothing, come_back)
    assert done[0] == WANTED - 6
