"""Any bytes as a file of keys: what is taken over of it survives being written and read again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq import _core
from tests.fuzz.targets import Target

BOOT = 11
SIZE = 20
SLOT = 32
HEADER = b"x-deduplication-header"
NEW = b"\x16" + HEADER + b"I\0\0\0\1"


def cache(path: Path) -> _core.DedupCache:
    """Return a small cache."""
    return _core.DedupCache(None, HEADER, SIZE, -1, str(path), BOOT)


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""
    path = directory / "dedup"

    def read(data: bytes) -> None:
        path.write_bytes(data)  # it is there: keys are added to one of the format of now
        keys = cache(path)
        found = keys.load(data)
        assert found in (_core.KEYS_UNREADABLE, _core.KEYS_OF_OTHER_BOOT) or found >= 0
        assert len(keys) <= min(SIZE, len(data) // SLOT)
        keys.remember(NEW, 0)
        keys.flush()
        again = cache(path)
        damaged = again.load(path.read_bytes())
        assert 0 <= damaged <= max(found, 0), "what was written is damaged"
        assert len(again) == len(keys), "keys are lost"
        assert again.seen(NEW, 0)
        again.close()
        keys.release()

    yield read
