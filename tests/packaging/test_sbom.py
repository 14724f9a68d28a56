"""The bill of materials names what is in the executable, and is of this very executable.

What components bring along of others has its own name in it, as has what the image has of Debian.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from tests.packaging.conftest import ROOT, make

pytest.importorskip("cyclonedx", reason="the extra release is not installed: make sbom")
BINARY = ROOT / "dist/lavinmq"
BROUGHT_ALONG = {
    "libuv", "llhttp", "http-parser", "mpdecimal", "hacl-star", "libb2", "yyjson", "itoap",
    "pyo3-ffi", "libc",
}  # fmt: skip
LINKED = {
    "python",
    "openssl",
    "zstd",
    "zlib",
    "libffi",
    "pcre2",
    "lz4",
    "libgcc",
    "uvloop",
    "orjson",
}
OF_THE_IMAGE = {"libc6", "ca-certificates", "base-files"}


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


@pytest.fixture(scope="module")
def bill(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not BINARY.exists():
        pytest.skip("dist/lavinmq has not been built: make binary")
    path = tmp_path_factory.mktemp("bill") / "bill.json"
    make(sys.executable, "packaging/sbom.py", "--output", path)
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.fixture
def described() -> dict[str, Any]:
    if not BINARY.exists():
        pytest.skip("dist/lavinmq has not been built: make binary")
    found: dict[str, Any] = json.loads(BINARY.with_suffix(".json").read_text())
    return found


def named(bill: dict[str, Any], scope: str | None) -> dict[str, str]:
    """Return the versions of what has a scope in the bill; without one: of the executable."""
    found = [part for part in bill["components"] if part.get("scope") == scope]
    assert len({part["name"] for part in found}) == len(found)
    return {part["name"]: part["version"] for part in found}


def test_every_component_is_in_the_bill_and_the_bill_is_of_this_executable(
    bill: dict[str, Any], described: dict[str, Any]
) -> None:
    parts = named(bill, None)
    tools = named(bill, "excluded")

    inner = {part["name"]: part["version"] for part in described["parts"]}
    assert parts == described["contains"] | inner | {"uplot": vendored_version()}
    assert tools == described["built_with"]
    assert tools.keys() >= {"gcc", "binutils", "rustc", "cython"}
    assert all(re.search(r"\d+\.\d+", version) for version in tools.values())
    for part in bill["components"]:
        assert part.get("scope") == "excluded" or (part["licenses"] and part["purl"]), part
    digest = hashlib.sha256(BINARY.read_bytes()).hexdigest()
    assert bill["metadata"]["component"]["hashes"] == [{"alg": "SHA-256", "content": digest}]


def test_what_components_bring_along_is_in_the_bill_by_its_own_name(bill: dict[str, Any]) -> None:
    parts = named(bill, None)

    assert parts.keys() >= BROUGHT_ALONG | {"rust"}
    assert parts.keys().isdisjoint({"cc", "pyo3-build-config", "syn"})  # those only build
    if json.loads(BINARY.with_suffix(".json").read_text())["base"] != "native":
        assert parts.keys() >= LINKED
    origins = {part["name"]: part.get("purl", "") for part in bill["components"]}
    assert re.fullmatch(r"pkg:generic/libuv@1\.\d+\.\d+", origins["libuv"])
    assert re.fullmatch(r"pkg:cargo/itoap@[\d.]+", origins["itoap"])
    linked = subprocess.run(["nm", BINARY], capture_output=True, text=True, check=True).stdout
    for symbol in ("uv_loop_init", "mpd_qadd"):  # these two are there, indeed
        assert re.search(rf" [tT] {symbol}$", linked, re.MULTILINE), symbol


def test_what_the_image_has_of_debian_is_in_the_bill(bill: dict[str, Any]) -> None:
    pinned = tomllib.loads((ROOT / "packaging/freeze/sources.toml").read_text()).values()

    of_image = named(bill, "optional")

    assert of_image.keys() == OF_THE_IMAGE
    assert of_image == {
        name: source["version"]
        for source in pinned
        if source.get("part") == "image"
        for name in source["names"]
    }


def test_every_part_is_in_the_index_of_licences_and_those_of_rust_are_there(
    described: dict[str, Any],
) -> None:
    licenses = BINARY.with_name("licenses")

    index = (licenses / "README").read_text()

    for part in described["parts"]:
        row = rf"^{re.escape(part['name'])} +{re.escape(part['version'])} +.+; in {part['of']}$"
        assert re.search(row, index, re.MULTILINE), part
    assert any("Apache License" in path.read_text() for path in (licenses / "rust").rglob("*.*"))
    assert list(licenses.glob("uvloop/vendor/libuv/LICENSE*"))
    assert list(licenses.glob("orjson/include/cargo/itoap-*/LICENSE*"))
    assert "libmpdec" in (licenses / "python/debian/copyright").read_text()
