"""Any bytes as a log of sessions: what is taken over of it survives being compacted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lavinmq import _core
from tests.fuzz.targets import Target
from tests.support import mqtt_log
from tests.support.core import FakeEvents


def opened_log(directory: Path) -> tuple[FakeEvents, _core.SessionLog]:
    """A log of what is in a directory."""
    events = FakeEvents()
    loop = _core.Loop(events, str(directory), False, lambda *_why: None, lambda: None)
    return events, _core.SessionLog(loop, str(directory), 1 << 20)


def state_of(log: _core.SessionLog) -> dict[bytes, Any]:
    """All that it knows."""
    ids, following = log.client_ids(0, 1 << 20)
    assert following == -1
    return {each: (log.times(each), log.facts(each), log.packets(each)) for each in ids}


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        for path in directory.iterdir():
            path.unlink()
        (directory / "mqtt_sessions.0000000001").write_bytes(
            mqtt_log.file_from(mqtt_log.SESSIONS, data)
        )
        events, log = opened_log(directory)
        try:
            log.load()
        except ValueError as error:
            assert "version" in str(error)
            return
        log.settle([], None)
        log.make(b"new")
        log.note(b"new", _core.SESSION_CHANGES["SENT"], 1, 2, 3)
        before = state_of(log)
        while log.compact_some():
            pass
        events.run()
        assert len([*directory.glob("mqtt_sessions.??????????")]) == 1
        log.close()
        _events, again = opened_log(directory)
        assert again.load() == [], "what was written is damaged"
        assert state_of(again) == before
        again.close()

    yield read
