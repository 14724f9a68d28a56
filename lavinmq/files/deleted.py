"""Directories of deleted queues: they go once the deletion is on disk, in portions.

Until then a loss of power brings the queue back, which has to have its messages. Called by
`vhost/queue_files.py`, on the loop thread.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from lavinmq.files.changes import Changes
from lavinmq.files.directories import removal, remove_tree
from lavinmq.process.log import Log
from lavinmq.process.portions import Portions

DOOMED: Final = ".deleted-"
"""In the name of a directory that goes: no start takes it for that of a queue or virtual host."""


class DeletedFiles:
    """What is left of the deleted queues of one virtual host.

    Args: directory: of the virtual host; portions: in which it works; log: that of the host.
    """

    def __init__(self, directory: Path, portions: Portions, log: Log, changes: Changes) -> None:
        self._directory = directory
        self._portions = portions
        self._log = log
        self._changes = changes
        self._waiting: dict[Path, object] = {}

    def add(self, path: Path) -> Callable[[], None]:
        """A queue was deleted. Returns: to be called once that is on disk."""
        deletion = self._waiting[path] = object()
        return partial(self._recorded, path, deletion)

    def make_way(self, path: Path) -> None:
        """A new queue is going to have this directory: it must not find what is to be removed."""
        if path in self._waiting:
            self._recorded(path, self._waiting[path])

    def remove_left(self) -> None:
        """At the start: remove what a crash has left."""
        for path in self._directory.glob("[0-9a-f]" * 40 + DOOMED + "*"):
            self._portions.begin(self._removal(path))

    def finish(self) -> None:
        """All deletions are on disk, and nobody is served any more. Raises: OSError."""
        while self._waiting:
            remove_tree(self._waiting.popitem()[0], self._changes)

    def forget(self) -> None:
        """Nothing is removed from now on."""
        self._waiting.clear()

    def _recorded(self, path: Path, deletion: object) -> None:
        if self._waiting.get(path) is not deletion:
            return  # a queue that was made meanwhile has had them removed
        del self._waiting[path]
        doomed = path.with_name(f"{path.name}{DOOMED}{time.time_ns()}")
        try:
            self._changes.rename(path, doomed)
        except FileNotFoundError:
            return
        except OSError as error:
            self._log.error("files of a deleted queue stay in %s: %s", path, error)
            return
        self._portions.begin(self._removal(doomed))

    def _removal(self, path: Path) -> Iterator[None]:
        try:
            yield from removal(path, self._changes)
        except OSError as error:
            self._log.error("files of a deleted queue stay until the next start: %s", error)
