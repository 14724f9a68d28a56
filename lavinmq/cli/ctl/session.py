"""What a command of lavinmqctl works with: its arguments and options, the API, the output."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lavinmq.cli.ctl.arguments import CommandLine
from lavinmq.cli.ctl.errors import CtlError, UsageError
from lavinmq.cli.ctl.output import Output

if TYPE_CHECKING:
    from lavinmq.cli.ctl.api import Api


class Session:
    """One run of a command.

    Args: line: a command line that was checked; environ: the environment.
    """

    def __init__(self, line: CommandLine, environ: Mapping[str, str]) -> None:
        given = line.global_options
        self.arguments: Sequence[str] = line.arguments
        self.options = line.options
        self.vhost = given.get("--vhost", "/")
        self.has_vhost = "--vhost" in given
        """Whether a virtual host was named."""
        self.output = Output(
            given.get("--format", "text"), "--quiet" in given or "--silent" in given
        )
        self._global_options = given
        self._environ = environ
        self._api: Api | None = None

    @property
    def api(self) -> Api:
        """The API of the broker; nothing of HTTP is loaded before it is asked for."""
        if self._api is None:
            from lavinmq.cli.ctl.api import Api, choose

            self._api = Api(choose(self._global_options, self._environ))
        return self._api

    @property
    def notes(self) -> list[str]:
        """What the broker has said beside its answers."""
        return [] if self._api is None else self._api.notes

    def close(self) -> None:
        """Close the connection to the broker, if there is one."""
        if self._api is not None:
            self._api.close()

    def has(self, option: str) -> bool:
        """Whether an option of the command was given."""
        return option in self.options

    def integer(self, option: str, default: int | None = None) -> int | None:
        """The value of an option that is a whole number. Raises: UsageError."""
        text = self.options.get(option)
        return default if text is None else whole_number(option, text)

    def columns(self, default: str) -> list[str]:
        """The columns that were asked for, each once, else the usual ones."""
        return list(dict.fromkeys(self.arguments)) or default.split()

    def password(self, index: int) -> str:
        """The password that is an argument, or is typed, or comes by standard input.

        Raises: CtlError when there is none.
        """
        if index < len(self.arguments):
            return self.arguments[index]
        if sys.stdin.isatty():
            import getpass

            try:
                password = getpass.getpass("Password: ")
            except EOFError:  # Ctrl-D
                print(file=sys.stderr)
                password = ""
        else:
            password = sys.stdin.readline().removesuffix("\n")
        if not password:
            raise UsageError("Missing argument: password")
        return password


def whole_number(name: str, text: str) -> int:
    """Read a whole number. Raises: UsageError naming it."""
    digits = text[1:] if text[:1] == "-" else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        raise UsageError(f"Invalid value of {name}: {text!r} is not a whole number")
    return int(text)


def json_value(name: str, text: str) -> Any:
    """Read JSON. Raises: CtlError naming the argument."""
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CtlError(f"Invalid {name}: not JSON: {error}") from None
