"""Which test shows which line of what a cluster promises: makes and checks its page.

    python -m tests.cluster_conformance > docs/cluster-conformance.md
    python -m tests.cluster_conformance --check

The lines, and the tests of each, are in `cluster_conformance.toml` beside this file. A test that is
not there, and a line with neither a test nor a reason, is an error.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.conformance import ROOT, TESTS

ITEMS = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "cluster-conformance.md"
HEAD = """\
# What shows that a cluster keeps its promise

Every line of what a cluster promises ([clustering.md](clustering.md)), of what it is to bear, and
of where the original is weak, with the tests that show it. *Long* ones run by `make chaos` alone.

This page is made: `python -m tests.cluster_conformance > docs/cluster-conformance.md`. A test fails
when it is out of date, when a test that it names does not exist, or when a line has neither a test
nor a reason.
"""

Table = dict[str, dict[str, dict[str, str]]]


def named(text: str) -> Iterator[tuple[str, str]]:
    """File and name of each test, of `file: name name; file: name`."""
    for part in filter(None, (each.strip() for each in text.split(";"))):
        path, _, names = part.partition(":")
        for name in names.split():
            yield path, name


def complaints(table: Table, root: Path = TESTS) -> list[str]:
    """What is wrong with the lines, one each."""
    found = []
    for section, lines in table.items():
        for name, line in lines.items():
            tests = [*named(line.get("tests", "")), *named(line.get("long", ""))]
            if not tests and "why" not in line:
                found.append(f"{section}, {name}: neither a test nor a reason")
            found += [
                f"{section}, {name}: there is no {path}::{test}"
                for path, test in tests
                if not _is_there(root / path, test)
            ]
    return found


def _is_there(path: Path, test: str) -> bool:
    if not path.is_file():
        return False
    return bool(re.search(rf"^(async )?def {test}\(", path.read_text("utf-8"), re.MULTILINE))


def page(table: Table) -> str:
    """The page."""
    rows = [HEAD]
    for section, lines in table.items():
        rows += [f"## {section}", "", "| Line | What | Shown by |", "| --- | --- | --- |"]
        for name, line in lines.items():
            cells = [_link(*each) for each in named(line.get("tests", ""))]
            cells += [f"{_link(*each)} (*long*)" for each in named(line.get("long", ""))]
            cells += [line["why"]] if "why" in line else []
            rows.append(f"| {name} | {line['what']} | {'<br>'.join(cells)} |")
        rows.append("")
    return "\n".join(rows)


def _link(path: str, test: str) -> str:
    return f"[{Path(path).name}::{test}](../tests/{path})"


def main(arguments: list[str]) -> int:
    """Print the page, or with `--check` what is wrong; return the exit code."""
    table: Table = tomllib.loads(ITEMS.read_text("utf-8"))
    if arguments != ["--check"]:
        sys.stdout.write(page(table))
        return 0
    wrong = complaints(table)
    if not PAGE.exists() or PAGE.read_text("utf-8") != page(table):
        wrong.append("run: python -m tests.cluster_conformance > docs/cluster-conformance.md")
    for each in wrong:
        print(each)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
