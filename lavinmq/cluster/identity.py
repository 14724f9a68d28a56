"""What a node keeps of the cluster in its own data directory: its id, and how its files stand.

`.clustering_id` is LavinMQ's file: a number in base 36. `.clustering_state` is ours: whether the
files are whole, and after an orderly stop up to which position they have everything; both are about
this node alone, and are never sent. Source: docs/clustering.md.
"""

from __future__ import annotations

import os
import secrets
from typing import Any, Final

import orjson

from lavinmq.cluster.frames import PeerError
from lavinmq.cluster.history import History
from lavinmq.files.changes import Changes
from lavinmq.files.datadir import DataDirError
from lavinmq.files.whole import read_regular, write_atomic

ID_FILE: Final = ".clustering_id"
STATE_FILE: Final = ".clustering_state"
DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
MAX_ID: Final = 2**31


def base36(number: int) -> str:
    """A number above 0 as LavinMQ writes it."""
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = DIGITS[digit] + digits
    return digits


def node_id(root: str) -> str:
    """The node's id, made by its first start. Raises: OSError, DataDirError."""
    path = os.path.join(root, ID_FILE)
    try:
        text = read_regular(path)[:64].decode("ascii", "replace").strip()
    except FileNotFoundError:
        text = base36(secrets.randbelow(MAX_ID - 1) + 1)
        write_atomic(path, text.encode(), Changes())
    if not text or set(text) - set(DIGITS) or int(text, 36) >= MAX_ID:
        raise DataDirError(f"{path!r} says {text[:20]!r}, which is no id of a node")
    return text


class Standing:
    """How the files of a node stand."""

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, STATE_FILE)
        self.is_whole = True
        """False while they are being replaced: a node that finds that never leads."""
        self.position = 0
        self.history = History()
        """Up to where they have everything; without epochs nobody knows."""

    def load(self) -> None:
        """Read it, and have it say that a stop that is not in order comes next. Raises: OSError."""
        try:
            found: Any = orjson.loads(read_regular(self._path))
        except FileNotFoundError:
            return
        except orjson.JSONDecodeError:
            found = {}
        if not isinstance(found, dict):
            found = {}
        self.is_whole = found.get("whole") is True
        position = found.get("position")
        if self.is_whole and isinstance(position, int) and position > 0:
            try:
                self.history = History.of_json(found.get("history"))
                self.position = position
            except PeerError:
                self.history = History()
        self.note(is_whole=self.is_whole)

    def note(self, *, is_whole: bool, position: int = 0, history: History | None = None) -> None:
        """Write it. Raises: OSError."""
        self.is_whole = is_whole
        value: dict[str, Any] = {"whole": is_whole}
        if position:
            value |= {"position": position, "history": (history or History()).to_json()}
        write_atomic(self._path, orjson.dumps(value), Changes())
