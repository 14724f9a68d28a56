"""The table of what the pages promise names tests that there are, and each promise once."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROW = re.compile(
    r"^\| (?:(?P<numbers>[\d–, ]+) \| )?.* \| (?P<file>test_\w+)\.(?P<test>test_\w+) \|$"
)


def rows() -> list[re.Match[str]]:
    lines = (HERE / "CHECKS.md").read_text().splitlines()
    return [found for line in lines if (found := ROW.match(line))]


def test_each_promise_has_a_test() -> None:
    for row in rows():
        source = (HERE / f"{row['file']}.py").read_text()
        assert f"def {row['test']}(" in source, row[0]


def test_each_number_is_there_once() -> None:
    numbers: list[int] = []
    for row in rows():
        for part in (row["numbers"] or "").split(","):
            first, _, last = part.strip().partition("–")
            if first:
                numbers += range(int(first), int(last or first) + 1)
    assert sorted(numbers) == list(range(1, 135))
