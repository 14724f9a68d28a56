"""Imports a file at the start of a broker, as the setting `load_definitions` asks.

What is there stays as it is; only what is missing is made. A file that was imported before and has
not changed since may be skipped: `load_definitions.sha256` in the data directory has the digest of
the last one. It is written when all that the file has brought is on disk.
Source: docs/configuration.md, docs/definitions.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lavinmq.arguments.bounds import TableBounds
from lavinmq.broker import Broker
from lavinmq.definitions_json.document import Document
from lavinmq.definitions_json.entry import DefinitionsRefused
from lavinmq.definitions_json.plan import Plan
from lavinmq.errors import DefinitionsError, ProtocolError
from lavinmq.files.saving import Disk, at_once
from lavinmq.files.whole import read_regular, write_atomic
from lavinmq.process import log
from lavinmq.vhost.vhost import VHost

DIGEST_FILE: Final = "load_definitions.sha256"
NOBODY: Final = ""
_log = log.get("lmq.definitions")


class BootFile:
    """A file to import, read and checked, with nothing done yet.

    Args: path: of the file; data_dir: the broker's; bounds: of the tables in it;
        skip_if_unchanged: whether one that was imported before is not imported again.
    Raises: DefinitionsError naming the file when it cannot be read or makes no sense.
    """

    def __init__(
        self, path: str, data_dir: Path, bounds: TableBounds, *, skip_if_unchanged: bool
    ) -> None:
        self._path = path
        self._digest_path = str(data_dir / DIGEST_FILE)
        try:
            content = read_regular(path)
        except OSError as error:
            raise DefinitionsError(f"{path}: {error.strerror}") from error
        self._digest = hashlib.sha256(content).hexdigest().encode() + b"\n"
        self.is_unchanged = skip_if_unchanged and self._last_digest() == self._digest
        self._document = Document(bounds=bounds)
        if self.is_unchanged:
            return
        try:
            for _ in self._document.read(content):
                pass
            self._document.refusals.check()
        except DefinitionsRefused as error:
            raise DefinitionsError(f"{path}: {error}") from error

    def apply(self, broker: Broker, disk: Disk) -> None:
        """Make what is missing, before clients are served.

        Args: disk: writes down, later, that it was done.
        Raises: DefinitionsError naming the file.
        """
        self._disk = disk
        if self.is_unchanged:
            _log.info("Definitions in %s are unchanged: not imported", self._path)
            return
        plan = Plan(broker, self._document, NOBODY, keep_existing=True)
        try:
            for _ in plan.check():
                pass
            for step in plan.apply():
                if step is not None:
                    at_once(step)
        except (DefinitionsRefused, ProtocolError) as error:
            raise DefinitionsError(f"{self._path}: {error}") from error
        for place, reason in plan.skipped:
            _log.warning("%s: %s is left out: %s", self._path, place, reason)
        for note in plan.notes:
            _log.warning("%s: %s", self._path, note)
        _log.info(
            "Definitions imported from %s: %d new, %d there already",
            self._path, len(plan.changes), plan.unchanged,
        )  # fmt: skip
        self._remember_when_synced(plan.touched)

    def _remember_when_synced(self, vhosts: Iterable[VHost]) -> None:
        waiting = list(vhosts)
        if not waiting:
            self._remember()

        def synced() -> None:
            waiting.pop()
            if not waiting:
                self._remember()

        for vhost in list(waiting):
            vhost.recorded.when_synced(synced)

    def _remember(self) -> None:
        if self._disk.is_running:
            self._disk.submit(self._write_digest, lambda *_: None)
        else:
            self._write_digest()

    def _write_digest(self) -> None:
        try:
            write_atomic(self._digest_path, self._digest, self._disk.changes)
        except OSError as error:  # the worst that comes of it is another import
            _log.warning("%s: %s", self._digest_path, error.strerror)

    def _last_digest(self) -> bytes:
        try:
            return read_regular(self._digest_path)
        except OSError:
            return b""
