"""The benchmark's arithmetic and its page: figures in, text out. Nothing is timed or started."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from perf import bench, brokers, measure, procedure, record, report, scenario, topology
from perf.scenario import Row, ScenarioError, Target

PERF = Path(bench.__file__).parent


def result(
    rows: dict[str, dict[str, list[dict[str, Any]]]], *, rabbitmq_installed: bool = True
) -> dict[str, Any]:
    """Return a result record with the given repetitions by row and broker."""
    known = {row.name: row for row in scenario.load_rows()}
    names = {name for taken in rows.values() for name in taken} | {"ours"}
    entries = [
        {
            "name": name,
            "title": known[name].title,
            "note": known[name].note,
            "floor": list(known[name].floor),
            "results": {
                broker: {"repetitions": each} | record.summarise(each)
                for broker, each in taken.items()
            },
        }
        for name, taken in rows.items()
    ]
    return {
        "format": record.FORMAT,
        "date": "2026-01-02T03:04:05+00:00",
        "seconds": 10,
        "repetitions": 3,
        "machine": {"cpu": "Z80", "cores": 2, "memory_gib": 4, "kernel": "6", "python": "3.11"},
        "brokers": {name: {"label": name, "installed": True} for name in names}
        | {"rabbitmq": {"label": "RabbitMQ", "installed": rabbitmq_installed}},
        "rows": entries,
    }


def cpu(*values: float, **more: float) -> list[dict[str, Any]]:
    """Return repetitions that differ in CPU-s per million."""
    return [{"cpu_s_per_million": value} | more for value in values]


def line_of(page: str, *starts: str) -> list[str]:
    """Return the cells of the first table line whose first cells are these."""
    prefix = "| " + " | ".join(starts) + " |"
    line = next(line for line in page.splitlines() if line.startswith(prefix))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_cpu_seconds_are_scaled_to_a_million_messages() -> None:
    assert procedure.cpu_s_per_million(9.0, 60_000_000) == 0.15


def test_summary_takes_median_and_keeps_the_extremes_as_noise() -> None:
    summary = record.summarise(cpu(0.3, 0.1, 0.2))

    assert summary == {
        "median": {"cpu_s_per_million": 0.2},
        "min": {"cpu_s_per_million": 0.1},
        "max": {"cpu_s_per_million": 0.3},
    }


def test_summary_leaves_failed_repetitions_out() -> None:
    summary = record.summarise([*cpu(0.3), {"error": "the broker ended"}, *cpu(0.1)])

    assert summary["median"] == {"cpu_s_per_million": 0.2}


def test_summary_of_nothing_but_failures_is_empty() -> None:
    assert record.summarise([{"error": "x"}]) == {"median": {}, "min": {}, "max": {}}


def test_stat_counts_all_cpu_of_a_process_with_an_awkward_name() -> None:
    line = "7 (a ) b(c) S 3 7 9 0 -1 4194304 1 2 3 4 10 20 5 1 20 0 1 0 100 0 0"

    assert measure.parse_stat(line) == measure.Stat(7, "a ) b(c", parent=3, session=9, ticks=36)


def test_rollup_is_given_in_mebibytes() -> None:
    text = "55d0-7ffe ---p 00000000 00:00 0    [rollup]\nRss:   2048 kB\nAnonymous:    512 kB\n"

    assert measure.parse_rollup(text) == measure.Memory(rss_mib=2.0, anon_mib=0.5)


def test_file_system_is_that_of_the_innermost_mount() -> None:
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/disk xfs rw 0 0\n"

    kinds = [measure.file_system(Path(p), mounts) for p in ("/home", "/tmp/x", "/tmp/disk/y")]

    assert kinds == ["ext4", "tmpfs", "xfs"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(4_520_000, "4.52 M"), (999_900, "1.00 M"), (69_900, "69.9 k"), (812.4, "812"), (0, "0")],
)
def test_rates_are_written_with_three_digits(value: float, text: str) -> None:
    assert report.rate(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1138.2, "1138"), (13.71, "13.7"), (0.15, "0.15"), (0.0123, "0.012"), (0, "0.00")],
)
def test_numbers_are_written_without_exponent(value: float, text: str) -> None:
    assert report.digits(value) == text


def test_a_target_at_its_limit_is_met_on_either_side() -> None:
    at_most = Target("r", "m", at_most=0.15)
    at_least = Target("r", "m", at_least=2.0)

    assert (at_most.is_met(0.15), at_most.is_met(0.16)) == (True, False)
    assert (at_least.is_met(2.0), at_least.is_met(1.9)) == (True, False)


def test_advantage_is_above_one_when_ours_is_better_whatever_the_unit() -> None:
    assert report.advantage("cpu_s_per_million", 0.5, 10) == "20.0x"
    assert report.advantage("publish_per_s", 4_000_000, 80_000) == "50.0x"
    assert report.advantage("publish_per_s", 40, 80) == "0.50x"
    assert report.advantage("publish_per_s", None, 80) == report.NONE


def test_page_compares_with_target_original_rabbitmq_and_floor() -> None:
    both = {"ours": cpu(0.2, 0.3, 0.4), "rabbitmq": cpu(12, 12, 12)}
    floors = {name: {"null": cpu(0.015)} for name in ("floor-receive", "floor-send")}

    page = report.render(result(floors | {"both-autoack": both}), scenario.load_targets(), "")

    assert line_of(page, "in and out, auto-ack", "CPU-s per million")[2:] == [
        "≤ 0.30",
        "0.30 (0.20 … 0.40)",
        "met",
        "1.04",
        "12.0",
        "40.0x",
        "10.0x",
    ]


def test_page_says_missed_not_measured_and_not_installed() -> None:
    page = report.render(
        result({"publish-only": {"ours": cpu(0.5)}}, rabbitmq_installed=False),
        scenario.load_targets(),
        "",
    )

    cells = line_of(page, "publish only", "CPU-s per million")
    assert cells[4] == "**missed**"
    assert cells[6] == "not installed"
    assert cells[7:] == [report.NONE, report.NONE]
    assert line_of(page, "publish only", "published/s")[4] == report.NOT_MEASURED
    limited = sum(target.has_limit for target in scenario.load_targets())
    assert f"0 of {limited} targets met, {limited - 1} not measured." in page


def test_page_shows_operations_beside_the_bare_sync_rate() -> None:
    taken = cpu(566, done_per_s=880.0, sync_per_s=1000.0, sync_ratio=0.88)

    page = report.render(result({"bind-durable": {"ours": taken}}), scenario.load_targets(), "")

    verdict = line_of(page, "binds, durable, one by one", "per bare sync")
    assert verdict[2:5] == ["≥ 1.00", "0.88 (0.88 … 0.88)", "**missed**"]
    line = line_of(page, "binds, durable, one by one", "ours")
    assert line[2:4] == ["880", "566 (566 … 566)"]
    assert line[-1] == "bare syncs/s 1.00 k, per bare sync 0.88"


def test_page_lists_failed_repetitions() -> None:
    failed = [*cpu(0.1), {"error": "10 messages went in, 9 came out\nlog"}]

    page = report.render(result({"consume-only": {"ours": failed}}), [], "")

    assert "* consume only, auto-ack, ours: 10 messages went in, 9 came out" in page


def test_page_includes_the_profiles_as_they_are_and_only_if_there_are_any() -> None:
    profiles = "### Receive\n\n* 40 % parsing"

    with_profiles = report.render(result({}), [], profiles + "\n")
    without = report.render(result({}), [], "")

    assert with_profiles.endswith(f"## Profiles\n\n{profiles}\n")
    assert "## Profiles" not in without


def test_page_shows_the_ratio_to_a_baseline_of_the_same_run() -> None:
    row = {"publish-only": {"ours": cpu(0.10), "baseline": cpu(0.15)}}

    page = report.render(result(row), [], "")

    assert "| publish only | CPU-s per million | 0.10 | 0.15 | 1.50x |" in page


def test_floor_is_unknown_when_a_part_is_missing() -> None:
    rows = {"floor-send": {"null": cpu(0.01)}, "both-autoack": {"ours": cpu(0.3)}}

    assert report.floor_cpu(result(rows), "both-autoack") is None


def test_record_survives_saving_and_refuses_another_format(tmp_path: Path) -> None:
    kept = result({"publish-only": {"ours": cpu(0.1)}})
    path = tmp_path / "results" / "today.json"

    record.save(kept, path)

    assert record.load(path) == kept
    path.write_text(json.dumps(kept | {"format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        record.load(path)


def test_every_target_names_a_row_and_a_figure_the_page_can_write() -> None:
    rows = {row.name for row in scenario.load_rows()}

    unknown = [
        target
        for target in scenario.load_targets()
        if target.row not in rows or target.metric not in report.METRICS
    ]

    assert unknown == []


def test_selected_rows_bring_their_floors_along() -> None:
    rows = scenario.load_rows()

    picked = scenario.select(rows, "consume-*,idle", ["ours", "null"], long=False)

    assert [row.name for row in picked] == ["floor-send", "consume-only", "idle"]


def test_long_rows_come_only_when_asked_for() -> None:
    rows = [Row("a", "a", "idle"), Row("b", "b", "idle", long=True)]

    assert scenario.select(rows, "*", ["ours"], long=False) == rows[:1]
    assert scenario.select(rows, "*", ["ours"], long=True) == rows
    with pytest.raises(ScenarioError, match="no row"):
        scenario.select(rows, "b", ["ours"], long=False)


def test_every_row_knows_its_generator_and_how_much_to_do() -> None:
    rows = {row.name: row for row in scenario.load_rows()}

    for row in rows.values():
        is_churn = row.kind in ("churn", "sweep")
        assert row.generator in bench.PROGRAMS
        assert (row.generator == "churnflood", row.per == "done") == (is_churn, is_churn)
        keeps = row.name in ("connections-8k", "queues-100k")
        counts = ("restart", "enqueue", "expire", "delayed")
        assert bool(row.count) == (keeps or row.kind in counts)
    assert rows["publishers"].clients == (10, 100, 1000)


def test_unknown_row_settings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.toml"
    path.write_text('[[row]]\nname = "a"\ntitle = "a"\nkind = "idle"\ncolour = 1\n')

    with pytest.raises(ScenarioError, match=r"row a: .*colour"):
        scenario.load_rows(path)


def words_match(pattern: list[str], key: list[str]) -> bool:
    """Match a topic pattern word by word, by its definition."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(words_match(pattern[1:], key[skip:]) for skip in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and words_match(pattern[1:], key[1:])


def test_each_topic_key_matches_exactly_one_binding() -> None:
    patterns = [pattern.split(".") for pattern in topology.topic_patterns_1000()]
    keys = [topology.topic_key(number).split(".") for number in range(0, 100_000, 997)]

    matches = {sum(words_match(pattern, key) for pattern in patterns) for key in keys}

    assert matches == {1}
    assert len(patterns) == 1000


def test_the_fixed_topic_key_matches_exactly_one_of_the_hundred_bindings() -> None:
    row = next(row for row in scenario.load_rows() if row.name == "topic-100")
    key = row.options.split()[-1].split(".")
    patterns = topology.topic_patterns_100()

    assert [p for p in patterns if words_match(p.split("."), key)] == ["sensor.42.*"]
    assert len(set(patterns)) == 100


def test_the_c_generator_builds_the_same_keys() -> None:
    source = (PERF / "topicflood.c").read_text()
    call = re.search(r'snprintf\(key, sizeof key, "([^"]+)", (.+)\);', source)

    assert call is not None
    assert call[2] == "i % 25, i, i / 25 % 40"
    number = 12_345
    assert call[1] % (number % 25, number, number // 25 % 40) == topology.topic_key(number)


def test_broker_command_gets_the_usual_options_unless_it_brings_its_own(tmp_path: Path) -> None:
    usual = brokers.ours("ours", "lavinmq", "/opt/lavinmq")
    own = brokers.ours("ours", "lavinmq", "/opt/other --listen {port}")
    assert usual.launch is not None
    assert own.launch is not None

    first, second = usual.launch(tmp_path, 16), own.launch(tmp_path, 16)

    assert first.argv[:3] == ("/opt/lavinmq", "-D", str(tmp_path / "data"))
    assert str(first.port) in first.argv
    assert second.argv == ("/opt/other", "--listen", str(second.port))


def test_an_unknown_placeholder_in_the_broker_command_is_named(tmp_path: Path) -> None:
    broken = brokers.ours("ours", "lavinmq", "x {prt}")
    assert broken.launch is not None

    with pytest.raises(measure.BenchError, match="prt"):
        broken.launch(tmp_path, 16)


def test_only_a_full_run_replaces_the_committed_page() -> None:
    full = bench.parse([])
    partial = bench.parse(["--rows", "idle"])
    elsewhere = bench.parse(["--out", "/tmp/x.json"])

    assert full.report == bench.DOCUMENT
    assert full.out.parent == bench.PERF / "results"
    assert partial.report == partial.out.with_suffix(".md") != bench.DOCUMENT
    assert elsewhere.report == Path("/tmp/x.md")
