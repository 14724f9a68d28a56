"""Writes a definitions file anew, without the deletions in it, while clients are served.

The records of all that is there are made in portions on the loop, and written aside in a thread.
What is recorded meanwhile is in the old file as ever, and comes behind the others in the new one: a
record says what is from then on, so it does not matter whether the first pass has seen it already.
Once the new file has caught up, every record is written to both, and both are synced before clients
are answered, until the new one has taken the place of the old one. Whatever happens, the file that
is found at the next start has all that was answered.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final

from lavinmq.files.definitions import VERSION, DefinitionsFile
from lavinmq.files.saving import Disk
from lavinmq.files.whole import sync_directory
from lavinmq.process.portions import in_portions

_FLAGS: Final = os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Compaction:
    """One rewrite of one file, begun by `start`.

    Args:
        file: which has no other compaction at the time.
        records: all that is there, one after the other; each is asked for when it is needed.
        on_end: is called with why it failed, empty when it did not; not when the file was closed.
        on_uncertain: is called when the file was replaced, and its directory could not be synced:
            which of the two a loss of power leaves is not known, so nothing may be answered.
    """

    def __init__(
        self, file: DefinitionsFile, records: Iterator[bytes], disk: Disk,
        on_end: Callable[[str], None], on_uncertain: Callable[[], None],
    ) -> None:  # fmt: skip
        self._file = file
        self._records = records
        self._disk = disk
        self._on_end = on_end
        self._on_uncertain = on_uncertain
        self._temporary = f"{file.path}.tmp"
        self._parts = [VERSION]

    def start(self) -> None:
        """Begin; clients are served meanwhile."""
        self._file.begin_copy(self)
        in_portions(self._disk.call_soon, self._gather())

    def _gather(self) -> Iterator[None]:
        for record in self._records:
            if not self._is_wanted:
                return
            self._parts.append(record)
            yield
        if self._is_wanted and self._disk.is_running:
            self._disk.submit(self._write, self._written)

    @property
    def _is_wanted(self) -> bool:
        """Whether the file is still open."""
        return self._file.copy is self

    def _write(self) -> int | None:
        """In a thread. Returns: the descriptor of the new file, with what was gathered; None: it is
        not wanted any more."""
        with self._file.replacing:
            if not self._is_wanted:
                return None
            fd = self._disk.changes.open(self._temporary, _FLAGS)
            try:
                self._disk.changes.append(self._temporary, fd, b"".join(self._parts), 0)
            except OSError:
                os.close(fd)
                raise
            return fd

    def _written(self, fd: int | None, error: OSError | None) -> None:
        if fd is None or not self._is_wanted:
            if fd is not None:
                os.close(fd)
            self._end(error)
            return
        try:
            self._file.follow(fd, sum(map(len, self._parts)))
        except OSError as failure:
            self._end(failure)
            return
        self._parts.clear()
        if self._disk.is_running:
            self._disk.submit(partial(self._replace, fd), self._replaced)

    def _replace(self, fd: int) -> bool:
        """In a thread. Returns: whether the new file is in its place, and its directory on disk."""
        with self._file.replacing:
            if not self._is_wanted:
                return False
            os.fsync(fd)
            # Others still write to both by their names of before: see `adopt`.
            self._disk.changes.rename_unnoted(self._temporary, self._file.path)
            try:
                sync_directory(self._file.path.parent)
            except OSError:
                return False
            return True

    def _replaced(self, is_certain: bool | None, error: OSError | None) -> None:
        if self._is_wanted and error is None:
            self._file.adopt()
            if not is_certain:
                self._on_uncertain()
        self._end(error)

    def _end(self, error: OSError | None) -> None:
        if not self._is_wanted:
            return  # the directory may be that of another file by now
        if error is not None:
            with suppress(OSError):
                self._disk.changes.unlink(self._temporary)
        self._file.end_copy()
        self._on_end("" if error is None else error.strerror or str(error))
