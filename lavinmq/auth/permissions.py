"""What a user may do in one virtual host: three regular expressions.

An expression is searched anywhere in the name of the resource; the empty one and `^$` deny
everything, and what takes too long to match is denied. Each is compiled once, and remembers a
bounded number of answers. A text that does not compile denies everything: such a permission may
come from a file made with another dialect.
Source: docs/authentication.md.
"""

import logging
from dataclasses import dataclass
from typing import Final, Self

from lavinmq.policy.pattern import Pattern

log = logging.getLogger("lmq.auth.permissions")

MAX_REMEMBERED: Final = 4096
"""Answers one expression keeps: names come from clients, so there is no end of them."""

_DENY: Final = ("", "^$")

EVERYTHING: Final = frozenset((".*", "^.*", ".*$", "^.*$"))
"""Expressions of which everybody sees that they match all there is."""

DEFAULT_EXCHANGE: Final = "amq.default"
"""What RabbitMQ calls the exchange without a name, in permissions and over HTTP."""


class Rule:
    """One regular expression with the answers it has given.

    Args: denials: expressions that allow nothing, whatever they match.
    """

    __slots__ = ("_answers", "_pattern", "regex")

    def __init__(self, regex: str, denials: tuple[str, ...] = _DENY) -> None:
        self.regex = regex
        self._answers: dict[str, bool] = {}
        self._pattern = None if regex in denials else _compiled(regex)

    def allows(self, name: str) -> bool:
        """Whether the rule admits the resource. Cost: one dictionary lookup when it is known."""
        answer = self._answers.get(name)
        if answer is None:
            if len(self._answers) >= MAX_REMEMBERED:
                self._answers.clear()
            answer = self._pattern is not None and self._pattern.search(name)
            self._answers[name] = answer
        return answer

    @property
    def stumbles(self) -> int:
        """How many names the expression took too long for: they are denied."""
        return self._pattern.stumbles if self._pattern is not None else 0


def allows(rule: Rule, resource: str) -> bool:
    """Whether the rule admits a queue or an exchange; the default one goes by two names."""
    return rule.allows(resource) or (not resource and rule.allows(DEFAULT_EXCHANGE))


@dataclass(frozen=True, slots=True)
class Permissions:
    """The three patterns of one user in one virtual host."""

    configure: Rule
    read: Rule
    write: Rule

    @classmethod
    def of(cls, configure: str, read: str, write: str) -> Self:
        """Permissions from the texts of three regular expressions; see `check` for input."""
        return cls(Rule(configure), Rule(read), Rule(write))


def check(regex: str) -> None:
    """Refuse an expression that could never be used. Raises: ValueError, saying why."""
    Pattern(regex)


def _compiled(regex: str) -> Pattern | None:
    """The expression, or None when it does not compile."""
    try:
        return Pattern(regex)
    except ValueError as error:
        log.error("a permission denies everything: %s", error)
        return None
