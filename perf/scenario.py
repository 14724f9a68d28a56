"""The rows of the benchmark and their targets as data.

Owns the meaning of `scenarios/rows.toml` and `scenarios/targets.toml`. Called by `bench.py`
(rows) and `report.py` (targets). Never starts a process.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

SCENARIOS = Path(__file__).resolve().parent / "scenarios"
KINDS = (
    "traffic", "drain", "idle", "start", "restart", "enqueue", "expire", "delayed", "churn",
    "sweep",
)  # fmt: skip
DIVISORS = ("published", "consumed", "confirmed", "done")
NULL = "null"


class ScenarioError(Exception):
    """The scenario data or a selection from it makes no sense."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row; the fields are described at the head of `scenarios/rows.toml`."""

    name: str
    title: str
    kind: str
    note: str = ""
    generator: str = "flood"
    options: str = ""
    per: str = "published"
    queue: str = ""
    topology: str = ""
    body: int = 16
    count: Mapping[str, int] = field(default_factory=dict)
    fill_per_s: Mapping[str, int] = field(default_factory=dict)
    clients: tuple[int, ...] = ()
    bare_syncs: bool = False
    floor: tuple[str, ...] = ()
    brokers: tuple[str, ...] = ()
    long: bool = False

    def runs_on(self, broker: str) -> bool:
        """Tell whether this row is measured for a broker; the null broker must be named."""
        return broker in self.brokers if self.brokers else broker != NULL


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for one figure of one row, and what the original reached (None: not measured)."""

    row: str
    metric: str
    at_most: float | None = None
    at_least: float | None = None
    original: float | None = None

    def is_met(self, value: float) -> bool:
        """Compare a measured value with the limit; without a limit everything is met."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is None or value >= self.at_least

    @property
    def has_limit(self) -> bool:
        """Whether there is anything to meet."""
        return self.at_most is not None or self.at_least is not None


def load_rows(path: Path = SCENARIOS / "rows.toml") -> list[Row]:
    """Read all rows in file order. Raises `ScenarioError` for unknown kinds, keys and floors."""
    rows = [_row(entry) for entry in tomllib.loads(path.read_text())["row"]]
    names = [row.name for row in rows]
    if len(set(names)) != len(names):
        raise ScenarioError(f"{path}: two rows of one name")
    for row in rows:
        if unknown := set(row.floor) - set(names):
            raise ScenarioError(f"row {row.name}: unknown floor {sorted(unknown)}")
    return rows


def load_targets(path: Path = SCENARIOS / "targets.toml") -> list[Target]:
    """Read all targets in file order. Raises `ScenarioError` for two limits on one figure."""
    targets = [Target(**entry) for entry in tomllib.loads(path.read_text())["target"]]
    for target in targets:
        if target.at_most is not None and target.at_least is not None:
            raise ScenarioError(f"target {target.row} {target.metric}: two limits")
    return targets


def load_original_floors(path: Path = SCENARIOS / "targets.toml") -> dict[str, float]:
    """Read what the null broker took on the machine of the original, CPU-s/M by row."""
    floors: dict[str, float] = tomllib.loads(path.read_text())["original_floor"]
    return floors


def select(rows: Sequence[Row], pattern: str, brokers: Sequence[str], *, long: bool) -> list[Row]:
    """Pick rows by name pattern (several with commas), and the floors they refer to.

    `long` rows only come along when asked for. Raises `ScenarioError` when nothing is left.
    """
    patterns = pattern.split(",")
    chosen = [row for row in rows if any(fnmatchcase(row.name, each) for each in patterns)]
    chosen = [row for row in chosen if long or not row.long]
    wanted = {row.name for row in chosen} | {name for row in chosen for name in row.floor}
    picked = [row for row in rows if row.name in wanted and any(map(row.runs_on, brokers))]
    if not picked:
        raise ScenarioError(f"no row matches {pattern!r} for {', '.join(brokers)}")
    return picked


def _row(entry: dict[str, Any]) -> Row:
    lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    try:
        row = Row(**(entry | lists))
    except TypeError as error:
        raise ScenarioError(f"row {entry.get('name')}: {error}") from error
    if row.kind not in KINDS or row.per not in DIVISORS:
        raise ScenarioError(f"row {row.name}: unknown kind or divisor")
    return row
