"""The page that says which test shows which promise of the client names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "client-tests.md"
PARTS = {"A": 14, "C": 20, "P": 9, "S": 9, "N": 14, "K": 13, "B": 7, "W": 5}
"""The first letters of the rows, and how many there are of each."""
_ROW = re.compile(r"^\| ([A-Z])(\d+) \| (.+?) \| (.*) \|$", re.MULTILINE)
_PROOF = re.compile(r"\[(test_\w+\.py)::(\w+)\]\(\.\./([\w/]+\.py)\)")


def test_every_promise_has_a_test_that_is_there() -> None:
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))

    assert [f"{part}{number}" for part, number, _, _ in rows] == [
        f"{part}{number + 1}" for part, count in PARTS.items() for number in range(count)
    ]
    for part, number, _, shown in rows:
        proofs = [_PROOF.fullmatch(each) for each in shown.split("<br>")]
        for proof in proofs:
            assert proof is not None, f"{part}{number} names no test"
            name, test, path = proof.groups()
            there = re.search(
                rf"^(?:def {test}\(|{test} = )", (ROOT / path).read_text(), re.MULTILINE
            )
            assert there and path.endswith(f"/{name}"), (
                f"{part}{number}: there is no {test} in {path}"
            )
