"""The result file: all repetitions of all rows, their medians and their spread.

Owns the JSON format below `perf/results/`. Written by `bench.py` after every row, read by
`report.py`. A repetition that failed is kept as `{"error": text}` and left out of the summary.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

FORMAT = 1
ERROR = "error"


def summarise(repetitions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return median, smallest and largest value of every figure over the good repetitions."""
    values: dict[str, list[float]] = {}
    for repetition in repetitions:
        if ERROR in repetition:
            continue
        for key, value in repetition.items():
            values.setdefault(key, []).append(value)
    return {
        "median": {key: median(each) for key, each in values.items()},
        "min": {key: min(each) for key, each in values.items()},
        "max": {key: max(each) for key, each in values.items()},
    }


def figure(record: Mapping[str, Any], row: str, broker: str, metric: str) -> float | None:
    """Return the median of a figure, or None when it was not measured."""
    return spread(record, row, broker, metric)[0]


def spread(
    record: Mapping[str, Any], row: str, broker: str, metric: str
) -> tuple[float | None, float | None, float | None]:
    """Return median, smallest and largest value of a figure; None when it was not measured."""
    for entry in record["rows"]:
        if entry["name"] == row:
            result = entry["results"].get(broker, {})
            middle, low, high = (result.get(k, {}).get(metric) for k in ("median", "min", "max"))
            return middle, low, high
    return None, None, None


def save(record: Mapping[str, Any], path: Path) -> None:
    """Write a record; a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(record, indent=1) + "\n")
    os.replace(draft, path)


def load(path: Path) -> dict[str, Any]:
    """Read a record. Raises `ValueError` when the file has another format."""
    record: dict[str, Any] = json.loads(path.read_text())
    if record.get("format") != FORMAT:
        raise ValueError(f"{path}: result format {record.get('format')}, not {FORMAT}")
    return record
