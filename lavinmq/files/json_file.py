"""One small JSON file of the data directory, whose content its owner holds.

A file without which messages would be lost, or what is forbidden be allowed, is *needed*: one that
cannot be read or understood, or an entry of it, is refused, and so is what it belongs to. Any other
never stops a start: it is logged, left in place, and a copy is kept under a `.damaged` name before
the first save replaces it. One that could not even be read is not replaced. How a save comes to the
disk is in `saving.py`.
Source: docs/formats.md.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar

from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import Disk, Save, SavedFile, json_list, json_table, json_text
from lavinmq.files.whole import read_regular, write_atomic
from lavinmq.process.log import get

log = get("lmq.json_file")

T = TypeVar("T")

_REMEDY = "it is left as it is: mend or restore it, or remove it to go on without what it says"


class JsonFile:
    """A file, which need not exist. Call `load` once before anything else.

    Args: disk: writes it; None: saves are done at once; is_needed: going on without would endanger
        messages, or allow what is forbidden.
    """

    def __init__(self, path: Path, disk: Disk | None = None, *, is_needed: bool = False) -> None:
        self.path = path
        self._is_needed = is_needed
        self._disk = disk or Disk()
        self._file = SavedFile(path, self._disk, self._keep_damaged)
        self._damaged: bytes | None = None
        self._why_unread = ""
        self._kept: list[Any] = []

    @property
    def is_whole(self) -> bool:
        """Whether all that the file had was read, when that was tried last."""
        return self._damaged is None and not self._why_unread and not self._kept

    def release(self) -> None:
        """Write nothing more, see `SavedFile.release`. In a thread."""
        self._file.release()

    def load(self, kind: type[T], check: Callable[[T], object] = bool) -> T | None:
        """The content; None when the file is missing, or damaged.

        Args: kind: of content, list or dict; another is damage; check: raises ValueError for what
            makes no sense. Raises: DefinitionsError when a needed one is damaged or cannot be read.
        """
        self._damaged, self._why_unread, self._kept = None, "", []
        try:
            data = read_regular(str(self.path))
        except FileNotFoundError:
            return None
        except OSError as error:
            self._why_unread = error.strerror or str(error)
            if self._is_needed:
                raise DefinitionsError(f"{self.path}: {self._why_unread}") from error
            log.error("%s cannot be read: %s; going on without", self.path, self._why_unread)
            return None
        try:
            # NaN and its like could not be written again.
            content = json.loads(data, parse_constant=str)
        except (ValueError, RecursionError) as error:
            self._is_damaged(data, f"not JSON: {error}")
            return None
        if not isinstance(content, kind):
            self._is_damaged(data, f"not a {'list' if kind is list else 'table'}")
            return None
        try:
            check(content)
        except ValueError as error:
            self._is_damaged(data, str(error))
            return None
        return content

    def load_entries(self, parse: Callable[[Any], T]) -> list[T]:
        """What `parse` makes of each entry of a list. An entry for which it raises ValueError is
        logged and stays in the file, unless that is needed. Raises: as `load`."""
        entries: list[T] = []
        for number, entry in enumerate(self.load(list) or (), 1):
            try:
                entries.append(parse(entry))
            except ValueError as error:
                if self._is_needed:
                    raise DefinitionsError(
                        f"{self.path}: entry {number}: {error}; {_REMEDY}"
                    ) from error
                log.error("%s: entry %d is ignored: %s", self.path, number, error)
                self._kept.append(entry)
        return entries

    def when_saved(self, callback: Callable[[], object]) -> None:
        """Call back once all that was changed so far is on disk, or taken back."""
        self._file.when_saved(callback)

    def save_entries(
        self, entries: Callable[[], Iterable[Any]], undo: Callable[[], object] = bool,
        act: Callable[[], object] = bool,
    ) -> Save:  # fmt: skip
        """Save a list that `load_entries` has read. Args: entries: makes it; act: begins what
        could not be taken back, see `SavedFile.save`. Raises: as `save`."""
        return self._save(lambda: json_list(chain(entries(), self._kept)), undo, act)

    def save_table(
        self, entries: Callable[[], Iterable[tuple[str, Any]]], undo: Callable[[], object] = bool
    ) -> Save:
        """Save a table whose entries are made as it is written. Raises: as `save`."""
        return self._save(lambda: json_table(entries()), undo)

    def save(self, content: object, undo: Callable[[], object] = bool) -> Save:
        """Replace the file, so that a crash leaves the old or the new one.

        Args: content: is not changed any more; undo: takes the change back if the disk refuses.
        Raises: DefinitionsError when the file could not be read before, or the disk refuses at
            once; `undo` is not called then.
        """
        return self._save(lambda: json_text(content), undo)

    def _save(
        self, text: Callable[[], Iterable[str]], undo: Callable[[], object],
        act: Callable[[], object] = bool,
    ) -> Save:  # fmt: skip
        if self._why_unread:
            raise DefinitionsError(f"{self.path} could not be read: {self._why_unread}")
        return self._file.save(text, undo, act=act)

    def _is_damaged(self, data: bytes, why: str) -> None:
        if self._is_needed:
            raise DefinitionsError(f"{self.path}: {why}; {_REMEDY}")
        self._damaged = data
        log.error(
            "%s: %s; it is left as it is until something in it is changed, going on without",
            self.path, why,
        )  # fmt: skip

    def _keep_damaged(self) -> list[tuple[str, Sequence[bytes]]]:
        """Copy what could not be understood, to a name that is free. Raises: OSError."""
        if not self._damaged:
            return []
        first = f"{self.path}.damaged"
        names = chain((first,), (f"{first}.{number}" for number in count(1)))
        copy = next(name for name in names if not os.path.lexists(name))
        write_atomic(copy, self._damaged, self._disk.changes)
        self._damaged = None
        log.warning("%s was damaged and is kept as %s", self.path, os.path.basename(copy))
        return []
