"""`dlq`: why messages died and where; with --requeue, back to where they came from.

The report works on any source, on a look into a classic queue first of all. Taking back needs that
queue itself, and no Spark: messages go one after another, over one connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from lavinmq.pipeline import dead_letters, plots, requeue
from lavinmq.pipeline.arguments import (
    Parser,
    add_broker,
    broker_options,
    check,
    connection_of,
    positive,
)
from lavinmq.pipeline.dead_letters import Bounds, Report
from lavinmq.pipeline.errors import FAILED, PipelineError
from lavinmq.pipeline.job import Job, Result, Run
from lavinmq.pipeline.requeue import LIMIT_MAX, Outcome, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HELP = "peek:QUEUE to look into a classic queue, queue:NAME for a stream, segments:DIR, an archive"
PEEK = "peek:"
LIMIT = 10_000
HEAD = (
    *("reason", "queue", "exchange", "routing key", "first seen", "last seen"),
    *("messages", "bytes", "deaths, most"),
)
SAMPLE_BYTES_MAX = 4096
PATIENCE_S = 30.0


def configure(parser: Parser) -> None:
    """Add the options of this job."""
    add_broker(parser)
    add = parser.add_argument
    add("source", metavar="SOURCE", help=HELP)
    add(
        "--limit",
        type=positive,
        metavar="N",
        help=f"look at no more messages; default for queues {LIMIT:,}, the most {LIMIT_MAX:,}",
    )
    add(
        "--dead-queue", metavar="NAME", help="of segments and archives: only messages of this queue"
    )
    report = parser.add_argument_group("report").add_argument
    report("--groups", type=positive, metavar="N", default=50, help="at most, default 50")
    report(
        "--samples",
        type=number,
        metavar="N",
        default=3,
        help="bodies shown of each group, default 3, 0 for none",
    )
    report(
        "--sample-bytes",
        type=positive,
        metavar="N",
        default=200,
        help=f"of a body shown at most, default 200, {SAMPLE_BYTES_MAX} is the most",
    )
    report(
        "--error-header",
        metavar="NAME",
        action="append",
        default=[],
        help="header with what went wrong, looked at before the usual ones; may be repeated",
    )
    back = parser.add_argument_group("taking back").add_argument
    back(
        "--requeue",
        action="store_true",
        help="publish the messages to where they died, with confirms, and remove them",
    )
    back("--dry-run", action="store_true", help="only count what would go where")
    back(
        "--to",
        choices=("queue", "exchange"),
        default="queue",
        help="straight into the queue (default), or through the exchange, as first published",
    )
    back("--target", metavar="QUEUE", help="all into this queue instead")
    back("--strip-death", action="store_true", help="without the history in x-death")
    back("--reason", metavar="GLOBS", default="*", help="only of these reasons; several by commas")
    back("--origin", metavar="GLOBS", default="*", help="only of these queues; several by commas")


def number(text: str) -> int:
    """Read a whole number, 0 among them."""
    return 0 if text == "0" else positive(text)


def run(run: Run) -> Result:
    """Report, or take back."""
    options = run.options
    is_peek = options.source.startswith(PEEK)
    queue = options.source.removeprefix(PEEK)
    check(
        {
            "peek: needs the name of a queue": is_peek and not queue,
            "--requeue needs peek:QUEUE as source": options.requeue and not is_peek,
            "--dry-run needs --requeue": options.dry_run and not options.requeue,
            "--target needs --requeue": options.target is not None and not options.requeue,
            "--target is the queue to take from": is_peek and options.target == queue,
            "--target and --to=exchange exclude each other": options.target is not None
            and options.to == "exchange",
            "--strip-death needs --requeue": options.strip_death and not options.requeue,
            "--dead-queue is for segments and archives": options.dead_queue is not None
            and options.source.startswith((PEEK, "queue:")),
            f"--limit must be at most {LIMIT_MAX} for a queue": is_peek
            and (options.limit or 0) > LIMIT_MAX,
            f"--sample-bytes must be at most {SAMPLE_BYTES_MAX}": options.sample_bytes
            > SAMPLE_BYTES_MAX,
        }
    )
    if options.requeue:
        return take_back(run, queue)
    frame = open_letters(run, queue if is_peek else None)
    headers = (*options.error_header, *dead_letters.ERROR_HEADERS)
    if options.limit is not None:
        frame = frame.limit(options.limit)
    letters = dead_letters.deaths(frame, headers).cache()
    run.progress.note(f"reading {options.source}")
    bounds = Bounds(options.groups, options.samples, options.sample_bytes)
    report = dead_letters.report(letters, bounds)
    return Result(values=values(report, options.source), text=text(report))


def open_letters(run: Run, peeked: str | None) -> DataFrame:
    """Return the messages of the source. Raises: PipelineError, UsageError."""
    from pyspark.sql import functions as f

    from lavinmq.pipeline.sources import open_source, parse_source

    options = run.options
    if peeked is not None:
        reader = run.spark.read.format("lavinmq").options(**broker_options(options))
        reader = reader.option("queue", peeked).option("mode", "peek")
        reader = reader.option("maxRecords", options.limit or LIMIT)
        return reader.option("columns", ",".join(dead_letters.COLUMNS)).load()
    source = parse_source(options.source)
    broker = broker_options(options) if source.kind == "queue" else {}
    frame = open_source(run.spark, source, broker)
    if options.dead_queue is not None:
        frame = frame.where(f.col("queue") == options.dead_queue)
    return frame.select(*dead_letters.COLUMNS)


def values(report: Report, source: str) -> dict[str, Any]:
    """Return the report for --json; times are ISO 8601."""
    groups = []
    for group in report.groups:
        seen = {key: time_text(group[key]) for key in ("first_seen", "last_seen")}
        groups.append({**group, **seen})
    return {"source": source, **asdict(report), "groups": groups}


def text(report: Report) -> str:
    """Return the report for a terminal."""
    died = report.messages - report.never_died
    lines = [f"{died:,} dead letters in {report.n_groups - bool(report.never_died):,} groups"]
    if report.never_died:
        lines.append(f"{report.never_died:,} messages that never died")
    if not report.groups:
        return "\n".join(lines)
    table = plots.align(HEAD, [cells(group) for group in report.groups], 3)
    lines += ["", *table.splitlines()]
    for group in report.groups:
        details = [f"  {each['messages']:,} × {show(each['error'])}" for each in group["errors"]]
        details += [
            f"  [{each['size']:,} B] {each['text']}{'…' if each['is_cut'] else ''}"
            for each in group["samples"]
        ]
        if details:
            lines += ["", f"{show(group['reason'] or '–')} {show(group['queue'] or '–')}"]
            lines += details
    if report.n_groups > len(report.groups):
        lines += ["", f"{report.n_groups - len(report.groups):,} smaller groups are not shown"]
    return "\n".join(lines)


def cells(group: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the columns of HEAD."""
    names = [show(group[name] or "") or "–" for name in dead_letters.GROUP]
    seen = [time_text(group[name]) or "–" for name in ("first_seen", "last_seen")]
    most = "–" if group["deaths_max"] is None else f"{group['deaths_max']:,}"
    return (*names, *seen, f"{group['messages']:,}", f"{group['bytes'] or 0:,}", most)


def show(name: str) -> str:
    """Return a text of a message for a terminal, which must not obey it."""
    return dead_letters.printable(name.encode("utf-8", "surrogateescape"))


def time_text(unix_s: int | None) -> str | None:
    """Return a time in UTC as ISO 8601."""
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")


def take_back(run: Run, queue: str) -> Result:
    """Requeue, without Spark. Raises: PipelineError."""
    from lavinmq.pipeline.channel import Channel
    from lavinmq.spark.connection import ConnectionFailure, connect

    options = run.options
    connection_options = connection_of(options)
    plan = Plan(
        queue=queue,
        user=connection_options.user,
        limit=options.limit or LIMIT,
        to_exchange=options.to == "exchange",
        target=options.target,
        without_history=options.strip_death,
        reasons=options.reason.split(","),
        origins=options.origin.split(","),
        is_dry_run=options.dry_run,
    )
    label = "looked at" if plan.is_dry_run else "taken back"
    open_one = partial(
        connect,
        connection_options,
        f"queue '{queue}'",
        name="lavinmq-pipeline dlq",
        patience_s=PATIENCE_S,
    )
    try:
        with open_one() as taking, open_one() as giving:
            work = requeue.Requeue(Channel(taking), Channel(giving), plan)
            outcome = work.run(lambda done, total: run.progress.show(label, done, total))
    except ConnectionFailure as failure:
        raise PipelineError(str(failure)) from None
    return Result(
        values={"source": options.source, "dry_run": plan.is_dry_run, **asdict(outcome)},
        text=outcome_text(outcome, is_dry_run=plan.is_dry_run),
        status=FAILED if outcome.first_error or outcome.left["refused by the broker"] else 0,
    )


def outcome_text(outcome: Outcome, *, is_dry_run: bool) -> str:
    """Return what became of the messages."""
    verb = "would go" if is_dry_run else "went"
    lines = [f"{outcome.looked_at:,} messages looked at"]
    lines += [f"{n:,} {verb} to {show(to)}" for to, n in outcome.destinations.most_common()]
    lines += [f"{n:,} stay: {why}" for why, n in outcome.left.most_common()]
    if outcome.first_error:
        lines.append(f"first error: {show(outcome.first_error)}")
    return "\n".join(lines)


JOB = Job(
    name="dlq",
    help="Why messages died; --requeue takes them back to where they came from",
    configure=configure,
    run=run,
)
