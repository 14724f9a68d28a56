"""`check`: what support asks for first: versions here and on executors, the broker, its queues.

Each line says what was tried and how it went; nothing stops at the first failure. Exit status 1
when anything failed.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from lavinmq import __version__
from lavinmq.pipeline.arguments import Parser, add_broker, broker_options, check
from lavinmq.pipeline.errors import DONE, FAILED
from lavinmq.pipeline.failures import explain
from lavinmq.pipeline.job import Job, Result, Run

if TYPE_CHECKING:
    from lavinmq.spark.option_values import Values

PACKAGES = ("pyspark", "pyarrow", "pandas")
COMPILED = "lavinmq.spark._arrow"
PATIENCE_S = 5.0


def configure(parser: Parser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("--queue", metavar="NAMES", help="a stream whose bounds to show, or several by commas")
    add("--no-spark", action="store_true", help="leave out what needs a session of Spark")
    add_broker(parser.add_argument_group("broker, left out without a URL"))


def run(run: Run) -> Result:
    """Try everything."""
    options = run.options
    check({"--queue needs --url": bool(options.queue) and not options.url})
    found: dict[str, Any] = {"driver": installed()}
    problems = [f"driver: {text}" for text in lacking(found["driver"])]
    parts: list[tuple[str, Callable[[], Any]]] = []
    if not options.no_spark:
        parts.append(("executors", lambda: executors(run)))
    if options.url:
        parts += [("amqp", lambda: amqp(options)), ("http", lambda: http(options))]
    if options.url and options.queue:
        parts.append(("queues", lambda: queues(options)))
    for name, part in parts:
        if name == "queues" and "amqp" not in found:
            continue  # it would try as long again, and fail for the same reason
        run.progress.note(f"trying {name}")
        try:
            found[name] = part()
        except Exception as error:  # noqa: BLE001 - each part reports its own failure
            problems.append(f"{name}: {explain(error)}")
    for host, facts in found.get("executors", {}).items():
        problems += [f"executor {host}: {text}" for text in lacking(facts)]
        problems += [
            f"executor {host}: {name} is {facts[name]}, here {found['driver'][name]}"
            for name in ("lavinmq", "python")
            if facts[name] != found["driver"][name]
        ]
    return Result(
        values={**found, "problems": problems},
        text="\n".join([*_lines(found), *(f"problem: {text}" for text in problems)]),
        status=FAILED if problems else DONE,
    )


def installed() -> dict[str, str]:
    """Return what is installed in this interpreter: versions, or why something is missing."""
    found = {"lavinmq": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    try:
        importlib.import_module(COMPILED)
        found[COMPILED] = "ok"
    except ImportError as error:
        found[COMPILED] = f"not usable: {error}"
    return found


def lacking(facts: Mapping[str, str]) -> list[str]:
    """Return a sentence for all that `installed` did not find, with the remedy."""
    remedy = 'pip install "lavinmq[spark]" there, or ship an environment with --archives'
    return [
        f"{name} is {text}; {remedy}"
        for name, text in facts.items()
        if text.startswith("not ") and name != "pandas"
    ]


def executors(run: Run) -> dict[str, Any]:
    """Return what is installed where tasks run, by host; at most a few tasks per core are tried."""
    context = run.spark.sparkContext
    n_tasks = max(2, context.defaultParallelism)

    def probe(_: Iterable[int]) -> Iterator[tuple[str, dict[str, str]]]:
        import socket

        try:
            from lavinmq.pipeline.jobs.check import installed as here

            yield socket.gethostname(), here()
        except ImportError:
            version = ".".join(map(str, sys.version_info[:3]))
            yield socket.gethostname(), {"lavinmq": "not installed", "python": version}

    found = by_host(context.parallelize(range(n_tasks), n_tasks).mapPartitions(probe).collect())
    jvm: Any = context._jvm
    java = str(jvm.java.lang.System.getProperty("java.version"))
    return {host: {**facts, "java": java} for host, facts in found.items()}


def by_host(found: Iterable[tuple[str, dict[str, str]]]) -> dict[str, dict[str, str]]:
    """Return what was found by host; where executors of one host differ they are told apart by a
    number."""
    hosts: dict[str, dict[str, str]] = {}
    for host, facts in found:
        names = chain((host,), (f"{host} ({n})" for n in count(2)))
        hosts[next(name for name in names if hosts.get(name, facts) == facts)] = facts
    return hosts


def amqp(options: argparse.Namespace) -> dict[str, str]:
    """Log in and open a channel. Raises: ConnectionFailure."""
    from lavinmq.spark.connection import connect

    where = _connection(options)
    with closing(connect(where, name="check", patience_s=PATIENCE_S)):
        return {"user": where.user, "vhost": where.vhost, "login": "ok"}


def http(options: argparse.Namespace) -> dict[str, int]:
    """Ask the HTTP API for the queues, and count them. Raises: SourceError."""
    from lavinmq.spark.admin import Admin

    with closing(Admin(_connection(options))) as admin:
        kinds = list(admin.queues().values())
    return {"queues": len(kinds), "streams": kinds.count("stream")}


def queues(options: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Return first and next offset of the streams. Raises: SourceError."""
    from lavinmq.spark.options import SourceOptions
    from lavinmq.spark.streams import Streams

    chosen = SourceOptions.parse(broker_options(options) | {"queue": options.queue})
    with Streams(chosen) as streams:
        held = streams.bounds()
    return {
        name: {"first_offset": each.first, "next_offset": each.end} for name, each in held.items()
    }


def _connection(options: argparse.Namespace) -> Any:
    from lavinmq.spark.option_values import Values
    from lavinmq.spark.options import IGNORED, SOURCE_NAMES, ConnectionOptions

    values: Values = Values(broker_options(options), SOURCE_NAMES, IGNORED)
    return ConnectionOptions.parse(values)


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        if isinstance(value, dict) and any(isinstance(each, dict) for each in value.values()):
            yield from (f"{name} {key}: {_flat(each)}" for key, each in value.items())
        else:
            yield f"{name}: {_flat(value)}"


def _flat(value: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {each}" for key, each in value.items())


JOB = Job(name="check", help="Versions, executors, the broker and its streams",
          configure=configure, run=run)  # fmt: skip
