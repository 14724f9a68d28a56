"""Directories of deleted queues: they go once the deletion is on disk, beside the loop.

Until then a loss of power brings the queue back, which has to have its messages. First a directory
gets a name that no start takes for that of a queue, in the order in which new ones are made; then
it is removed. Called by `vhost/queue_files.py`, on the loop thread.
"""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from lavinmq.files.directories import matching, remove_tree
from lavinmq.files.saving import Disk
from lavinmq.process.log import Log

DOOMED: Final = ".deleted-"
"""In the name of a directory that goes: no start takes it for that of a queue or virtual host."""

_LEFT: Final = re.compile(f"[0-9a-f]{{40}}{re.escape(DOOMED)}.*", re.DOTALL)


class DeletedFiles:
    """What is left of the deleted queues of one virtual host.

    Args: directory: of the virtual host; disk: whose threads work; log: that of the host.
    """

    def __init__(self, directory: Path, disk: Disk, log: Log) -> None:
        self._directory = directory
        self._disk = disk
        self._log = log
        self._waiting: dict[str, object] = {}  # to be on disk

    def add(self, path: str) -> Callable[[], None]:
        """A queue was deleted. Returns: to be called once that is on disk."""
        deletion = self._waiting[path] = object()
        return partial(self._recorded, path, deletion)

    def make_way(self, path: str) -> None:
        """A new queue is going to have this directory: it must not find what is to be removed."""
        if path in self._waiting:
            self._recorded(path, self._waiting[path])

    def remove_left(self) -> None:
        """At the start: remove what a crash has left."""
        for path in matching(self._directory, _LEFT):
            self.remove(path)

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

    def _recorded(self, path: str, deletion: object) -> None:
        if self._waiting.get(path) is not deletion:
            return  # a queue that was made meanwhile has had them removed
        del self._waiting[path]
        doomed = f"{path}{DOOMED}{time.time_ns()}"
        rename = partial(self._disk.changes.rename, path, doomed)
        renamed = partial(self._renamed, path, doomed)
        self._disk.names.add(rename, renamed)

    def _renamed(self, path: str, doomed: str, _: None, error: OSError | None) -> None:
        if error is None:
            self.remove(Path(doomed))
        elif not isinstance(error, FileNotFoundError):
            self._log.error("files of a deleted queue stay in %s: %s", path, error)

    def _removed(self, _: None, error: OSError | None) -> None:
        if error is not None:
            self._log.error("files of a deleted queue stay until the next start: %s", error)
