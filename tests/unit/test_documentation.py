"""The pages for humans agree with the code and with each other, as far as a machine can tell."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lavinmq.errors import ReplyCode
from tests.protocol.done_right import DONE_RIGHT

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + list((ROOT / "docs").rglob("*.md"))
)
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<anchor>[^)\s]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SOURCES = sorted(
    path for room in ("cext", "lavinmq", "perf", "packaging")
    for suffix in ("*.py", "*.pyi", "*.pyx", "*.pxd") for path in (ROOT / room).rglob(suffix)
)  # fmt: skip
_OTHERS = [*ROOT.glob("*.py"), ROOT / "perf" / "README.md", *(ROOT / "tests").rglob("*.py")]
_COMMENT = re.compile(r'#.*$|""".*?"""', re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"(?<![\w/.*<-])(?:[\w-]+/)*[\w-]+\.(?:pyx|pxd|pyi|py|md)\b(?!\()")
_ELSEWHERE = re.compile(r"(?:amqp|storage|mqtt) reference\b|architecture section", re.IGNORECASE)
_MADE = {"NOTES.md", "prepared_data.py", "assets_data.py", "main.py"}
"""Files that come of a build."""


def text_of(page: Path) -> str:
    """Return a page without its code blocks."""
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made for a Markdown page."""
    headings = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(text_of(page)))
    return {heading.replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.finditer(text_of(page)):
        target = page.parent / link["path"] if link["path"] else page
        is_page = target.suffix == ".md" and link["anchor"]
        if not target.exists() or (is_page and link["anchor"] not in anchors_of(target)):
            yield link[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_every_decision_is_listed() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")

    for record in (ROOT / "docs" / "decisions").glob("*.md"):
        assert f"(decisions/{record.name})" in index


def test_numbers_without_a_decision_are_named() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    (said,) = re.findall(r"The numbers (.*?)\s+were not used", index, re.DOTALL)
    there = {int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("*.md")}

    unused = set[int]()
    for first, last in re.findall(r"(\d{4})(?:\s+to\s+(\d{4}))?", said):
        unused |= {*range(int(first), int(last or first) + 1)}

    assert unused == {*range(max(unused) + 1)} - there


def test_the_protocol_page_lists_every_reply_code() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| (\d{3}) (\w+) \|", page, re.MULTILINE))

    used = {code for code in ReplyCode if code.scope != "unused"} - {ReplyCode.REPLY_SUCCESS}
    assert listed == {(str(int(code)), code.name) for code in used}


def test_the_protocol_page_tells_every_difference_that_the_recordings_show() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")

    assert [recording for recording in DONE_RIGHT if f"`{recording}`" not in page] == []


def test_comments_point_to_what_is_in_the_repository() -> None:
    known = {
        "/".join(parts[at:])
        for path in [*_SOURCES, *PAGES, *_OTHERS]
        for parts in [path.relative_to(ROOT).parts]
        for at in range(len(parts))
    }

    stale = [
        (str(path.relative_to(ROOT)), name)
        for path in _SOURCES
        for comment in _COMMENT.findall(path.read_text(encoding="utf-8"))
        for name in [*_FILE.findall(comment), *_ELSEWHERE.findall(comment)]
        if name not in known and name not in _MADE
    ]

    assert stale == []
