"""The help texts of lavinmqctl, made from its tables."""

from __future__ import annotations

from collections.abc import Iterable

from lavinmq.cli.ctl.table import COMMANDS, GLOBAL_OPTIONS, Command, Option

OPTION_WIDTH = 34
COMMAND_WIDTH = 44


def help_text() -> str:
    """Return what `lavinmqctl --help` prints."""
    lines = ["Usage: lavinmqctl [options] command [arguments]", "", "Options:"]
    lines += _options(GLOBAL_OPTIONS)
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:"]
        for command in commands:
            call = f"{command.name} {command.arguments}".rstrip()
            lines.append(f"    {call:<{COMMAND_WIDTH}} {command.help}")
    lines += ["", "lavinmqctl help COMMAND lists the options of a command."]
    return "\n".join(lines) + "\n"


def command_help(command: Command) -> str:
    """Return what `lavinmqctl COMMAND --help` prints."""
    lines = [f"Usage: lavinmqctl [options] {command.usage}", "", command.help + "."]
    if command.options:
        lines += ["", "Options:", *_options(command.options)]
    return "\n".join(lines) + "\n"


def _options(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        long = f"{option.long} {option.argument}".rstrip()
        spelling = f"{option.short}, {long}" if option.short else f"    {long}"
        lines.append(f"    {spelling:<{OPTION_WIDTH}} {option.help}")
    return lines
