"""`compact`: many small files of an archive become few large ones, directory by directory.

Archiving may go on meanwhile. A reader that lists the files in the moment of a change may see
messages of one directory twice; a change that was stopped is finished by the next run.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lavinmq.pipeline.arguments import Parser, positive, size
from lavinmq.pipeline.errors import PipelineError
from lavinmq.pipeline.files import File, Files
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.ledger import Ledger, data_files
from lavinmq.pipeline.sources import COMPACTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES = 128 * 1024 * 1024
FILES_MIN = 2


def configure(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("archive", metavar="ARCHIVE", help="directory that archive has written")
    add(
        "--file-size",
        type=size,
        metavar="SIZE",
        default=FILE_BYTES,
        help="to aim at, default 128m; files of half of it and more are left as they are",
    )
    add(
        "--min-files",
        type=positive,
        metavar="N",
        default=FILES_MIN,
        help=f"leave directories with fewer small files, default {FILES_MIN}",
    )
    add("--before", metavar="DATE", help="only directories of earlier days, such as 2026-01-31")
    add("--dry-run", action="store_true", help="only tell what would be done")  # fmt: skip


def small_files(
    files: list[File], file_bytes: int, min_files: int, before: str | None = None
) -> dict[str, list[File]]:
    """Return the files to merge by directory: at least `min_files` below half of `file_bytes`."""
    found: dict[str, list[File]] = defaultdict(list)
    for file in files:
        directory, _, _ = file.path.rpartition("/")
        if file.size < file_bytes // 2 and (before is None or _is_before(directory, before)):
            found[directory].append(file)
    return {name: chosen for name, chosen in found.items() if len(chosen) >= max(2, min_files)}


def _is_before(directory: str, date: str) -> bool:
    """Say whether a directory is of an earlier day; one without a day is not."""
    days = [part[5:] for part in directory.split("/") if part.startswith("date=")]
    return bool(days) and days[0].startswith(("1", "2")) and days[0] < date


def run(run: Run) -> Result:
    """Merge."""
    options = run.options
    archive = Files(run.spark, options.archive)
    ledger = Ledger(archive, COMPACTION)
    if not options.dry_run:
        ledger.settle()
    files = data_files(archive)
    if not files:
        raise PipelineError(f"{options.archive}: no archive, there are no Parquet files")
    chosen = small_files(files, options.file_size, options.min_files, options.before)
    n_before = sum(map(len, chosen.values()))
    n_after = 0
    for index, (_, group) in enumerate(sorted(chosen.items())):
        run.progress.show("directories", index, len(chosen))
        count = -(-sum(file.size for file in group) // options.file_size)
        n_after += count if options.dry_run else _merge(run.spark, archive, ledger, group, count)
    run.progress.show("directories", len(chosen), len(chosen))
    values = {
        "archive": options.archive,
        "directories": len(chosen),
        "files_before": n_before,
        "files_after": n_after,
        "dry_run": options.dry_run,
    }
    verb = "would become" if options.dry_run else "became"
    text = f"{n_before:,} files {verb} {n_after:,} in {len(chosen):,} directories"
    return Result(values=values, text=text)


def _merge(
    spark: SparkSession, archive: Files, ledger: Ledger, group: list[File], count: int
) -> int:
    """Put the messages of some files of one directory into `count` new ones. Returns: how many."""
    directory = group[0].path.rpartition("/")[0]
    paths = [f"{archive.root}/{file.path}" for file in group]
    reader = spark.read.option("mergeSchema", "true")
    frame = reader.option("recursiveFileLookup", "true").parquet(*paths)
    # One file needs no shuffle, but an order: queries look for ranges of offsets.
    spread = frame.coalesce(1) if count == 1 else frame.repartitionByRange(count, "queue", "offset")
    number, place = ledger.last() + 1, ledger.begin()
    writer = spread.sortWithinPartitions("queue", "offset").write.mode("append")
    writer.option("compression", "zstd").parquet(place)
    n_read, n_written = frame.count(), spark.read.parquet(place).count()
    if n_read != n_written:
        raise PipelineError(f"{directory}: {n_read} messages were read, {n_written} written")
    old = [file.path for file in group]
    added = ledger.publish(number, f"compact-{number:09}", directory=directory, remove=old)
    return len(added)


JOB = Job(
    name="compact",
    help="Small files of an archive to large ones",
    configure=configure,
    run=run,
)
