"""The long string of a JSON text, found and cut into pieces that can be decoded one by one.

A message is published with its payload in a JSON text of up to `max_body_size`. Parsing that as a
whole would hold up all others, and what is short in it becomes objects of many times its size. So
the text without its long string is as short as any other body, and that string is worked on piece
by piece. Source: RFC 8259, section 7.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import pairwise
from typing import Final

import orjson

LONG: Final = 64 << 10
"""Bytes of a string that counts as long, its quotes included."""
PIECE: Final = 16 << 10
# An escape is whole, and so is a pair of them that stands for one character.
_PIECE: Final = re.compile(
    rb'[^"\\]*(?:\\(?:u[dD][89abAB]..\\u....|u(?![dD][89abAB])....|[^u])[^"\\]*)*', re.DOTALL
)


class LongString:
    """A string in a JSON text.

    Args: content: the text; cuts: offsets between its pieces, those of both ends included.
    """

    def __init__(self, content: bytes | bytearray, cuts: list[int]) -> None:
        self._content = content
        self._cuts = cuts

    def pieces(self) -> Iterator[str]:
        """What it stands for. Raises: orjson.JSONDecodeError."""
        for begin, end in pairwise(self._cuts):
            text: str = orjson.loads(b'"' + self._content[begin:end] + b'"')
            yield text

    def replaced(self, by: bytes) -> bytes:
        """The text with another string in its place."""
        return b"".join((self._content[: self._cuts[0]], by, self._content[self._cuts[-1] :]))


class TooWideError(ValueError):
    """There is too much besides one long string."""


class Search:
    """Looks for the long string of a JSON text. `found`: None when there is none.

    Args: content: the text; limit: bytes that it may have besides.
    """

    def __init__(self, content: bytes | bytearray, limit: int) -> None:
        self.found: LongString | None = None
        self._content = content
        self._limit = limit

    def steps(self) -> Iterator[None]:
        """Look, at a few thousand bytes in each step. A text that is no JSON may go unnoticed.

        Raises: TooWideError; orjson.JSONDecodeError for a string without an end.
        """
        at = rest = 0
        while (quote := self._content.find(b'"', at, at + self._limit + 1)) >= 0:
            cuts = yield from self._string(quote + 1)
            rest += quote - at
            at = cuts[-1] + 1
            if at - quote < LONG:
                rest += at - quote
            elif self.found is None:
                self.found = LongString(self._content, cuts)
            else:
                raise TooWideError
            if rest > self._limit:
                raise TooWideError
        if rest + len(self._content) - at > self._limit:
            raise TooWideError

    def _string(self, at: int) -> Generator[None, None, list[int]]:
        """Where the string that begins there can be cut."""
        content, cuts = self._content, [at]
        while True:
            part = _PIECE.match(content, at, at + PIECE)
            end = part.end() if part else at
            is_last = content[end : end + 1] == b'"'
            if not is_last:
                while end > at and content[end : end + 1] and content[end] & 0xC0 == 0x80:
                    end -= 1  # in the middle of a character
                if end == at:
                    raise orjson.JSONDecodeError("a string does not end", "", 0)
            if end > at:
                cuts.append(end)
            yield
            if is_last:
                return cuts
            at = end
