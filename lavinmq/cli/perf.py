"""`lavinmqperf [amqp|mqtt] <scenario> [options]`: arguments in, a validated scenario started.

Owns the command line: usage, the table of options, their checks. The scenarios themselves live in
modules of their own (`lavinmq.cli.throughput`) and are imported only when asked for.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lavinmq import __version__

SCENARIOS = {
    "amqp": (
        "throughput",
        "queue-count",
        "connection-count",
        "bind-churn",
        "queue-churn",
        "connection-churn",
        "channel-churn",
        "consumer-churn",
    ),
    "mqtt": ("throughput",),
}
STAMP_BYTES = 8
SIZE_MAX = 512 * 1024 * 1024
WINDOW_MAX = 1 << 24
PATTERN_QUEUES_MAX = 1_000_000


class UsageError(Exception):
    """The command line makes no sense; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputOptions:
    """`amqp throughput`: what to publish and consume. Rates are messages/s, sizes bytes."""

    uri: str = "amqp://guest:guest@localhost"
    publishers: int = 1
    consumers: int = 1
    size: int = 16
    verify: bool = False
    ack: int = 0
    confirm: int = 0
    transaction: int = 0
    ack_transaction: int = 0
    queue: str = "perf-test"
    routing_key: str | None = None
    exchange: str = ""
    rate: float = 0
    consumer_rate: float = 0
    persistent: bool = False
    prefetch: int = 0
    poll: bool = False
    json: bool = False
    time: float = 0
    quiet: bool = False
    pmessages: int = 0
    cmessages: int = 0
    queue_args: dict[str, Any] = field(default_factory=dict)
    consumer_args: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    random_bodies: bool = False
    queue_pattern: str | None = None
    queue_pattern_from: int = 1
    queue_pattern_to: int = 1
    measure_latency: bool = False

    @property
    def queues(self) -> list[str]:
        """The names of all queues of the run."""
        if self.queue_pattern is None:
            return [self.queue]
        numbers = range(self.queue_pattern_from, self.queue_pattern_to + 1)
        return [self.queue_pattern.replace("%", str(number)) for number in numbers]


class _Parser(argparse.ArgumentParser):
    """argparse, with errors raised: `main` turns them into a message and status 1."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _rate(text: str) -> float:
    number = float(text)
    if not 0 <= number < 1e12:
        raise ValueError
    return number


def _json_object(text: str) -> dict[str, Any]:
    import json

    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got: {text}")
    return value


# argparse names a converter in its message: "invalid number value: 'x'".
_count.__name__ = _rate.__name__ = "number"
_json_object.__name__ = "JSON"


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="show this help and exit")
    add("-v", "--version", action="store_true", help="show the version and exit")
    add("--build-info", action="store_true", help="show build information and exit")


def throughput_parser() -> argparse.ArgumentParser:
    """Return the table of options of `amqp throughput`."""
    parser = _Parser(
        prog="lavinmqperf amqp throughput",
        add_help=False,
        allow_abbrev=False,
        usage="%(prog)s [options]",
    )
    default = ThroughputOptions()
    _add_common(parser)

    def value(*names: str, convert: Any = _count, metavar: str = "N", text: str) -> None:
        dest = names[-1].lstrip("-").replace("-", "_")
        parser.add_argument(
            *names, type=convert, metavar=metavar, default=getattr(default, dest), help=text
        )

    def flag(*names: str, text: str) -> None:
        parser.add_argument(*names, action="store_true", help=text)

    value("--uri", convert=str, metavar="URI", text="broker, default %(default)s")
    value("-x", "--publishers", text="number of publishers, default 1")
    value("-y", "--consumers", text="number of consumers, default 1")
    value("-s", "--size", metavar="BYTES", text="size of each body, default 16")
    flag("-V", "--verify", text="check the body of every message consumed")
    value("-a", "--ack", text="acknowledge every N messages, 0 = no-ack mode (default)")
    value("-c", "--confirm", text="publisher confirms, at most N unconfirmed")
    value("-t", "--transaction", text="publish in transactions of N messages")
    parser.add_argument(
        "-T",
        dest="ack_transaction",
        type=_count,
        metavar="N",
        default=0,
        help="acknowledge in transactions of N messages",
    )
    value("-u", "--queue", convert=str, metavar="NAME", text="queue, default perf-test")
    value("-k", "--routing-key", convert=str, metavar="KEY", text="default: the queue's name")
    value("-e", "--exchange", convert=str, metavar="NAME", text="default: the default exchange")
    value("-r", "--rate", convert=_rate, text="messages/s of each publisher, 0 = no limit")
    value("-R", "--consumer-rate", convert=_rate, text="messages/s of each consumer, 0 = no limit")
    flag("-p", "--persistent", text="publish persistent messages")
    value("-P", "--prefetch", text="prefetch of each consumer, 0 = no limit")
    flag("-g", "--poll", text="poll with basic.get instead of consuming")
    flag("-j", "--json", text="print nothing but the summary, as JSON")
    value("-z", "--time", convert=_rate, metavar="SECONDS", text="stop after this time")
    flag("-q", "--quiet", text="no rates every second")
    value("-C", "--pmessages", text="publish N messages in total")
    value("-D", "--cmessages", text="consume N messages in total")
    for name, text in (
        ("--queue-args", "arguments of queue.declare"),
        ("--consumer-args", "arguments of basic.consume"),
        ("--properties", "properties of each message"),
    ):
        value(name, convert=_json_object, metavar="JSON", text=text)
    flag("--random-bodies", text="new random bytes in each body")
    value("--queue-pattern", convert=str, metavar="NAME", text="many queues: %% is the number")
    value("--queue-pattern-from", text="first number, default 1")
    value("--queue-pattern-to", text="last number, default 1")
    flag("-l", "--measure-latency", text="measure the time from publisher to consumer")
    return parser


def parse_throughput(argv: Sequence[str]) -> ThroughputOptions | str:
    """Read and check the options of `amqp throughput`; a text is to be printed instead of a run.

    Raises: UsageError.
    """
    parser = throughput_parser()
    values = vars(parser.parse_args(argv))
    information = {
        "help": parser.format_help(),
        "version": __version__,
        "build_info": build_info(),
    }
    for name, text in information.items():
        if values.pop(name):
            return text
    options = ThroughputOptions(**values)
    if problem := _problem(options):
        raise UsageError(problem)
    return options


def _problem(options: ThroughputOptions) -> str | None:
    """Say what is wrong with a combination of options."""
    pattern, first, last = (
        options.queue_pattern,
        options.queue_pattern_from,
        options.queue_pattern_to,
    )
    checks = {
        "nothing to do: neither publishers nor consumers": not (
            options.publishers or options.consumers
        ),
        f"--measure-latency needs a --size of at least {STAMP_BYTES}": (
            options.measure_latency and options.size < STAMP_BYTES
        ),
        f"--size must be at most {SIZE_MAX}": options.size > SIZE_MAX,
        f"--confirm must be at most {WINDOW_MAX}": options.confirm > WINDOW_MAX,
        "--prefetch must be at most 65535": options.prefetch > 65535,
        "--confirm and --transaction exclude each other": bool(
            options.confirm and options.transaction
        ),
        "--queue-pattern needs a % for the number": pattern is not None and "%" not in pattern,
        f"--queue-pattern-to must be in {first}..{first + PATTERN_QUEUES_MAX - 1}": (
            pattern is not None and not first <= last < first + PATTERN_QUEUES_MAX
        ),
    }
    return next((text for text, is_wrong in checks.items() if is_wrong), None)


def build_info() -> str:
    """Return the version and what the program was built with, one per line."""
    import platform
    import sysconfig

    return "\n".join(
        (
            f"lavinmqperf {__version__}",
            f"Python {platform.python_version()} ({platform.python_compiler()})",
            f"Platform {sysconfig.get_platform()}",
        )
    )


def usage() -> str:
    """Return the help of the program as a whole."""
    lines = ["Usage: lavinmqperf [amqp|mqtt] <scenario> [options]", ""]
    for protocol, names in SCENARIOS.items():
        lines += [f"{protocol} scenarios:", *(f"  {name}" for name in names), ""]
    lines.append(
        "The protocol defaults to amqp. `lavinmqperf <scenario> --help` lists the options."
    )
    lines.append("  -h, --help      show this help and exit")
    lines.append("  -v, --version   show the version and exit")
    lines.append("  --build-info    show build information and exit")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lavinmqperf`; returns the exit status."""
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except (UsageError, ValueError) as error:
        print(f"Error: {error}", file=sys.stderr)
        print("See lavinmqperf --help", file=sys.stderr)
        return 1


def _run(args: list[str]) -> int:
    protocol = args.pop(0) if args and args[0] in SCENARIOS else "amqp"
    if not args:
        print(usage(), file=sys.stderr)
        return 1
    information = {
        "-h": usage,
        "--help": usage,
        "-v": lambda: __version__,
        "--version": lambda: __version__,
        "--build-info": build_info,
    }
    scenario = args.pop(0)
    if scenario in information:
        print(information[scenario]())
        return 0
    if scenario not in SCENARIOS[protocol]:
        raise UsageError(f"unknown scenario: {protocol} {scenario}")
    if (protocol, scenario) != ("amqp", "throughput"):
        raise UsageError(f"the scenario {protocol} {scenario} is not there yet")
    options = parse_throughput(args)
    if isinstance(options, str):
        print(options)
        return 0

    from lavinmq.cli.throughput import Throughput

    return Throughput(options).run()


if __name__ == "__main__":
    sys.exit(main())
