"""`.clustering_state`: how the files of a node of a cluster stand, which is about this node alone.

It says of which cluster they are, whether they are whole, whether some are damaged, and after an
orderly stop up to which position of the cluster's changes they have everything. While the node
follows it says now and then up to where they have at least everything, which is what there is to go
by after a crash. A broker that is no node of a cluster changes files without telling anybody: it
takes the positions out. What an epoch is, `lavinmq/cluster/` knows.
Source: docs/clustering.md.
"""

from __future__ import annotations

import os
import threading
from typing import Any, Final

import orjson

from lavinmq.files.changes import Changes
from lavinmq.files.datadir import DataDirError
from lavinmq.files.whole import read_regular, write_atomic

STATE_FILE: Final = ".clustering_state"


class Standing:
    """How the files stand. Its methods raise OSError. From any thread."""

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, STATE_FILE)
        self._lock = threading.Lock()
        self.is_whole = True
        """False while they are being replaced: a node that finds that never leads."""
        self.is_damaged = False
        """Whether some are known to be damaged, or missing: they come anew from who leads."""
        self.position = 0
        """Up to where they have everything; 0: nobody knows."""
        self.history: Any = None
        """The epochs that belong to the position, as they were noted."""
        self.at_least: tuple[int, int] | None = None
        """An epoch, and a position up to which they have everything: what they have of later
        changes nobody knows, but all of those are of that epoch."""
        self.cluster = ""
        """Of which cluster they are; empty: nobody knows."""
        self._is_over = False

    @property
    def is_good(self) -> bool:
        """Whether they are whole, and none is known to be damaged."""
        return self.is_whole and not self.is_damaged

    def load(self) -> bool:
        """Read it, and have it say that a stop that is not in order comes next.

        Returns: whether there was any.
        """
        try:
            found: Any = orjson.loads(read_regular(self._path))
        except FileNotFoundError:
            return False
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            found = {}
        self.is_damaged = found.get("damaged") is True
        cluster = found.get("cluster")
        self.cluster = cluster if isinstance(cluster, str) else ""
        position = found.get("position")
        if found.get("whole") is True and isinstance(position, int) and position > 0:
            self.position, self.history = position, found.get("history")
        self.note(is_whole=found.get("whole") is True)
        least = found.get("at_least")
        if self.is_whole and isinstance(least, list) and [type(n) for n in least] == [int, int]:
            self.note_progress(*least)
        return True

    def note(self, *, is_whole: bool, position: int = 0, history: Any = None) -> None:
        """Write it."""
        with self._lock:
            self.is_whole = is_whole
            value = self._value()
            if position:
                value |= {"position": position, "history": history}
            self.at_least, self._is_over = None, bool(position)
            write_atomic(self._path, orjson.dumps(value), Changes())

    def note_progress(self, epoch: int, position: int) -> None:
        """Write up to where they have at least everything, on disk, if they are whole.

        Args: epoch: the one in which the node has followed since it had that, and still does."""
        with self._lock:
            if not self.is_whole or self._is_over:
                return
            value = self._value() | {"at_least": [epoch, position]}
            self.at_least = epoch, position
            write_atomic(self._path, orjson.dumps(value), Changes())

    def _value(self) -> dict[str, Any]:
        """What is always written."""
        value: dict[str, Any] = {"whole": self.is_whole}
        if self.is_damaged:
            value["damaged"] = True
        if self.cluster:
            value["cluster"] = self.cluster
        return value

    def note_cluster(self, cluster: str) -> None:
        """Write of which cluster they are; what else was known stays."""
        if self.cluster != cluster:
            self.cluster = cluster
            if self.at_least is not None:
                self.note_progress(*self.at_least)
            else:
                self.note(is_whole=self.is_whole)

    def note_damage(self, *, is_damaged: bool) -> None:
        """Write that some are damaged, or not any more; what else was known stays."""
        if self.is_damaged != is_damaged:
            self.is_damaged = is_damaged
            self.note(is_whole=self.is_whole)


def leave_cluster(root: str) -> None:
    """A broker that is no node begins to change the files. Raises: OSError; DataDirError when they
    are between two states."""
    standing = Standing(root)
    is_known = standing.load()
    if standing.at_least is not None:
        standing.note(is_whole=True)
    if is_known and not standing.is_whole:
        raise DataDirError(
            f"Data directory {root!r}: its files were being replaced by those of a leader, and are"
            " not whole. Start it as a node of its cluster, or restore a backup",
            is_lasting=True,
        )
