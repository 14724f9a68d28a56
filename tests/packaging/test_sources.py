"""What the executable is built from is what is tested, and it is pinned whole."""

from __future__ import annotations

import json
import re
import sys
import tomllib

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging/freeze"))
import licenses
import parts

SOURCES = tomllib.loads((ROOT / "packaging/freeze/sources.toml").read_text())
NOT_THE_SAME = {"bcrypt"}  # decision record 0021


def test_every_downloaded_file_has_a_checksum() -> None:
    for key, source in SOURCES.items():
        assert source["sha256"], key
        for name, digest in source["sha256"].items():
            assert re.fullmatch("[0-9a-f]{64}", digest), name


def test_packages_are_there_for_every_architecture() -> None:
    for key, source in SOURCES.items():
        if source["kind"] == "deb":
            # Rust's own library is fetched for other processors than the compiler's alone.
            architectures = ["arm64"] if key == "rust" else ["amd64", "arm64"]
            version = source["version"].replace(":", "%3a")
            for name in source["names"]:
                files = {n for n in source["sha256"] if n.startswith(f"{name}_")}
                each = {f"{name}_{version}_{a}.deb" for a in architectures}
                assert files in (each, {f"{name}_{version}_all.deb"}), key


def test_libraries_are_those_that_the_tests_run_with() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    tested = dict(re.findall(r"^([\w.-]+)==(\S+)$", lock, re.MULTILINE))

    linked = {key: s["version"] for key, s in SOURCES.items() if s["kind"] == "pypi"}

    assert linked.keys() >= {"uvloop", "orjson", "tornado", "PyJWT"}
    assert {k: v for k, v in linked.items() if k not in NOT_THE_SAME} == {
        key: tested[key] for key in linked if key not in NOT_THE_SAME
    }


def test_packages_name_all_licences_of_what_is_linked() -> None:
    linked = [
        source["license"]
        for key, source in SOURCES.items()
        if source.get("part", "executable") == "executable" and key not in licenses.NOT_IN_IT
    ]
    said = " ".join([*linked, *parts.PYTHONS.values()])
    names = set(re.findall(r"\b[A-Z][\w.]*(?:-[\w.]+)+|\b(?:MIT|ISC|Zlib)\b", said))
    assert {"PSF-2.0", "MPL-2.0", "CC0-1.0", "GPL-3.0-or-later", "Zlib"} <= names

    deb = (ROOT / "debian/copyright").read_text()
    rpm = re.findall("^License: +(.+)$", (ROOT / "rpm/lavinmq.spec").read_text(), re.MULTILINE)[0]

    assert set(re.findall(r"[\w.-]+", rpm)) >= names
    for name in names - {"GCC-exception-3.1"}:
        assert name in deb, name


def test_packages_name_a_licence_of_each_part_of_what_is_linked() -> None:
    description = ROOT / "dist/lavinmq.json"
    if not description.exists():
        pytest.skip("dist/lavinmq has not been built: make binary")
    deb = (ROOT / "debian/copyright").read_text()
    for part in json.loads(description.read_text())["parts"]:
        assert any(name in deb for name in re.split(" OR |/", part["license"])), part
