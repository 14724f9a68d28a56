"""The page that says which test shows which line of a cluster's promise: true, and able to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import cluster_conformance


def test_the_page_is_up_to_date_and_every_test_that_it_names_exists(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cluster_conformance.main(["--check"]) == 0, capsys.readouterr()


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("async def test_a() -> None: ...\ndef test_bc(): ...\n")
    lines = {
        "good": {"what": "w", "tests": "test_x.py: test_a test_bc"},
        "measured": {"what": "w", "why": "it is measured"},
        "bare": {"what": "w"},
        "gone": {"what": "w", "tests": "test_x.py: test_b", "long": "test_y.py: test_a"},
    }

    assert cluster_conformance.complaints({"All": lines}, tmp_path) == [
        "All, bare: neither a test nor a reason",
        "All, gone: there is no test_x.py::test_b",
        "All, gone: there is no test_y.py::test_a",
    ]
