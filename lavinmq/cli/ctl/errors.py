"""What ends a command of lavinmqctl: an error with a text for people and an exit status."""

from __future__ import annotations

from collections.abc import Sequence

from lavinmq.cli.ctl.table import Command

FAILED = 1
NOT_THE_LEADER = 2


class CtlError(Exception):
    """The text is printed on standard error, the status is that of the program."""

    details: Sequence[str] = ()
    """Further lines, for what is wrong in several places."""

    def __init__(self, text: str, status: int = FAILED) -> None:
        super().__init__(text)
        self.status = status


class UsageError(CtlError):
    """A command line that makes no sense; with the command it is about, if it is about one."""

    def __init__(self, text: str, command: Command | None = None) -> None:
        super().__init__(text)
        self.command = command


class UnreachableError(CtlError):
    """Nobody answers; waiting may help."""


class ApiError(CtlError):
    """The broker answered with an error.

    `code` is the status of HTTP, `reason` what the broker says.
    """

    def __init__(self, code: int, reason: str, text: str, status: int = FAILED) -> None:
        super().__init__(text, status)
        self.code = code
        self.reason = reason
