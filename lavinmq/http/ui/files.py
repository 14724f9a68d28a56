"""The files of the pages: read when a browser asks for them first, kept compressed from then on.

All files share one directory in their addresses, named by a digest of them all: modules import each
other by relative names, browsers keep them for ever, and those of another release are others.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

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


class File(NamedTuple):
    """A file as it is sent: the content is gzip."""

    kind: str
    content: bytes


class Files:
    """The files of the directory `static/`.

    `digest`: of all of them. `assets`: what pages load, by name, with `/` between directories.
    `fragments`: the HTML that pages are made of, by the same names.
    """

    def __init__(self) -> None:
        from importlib.resources import files  # a broker that no browser looks at needs none of it

        self.assets: dict[str, File] = {}
        self.fragments: dict[str, str] = {}
        digest = hashlib.sha256()
        for name, file in sorted(_below(files(__package__) / "static", "")):
            content = file.read_bytes()
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            suffix = name.rpartition(".")[2]
            if suffix == HTML:
                self.fragments[name] = content.decode()
            elif suffix in TYPES:
                self.assets[name] = File(TYPES[suffix], packed(content))
        self.digest = digest.hexdigest()[:20]


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
    """The files, read and compressed in a thread by the first caller; the process keeps them."""
    global _loaded
    if _loaded is None:
        _loaded = await asyncio.to_thread(Files)  # two at once do it twice, to the same end
    return _loaded
