"""Durable queues that are to be: each exists once its directory is there, made beside the loop. So
does a delayed exchange, whose messages wait in a queue.

So nobody waits for the disk but who declares, and there is nothing to take back when the disk
refuses. Directories are made in the order of the declarations; whoever declares the same meanwhile
waits for the same directory. One that no queue has taken is removed. On the loop thread, but for
`make_directory`. Called by `queue_files.py` and `vhost.py`. Source: docs/durability.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

from lavinmq.files.changes import Changes
from lavinmq.files.directories import remove_tree, set_aside, write_text
from lavinmq.vhost import stream_identity

if TYPE_CHECKING:
    from lavinmq.vhost.queue import Queue

T = TypeVar("T")


class Directory(NamedTuple):
    """One that has been made. `aside`: where files are now that were in its place, if any;
    `identity`: of a stream; `error`: why it has none."""

    aside: Path | None
    identity: str = ""
    error: OSError | None = None


def make_directory(path: str, name: str, changes: Changes, *, is_stream: bool) -> Directory:
    """An empty directory for a new queue. One that is there is set aside, not reused: its messages
    must not appear in the new queue, and are not ours to throw away.

    In a thread. Raises: OSError; nothing half made is left then, as far as the disk allows.
    """
    aside = None
    try:
        changes.make_directory(path)
    except FileExistsError:
        aside = set_aside(Path(path), changes)
        changes.make_directory(path)
    try:
        write_text(f"{path}/.queue", name, changes)
    except OSError:
        with suppress(OSError):
            remove_tree(Path(path), changes)
        raise
    if not is_stream:
        return Directory(aside)
    try:
        return Directory(aside, stream_identity.make(path, changes))
    except OSError as error:  # it works without
        return Directory(aside, error=error)


class Making:
    """The directory of one new queue, from the first wish on."""

    __slots__ = ("_waiting", "directory", "error", "is_held", "is_over")

    def __init__(self) -> None:
        self._waiting: list[Callable[[], object]] = []
        self.directory: Directory | None = None
        self.error: OSError | None = None
        self.is_over = False
        self.is_held = False
        """Whether it is kept although nobody has taken it: an import is going to."""

    def when_over(self, callback: Callable[[], object]) -> None:
        """Call back once it has been made, or cannot be."""
        if self.is_over:
            callback()
        else:
            self._waiting.append(callback)

    def finish(self, directory: Directory | None, error: OSError | None) -> None:
        """Tell those who wait, in the order of their coming; one of them may take it."""
        self.directory, self.error, self.is_over = directory, error, True
        waiting, self._waiting = self._waiting, []
        for callback in waiting:
            callback()


class NewQueue(Generic[T]):
    """A declaration, of a queue or of an exchange that has one, which waits for its directory.

    Args: wish: asks for the directory, and calls back. declare: what the declaration comes to now.
    """

    __slots__ = ("_declare", "_wish")

    def __init__(
        self,
        wish: Callable[[Callable[[], object]], object],
        declare: Callable[[], T | NewQueue[T]],
    ) -> None:
        self._wish = wish
        self._declare = declare

    def when_made(self, callback: Callable[[], object]) -> None:
        """Call back, now or later, when it is time for `declare`: within the call."""
        self._wish(callback)

    def declare(self) -> T | NewQueue[T]:
        """Declare it now. Raises: ChannelError, also when the directory could not be made."""
        return self._declare()

    async def declared(self) -> T:
        """Wait and declare. Raises: ChannelError."""
        declared: T | NewQueue[T] = self
        while isinstance(declared, NewQueue):
            result: asyncio.Future[T | NewQueue[T]] = asyncio.get_running_loop().create_future()
            declared.when_made(partial(_settle, declared, result))
            declared = await result
        return declared


Declared: TypeAlias = "tuple[Queue, bool] | NewQueue[tuple[Queue, bool]]"
"""The queue, and whether the answer has to wait for the disk; or what comes before it."""


DeclaredExchange: TypeAlias = bool | NewQueue[bool]
"""Whether the answer has to wait for the disk; or what comes before the exchange."""


async def declared(outcome: T | NewQueue[T]) -> T:
    """What was declared, once it is there. Raises: ChannelError."""
    return await outcome.declared() if isinstance(outcome, NewQueue) else outcome


def _settle(queue: NewQueue[T], result: asyncio.Future[T | NewQueue[T]]) -> None:
    if result.done():
        return  # who has asked is gone
    try:
        result.set_result(queue.declare())
    except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
        result.set_exception(error)
