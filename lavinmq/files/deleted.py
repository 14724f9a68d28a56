"""Directories of deleted queues: they go once the deletion is on disk, beside the loop.

Until then a loss of power brings the queue back, which has to have its messages. First a directory
gets a name that no start takes for that of a queue, in the order in which new ones are made; then
it is removed. What still has its name is known here: who needs that name has it set aside. Called
by `vhost/queue_files.py`, on the loop thread.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from lavinmq.files.directories import hashed, remove_tree, set_aside
from lavinmq.files.saving import Disk
from lavinmq.process.log import Log

DOOMED: Final = ".deleted-"
"""In the name of a directory that goes: no start takes it for that of a queue or virtual host."""

_QUEUE: Final = re.compile(f"[0-9a-f]{{40}}({re.escape(DOOMED)}.*)?", re.DOTALL)


class DeletedFiles:
    """What is left of the deleted queues of one virtual host.

    Args: directory: of the virtual host; disk: whose threads work; log: that of the host.
    """

    def __init__(self, directory: Path, disk: Disk, log: Log) -> None:
        self._directory = directory
        self._disk = disk
        self._log = log
        self._waiting: dict[str, Callable[[], object]] = {}  # to be on disk
        self._named: dict[str, OSError | None] = {}
        """What no queue has, and may have its name; the error that has kept one from being set
        aside, until that is told."""

    def add(self, path: str, renamed: Callable[[], object] = bool) -> Callable[[], None]:
        """A queue was deleted. Args: renamed: is called when its directory has lost its name.
        Returns: to be called once the deletion is on disk."""
        self._named[path] = None
        deletion = self._waiting[path] = partial(renamed)  # no other one is the same
        return partial(self._recorded, path, deletion)

    def make_way(self, path: str) -> None:
        """A new queue is going to have this directory: it must not find what is to be removed."""
        if path in self._waiting:
            self._recorded(path, self._waiting[path])

    def is_named(self, path: str) -> bool:
        """Whether the directory of a deleted queue may have its name. Raises: OSError, once, saying
        why it could not be set aside."""
        if path not in self._named:
            return False
        error, self._named[path] = self._named[path], None
        if error is not None:
            raise error
        return True

    def set_aside(self, path: str, done: Callable[[Path | None], object]) -> None:
        """Have the directory of a deleted queue lose its name, beside the loop. Args: done: hears
        where it is now, None if there is nothing; `is_named` says what has come of it."""
        self.make_way(path)
        aside = partial(set_aside, Path(path), self._disk.changes)
        self._disk.names.add(aside, partial(self._set_aside, path, done))

    def forget_name(self, path: str) -> None:
        """It has lost its name, or a queue has it."""
        self._named.pop(path, None)

    def remove_left(self, queues: Iterable[str]) -> None:
        """At the start: remove what a crash has left without a name, and know what it has left with
        one. Args: queues: names of those there are."""
        found = set(filter(_QUEUE.fullmatch, os.listdir(self._directory)))
        found.difference_update(map(hashed, queues))
        for name in found:
            path = f"{self._directory}/{name}"
            if DOOMED in name:
                self.remove(Path(path))
            else:
                self._named[path] = None

    def remove(self, doomed: Path) -> None:
        """Remove what has lost its name; what cannot be stays until the next start."""
        self._disk.removals.add(partial(remove_tree, doomed, self._disk.changes), self._removed)

    def finish(self) -> None:
        """All deletions are on disk, and nobody is served any more. Raises: OSError."""
        while self._waiting:
            remove_tree(Path(self._waiting.popitem()[0]), self._disk.changes)

    def forget(self) -> None:
        """Nothing is removed from now on."""
        self._waiting.clear()
        self._named.clear()

    def _recorded(self, path: str, deletion: Callable[[], object]) -> None:
        if self._waiting.get(path) is not deletion:
            return  # a queue that was made meanwhile has had them removed
        del self._waiting[path]
        doomed = f"{path}{DOOMED}{time.time_ns()}"
        rename = partial(self._disk.changes.rename, path, doomed)
        renamed = partial(self._renamed, path, doomed, deletion)
        self._disk.names.add(rename, renamed)

    def _renamed(
        self, path: str, doomed: str, renamed: Callable[[], object], _: None, error: OSError | None
    ) -> None:
        if error is not None and not isinstance(error, FileNotFoundError):
            self._log.error("files of a deleted queue stay in %s: %s", path, error)
            return
        self.forget_name(path)
        if error is None:
            renamed()
            self.remove(Path(doomed))

    def _set_aside(
        self, path: str, done: Callable[[Path | None], object], aside: Path | None,
        error: OSError | None,
    ) -> None:  # fmt: skip
        if error is None:
            self.forget_name(path)
        else:
            self._named[path] = error
        done(aside)

    def _removed(self, _: None, error: OSError | None) -> None:
        if error is not None:
            self._log.error("files of a deleted queue stay until the next start: %s", error)
