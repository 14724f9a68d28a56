"""One object for bytes that are alike: what many clients say of themselves is in memory once.

Thousands of connections are often of one program. Only some of what was said last is known, so
that nobody makes it grow by saying ever other things.
"""

from __future__ import annotations

from typing import Final

MOST: Final = 64
LONGEST: Final = 4096


class Alike:
    """What was said last: up to `MOST` different byte strings of up to `LONGEST` bytes."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}  # in the order in which they were said first

    def one(self, said: bytes) -> bytes:
        """Return the same bytes, as the object that others have been given."""
        known = self._known.get(said)
        if known is not None:
            return known
        if len(said) > LONGEST:
            return said
        if len(self._known) >= MOST:
            del self._known[next(iter(self._known))]
        self._known[said] = said
        return said
