"""Reads the command line of lavinmqctl by the tables of ``table.py``. Judges no value.

Options may stand before and behind the command and its arguments, up to a `--`. An option of the
command wins over a global one of the same name, which is then still there by its short form. How
options are written is the business of `config/option_words.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lavinmq.cli.ctl.errors import UsageError
from lavinmq.cli.ctl.table import COMMANDS, GLOBAL_OPTIONS, Command, Option, command_named
from lavinmq.config.option_words import OptionError, cut
from lavinmq.nearest import hint

NOT_EMPTY = ("--vhost", "--uri", "--host", "--hostname", "--port", "--scheme", "--user",
             "--control-unix-path")  # fmt: skip
"""Options whose value cannot be empty: a script's variable was, which must not mean the default."""
NAMES = ("user", "vhost", "name", "component", "node")
"""Arguments that cannot be empty either: there is nothing of that name."""


class CommandLine:
    """What a command line says; options without a value hold an empty text."""

    __slots__ = ("arguments", "command", "global_options", "options")

    def __init__(self) -> None:
        self.command: Command | None = None
        self.arguments: list[str] = []
        self.global_options: dict[str, str] = {}
        """Values by long name."""
        self.options: dict[str, str] = {}
        """Those of the command, by long name."""


def parse(argv: Sequence[str]) -> CommandLine:
    """Return what `argv`, without the program's name, says. Raises: UsageError.

    Arguments and needed options are not counted here: `--help` may stand in their place.
    """
    line = CommandLine()
    try:
        for name, text in cut(argv, lambda name: bool(_known(line, name)[0].argument)):
            if name:
                option, values = _known(line, name)
                values[option.long] = text
            else:
                _take_word(line, text)
    except OptionError as error:
        raise UsageError(str(error)) from error
    return line


def check(line: CommandLine) -> Command:
    """Return the command, whose arguments and needed options are all there. Raises: UsageError."""
    command = line.command
    if command is None:
        raise UsageError("No command")
    for name in NOT_EMPTY:
        if line.global_options.get(name) == "":
            raise UsageError(f"The value of {name} is empty")
    words = command.arguments.split()
    least = sum(not word.startswith("[") for word in words)
    if len(line.arguments) < least:
        missing = words[len(line.arguments)].removesuffix("...")
        raise UsageError(f"Missing argument: {missing}", command)
    if len(line.arguments) > len(words) and not any("..." in word for word in words):
        raise UsageError(f"Invalid argument: {line.arguments[len(words)]}", command)
    for word, text in zip(words, line.arguments, strict=False):
        if word in NAMES and not text:
            raise UsageError(f"The argument {word} is empty", command)
    for name in command.needs:
        if name not in line.options:
            raise UsageError(f"Missing option: {name}", command)
    return command


def _take_word(line: CommandLine, word: str) -> None:
    if line.command is not None:
        line.arguments.append(word)
        return
    line.command = command_named(word)
    if line.command is None:
        commands = (command.name for group in COMMANDS.values() for command in group)
        raise UsageError(f"Invalid argument: {word}{hint(word, commands)}")


def _known(line: CommandLine, name: str) -> tuple[Option, dict[str, str]]:
    """Return the option of a name, and where its value goes."""
    for option in line.command.options if line.command else ():
        if name == option.long:
            return option, line.options
    for option in GLOBAL_OPTIONS:
        if name in (option.long, option.short):
            return option, line.global_options
    own = line.command.options if line.command else ()
    names = (option.long for option in (*own, *GLOBAL_OPTIONS))
    likely = hint(name, names) if name.startswith("--") else ""
    raise UsageError(f"Invalid argument: {name}{likely}", line.command)
