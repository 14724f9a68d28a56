"""The page of performance: figures of the original are scaled to the machine of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perf import report, scenario
from perf.scenario import Target


def result(receive: float, send: float, floor: tuple[str, ...]) -> dict[str, Any]:
    """A result with both floors and one row."""
    floors = {"floor-receive": receive, "floor-send": send}
    rows = [
        {
            "name": name,
            "floor": [],
            "results": {"null": {"median": {"cpu_s_per_million": value}}},
        }
        for name, value in floors.items()
    ]
    return {"rows": [*rows, {"name": "both-autoack", "floor": list(floor), "results": {}}]}


BOTH = ("floor-receive", "floor-send")


@pytest.mark.parametrize(
    ("metric", "original", "text"),
    [
        ("cpu_s_per_million", 1.04, "0.52 (1.04)"),
        ("consume_per_s", 950_000, "1.90 M (950 k)"),
        ("rss_mib", 14.0, "14.0"),
    ],
)
def test_a_machine_twice_as_fast_halves_the_processor_time(
    metric: str, original: float, text: str
) -> None:
    there = scenario.load_original_floors()
    taken = result(there["floor-receive"] / 2, there["floor-send"] / 2, BOTH)

    assert report.original_cell(taken, Target("both-autoack", metric, original=original)) == text


@pytest.mark.parametrize("floor", [(), ("floor-receive-1k",)])
def test_without_a_floor_there_is_only_what_was_measured(floor: tuple[str, ...]) -> None:
    taken = result(0.006, 0.01, floor)
    target = Target("both-autoack", "cpu_s_per_million", original=1.04)

    assert report.original_cell(taken, target) == "1.04"


def test_the_page_is_what_the_bench_wrote_from_its_result_and_the_text_kept_by_hand() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs/performance.md").read_text()
    taken = [
        result
        for path in (root / "perf/results").glob("*.json")
        if (result := json.loads(path.read_text())).get("date", "none")
        in page.split("## Targets")[0]
    ]
    by_hand = (root / "docs/performance-profiles.md").read_text()

    assert len(taken) == 1
    assert page == report.render(taken[0], scenario.load_targets(), by_hand)
