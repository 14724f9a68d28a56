"""Any text as the configuration file: it is read, or refused with a ConfigError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.config import values as config
from lavinmq.config.settings import ConfigError
from tests.fuzz.targets import Target


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    path = directory / "lavinmq.ini"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            config.load(["--config", str(path)], {})
        except ConfigError as error:
            assert str(error), "an error without a text"

    yield read
