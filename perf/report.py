"""The performance page: one result file rendered as Markdown.

Owns wording, units and rounding. Called by `bench.py`; pure text in, text out. Never measures,
and never invents: what a result file does not hold is shown as not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf import record, scenario
from perf.scenario import Target

OURS, BASELINE, RABBITMQ, NULL = "ours", "baseline", "rabbitmq", "null"
CPU = "cpu_s_per_million"
NOT_MEASURED = "not measured"
NONE = "–"
METHOD = scenario.SCENARIOS / "method.md"
DETAIL = (
    ("publish_per_s", "published/s"),
    ("consume_per_s", "consumed/s"),
    (CPU, "broker CPU-s/M"),
    ("broker_cores", "broker cores"),
    ("generator_cores", "generator cores"),
    ("other_cores", "other load"),
    ("rss_mib", "resident MiB"),
    ("anon_mib", "anonymous MiB"),
)
CHURN_DETAIL = (("done_per_s", "operations/s"), *DETAIL[2:])


@dataclass(frozen=True, slots=True)
class Metric:
    """How a figure is called and written; `more_is_better` turns ratios the right way round."""

    label: str
    write: Callable[[float], str]
    more_is_better: bool = False


def rate(value: float) -> str:
    """Write messages per second in three digits: 4.52 M, 69.9 k, 812."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if value >= size * 0.9995:
            return f"{digits(value / size)}{unit}"
    return f"{value:.0f}"


def digits(value: float) -> str:
    """Write a number with three significant digits, without an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 or value == 0 else f"{value:.3f}"


def signed(value: float) -> str:
    """Write a growth in MiB."""
    return f"{value:+.1f}"


def whole(value: float) -> str:
    """Write a number of things."""
    return f"{value:.0f}"


METRICS: Mapping[str, Metric] = {
    CPU: Metric("CPU-s per million", digits),
    "publish_per_s": Metric("published/s", rate, more_is_better=True),
    "consume_per_s": Metric("consumed/s", rate, more_is_better=True),
    "latency_p50_ms": Metric("p50 ms", digits),
    "latency_p99_ms": Metric("p99 ms", digits),
    "rss_mib": Metric("resident MiB", digits),
    "anon_mib": Metric("anonymous MiB", digits),
    "anon_growth_mib": Metric("anonymous growth, MiB", signed),
    "rss_growth_mib": Metric("resident growth, MiB", signed),
    "rss_kib_each": Metric("KiB each", digits),
    "done_per_s": Metric("operations/s", rate, more_is_better=True),
    "sync_per_s": Metric("bare syncs/s", rate, more_is_better=True),
    "sync_ratio": Metric("per bare sync", digits, more_is_better=True),
    "cpu_s_per_million_10": Metric("CPU-s per million, 10 clients", digits),
    "cpu_s_per_million_100": Metric("100 clients", digits),
    "cpu_s_per_million_1000": Metric("1 000 clients", digits),
    "cpu_ratio": Metric("CPU, most : fewest clients", digits),
    "mappings": Metric("mappings", whole),
    "descriptors": Metric("descriptors", whole),
    "crash_startup_s": Metric("start after SIGKILL, s", digits),
    "crash_startup_cpu_s": Metric("start after SIGKILL, CPU-s", digits),
    "startup_s": Metric("start, s", digits),
    "startup_cpu_s": Metric("start, CPU-s", digits),
    "stop_s": Metric("stop, s", digits),
    "disk_mib": Metric("on disk, MiB", digits),
}
TRAFFIC_EXTRAS = ("latency_p50_ms", "latency_p99_ms", "anon_growth_mib", "disk_mib")
CHURN_EXTRAS = (
    "sync_per_s",
    "sync_ratio",
    "rss_growth_mib",
    "rss_kib_each",
    "mappings",
    "descriptors",
    "cpu_s_per_million_10",
    "cpu_s_per_million_100",
    "cpu_s_per_million_1000",
    "cpu_ratio",
)
REST = ("startup_s", "startup_cpu_s", "stop_s", "crash_startup_s", "crash_startup_cpu_s")


def render(result: Mapping[str, Any], targets: Sequence[Target], profiles: str) -> str:
    """Return the page for a result; `profiles` is a hand-written text included as it is."""
    parts = [
        "# Performance",
        "Written by `make bench`; do not edit. The text under *Profiles* is kept by hand in"
        " [performance-profiles.md](performance-profiles.md).",
        "## Machine",
        _machine(result),
        "## Targets",
        _targets(result, targets),
        "## All rows",
        _details(result),
    ]
    if BASELINE in result["brokers"]:
        parts += ["## Against the baseline", _baseline(result)]
    parts += ["## How it was measured", METHOD.read_text().strip()]
    if profiles.strip():
        parts += ["## Profiles", profiles.strip()]
    return "\n\n".join(parts) + "\n"


def one_line(figures: Mapping[str, Any]) -> str:
    """Return the main figures of one repetition for the terminal."""
    shown = [
        f"{metric.label} {metric.write(figures[key])}"
        for key, metric in METRICS.items()
        if figures.get(key) and key != "disk_mib"
    ]
    return ", ".join(shown)


def advantage(metric: str, ours: float | None, other: float | None) -> str:
    """Return how many times better ours is than the other: 21x; below 1 it is worse."""
    if not ours or not other or ours < 0 or other < 0:
        return NONE
    return digits(ours / other if METRICS[metric].more_is_better else other / ours) + "x"


def floor_cpu(result: Mapping[str, Any], row: str) -> float | None:
    """Return the sum of the floors a row refers to, in CPU-s/M; None when one is missing."""
    names = [name for entry in result["rows"] if entry["name"] == row for name in entry["floor"]]
    parts = [record.figure(result, name, NULL, CPU) for name in names]
    known = [part for part in parts if part is not None]
    return sum(known) if known and len(known) == len(parts) else None


def machine_ratio(result: Mapping[str, Any], row: str) -> float | None:
    """Return how many times the CPU of the original's machine a row's floor takes on this one."""
    names = [name for entry in result["rows"] if entry["name"] == row for name in entry["floor"]]
    there = scenario.load_original_floors()
    here = floor_cpu(result, row)
    if not here or not all(name in there for name in names):
        return None
    return here / sum(there[name] for name in names)


def original_cell(result: Mapping[str, Any], target: Target) -> str:
    """Return what the original reached, as it would be on this machine, and as it was measured."""
    metric = METRICS[target.metric]
    if target.original is None:
        return NOT_MEASURED
    measured = metric.write(target.original)
    ratio = machine_ratio(result, target.row)
    if ratio is None or target.metric not in (CPU, "publish_per_s", "consume_per_s"):
        return measured
    scaled = target.original / ratio if metric.more_is_better else target.original * ratio
    return f"{metric.write(scaled)} ({measured})"


def verdict(target: Target, value: float | None) -> str:
    """Return met, missed, or that there is nothing to say."""
    if not target.has_limit:
        return "for information"
    if value is None:
        return NOT_MEASURED
    return "met" if target.is_met(value) else "**missed**"


def _machine(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    how = f"{result['repetitions']} repetitions of {result['seconds']} s"
    if result.get("short"):
        how += "; the short form: RabbitMQ once, and not its slowest rows"
    lines = [
        f"* {result['date']}, {how}",
        f"* {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB,"
        f" Linux {machine['kernel']}, Python {machine['python']}",
    ]
    for broker in result["brokers"].values():
        version = broker.get("version") or ("" if broker["installed"] else "not installed")
        lines.append(f"* {broker['label']}" + (f": {version}" if version else ""))
    return "\n".join(lines)


def _targets(result: Mapping[str, Any], targets: Sequence[Target]) -> str:
    titles = {row.name: row.title for row in scenario.load_rows()}
    limited = [target for target in targets if target.has_limit]
    values = [record.figure(result, each.row, OURS, each.metric) for each in limited]
    met = sum(v is not None and t.is_met(v) for t, v in zip(limited, values, strict=True))
    missing = sum(value is None for value in values)
    summary = f"{met} of {len(limited)} targets met"
    summary += f", {missing} not measured." if missing else "."
    head = ("row", "figure", "target", "lavinmq", "verdict", "LavinMQ 2.9.1", "RabbitMQ")
    lines = [
        (titles.get(target.row, target.row), *_target_cells(result, target)) for target in targets
    ]
    text = (
        "The last two columns: how many times better than RabbitMQ, and how many times the floor."
    )
    return f"{summary} {text}\n\n" + _table((*head, "vs RabbitMQ", "vs floor"), lines)


def _target_cells(result: Mapping[str, Any], target: Target) -> tuple[str, ...]:
    metric = METRICS[target.metric]
    ours, low, high = record.spread(result, target.row, OURS, target.metric)
    rabbit = record.figure(result, target.row, RABBITMQ, target.metric)
    floor = floor_cpu(result, target.row) if target.metric == CPU else None
    original = original_cell(result, target)
    return (
        metric.label,
        _limit(target, metric),
        _with_noise(metric, ours, low, high),
        verdict(target, ours),
        original,
        _rabbitmq_cell(result, metric, rabbit),
        advantage(target.metric, ours, rabbit),
        f"{digits(ours / floor)}x" if ours and floor else NONE,
    )


def _limit(target: Target, metric: Metric) -> str:
    if target.at_most is not None:
        return f"≤ {metric.write(target.at_most)}"
    return NONE if target.at_least is None else f"≥ {metric.write(target.at_least)}"


def _with_noise(metric: Metric, middle: float | None, low: float | None, high: float | None) -> str:
    if middle is None or low is None or high is None:
        return NOT_MEASURED
    return f"{metric.write(middle)} ({metric.write(low)} … {metric.write(high)})"


def _rabbitmq_cell(result: Mapping[str, Any], metric: Metric, value: float | None) -> str:
    if value is not None:
        return metric.write(value)
    broker = result["brokers"].get(RABBITMQ)
    return "not installed" if broker and not broker["installed"] else NOT_MEASURED


def _details(result: Mapping[str, Any]) -> str:
    traffic, churn, rest, notes, failures = [], [], [], [], []
    for entry in result["rows"]:
        if entry["note"]:
            notes.append(f"* *{entry['title']}*: {entry['note']}")
        for name, one in entry["results"].items():
            label = result["brokers"][name]["label"]
            failures += [
                f"* {entry['title']}, {label}: {' '.join(each[record.ERROR].splitlines()[:2])}"
                for each in one["repetitions"]
                if record.ERROR in each
            ]
            keys = one["median"]
            if "done_per_s" in keys:
                cells = [_cell(one, key) for key, _ in CHURN_DETAIL]
                churn.append((entry["title"], label, *cells, _extras(one, CHURN_EXTRAS)))
            elif CPU in keys:
                cells = [_cell(one, key) for key, _ in DETAIL]
                traffic.append((entry["title"], label, *cells, _extras(one, TRAFFIC_EXTRAS)))
            elif keys:
                memory = [_cell(one, key) for key in ("rss_mib", "anon_mib")]
                rest.append((entry["title"], label, *memory, *(_cell(one, key) for key in REST)))
    parts = [_table(("row", "broker", *(title for _, title in DETAIL), "more"), traffic)]
    head = ("row", "broker", *(title for _, title in CHURN_DETAIL), "more")
    parts += [_table(head, churn)] if churn else []
    labels = tuple(METRICS[key].label for key in ("rss_mib", "anon_mib", *REST))
    parts += [_table(("row", "broker", *labels), rest)] if rest else []
    parts += ["Failed repetitions:", "\n".join(failures)] if failures else []
    parts += ["\n".join(notes)] if notes else []
    return "\n\n".join(parts)


def _baseline(result: Mapping[str, Any]) -> str:
    lines = []
    for entry in result["rows"]:
        for key, metric in METRICS.items():
            ours = record.figure(result, entry["name"], OURS, key)
            base = record.figure(result, entry["name"], BASELINE, key)
            if ours and base:
                cells = (metric.write(ours), metric.write(base), advantage(key, ours, base))
                lines.append((entry["title"], metric.label, *cells))
    return _table(("row", "figure", "lavinmq", "baseline", "better by"), lines)


def _cell(one: Mapping[str, Any], key: str) -> str:
    value = one["median"].get(key)
    if value is None or (key.endswith("_per_s") and not value):
        return NONE
    if key == CPU:
        return _with_noise(METRICS[key], value, one["min"][key], one["max"][key])
    return METRICS[key].write(value) if key in METRICS else digits(value)


def _extras(one: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(
        f"{METRICS[key].label} {_cell(one, key)}" for key in keys if key in one["median"]
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))
