"""Which test shows which promise about shovels, webhooks and federation: makes and checks its page.

    python -m tests.links_conformance > docs/links-conformance.md
    python -m tests.links_conformance --check

The promises, in words of our own, and their tests are in `links_conformance.toml` beside this file:
`"S-1" = ["what", "short::test_name", ...]`, where `short` is a file of its table `files`, or
`"S-13" = ["what", "reason: why there is none"]`.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from lavinmq.federation import upstreams
from lavinmq.shovel import values
from tests.conformance import ROOT, TESTS

ITEMS = Path(__file__).with_suffix(".toml")
PAGE = ROOT / "docs" / "links-conformance.md"
REASON = "reason: "
KEYS = {
    "Keys of a shovel": set(values.KEYS) - set(values.ALSO),
    "Keys of an upstream": set(upstreams.KEYS),
}
"""Sections that have an entry for each key that the broker takes, and no other."""

HEAD = """\
# What shows that shovels and federation keep their promises

Each weak point of LavinMQ that is done better here (`S-1` to `S-14`, `F-1` to `F-12`), what a
shovel, a webhook and a link have to do, each key of their parameters, what was tried to break them,
and the tests that show it. [shovels.md](shovels.md) and [federation.md](federation.md) say how they
are used.

This page is made: `python -m tests.links_conformance > docs/links-conformance.md`. A test fails
when it is out of date, when a test that it names is not there, or when a key is missing.
"""

Sections = dict[str, dict[str, list[str]]]


def read(text: str) -> tuple[dict[str, str], Sections]:
    """The files by their short names, and the promises by section."""
    sections: dict[str, Any] = tomllib.loads(text)
    return sections.pop("files"), sections


@cache
def tests_of(path: str) -> frozenset[str]:
    """The tests of a file; none if it is not there."""
    file = TESTS / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def complaints(files: dict[str, str], sections: Sections) -> list[str]:
    """What is wrong, a line each."""
    found = []
    for title, items in sections.items():
        for item, (what, *proofs) in items.items():
            if not what or not proofs:
                found.append(f"{title}, {item}: neither a test nor a reason")
            for proof in proofs:
                short, mark, test = proof.partition("::")
                is_test = mark and short in files and test in tests_of(files[short])
                if not is_test and not proof.startswith(REASON):
                    found.append(f"{title}, {item}: there is no test {proof}")
    for title, keys in KEYS.items():
        for key in sorted(keys ^ sections[title].keys()):
            found.append(f"{title}: '{key}' is in one of page and code only")
    return found


def page(files: dict[str, str], sections: Sections) -> str:
    """The page as it should be."""
    lines = [HEAD]
    for title, items in sections.items():
        lines += [f"## {title}\n", "| | What | Shown by |", "| --- | --- | --- |"]
        lines += [
            f"| {item} | {what} | {'<br>'.join(_shown(files, proof) for proof in proofs)} |"
            for item, (what, *proofs) in items.items()
        ]
        lines.append("")
    return "\n".join(lines)


def _shown(files: dict[str, str], proof: str) -> str:
    if proof.startswith(REASON):
        return f"*{proof.removeprefix(REASON)}*"
    short, _, test = proof.partition("::")
    path = files[short]
    return f"[{Path(path).parent.name}/{Path(path).name}::{test}](../tests/{path})"


def main(argv: list[str]) -> int:
    """Print the page, or check the one that there is."""
    found = read(ITEMS.read_text(encoding="utf-8"))
    wrong = complaints(*found)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    made = page(*found)
    if "--check" not in argv:
        sys.stdout.write(made)
    elif PAGE.read_text(encoding="utf-8") != made:
        print(f"{PAGE.name} is out of date: make it anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
