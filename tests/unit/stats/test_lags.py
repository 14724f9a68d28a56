"""Histories of how far stored offsets of streams are behind: which are kept, and for how long."""

from __future__ import annotations

import pytest

from lavinmq.stats import lags
from lavinmq.stats.lags import Lags


class Core:
    """A stream with stored offsets, the newest commit last."""

    def __init__(self, end: int = 100) -> None:
        self.offsets: dict[bytes, int] = {}
        self.end = end
        self.first_offset = 1

    @property
    def synced(self) -> tuple[int, int, int]:
        return self.end, 1, 4

    @property
    def n_offsets(self) -> int:
        return len(self.offsets)

    def stored_offset(self, tag: bytes) -> int:
        return self.offsets.get(tag, 0)

    def newest_offsets(self, n: int) -> list[bytes]:
        return list(reversed(self.offsets))[:n]

    def commit(self, *tags: str) -> None:
        for tag in tags:
            at = self.offsets.pop(tag.encode(), 0)
            self.offsets[tag.encode()] = at + 1


class Stream:
    def __init__(self) -> None:
        self.core = Core()


def sample(kept: Lags, *streams: Stream, samples: int = 3) -> None:
    kept.begin()
    for stream in streams:
        kept.sample(stream, samples)  # type: ignore[arg-type]


def log(kept: Lags, stream: Stream, tag: str, samples: int = 3) -> list[float]:
    return kept.log(stream, tag.encode(), samples)  # type: ignore[arg-type]


def test_the_lag_of_each_consumer_is_recorded() -> None:
    kept, stream = Lags(), Stream()
    stream.core.offsets = {b"one": 90, b"other": 100}
    sample(kept, stream)
    stream.core.end = 110
    stream.core.offsets[b"one"] = 95
    sample(kept, stream)

    assert log(kept, stream, "one") == [0, 10, 15]
    assert log(kept, stream, "other") == [0, 0, 10]
    assert log(kept, stream, "nobody") == []
    assert log(kept, Stream(), "one") == []


def test_messages_that_are_gone_are_no_lag() -> None:
    kept, stream = Lags(), Stream()
    stream.core.offsets, stream.core.first_offset = {b"late": 5}, 80
    sample(kept, stream)

    assert log(kept, stream, "late")[-1] == 20


def test_what_is_forgotten_has_no_history() -> None:
    kept, stream = Lags(), Stream()
    stream.core.offsets = {b"brief": 1}
    sample(kept, stream)
    stream.core.offsets = {}
    sample(kept, stream)

    assert log(kept, stream, "brief") == []


def test_who_commits_takes_the_place_of_who_has_long_rested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lags, "MAX_OF_STREAM", 2)
    kept, stream = Lags(), Stream()
    stream.core.commit("old", "resting", "busy")
    sample(kept, stream)
    assert [bool(log(kept, stream, tag)) for tag in ("old", "resting", "busy")] == [
        False, True, True,
    ]  # fmt: skip

    seen = []
    for _ in range(4):
        stream.core.commit("busy", "new")
        sample(kept, stream)
        seen.append([bool(log(kept, stream, tag)) for tag in ("resting", "busy", "new")])

    assert seen == [[True, True, False]] * 3 + [[False, True, True]]


def test_all_histories_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lags, "MAX_LAGS", 3)
    kept, streams = Lags(), [Stream(), Stream()]
    for stream in streams:
        stream.core.commit("a", "b")
    sample(kept, *streams)

    recorded = [[bool(log(kept, stream, tag)) for tag in ("a", "b")] for stream in streams]
    assert recorded == [[True, True], [False, True]]
    del streams[0], stream
    sample(kept, *streams)
    assert log(kept, streams[0], "a")
