"""What a streaming query reads next, decided on streams that are only told about; no session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from lavinmq.spark.errors import DataLossError, SourceError
from lavinmq.spark.offsets import Bounds, Loss, Segment
from lavinmq.spark.options import OptionError, SourceOptions
from lavinmq.spark.streaming import StreamReader

Offsets = dict[str, Any]


class Told:
    """Stands for `Streams`: what is held is what the test says."""

    def __init__(self, held: Mapping[str, Bounds], *, fails: bool = True) -> None:
        self.held = dict(held)
        self.fails = fails
        self.warnings: list[str] = []
        self.stored: dict[str, int] = {}
        self.unwanted: set[str] = set()
        self.parts: dict[str, list[Segment]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def bounds(self, known: Iterable[str] = (), *, missing_ok: bool = False) -> dict[str, Bounds]:
        return {q: b for q, b in sorted(self.held.items()) if q not in self.unwanted}

    def starts(self, held: Mapping[str, Bounds], default: str) -> dict[str, int]:
        assert default == "latest"
        return {queue: bounds.end for queue, bounds in held.items()}

    def is_wanted(self, queue: str) -> bool:
        return queue not in self.unwanted

    def segments(self, queue: str, range_: tuple[int, int]) -> list[Segment]:
        return self.parts.get(queue, [])

    def report(self, loss: Loss) -> None:
        self.report_text(str(loss))

    def report_text(self, text: str) -> None:
        if self.fails:
            raise DataLossError(text)
        self.warnings.append(text)

    def store(self, queue: str, offset: int) -> None:
        if queue == "refused":
            raise SourceError("no")
        self.stored[queue] = offset


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told({"a": Bounds(1, 101, "x")})
    monkeypatch.setattr("lavinmq.spark.streaming.Streams", lambda options, is_told=False: found)
    return found


def reader(**options: str) -> StreamReader:
    given = {"url": "amqp://h", "queue": "a,b"} | options
    return StreamReader(SourceOptions.parse(given, streaming=True), ("offset",))


def at(offsets: dict[str, int], **created: str) -> Offsets:
    return {"v": 1, "offsets": offsets, "created": created}


def next_of(found: Mapping[str, Any]) -> dict[str, int]:
    return dict(found["offsets"])


def parts(source: StreamReader, start: Offsets, end: Offsets) -> list[tuple[str, int, int]]:
    tasks = [partition.value for partition in source.partitions(start, end)]
    return [(task.queue, task.start, task.end) for task in tasks]


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "1k"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1k", "minOffsetsPerTrigger": "2"}, ReadMaxBytes(1024)),
        ({"minOffsetsPerTrigger": "2"}, ReadMinRows(2)),
    ],
)
def test_spark_is_told_one_limit(options: dict[str, str], limit: ReadLimit) -> None:
    assert reader(**options).getDefaultReadLimit() == limit


def test_the_beginning_is_asked_for_twice_and_is_the_same(told: Told) -> None:
    source = reader()
    first = source.initialOffset()
    told.held["a"] = Bounds(1, 500, "x")

    assert source.initialOffset() == first == at({"a": 101}, a="x")


def test_a_batch_goes_to_the_end_and_the_report_too(told: Told) -> None:
    source = reader()

    end = source.latestOffset(at({"a": 11}, a="x"), ReadAllAvailable())

    assert end == at({"a": 101}, a="x")
    assert source.reportLatestOffset() == end
    assert parts(source, at({"a": 11}, a="x"), dict(end)) == [("a", 11, 101)]


def test_a_batch_without_news_has_the_same_offsets(told: Told) -> None:
    start = at({"a": 101}, a="x")

    assert reader().latestOffset(start, ReadAllAvailable()) == start


def test_rows_are_limited_and_all_available_is_all(told: Told) -> None:
    told.held["b"] = Bounds(1, 301, "y")
    source = reader(maxOffsetsPerTrigger="40")
    start = at({"a": 1, "b": 1}, a="x", b="y")

    limited = source.latestOffset(start, ReadMaxRows(40))

    assert next_of(limited) == {"a": 11, "b": 31}
    assert next_of(source.latestOffset(start, ReadAllAvailable())) == {"a": 101, "b": 301}
    # What Spark reports as lag is the true end.
    assert next_of(source.reportLatestOffset() or {}) == {"a": 101, "b": 301}


def test_the_smaller_of_rows_and_bytes_counts(told: Told) -> None:
    told.parts["a"] = [Segment(1, 101, 10_000)]
    start = at({"a": 1}, a="x")

    by_bytes = reader(maxOffsetsPerTrigger="50", maxBytesPerTrigger="2000")
    by_rows = reader(maxOffsetsPerTrigger="5", maxBytesPerTrigger="2000")

    assert next_of(by_bytes.latestOffset(start, ReadMaxRows(50))) == {"a": 21}
    assert next_of(by_rows.latestOffset(start, ReadMaxRows(5))) == {"a": 6}


def test_a_small_batch_waits_until_it_is_worthwhile_or_late(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    source = reader(minOffsetsPerTrigger="50", maxTriggerDelay="60s")
    start = at({"a": 61}, a="x")

    assert source.latestOffset(start, ReadMinRows(50)) == start
    now_s = 59.0
    assert source.latestOffset(start, ReadMinRows(50)) == start
    now_s = 60.0
    assert next_of(source.latestOffset(start, ReadMinRows(50))) == {"a": 101}
    # The time counts from that batch on; forty more are not enough, fifty are.
    told.held["a"] = Bounds(1, 141, "x")
    start = at({"a": 101}, a="x")
    assert source.latestOffset(start, ReadMinRows(50)) == start
    told.held["a"] = Bounds(1, 151, "x")
    assert next_of(source.latestOffset(start, ReadMinRows(50))) == {"a": 151}


def test_a_query_that_ends_by_itself_waits_for_nothing(told: Told) -> None:
    source = reader(minOffsetsPerTrigger="5000")
    source.prepareForTriggerAvailableNow()

    assert next_of(source.latestOffset(at({"a": 1}, a="x"), ReadMinRows(5000))) == {"a": 101}


def test_what_comes_after_the_beginning_is_for_the_next_query(told: Told) -> None:
    source = reader()
    source.prepareForTriggerAvailableNow()
    told.held |= {"a": Bounds(1, 500, "x"), "b": Bounds(1, 10, "y")}

    end = source.latestOffset(at({"a": 1}, a="x"), ReadAllAvailable())

    assert next_of(end) == {"a": 101}
    assert source.latestOffset(dict(end), ReadAllAvailable()) == end


def test_a_frozen_end_that_retention_has_passed_is_reached(told: Told) -> None:
    told.fails = False
    source = reader(maxOffsetsPerTrigger="7")
    source.prepareForTriggerAvailableNow()
    told.held["a"] = Bounds(300, 500, "x")
    start = at({"a": 50}, a="x")

    end = source.latestOffset(start, ReadMaxRows(7))

    assert next_of(end) == {"a": 101}
    assert parts(source, start, dict(end)) == []
    assert told.warnings[0] == "stream 'a': offsets 50 to 299 are gone, 250 messages"


def test_a_new_stream_gets_its_position_first(told: Told) -> None:
    told.held["b"] = Bounds(7, 10, "y")
    source, start = reader(), at({"a": 101}, a="x")

    first = dict(source.latestOffset(start, ReadAllAvailable()))
    second = dict(source.latestOffset(first, ReadAllAvailable()))

    assert next_of(first) == {"a": 101, "b": 7}
    assert parts(source, start, first) == []
    assert parts(source, first, second) == [("b", 7, 10)]


@pytest.mark.parametrize("held", [None, Bounds(1, 20, "new"), Bounds(1, 900, "new")])
def test_a_stream_that_is_not_the_old_one_ends_the_query(told: Told, held: Bounds | None) -> None:
    told.held = {} if held is None else {"a": held}

    with pytest.raises(DataLossError, match="'a': it"):
        reader().latestOffset(at({"a": 50}, a="x"), ReadAllAvailable())


def test_a_stream_made_anew_is_read_from_its_beginning_if_that_is_allowed(told: Told) -> None:
    told.fails = False
    told.held = {"a": Bounds(1, 900, "new")}
    source, start = reader(), at({"a": 50}, a="x")

    first = dict(source.latestOffset(start, ReadAllAvailable()))
    second = dict(source.latestOffset(first, ReadAllAvailable()))

    assert parts(source, start, first) == []
    assert parts(source, first, second) == [("a", 1, 900)]
    assert len(told.warnings) == 1


CUT = ((1, 1), (2, 41))
"""Epochs of a stream that has lost what was behind offset 40."""


def test_offsets_that_others_have_now_end_the_query(told: Told) -> None:
    told.held = {"a": Bounds(1, 101, "x", CUT)}
    start = at({"a": 50}, a="x") | {"epochs": {"a": 1}}

    with pytest.raises(DataLossError, match="epoch 1, and epoch 2 begins at offset 41"):
        reader().latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match="epoch 1, and epoch 2 begins at offset 41"):
        reader().partitions(start, at({"a": 60}, a="x") | {"epochs": {"a": 1}})


def test_a_query_that_may_goes_on_where_the_epoch_begins(told: Told) -> None:
    told.fails = False
    told.held = {"a": Bounds(1, 101, "x", CUT)}
    start = at({"a": 50}, a="x") | {"epochs": {"a": 1}}

    source = reader()
    first = source.latestOffset(start, ReadAllAvailable())
    second = source.latestOffset(first, ReadAllAvailable())

    assert (next_of(first), first["epochs"]) == ({"a": 41}, {"a": 2})
    assert parts(source, start, first) == []
    assert parts(source, first, second) == [("a", 41, 101)]
    assert len(told.warnings) == 1


def test_what_was_read_before_the_epoch_is_still_there(told: Told) -> None:
    told.held = {"a": Bounds(1, 101, "x", CUT)}
    start = at({"a": 41}, a="x") | {"epochs": {"a": 1}}

    end = reader().latestOffset(start, ReadAllAvailable())

    assert (next_of(end), end["epochs"]) == ({"a": 101}, {"a": 2})
    assert told.warnings == []


def test_a_batch_planned_again_ends_where_others_have_its_offsets(told: Told) -> None:
    start, end = at({"a": 30}, a="x"), at({"a": 50}, a="x")
    start |= {"epochs": {"a": 1}}
    end |= {"epochs": {"a": 1}}
    told.held = {"a": Bounds(1, 101, "x", CUT)}

    with pytest.raises(DataLossError, match="up to offset 50 in epoch 1"):
        parts(reader(), start, end)
    told.fails = False
    assert parts(reader(), start, end) == [("a", 30, 41)]
    assert next_of(reader().latestOffset(end, ReadAllAvailable())) == {"a": 41}


def test_another_epoch_alone_is_no_batch(told: Told) -> None:
    told.held = {"a": Bounds(1, 41, "x", CUT)}
    start = at({"a": 41}, a="x") | {"epochs": {"a": 1}}

    assert reader().latestOffset(start, ReadAllAvailable()) == start


def test_a_stream_that_is_gone_keeps_its_position(told: Told) -> None:
    told.fails = False
    told.held = {}
    start = at({"a": 50}, a="x")

    assert reader().latestOffset(start, ReadAllAvailable()) == start


def test_a_stream_that_is_not_asked_for_any_more_is_no_loss(told: Told) -> None:
    told.unwanted = {"a"}
    start = at({"a": 50}, a="x")

    assert reader().latestOffset(start, ReadAllAvailable()) == start
    assert told.warnings == []


def test_a_batch_planned_again_is_the_same_unless_something_is_gone(told: Told) -> None:
    source, start, end = reader(), at({"a": 10}, a="x"), at({"a": 60}, a="x")
    assert parts(source, start, end) == [("a", 10, 60)]

    for held, text in (
        (Bounds(20, 101, "x"), "offsets 10 to 19 are gone"),
        (Bounds(1, 40, "x"), "offsets 40 to 59 are gone, 20 messages"),
        (Bounds(1, 101, "new"), "made anew"),
    ):
        told.held["a"] = held
        with pytest.raises(DataLossError, match=text):
            source.partitions(start, end)

    told.fails = False
    told.held["a"] = Bounds(20, 40, "x")
    assert parts(source, start, end) == [("a", 20, 40)]
    told.held["a"] = Bounds(1, 101, "new")
    assert parts(source, start, end) == []


def test_positions_are_stored_for_people_and_a_refusal_is_a_warning(
    told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    source = reader(storeOffsets="me")

    source.commit(at({"a": 5, "refused": 6}))
    reader().commit(at({"a": 99}))

    assert told.stored == {"a": 5}
    assert "storeOffsets: no" in caplog.text


def test_a_problem_with_the_options_is_raised_by_the_first_call() -> None:
    broken = StreamReader(None, (), OptionError("option x"))

    for call in (broken.getDefaultReadLimit, broken.initialOffset):
        with pytest.raises(OptionError, match="option x"):
            call()


def test_a_checkpoint_of_a_later_release_is_refused(told: Told) -> None:
    with pytest.raises(ValueError, match="version 9"):
        reader().latestOffset({"v": 9, "offsets": {}}, ReadAllAvailable())
