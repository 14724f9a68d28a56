"""Command lines and texts of dlq and flow; no Spark, no broker."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from lavinmq.pipeline.cli import main
from lavinmq.pipeline.dead_letters import Report, printable
from lavinmq.pipeline.jobs import dlq, flow
from lavinmq.pipeline.requeue import Outcome

URL = ["--url", "amqp://nobody:secret@127.0.0.1:1"]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["dlq", "peek:"], "peek: needs the name of a queue"),
        (["dlq", "queue:a", "--requeue"], "--requeue needs peek:QUEUE as source"),
        (["dlq", "peek:a", "--dry-run"], "--dry-run needs --requeue"),
        (["dlq", "peek:a", "--target", "b"], "--target needs --requeue"),
        (["dlq", "peek:a", "--requeue", "--target", "a"], "--target is the queue to take from"),
        (
            ["dlq", "peek:a", "--requeue", "--target", "b", "--to", "exchange"],
            "--target and --to=exchange exclude each other",
        ),
        (["dlq", "peek:a", "--limit", "65536"], "--limit must be at most 65535 for a queue"),
        (["dlq", "peek:a", "--dead-queue", "b"], "--dead-queue is for segments and archives"),
        (["dlq", "peek:a", "--sample-bytes", "5000"], "--sample-bytes must be at most 4096"),
        (["flow", "queue:"], "no source: 'queue:'; expected queue:NAMES for streams"),
        (["flow", "segments:a", "--checkpoint", "c"], "--checkpoint needs queue:NAME as source"),
        (["flow", "queue:a", "--once"], "--once needs --checkpoint"),
        (["flow", "queue:a", "--by", "size"], "expected some of queue, exchange, routing_key"),
        (["flow", "queue:a", "--window", "0s"], "--window must be at least 1ms"),
        (["flow", "queue:a", "--keys", "101"], "--keys must be at most 100"),
    ],
)
def test_wrong_usage_is_one_line_and_starts_nothing(
    args: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*args, *URL]) == 2

    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith("Error: ") and complaint in error[0]
    assert error[1] == f"See lavinmq-pipeline {args[0]} --help"


def test_taking_back_without_a_broker_is_one_line_without_the_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavinmq.pipeline.jobs.dlq.PATIENCE_S", 0.0)

    assert main(["dlq", "peek:dead", "--requeue", "--debug", *URL]) == 1

    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1
    assert "queue 'dead'" in lines[0] and "secret" not in lines[0]


def group(**values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        **{"reason": "rejected", "queue": "work", "exchange": "", "routing_key": "work"},
        **{"messages": 2, "bytes": 2048, "first_seen": 0, "last_seen": 1_700_000_000},
        **{"deaths_max": 3, "deaths_mean": 1.5, "errors": [], "samples": []},
    }
    return found | values


def test_names_and_bodies_cannot_speak_to_the_terminal() -> None:
    sample = {"size": 9, "text": printable(b"\x1b[2Jboo"), "is_cut": False}
    letters = group(queue="\x1b[31mwork", samples=[sample])

    text = dlq.text(Report(2, 1, 0, [letters]))

    assert "\x1b" not in text
    assert r"\x1b[31mwork" in text and r"\x1b[2Jboo" in text
    assert "1970-01-01T00:00:00Z  2023-11-14T22:13:20Z" in text


def test_groups_that_are_left_out_are_told() -> None:
    text = dlq.text(Report(500, 80, 0, [group()]))

    assert text.startswith("500 dead letters in 80 groups")
    assert text.endswith("79 smaller groups are not shown")


def test_what_became_of_letters_is_told_in_full() -> None:
    outcome = Outcome(5, Counter({"queue work": 3}), Counter({"unroutable": 2}), "312 NO_ROUTE: q")

    assert dlq.outcome_text(outcome, is_dry_run=False).splitlines() == [
        "5 messages looked at",
        "3 went to queue work",
        "2 stay: unroutable",
        "first error: 312 NO_ROUTE: q",
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"a\nb", r"a\nb"), (b"\xff\x00", r"\xff\x00"), ("\u202eä".encode(), r"\u202eä"), (b"", "")],
)
def test_bodies_are_shown_in_one_harmless_line(data: bytes, text: str) -> None:
    assert printable(data) == text


def test_charts_have_the_largest_groups_and_no_empty_ones() -> None:
    def window(start_s: float, queue: str, messages: int) -> dict[str, Any]:
        figures = {"per_s": 1.0, "bytes_per_s": 2.0, "size_p99": 3, "latency_p99": None}
        return {"start_s": start_s, "queue": queue, "messages": messages, **figures}

    windows = [window(at, f"q{n}", n) for n in range(20) for at in (0.0, 60.0)]

    drawn = flow.charts(windows, lambda row: row["queue"])

    assert set(drawn) == {"rate", "bytes", "size"}
    (axes,) = drawn["rate"].axes
    assert [line.get_label() for line in axes.lines] == [f"q{n}" for n in range(19, 11, -1)]
