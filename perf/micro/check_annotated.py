"""Fails when a function marked ``# hot`` talks to the Python C-API.

Run by ``make lint`` on ``build/annotate``, where the build leaves Cython's annotated sources: one
HTML page per ``.pyx``, each line with a score, 0 (white) when its C code never calls Python. A
function is hot when the line above it is the comment ``# hot``; all of its lines must be white.
Inline functions in ``.pxd`` files are not annotated by Cython; there ``nogil`` is the guard.
Finding nothing to check is an error too: it would mean that the pages changed their format.

Usage: check_annotated.py PAGE_OR_DIRECTORY...
"""

import html
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(
    r'<pre class="cython line score-(?P<score>\d+)"[^>]*>'
    r'[^<]*<span class="">(?P<number>\d+)</span>: (?P<code>.*?)</pre>'
)
_TAG = re.compile(r"<[^>]+>")
_HOT = re.compile(r"\s*# hot\b")
_FUNCTION = re.compile(r"\s*(cdef|cpdef|def|async)\b.*\(")


@dataclass(frozen=True, slots=True)
class Line:
    """One source line: its number from 1, its text, its score (0 = no Python)."""

    number: int
    code: str
    score: int

    @property
    def is_blank(self) -> bool:
        """Blank and comment lines belong to no function and are never yellow."""
        text = self.code.strip()
        return not text or text.startswith("#")

    @property
    def indent(self) -> int:
        """Columns before the first character that is not a space."""
        return len(self.code) - len(self.code.lstrip())


@dataclass(frozen=True, slots=True)
class Finding:
    """One objection: where, and why, in a sentence for the reader of the build log."""

    page: str
    number: int
    reason: str

    def __str__(self) -> str:
        """Return the finding the way compilers print theirs."""
        return f"{self.page}:{self.number}: {self.reason}"


def read_page(page: Path) -> list[Line]:
    """Return the source lines of an annotated page; empty when it is not such a page."""
    return [
        Line(
            number=int(match["number"]),
            code=html.unescape(_TAG.sub("", match["code"])),
            score=int(match["score"]),
        )
        for match in _LINE.finditer(page.read_text(encoding="utf-8"))
    ]


def function_lines(lines: Sequence[Line], start: int) -> Iterator[Line]:
    """Yield the lines of the function whose first line has index ``start``.

    The function ends before the first line that is not indented deeper than its head. A head
    of several lines ends with a parenthesis in the column of the head, which is still part of it.
    """
    head = lines[start]
    yield head
    for line in lines[start + 1 :]:
        if line.is_blank:
            continue
        if line.indent <= head.indent and not line.code.lstrip().startswith(")"):
            return
        yield line


def check_page(name: str, lines: Sequence[Line]) -> tuple[int, list[Finding]]:
    """Return how many hot functions a page has, and what is wrong with them."""
    n_hot = 0
    findings: list[Finding] = []
    for index, mark in enumerate(lines[:-1]):
        if not _HOT.match(mark.code):
            continue
        start = index + 1
        while start < len(lines) - 1 and lines[start].code.lstrip().startswith("@"):
            start += 1
        if not _FUNCTION.match(lines[start].code):
            findings.append(Finding(name, mark.number, "'# hot' is not followed by a function"))
            continue
        n_hot += 1
        findings += [
            Finding(name, line.number, f"hot code calls Python: {line.code.strip()}")
            for line in function_lines(lines, start)
            if line.score > 0
        ]
    return n_hot, findings


def pages_below(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Return the given pages, and those of the given directories, in a stable order.

    The first of each pair is the name for findings: two directories may have pages of one name.
    """
    pages: list[tuple[str, Path]] = []
    for path in paths:
        below = sorted(path.rglob("*.html")) if path.is_dir() else [path]
        root = path if path.is_dir() else path.parent
        pages += [(page.relative_to(root).with_suffix("").as_posix(), page) for page in below]
    return pages


def main(arguments: Sequence[str]) -> int:
    """Check all pages, print the findings; return the exit code, 0 when there is none."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    total = 0
    findings: list[Finding] = []
    for name, page in pages_below([Path(argument) for argument in arguments]):
        n_hot, found = check_page(name, read_page(page))
        total += n_hot
        findings += found
    if total == 0 and not findings:
        findings.append(Finding(arguments[0], 0, "no function marked '# hot' was found"))
    for finding in findings:
        print(finding, file=sys.stderr)
    print(f"{total} hot functions checked, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
