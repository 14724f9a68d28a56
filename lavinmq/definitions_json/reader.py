"""Reads a JSON object piece by piece: the members of the object, those that are lists by element.

A document of many megabytes is parsed beside serving clients: each step takes as long as one
element does, for the text is made of the bytes as it is needed. How many values there are in an
element is counted before it is parsed: thousands of them take longer than others can wait.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from collections.abc import Iterator
from typing import Any, Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_PART: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
"""A string, as far as it is there, or a character between values."""
WHOLE: Final = -1
"""The position of a member that is no list."""
PIECE: Final = 64 << 10
"""Bytes that become text at a time, more for an element that is cut by their end."""
MOST_VALUES: Final = 10_000
"""Of an element that comes while others are served; a table of arguments has far less."""
LOOKAHEAD: Final = 3
"""Characters that tell that a number is over: `1e+` may go on."""


class MalformedError(ValueError):
    """The text is no JSON. `line`, `column`: where, counted from 1, in characters."""

    def __init__(self, text: str, line: int = 1, column: int = 1) -> None:
        super().__init__(text)
        self.line, self.column = line, column


class TooLongError(ValueError):
    """An element is longer than it may be."""


class TooRichError(ValueError):
    """There are more values in an element than may be."""


class NotAnObjectError(ValueError):
    """It is JSON, or begins like it, but no object."""


def members(
    content: bytes | bytearray, longest: int = sys.maxsize, most: int = sys.maxsize
) -> Iterator[tuple[str, int, Any]]:
    """Key, position and value of each element of each list, and of each member that is no list.

    An empty list gives nothing. Args: longest: characters of an element, each at least a byte;
    most: values in one, brackets and strings counted as well.
    Raises: MalformedError; NotAnObjectError; TooLongError; TooRichError.
    """
    text = _Text(content, longest, most)
    try:
        yield from _object(text)
    except (NotAnObjectError, TooLongError, TooRichError):
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedError(str(error), *text.place_of(error)) from error


def _object(text: _Text) -> Iterator[tuple[str, int, Any]]:
    if text.peek() != "{":
        if text.peek() != "[":
            text.value()
        raise NotAnObjectError
    text.take("{")
    is_more = text.peek() != "}"
    while is_more:
        if text.peek() != '"':
            raise MalformedError("a key is missing")
        key = text.value()
        text.take(":")
        if text.peek() == "[":
            for position, value in enumerate(_list(text)):
                yield key, position, value
        else:
            yield key, WHOLE, text.value()
        is_more = text.peek() != "}"
        if is_more:
            text.take(",")
    text.take("}")
    if text.peek():
        raise MalformedError("something follows the object")


def _list(text: _Text) -> Iterator[Any]:
    text.take("[")
    is_more = text.peek() != "]"
    while is_more:
        yield text.value()
        is_more = text.peek() != "]"
        if is_more:
            text.take(",")
    text.take("]")


class _Text:
    """A text with a place in it; only what is near that place is there as text."""

    __slots__ = (
        "_at", "_column", "_content", "_decoder", "_line", "_longest", "_most", "_n_decoded",
        "_text",
    )  # fmt: skip

    def __init__(self, content: bytes | bytearray, longest: int, most: int) -> None:
        self._content = content
        self._longest = longest
        self._most = most
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._n_decoded = 0
        self._text, self._at = "", 0
        self._line, self._column = 1, 1  # of the beginning of `_text`

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            assert found is not None
            self._at = found.end()
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def take(self, character: str) -> None:
        """Pass a character that has to come next. Raises: MalformedError."""
        if self.peek() != character:
            raise MalformedError(f"{character} is missing")
        self._at += 1

    def value(self) -> Any:
        """Pass a value that has to come next. Raises: ValueError, RecursionError."""
        if self.peek() in ("[", "{") and self._most < sys.maxsize:
            while not self._is_whole() and self._more():
                pass
        while True:
            try:
                value, end = _value(self._text, self._at)
            except json.JSONDecodeError:
                if not self._more():
                    raise
                continue
            if end + LOOKAHEAD <= len(self._text) or not self._more():
                self._at = end
                return value

    def place_of(self, error: Exception) -> tuple[int, int]:
        """Line and column of an error: it knows better, or it is about what comes next."""
        return self._place(error.pos if isinstance(error, json.JSONDecodeError) else self._at)

    def _place(self, at: int) -> tuple[int, int]:
        n_lines = self._text.count("\n", 0, at)
        if n_lines:
            return self._line + n_lines, at - self._text.rindex("\n", 0, at)
        return self._line, self._column + at

    def _is_whole(self) -> bool:
        """Whether the end of the list or object that comes next is there. Raises: TooRichError.
        Cost: 0.1 us for each of its parts."""
        depth = 0
        for n, found in enumerate(_PART.finditer(self._text, self._at), 1):
            part = found[0]
            if part in "[{":
                depth += 1
            elif part in "]}":
                depth -= 1
                if depth == 0:
                    return True
            if n > self._most:
                raise TooRichError
        return False

    def _more(self) -> bool:
        """Make more text, and let go of what is behind; whether there was any. Raises:
        TooLongError, UnicodeDecodeError."""
        if self._n_decoded == len(self._content):
            return False
        left = self._text[self._at :]
        if len(left) > self._longest:
            raise TooLongError
        # What was cut is tried only once more: each attempt makes all that it finds.
        n = max(PIECE, self._longest - len(left) + LOOKAHEAD) if left else PIECE
        end = min(self._n_decoded + n, len(self._content))
        piece = self._content[self._n_decoded : end]
        self._n_decoded = end
        self._line, self._column = self._place(self._at)
        self._text, self._at = left, 0
        try:
            self._text += self._decoder.decode(piece, end == len(self._content))
        except UnicodeDecodeError as error:
            self._text += error.object[: error.start].decode()
            self._at = len(self._text)
            raise
        return True


def _no_constant(name: str) -> Any:
    raise MalformedError(f"{name} is no number")


_value = json.JSONDecoder(parse_constant=_no_constant).raw_decode
