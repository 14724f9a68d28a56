"""Follows the files of a broker by the notes of their changes, into a second directory.

Started as a program it is a broker, with the arguments of one: `python -m tests.support.follower
COPY ...` makes COPY what the data directory is when the broker's files are observed from then on,
and makes each change again there, with the bytes that it reads itself. So it ends as a copy exactly
if every change was noted, in order. `differences` compares.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from pathlib import Path

from lavinmq import _core, broker
from lavinmq.__main__ import main
from lavinmq.files.changes import Change

NOTE = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint8, ctypes.c_char_p, ctypes.c_char_p,
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
)  # fmt: skip
OWN = {".lock", "clean_stop", "schema_version"}
"""Files of the node, which nobody follows."""


class Follower:
    """Makes the changes again below `copy`. What goes wrong is appended to `<copy>.errors`."""

    def __init__(self, copy: Path) -> None:
        self.copy = copy
        self.note = NOTE(self._note)
        self.address = ctypes.cast(self.note, ctypes.c_void_p).value or 0

    def _note(
        self, _: int, position: int, kind: int, path: bytes, target: bytes | None, fd: int,
        told: int | None, start: int, end: int,
    ) -> None:  # fmt: skip
        try:
            if not 0 <= start <= end:
                raise ValueError(f"it begins at {start} and ends at {end}")
            if told is not None and os.pread(fd, end - start, start) != ctypes.string_at(
                told, end - start
            ):
                raise ValueError("the file does not hold what the note says")
            place = self.copy / os.fsdecode(path)
            self._make_again(
                Change(kind), place, self.copy / os.fsdecode(target or b""), fd, start, end
            )
        except (OSError, ValueError) as error:
            with open(f"{self.copy}.errors", "a") as file:
                file.write(f"{position} {Change(kind).name} {path!r} {target!r}: {error}\n")

    def _make_again(
        self, kind: Change, path: Path, target: Path, fd: int, start: int, end: int
    ) -> None:
        match kind:
            case Change.MAKE:
                path.touch()
            case Change.APPEND | Change.PATCH:
                with open(path, "r+b", buffering=0) as file:
                    data = os.pread(fd, end - start, start)
                    os.pwrite(file.fileno(), data, start)
            case Change.TRUNCATE:
                os.truncate(path, end)
            case Change.HOLE:
                with open(path, "r+b", buffering=0) as file:
                    os.pwrite(file.fileno(), bytes(end - start), start)
            case Change.RENAME:
                path.rename(target)
            case Change.REMOVE:
                path.unlink()
            case Change.MAKE_DIRECTORY:
                path.mkdir()
            case Change.REMOVE_DIRECTORY:
                path.rmdir()


def differences(data_dir: Path, copy: Path) -> list[str]:
    """What a copy has otherwise than a data directory, and what went wrong on the way."""
    errors = Path(f"{copy}.errors")
    found = errors.read_text().splitlines() if errors.exists() else []
    here, there = _tree(data_dir), _tree(copy)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            sizes = [len(each) if each is not None else None for each in
                     (here.get(name), there.get(name))]  # fmt: skip
            state = "only here" if name not in there else (
                "only there" if name not in here else "differs"
            )  # fmt: skip
            found.append(f"{name}: {state}, bytes: {sizes}")
    return found


def _tree(root: Path) -> dict[str, bytes | None]:
    """Names and contents, of directories None."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if str(path.relative_to(root)) not in OWN
    }


def follow(copy: Path) -> None:
    """Have the broker of this process followed, once it has its loop."""
    made = broker.Broker.__init__

    def make(self: broker.Broker, *args: object, **others: object) -> None:
        made(self, *args, **others)  # type: ignore[arg-type]
        root = Path(self.config.data_dir)
        if not copy.exists():
            shutil.copytree(root, copy)
        _core.observe(self.loop, str(root), follower.address)

    follower = Follower(copy)
    broker.Broker.__init__ = make  # type: ignore[method-assign]


if __name__ == "__main__":
    follow(Path(sys.argv.pop(1)))
    sys.exit(main())
