"""Changes of an archive that happen once, whatever stops the job in between.

An archive is a directory of Parquet files. A *change* adds files and removes others. Its files are
written below `_lavinmq/<writer>/`, where no reader looks; then `changes/<number>.json` appears,
which says what is moved and removed; then that is done; then `<number>.done` appears. So a job that
starts finds nothing of a change, or all of it and does the rest. A reader never sees a message
twice because of a restart, and needs no list of valid files.

A writer is a checkpoint, or a kind of job. Two runs of one writer at a time harm nobody: the number
of a change can be taken once, and the run that comes second fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from lavinmq.pipeline.errors import PipelineError
from lavinmq.pipeline.files import File, Files

PRIVATE = "_lavinmq"
SUFFIX = ".parquet"
KEPT_CHANGES = 10
SUCCESS = "_SUCCESS"
"""What Spark leaves in a directory that it has written whole."""


class Ledger:
    """The changes that one writer makes to an archive. The numbers of changes only grow."""

    def __init__(self, archive: Files, writer: str) -> None:
        self._files = archive
        self._home = f"{PRIVATE}/{writer}"
        self._changes = f"{self._home}/changes"
        self._staged = ""

    def last(self) -> int:
        """Return the number of the last change that was begun; -1 before the first one."""
        return max(self._numbers(".json"), default=-1)

    def is_pending(self) -> bool:
        """Say whether a change has begun that is not done."""
        done = self._numbers(".done")
        return any(number not in done for number in self._numbers(".json"))

    def settle(self) -> None:
        """Do what is left of a change that an earlier run began, and clear what it gave up."""
        done = self._numbers(".done")
        for number in sorted(self._numbers(".json") - done):
            self._do(number)
        for name in self._files.names(self._home):
            if name.startswith("staged-"):
                self._files.delete(f"{self._home}/{name}")

    def begin(self) -> str:
        """Return a new directory, as a URL, that Spark shall write the files of a change to."""
        self._staged = f"{self._home}/staged-{uuid4().hex[:12]}"
        return f"{self._files.root}/{self._staged}"

    def publish(
        self, number: int, prefix: str, *, directory: str = "", remove: Iterable[str] = ()
    ) -> Sequence[File]:
        """Put what was written since `begin` below a directory of the archive, and remove files.

        The files are named after `prefix`, which no other change may use. Returns them, by their
        new paths. Raises: PipelineError, also when another run has taken the number.
        """
        if not self._files.exists(f"{self._staged}/{SUCCESS}"):
            raise PipelineError(f"{self._files.root}: {self._staged} is not whole; another run?")
        pairs: list[tuple[str, str]] = []
        added = []
        for file in self._files.walk(self._staged):
            if not file.path.endswith(SUFFIX):
                continue
            below, _, name = file.path.removeprefix(f"{self._staged}/").rpartition("/")
            # part-00000-<uuid>.c000.zstd.parquet: behind the second dot it says how it is packed.
            ending = name.split(".", 2)[-1]
            path = "/".join(filter(None, (directory, below, f"{prefix}-{len(pairs):05}.{ending}")))
            pairs.append((file.path, path))
            added.append(File(path, file.size))
        self._files.sync(staged for staged, _ in pairs)  # once the change is said, it is done
        change = {"staged": self._staged, "add": pairs, "remove": list(remove)}
        name = f"{self._changes}/{number:09}.json"
        if not self._files.write(name, json.dumps(change), replace=False):
            raise PipelineError(f"{self._files.root}: another run has made change {number}")
        self._do(number)
        return added

    def _do(self, number: int) -> None:
        name = f"{self._changes}/{number:09}"
        change: dict[str, Any] = json.loads(self._files.read(f"{name}.json") or "{}")
        for staged, path in change["add"]:
            # Moved already, by a run that was stopped or by one beside us: then it is there.
            if not self._files.move(staged, path) and not self._files.exists(path):
                raise PipelineError(f"{self._files.root}: {path} is missing, and so is its copy")
        if change["remove"]:
            self._files.sync(path for _, path in change["add"])
        for path in change["remove"]:
            self._files.delete(path)
        self._files.write(f"{name}.done", "")
        self._files.delete(change["staged"])
        for old in self._numbers(".done"):
            if old <= number - KEPT_CHANGES:
                self._files.delete(f"{self._changes}/{old:09}.json")
                self._files.delete(f"{self._changes}/{old:09}.done")

    def _numbers(self, ending: str) -> set[int]:
        names = self._files.names(self._changes)
        found = (name.removesuffix(ending) for name in names if name.endswith(ending))
        return {int(name) for name in found if name.isdecimal()}


def data_files(archive: Files) -> list[File]:
    """Return the files of an archive that hold messages."""
    return [
        file for file in archive.walk()
        if file.path.endswith(SUFFIX) and not is_private(file.path)
    ]  # fmt: skip


def is_private(path: str) -> bool:
    """Say whether readers of Parquet leave out a path: a part of it begins with `_` or a dot."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))
