"""The bill of materials names what is in the executable, and is of this very executable."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, make

pytest.importorskip("cyclonedx", reason="the extra release is not installed: make sbom")
BINARY = ROOT / "dist/lavinmq"


def vendored_version() -> str:
    """Of uPlot, as the script that fetches it says."""
    found = re.search(r"^version=(.+)$", (ROOT / "packaging/vendor.sh").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_what_the_pages_bring_along_has_a_part_in_the_bill() -> None:
    asked = "import sys; sys.path.insert(0, 'packaging'); import sbom; print(sbom.drawing().purl)"
    said = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == f"pkg:npm/uplot@{vendored_version()}"


@pytest.mark.skipif(not BINARY.exists(), reason="dist/lavinmq has not been built: make binary")
def test_every_component_is_in_the_bill_and_the_bill_is_of_this_executable(tmp_path: Path) -> None:
    make(sys.executable, "packaging/sbom.py", "--output", tmp_path / "bill.json")

    bill = json.loads((tmp_path / "bill.json").read_text())
    described = json.loads((ROOT / "dist/lavinmq.json").read_text())
    parts = [part for part in bill["components"] if part.get("scope") != "excluded"]
    tools = [part for part in bill["components"] if part.get("scope") == "excluded"]
    named = {part["name"]: part["version"] for part in parts}
    assert named.pop("uplot") == vendored_version()
    assert named == described["contains"]
    assert all(part["licenses"] and part["purl"] for part in parts)
    assert {part["name"]: part["version"] for part in tools} == described["built_with"]
    assert described["built_with"].keys() >= {"gcc", "binutils", "rustc", "cython"}
    assert all(re.search(r"\d+\.\d+", part["version"]) for part in tools)
    digest = hashlib.sha256(BINARY.read_bytes()).hexdigest()
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]
