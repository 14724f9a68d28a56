"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing with --json.

The bar is rich's: maintained, typed, and in the environment of the tests already; its two
dependencies are small. Without it, or when the output is no terminal, there is a line every few
seconds, so that a log of cron stays short.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

LINE_INTERVAL_S = 10.0


class Progress(Protocol):
    """Where a job tells how far it is; a context manager."""

    def note(self, text: str) -> None:
        """Tell what begins now."""

    def show(self, label: str, done: int, total: int | None = None) -> None:
        """Tell how much of `total` (None: nobody knows) is done; called as often as one likes."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *unused: object) -> None: ...


class Silence:
    """Shows nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def show(self, label: str, done: int, total: int | None = None) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        """Do nothing."""


class Lines:
    """Writes a line for each note, and at most one every `interval_s` for what is done."""

    def __init__(self, stream: TextIO, interval_s: float = LINE_INTERVAL_S) -> None:
        self._stream = stream
        self._interval_s = interval_s
        self._next_s = 0.0

    def note(self, text: str) -> None:
        """Write the text."""
        print(text, file=self._stream, flush=True)

    def show(self, label: str, done: int, total: int | None = None) -> None:
        """Write what is done, if the last line is old enough."""
        if (now := time.monotonic()) < self._next_s:
            return
        self._next_s = now + self._interval_s
        self.note(f"{label}: {done:,}" + (f" of {total:,}" if total is not None else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        """Do nothing."""


class Bar:
    """A bar with rate and remaining time for each label; notes stand above it."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bars: RichProgress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(file=stream),
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}

    def note(self, text: str) -> None:
        """Show the text above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def show(self, label: str, done: int, total: int | None = None) -> None:
        """Move the bar of that label."""
        if label not in self._tasks:
            self._tasks[label] = self._bars.add_task(label, total=total)
        self._bars.update(self._tasks[label], completed=done, total=total)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *unused: object) -> None:
        """Remove the bars."""
        self._bars.stop()


def make_progress(stream: TextIO, *, is_silent: bool) -> Progress:
    """Return what suits the stream."""
    if is_silent:
        return Silence()
    if not stream.isatty():
        return Lines(stream)
    try:
        return Bar(stream)
    except ImportError:
        return Lines(stream)
