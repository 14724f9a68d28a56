"""What the broker says when something is wrong: makes `docs/messages.md` from the sources.

    python -m tests.messages > docs/messages.md

The texts are taken out of the sources with ``ast``, so none is missing: what a ``raise`` or one of
the `SAYERS` is given, what is yielded as a problem of the configuration, and what is written to the
log at warning and above. What is filled in is shown as ``<name>``. A text that is nothing but what
another function made is left out; that one's text is in the table.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "messages.md"
SOURCES: Final = ROOT / "lavinmq"

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "The command line and the configuration": ("__main__.py", "config/", "missing.py"),
    "The data directory and its files": ("files/", "integrity/", "vhost/files.py",
                                         "vhost/vhosts.py", "auth/users.py", "auth/topics.py"),
    "Start, stop, listeners and the log": ("server.py", "broker.py", "embedded.py", "listeners/",
                                           "process/", "stats/"),
    "Log-in": ("auth/", "amqp/login.py", "amqp/handshake.py", "http/access/"),
    "Declarations and other methods of AMQP": ("amqp/", "arguments/", "vhost/", "errors.py"),
    "Policies, limits and parameters": ("policy/", "http/link_parameters.py"),
    "Shovels, webhooks and federation": ("shovel/", "federation/"),
    "Clusters": ("cluster/",),
    "Imports of definitions": ("definitions_json/",),
    "Other requests of the HTTP API": ("http/", "fieldtable.py"),
    "lavinmqctl": ("cli/ctl/",),
}  # fmt: skip
"""Where a module's messages stand; the first section that names it counts."""

SAYERS: Final = frozenset({
    "bad_request", "failed", "refused", "refusal", "missing", "locked", "access_refused",
    "not_found", "too_large", "low_on_disk", "_problem", "_error", "_bad", "_refused",
    "_unusable", "_not_in_state", "_stranger", "_wrong", "not_stored", "_cannot_be_written", "kind",
})  # fmt: skip
"""Functions that make an error or a line of text and are given the words of it."""

LOUD: Final = frozenset({"warning", "error", "critical", "exception"})
PROBLEMS: Final = re.compile(r"(problems|doubts|danger|faults|complaint)$|^_no_")
WORDS: Final = re.compile(r"[A-Za-z]{2}.*[ -].*[A-Za-z]{2}|^[A-Z_]{6,}", re.DOTALL)

HEAD: Final = """\
# What the broker says

Every text with which a start, a log-in, a declaration, an import, a request or a command of
`lavinmqctl` is refused or warned about, and where in the sources it is made. `<name>` is filled in.
A reply text of AMQP begins with the name of its [reply code](protocol.md), an answer of the HTTP
API has the text as `reason`.

This page is made by `python -m tests.messages > docs/messages.md`. A test fails when it is old.
"""


class Message(NamedTuple):
    """One text, and the module and function that say it."""

    text: str
    module: str
    function: str


@functools.cache
def found() -> list[Message]:
    """All messages, by module and in the order of the sources."""
    return [message for path in sorted(SOURCES.rglob("*.py")) for message in _of_module(path)]


def section_of(module: str) -> str:
    """The section that a module's messages stand in; empty for those that are not on this page."""
    for title, prefixes in SECTIONS.items():
        if module.startswith(prefixes):
            return title
    return ""


def page() -> str:
    """The text of `docs/messages.md`."""
    parts = [HEAD]
    messages = found()
    for title in SECTIONS:
        rows = [message for message in messages if section_of(message.module) == title]
        parts.append(f"\n## {title}\n\n| message | said by |\n| --- | --- |\n")
        parts += dict.fromkeys(_row(row) for row in rows)
    return "".join(parts)


def _row(message: Message) -> str:
    text = " ".join(message.text.split()).replace("|", "\\|")
    ticks = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"| {ticks}{pad}{text}{pad}{ticks} | {message.module}, {message.function} |\n"


def _of_module(path: Path) -> Iterator[Message]:
    module = path.relative_to(SOURCES).as_posix()
    if section_of(module):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for text in _of_function(function):
                    yield Message(text, module, function.name)


def _of_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    tells_problems = PROBLEMS.search(function.name) is not None
    for node in _own_nodes(function):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _texts(node.exc.args)
        elif isinstance(node, ast.Call) and _is_sayer(node):
            yield from _texts(node.args)
        elif tells_problems and isinstance(node, ast.Yield | ast.Return) and node.value:
            yield from _texts([node.value])


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function without those of functions inside it, in the order of the source."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield child
            yield from _own_nodes(child)


def _is_sayer(call: ast.Call) -> bool:
    name = _name(call.func)
    is_log = isinstance(call.func, ast.Attribute) and "log" in _name(call.func.value)
    return name in SAYERS or (is_log and name in LOUD)


def _texts(arguments: list[ast.expr]) -> Iterator[str]:
    """The texts among the arguments of one call; `%s` of the first is filled by the others."""
    for argument in arguments:
        for text in _variants(argument):
            if WORDS.search(re.sub(r"<[^>]*>", "", text)):
                yield _filled(text, [_name(other) for other in arguments[1:]])


def _filled(text: str, names: list[str]) -> str:
    """The text of a log entry with names in the place of its `%s`."""
    parts = re.split(r"%[-.\d]*[sdrfo]", text)
    names += ["..."] * len(parts)
    return parts[0] + "".join(f"<{n}>{part}" for n, part in zip(names, parts[1:], strict=False))


def _variants(node: ast.expr) -> list[str]:
    """What an expression may say: one text for each side of a condition."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(map(_part, node.values))]
    if isinstance(node, ast.IfExp):
        return _variants(node.body) + _variants(node.orelse)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [a + b for a in _or_named(node.left) for b in _or_named(node.right)]
    return []


def _or_named(node: ast.expr) -> list[str]:
    return _variants(node) or [f"<{_name(node)}>"]


def _part(node: ast.expr) -> str:
    if isinstance(node, ast.FormattedValue):
        shown = f"<{_name(node.value)}>"
        return f"'{shown}'" if node.conversion == ord("r") else shown
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _name(node: ast.expr) -> str:
    """A word for what is filled in: the last name that the expression has."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        inner = node.args[0] if node.args else node.func
        return _name(inner) or _name(node.func)
    if isinstance(node, ast.Subscript | ast.Await | ast.Starred):
        return _name(node.value)
    if isinstance(node, ast.BinOp):
        return _name(node.left) or _name(node.right)
    if isinstance(node, ast.BoolOp):
        return _name(node.values[0])
    if isinstance(node, ast.IfExp):
        return _name(node.body) or _name(node.orelse)
    return "..."


if __name__ == "__main__":
    print(page(), end="")
