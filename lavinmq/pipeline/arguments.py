"""The command line of lavinmq-pipeline: its parser, the options that jobs share, converters.

Errors are raised as UsageError; only ``cli.py`` prints them. The page for people is
docs/pipeline.md.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from lavinmq.pipeline.errors import UsageError
from lavinmq.pipeline.job import Job

if TYPE_CHECKING:
    from lavinmq.spark.options import ConnectionOptions

URL_VARIABLE = "LAVINMQ_URL"
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(?P<number>\d+)\s*(?P<unit>[kmg]?)(?:i?b)?", re.IGNORECASE)
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


class Parser(argparse.ArgumentParser):
    """The options of one command. Raises UsageError where argparse would end the process."""

    def __init__(self, prog: str, description: str = "") -> None:
        super().__init__(
            prog=prog,
            description=description or None,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; called by argparse."""
        raise UsageError(message)

    def table(self) -> tuple[list[str], list[tuple[list[str], str, str]]]:
        """The words for arguments; and the options: names, word for the value if any, help."""
        formatter = self._get_formatter()
        arguments, options = [], []
        for action in self._actions:
            word = "" if action.nargs == 0 else str(action.metavar or action.dest)
            if not action.option_strings:
                arguments.append(word)
                continue
            choices = "|".join(map(str, action.choices)) if action.choices else word
            text = formatter._expand_help(action)
            options.append((list(action.option_strings), choices, text))
        return arguments, options

    def flag(self, *names: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(*names, action="store_true", help=help)


def job_parser(job: Job) -> Parser:
    """Return the parser of a job with the options of its kind."""
    parser = Parser(f"lavinmq-pipeline {job.name}", job.description or f"{job.help}.")
    job.configure(parser)
    if job.is_stream:
        add = parser.add_argument_group("stream").add_argument
        add(
            "--checkpoint",
            metavar="DIR",
            required=True,
            help="where the job remembers what is done; one for each job and target",
        )
        add(
            "--once",
            action="store_true",
            help="take what is there now and end; for cron. Else the job goes on until stopped",
        )
        add("--trigger", type=duration, metavar="DURATION", default=10.0,
            help="start a batch this often, default 10s; 5s is the least that pays")  # fmt: skip
    if job.needs_spark:
        add = parser.add_argument_group("Spark").add_argument
        add(
            "--master",
            metavar="URL",
            help="default: that of spark-submit, else local[*,4]: all cores, four attempts",
        )
        add("--conf", type=setting, metavar="KEY=VALUE", action="append", default=[],
            help="a setting of Spark; may be repeated")  # fmt: skip
    add = parser.add_argument_group("output").add_argument
    add("--json", action="store_true", help="print nothing but the result, as one line of JSON")
    add("--debug", action="store_true", help="show Spark's log, and where an error comes from")
    return parser


def add_broker(parser: argparse._ActionsContainer) -> None:
    """Add the options that say where the broker is and as whom to log in."""
    add = parser.add_argument
    add(
        "--url",
        metavar="URL",
        default=os.environ.get(URL_VARIABLE),
        help=f"amqp(s)://user:password@host:port/vhost, several by commas; else {URL_VARIABLE}",
    )
    add("--user", metavar="NAME", help="log in as this user, else as the URL says")
    add(
        "--password-file",
        metavar="FILE",
        help="file with the password, which then is in no process list; executors need it, too",
    )
    add("--vhost", metavar="NAME", help="virtual host, else the one of the URL")
    add("--http-url", metavar="URL", help="HTTP API, default port 15672 of the same host")
    add("--option", type=setting, metavar="KEY=VALUE", action="append", default=[],
        help="any other option of the format lavinmq; may be repeated")  # fmt: skip


def add_streams(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which streams to read."""
    which = parser.add_argument_group("what to read, one of").add_mutually_exclusive_group(
        required=True
    )
    which.add_argument("--queue", metavar="NAMES", help="stream, or several by commas")
    which.add_argument("--queue-pattern", metavar="REGEX", help="streams whose whole name matches")
    which.add_argument("--super-stream", metavar="EXCHANGE", help="streams bound to an exchange")


def broker_options(options: argparse.Namespace) -> dict[str, str]:
    """Return what `add_broker` has read, as options of the format lavinmq. Raises: UsageError."""
    if not options.url:
        raise UsageError(f"--url is missing, and {URL_VARIABLE} is not set")
    named = {
        "url": options.url,
        "user": options.user,
        "passwordFile": options.password_file,
        "vhost": options.vhost,
        "httpUrl": options.http_url,
    }
    return {key: value for key, value in named.items() if value is not None} | dict(options.option)


def connection_of(options: argparse.Namespace) -> ConnectionOptions:
    """Return what `add_broker` has read, for a connection of the driver's. Raises: UsageError."""
    from lavinmq.spark.option_values import OptionError, Values
    from lavinmq.spark.options import IGNORED, SOURCE_NAMES, ConnectionOptions

    try:
        return ConnectionOptions.parse(Values(broker_options(options), SOURCE_NAMES, IGNORED))
    except OptionError as error:
        raise UsageError(str(error)) from None


def setting(text: str) -> tuple[str, str]:
    """Read `key=value`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise argparse.ArgumentTypeError(f"expected key=value, got: {text}")
    return key.strip(), value


def duration(text: str) -> float:
    """Read `10s`, `500ms`, `2m`, `1h`, `1d`. Returns: seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a duration such as 10s, got: {text}")
    return float(match["number"]) * _SECONDS[match["unit"]]


def size(text: str) -> int:
    """Read `1048576`, `512k`, `128m`, `1g`. Returns: bytes, at least 1."""
    match = _SIZE.fullmatch(text.strip())
    number = int(match["number"]) * _BYTES[match["unit"].lower()] if match else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a size such as 128m, got: {text}")
    return number


def positive(text: str) -> int:
    """Read a whole number, at least 1."""
    if not text.isascii() or not text.isdecimal() or not 0 < (number := int(text)) < 1 << 62:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got: {text}")
    return number


def check(problems: Mapping[str, bool]) -> None:
    """Raise UsageError with the first text whose value is true."""
    for text, is_wrong in problems.items():
        if is_wrong:
            raise UsageError(text)
