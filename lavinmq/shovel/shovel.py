"""A shovel as its operator sees it: it runs, waits for another try, is paused, or has ended.

Runs begin anew with pauses of full jitter; a queue or exchange that is missing is something to wait
for. On the loop. Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq.client.errors import Error
from lavinmq.process import log
from lavinmq.shovel.carrying import Carrying, is_possible
from lavinmq.shovel.connecting import MOST_DELAY_S
from lavinmq.shovel.errors import NotCarried, Stopped
from lavinmq.shovel.hook import Hook
from lavinmq.shovel.moving import Move

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.source import Position
    from lavinmq.shovel.values import Values

_log = log.get("lmq.shovel")
LEAST_DELAY_S: Final = 0.05
FIGURES: Final = (
    "message_count", "bytes", "confirmed", "in_flight", "refused", "unroutable", "dead_lettered",
    "requests", "reconnects",
)  # fmt: skip
"""What is counted: messages taken from the source, their bytes, those that have arrived, those
whose end is not known, attempts that a destination refused, those that no queue took, those that
were rejected at the source, requests of a webhook, and connections that were made again."""


class Run(Protocol):
    """One run, whatever it moves to."""

    error: str
    """Why it does not move, as long as it does not."""

    @property
    def is_running(self) -> bool:
        """Whether messages go through."""

    def figures(self) -> dict[str, int]:
        """Numbers of this run, of those in FIGURES."""

    async def run(self) -> None:
        """Move; returns when it has moved all that it was to. Raises: why it cannot go on."""


class Shovel:
    """One parameter at work.

    Args: is_paused: whether it stays where it is; position: where it is kept how far a stream is
        read; after: what has to end before; on_done: is called when it has moved all that it was
        to; on_stopped: when its destination wants no more.
    """

    def __init__(
        self, broker: Broker, vhost: str, name: str, values: Values, *, is_paused: bool,
        position: Position | None, after: asyncio.Task[None] | None,
        on_done: Callable[[Shovel], None], on_stopped: Callable[[Shovel], None],
    ) -> None:  # fmt: skip
        self.name, self.vhost, self.values = name, vhost, values
        self.is_paused = is_paused
        self.error_at: float | None = None
        """When it failed last, Unix time."""
        self._broker, self._position = broker, position
        self._on_done, self._on_stopped = on_done, on_stopped
        self._move: Run | None = None
        self._task = after
        self._error = ""
        self._ended = False
        self._runs = 0
        self._is_carried = True
        """Whether messages may go from store to store."""
        self._sums = dict.fromkeys(FIGURES, 0)
        if not is_paused:
            self._start()

    # ---- what is shown

    @property
    def state(self) -> str:
        """As the API says it."""
        if self.is_paused:
            return "Paused"
        if self._ended:
            return "Terminated"
        if self._move is not None and self._move.is_running:
            return "Running"
        return "Error" if self.error else "Starting"

    @property
    def error(self) -> str:
        """Why it does not move; empty if it does."""
        if self._move is None:
            return self._error
        return self._move.error or ("" if self._move.is_running else self._error)

    def figures(self) -> dict[str, int]:
        """FIGURES since it was made, over all runs."""
        now = self._move.figures() if self._move is not None else {}
        found = {name: count + now.get(name, 0) for name, count in self._sums.items()}
        found["reconnects"] += max(self._runs - 1, 0)
        return found

    # ---- what is done with it

    def pause(self) -> None:
        """Stop; what is under way gets its time."""
        self.is_paused = True
        self._error = ""
        self._stop()

    def resume(self) -> None:
        """Go on."""
        self.is_paused = False
        self._error = ""
        self._start()

    async def close(self) -> None:
        """End, and wait for that."""
        task = self._stop()
        if task is not None:
            await asyncio.wait([task])

    def _start(self) -> None:
        before = self._task
        self._task = asyncio.get_running_loop().create_task(self._run(before))

    def _stop(self) -> asyncio.Task[None] | None:
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run(self, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait([before])  # it still says goodbye
        failures = 0
        while True:
            self._runs += 1
            self._move = self._made()
            began = time.monotonic()
            try:
                await self._move.run()
            except NotCarried:
                self._is_carried = False
                continue
            except Stopped as error:
                self.is_paused = True
                self._failed(str(error))
                self._on_stopped(self)
                return
            except (Error, OSError) as error:
                self._failed(str(error) or self._move.error)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - one shovel may not end the others
                _log.exception("bug in shovel %r of vhost %r", self.name, self.vhost)
                self._failed(str(error))
            else:
                self._ended = True
                self._on_done(self)
                return
            finally:
                self._add_up()
            if time.monotonic() - began > MOST_DELAY_S:
                failures = 0
            await asyncio.sleep(self._delay(failures))
            failures += 1

    def _made(self) -> Run:
        """What does the work, by what it moves to."""
        who = self._broker, self.vhost, self.name, self.values
        to = self.values.destination
        if isinstance(to, Hook):
            from lavinmq.shovel.posting import Posting

            return Posting(*who, to, self._position)
        if self._is_carried and is_possible(self.values, to):
            return Carrying(self._broker, self.name, self.values, to)
        return Move(*who, to, self._position)

    def _delay(self, failures: int) -> float:
        first = max(self.values.delay_s, LEAST_DELAY_S)
        return random.uniform(LEAST_DELAY_S, min(MOST_DELAY_S, first * 2 ** min(failures, 20)))

    def _failed(self, error: str) -> None:
        self._error, self.error_at = error, time.time()
        _log.warning("shovel %r of vhost %r: %s", self.name, self.vhost, error)

    def _add_up(self) -> None:
        move, self._move = self._move, None
        if move is not None:
            for name, count in move.figures().items():
                if name != "in_flight":
                    self._sums[name] += count
