"""Benchmark result files as a table of figures, their percentiles, and how they moved.

Owns the meaning of the files below `perf/results/` (rows and repetitions of the benchmark, samples
of the soak, nested figures of the management measurement) and the rules of comparing them. Called
by `bench_report`; everything is a Spark DataFrame, parsed by Spark's own JSON reader. Never prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lavinmq.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMAT = 1
CORRUPT = "_corrupt_record"
FILE_SCHEMA = f"""
    format INT, date STRING,
    machine STRUCT<cpu: STRING, cores: INT>,
    rows ARRAY<STRUCT<name: STRING, title: STRING,
        results: MAP<STRING, STRUCT<repetitions: ARRAY<MAP<STRING, STRING>>>>>>,
    samples ARRAY<MAP<STRING, STRING>>,
    polled STRING, held_up STRING, requests STRING, tls STRING, idle STRING,
    {CORRUPT} STRING"""
MANAGEMENT = ("polled", "held_up", "requests", "tls", "idle")
# As deep as the management file nests its figures: tls / 16 bytes / plain / per_s.
NESTING = 3
SAMPLED = ("rss_mib", "anon_mib", "descriptors", "mappings", "threads", "disk_mib")

# Which way is better. Whatever matches neither is shown and not judged: counts, the load of the
# machine, the bare rate of the disk, growths (a difference near zero has no ratio), the maxima.
MORE_IS_BETTER = r"^(publish|consume|done)_per_s$|^sync_ratio$|(^|\.)per_s$"
LESS_IS_BETTER = (
    r"^cpu_s_per_million|^cpu_ratio$|^latency_p\d+_ms$|^(rss|anon)_mib$|^rss_kib_each$"
    r"|^(crash_)?startup(_cpu)?_s$|^stop_s$|^descriptors$|^mappings$"
    r"|(^|\.)cpu_(s_per_m|us)$|_ms\.p\d+$|^(resident|anonymous)(_after_requests)?_mib$"
)

FIGURE = ("run", "date", "cpu", "row", "title", "broker", "metric")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared with what; `threshold` is a share: 0.25 lets a figure be 25 % worse.

    `run`: the run to judge, default: for each figure the newest that holds it. `base`: the run to
    compare with, default: for each figure the newest older one of the same processor, or of any
    with `any_machine`. `against`: a broker of the same run instead of an older run.
    """

    threshold: float = 0.25
    run: str | None = None
    base: str | None = None
    against: str | None = None
    any_machine: bool = False


def read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    """Read result files: one row per file, not yet taken apart. Raises: PipelineError."""
    from pyspark.sql import functions as f

    files = spark.read.schema(FILE_SCHEMA).json(list(paths), multiLine=True)
    # The name comes as part of a URL, in which a plus is a plus.
    name = f.url_decode(f.replace("_metadata.file_name", f.lit("+"), f.lit("%2B")))
    stem = f.regexp_replace(name, r"\.json$", "")
    # A file without a date is as old as its name says: results are called after their day.
    day = f.regexp_extract(f.col("run"), r"^\d{4}-\d\d-\d\d", 0)
    files = files.withColumn("run", stem).withColumn("date", f.coalesce("date", day))
    files = files.withColumn("cpu", f.coalesce("machine.cpu", f.lit(""))).cache()
    _check(files)
    return files


def _check(files: DataFrame) -> None:
    """Refuse what is not a result file, by name. Raises: PipelineError."""
    broken = files.where(f"{CORRUPT} IS NOT NULL").select("run", CORRUPT).head()
    if broken:
        raise PipelineError(f"{broken.run}: not a JSON object of benchmark results")
    newer = files.where(f"format != {FORMAT}").select("run", "format").head()
    if newer:
        raise PipelineError(f"{newer.run}: result format {newer.format}, not {FORMAT}")
    nothing = " AND ".join(f"{name} IS NULL" for name in ("rows", "samples", *MANAGEMENT))
    empty = files.where(nothing).select("run").head()
    if empty:
        raise PipelineError(f"{empty.run}: holds no benchmark results")
    other = files.where("exists(rows, each -> each.results IS NULL)").select("run").head()
    if other:
        raise PipelineError(f"{other.run}: has rows without results: not a file of bench.py")
    twice = files.groupBy("run").count().where("count > 1").head()
    if twice:
        raise PipelineError(f"{twice.run}: two files of this name; they would be taken for one run")


def figures(files: DataFrame) -> DataFrame:
    """Return every measured value: the columns of FIGURE, `value`, and `error` of a failure."""
    return _of_rows(files).unionByName(_of_soak(files)).unionByName(_of_management(files))


def _of_rows(files: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    rows = files.select("run", "date", "cpu", f.explode("rows").alias("each"))
    brokers = rows.select("*", f.explode("each.results").alias("broker", "measured"))
    repetitions = brokers.select("*", f.explode("measured.repetitions").alias("repetition"))
    values = repetitions.select("*", f.explode("repetition").alias("metric", "text"))
    return values.select(
        *("run", "date", "cpu"),
        *(f.col("each.name").alias("row"), f.col("each.title").alias("title")),
        *("broker", "metric"),
        f.expr("try_cast(text AS DOUBLE)").alias("value"),
        f.when(f.col("metric") == "error", f.col("text")).alias("error"),
    )


def _of_soak(files: DataFrame) -> DataFrame:
    """Samples of a soak: gauges as they are, and rate and CPU of the load between two samples."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    samples = files.select("run", "date", "cpu", f.explode("samples").alias("sample"))

    def number(name: str) -> Column:
        return f.try_element_at("sample", f.lit(name)).cast("double")

    order = Window.partitionBy("run").orderBy(number("at_s"))

    def since(name: str) -> Column:
        return number(name) - f.lag(number(name)).over(order)

    samples = samples.select(
        *("run", "date", "cpu", f.concat(f.lit("soak-"), f.col("sample.phase")).alias("row")),
        *(number(name).alias(name) for name in SAMPLED),
        f.try_divide(since("published"), since("at_s")).alias("publish_per_s"),
        f.try_divide(since("cpu_s") * 1e6, since("published")).alias("cpu_s_per_million"),
    )
    names = (*SAMPLED, "publish_per_s", "cpu_s_per_million")
    values = samples.unpivot(["run", "date", "cpu", "row"], list(names), "metric", "value")
    # Rates mean something under load only: once it has ended nothing is published.
    load_only = ~f.col("metric").isin(*names[-2:]) | (f.col("row") == "soak-load")
    return values.where(load_only & f.col("value").isNotNull()).select(
        *("run", "date", "cpu", "row", f.col("row").alias("title")),
        *(f.lit("ours").alias("broker"), "metric", "value"),
        f.lit(None).cast("string").alias("error"),
    )


def _of_management(files: DataFrame) -> DataFrame:
    """Nested figures by their path: section `tls` / "16 bytes" / "plain" / "per_s"."""
    from pyspark.sql import functions as f

    # A soak has a section `idle` too, of the same figures as its samples.
    files = files.where("rows IS NULL AND samples IS NULL")
    sections = files.unpivot(["run", "date", "cpu"], list(MANAGEMENT), "row", "text")
    open_ones = sections.where("text LIKE '{%'").withColumn("path", f.lit(""))
    leaves = None
    for _ in range(NESTING):
        inner = open_ones.select(
            *("run", "date", "cpu", "row", "path"),
            f.explode(f.from_json("text", "MAP<STRING, STRING>")).alias("key", "text"),
        ).withColumn("path", f.concat_ws(".", f.expr("nullif(path, '')"), "key"))
        found = inner.withColumn("value", f.expr("try_cast(text AS DOUBLE)"))
        leaf = found.where("value IS NOT NULL")
        leaves = leaf if leaves is None else leaves.unionByName(leaf)
        open_ones = inner.where("text LIKE '{%'")
    assert leaves is not None
    row = f.concat(f.lit("management-"), f.col("row"))
    return leaves.select(
        *("run", "date", "cpu", row.alias("row"), row.alias("title")),
        *(f.lit("ours").alias("broker"), f.col("path").alias("metric"), "value"),
        f.lit(None).cast("string").alias("error"),
    )


def summary(values: DataFrame) -> DataFrame:
    """Return per figure: `n`, `low`, `p50`, `p90`, `p99`, `high` over its repetitions.

    Percentiles are exact, between two repetitions linear (as for a median of two).
    """
    from pyspark.sql import functions as f

    quantiles = f.percentile("value", f.array(f.lit(0.5), f.lit(0.9), f.lit(0.99)))
    grouped = values.where("value IS NOT NULL").groupBy(*FIGURE)
    found = grouped.agg(
        *(f.count("value").alias("n"), f.min("value").alias("low"), f.max("value").alias("high")),
        quantiles.alias("q"),
    )
    parts = [f.col("q")[i].alias(name) for i, name in enumerate(("p50", "p90", "p99"))]
    better = (
        f.when(f.col("metric").rlike(MORE_IS_BETTER), "more")
        .when(f.col("metric").rlike(LESS_IS_BETTER), "less")
        .otherwise("")
    )
    return found.select(*FIGURE, "n", "low", *parts, "high", better.alias("better"))


def failures(values: DataFrame) -> DataFrame:
    """Return the repetitions that failed: run, date, row, broker and the text of the error."""
    return values.where("error IS NOT NULL").select("run", "date", "row", "broker", "error")


def compare(summarised: DataFrame, how: Comparison) -> DataFrame:
    """Add to the judged figures `base_run`, `base_cpu`, `base_p50`, `ratio`, `worse_by`, `verdict`.

    `ratio` is the median over that of the base. `worse_by` is 0.3 when a rate fell to 1/1.3 or a
    cost rose by 1.3, negative when it became better. Verdicts: `regression` and `better` beyond the
    threshold when the ranges of the repetitions lie apart, `noise` beyond it when they overlap,
    `same` within it, `new` without a base, `shown` for figures that are not judged.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    base = f.struct("run", "cpu", "p50", "low", "high").alias("base")
    if how.against is not None:
        same, is_base = ["run", "row", "metric"], f.col("broker") == f.lit(how.against)
        found = summarised.where(~is_base).join(
            summarised.where(is_base).select(*same, base), same, "inner"
        )
    elif how.base is not None:
        same, is_base = ["row", "broker", "metric"], f.col("run") == f.lit(how.base)
        found = summarised.where(~is_base).join(
            summarised.where(is_base).select(*same, base), same, "left"
        )
    else:
        same = ["row", "broker", "metric", *([] if how.any_machine else ["cpu"])]
        order = Window.partitionBy(*same).orderBy("date", "run")
        found = summarised.withColumn("base", f.lag(base).over(order))
    found = _judged(found, how)
    ratio = f.try_divide("p50", "base.p50")
    worse = f.when(f.col("better") == "more", f.try_divide("base.p50", "p50")).otherwise(ratio) - 1
    apart = (f.col("low") > f.col("base.high")) | (f.col("high") < f.col("base.low"))
    beyond = f.when(apart, "").otherwise("noise")
    verdict = (
        # A rate of zero is of a row that does not publish, or not consume: no ratio, no verdict.
        # One that has become zero is worse than any ratio.
        f.when(
            (f.col("better") == "more") & (f.col("p50") <= 0) & (f.col("base.p50") > 0),
            f.when(apart, "regression").otherwise(beyond),
        )
        .when((f.col("better") == "") | (f.col("p50") <= 0) | (f.col("base.p50") <= 0), "shown")
        .when(f.col("base").isNull(), "new")
        .when(worse > how.threshold, f.when(apart, "regression").otherwise(beyond))
        .when(worse < 1 / (1 + how.threshold) - 1, f.when(apart, "better").otherwise(beyond))
        .otherwise("same")
    )
    return found.select(
        *(*FIGURE, "better", "n", "low", "p50", "p90", "p99", "high"),
        *(
            f.col(f"base.{name}").alias(f"base_{name}")
            for name in ("run", "cpu", "p50", "low", "high")
        ),
        *(ratio.alias("ratio"), f.when(f.col("better") != "", worse).alias("worse_by")),
        verdict.alias("verdict"),
    )


def _judged(summarised: DataFrame, how: Comparison) -> DataFrame:
    """Keep the run asked for, or of each figure the newest."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if how.run is not None:
        return summarised.where(f.col("run") == how.run)
    order = Window.partitionBy("row", "broker", "metric").orderBy(f.desc("date"), f.desc("run"))
    newest = summarised.withColumn("age", f.row_number().over(order))
    return newest.where("age = 1").drop("age")
