"""Parts of lavinmq-pipeline without a session: filters, windows, failures, progress, settings."""

from __future__ import annotations

import argparse
import io
import json
import re
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.pipeline import session
from lavinmq.pipeline.arguments import Parser
from lavinmq.pipeline.errors import DataLossError, PipelineError, UsageError
from lavinmq.pipeline.failures import LINE_MAX, explain
from lavinmq.pipeline.files import File
from lavinmq.pipeline.filters import moment, topic_regex
from lavinmq.pipeline.jobs import flow
from lavinmq.pipeline.jobs.check import by_host, lacking
from lavinmq.pipeline.jobs.compact import small_files
from lavinmq.pipeline.ledger import is_private
from lavinmq.pipeline.progress import Bar, Lines, Silence, make_progress
from lavinmq.pipeline.publishing import Window, cut, round_rows, rounds
from lavinmq.pipeline.sources import Source, parse_source
from lavinmq.pipeline.streaming import Counts, backlog
from lavinmq.spark.errors import SourceError

# --- routing keys


def matches(pattern: list[str], key: list[str]) -> bool:
    """What a topic exchange does, word by word."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


WORDS = st.lists(st.sampled_from(["a", "b.c".replace(".", "-"), "$", "ü"]), min_size=1, max_size=4)
PATTERNS = st.lists(st.sampled_from(["a", "b-c", "$", "ü", "*", "#"]), min_size=1, max_size=4)


@given(pattern=PATTERNS, key=WORDS)
def test_a_pattern_matches_as_in_a_topic_exchange(pattern: list[str], key: list[str]) -> None:
    regex = topic_regex(".".join(pattern))

    assert bool(re.fullmatch(regex, ".".join(key))) == matches(pattern, key), regex


# --- times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+01:00",
         datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=1)))),
        ("1700000000123", datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)),
    ],
)  # fmt: skip
def test_a_time_is_utc_unless_it_says_otherwise(text: str, expected: datetime) -> None:
    assert moment(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "9" * 15, "9" * 40])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected a time"):
        moment(text)


# --- sources


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("/archive", Source("archive", "/archive")),
        ("hdfs://host/a", Source("archive", "hdfs://host/a")),
        ("segments:/var/lib/lavinmq", Source("segments", "/var/lib/lavinmq")),
        ("queue:a:b", Source("queue", "a:b")),
    ],
)
def test_a_source_says_what_it_is(text: str, source: Source) -> None:
    assert parse_source(text) == source
    assert str(source) == text


# --- windows and rounds


@given(st.integers(0, 50), st.integers(1, 100), st.lists(st.integers(-5, 200), max_size=8))
def test_windows_are_the_whole_range_once(start: int, size: int, cuts: list[int]) -> None:
    found = cut("q", start, start + size, sorted(set(cuts)))

    assert found[0].start == start
    assert found[-1].end == start + size
    assert all(window.start < window.end for window in found)
    assert [w.end for w in found[:-1]] == [w.start for w in found[1:]]


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4))
def test_rounds_have_every_window_once_and_those_of_a_queue_in_order(
    sizes: list[int], width: int
) -> None:
    queues = [[Window(str(q), n, n + 1) for n in range(size)] for q, size in enumerate(sizes)]

    found = list(rounds(queues, width))

    assert all(0 < len(chosen) <= width for chosen in found)
    assert all(len({w.queue for w in chosen}) == len(chosen) for chosen in found)
    for queue in queues:
        order = [w for chosen in found for w in chosen if queue and w.queue == queue[0].queue]
        assert order == queue


def test_a_slow_job_has_small_rounds() -> None:
    assert round_rows(None) == round_rows(1_000_000) == 50_000
    assert round_rows(5) == 50


# --- compaction


def test_only_small_files_of_a_directory_are_merged() -> None:
    files = [
        File("date=2026-01-01/a.parquet", 10), File("date=2026-01-01/b.parquet", 10),
        File("date=2026-01-01/large.parquet", 50), File("date=2026-01-02/alone.parquet", 10),
        File("date=2026-01-03/a.parquet", 10), File("date=2026-01-03/b.parquet", 49),
        File("date=__HIVE_DEFAULT_PARTITION__/a.parquet", 1),
        File("date=__HIVE_DEFAULT_PARTITION__/b.parquet", 1),
    ]  # fmt: skip

    def chosen(**options: Any) -> dict[str, int]:
        found = small_files(files, 100, options.get("least", 2), options.get("before"))
        return {name: len(group) for name, group in found.items()}

    assert chosen() == {
        "date=2026-01-01": 2, "date=2026-01-03": 2, "date=__HIVE_DEFAULT_PARTITION__": 2,
    }  # fmt: skip
    assert chosen(before="2026-01-03") == {"date=2026-01-01": 2}
    assert chosen(least=3) == {}


@pytest.mark.parametrize(
    ("path", "expected"),
    [("_lavinmq/w/staged-1/a.parquet", True), ("date=2026-01-01/.a.parquet", True),
     ("date=2026-01-01/a_b.parquet", False)],
)  # fmt: skip
def test_readers_leave_out_private_paths(path: str, expected: bool) -> None:
    assert is_private(path) is expected


# --- failures

TRACE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted
Traceback (most recent call last):
  File "worker.py", line 1, in main
  File "streams.py", line 9, in report_text
    raise DataLossError(f"...")
lavinmq.spark.errors.DataLossError: host:5672 vhost /: data loss: stream 'q' was made anew; hint
 SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RuntimeError(TRACE), DataLossError,
         "host:5672 vhost /: data loss: stream 'q' was made anew; hint"),
        (RuntimeError(TRACE.replace("errors.DataLossError", "connection.ConnectionFailure")),
         PipelineError, "host:5672 vhost /: data loss: stream 'q' was made anew; hint"),
        (RuntimeError("x\nlavinmq.spark.option_values.OptionError: option prefetch is 0"),
         UsageError, "option prefetch is 0"),
        (RuntimeError("[PATH_NOT_FOUND] Path does not exist: file:/nix. SQLSTATE: 42K03"),
         PipelineError, "Path does not exist: file:/nix. SQLSTATE: 42K03"),
        (FileNotFoundError(2, "No such file or directory", "/nix"), PipelineError,
         "/nix: No such file or directory"),
        (ValueError("cannot reach amqp://guest:secret@host:5672/"), PipelineError,
         "cannot reach amqp://host:5672/"),
        (ValueError(), PipelineError, "ValueError"),
        (UsageError("as it is"), UsageError, "as it is"),
    ],
)  # fmt: skip
def test_an_error_is_one_line_with_its_status(
    error: Exception, kind: type[PipelineError], text: str
) -> None:
    failure = explain(error)

    assert (type(failure), str(failure)) == (kind, text)


def test_a_long_error_is_cut() -> None:
    assert len(str(explain(ValueError("x" * 10_000)))) == LINE_MAX


# --- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_suits_where_it_is_shown() -> None:
    assert isinstance(make_progress(Terminal(), is_silent=False), Bar)
    assert isinstance(make_progress(io.StringIO(), is_silent=False), Lines)
    assert isinstance(make_progress(Terminal(), is_silent=True), Silence)


def test_lines_come_at_most_so_often() -> None:
    stream = io.StringIO()
    lines = Lines(stream, interval_s=3600)

    lines.note("begins")
    for done in range(1000):
        lines.show("rows", done * 1000, 1_000_000)

    assert stream.getvalue() == "begins\nrows: 0 of 1,000,000\n"


def test_a_bar_shows_what_is_done() -> None:
    stream = Terminal()
    with make_progress(stream, is_silent=False) as bar:
        bar.note("begins [with brackets]")
        bar.show("rows", 3, 10)
        bar.show("rows", 5, None)

    assert "begins [with brackets]" in stream.getvalue()


def test_a_report_of_spark_counts_once() -> None:
    counts = Counts()
    for batch, rows in ((0, 10), (0, 10), (1, 0), (2, 5), (1, 0)):
        counts.add({"batchId": batch, "numInputRows": rows, "sources": []})

    assert (counts.rows, counts.batches, counts.total) == (15, 2, 15)


def test_the_total_is_what_was_read_and_what_is_behind() -> None:
    def offsets(**offsets: int) -> str:
        return json.dumps({"v": 1, "offsets": offsets})

    sources = [{"latestOffset": offsets(a=100, b=10, new=5), "endOffset": offsets(a=40, b=10)}]

    assert backlog(sources) == 60
    assert backlog([{"latestOffset": "null", "endOffset": offsets(a=40)}]) is None
    assert backlog([{"latestOffset": None, "endOffset": "x"}]) is None


# --- settings


def test_what_is_given_counts_more_than_what_is_usual() -> None:
    given = {"spark.master": "yarn", "spark.sql.session.timeZone": "CET"}

    assert session.defaults({}, None, False)["spark.master"] == session.LOCAL_MASTER
    assert session.defaults(given, None, False)["spark.sql.session.timeZone"] == "CET"
    assert session.defaults(given, "local[1]", False)["spark.master"] == "local[1]"
    assert "spark.driver.host" not in session.defaults(given, None, False)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"pyspark": "4.1.0", "pyarrow": "18"}, "pyspark 4.1.0 is too old"),
        ({"pyspark": "4.3.0"}, "pyarrow is not installed: pip install"),
        ({}, "pyspark is not installed: pip install"),
    ],
)
def test_what_is_missing_is_told_with_the_remedy(
    found: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name not in found:
            raise session.PackageNotFoundError(name)
        return found[name]

    monkeypatch.setattr(session, "version", version)

    with pytest.raises(PipelineError, match=text):
        session.check_versions(False)


def test_without_java_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "version", lambda _: "4.3.0")
    monkeypatch.setattr(session.shutil, "which", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)

    with pytest.raises(PipelineError, match="there is no Java"):
        session.check_versions(False)


def test_a_job_that_publishes_refuses_speculation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "check_versions", lambda _: None)
    pytest.importorskip("pyspark")

    with pytest.raises(UsageError, match=r"spark\.speculation must be false"):
        session.make_session(
            "x", master="local[1]", conf={"spark.speculation": "true"}, publishes=True
        )


def test_check_names_what_an_executor_lacks() -> None:
    facts = {"python": "3.11.0", "pyarrow": "not installed", "pandas": "not installed"}

    (line,) = lacking(facts)

    assert line.startswith("pyarrow is not installed; pip install")


def test_check_tells_executors_of_one_host_apart() -> None:
    old, new = {"lavinmq": "1"}, {"lavinmq": "2"}

    found = by_host([("a", new), ("a", old), ("b", new), ("a", new), ("a", old), ("a", {})])

    assert found == {"a": new, "a (2)": old, "b": new, "a (3)": {}}


def test_flow_publishes_nothing_when_consumers_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever starts it again would publish the windows again."""
    added: list[str] = []

    def fails(*_: Any) -> Any:
        raise SourceError("no answer")

    monkeypatch.setattr(flow, "lags", fails)
    monkeypatch.setattr(flow, "open_messages", lambda *_: None)
    monkeypatch.setattr(flow, "figures", lambda *_: None)
    monkeypatch.setattr(flow.Flow, "add", lambda _, __, name: added.append(name))
    parser = Parser("flow")
    flow.configure(parser)
    url = "amqp://guest:guest@localhost"
    options = parser.parse_args(["queue:s", "--url", url, "--publish", "windows"])
    options.json = False
    running: Any = SimpleNamespace(options=options)

    with pytest.raises(SourceError):
        flow.run(running)

    assert added == []
