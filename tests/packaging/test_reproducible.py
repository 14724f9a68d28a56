"""The executable and its packages have the same bytes wherever they are built.

The quick form of packaging/reproduce.py: interpreter and largest modules are copied. The whole of
it is `make reproduce`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, make

sys.path.append(str(ROOT / "packaging/freeze"))
import fetch
import profiles

DIST = ROOT / "dist"


@pytest.mark.slow
@pytest.mark.xdist_group("machines")
def test_another_directory_makes_the_same_bytes() -> None:
    if not (DIST / "lavinmq").exists():
        pytest.skip("dist/lavinmq has not been built: make binary")
    if json.loads((DIST / "lavinmq.json").read_text()).get("sources") != fetch.digest():
        pytest.skip("dist/lavinmq is of other sources: make binary")

    said = make(sys.executable, "packaging/reproduce.py", "--quick")

    assert "DIFFERENT" not in said
    assert "lavinmq.debug" in said


@pytest.mark.parametrize("name", ["lavinmq", "lavinmq.debug"])
def test_no_file_tells_where_it_was_built(name: str) -> None:
    if not (DIST / name).exists():
        pytest.skip("dist/lavinmq has not been built: make binary")

    content = (DIST / name).read_bytes()
    if name.endswith(".debug"):
        content = make("readelf", "--debug-dump=str", "--debug-dump=line-str",
                       "-wi", DIST / name).encode()  # fmt: skip

    assert str(ROOT).encode() not in content


def test_what_a_release_was_trained_by_is_the_same_file_again(tmp_path: Path) -> None:
    counts = tmp_path / "built/Objects/dictobject.gcda"
    counts.parent.mkdir(parents=True)
    counts.write_bytes(b"counts of the interpreter")
    ours = tmp_path / "core.gcda"
    ours.write_bytes(b"counts of ours")
    first, second = tmp_path / "first", tmp_path / "second"

    profiles.read(tmp_path / "built", {"lavinmq._core": [ours]}).pack(first)
    read = profiles.unpack(first, tmp_path / "unpacked")
    read.lay_out(tmp_path / "elsewhere")
    read.pack(second)

    assert first.read_bytes() == second.read_bytes()
    laid = tmp_path / "elsewhere/Objects/dictobject.gcda"
    assert laid.read_bytes() == b"counts of the interpreter"
    assert [p.read_bytes() for p in read.modules["lavinmq._core"]] == [b"counts of ours"]
