"""Our programs as tables: what completion (``completion.py``) and manual pages are made from.

The tables are those the programs themselves read their command lines by, in one form for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from lavinmq.pipeline.arguments import Parser as JobParser


class OptionText(NamedTuple):
    """One option: its spellings, the word for its value (empty: it takes none), its help."""

    names: tuple[str, ...]
    argument: str
    help: str


class CommandText(NamedTuple):
    """One command of a program: its options are those behind its name."""

    name: str
    arguments: str
    help: str
    options: tuple[OptionText, ...]


class Program(NamedTuple):
    """One program; options and commands stand in groups, whose names may be empty."""

    name: str
    summary: str
    usage: str
    options: Mapping[str, tuple[OptionText, ...]]
    commands: Mapping[str, tuple[CommandText, ...]]

    def all_options(self) -> list[OptionText]:
        """The options of the program itself, in their order."""
        return [option for group in self.options.values() for option in group]

    def all_commands(self) -> list[CommandText]:
        """All commands, in their order."""
        return [command for group in self.commands.values() for command in group]


def broker() -> Program:
    """Return `lavinmq`."""
    from lavinmq.config.settings import GROUPS, flags
    from lavinmq.config.usage import flag_help

    groups: dict[str, dict[str, OptionText]] = {group: {} for group in GROUPS}
    for flag, setting in flags():
        names = (flag.short, flag.long) if flag.short else (flag.long,)
        text = OptionText(names, flag.argument, flag_help(flag, setting))
        groups[flag.group].setdefault(flag.long, text)
    options = {group: tuple(found.values()) for group, found in groups.items()}
    return Program("lavinmq", "message broker", "lavinmq [options]", options, {})


def control() -> Program:
    """Return `lavinmqctl`."""
    from lavinmq.cli.ctl.table import COMMANDS, GLOBAL_OPTIONS, Option

    def text(option: Option) -> OptionText:
        names = (option.short, option.long) if option.short else (option.long,)
        return OptionText(names, option.argument, option.help)

    commands = {
        group: tuple(
            CommandText(each.name, each.arguments, each.help, tuple(map(text, each.options)))
            for each in members
        )
        for group, members in COMMANDS.items()
    }
    return Program(
        "lavinmqctl", "administration of a lavinmq broker",
        "lavinmqctl [options] command [arguments]", {"": tuple(map(text, GLOBAL_OPTIONS))},
        commands,
    )  # fmt: skip


def perf() -> Program:
    """Return `lavinmqperf`; the protocol is a word of its own before the scenario."""
    from lavinmq.cli.perf.__main__ import SCENARIOS

    scenarios = tuple(
        CommandText(name, "", PERF_HELP[name], _perf_options(name)) for name in SCENARIOS["amqp"]
    )
    options = (
        OptionText(("-h", "--help"), "", "show help and exit"),
        OptionText(("-v", "--version"), "", "show the version and exit"),
        OptionText(("--build-info",), "", "show build information and exit"),
    )
    return Program(
        "lavinmqperf", "load generator for AMQP brokers", "lavinmqperf [amqp] scenario [options]",
        {"": options}, {"Scenarios": scenarios},
    )  # fmt: skip


def pipeline() -> Program:
    """Return `lavinmq-pipeline`."""
    from lavinmq.pipeline.arguments import job_parser
    from lavinmq.pipeline.job import find_jobs

    commands = tuple(_job(job_parser(job), job.name, job.help) for job in find_jobs().values())
    path = CommandText("path", "", "Print the file to give to spark-submit", ())
    options = (
        OptionText(("-h", "--help"), "", "show help and exit"),
        OptionText(("-v", "--version"), "", "show the version and exit"),
    )
    return Program(
        "lavinmq-pipeline", "jobs on Spark for messages", "lavinmq-pipeline command [options]",
        {"": options}, {"Commands": (*commands, path)},
    )  # fmt: skip


PERF_HELP = MappingProxyType(
    {
        "throughput": "Publish and consume, and show the rates",
        "queue-count": "Declare many queues",
        "connection-count": "Open many connections",
        "bind-churn": "Bind and unbind queues",
        "queue-churn": "Create and delete queues",
        "connection-churn": "Open and close connections",
        "channel-churn": "Open and close channels",
        "consumer-churn": "Start and cancel consumers",
    }
)
"""What each scenario does."""

PROGRAMS: Mapping[str, Callable[[], Program]] = MappingProxyType(
    {
        "lavinmq": broker,
        "lavinmqctl": control,
        "lavinmqperf": perf,
        "lavinmq-pipeline": pipeline,
    }
)
"""All programs by name."""


def installed() -> list[str]:
    """The names of those that are there: jobs on Spark are a distribution of their own."""
    is_there = find_spec("lavinmq.pipeline") is not None
    return [name for name in PROGRAMS if is_there or name != "lavinmq-pipeline"]


def _perf_options(scenario: str) -> tuple[OptionText, ...]:
    match scenario:
        case "throughput":
            from lavinmq.cli.perf.throughput_options import throughput_parser

            parser = throughput_parser()
        case "queue-count":
            from lavinmq.cli.perf.count_options import queue_count_parser

            parser = queue_count_parser()
        case "connection-count":
            from lavinmq.cli.perf.count_options import connection_count_parser

            parser = connection_count_parser()
        case _:
            from lavinmq.cli.perf.churn_options import churn_parser

            parser = churn_parser(scenario)
    return tuple(OptionText(tuple(names), word, text) for names, word, text in parser.table())


def _job(parser: JobParser, name: str, summary: str) -> CommandText:
    arguments, options = parser.table()
    texts = tuple(OptionText(tuple(names), word, text) for names, word, text in options)
    return CommandText(name, " ".join(arguments), summary, texts)
