"""Which files are damaged: a list that survives a restart, in `.sums/damage`.

From any thread. Source: docs/integrity.md.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any, Final, NamedTuple

import orjson

from lavinmq.files.changes import Changes
from lavinmq.files.whole import write_atomic
from lavinmq.integrity.shelves import HOME
from lavinmq.integrity.sums import BLOCK
from lavinmq.process import log

FILE: Final = "damage"
KINDS: Final = {
    "differs": "its content is not what was written",
    "short": "bytes at its end are gone",
    "missing": "it is gone",
    "unreadable": "the disk does not give its content",
    "changed": "it was changed while no broker was running",
}
MOST: Final = 10_000
"""Files that are remembered."""
_log = log.get("lmq.integrity")


class Damage(NamedTuple):
    """One file. Args: kind: a key of `KINDS`; blocks: those that differ, of 64 KiB; at: Unix time
    at which it was found."""

    path: str
    kind: str
    blocks: tuple[int, ...]
    at: float

    @property
    def text(self) -> str:
        """What is wrong, for people."""
        if not self.blocks:
            return KINDS[self.kind]
        first, more = self.blocks[0] * BLOCK, len(self.blocks) - 1
        others = f", and in {more} more" if more else ""
        return f"{KINDS[self.kind]}, in the {BLOCK} bytes from {first} on{others}"

    def to_json(self) -> dict[str, Any]:
        """As the API shows it."""
        return {
            "path": self.path, "kind": self.kind, "reason": self.text,
            "blocks": list(self.blocks), "found_at": round(self.at, 3),
        }  # fmt: skip


class Damages:
    """All of one data directory."""

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, HOME, FILE)
        self._lock = threading.Lock()
        self._found: dict[str, Damage] = {}
        self._is_saved = True
        with suppress(OSError, ValueError, TypeError, KeyError):
            with open(self._path, "rb", buffering=0) as file:
                rows = orjson.loads(file.read())
            for row in rows:
                each = Damage(row["path"], row["kind"], tuple(row["blocks"]), row["found_at"])
                if each.kind in KINDS:
                    self._found[each.path] = each

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, path: str) -> bool:
        return path in self._found

    def all(self) -> list[Damage]:
        """By their paths."""
        with self._lock:
            return sorted(self._found.values())

    def add(self, path: str, kind: str, blocks: tuple[int, ...] = ()) -> Damage | None:
        """A file is damaged, whether or not the disk has room for saying so. Returns: what is to be
        told of it, None if that was known."""
        with self._lock:
            known = self._found.get(path)
            if known is not None and known.blocks == blocks and known.kind in (kind, "changed"):
                new = known
            elif known is None and len(self._found) >= MOST:
                return None
            else:
                self._found[path] = new = Damage(path, kind, blocks, time.time())
                self._is_saved = False
            if not self._is_saved:
                try:
                    self._save()
                except OSError as error:
                    _log.error("damage could not be noted: %s", error)
        return new if known is None else None

    def drop(self, *paths: str) -> None:
        """Files are damaged no more. Raises: OSError."""
        with self._lock:
            if sum(self._found.pop(path, None) is not None for path in paths):
                self._save()

    def before(self, at: float) -> list[Damage]:
        """All that was found before a time."""
        return [each for each in self.all() if each.at < at]

    def _save(self) -> None:
        rows = [each.to_json() for each in self._found.values()]
        write_atomic(self._path, orjson.dumps(rows), Changes())
        self._is_saved = True
