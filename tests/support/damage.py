"""Damage of stored files for tests: who knows what of them, and what harms them.

Files are changed by plain writes, which change their times, or as a disk does, which does not.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

from tests.support.api import Api, Managed
from tests.support.waiting import wait_for

WAIT_S = 60.0


def stored(data_dir: Path) -> Iterator[Path]:
    """All files that have to have sums."""
    for path in sorted(data_dir.rglob("*")):
        below = path.relative_to(data_dir)
        own = below.parts[0].startswith(".") or below.name in ("clean_stop", "schema_version")
        if path.is_file() and not own and "transient" not in below.parts:
            yield path


def known(data_dir: Path) -> dict[str, int]:
    """How many bytes of each file have sums."""
    found = {}
    home = data_dir / ".sums" / "files"
    for shelf in home.rglob("sums.*"):
        if shelf.suffix != ".tmp":
            directory = shelf.parent.relative_to(home)
            for name, value in json.loads(shelf.read_bytes()[9:]).items():
                found[str(directory / name)] = value[0]
    return found


def verify(broker: Managed) -> list[str]:
    """Have a broker read all its files. Returns: those that are damaged."""
    api = Api(broker)
    number = api("POST", "/api/integrity/verify").json["number"]
    wait_for(lambda: api.get("/api/integrity")["verified"] >= number, "no pass ends", WAIT_S)
    return [each["path"] for each in api.get("/api/integrity")["damaged_files"]]


def know_all(broker: Managed, data_dir: Path) -> None:
    """Wait until all of the files of a broker have sums: they have to be at rest for that."""

    def is_done() -> bool:
        assert verify(broker) == []
        return is_known(data_dir)

    wait_for(is_done, "some files have no sums", WAIT_S)


def is_known(data_dir: Path) -> bool:
    """Whether all files have sums up to their ends, segments up to that of their data."""
    try:
        sizes = {str(each.relative_to(data_dir)): each.stat().st_size for each in stored(data_dir)}
        sums = known(data_dir)
    except (FileNotFoundError, ValueError):
        return False
    return bool(sizes) and all(
        sums.get(name, -1) > 4 if "/msgs." in name and sums.get(name) != size
        else sums.get(name) == size
        for name, size in sizes.items()
    )  # fmt: skip


def flip(path: Path, at: int, *, keeps_time: bool = False) -> None:
    """Change a byte of a file. Args: keeps_time: as a disk does."""
    times = path.stat()
    with path.open("r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, at)
        os.pwrite(file.fileno(), bytes([byte[0] ^ 0x20]), at)
    if keeps_time:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def harm(data_dir: Path, seed: int, *, keeps_time: bool = False) -> list[str]:
    """Flip, cut or remove in nearly every file. Returns: those that were harmed."""
    chance = random.Random(seed)
    harmed = []
    for path in stored(data_dir):
        size = path.stat().st_size
        kind = chance.choice(["flip", "flip", "cut", "remove"])
        if size == 0 or kind == "remove":
            path.unlink()
        elif kind == "cut":
            os.truncate(path, chance.randrange(size))
        else:
            for _ in range(chance.randint(1, 3)):
                flip(path, chance.randrange(size), keeps_time=keeps_time)
        harmed.append(str(path.relative_to(data_dir)))
    return harmed
