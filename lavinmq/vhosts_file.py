"""`vhosts.json`: the names of the virtual hosts and what is said about them.

Read once at the start, written whenever a virtual host comes or goes. Only the name is needed to
load one; its directory always follows from the name, the stored one is for humans and tools.
Source: storage reference, sections 1 and 9.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lavinmq.datadir import write_json_atomic
from lavinmq.errors import DefinitionsError

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


def load(data_dir: Path, create_default: bool = True) -> list[VHostDef]:
    """Read the file; if there is none, make one with `/`, or with nothing.

    Raises: DefinitionsError naming the file when it cannot be read, understood or written.
    """
    path = data_dir / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        vhosts = [VHostDef(DEFAULT_VHOST)] if create_default else []
        save(data_dir, vhosts)
        return vhosts
    except OSError as error:
        raise DefinitionsError(f"{path}: {error.strerror}") from error
    return _parse(path, data)


def save(data_dir: Path, vhosts: Iterable[VHostDef]) -> None:
    """Write the file atomically. Raises: DefinitionsError when the disk refuses."""
    path = data_dir / FILE_NAME
    try:
        write_json_atomic(str(path), [_to_json(vhost) for vhost in vhosts])
    except OSError as error:
        raise DefinitionsError(f"{path}: {error.strerror}") from error


def _to_json(vhost: VHostDef) -> dict[str, Any]:
    """One entry; the parts we have no use for are there for other readers of the file."""
    return {
        "name": vhost.name,
        "dir": vhost.directory,
        "tracing": False,
        "tags": list(vhost.tags),
        "description": vhost.description,
        "cluster_state": {},
    }


def _parse(path: Path, data: bytes) -> list[VHostDef]:
    """The virtual hosts of a file; of two with one name the later counts."""
    import json

    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DefinitionsError(f"{path}: not JSON: {error}") from error
    if not isinstance(entries, list):
        raise DefinitionsError(f"{path}: not a list of virtual hosts")
    vhosts = (_vhost(path, number, entry) for number, entry in enumerate(entries, 1))
    return list({vhost.name: vhost for vhost in vhosts}.values())


def _vhost(path: Path, number: int, entry: Any) -> VHostDef:
    """One entry of the file. Raises: DefinitionsError."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        raise DefinitionsError(f"{path}: virtual host {number} has no name")
    description = entry.get("description")
    tags = entry.get("tags")
    return VHostDef(
        name,
        description if isinstance(description, str) else "",
        tuple(map(str, tags)) if isinstance(tags, list) else (),
    )
