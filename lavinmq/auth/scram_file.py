"""`scram.json`: what users need for SCRAM-SHA-256, beside users.json, in which LavinMQ would not
understand it.

Each entry says for which hash of a password it was made: with another one it does not count, so it
does not matter which of the two files was written last, or who has changed users.json meanwhile. A
file that is damaged costs log-ins by SCRAM and nothing else. Source: docs/formats.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lavinmq.auth import scram
from lavinmq.files.saving import Text, json_list
from lavinmq.files.whole import read_regular

log = logging.getLogger("lmq.user_store")
FILE_NAME: Final = "scram.json"


class Row(NamedTuple):
    """What a user needs. `password_hash`: for which it counts; `keys`: see `scram.parse`."""

    user: str
    password_hash: str
    keys: str


class ScramFile:
    """The file of one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._path = str(data_dir / FILE_NAME)
        self._is_due = False
        self._content: list[bytes] | None = None

    def load(self) -> list[Row]:
        """What is stored, without what makes no sense, which is logged."""
        try:
            entries = json.loads(read_regular(self._path), parse_constant=str)
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:
            log.error("%s: %s: nobody logs in with SCRAM", self._path, error)
            return []
        rows = []
        for entry in entries if isinstance(entries, list) else ():
            try:
                row = Row(*(str(entry[name]) for name in Row._fields))
                scram.parse(row.keys)
            except (KeyError, TypeError, ValueError) as error:
                log.error("%s: an entry is ignored: %r", self._path, error)
            else:
                rows.append(row)
        return rows

    def changed(self) -> None:
        """It is to be replaced."""
        self._is_due = True

    def preparing(self, rows: Iterable[Row]) -> Iterator[None]:
        """Make what `changes` returns next, if anything has changed, in short steps on the loop."""
        self._content = None
        if not self._is_due:
            return
        text = Text()
        for piece in json_list(row._asdict() for row in rows):
            text.add(piece)
            yield
        self._is_due = False
        self._content = text.pieces()

    def changes(self) -> list[tuple[str, Sequence[bytes]]]:
        """Path and pieces of the file, if it is to be replaced; in any thread."""
        return [] if self._content is None else [(self._path, self._content)]
