"""Reads the text of an ini file into sections of keys and values, and nothing more.

Called by ``config.load``. It knows no setting: names and values are judged there.
Not the standard library's reader, because that one joins indented lines to the value above,
lower-cases keys, takes ``:`` for ``=``, refuses repeated keys and knows no column of an error.

Grammar, one item per line, blanks around every part ignored:
    comment  = (";" | "#") anything          only at the start of a line, never after a value
    section  = "[" name "]"
    setting  = key "=" value                 the value may be empty and may hold any character
A section may be opened again; of a repeated key the last one counts.
"""

from __future__ import annotations


class IniSyntaxError(ValueError):
    """A line that is no comment, section or setting; ``line`` and ``column`` count from 1."""

    def __init__(self, problem: str, line: int, column: int) -> None:
        super().__init__(f"{problem} at line {line}, column {column}")
        self.line = line
        self.column = column


def read(text: str) -> dict[str, dict[str, str]]:
    """Return the settings by section and key, in the order of the file.

    Args: the whole file as text.
    Raises: ``IniSyntaxError``.
    Source: docs/configuration.md.
    """
    sections: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    # Not splitlines(): it also breaks at form feeds and Unicode separators inside a value.
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.strip()
        if not content or content[0] in ";#":
            continue
        column = line.index(content[0]) + 1
        if content[0] == "[":
            current = sections.setdefault(_section_name(content, number, column), {})
            continue
        key, value = _setting(content, number, column)
        if current is None:
            raise IniSyntaxError("Setting before the first [section]", number, column)
        current[key] = value
    return sections


def _section_name(content: str, line: int, column: int) -> str:
    end = content.find("]")
    if end < 0:
        raise IniSyntaxError("Section without closing ']'", line, column + len(content))
    if end != len(content) - 1:
        raise IniSyntaxError("Text after ']'", line, column + end + 1)
    name = content[1:end].strip()
    if not name:
        raise IniSyntaxError("Section without a name", line, column + 1)
    return name


def _setting(content: str, line: int, column: int) -> tuple[str, str]:
    key, equals, value = content.partition("=")
    if not equals:
        raise IniSyntaxError("Expected 'key = value'", line, column + len(content))
    if not key:
        raise IniSyntaxError("Setting without a name", line, column)
    return key.rstrip(), value.lstrip()
