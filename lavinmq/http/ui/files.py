"""The files of the pages: read when a browser asks for them first, kept compressed from then on.

All files share one directory in their addresses, named by a digest of them all: modules import each
other by relative names, browsers keep them for ever, and those of another release are others.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from lavinmq.process.worker import aside

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

TYPES: Final = {
    "css": "text/css;charset=utf-8",
    "js": "text/javascript;charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain;charset=utf-8",
}
HTML: Final = "html"
LEVEL: Final = 9
_IMPORT: Final = re.compile(r'^(?:import |} from )[^"\n]*"(\.[^"\n]+)"', re.MULTILINE)


class File(NamedTuple):
    """A file as it is sent: the content is gzip."""

    kind: str
    content: bytes


class Files:
    """The files of the directory `static/`.

    `digest`: of all of them. `assets`: what pages load, by name, with `/` between directories.
    `fragments`: the HTML that pages are made of, by the same names. `modules`: what the script of a
    page imports, it included, by its name.
    """

    def __init__(self) -> None:
        from importlib.resources import files  # a broker that no browser looks at needs none of it

        self.assets: dict[str, File] = {}
        self.fragments: dict[str, str] = {}
        scripts: dict[str, str] = {}
        digest = hashlib.sha256()
        for name, file in sorted(_below(files(__package__) / "static", "")):
            content = file.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            suffix = name.rpartition(".")[2]
            if suffix == HTML:
                self.fragments[name] = content.decode()
            elif suffix in TYPES:
                self.assets[name] = File(TYPES[suffix], packed(content))
                if suffix == "js":
                    scripts[name] = content.decode()
        self.digest = digest.hexdigest()[:20]
        self.modules = {
            name: tuple(_imported(name, scripts)) for name in scripts if name.startswith("pages/")
        }


def _imported(name: str, scripts: Mapping[str, str]) -> list[str]:
    """A module and those that it needs, directly or not; each once."""
    found = [name]
    for each in found:  # it grows
        directory = posixpath.dirname(each)
        for other in _IMPORT.findall(scripts[each]):
            needed = posixpath.normpath(posixpath.join(directory, other))
            if needed not in found:
                found.append(needed)
    return found


def _below(directory: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for each in directory.iterdir():
        if each.is_dir():
            yield from _below(each, f"{prefix}{each.name}/")
        else:
            yield prefix + each.name, each


def packed(content: bytes) -> bytes:
    """The content as gzip, the same bytes each time."""
    packer = zlib.compressobj(LEVEL, wbits=31)
    return packer.compress(content) + packer.flush()


_loaded: Files | None = None


async def loaded() -> Files:
    """The files, read and compressed in a thread by the first caller; the process keeps them.
    Raises: NoThreadError."""
    global _loaded
    if _loaded is None:
        _loaded = await aside(Files)  # two at once do it twice, to the same end
    return _loaded
