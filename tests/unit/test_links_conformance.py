"""The page of what shows each promise of shovels and links: that it is true, and can fail."""

from __future__ import annotations

import pytest

from tests import links_conformance
from tests.links_conformance import KEYS, Sections, complaints, page

FILES = {"own": "unit/test_links_conformance.py", "gone": "unit/test_nowhere.py"}
TEST = "own::test_what_is_wrong_is_named"


def sections(**first: list[str]) -> Sections:
    return {"First": first} | {title: {key: ["", TEST] for key in KEYS[title]} for title in KEYS}


def test_the_page_is_up_to_date_and_each_test_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert links_conformance.main(["--check"]) == 0, capsys.readouterr()


def test_what_is_wrong_is_named() -> None:
    given = sections(
        a=["what", TEST], b=["what", "reason: none"], c=["what"], d=["what", "own::test_none"],
        e=["what", "gone::test_x"], f=["what", "other::test_x"],
    )  # fmt: skip
    del given["Keys of a shovel"]["src-uri"]
    given["Keys of an upstream"]["ury"] = ["what", TEST]
    wrong = [each for each in complaints(FILES, given) if "neither" not in each or "First" in each]
    assert wrong == [
        "First, c: neither a test nor a reason",
        "First, d: there is no test own::test_none",
        "First, e: there is no test gone::test_x",
        "First, f: there is no test other::test_x",
        "Keys of a shovel: 'src-uri' is in one of page and code only",
        "Keys of an upstream: 'ury' is in one of page and code only",
    ]


def test_a_row_leads_to_its_tests() -> None:
    text = page(FILES, {"First": {"a": ["what", TEST, "reason: none"]}})
    link = "[unit/test_links_conformance.py::test_what_is_wrong_is_named]"
    where = "(../tests/unit/test_links_conformance.py)"
    assert text.endswith(f"| a | what | {link}{where}<br>*none* |\n")
