"""Any bytes at the beginning of a connection: a PROXY header, none, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lavinmq.listeners.proxy_protocol import Header, Incomplete, ProxyError, parse
from tests.fuzz.targets import Target


def outcome(data: bytes) -> Header | str | None:
    """What the parser makes of it."""
    try:
        return parse(data)
    except Incomplete:
        return "incomplete"
    except ProxyError:
        return "refused"


@contextmanager
def opened(directory: Path) -> Iterator[Target]:
    """Give the target."""

    def read(data: bytes) -> None:
        found = outcome(data)
        if isinstance(found, Header):
            assert 0 < found.size <= len(data)
            assert (found.peer is None) == (found.local is None)
            assert outcome(data[: found.size]) == found, "it depends on what follows"
            assert outcome(data[: found.size - 1]) == "incomplete"
        elif found == "incomplete":
            assert all(outcome(data[:end]) == "incomplete" for end in range(0, len(data), 7))

    yield read
