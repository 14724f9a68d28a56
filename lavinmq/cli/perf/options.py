"""What the options of all scenarios of lavinmqperf have in common.

`Parser` is a table of options, whose defaults are those of a dataclass of the scenario; the
converters give its values their types. Nothing here prints or ends the process.
"""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lavinmq import __version__


class UsageError(Exception):
    """The command line makes no sense; the text says why."""


class Information(Exception):
    """The text is to be printed instead of a run."""


class Parser(argparse.ArgumentParser):
    """The options of one scenario; `defaults` has an attribute for each of them.

    Errors and information are raised: only `lavinmq.cli.perf.__main__` prints them.
    """

    def __init__(
        self, scenario: str, defaults: object, uri_names: Sequence[str] = ("--uri",)
    ) -> None:
        super().__init__(
            prog=f"lavinmqperf {scenario}",
            add_help=False,
            allow_abbrev=False,
            usage="%(prog)s [options]",
        )
        self._initial = defaults
        self._answers = {
            "help": self.format_help,
            "version": lambda: __version__,
            "build_info": build_info,
        }
        self.flag("-h", "--help", text="show this help and exit")
        self.flag("-v", "--version", text="show the version and exit")
        self.flag("--build-info", text="show build information and exit")
        self.value(*uri_names, convert=str, metavar="URI", text="broker, default %(default)s")

    def value(
        self,
        *names: str,
        text: str,
        convert: Callable[[str], Any] | None = None,
        metavar: str = "N",
        dest: str = "",
    ) -> None:
        """Add an option with a value, by default a number; it is named after its last name."""
        dest = dest or names[-1].lstrip("-").replace("-", "_")
        default = getattr(self._initial, dest)
        self.add_argument(
            *names, dest=dest, type=convert or count, metavar=metavar, default=default, help=text
        )

    def flag(self, *names: str, text: str) -> None:
        """Add an option without a value."""
        self.add_argument(*names, action="store_true", help=text)

    def table(self) -> list[tuple[list[str], str, str]]:
        """The options: names, word for the value if there is one, help."""
        formatter = self._get_formatter()
        return [
            (
                list(action.option_strings),
                "" if action.nargs == 0 else str(action.metavar),
                formatter._expand_help(action),
            )
            for action in self._actions
        ]

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; called by argparse."""
        raise UsageError(message)

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the values by name. Raises: UsageError, Information."""
        values = vars(self.parse_args(argv))
        asked = [text for name, text in self._answers.items() if values.pop(name)]
        if asked:
            raise Information(asked[0]())
        return values


def check(problems: dict[str, bool]) -> None:
    """Raise UsageError with the first text whose value is true."""
    for text, is_wrong in problems.items():
        if is_wrong:
            raise UsageError(text)


def count(text: str) -> int:
    """Read a whole number, at least 0."""
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def rate(text: str) -> float:
    """Read a number, at least 0: messages/s or seconds."""
    number = float(text)
    if not 0 <= number < 1e12:
        raise ValueError
    return number


def json_object(text: str) -> dict[str, Any]:
    """Read the arguments or properties of something."""
    import json

    value = json.loads(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"expected a JSON object, got: {text}")
    return value


# argparse names a converter in its message: "invalid number value: 'x'".
count.__name__ = rate.__name__ = "number"
json_object.__name__ = "JSON"


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
