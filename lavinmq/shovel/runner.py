"""What an operator sees of a shovel, or of a link of federation: it runs, waits for another try,
is paused, or has ended.

Runs begin anew with pauses of full jitter; what is missing is something to wait for. On the loop.
Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import time
from contextvars import Context
from typing import Protocol

from lavinmq.client.errors import Error
from lavinmq.process import log
from lavinmq.shovel.connecting import most_s, pause_s
from lavinmq.shovel.errors import NotCarried, Stopped

_log = log.get("lmq.shovel")


class Run(Protocol):
    """One run, whatever it moves to."""

    @property
    def error(self) -> str:
        """Why it does not move, as long as it does not."""

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""

    def figures(self) -> dict[str, int]:
        """Numbers of this run, of those in FIGURES."""

    async def run(self) -> None:
        """Move; returns when it has moved all that it was to. Raises: why it cannot go on."""


class Runner:
    """Makes runs, one after the other. A subclass says what a run is.

    Args: delay_s: the first pause; figures: what is counted; after: what has to end before.
    """

    __slots__ = (
        "_before", "_delay_s", "_ended", "_error", "_figures", "_run_now", "_runs", "_sums",
        "_task", "error_at", "is_paused", "since",
    )  # fmt: skip

    def __init__(
        self, delay_s: float, figures: tuple[str, ...], *, is_paused: bool,
        after: asyncio.Task[None] | None,
    ) -> None:  # fmt: skip
        self.is_paused = is_paused
        self.error_at: float | None = None
        """When it failed last, Unix time."""
        self.since: float | None = None
        """When the run began that is under way, Unix time."""
        self._delay_s = delay_s
        self._run_now: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._before: tuple[asyncio.Task[None], ...] = () if after is None else (after,)
        """What has to end before the next run begins: two would be at work at once."""
        self._error = ""
        self._ended = False
        self._runs = 0
        self._figures = figures
        self._sums: dict[str, int] | None = None
        """What was counted in runs that are over; None: there was none."""

    # ---- what a subclass says

    def __str__(self) -> str:
        """What it is, for the log."""
        raise NotImplementedError

    def made(self) -> Run:
        """A new run."""
        raise NotImplementedError

    def has_ended(self) -> None:
        """All that there was to do is done."""

    def was_stopped(self) -> None:
        """A destination wants no more: it is paused now."""

    def not_carried(self) -> None:
        """A run has found that it has to be one of another kind."""

    # ---- what is shown

    @property
    def state(self) -> str:
        """As the API says it."""
        if self.is_paused:
            return "Paused"
        if self._ended:
            return "Terminated"
        if self._run_now is not None and self._run_now.is_running:
            return "Running"
        return "Error" if self.error else "Starting"

    @property
    def error(self) -> str:
        """Why it does not move; empty if it does."""
        now = self._run_now
        if now is None:
            return self._error
        return now.error or ("" if now.is_running else self._error)

    def figures(self) -> dict[str, int]:
        """What was counted since it was made, over all runs."""
        now = self._run_now.figures() if self._run_now is not None else {}
        sums = self._sums or {}
        found = {name: sums.get(name, 0) + now.get(name, 0) for name in self._figures}
        found["reconnects"] += max(self._runs - 1, 0)
        return found

    # ---- what is done with it

    def start(self) -> None:
        """Begin, unless it is paused."""
        if not self.is_paused:
            self._start()

    def pause(self) -> None:
        """Stop; what is under way gets its time."""
        self.is_paused = True
        self._error = ""
        self.end()

    def resume(self) -> None:
        """Go on."""
        self.is_paused = False
        self._error = ""
        self._start()

    def end(self) -> None:
        """Take nothing more; what is under way gets its time."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End, and wait for that, and for what had to end before."""
        self.end()
        await self.settled()

    async def settled(self) -> None:
        """Wait until what was under way when it was ended or paused is over."""
        if tasks := self._ending():
            await asyncio.wait(tasks)

    def _start(self) -> None:
        self._before, loop = self._ending(), asyncio.get_running_loop()
        # Of its own: that of the request which made it would keep what the request has saved.
        self._task = loop.create_task(self._live(), name=type(self).__name__, context=Context())

    def _ending(self) -> tuple[asyncio.Task[None], ...]:
        """Tasks that have not ended. One that is cancelled before it begins waits for nobody."""
        known = (*self._before, self._task)
        return tuple(each for each in known if each is not None and not each.done())

    async def _live(self) -> None:
        if self._before:
            await asyncio.wait(self._before)  # they still say goodbye
            self._before = ()
        failures = 0
        while True:
            self._runs += 1
            done = self._done
            self._run_now = self.made()
            self.since = time.time()
            began = time.monotonic()
            try:
                await self._run_now.run()
            except NotCarried:
                self.not_carried()
                continue
            except Stopped as error:
                self.is_paused = True
                self._failed(str(error))
                self.was_stopped()
                return
            except (Error, OSError) as error:
                self._failed(str(error) or self._run_now.error)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - one of them may not end the others
                _log.exception("bug in %s", self)
                self._failed(str(error))
            else:
                self._ended = True
                self.has_ended()
                return
            finally:
                self._add_up()
            # Failures in a row are those between which nothing went well.
            lived = time.monotonic() - began
            if lived > most_s(self._delay_s, failures) or self._done > done:
                failures = 0
            await asyncio.sleep(pause_s(self._delay_s, failures))
            failures += 1

    def _failed(self, error: str) -> None:
        self._error, self.error_at = error, time.time()
        _log.warning("%s: %s", self, error)

    @property
    def _done(self) -> int:
        return self._sums["confirmed"] if self._sums is not None else 0

    def _add_up(self) -> None:
        run, self._run_now = self._run_now, None
        if run is not None:
            if self._sums is None:
                self._sums = dict.fromkeys(self._figures, 0)
            for name, count in run.figures().items():
                if name != "in_flight":
                    self._sums[name] += count
