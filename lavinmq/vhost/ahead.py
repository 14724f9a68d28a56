"""What a node that may lead one day has read of a virtual host ahead, and whether it is still so.

Another node's changes come to the files while they are read, and afterwards. So each thing is noted
with a position of the log of changes that was taken before it was read: what has changed behind it
is read again before anybody is served. Source: decision 0149.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from lavinmq.files.definitions import Reader
from lavinmq.files.directories import hashed

if TYPE_CHECKING:
    from lavinmq.files.definitions import News
    from lavinmq.process.log import Line
    from lavinmq.vhost.queue import Queue

DEFINITIONS: Final = "definitions.amqp"
RULES: Final = ("policies.json", "operator_policies.json", "parameters.json", "limits.json")
"""Those beside definitions and the directories of queues by which a virtual host is what it is.
What else there is, is read when it is opened."""


class Place(NamedTuple):
    """Tells of the log of changes."""

    position: Callable[[], int]
    """Up to where all that was changed is in the files."""
    is_same: Callable[[str, int], bool]
    """Whether nothing behind a position has changed what is there: see `_cluster.Ring.is_same`."""


class Ahead:
    """What was read of one virtual host: its definitions, and the queues that are ready.

    Args: directory: of the virtual host. In a thread. Raises: DefinitionsError: they cannot be read
        as they are.
    """

    def __init__(self, directory: Path, place: Place) -> None:
        self.ruled_at = self.defined_at = place.position()
        self._is_half = False
        """Whether it is between two states of its definitions."""
        self.steps: Iterator[object] = iter(())
        """What is left to do of that."""
        self.place = place
        self.directory = directory
        self._name = directory.name
        self.queues: dict[Queue, int] = {}
        """Those that are loaded, and closed, with the position before each was read."""
        self._at = 0
        self.tried: dict[Queue, int] = {}
        """Those that were not as they should be, and when."""
        self.n_ready = 0
        """How many were ready when that was looked at last."""
        self.lines: list[Line] = []
        """What there is to say of it once it is served."""
        self.definitions = Reader(directory / DEFINITIONS)
        for name in RULES:  # so that the loop need not wait for the disk
            _warm(f"{directory}/{name}")

    @property
    def is_so(self) -> bool:
        """Whether the files of the virtual host itself are as they were."""
        definitions = f"{self._name}/{DEFINITIONS}"
        return self.place.is_same(definitions, self.defined_at) and self._is_ruled_so

    @property
    def _is_ruled_so(self) -> bool:
        """The same of policies, limits and parameters."""
        is_same = self.place.is_same
        return all(is_same(f"{self._name}/{file}", self.ruled_at) for file in RULES)

    def begin(self) -> bool:
        """Somebody is going to make up for what is defined since. Returns: False: all has to be
        read anew, also because the last one who has begun has not come to the end."""
        if self._is_half or not self._is_ruled_so:
            return False
        self._is_half = True
        self._at = self.place.position()
        return True

    def news(self) -> list[News] | None:
        """What was defined since it was read; None: all has to be read anew. After `begin`, in a
        thread. Raises: OSError."""
        return self.definitions.news()

    def end(self) -> None:
        """All news came to what stands ready."""
        self.defined_at, self._is_half = self._at, False

    @property
    def is_whole(self) -> bool:
        """The same of the definitions' length, by asking the disk."""
        try:
            return os.stat(self.directory / DEFINITIONS).st_size == self.definitions.size
        except OSError:
            return False

    def forget(self, queue: Queue) -> None:
        """The queue is gone."""
        self.queues.pop(queue, None)
        self.tried.pop(queue, None)

    def close(self) -> None:
        """Let go of files. Idempotent."""
        self.definitions.close()

    def has(self, queue: Queue) -> bool:
        """Whether a queue is ready, and its files are as they were."""
        at = self.queues.get(queue)
        return at is not None and self.rests(queue, at)

    def is_news(self, queue: Queue, since: int) -> bool:
        """Whether a queue that is not ready is to be read: it has changed since that was tried, and
        rests since a position."""
        tried = self.tried.get(queue)
        return self.rests(queue, since) and (tried is None or not self.rests(queue, tried))

    def rests(self, queue: Queue, since: int) -> bool:
        """Whether nothing behind a position has changed the files of a queue."""
        return self.place.is_same(f"{self._name}/{hashed(queue.name)}", since)


def warm(directories: list[str]) -> None:
    """Read what queues are loaded from, in a thread: the kernel keeps it for who comes next. What
    cannot be read is left to that one."""
    for directory in directories:
        _warm_queue(directory)


def _warm_queue(directory: str) -> None:
    newest = ""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("msgs."):
                    newest = max(newest, entry.name)
                elif entry.name.startswith(("acks.", "meta.")) or entry.name == "deliveries":
                    _warm(entry.path)
                elif entry.name.startswith("prio.") and entry.is_dir(follow_symlinks=False):
                    _warm_queue(entry.path)
    except OSError:
        return
    if newest:
        _warm(f"{directory}/{newest}")


def _warm(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return
    try:
        while os.read(fd, 1 << 20):
            pass
    except OSError:
        pass
    finally:
        os.close(fd)
