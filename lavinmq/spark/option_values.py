"""Values of options: text as users write it, parsed and bounded.

Every error is one line that names the option. Pure; nothing of pyspark.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

_DURATION_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_BYTES = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?")
_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
INT64_MAX = 2**63 - 1


class OptionError(ValueError):
    """An option that cannot be used; the text is one line that names it."""


class Values:
    """The options of one use; names in any case.

    Args: `options` as Spark hands them over; `known` are the names allowed, `ignored` those of
    Spark itself. Raises OptionError for any other name.
    """

    def __init__(
        self, options: Mapping[str, str], known: Iterable[str], ignored: Iterable[str] = ()
    ) -> None:
        names = {name.lower(): name for name in known}
        skipped = {name.lower() for name in ignored}
        self._values: dict[str, str] = {}
        for given, value in options.items():
            name = names.get(given.lower())
            if name is not None:
                self._values[name] = value
            elif given.lower() not in skipped:
                raise OptionError(_unknown(given, names))

    def given(self, *names: str) -> list[str]:
        """Return those of the names that have a value."""
        return [name for name in names if name in self._values]

    def text(self, name: str) -> str | None:
        """Return the text, or None. Raises OptionError for an empty one."""
        value = self._values.get(name)
        if value is not None and not value.strip():
            raise OptionError(f"option {name} is empty")
        return value

    def plain(self, name: str) -> str | None:
        """Return the text, which may be empty, or None."""
        return self._values.get(name)

    def pattern(self, name: str) -> str | None:
        """Return a regular expression, or None."""
        text = self.text(name)
        if text is not None:
            try:
                re.compile(text)
            except re.error as error:
                raise OptionError(f"option {name} is no regular expression: {error}") from None
        return text

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of the choices, which are lower case."""
        value = self._values.get(name, default).strip().lower()
        if value not in choices:
            raise self.error(name, f"one of {', '.join(choices)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """Return a truth value."""
        value = _BOOLEANS.get(self._values.get(name, str(default)).strip().lower())
        if value is None:
            raise self.error(name, "true or false")
        return value

    def integer(
        self, name: str, default: int | None, low: int = 1, high: int = INT64_MAX
    ) -> int | None:
        """Return a whole number within [low, high], or the default."""
        text = self._values.get(name)
        if text is None:
            return default
        value = _whole(text)
        if value is None or not low <= value <= high:
            upper = "" if high == INT64_MAX else f" to {high}"
            raise self.error(name, f"a whole number from {low}{upper}")
        return value

    def number(self, name: str, default: int, low: int = 1, high: int = INT64_MAX) -> int:
        """Return a whole number within [low, high]; like `integer` with a default."""
        value = self.integer(name, default, low, high)
        assert value is not None
        return value

    def duration_s(self, name: str, default: float) -> float:
        """Return a duration above zero in seconds."""
        text = self._values.get(name)
        if text is None:
            return default
        match = _DURATION.fullmatch(text.strip().lower())
        seconds = float(match[1]) * _DURATION_S[match[2]] if match else 0.0
        if seconds <= 0:
            raise self.error(name, "a duration like 500ms, 30s, 15m, 2h or 7d")
        return seconds

    def size_bytes(self, name: str) -> int | None:
        """Return a size above zero in bytes, or None."""
        text = self._values.get(name)
        if text is None:
            return None
        match = _SIZE.fullmatch(text.strip().lower())
        size = int(match[1]) * _SIZE_BYTES[match[2] or "b"] if match else 0
        if size <= 0:
            raise self.error(name, "a size like 1048576, 64m or 1g")
        return size

    def time_ms(self, name: str) -> int | None:
        """Return a moment in milliseconds since 1970, or None. ISO 8601 without a zone is UTC."""
        text = self._values.get(name)
        if text is None:
            return None
        value = _whole(text)
        if value is not None:
            return value
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise self.error(name, "milliseconds since 1970, or ISO 8601") from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)

    def name_list(self, name: str) -> tuple[str, ...]:
        """Return the names of a list with commas, without blanks around them; none if absent."""
        text = self.text(name)
        if text is None:
            return ()
        names = [part.strip() for part in text.split(",")]
        return self._distinct(name, names)

    def json_names(self, name: str) -> tuple[str, ...]:
        """Return the names of a JSON list; none if absent."""
        text = self.text(name)
        if text is None:
            return ()
        names = self.json(name)
        if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
            raise self.error(name, 'a JSON list of names, as in ["orders", "payments"]')
        return self._distinct(name, names)

    def json_numbers(self, name: str, low: int = 0) -> dict[str, int] | None:
        """Return a JSON object of queues and whole numbers, or None if absent."""
        if self.text(name) is None:
            return None
        numbers = self.json(name)
        if not isinstance(numbers, dict) or not all(
            type(value) is int and low <= value <= INT64_MAX for value in numbers.values()
        ):
            raise self.error(name, f'JSON like {{"orders": 1000}}, with whole numbers from {low}')
        return numbers

    def json(self, name: str) -> object:
        """Return what the JSON says."""
        try:
            return json.loads(self._values[name])
        except (ValueError, RecursionError):
            raise self.error(name, "JSON") from None

    def error(self, name: str, expected: str) -> OptionError:
        """Return the error for a value that is not what was expected."""
        value = self._values.get(name, "")
        shown = value if len(value) <= 60 else value[:57] + "..."
        return OptionError(f"option {name} is {shown!r}; expected {expected}")

    def _distinct(self, name: str, names: list[str]) -> tuple[str, ...]:
        if not names or not all(names):
            raise self.error(name, "names that are not empty")
        if len(set(names)) != len(names):
            raise self.error(name, "each name once")
        return tuple(names)


def _whole(text: str) -> int | None:
    """Return the whole number of at most 19 digits that the text is, or None."""
    return int(text) if re.fullmatch(r"\s*-?[0-9]{1,19}\s*", text) else None


def _unknown(given: str, names: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.6)
    if near:
        return f"unknown option {given!r}; did you mean {names[near[0]]!r}?"
    return f"unknown option {given!r}; there are: {', '.join(sorted(names.values()))}"
