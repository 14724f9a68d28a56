"""Regular expressions of operators and users, which write PCRE: in policies, permissions, searches.

PCRE2 runs them, as it does in LavinMQ and RabbitMQ, with limits: one search tries so much and no
more, half a millisecond. A name for which the limit is reached does not match; the log says so once
for each pattern, and `stumbles` counts. An operation that asks many patterns has `Patience`.
Source: docs/policies.md. Why PCRE2: decision record 0042.
"""

from typing import Final

from lavinmq._pcre import Expression, LimitReached
from lavinmq.process.log import get

log = get("lmq.pattern")

SEARCHES: Final = 4
"""Searches that take too long, for one queue or exchange: two milliseconds."""


class Pattern:
    """A regular expression, to be searched anywhere in a name. `stumbles`: names too long for it.

    Raises: ValueError with a text for people when it is none.
    """

    __slots__ = ("_expression", "stumbles", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.stumbles = 0
        try:
            self._expression = Expression(text.encode())
        except ValueError as error:
            raise ValueError(f"Invalid regular expression {_shown(text)}: {error}") from error

    def search(self, name: str) -> bool:
        """Whether it matches somewhere in the name. What takes too long does not match."""
        try:
            return self._expression.search(name.encode("utf-8", "replace"))
        except LimitReached:
            if not self.stumbles:
                log.warning(
                    "regular expression %s takes too long, for one for %.100r: it matches nothing"
                    " for which it does", _shown(self.text), name,
                )  # fmt: skip
            self.stumbles += 1
            return False


class Patience:
    """How many searches that take too long one operation bears. After them it leaves out the
    patterns that have taken too long before: those that never did cost next to nothing."""

    __slots__ = ("has_skipped", "left")

    def __init__(self, searches: int = SEARCHES) -> None:
        self.left = searches
        self.has_skipped = False
        """Whether a pattern was left out."""

    def search(self, pattern: Pattern, name: str) -> bool:
        """As `Pattern.search`, while there is patience."""
        if self.left <= 0 and pattern.stumbles:
            self.has_skipped = True
            return False
        before = pattern.stumbles
        found = pattern.search(name)
        self.left -= pattern.stumbles - before
        return found


def compiled(text: str) -> Pattern:
    """The expression, to be searched anywhere in a name.

    Raises: ValueError with a text for people when it is none.
    """
    return Pattern(text)


def too_long(text: str) -> str:
    """What people are told of a pattern that has stumbled."""
    return f"Regular expression {_shown(text)} takes too long to match"


def _shown(text: str) -> str:
    """A pattern for messages, cut when it is very long."""
    return repr(text if len(text) <= 200 else text[:200] + "…")
