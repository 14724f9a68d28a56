"""The source package holds all that is needed, and Debian's own tools make the packages from it."""

from __future__ import annotations

import hashlib
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, fresh_root, make
from tests.support.machine import missing, run_in

ARCHIVES = (
    "deb http://deb.debian.org/debian bookworm main\n"
    "deb http://deb.debian.org/debian bookworm-updates main\n"
    "deb http://deb.debian.org/debian-security bookworm-security main\n"
)
BUILD_TIMEOUT_S = 3600


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the files of the source package."""
    for program in ("dpkg-source", "git"):
        if not shutil.which(program):
            pytest.skip(f"not installed: {program}")
    place = tmp_path_factory.mktemp("source")
    make(sys.executable, "packaging/source.py", "--output", place / "made")
    return place / "made"


@pytest.mark.nightly
def test_it_brings_the_sources_that_are_linked_in_and_what_compiles(
    source: Path, tmp_path: Path
) -> None:
    make("dpkg-source", "--no-check", "--extract", next(source.glob("*.dsc")), tmp_path / "tree")

    pinned = tomllib.loads((tmp_path / "tree/packaging/freeze/sources.toml").read_text())
    for key, part in pinned.items():
        for name, digest in part["sha256"].items() if part["kind"] != "deb" else ():
            found = hashlib.sha256((tmp_path / "tree/vendor" / name).read_bytes()).hexdigest()
            assert found == digest, key
    assert not (tmp_path / "tree/build").exists()
    assert "@" not in (tmp_path / "tree/debian/changelog").read_text().partition("\n")[0]


@pytest.mark.nightly
def test_the_same_sources_make_the_same_package(source: Path, tmp_path: Path) -> None:
    make(sys.executable, "packaging/source.py", "--output", tmp_path)

    names = {path.name for path in source.iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == names
    assert len(names) == 4
    for name in names:
        assert (source / name).read_bytes() == (tmp_path / name).read_bytes(), name


@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.slow
@pytest.mark.timeout(2 * BUILD_TIMEOUT_S)
@pytest.mark.xdist_group("machines")
def test_a_fresh_debian_builds_the_packages_without_a_network(source: Path, tmp_path: Path) -> None:
    root = fresh_root(tmp_path / "root")
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/apt/sources.list").write_text(ARCHIVES)
    shutil.copytree(source, root / "build")

    def run(*command: str, place: str = "/build", network: bool = False) -> str:
        return run_in(root, *command, place=place, network=network, timeout_s=BUILD_TIMEOUT_S)

    run("apt-get", "update", network=True)
    install = ("apt-get", "install", "-y", "--no-install-recommends")
    run(*install, "build-essential", network=True)
    run("dpkg-source", "-x", next(source.glob("*.dsc")).name, "tree")
    needed = ("apt-get", "build-dep", "-y", "--no-install-recommends", "./")
    run(*needed, place="/build/tree", network=True)

    run("dpkg-buildpackage", "-us", "-uc", place="/build/tree")

    made = {path.name.partition("_")[0] for path in (root / "build").glob("*.deb")}
    assert made == {"lavinmq", "lavinmq-dbgsym"}
    run("sh", "-c", "dpkg --install --force-depends lavinmq_*.deb lavinmq-dbgsym_*.deb")
    assert "broker: ok" in run("lavinmq", "--selftest")
    program = (root / "usr/bin/lavinmq").read_bytes()
    assert b"/build/tree" not in program and str(ROOT).encode() not in program
