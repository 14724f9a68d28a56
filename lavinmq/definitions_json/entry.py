"""One entry of a document: its fields, checked; and the refusal that names entry and field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeVar

from lavinmq import fieldtable
from lavinmq.arguments.bounds import UNBOUNDED, TableBounds
from lavinmq.arguments.names import MAX_BYTES
from lavinmq.fieldtable import EMPTY, FieldTable, FieldTableError, Long, Value

T = TypeVar("T")
MAX_DEPTH: Final = 64
"""Nested objects and lists of a value, itself included: deeper ones could not be written again."""


MOST_REFUSALS: Final = 1000
"""Bad entries after which nobody looks for more."""
MOST_SHOWN: Final = 10
"""Of them, so many are in the text of a refusal."""


class Remark(NamedTuple):
    """What there is to say of an entry. `place`: where in the document, empty for all of it."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}" if self.place else self.reason


class DefinitionsRefused(ValueError):
    """Entries that cannot be, or a document; nothing has been changed. The text is for people.

    `remarks`: every entry and what is wrong with it.
    """

    def __init__(self, *remarks: Remark) -> None:
        shown = [str(remark) for remark in remarks[:MOST_SHOWN]]
        if len(remarks) > MOST_SHOWN:
            shown.append(f"and {len(remarks) - MOST_SHOWN} more")
        super().__init__("; ".join(shown))
        self.remarks = remarks


def refusal(place: str, reason: str | None) -> DefinitionsRefused:
    """The refusal of one entry, or of a document."""
    return DefinitionsRefused(Remark(place, reason or ""))


class Refusals:
    """The bad entries of a document: all are found, then the document is refused.

    Args: is_skipping: whether they are left out instead.
    """

    def __init__(self, *, is_skipping: bool = False) -> None:
        self.is_skipping = is_skipping
        self.found: list[Remark] = []

    def add(self, error: DefinitionsRefused) -> None:
        """Note a bad entry. Raises: DefinitionsRefused when there are very many."""
        self.found.extend(error.remarks)
        if len(self.found) >= MOST_REFUSALS:
            self.check()

    def check(self) -> None:
        """Raises: DefinitionsRefused with all of them, unless they are left out."""
        if self.found and not self.is_skipping:
            raise DefinitionsRefused(*self.found)


class Item(NamedTuple):
    """Something that a document asks for.

    `place`: where it stands, for messages; `vhost`: None when it names none.
    """

    place: str
    vhost: str | None
    thing: Any


class Entry:
    """An object of a document.

    Args: place: where it stands, as messages call it; bounds: of the tables in it.
    """

    def __init__(self, place: str, value: object, bounds: TableBounds = UNBOUNDED) -> None:
        self.place = place
        self._bounds = bounds
        if not isinstance(value, dict):
            raise refusal("", f"{place} must be an object")
        self.value: dict[str, Any] = value
        name = value.get("name")
        if isinstance(name, str):
            self.place = f"{place} {name!r}"

    def text(self, field: str, default: str | None = None) -> str:
        """A string of at most 255 bytes, also ones that are no UTF-8, as exports escape them;
        required without a default."""
        value = self._of(field, str, "a string", default)
        try:
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise self.refused(f"field '{field}' must be UTF-8") from None
        if len(raw) > MAX_BYTES:
            raise self.refused(f"field '{field}' must not be longer than {MAX_BYTES} bytes")
        return raw.decode("utf-8", "surrogateescape")

    def long_text(self, field: str, default: str | None = None) -> str:
        """A string of any length, in UTF-8; required without a default."""
        value = self._of(field, str, "a string", default)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.refused(f"field '{field}' must be UTF-8") from None
        return value

    def flag(self, field: str, default: bool) -> bool:
        """A boolean."""
        return self._of(field, bool, "a boolean", default)

    def integer(self, field: str, default: int) -> int:
        """An integer."""
        value = self._of(field, int, "an integer", default)
        if isinstance(value, bool):
            raise self.refused(f"field '{field}' must be an integer")
        return value

    def object(self, field: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
        """An object; required without a default. `rabbitmqctl export_definitions` writes some
        objects as lists of pairs."""
        value = self.value.get(field)
        if isinstance(value, list) and all(map(_is_pair, value)):
            return self._sound(field, dict(value))
        return self._sound(field, self._of(field, dict, "an object", default))

    def any(self, field: str) -> Any:
        """A value of any type, required."""
        if field not in self.value:
            raise self.refused(f"field '{field}' is required")
        return self._sound(field, self.value[field])

    def words(self, field: str) -> tuple[str, ...] | None:
        """A list of strings, or a string with commas; None when it is not there."""
        value = self.value.get(field)
        if value is None:
            return None
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise self.refused(f"field '{field}' must be a string or a list of strings")
        words = tuple(word.strip() for word in value if word.strip())
        try:
            ",".join(words).encode()
        except UnicodeEncodeError:
            raise self.refused(f"field '{field}' must be UTF-8") from None
        return words

    def table(self, field: str = "arguments") -> FieldTable:
        """An object as a field table; none is an empty one, as is the empty list of old exports."""
        value = self.value.get(field)
        if value is None or value == []:
            return EMPTY
        if not isinstance(value, dict):
            raise self.refused(f"field '{field}' must be an object")
        try:
            return table(value, self._bounds)
        except FieldTableError as error:
            raise self.refused(f"field '{field}': {error}") from error

    def refused(self, why: str) -> DefinitionsRefused:
        """The refusal of this entry."""
        return refusal(self.place, why)

    def _sound(self, field: str, value: T) -> T:
        why = doubt(value)
        if why:
            raise self.refused(f"field '{field}' {why}")
        return value

    def _of(self, field: str, kind: type[T], what: str, default: T | None) -> T:
        value = self.value.get(field)
        if value is None:
            if default is None:
                raise self.refused(f"field '{field}' is required")
            return default
        if not isinstance(value, kind):
            raise self.refused(f"field '{field}' must be {what}")
        return value


def table(value: Mapping[str, Any], bounds: TableBounds = UNBOUNDED) -> FieldTable:
    """A JSON object as a field table: integers get 64 bits. Raises: FieldTableError."""
    if not value:
        return EMPTY
    bounds.check_values(value)
    why = doubt(value)
    if why:
        raise FieldTableError(f"Field table {why}")
    content = fieldtable.encode({name: _long(each) for name, each in value.items()})
    bounds.check_content(content)
    return fieldtable.from_content(content)


def _long(value: Any) -> Value:
    if type(value) is int:
        return Long(value)
    if isinstance(value, dict):
        return {name: _long(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_long(each) for each in value]
    return value  # type: ignore[no-any-return]


def doubt(value: object, levels: int = MAX_DEPTH) -> str:
    """Why a JSON value could not be written again; empty when it can be."""
    if isinstance(value, float):
        return "" if math.isfinite(value) else "has a number that is out of range"
    if not isinstance(value, dict | list):
        return ""
    if levels <= 0:
        return f"is nested deeper than {MAX_DEPTH} levels"
    inner = value.values() if isinstance(value, dict) else value
    return next(filter(None, (doubt(each, levels - 1) for each in inner)), "")


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
