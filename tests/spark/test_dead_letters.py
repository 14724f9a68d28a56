"""The dead-letter report on plain rows: origins, counts, errors and samples."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from lavinmq.pipeline import dead_letters
from lavinmq.pipeline.dead_letters import Bounds
from lavinmq.pipeline.deaths import Origin, origin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

SCHEMA = (
    "exchange string, routing_key string, body binary, timestamp timestamp, headers_json string"
)
RECEIVED_S = 1_700_000_000


class Time(int):
    """Seconds that are a timestamp in a header."""


def typed(value: Any) -> Any:
    """A value as headers_json has it."""
    match value:
        case bool():
            return {"t": value}
        case Time():
            return {"T": int(value)}
        case int():
            return {"l": value}
        case str():
            return {"S": value}
        case list():
            return {"A": [typed(each) for each in value]}
        case Mapping():
            return {"F": {key: typed(each) for key, each in value.items()}}
    return {"V": None}


def death(queue: Any, reason: Any = "rejected", **more: Any) -> dict[str, Any]:
    entry = {"queue": queue, "reason": reason, "exchange": "", "count": 1, "time": Time(RECEIVED_S)}
    return entry | {"routing-keys": [queue]} | {key.replace("_", "-"): v for key, v in more.items()}


def rows(spark: SparkSession, *messages: tuple[dict[str, Any] | str | None, bytes]) -> DataFrame:
    """Rows with these headers (a text is JSON already) and bodies."""
    received = datetime.fromtimestamp(RECEIVED_S, UTC)

    def text(headers: dict[str, Any] | str | None) -> str | None:
        if headers is None or isinstance(headers, str):
            return headers
        return json.dumps({key: typed(value) for key, value in headers.items()})

    made = [("dlx", "dead", body, received, text(headers)) for headers, body in messages]
    return spark.createDataFrame(made, SCHEMA)


HEADERS: list[dict[str, Any]] = [
    {},
    {"x-death": []},
    {"x-death": [death("work", exchange="orders", routing_keys=["order.new", "cc"])]},
    # Through a queue for retries and back: the newest death there counts.
    {
        "x-first-death-queue": "work",
        "x-first-death-reason": "expired",
        "x-death": [death("work"), death("retry", "expired"), death("work", "expired")],
    },
    # On from its dead-letter queue.
    {
        "x-first-death-queue": "work",
        "x-death": [death("dead", "expired"), death("work", "maxlen", exchange="e")],
    },
    {"x-death": [death("dead", "expired"), death("old", "maxlen")]},
    # Only the summary is left.
    {"x-first-death-queue": "work", "x-first-death-reason": "maxlen"},
    {"x-first-death-queue": "work"},
    # Forged: what is not of its type counts as absent.
    {"x-death": "yes", "x-first-death-queue": 7},
    {"x-death": [1, "x", None, {"queue": 5}, death("")]},
    {"x-death": [death("work", 3, exchange=4, routing_keys=[5], time=6, count="many")]},
    {"x-death": [death("work", routing_keys="none")]},
    {"x-death": {"queue": "work"}, "x-first-death-queue": ""},
    {"x-first-death-queue": 'it\'s "q" $[0].*', "x-death": [death('it\'s "q" $[0].*')]},
]


def test_spark_finds_the_origin_that_the_rule_names(spark: SparkSession) -> None:
    """Both halves of the job must mean the same queue, also by headers that make no sense."""
    frame = rows(spark, *((headers, str(n).encode()) for n, headers in enumerate(HEADERS)))

    found = {int(bytes(row.body)): row for row in dead_letters.deaths(frame).collect()}

    for number, headers in enumerate(HEADERS):
        row = found[number]
        seen = Origin(row.queue, row.reason, row.exchange, row.routing_key) if row.queue else None
        assert seen == origin(headers), headers
    assert sum(origin(headers) is not None for headers in HEADERS) == 9


def test_how_often_and_when_come_from_the_history(spark: SparkSession) -> None:
    history = [
        death("work", time=Time(300), count=3),
        death("retry", "expired", time=Time(100), count=2),
    ]
    forged = [
        death("work", time=Time(1 << 62), count=1 << 62),
        death("work", "maxlen", time=Time(-5), count=-9),
    ]
    frame = rows(spark, ({"x-death": history}, b"1"), ({"x-death": forged}, b"2"), ({}, b"3"))

    found = {bytes(row.body): row for row in dead_letters.deaths(frame).collect()}

    assert (found[b"1"].times, found[b"1"].first_seen, found[b"1"].last_seen) == (5, 100, 300)
    assert (found[b"2"].times, found[b"2"].first_seen) == (1, RECEIVED_S)
    assert (found[b"3"].times, found[b"3"].last_seen) == (None, RECEIVED_S)


def test_headers_that_are_no_table_are_none(spark: SparkSession) -> None:
    frame = rows(spark, (None, b"1"), ('"AAECAw=="', b"2"), ("not json", b"3"), ("", b"4"))

    assert [row.queue for row in dead_letters.deaths(frame).collect()] == [None] * 4


def test_the_report_counts_groups_and_shows_a_few_of_each(spark: SparkSession) -> None:
    def failed(error: str | None, at_s: int) -> dict[str, Any]:
        history = {"x-death": [death("work", time=Time(at_s))]}
        return history | ({"x-exception-message": error} if error else {})

    frame = rows(
        spark,
        (failed("no such order\n  at line 7", 100), b"oldest"),
        (failed("no such order", 200), b"\x1b[31mred\xff"),
        (failed("time-out", 300), b"x" * 300),
        (failed(None, 400), "plain äöü".encode()),
        ({"x-death": [death("other", "expired")], "my-error": "mine"}, b""),
        ({}, b"alive"),
    )
    letters = dead_letters.deaths(frame, ["my-error", *dead_letters.ERROR_HEADERS])

    report = dead_letters.report(letters, Bounds(groups=2, samples=3, sample_bytes=11, errors=1))

    assert (report.messages, report.n_groups, report.never_died) == (6, 3, 1)
    work, second = report.groups
    assert (work["queue"], work["reason"], work["messages"]) == ("work", "rejected", 4)
    assert (work["first_seen"], work["last_seen"], work["bytes"]) == (100, 400, 6 + 9 + 300 + 12)
    assert work["errors"] == [{"error": "no such order", "messages": 2}]
    assert [each["text"] for each in work["samples"]] == [
        "plain äö\\xc3",
        "xxxxxxxxxxx",
        "\\x1b[31mred\\xff",
    ]
    assert [each["is_cut"] for each in work["samples"]] == [True, True, False]
    assert second["messages"] == 1
    assert len(report.groups) == 2
