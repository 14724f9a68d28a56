"""`vhosts.json`: the names of the virtual hosts and what is said about them.

Read once at the start, written whenever a virtual host comes or goes. Only the name is needed to
load one; its directory always follows from the name, the stored one is for humans and tools.
When the file is missing or damaged, the names are found in the directories: losing this small file
must not hide all queues. Source: docs/formats.md.
"""

import errno
import hashlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lavinmq.errors import DefinitionsError
from lavinmq.files.saving import Disk, SavedFile, json_list
from lavinmq.files.whole import read_regular, write_atomic

log = logging.getLogger("lmq.vhost_store")

FILE_NAME: Final = "vhosts.json"
DEFAULT_VHOST: Final = "/"


@dataclass(frozen=True, slots=True)
class VHostDef:
    """A virtual host as stored."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        """The name of its directory: SHA-1 of the name, lower-case hex."""
        raw = self.name.encode("utf-8", "surrogateescape")
        return hashlib.sha1(raw, usedforsecurity=False).hexdigest()


def load(data_dir: Path, create_default: bool = True, disk: Disk | None = None) -> list[VHostDef]:
    """Read the file; if there is none, make one with `/`, or with nothing.

    A damaged file is kept as `vhosts.json.damaged` and made anew of what can be read in it and of
    the directories that are there.
    Raises: DefinitionsError naming the file when it cannot be read or written.
    """
    path = data_dir / FILE_NAME
    disk = disk or Disk()
    try:
        data = read_regular(str(path))
        vhosts = _parse(path, data)
    except FileNotFoundError:
        vhosts, damage, data = [], "", b""
    except _DamagedError as error:
        vhosts, damage = error.readable, str(error)
    except OSError as error:
        raise DefinitionsError(f"{path}: {error.strerror}") from error
    else:
        return vhosts
    vhosts = list({vhost.name: vhost for vhost in [*_found(data_dir), *vhosts]}.values())
    if not vhosts and (create_default or damage):
        vhosts = [VHostDef(DEFAULT_VHOST)]
    if damage:
        log.error("%s; kept as %s.damaged, found: %s", damage, FILE_NAME, [v.name for v in vhosts])
        _keep(path, data, disk)
    save(data_dir, vhosts, disk)
    return vhosts


def read(data_dir: Path) -> list[VHostDef]:
    """The virtual hosts of a file that somebody else writes. Raises: DefinitionsError."""
    path = data_dir / FILE_NAME
    try:
        return _parse(path, read_regular(str(path)))
    except OSError as error:
        raise DefinitionsError(f"{path}: {error.strerror}") from error
    except _DamagedError as error:
        raise DefinitionsError(str(error)) from error


def save(data_dir: Path, vhosts: Iterable[VHostDef], disk: Disk) -> None:
    """Write the file atomically. Raises: DefinitionsError when the disk refuses."""
    SavedFile(data_dir / FILE_NAME, disk).save(lambda: text(vhosts))


def text(vhosts: Iterable[VHostDef]) -> Iterator[str]:
    """The file, piece by piece."""
    return json_list(map(as_json, vhosts))


class _DamagedError(Exception):
    """The file, or a part of it, makes no sense. `readable`: the virtual hosts that do."""

    def __init__(self, text: str, readable: Iterable[VHostDef] = ()) -> None:
        super().__init__(text)
        self.readable = list(readable)


def _found(data_dir: Path) -> list[VHostDef]:
    """The virtual hosts whose directories are there, by the name noted in each. Raises:
    DefinitionsError."""
    found = []
    for path in sorted(data_dir.glob("*/.vhost")):
        try:
            name = read_regular(str(path)).decode("utf-8", "surrogateescape")
        except OSError as error:
            if error.errno != errno.EINVAL:  # the disk does not say: it must not be forgotten
                raise DefinitionsError(f"{path}: {error.strerror}") from error
            log.warning("%s: %s", path, error.strerror)
            continue
        if VHostDef(name).directory == path.parent.name:
            found.append(VHostDef(name))
    return found


def _keep(path: Path, data: bytes, disk: Disk) -> None:
    """Keep a copy of a damaged file. Raises: DefinitionsError when the disk refuses."""
    try:
        write_atomic(f"{path}.damaged", data, disk.changes)
    except OSError as error:
        raise DefinitionsError(f"{path}.damaged: {error.strerror}") from error


def as_json(vhost: VHostDef) -> dict[str, Any]:
    """A virtual host as JSON, in this file and in definitions; the parts we have no use for are
    there for other readers."""
    return {
        "name": vhost.name,
        "dir": vhost.directory,
        "tracing": False,
        "tags": list(vhost.tags),
        "description": vhost.description,
        "cluster_state": {},
    }


def _parse(path: Path, data: bytes) -> list[VHostDef]:
    """The virtual hosts of a file; of two with one name the later counts. Raises: _DamagedError."""
    import json

    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise _DamagedError(f"{path}: not a list of virtual hosts")
    vhosts = {vhost.name: vhost for vhost in map(_vhost, entries) if vhost is not None}
    nameless = [str(number) for number, entry in enumerate(entries, 1) if _vhost(entry) is None]
    if nameless:
        damage = f"{path}: virtual host {', '.join(nameless)} has no name"
        raise _DamagedError(damage, list(vhosts.values()))
    return list(vhosts.values())


def _vhost(entry: Any) -> VHostDef | None:
    """One entry of the file; None when it has no name."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return None
    description = entry.get("description")
    tags = entry.get("tags")
    return VHostDef(
        name,
        description if isinstance(description, str) else "",
        tuple(map(str, tags)) if isinstance(tags, list) else (),
    )
