"""`lavinmqctl [options] command [arguments]`: administration of a broker from the command line.

Finds the command, runs it, and turns errors into a message on standard error and an exit status:
0 done, 1 any error, 2 this node is not the leader. Modules are loaded when they are needed, since
scripts start this program thousands of times. Source: docs/lavinmqctl.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from lavinmq import __version__
from lavinmq.cli.ctl.arguments import CommandLine, check, parse
from lavinmq.cli.ctl.errors import FAILED, CtlError, UsageError
from lavinmq.cli.ctl.output import printable
from lavinmq.cli.ctl.table import Command

if TYPE_CHECKING:
    from lavinmq.cli.ctl.session import Session

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `lavinmqctl`; returns the exit status."""
    try:
        status = _status(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has gone, `head` for one
        _give_up_output()
    except OSError as error:  # of the output: others became a CtlError, or name a file
        if error.filename is not None:
            raise
        reason = error.strerror or error
        print(f"Error: Cannot write the output: {reason}", file=sys.stderr)
        _give_up_output()
    except KeyboardInterrupt:
        print(file=sys.stderr)  # whatever the terminal shows begins on a line of its own
        return INTERRUPTED
    return FAILED


def _status(argv: Sequence[str]) -> int:
    """Run the command line, and print what is wrong with it; returns the exit status."""
    try:
        return _run(argv)
    except UsageError as error:
        print(f"Error: {printable(str(error))}", file=sys.stderr)
        command = error.command
        print(
            f"Usage: lavinmqctl {command.usage}" if command else "See lavinmqctl --help",
            file=sys.stderr,
        )
        return error.status
    except CtlError as error:
        print(f"Error: {printable(str(error))}", file=sys.stderr)
        for detail in error.details:
            print(f"  {printable(detail)}", file=sys.stderr)
        return error.status


def _give_up_output() -> None:
    """What is left of the output goes nowhere: the interpreter must not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str]) -> int:
    """Answer, or carry out a command. Raises: CtlError."""
    line = parse(argv)
    if _is_answered(line):
        return 0
    if line.command is None:
        from lavinmq.cli.ctl.help import help_text

        sys.stderr.write(help_text())
        return FAILED
    command = check(line)
    from lavinmq.cli.ctl.session import Session

    session = Session(line, os.environ)
    try:
        function_of(command)(session)
    finally:
        session.close()
    for note in session.notes:
        print(f"Note: {printable(note)}", file=sys.stderr)
    return 0


def function_of(command: Command) -> Callable[[Session], None]:
    """The function that carries out the command."""
    from importlib import import_module

    function: Callable[[Session], None] = getattr(
        import_module(f"lavinmq.cli.ctl.{command.home}"), command.name
    )
    return function


def _is_answered(line: CommandLine) -> bool:
    """Print what was asked for instead of a command, if anything was."""
    given = line.global_options
    if "--help" in given:
        from lavinmq.cli.ctl.help import command_help, help_text

        sys.stdout.write(command_help(line.command) if line.command else help_text())
    elif "--version" in given:
        print(__version__)
    elif "--build-info" in given:
        version = sys.version.split()[0]
        print(f"lavinmqctl {__version__}\nPython {version}\nPlatform {sys.platform}")
    else:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
