"""What lavinmqctl prints: tables, objects and JSON.

Text is made safe: whatever in a name is not printable is escaped, so that a name chosen by a
client cannot add rows or steer the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from lavinmq.cli.ctl.errors import UsageError

FORMATS = ("text", "json")


class Output:
    """Prints in one format. Args: form: one of `FORMATS`; is_quiet: no informational lines."""

    def __init__(self, form: str, is_quiet: bool) -> None:
        if form not in FORMATS:
            raise UsageError(f"Invalid format: {form}")
        self.is_json = form == "json"
        self._is_quiet = is_quiet or self.is_json

    def note(self, text: str) -> None:
        """Print a line that is only for people."""
        if not self._is_quiet:
            print(printable(text))

    def warn(self, text: str) -> None:
        """Say on standard error what went otherwise than it should, and was no failure."""
        print(f"Warning: {printable(text)}", file=sys.stderr)

    def table(
        self, title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]],
        asked: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Print a list; a column may be a path such as `queue.name`. Of those that somebody has
        asked for it is said which no row has: a slip would be an empty column in silence."""
        missing: dict[str, None] = {}
        self._print(title, columns, _noting(rows, asked, missing))
        for column in missing:
            self.warn(f"no row has a column {column}")

    def _print(self, title: str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        picked = ([at(row, column) for column in columns] for row in rows)
        if self.is_json:
            self.json([dict(zip(columns, row, strict=True)) for row in picked])
            return
        first = next(picked, None)  # so that an error comes before anything is printed
        self.note(f"Listing {title} ...")
        print("\t".join(columns))
        for row in chain(() if first is None else (first,), picked):
            cells = zip(columns, row, strict=True)
            print("\t".join(_cell(column, value) for column, value in cells))

    def record(self, values: Mapping[str, Any]) -> None:
        """Print one thing, a line for each of its values."""
        if self.is_json:
            self.json(values)
            return
        for key, value in values.items():
            print(f"{printable(key)}: {_cell(key, value)}")

    def row(self, values: Iterable[Any]) -> None:
        """Print one thing of several in text, indented."""
        print("  " + "\t".join(_cell("", value) for value in values))

    def json(self, value: object, indent: int | None = None) -> None:
        """Print a value as JSON, by default on one line."""
        import json

        text = json.dumps(value, ensure_ascii=False, indent=indent)
        # Half a surrogate pair has no UTF-8, but an escape in JSON.
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")


def at(row: Mapping[str, Any], path: str) -> Any:
    """Return what stands in a row at a path of keys with dots between them, else None."""
    if path in row:
        return row[path]
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _has(row: Mapping[str, Any], path: str) -> bool:
    """Whether something stands there, be it null."""
    above, dot, key = path.rpartition(".")
    if path in row or not dot:
        return path in row
    there = at(row, above)
    return isinstance(there, Mapping) and key in there


def _noting(
    rows: Iterable[Mapping[str, Any]], asked: Sequence[str], missing: dict[str, None]
) -> Iterator[Mapping[str, Any]]:
    """The rows. At their end, if there are any, `missing` has the columns that none of them has."""
    for number, row in enumerate(rows):
        if number == 0:
            missing.update(dict.fromkeys(asked))
        for column in [each for each in missing if _has(row, each)]:
            del missing[column]
        yield row


def printable(text: str) -> str:
    """Return a text on one line without control characters."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def erlang_term(value: Any) -> str:
    """Return a value of JSON as RabbitMQ's tools write it: a table is a list of pairs."""
    if isinstance(value, Mapping):
        pairs = (f"{{{erlang_term(str(k))},{erlang_term(each)}}}" for k, each in value.items())
        return f"[{','.join(pairs)}]"
    if isinstance(value, list):
        return f"[{','.join(map(erlang_term, value))}]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{printable(escaped)}"'
    if value is None:
        return "undefined"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(column: str, value: Any) -> str:
    if column == "client_properties":
        return erlang_term(value or {})
    if value is None:
        return ""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | Mapping):
        import json

        return printable(json.dumps(value, ensure_ascii=False))
    return str(value)
