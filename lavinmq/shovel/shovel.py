"""A shovel as its operator sees it: it runs, waits for another try, is paused, or has ended.

Runs begin anew with pauses of full jitter; a queue or exchange that is missing is something to wait
for. On the loop. Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lavinmq.client.errors import Error
from lavinmq.process import log
from lavinmq.shovel.moving import MOST_DELAY_S, Move

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.values import Values

_log = log.get("lmq.shovel")
LEAST_DELAY_S: Final = 0.05


class Shovel:
    """One parameter at work.

    Args: is_paused: whether it stays where it is; on_done: is called when it has moved all that it
        was to.
    """

    def __init__(
        self, broker: Broker, vhost: str, name: str, values: Values, *, is_paused: bool,
        on_done: Callable[[Shovel], None],
    ) -> None:  # fmt: skip
        self.name, self.vhost, self.values = name, vhost, values
        self.is_paused = is_paused
        self._broker, self._on_done = broker, on_done
        self._move: Move | None = None
        self._task: asyncio.Task[None] | None = None
        self._error = ""
        self._error_at: float | None = None
        self._ended = False
        self._count = self._bytes = self._confirmed = self._reconnects = self._runs = 0
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
        return "" if self._move.is_running else self._move.error or self._error

    def figures(self) -> dict[str, Any]:
        """Numbers since it was made, over all runs."""
        move = self._move
        return {
            "message_count": self._count + (move.count if move else 0),
            "bytes": self._bytes + (move.bytes if move else 0),
            "confirmed": self._confirmed + (move.confirmed if move else 0),
            "in_flight": move.in_flight if move else 0,
            "reconnects": self._reconnects + (move.reconnects if move else 0)
            + max(self._runs - 1, 0),
        }  # fmt: skip

    # ---- what is done with it

    def pause(self) -> None:
        """Stop; what is under way gets its time."""
        self.is_paused = True
        self._stop()

    def resume(self) -> None:
        """Go on."""
        self.is_paused = False
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
            self._move = Move(self._broker, self.vhost, self.name, self.values)
            began = time.monotonic()
            try:
                await self._move.run()
            except (Error, OSError) as error:
                self._failed(self._move.error or str(error))
            except asyncio.CancelledError:
                raise
            except Exception as error:
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

    def _delay(self, failures: int) -> float:
        first = max(self.values.delay_s, LEAST_DELAY_S)
        return random.uniform(LEAST_DELAY_S, min(MOST_DELAY_S, first * 2 ** min(failures, 20)))

    def _failed(self, error: str) -> None:
        self._error, self._error_at = error, time.time()
        _log.warning("shovel %r of vhost %r: %s", self.name, self.vhost, error)

    def _add_up(self) -> None:
        move, self._move = self._move, None
        if move is not None:
            self._count += move.count
            self._bytes += move.bytes
            self._confirmed += move.confirmed
            self._reconnects += move.reconnects
