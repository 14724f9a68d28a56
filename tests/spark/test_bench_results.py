"""bench-report on result files: those of this project and made-up ones with known answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lavinmq.pipeline import bench_results
from lavinmq.pipeline.bench_results import Comparison
from lavinmq.pipeline.errors import FAILED, PipelineError
from lavinmq.pipeline.jobs.bench_report import find_files
from tests.spark.jobs import run_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

RESULTS = Path(__file__).resolve().parents[2] / "perf" / "results"


def save(
    path: Path, date: str, rows: dict[str, dict[str, list[dict[str, Any]]]], cpu: str = "fast"
) -> str:
    """Write a result file as perf/record.py does, without the parts nobody reads."""
    entries = [
        {
            "name": name,
            "title": name,
            "results": {broker: {"repetitions": each} for broker, each in brokers.items()},
        }
        for name, brokers in rows.items()
    ]
    result = {"format": 1, "date": date, "machine": {"cpu": cpu, "cores": 2}, "rows": entries}
    path.write_text(json.dumps(result))
    return str(path)


def cpu(*values: float) -> list[dict[str, Any]]:
    return [{"cpu_s_per_million": value} for value in values]


def summary(spark: SparkSession, *paths: str) -> DataFrame:
    files = bench_results.read(spark, find_files(paths))
    return bench_results.summary(bench_results.figures(files)).cache()


def verdicts(compared: DataFrame) -> dict[str, str]:
    return {f"{row.row} {row.metric}": row.verdict for row in compared.collect()}


def only(rows: list[Row]) -> Row:
    assert len(rows) == 1
    return rows[0]


@pytest.mark.nightly
def test_percentiles_are_those_of_the_repetitions(spark: SparkSession, tmp_path: Path) -> None:
    path = save(tmp_path / "a.json", "2026-01-01", {"r": {"ours": cpu(1.0, 2.0, 4.0)}})

    found = only(summary(spark, path).collect())

    assert (found.run, found.row, found.broker, found.n) == ("a", "r", "ours", 3)
    assert (found.low, found.p50, found.high) == (1.0, 2.0, 4.0)
    assert found.p90 == pytest.approx(3.6) and found.p99 == pytest.approx(3.96)


def test_a_gate_does_not_pass_what_was_not_compared(spark: SparkSession, tmp_path: Path) -> None:
    paths = [
        save(tmp_path / "old.json", "2026-01-01", {"r": {"ours": cpu(1.0)}}),
        save(tmp_path / "new.json", "2026-01-02", {"r": {"ours": [{"error": "no answer"}]}}),
    ]

    found = run_job(spark, "bench-report", *paths, "--fail-on-regression")

    assert (found.status, found.values["regressions"]) == (FAILED, 0)
    assert found.values["lost"] == [{"run": "new", "row": "r", "broker": "ours"}]
    with pytest.raises(PipelineError, match="no figure is named by --rows"):
        run_job(spark, "bench-report", *paths, "--rows", "R")


@pytest.mark.nightly
def test_a_failed_repetition_is_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    rows = {"r": {"ours": [*cpu(1.0), {"error": "no answer"}]}}
    path = save(tmp_path / "a.json", "2026-01-01", rows)

    values = bench_results.figures(bench_results.read(spark, find_files([path])))

    assert only(bench_results.summary(values).collect()).n == 1
    failure = only(bench_results.failures(values).collect())
    assert (failure.row, failure.error) == ("r", "no answer")


def test_each_way_of_getting_worse_has_its_verdict(spark: SparkSession, tmp_path: Path) -> None:
    def repetitions(metric: str, *values: float) -> dict[str, list[dict[str, Any]]]:
        return {"ours": [{metric: value} for value in values]}

    old = {
        "slower": repetitions("publish_per_s", 100, 110),
        "faster": repetitions("publish_per_s", 100, 110),
        "dearer": repetitions("cpu_s_per_million", 1.0, 1.1),
        "cheaper": repetitions("cpu_s_per_million", 1.0, 1.1),
        "steady": repetitions("latency_p99_ms", 1.0, 1.1),
        "noisy": repetitions("latency_p99_ms", 1.0, 9.0),
        "counted": repetitions("published", 1.0, 1.1),
        "silent": repetitions("consume_per_s", 0, 0),
        "stopped": repetitions("consume_per_s", 100, 110),
    }
    new = {
        "slower": repetitions("publish_per_s", 60, 70),
        "faster": repetitions("publish_per_s", 160, 170),
        "dearer": repetitions("cpu_s_per_million", 1.6, 1.7),
        "cheaper": repetitions("cpu_s_per_million", 0.5, 0.6),
        "steady": repetitions("latency_p99_ms", 1.2, 1.25),
        "noisy": repetitions("latency_p99_ms", 7.0, 8.0),
        "counted": repetitions("published", 9.0, 9.1),
        "silent": repetitions("consume_per_s", 0, 0),
        "stopped": repetitions("consume_per_s", 0, 0),
        "born": repetitions("rss_mib", 5.0),
    }
    paths = [
        save(tmp_path / "old.json", "2026-01-01", old),
        save(tmp_path / "new.json", "2026-01-02", new),
    ]

    compared = bench_results.compare(summary(spark, *paths), Comparison(threshold=0.25))

    assert {name.split()[0]: verdict for name, verdict in verdicts(compared).items()} == {
        "slower": "regression",
        "faster": "better",
        "dearer": "regression",
        "cheaper": "better",
        "steady": "same",
        "noisy": "noise",
        "counted": "shown",
        "silent": "shown",
        "stopped": "regression",
        "born": "new",
    }
    worse = {row.row: row.worse_by for row in compared.collect()}
    assert worse["dearer"] == pytest.approx(1.65 / 1.05 - 1)
    assert worse["slower"] == pytest.approx(105 / 65 - 1)
    assert worse["counted"] is None


def test_the_base_is_the_run_before_on_the_same_processor(
    spark: SparkSession, tmp_path: Path
) -> None:
    paths = [
        save(tmp_path / "one.json", "2026-01-01", {"r": {"ours": cpu(1.0)}}),
        save(tmp_path / "two.json", "2026-01-02", {"r": {"ours": cpu(2.0)}}),
        save(tmp_path / "other.json", "2026-01-03", {"r": {"ours": cpu(9.0)}}, cpu="slow"),
        save(tmp_path / "now.json", "2026-01-04", {"r": {"ours": cpu(2.2)}}),
    ]
    figures = summary(spark, *paths)

    def base(how: Comparison) -> tuple[str, str, str]:
        found = only(bench_results.compare(figures, how).collect())
        return found.run, found.base_run, found.verdict

    assert base(Comparison()) == ("now", "two", "same")
    assert base(Comparison(any_machine=True)) == ("now", "other", "better")
    assert base(Comparison(base="one")) == ("now", "one", "regression")
    assert base(Comparison(run="two")) == ("two", "one", "regression")


@pytest.mark.nightly
def test_another_broker_of_the_same_run_can_be_the_base(
    spark: SparkSession, tmp_path: Path
) -> None:
    both = {"ours": cpu(1.0), "baseline": cpu(0.5)}
    paths = [
        save(tmp_path / "one.json", "2026-01-01", {"r": both}),
        save(tmp_path / "two.json", "2026-01-02", {"r": {"ours": cpu(0.1)}}),
    ]

    compared = bench_results.compare(summary(spark, *paths), Comparison(against="baseline"))

    found = only(compared.collect())
    assert (found.run, found.base_run, found.verdict) == ("one", "one", "regression")
    assert found.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no json", "bad: not a JSON object of benchmark results"),
        ("{}", "bad: holds no benchmark results"),
        ('{"format": 2, "rows": []}', "bad: result format 2, not 1"),
        (
            '{"rows": [{"name": "publish", "accepted": 1.0}]}',
            "bad: has rows without results: not a file of bench.py",
        ),
    ],
)
def test_what_is_no_result_file_is_named(
    spark: SparkSession, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "bad.json").write_text(text)

    with pytest.raises(PipelineError) as caught:
        bench_results.read(spark, find_files([str(tmp_path / "bad.json")]))

    assert str(caught.value) == complaint


def test_two_files_of_one_name_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    paths = [
        save(tmp_path / "a.json", "2026-01-01", {"r": {"ours": cpu(1.0)}}),
        save(tmp_path / "b" / "a.json", "2026-01-02", {"r": {"ours": cpu(1.0)}}),
    ]

    with pytest.raises(PipelineError, match="a: two files of this name"):
        bench_results.read(spark, find_files(paths))


def test_our_own_results_are_read_whole(spark: SparkSession) -> None:
    """Every repetition of every file of this project is a figure; medians are those of the file."""
    paths = sorted(RESULTS.glob("*.json"))
    figures = {
        (row.run, row.row, row.broker, row.metric): (row.n, row.p50)
        for row in summary(spark, *map(str, paths)).collect()
    }

    expected = {
        (path.stem, row["name"], broker, metric): (len(measured["repetitions"]), median)
        for path in paths
        for row in json.loads(path.read_text()).get("rows", [])
        for broker, measured in row["results"].items()
        for metric, median in measured["median"].items()
    }
    assert expected
    for key, (n, median) in expected.items():
        assert figures[key] == (n, pytest.approx(median)), key
    rows = {row for _, row, _, _ in figures}
    assert {"soak-load", "soak-drained", "management-tls"} <= rows


@pytest.mark.nightly
def test_a_soak_becomes_rates_and_gauges(spark: SparkSession, tmp_path: Path) -> None:
    def sample(at_s: float, phase: str, published: int, cpu_s: float, rss: float) -> dict[str, Any]:
        counts = {"published": published, "cpu_s": cpu_s, "rss_mib": rss}
        return {"at_s": at_s, "phase": phase, **counts}

    samples = [
        sample(0.0, "idle", 0, 0.0, 10.0),
        sample(10.0, "load", 1_000_000, 1.0, 30.0),
        sample(20.0, "load", 3_000_000, 5.0, 40.0),
        sample(30.0, "drained", 3_000_000, 6.0, 20.0),
    ]
    path = tmp_path / "soak.json"
    path.write_text(json.dumps({"date": "2026-01-01", "samples": samples}))

    found = {(row.row, row.metric): row for row in summary(spark, str(path)).collect()}

    rate, cost = found["soak-load", "publish_per_s"], found["soak-load", "cpu_s_per_million"]
    assert (rate.low, rate.high) == (100_000.0, 200_000.0)
    assert (cost.low, cost.high) == (1.0, 2.0)
    assert found["soak-drained", "rss_mib"].p50 == 20.0
    assert ("soak-drained", "publish_per_s") not in found
