"""What a user may do in one virtual host: three regular expressions.

An expression is searched anywhere in the name of the resource; the empty one and `^$` deny
everything. Each is compiled once, and remembers a bounded number of answers. A text that does not
compile denies everything: such a permission may come from a file made with another dialect.
Source: AMQP reference, section 21; command line reference, section 15.
"""

import logging
import re
from dataclasses import dataclass
from typing import Final, Self

from lavinmq import pattern

log = logging.getLogger("lmq.auth.permissions")

MAX_REMEMBERED: Final = 4096
"""Answers one expression keeps: names come from clients, so there is no end of them."""

_DENY: Final = ("", "^$")


class Rule:
    """One regular expression with the answers it has given."""

    __slots__ = ("_answers", "_search", "regex")

    def __init__(self, regex: str) -> None:
        self.regex = regex
        self._answers: dict[str, bool] = {}
        self._search = None if regex in _DENY else _compiled(regex)

    def allows(self, name: str) -> bool:
        """Whether the rule admits the resource. Cost: one dictionary lookup when it is known."""
        answer = self._answers.get(name)
        if answer is None:
            if len(self._answers) >= MAX_REMEMBERED:
                self._answers.clear()
            answer = self._search is not None and self._search.search(name) is not None
            self._answers[name] = answer
        return answer


@dataclass(frozen=True, slots=True)
class Permissions:
    """The three rules of one user in one virtual host."""

    configure: Rule
    read: Rule
    write: Rule

    @classmethod
    def of(cls, configure: str, read: str, write: str) -> Self:
        """Permissions from the texts of three regular expressions; see `check` for input."""
        return cls(Rule(configure), Rule(read), Rule(write))


def check(regex: str) -> None:
    """Refuse an expression that could never be used. Raises: ValueError, saying why."""
    pattern.compiled(regex)


def _compiled(regex: str) -> re.Pattern[str] | None:
    """The expression, or None when it does not compile."""
    try:
        return pattern.compiled(regex)
    except ValueError as error:
        log.error("a permission denies everything: %s", error)
        return None
