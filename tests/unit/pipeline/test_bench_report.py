"""What bench-report writes, and which files and figures it takes; no Spark."""

from __future__ import annotations

import argparse
import os
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lavinmq.pipeline import plots
from lavinmq.pipeline.bench_results import Comparison
from lavinmq.pipeline.cli import main
from lavinmq.pipeline.errors import PipelineError
from lavinmq.pipeline.jobs import bench_report
from tests.support.little_disk import files_of_at_most


def figure(row: str, metric: str, verdict: str, worse_by: float | None, **more: Any) -> Any:
    values = {"n": 3, "low": 1.0, "p50": 2.0, "p90": 3.0, "p99": 3.0, "high": 4.0, "ratio": 1.5}
    names = {"run": "new", "date": "2026-02-01", "cpu": "a", "broker": "ours", "title": row}
    base = {"base_run": "old", "base_cpu": "a", "base_p50": 1.3, "base_low": 1.0, "base_high": 1.5}
    judged = {"row": row, "metric": metric, "verdict": verdict, "worse_by": worse_by}
    return values | names | base | judged | {"better": "less"} | more


def wanted(rows: str = "*", brokers: str = "*", figures: str = "*") -> argparse.Namespace:
    return argparse.Namespace(rows=rows, brokers=brokers, figures=figures)


def test_the_worst_regression_comes_first() -> None:
    given = [
        figure("a", "rss_mib", "same", 0.0),
        figure("b", "rss_mib", "regression", 0.3),
        figure("c", "rss_mib", "regression", 2.0),
        figure("d", "rss_mib", "better", -0.5),
    ]

    chosen = bench_report.select(given, wanted())

    assert [each["row"] for each in chosen] == ["c", "b", "d", "a"]


def test_rows_and_figures_are_chosen_by_globs() -> None:
    given = [
        figure("confirm-1", "rss_mib", "same", 0.0),
        figure("confirm-1", "done_per_s", "same", 0.0),
        figure("idle", "rss_mib", "same", 0.0),
    ]

    chosen = bench_report.select(given, wanted(rows="confirm-*,start", figures="*_per_s,x"))

    assert [(each["row"], each["metric"]) for each in chosen] == [("confirm-1", "done_per_s")]


def test_the_text_names_each_regression_and_its_base() -> None:
    given = [figure("confirm-1", "cpu_s_per_million", "regression", 0.54)]
    failed = [{"run": "new", "row": "idle", "broker": "ours", "error": "no answer\nfrom port"}]

    text = bench_report.text(given, failed, Comparison(), is_all=False)

    assert text.startswith("1 of 1 compared figures are more than 25% worse")
    assert (
        "confirm-1  ours    cpu_s_per_million  new  3    2    3    3       old   1.3   1.50" in text
    )
    assert "new  idle  ours: no answer from port" in text
    assert "another processor" not in text


def test_a_base_on_another_processor_is_told() -> None:
    given = [figure("a", "rss_mib", "same", 0.0, base_cpu="b")]

    assert "another processor" in bench_report.text(given, [], Comparison(), is_all=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((4_519_000.0, "4.52 M"), (69_900.0, "69.9 k"), (999_600.0, "1.00 M"), (812.4, "812")),
        *((0.0712, "0.0712"), (0.0, "0"), (-2.5, "-2.5")),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert bench_report.number(value) == text


@pytest.mark.parametrize(("text", "value"), [("25%", 0.25), ("5", 0.05), ("150 %", 1.5)])
def test_a_threshold_is_a_percentage(text: str, value: float) -> None:
    assert bench_report.share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["0", "-3%", "nan", "inf", "much", ""])
def test_a_threshold_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="percentage above 0"):
        bench_report.share(text)


def test_each_file_is_read_once_whatever_its_name(tmp_path: Path) -> None:
    for name in ("a.json", "b [1]{x}.json"):
        (tmp_path / name).write_text("{}")

    exact = str(tmp_path / "b [1]{x}.json")
    found = bench_report.find_files([str(tmp_path / "*.json"), exact])

    assert found == [f"file://{tmp_path}/a.json", f"file://{tmp_path}/b \\[1\\]\\{{x\\}}.json"]


def test_a_name_without_a_file_is_an_error() -> None:
    with pytest.raises(PipelineError, match=r"nothing/\*\.json: no such file"):
        bench_report.find_files(["nothing/*.json"])


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--threshold", "0"], "expected a percentage above 0, got: 0"),
        (["--base", "a", "--against", "b"], "--base and --against exclude each other"),
        (["--base", "a", "--run", "a"], "--base is the run to judge"),
    ],
)
def test_wrong_usage_is_one_line_and_starts_no_session(
    args: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench-report", *args]) == 2

    error = capsys.readouterr().err.splitlines()
    assert error[0].startswith("Error: ") and error[0].endswith(complaint)
    assert error[1] == "See lavinmq-pipeline bench-report --help"


class Links(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            is_link = name in {"src", "href", "xlink:href", "data", "action"}
            if is_link and value and not value.startswith("#"):
                self.loads.append(value)


def test_a_page_stands_alone_and_shows_names_as_text(tmp_path: Path) -> None:
    evil = "<script src=http://example.com/x.js>$x$"
    page = plots.Page(evil)
    page.table(("row", "n"), [(evil, "1")], 1, ["bad"])
    page.figure(plots.bars(evil, [(evil, 3.0), ("b", -2.0)], "%", 1.0))
    page.figure(
        plots.lines(evil, {evil: [(0, 1.0), (1, None), (2, 2.0)]}, "x", names=["p", "q", "r"])
    )

    page.save(tmp_path / "new" / "page.html")

    text = (tmp_path / "new" / "page.html").read_text()
    links = Links()
    links.feed(text)
    assert links.loads == []
    assert "script" not in links.tags and links.tags.count("svg") == 2
    assert "default-src 'none'" in text


@pytest.mark.parametrize("kind", ["page", "picture"])
def test_a_disk_that_is_full_leaves_the_report_of_before(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "report"
    path.write_text("before")

    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        if kind == "page":
            plots.Page("after").save(path)
        else:
            plots.save_png(plots.bars("t", [("a", 1.0)], "%"), path)

    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report", "before")]


def test_a_page_may_go_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    plots.Page("title").save(tmp_path / "pipe")

    assert os.read(reading, 9) == b"<!doctype"
    os.close(reading)


@pytest.mark.parametrize(
    ("failed", "globs", "how", "found"),
    [
        (("newer", "2026-02-02", "a"), wanted(), Comparison(), ["newer"]),
        (("newer", "2026-02-02", "a"), wanted("b"), Comparison(), []),
        (("newer", "2026-02-02", "a"), wanted(), Comparison(run="new"), []),
        (("older", "2026-01-01", "a"), wanted(), Comparison(), []),
        (("older", "2026-01-01", "a"), wanted(), Comparison(run="older"), ["older"]),
        (("new", "2026-02-01", "a"), wanted(), Comparison(), []),
        (("new", "2026-02-01", "other"), wanted(), Comparison(run="new"), ["new"]),
    ],
)
def test_what_failed_as_a_whole_is_told_from_what_failed_once(
    failed: tuple[str, str, str], globs: argparse.Namespace, how: Comparison, found: list[str]
) -> None:
    run, date, row = failed
    failure = {"run": run, "date": date, "row": row, "broker": "ours", "error": "no answer"}

    lost = bench_report.lost([failure] * 2, [figure("a", "x", "same", 0.0)], how, globs)

    assert [each["run"] for each in lost] == found


def test_equal_figures_give_equal_text() -> None:
    drawn = [plots.svg(plots.bars("t", [("a", 1.0)], "%")) for _ in range(2)]

    assert drawn[0] == drawn[1]


def test_a_figure_becomes_a_png(tmp_path: Path) -> None:
    points = [(1_700_000_000.0, 1.0), (1_700_000_060.0, 4.0)]

    plots.save_png(plots.lines("t", {"a": points}, "x", is_time=True), tmp_path / "d" / "a.png")

    assert (tmp_path / "d" / "a.png").read_bytes().startswith(b"\x89PNG")


def test_trends_are_relative_to_the_first_run() -> None:
    assert bench_report.relative({4: 3.0, 1: 2.0}) == [(1, 1.0), (4, 1.5)]
