"""Saving small files without holding up the loop, and waiting for what one request has saved.

A change is there at once, and its file is written behind: turned into text in portions on the
loop, then written aside, synced and renamed in a thread. What it does that nobody could take back
begins when it is on disk. One write of a file runs at a time; what changes meanwhile is one more
write, however often. Whoever answers for a change waits for its `Save`: that is what `gathered`
does for all saves of a block, so endpoints need not know of them. When the disk refuses, everything
that is not on disk yet is taken back, the newest first, and its saves fail: memory and file then
say the same again. Where nobody can tell what the disk has, as after a sync that failed behind the
renaming, the broker ends, and nobody is answered.

Before `start` and after `stop` all is done at once, in the thread of the caller.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeVar

from lavinmq.errors import DefinitionsError
from lavinmq.files.changes import Changes
from lavinmq.files.in_order import InOrder
from lavinmq.files.whole import UnsureError, replace_files
from lavinmq.process.portions import emptied, in_portions
from lavinmq.process.worker import Worker, caught, resolve

log = logging.getLogger("lmq.saving")

T = TypeVar("T")
PIECES_AT_ONCE: Final = 4096
THREADS: Final = 2
"""One may be held up by the disk for long, with a large file."""
_ENCODER: Final = json.JSONEncoder(indent=2, ensure_ascii=False, allow_nan=False)
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class Save:
    """A change that is being brought to the disk. Await it: DefinitionsError when that failed.

    Args: undo: takes it back. steps: what `undo` needs, one of them for each thing that changed.
        act: begins what could not be taken back.
    """

    __slots__ = ("_waiting", "act", "error", "is_over", "steps", "undo")

    def __init__(
        self, undo: Callable[[], object], steps: list[Any], act: Callable[[], object]
    ) -> None:
        self.undo = undo
        self.steps = steps
        self.act = act
        self.error = ""
        self.is_over = False
        self._waiting: list[Callable[[], object]] = []

    def finish(self, error: str = "") -> None:
        """It is on disk, or could not be brought there."""
        self.error, self.is_over = error, True
        for each in self._waiting:
            each()

    def then(self, callback: Callable[[], object]) -> None:
        """Call back when it is over; it is not yet."""
        self._waiting.append(callback)

    def __await__(self) -> Generator[Any, None, None]:
        if not self.is_over:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.then(partial(_there, done))
            yield from done
        if self.error:
            raise DefinitionsError(self.error)


_gathering: ContextVar[list[Save] | None] = ContextVar("saves", default=None)


@asynccontextmanager
async def gathered() -> AsyncIterator[None]:
    """At its end, all that was saved in the block is on disk. Raises: DefinitionsError."""
    saves: list[Save] = []
    token = _gathering.set(saves)
    try:
        yield
    finally:
        _gathering.reset(token)
    for each in saves:
        await each


def _there(there: asyncio.Future[None]) -> None:
    if not there.done():
        there.set_result(None)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that has nothing to wait for: before `Disk.start`."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise RuntimeError("it would have to wait")


class Disk:
    """The threads that wait for the disk, and the files that they write.

    Args: events: the loop; None: there is none, and all is done at once. on_unsure: is told the
        path and the errno when nobody knows what the disk has: the broker has to end.
    """

    def __init__(
        self, events: asyncio.AbstractEventLoop | None = None,
        on_unsure: Callable[[str, int], object] = lambda path, error: None,
    ) -> None:  # fmt: skip
        self._events = events
        self.on_unsure = on_unsure
        self.changes = Changes()
        """Of the files of the data directory, whoever makes them."""
        self.copied: Callable[[Callable[[], object]], object] | None = None
        """Calls something once all that was changed so far is where else it has to be; None: it has
        to be nowhere else."""
        self._busy: set[SavedFile] = set()
        self.is_running = False
        self._worker = Worker("disk", self._call_from_thread, n_threads=THREADS)
        self._naming = Worker("names", self._call_from_thread)
        self._removing = Worker("removals", self._call_from_thread)
        self.names = self._line(self._naming)
        """Where directories are made and renamed."""
        self.removals = self._line(self._removing, is_patient=True)
        """Where directories go that have lost their name: what is left, the next start removes."""

    def start(self) -> None:
        """From now on the loop serves clients, and nothing may hold it up."""
        self.is_running = self._events is not None
        self.names.start()
        self.removals.start()

    def stop(self) -> None:
        """Finish what runs, and save what waits. Idempotent."""
        self.is_running = False
        self._worker.stop()
        # Before the names: a directory that is just losing its own would begin one more removal.
        self._removing.stop()
        self.removals.stop()
        self._naming.stop()
        self.names.stop()
        while self._busy:
            self._busy.pop().save_now()

    def _line(self, worker: Worker, *, is_patient: bool = False) -> InOrder:
        submit = worker.submit if self._events is not None else None
        return InOrder(submit, self.call_soon, is_patient=is_patient)

    def _call_from_thread(self, function: Callable[..., object], *args: Any) -> None:
        assert self._events is not None
        self._events.call_soon_threadsafe(function, *args)

    def call_soon(self, function: Callable[..., object], *args: Any) -> None:
        """In the next turn of the loop."""
        if self._events is not None:
            self._events.call_soon(function, *args)

    def submit(
        self, work: Callable[[], T], done: Callable[[T | None, OSError | None], object]
    ) -> None:
        """Have a thread do something that waits for the disk, or do it now where there is none.

        Args: done: is called on the loop with what came of it; not after `stop`.
        """
        self._worker.submit(work, done if self.copied is None else partial(self._copy, done))

    def _copy(
        self, done: Callable[[T | None, OSError | None], object], result: T | None,
        error: OSError | None,
    ) -> None:  # fmt: skip
        assert self.copied is not None
        self.copied(partial(done, result, error))

    async def _copies(self) -> None:
        """Wait until all that was changed so far is where else it has to be."""
        if self.copied is not None:
            there: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.copied(partial(_there, there))
            await there

    async def run(self, work: Callable[[], T]) -> T:
        """What something returns, or raises, that waits for the disk."""
        if not self.is_running:
            return work()
        try:
            return await self._worker.run(work)
        finally:
            await self._copies()

    async def run_in_order(self, work: Callable[[], T]) -> T:
        """The same, behind all changes of names that were asked for before."""
        if not self.is_running:
            return work()
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.names.add(partial(caught, work), partial(resolve, result))
        try:
            return await result
        finally:
            await self._copies()

    def began(self, file: SavedFile) -> None:
        """A file has something to write."""
        self._busy.add(file)

    def ended(self, file: SavedFile) -> None:
        """It has no more."""
        self._busy.discard(file)


class SavedFile:
    """A file that is replaced as a whole.

    Args: before: is called with each write, in its thread. It returns files of the same directory,
        path and pieces of content, that are replaced together with this one, just before it; may
        raise OSError.
    """

    def __init__(
        self,
        path: Path,
        disk: Disk | None = None,
        before: Callable[[], list[tuple[str, Sequence[bytes]]]] = list,
    ) -> None:
        self.path = path
        self._disk = disk or Disk()
        self._before = before
        self._content: Callable[[], Iterable[str]] = tuple
        self._saves: list[Save] = []  # that are not on disk, in their order
        self._n_covered = 0  # by the write that runs
        self._lock = threading.Lock()  # saves at once may come from several threads
        self._is_writing = False
        self._is_released = False

    def release(self) -> None:
        """Write nothing more: its directory loses its name, which another one may get. Waits for a
        write that runs. In a thread."""
        with self._lock:
            self._is_released = True

    def when_saved(self, callback: Callable[[], object]) -> None:
        """Call back once all that was changed so far is on disk, or taken back."""
        if self._saves:
            self._saves[-1].then(callback)
        else:
            callback()

    async def saved(self) -> None:
        """Wait for the same."""
        if self._saves:
            over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.when_saved(partial(_there, over))
            await over

    def save(
        self, content: Callable[[], Iterable[str]], undo: Callable[[], object] = bool,
        steps: list[Any] | None = None, act: Callable[[], object] = bool,
    ) -> Save:  # fmt: skip
        """Replace the file, so that a crash leaves the old or the new one.

        Args: content: makes the text, piece by piece; it is called later, in another turn of the
            loop. undo: takes the change back when it could not be saved. steps: a list that `undo`
            needs and that may be long; it is emptied once nothing is taken back any more. act: is
            called when the change is on disk, in the order of the changes, and never when it is
            not; it begins what the change does that could not be taken back.
        Raises: DefinitionsError when the disk refuses, if it is asked at once; nothing is undone
            then.
        """
        save = Save(undo, steps or [], act)
        self._content = content
        if not self._disk.is_running:
            self._write_now(self._written_out())
            save.finish()
            act()
            return save
        self._saves.append(save)
        gathering = _gathering.get()
        if gathering is not None:
            gathering.append(save)
        if not self._is_writing:
            self._is_writing = True
            self._disk.began(self)
            self._disk.call_soon(self._begin)
        return save

    def save_now(self) -> None:
        """The broker ends: save what is left, at once."""
        if not self._saves:
            return
        try:
            self._write(self._written_out())
        except OSError as error:
            self._refused(error)
        else:
            self._finish(len(self._saves))

    def _written_out(self) -> list[bytes]:
        """All of the text at once."""
        text = Text()
        for piece in self._content():
            text.add(piece)
        return text.pieces()

    def _write_now(self, content: Sequence[bytes]) -> None:
        try:
            self._write(content)
        except OSError as error:
            raise DefinitionsError(self._why(error)) from error

    def _begin(self) -> None:
        """Make the text of all that has changed so far, and have it written."""
        self._n_covered = len(self._saves)
        in_portions(self._disk.call_soon, self._steps())

    def _steps(self) -> Iterator[None]:
        text = Text()
        try:
            for piece in self._content():
                text.add(piece)
                yield
        except (ValueError, TypeError) as error:  # nothing that was checked has such values
            self._written(None, OSError(0, str(error)))
            return
        if self._disk.is_running:
            self._disk.submit(lambda: self._write(text.pieces()), self._written)

    def _write(self, content: Sequence[bytes]) -> None:
        """Raises: OSError. In a thread, mostly."""
        with self._lock:
            if self._is_released:
                return
            files = [*self._before(), (str(self.path), content)]
            replace_files(files, self._disk.changes)

    def _written(self, _: None, error: OSError | None) -> None:
        if not self._disk.is_running:
            return  # `save_now` has done the rest
        if error is not None:
            self._refused(error)
        else:
            self._finish(self._n_covered)
        if isinstance(error, UnsureError):
            return  # nobody is answered any more
        if self._saves:
            self._begin()
        else:
            self._is_writing = False
            self._disk.ended(self)

    def _finish(self, count: int) -> None:
        done, self._saves = self._saves[:count], self._saves[count:]
        for save in done:
            if self._disk.is_running:  # nothing begins in a broker that ends
                self._act(save)
            save.finish()
        in_portions(self._disk.call_soon, _let_go(done))

    def _act(self, save: Save) -> None:
        try:
            save.act()
        except Exception:  # the file is as it should be, and others wait for it
            log.exception("a mistake of the broker's own: what follows from a new %s", self.path)

    def _refused(self, error: OSError) -> None:
        """Take back all that is not on disk, if that is known."""
        if isinstance(error, UnsureError):
            self._disk.on_unsure(str(self.path), error.errno or 0)
            return
        why = self._why(error)
        log.error("%s; taken back: %d changes", why, len(self._saves))
        failed, self._saves = self._saves, []
        for save in reversed(failed):
            save.undo()
        for save in failed:
            save.finish(why)

    def _why(self, error: OSError) -> str:
        return f"{self.path}: {error.strerror or error}"


def _let_go(saves: list[Save]) -> Iterator[None]:
    """Forget how to take them back: thousands of changes may be all that holds what was deleted."""
    for save in saves:
        save.undo = save.act = bool
        yield from emptied(save.steps)
        yield


# --- text -------------------------------------------------------------------------------------


class Text:
    """JSON that grows by pieces, in UTF-8, and is encoded as it grows. Nobody ever joins all of it:
    that would hold the interpreter for milliseconds, and so the loop, in any thread."""

    __slots__ = ("_pieces", "_waiting")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._waiting: list[str] = []

    def add(self, piece: str) -> None:
        """Put a piece at the end."""
        self._waiting.append(piece)
        if len(self._waiting) == PIECES_AT_ONCE:
            self._encode()

    def pieces(self) -> list[bytes]:
        """All of it."""
        self._encode()
        return self._pieces

    def _encode(self) -> None:
        self._pieces.append(encoded("".join(self._waiting)))
        self._waiting.clear()


class _Entries(list[object]):
    """A list, not empty, that is made as it is written."""

    def __init__(self, entries: Iterator[object]) -> None:
        super().__init__((None,))
        self._entries = entries

    def __iter__(self) -> Iterator[object]:
        return self._entries


def json_list(entries: Iterable[object]) -> Iterator[str]:
    """An indented JSON array, piece by piece. Raises: ValueError, TypeError."""
    left = iter(entries)
    for first in left:
        # One call for all: each leaves a cycle of twenty objects to the garbage collector.
        yield from _ENCODER.iterencode(_Entries(chain((first,), left)))
        return
    yield "[]"


def json_table(entries: Iterable[tuple[str, object]]) -> Iterator[str]:
    """An indented JSON object, entry by entry. Raises: ValueError, TypeError."""
    is_first = True
    for name, value in entries:
        # The entry as it stands in an object of its own, without the braces around that.
        yield ("{" if is_first else ",") + "".join(_ENCODER.iterencode({name: value}))[1:-2]
        is_first = False
    yield "{}" if is_first else "\n}"


def json_text(value: object) -> Iterator[str]:
    """Indented JSON, piece by piece. Raises: ValueError, TypeError."""
    return _ENCODER.iterencode(value)


def encoded(text: str) -> bytes:
    """JSON in UTF-8; half a surrogate pair has none, and is written as an escape."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _HALF_PAIR.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode()
