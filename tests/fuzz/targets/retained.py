"""Any bytes as a file of retained messages: what is taken over survives being written anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq import _core
from tests.fuzz.targets import Target
from tests.support import mqtt_log
from tests.support.core import FakeEvents

Found = list[tuple[bytes, bytes, int, bytes, int, int]]
MOST = 1000


def opened_store(directory: Path) -> tuple[FakeEvents, _core.RetainedStore]:
    """A store of what is in a directory."""
    events = FakeEvents()
    loop = _core.Loop(events, str(directory), False, lambda *_why: None, lambda: None)
    return events, _core.RetainedStore(loop, str(directory), 1 << 20)


def found_in(store: _core.RetainedStore) -> Found:
    """All that it has."""
    found: Found = []
    for filter in (b"#", b"$SYS/#"):
        walk = store.walk(filter)
        while not walk.is_over:
            found += walk.some(MOST)
    return found


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        for path in directory.iterdir():
            path.unlink()
        (directory / "mqtt_retained.0000000001").write_bytes(
            mqtt_log.file_from(mqtt_log.RETAINED, data)
        )
        events, store = opened_store(directory)
        try:
            store.load()
        except ValueError as error:
            assert "version" in str(error)
            return
        found = found_in(store)
        assert store.lost == 0
        store.put(b"new", b"payload", 1, b"", 1)
        if found:
            store.remove(found[0][0])
        while store.clean_some():
            pass
        events.run()
        expected = {each[0]: each for each in found[1:]} | {
            b"new": (b"new", b"payload", 1, b"", 1, 0)
        }
        store.close()
        _events, again = opened_store(directory)
        assert again.load() == [], "what was written is damaged"
        now = {each[0]: each for each in found_in(again)}
        assert all(now[topic] == each for topic, each in expected.items() if topic in now)
        assert len(expected) - len(now) in (0, 1), "only one may have expired or be no topic of #"
        again.close()

    yield read
