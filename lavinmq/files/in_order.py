"""Works that wait for the disk, done one after the other, in one thread at a time.

Names of directories are made, renamed and removed in the order in which that was asked for: a queue
that is deleted and declared again at once finds its name free. What comes while a batch is in its
thread is the next batch. Each `done` is called on the loop, in the same order, in portions. Owned
by `saving.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from lavinmq.process.portions import in_portions
from lavinmq.process.worker import Done, Work, outcome

MOST_AT_ONCE: Final = 64
"""Works of a batch of short ones: whoever waits for the first of them waits for all."""

Submit = Callable[[Work, Done], object]


class InOrder:
    """A line of works.

    Args:
        submit: has a thread do something; None: there is none, and all is done at once.
        call_soon: of the event loop.
        is_patient: whether what comes before `start` is kept until then, and what is left at `stop`
            is dropped: the next start does it. Else both is done at once, by the caller's thread.
            Its works may be long.
    """

    def __init__(
        self, submit: Submit | None, call_soon: Callable[..., Any], *, is_patient: bool = False
    ) -> None:
        self._submit = submit
        self._call_soon = call_soon
        self._most = 1 if is_patient else MOST_AT_ONCE
        self._is_patient = is_patient and submit is not None
        self._is_started = False
        self._waiting: deque[tuple[Work, Done]] = deque()
        self._batch: list[tuple[Work, Done]] = []
        self._outcomes: list[tuple[Any, OSError | None]] = []
        self._over: deque[tuple[Done, tuple[Any, OSError | None]]] = deque()
        self._is_reporting = False

    def add(self, work: Work, done: Done) -> None:
        """Do something behind all that was added before.

        Args: work: may raise OSError. done: hears what it has returned, or the error.
        """
        if self._is_started or self._is_patient:
            self._waiting.append((work, done))
            if self._is_started and not self._batch:
                self._begin()
        else:
            done(*outcome(work))

    def start(self) -> None:
        """From now on a thread does it."""
        self._is_started = self._submit is not None
        if self._is_started and self._waiting:
            self._begin()

    def stop(self) -> None:
        """The thread has ended; begin nothing in another one. Idempotent."""
        self._is_started = False
        self._take_outcomes()
        for _ in self._reports():
            pass
        while self._waiting and not self._is_patient:
            work, done = self._waiting.popleft()
            done(*outcome(work))

    def _begin(self) -> None:
        assert self._submit is not None
        n = min(len(self._waiting), self._most)
        self._batch = [self._waiting.popleft() for _ in range(n)]
        self._submit(self._run, self._ended)

    def _run(self) -> None:
        """In a thread."""
        for work, _ in self._batch:
            self._outcomes.append(outcome(work))

    def _ended(self, _: object, __: OSError | None) -> None:
        if not self._is_started:
            return  # `stop` has seen to it
        self._take_outcomes()
        if self._waiting:
            self._begin()
        if not self._is_reporting:
            in_portions(self._call_soon, self._reports())

    def _take_outcomes(self) -> None:
        dones = (done for _, done in self._batch)
        self._over.extend(zip(dones, self._outcomes, strict=True))
        self._batch, self._outcomes = [], []

    def _reports(self) -> Iterator[None]:
        self._is_reporting = True
        try:
            while self._over:
                done, result = self._over.popleft()
                done(*result)
                yield
        finally:
            self._is_reporting = False
