"""Any bytes as vhosts.json: refused with a DefinitionsError, or the same after writing them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.errors import DefinitionsError
from lavinmq.files import vhosts as vhosts_file
from lavinmq.files.saving import Disk
from tests.fuzz.targets import Target


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        (directory / vhosts_file.FILE_NAME).write_bytes(data)
        try:
            vhosts = vhosts_file.load(directory)
        except DefinitionsError:
            return
        vhosts_file.save(directory, vhosts, Disk())
        assert vhosts_file.load(directory) == vhosts

    yield read
