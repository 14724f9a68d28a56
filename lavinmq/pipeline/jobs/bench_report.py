"""`bench-report`: benchmark results as percentiles, compared with a base; regressions named.

Reads result files as `perf/bench.py` and its neighbours write them; needs no broker. What figures
are and how they are compared is in `bench_results`; here is what a user asks for and gets to see.
"""

from __future__ import annotations

import argparse
import glob
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline import bench_results, plots
from lavinmq.pipeline.arguments import Parser, check
from lavinmq.pipeline.bench_results import Comparison
from lavinmq.pipeline.errors import DONE, FAILED, PipelineError
from lavinmq.pipeline.job import Job, Result, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pyspark.sql import DataFrame

DEFAULT_FILES = "perf/results/*.json"
# What needs attention comes first.
ORDER = ("regression", "noise", "better", "same", "new", "shown")
MARKS = {"regression": "bad", "better": "good"}
HEAD = ("row", "broker", "figure", "run", "n", "p50", "p90", "p99", "base run", "base", "ratio")
NUMBERS = 7
LABEL_MAX = 48
# A picture with more bars, or more lines, is not read.
BARS_MAX, TREND_MAX = 40, 8
INFINITY = float("inf")
GLOB_CHARACTER = re.compile(r"[\[\]{}*?,\\]")


def configure(parser: Parser) -> None:
    """Add the options of this job."""
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", default=[DEFAULT_FILES],
        help=f"result files or globs of them, default {DEFAULT_FILES}")  # fmt: skip
    parser.flag("--fail-on-regression", help="end with status 1 if there is any regression")
    add("--threshold", type=share, metavar="PERCENT", default=0.25,
        help="a figure this much worse than its base is a regression, default 25%%")  # fmt: skip
    add(
        "--run",
        metavar="NAME",
        help="judge this run, named as its file; default: the newest for each figure",
    )
    add(
        "--base",
        metavar="NAME",
        help="compare with this run; default: the newest older one on the same processor",
    )
    add(
        "--against",
        metavar="BROKER",
        help="compare with another broker of the same run, such as baseline or rabbitmq",
    )
    parser.flag("--any-machine", help="the base may have run on another processor")
    for option, what in (("--rows", "rows"), ("--brokers", "brokers"), ("--figures", "figures")):
        add(option, metavar="GLOBS", default="*", help=f"only these {what}; several by commas")
    parser.flag("--all", help="also list figures without a base and those that are not judged")
    add("--html", metavar="FILE", type=Path, help="write a page with tables and plots")
    add("--plot", metavar="DIR", type=Path, help="write the plots as PNG files")


def share(text: str) -> float:
    """Read `25%` or `25` as 0.25."""
    try:
        value = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        value = -1.0
    if not 0 < value < INFINITY:
        raise argparse.ArgumentTypeError(f"expected a percentage above 0, got: {text}")
    return value


def run(run: Run) -> Result:
    """Read, compare, write what was asked for. Raises: PipelineError."""
    options = run.options
    how = Comparison(
        threshold=options.threshold,
        run=options.run,
        base=options.base,
        against=options.against,
        any_machine=options.any_machine,
    )
    check({"--base and --against exclude each other": bool(how.base and how.against)})
    check({"--base is the run to judge": how.base is not None and how.base == how.run})
    paths = find_files(options.files)
    spark = run.spark
    run.progress.note(f"reading {len(paths)} files")
    values = bench_results.figures(bench_results.read(spark, paths)).cache()
    summary = bench_results.summary(values).cache()
    runs = names(summary, "run")
    for option, name, known in (
        ("--run", how.run, runs),
        ("--base", how.base, runs),
        ("--against", how.against, names(summary, "broker")),
    ):
        if name is not None and name not in known:
            raise PipelineError(f"{option} {name}: not among {', '.join(known)}")
    compared = [each.asDict() for each in bench_results.compare(summary, how).collect()]
    compared = select(compared, options)
    if not compared and {options.rows, options.brokers, options.figures} != {"*"}:
        raise PipelineError("no figure is named by --rows, --brokers and --figures together")
    failures = [each.asDict() for each in bench_results.failures(values).collect()]
    history = [each.asDict() for each in summary.where("better != ''").collect()]
    if options.html or options.plot:
        run.progress.note("drawing")
        draw(compared, select(history, options), failures, how, options)
    regressions = sum(each["verdict"] == "regression" for each in compared)
    missing = lost(failures, history, how, options)
    return Result(
        values={
            "runs": runs,
            "threshold": how.threshold,
            "regressions": regressions,
            "figures": compared,
            "failures": failures,
            "lost": missing,
        },
        text=text(compared, failures, how, is_all=options.all),
        status=FAILED if (regressions or missing) and options.fail_on_regression else DONE,
    )


def lost(
    failures: Sequence[dict[str, Any]],
    figures: Sequence[dict[str, Any]],
    how: Comparison,
    options: argparse.Namespace,
) -> list[dict[str, Any]]:
    """Return run, row and broker of what is to be judged and has no figure, for all of it failed:
    what is compared instead is of an older run, or nothing."""
    newest: dict[tuple[str, str], tuple[str, str]] = {}
    there = set()
    for each in figures:
        key, run = (each["row"], each["broker"]), (each["date"] or "", each["run"])
        newest[key] = max(newest.get(key, run), run)
        there.add((*key, each["run"]))
    found = {}
    for each in failures:
        key, run = (each["row"], each["broker"]), (each["date"] or "", each["run"])
        is_wanted = all(
            any(fnmatchcase(name, one) for one in globs.split(","))
            for name, globs in zip(key, (options.rows, options.brokers), strict=True)
        )
        is_judged = each["run"] == how.run if how.run else run >= newest.get(key, run)
        if is_wanted and is_judged and (*key, each["run"]) not in there:
            found[(*key, each["run"])] = {name: each[name] for name in ("run", "row", "broker")}
    return list(found.values())


def names(summary: DataFrame, column: str) -> list[str]:
    """Return the different values of a column."""
    return sorted(each[column] for each in summary.select(column).distinct().collect())


def find_files(globs: Sequence[str]) -> list[str]:
    """Return the absolute paths of all files. Raises: PipelineError for what names none."""
    found: dict[str, None] = {}
    for each in globs:
        paths = [each] if Path(each).is_file() else sorted(glob.glob(each, recursive=True))
        if not paths:
            raise PipelineError(f"{each}: no such file")
        found |= dict.fromkeys(str(Path(path).resolve()) for path in paths)
    # Spark takes paths for globs, and these are exact by now.
    return ["file://" + GLOB_CHARACTER.sub(r"\\\g<0>", path) for path in found]


def select(figures: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Keep what --rows, --brokers and --figures name, in order of need."""
    wanted = (("row", options.rows), ("broker", options.brokers), ("metric", options.figures))

    def is_wanted(figure: dict[str, Any]) -> bool:
        return all(
            any(fnmatchcase(figure[key], each) for each in globs.split(","))
            for key, globs in wanted
        )

    def need(figure: dict[str, Any]) -> tuple[Any, ...]:
        verdict = ORDER.index(figure.get("verdict", "shown"))
        worse = figure.get("worse_by")
        strength = -(worse or 0.0) if verdict < 2 else worse or 0.0
        return verdict, strength, figure["row"], figure["broker"], figure["metric"]

    return sorted(filter(is_wanted, figures), key=need)


def text(
    compared: Sequence[dict[str, Any]],
    failures: Sequence[dict[str, Any]],
    how: Comparison,
    *,
    is_all: bool,
) -> str:
    """Return the report for a terminal."""
    parts = [headline(compared, how)]
    for verdict in ORDER if is_all else ORDER[:4]:
        chosen = [each for each in compared if each["verdict"] == verdict]
        if chosen:
            table = plots.align(HEAD, [cells(each) for each in chosen], NUMBERS)
            parts.append(f"{verdict}\n{table}")
    if failures:
        parts.append("failed repetitions\n" + "\n".join(failure_line(each) for each in failures))
    return "\n\n".join(parts)


def headline(compared: Sequence[dict[str, Any]], how: Comparison) -> str:
    """Return the outcome in a sentence or two."""
    counts = {name: sum(each["verdict"] == name for each in compared) for name in ORDER}
    judged = sum(counts[name] for name in ORDER[:4])
    line = (
        f"{counts['regression']} of {judged} compared figures are more than {how.threshold:.0%}"
        f" worse than their base, {counts['better']} better, {counts['same']} within;"
        f" {counts['noise']} more are beyond, but their repetitions overlap."
        f" {counts['new']} have no base."
    )
    if any(each["base_cpu"] not in (None, each["cpu"]) for each in compared):
        line += " Some bases ran on another processor: their ratios say little."
    return line


def cells(figure: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns of HEAD."""
    base = figure["base_p50"]
    return (
        *(figure["row"][:LABEL_MAX], figure["broker"], figure["metric"], figure["run"]),
        str(figure["n"]),
        *(number(figure[name]) for name in ("p50", "p90", "p99")),
        figure["base_run"] or "–",
        "–" if base is None else number(base),
        "–" if figure["ratio"] is None else f"{figure['ratio']:.2f}",
    )


def number(value: float) -> str:
    """Write a figure with three digits: 4.52 M, 69.9 k, 812, 0.071."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:#.3g}{unit}".replace(". ", " ")
    return f"{value:.3g}"


def failure_line(failure: dict[str, Any]) -> str:
    """Return a failed repetition in one line."""
    first = " ".join(failure["error"].split())[:200]
    return f"  {failure['run']}  {failure['row']}  {failure['broker']}: {first}"


def draw(
    compared: Sequence[dict[str, Any]],
    history: Sequence[dict[str, Any]],
    failures: Sequence[dict[str, Any]],
    how: Comparison,
    options: argparse.Namespace,
) -> None:
    """Write the page and the pictures. Raises: PipelineError, OSError."""
    figures = {**changes(compared, how), **trends(history)}
    if options.plot:
        for name, figure in figures.items():
            plots.save_png(figure, options.plot / f"{name}.png")
    if not options.html:
        return
    page = plots.Page("Benchmark report")
    page.text(headline(compared, how))
    for verdict in ORDER:
        chosen = [each for each in compared if each["verdict"] == verdict]
        if chosen and (options.all or verdict != "shown"):
            page.heading(verdict)
            marks = [MARKS.get(verdict, "")] * len(chosen)
            page.table(HEAD, [cells(each) for each in chosen], NUMBERS, marks)
    if failures:
        page.heading("failed repetitions")
        rows = [tuple(each[key] for key in ("run", "row", "broker", "error")) for each in failures]
        page.table(("run", "row", "broker", "error"), rows)
    page.heading("plots")
    for figure in figures.values():
        page.figure(figure)
    page.save(options.html)


def changes(compared: Sequence[dict[str, Any]], how: Comparison) -> dict[str, Figure]:
    """Draw how much worse each figure became, the largest changes of each kind."""
    kinds = {
        "change-cost": ("less", "cost against base: right of zero is worse"),
        "change-rate": ("more", "rate against base: right of zero is worse"),
    }
    found = {}
    for name, (better, title) in kinds.items():
        judged = [
            each
            for each in compared
            if each["better"] == better and each["base_p50"] and each["worse_by"] is not None
            if each["verdict"] != "shown"
        ]
        judged.sort(key=lambda each: -abs(each["worse_by"]))
        values = [
            (f"{each['row']} {each['metric']} ({each['broker']})", 100 * each["worse_by"])
            for each in judged[:BARS_MAX]
        ]
        if values:
            found[name] = plots.bars(title, values, "% worse", 100 * how.threshold)
    return found


def trends(history: Sequence[dict[str, Any]]) -> dict[str, Figure]:
    """Draw, for each figure that several runs hold, its medians over the runs.

    They are relative to the first run, since rows differ by orders of magnitude.
    """
    dates = {each["run"]: each["date"] or "" for each in history}
    runs = sorted(dates, key=lambda run: (dates[run], run))
    by_metric: dict[str, dict[str, dict[int, float]]] = {}
    for each in history:
        series = by_metric.setdefault(each["metric"], {})
        medians = series.setdefault(f"{each['row']} ({each['broker']})", {})
        if each["p50"] > 0:
            medians[runs.index(each["run"])] = each["p50"]
    found = {}
    for metric, series in sorted(by_metric.items()):
        several = sorted(name for name, medians in series.items() if len(medians) > 1)
        for first in range(0, len(several), TREND_MAX):
            part = f"-{first // TREND_MAX + 1}" if len(several) > TREND_MAX else ""
            chosen = {name: relative(series[name]) for name in several[first : first + TREND_MAX]}
            title = f"{metric} over runs{part.replace('-', ', part ')}"
            unit = "times the first run"
            found[file_name(f"trend-{metric}{part}")] = plots.lines(title, chosen, unit, names=runs)
    return found


def relative(medians: dict[int, float]) -> list[tuple[float, float | None]]:
    """Return values by place as multiples of the first."""
    places = sorted(medians)
    return [(place, medians[place] / medians[places[0]]) for place in places]


def file_name(text: str) -> str:
    """Return a text as a name without anything that a path could mean."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)


JOB = Job(
    name="bench-report",
    help="Percentiles of benchmark results, and what became worse",
    configure=configure,
    run=run,
)
