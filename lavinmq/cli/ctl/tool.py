"""The commands of lavinmqctl about itself: help and completion. No broker is needed."""

from __future__ import annotations

import sys

from lavinmq.cli.ctl.errors import UsageError
from lavinmq.cli.ctl.session import Session


def completion(session: Session) -> None:
    """Print what a shell needs to complete the command lines of our programs."""
    from lavinmq.cli.completion import SHELLS, script
    from lavinmq.cli.programs import PROGRAMS, installed

    shell = session.arguments[0]
    if shell not in SHELLS:
        raise UsageError(f"Invalid argument: {shell} (one of {', '.join(SHELLS)})")
    chosen = session.options.get("--program")
    known = installed()
    if chosen is not None and chosen not in known:
        raise UsageError(f"Invalid value of --program: one of {', '.join(known)}")
    names = [chosen] if chosen else known
    sys.stdout.write(script(shell, [PROGRAMS[name]() for name in names]))


def help(session: Session) -> None:
    """Show all commands, or one."""
    from lavinmq.cli.ctl.help import command_help, help_text
    from lavinmq.cli.ctl.table import command_named

    if not session.arguments:
        sys.stdout.write(help_text())
        return
    command = command_named(session.arguments[0])
    if command is None:
        raise UsageError(f"Invalid argument: {session.arguments[0]}")
    sys.stdout.write(command_help(command))
