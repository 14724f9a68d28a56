"""Long work in portions of about a millisecond, each behind a turn of the message path.

Clients are served between the portions. What a client waits for says so when it is over.

What the event loop is told to call soon it calls before it looks at sockets. Whoever asked for the
next portion at once would have it between what a socket brings and the turn that answers that, so
that each client waits for two portions. So it is asked for twice: `behind`, `others_first`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

PORTION_S: Final = 0.001
"""Work of one turn. A step begins as long as this is not used up."""

AT_ONCE: Final = 64
"""Steps that `Portions.begin_unless_few` does at once; of more most come later."""


def behind(call_soon: Callable[..., Any], function: Callable[..., object], *args: object) -> None:
    """Call a function once those who are there now, or come while the caller works, are served."""
    call_soon(call_soon, function, *args)


async def others_first() -> None:
    """Go on once those who are there now, or came while the caller worked, are served."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def in_portions(
    call_soon: Callable[..., Any], steps: Iterator[object], portion_s: float = PORTION_S
) -> None:
    """Begin now, and go on by way of `call_soon` until the iterator ends; each step is short."""
    until = time.perf_counter() + portion_s
    for _ in steps:
        if time.perf_counter() >= until:
            behind(call_soon, in_portions, call_soon, steps, portion_s)
            return


class SharedPortion:
    """The portion of a turn for all of a kind together: what each of them finds ready it goes on
    with until that is over, and then in the next turn.

    Args: call_soon: of the event loop.
    """

    def __init__(
        self, call_soon: Callable[..., Any], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._until: float | None = None

    def is_over(self) -> bool:
        """Whether the portion of this turn is used up; the first who asks begins it."""
        if self._until is None:
            self._until = self._clock() + PORTION_S
            self._call_soon(self._end)
        return self._clock() >= self._until

    def steps(self) -> Iterator[None]:
        """One step in any case, and more of them until the portion of this turn is used up."""
        self.is_over()  # begins it
        yield
        while not self.is_over():
            yield

    def _end(self) -> None:
        self._until = None


class Portions:
    """Several long works that share the portion of a turn, so that many take no longer than one.

    Args: call_soon: of the event loop; shared: the portion of a turn, which is shared with others
        as well. Then nothing is done at once: thousands who each begin something short would take
        long together.
    """

    def __init__(self, call_soon: Callable[..., Any], shared: SharedPortion | None = None) -> None:
        self._call_soon = call_soon
        self._shared = shared
        self._works: deque[tuple[Iterator[object], Callable[[], None]]] = deque()

    def begin(self, steps: Iterator[object], then: Callable[[], None] | None = None) -> None:
        """Begin now if nothing else is being done, and call `then()` when the iterator ends.

        What fits in a portion is over when this returns, unless that is shared."""
        self._works.append((steps, then or _nothing))
        if len(self._works) > 1:
            return
        if self._shared is None:
            self._turn()
        else:
            self._call_soon(self._turn)

    def begin_unless_few(self, steps: Iterator[object], n: int) -> None:
        """Do `n` steps: all of them now if they are few, whatever else is being done."""
        if n > AT_ONCE:
            self.begin(steps)
            return
        for _ in steps:
            pass

    async def done(self, steps: Iterator[object]) -> None:
        """Do all of it. A bug in a step is raised here."""
        over = asyncio.get_running_loop().create_future()
        self.begin(_watched(steps, over))
        await over

    def _turn(self) -> None:
        """A portion of the first work; then it is the next one's turn."""
        is_over = self._portion()
        while self._works:
            steps, then = self._works[0]
            try:
                for _ in steps:
                    if is_over():
                        self._works.rotate(-1)
                        behind(self._call_soon, self._turn)
                        return
                self._works.popleft()
            except Exception:  # a bug: the others go on
                self._works.popleft()
                behind(self._call_soon, self._turn)
                raise
            try:
                then()
            except Exception:  # the same
                if self._works:
                    behind(self._call_soon, self._turn)
                raise
            if self._works and is_over():
                behind(self._call_soon, self._turn)
                return

    def _portion(self) -> Callable[[], bool]:
        """Begin the portion of a turn. Returns: what says whether it is over."""
        if self._shared is not None:
            self._shared.is_over()
            return self._shared.is_over
        until = time.perf_counter() + PORTION_S
        return lambda: time.perf_counter() >= until


def emptied(*collections: Collection[Any]) -> Iterator[None]:
    """Take everything out of lists, sets, queues and dicts, one thing in each step: thousands of
    them, freed in one go, take milliseconds."""
    for each in collections:
        pop = each.popitem if isinstance(each, dict) else each.pop  # type: ignore[attr-defined]
        while each:
            pop()
            yield


def _watched(steps: Iterator[object], over: asyncio.Future[None]) -> Iterator[None]:
    try:
        for _ in steps:
            yield
    except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
        over.set_exception(error)
    else:
        over.set_result(None)


def _nothing() -> None:
    """Nobody waits."""
