"""Which test proves which item of the reference: makes `docs/conformance.md` and checks it.

    python -m tests.conformance > docs/conformance.md
    python -m tests.conformance --check

A test says in its docstring, or in a comment between its decorators and its end, what it proves:
`edge-cases.md 12, 14, 20-23` or `amqp.md 22.17`. A comment in a table that a test is parametrised
with counts for that test; a test that is expected to fail counts for nothing. What recordings prove
is in `tests/protocol/shown_items.py`. The wording of the items, and why some have no test, is in
`conformance.toml` beside this file.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.protocol.done_right import DONE_RIGHT
from tests.protocol.shown_items import SHOWN

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
ITEMS = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "conformance.md"
LEFT_OUT = "left out"

_DEFECT = r"22\.\d+"
_RANGE = r"(?:{0})(?:\s*-\s*(?:{0}))?"
_LIST = r"{0}(?:(?:\s*,\s*|\s+and\s+){0})*"
_TAG = re.compile(
    rf"edge-cases\.md\s+(?P<edge>{_LIST.format(_RANGE.format('[0-9]+'))})"
    rf"|amqp\.md\s+(?P<defect>{_LIST.format(_RANGE.format(_DEFECT))})"
)
_NUMBER = re.compile(r"(22\.)?(\d+)(?:\s*-\s*(?:22\.)?(\d+))?")

HEAD = """\
# Conformance

What each test proves of the notes this broker was written from: the behaviours that LavinMQ's own
specifications assert (`edge-cases.md`, 1 to 346) and the defects that are not to be reproduced
(`amqp.md` section 22, 22.1 to 22.44), reworded. A test names its items in its docstring; a
*recording* is a conversation recorded with LavinMQ, played by
[test_transcripts.py](../tests/protocol/test_transcripts.py).

This page is made: `python -m tests.conformance > docs/conformance.md`. A test fails when it is out
of date, or when an item has neither a test nor a reason.
"""


@dataclass(frozen=True, slots=True)
class Proof:
    """What proves an item: the text of a link and the path it leads to, below the root."""

    text: str
    path: str


@dataclass(frozen=True, slots=True)
class Items:
    """The items by section, each with its wording, and the reasons of those left out."""

    sections: dict[str, dict[str, str]]
    reasons: dict[str, list[str]]

    def all(self) -> set[str]:
        """Every item there is."""
        return {item for section in self.sections.values() for item in section}


class Complaint(Exception):
    """A tag that belongs to no test."""


def numbers(text: str) -> Iterator[str]:
    """Yield every item of a list such as `12, 14, 20-23`; those of section 22 as `22.17`."""
    for prefix, first, last in _NUMBER.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{prefix}{number}"


def tags(text: str) -> set[str]:
    """Return the items named in a docstring or a comment."""
    found = (match["edge"] or match["defect"] for match in _TAG.finditer(text))
    return {item for each in found for item in numbers(each)}


# --- tests --------------------------------------------------------------------------------------

Test = ast.FunctionDef | ast.AsyncFunctionDef


def proofs_of(
    source: str, path: str, named: Callable[[str], set[str]] = tags, mark: str = "edge-cases.md"
) -> Iterator[tuple[str, Proof]]:
    """Yield each item that a test module names, with the test. Raises: Complaint.

    Args: named: the items that a text names. mark: a text that has it has to name some.
    """
    tree = ast.parse(source)
    tests = [
        node for node in ast.walk(tree) if isinstance(node, Test) and node.name.startswith("test_")
    ]
    for line, text in _remarks(source, tree):
        items = named(text)
        if not items and mark not in text:
            continue
        owners = _owners(line, tests, tree)
        if not items or not owners:
            raise Complaint(f"{path}:{line}: the tag belongs to no test or names no item")
        proving = [owner for owner in owners if not _is_expected_to_fail(owner)]
        for owner in proving:
            for item in items:
                yield item, Proof(f"{Path(path).name}::{owner.name}", path)


def _remarks(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every docstring and every comment with a line it stands in."""
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _owners(line: int, tests: list[Test], tree: ast.Module) -> list[Test]:
    """Return the test around a line, or those whose decorators use the table around it."""
    around = [test for test in tests if _first_line(test) <= line <= (test.end_lineno or 0)]
    if around:
        return around
    tables = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.lineno <= line <= (node.end_lineno or 0)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    return [test for test in tests if tables & _names_in_decorators(test)]


def _first_line(test: Test) -> int:
    return min([test.lineno, *(each.lineno for each in test.decorator_list)])


def _names_in_decorators(test: Test) -> set[str]:
    nodes = (node for each in test.decorator_list for node in ast.walk(each))
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def _is_expected_to_fail(test: Test) -> bool:
    return any(ast.unparse(each).startswith("pytest.mark.xfail") for each in test.decorator_list)


def recorded() -> Iterator[tuple[str, Proof]]:
    """Yield each item that a recording shows which the broker has to match."""
    for name, text in SHOWN.items():
        if name not in DONE_RIGHT:
            for item in tags(text):
                yield item, Proof(f"recording {name}", f"tests/fixtures/amqp/{name}.json")


def proofs() -> dict[str, list[Proof]]:
    """Return all proofs by item. Raises: Complaint."""
    found = list(recorded())
    for path in sorted(TESTS.rglob("test_*.py")):
        if "node_modules" not in path.parts:
            source = path.read_text(encoding="utf-8")
            if "edge-cases.md" in source or "amqp.md" in source:
                found += proofs_of(source, path.relative_to(ROOT).as_posix())
    by_item: dict[str, list[Proof]] = {}
    for item, proof in sorted(set(found), key=lambda pair: (pair[1].path, pair[1].text)):
        by_item.setdefault(item, []).append(proof)
    return by_item


# --- items and the page -------------------------------------------------------------------------


def read_items(text: str) -> Items:
    """Return what `conformance.toml` says."""
    sections: dict[str, Any] = tomllib.loads(text)
    reasons: dict[str, list[str]] = {}
    for reason, items in sections.pop(LEFT_OUT).items():
        for item in numbers(items):
            reasons.setdefault(item, []).append(reason)
    return Items(sections, reasons)


def complaints(items: Items, found: dict[str, list[Proof]]) -> list[str]:
    """Return what is wrong with the items and their proofs, a line each."""
    known = items.all()
    unproved = sorted(known - set(found) - set(items.reasons), key=_order)
    lines = [f"item {item} has neither a test nor a reason" for item in unproved]
    for item in sorted(set(found) - known, key=_order):
        lines.append(f"{found[item][0].text} names the unknown item {item}")
    for item in sorted(set(items.reasons) - known, key=_order):
        lines.append(f"a reason is given for the unknown item {item}")
    return lines


def _order(item: str) -> tuple[int, ...]:
    return tuple(map(int, item.split(".")))


def page(items: Items, found: dict[str, list[Proof]]) -> str:
    """Return the page."""
    proved = sum(item in found for item in items.all())
    lines = [HEAD, f"{proved} of {len(items.all())} items have a test."]
    for title, section in items.sections.items():
        lines += ["", f"## {title}", "", "| Item | What | Proved by |", "| --- | --- | --- |"]
        for item, wording in section.items():
            cells = [f"[{proof.text}](../{proof.path})" for proof in found.get(item, [])]
            cells += [f"*{reason}*" for reason in items.reasons.get(item, [])]
            lines.append(f"| {item} | {wording} | {'<br>'.join(cells)} |")
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    """Print the page, or with `--check` what is wrong; return the exit code."""
    try:
        items, found = read_items(ITEMS.read_text(encoding="utf-8")), proofs()
    except Complaint as complaint:
        print(complaint, file=sys.stderr)
        return 1
    if arguments != ["--check"]:
        sys.stdout.write(page(items, found))
        return 0
    wrong = complaints(items, found)
    if PAGE.read_text(encoding="utf-8") != page(items, found):
        wrong.append("run: python -m tests.conformance > docs/conformance.md")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
