"""What is pinned is compared with what mirrors have; the mirrors of these tests are directories."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging/freeze"))
import fetch
import outdated

pytestmark = pytest.mark.skipif(not shutil.which("apt-get"), reason="apt-get is not installed")
SOURCE = fetch.Source("python", "source", "3.13.5-2", "", {}, suite="trixie", name="python3.13")
PACKAGE = fetch.Source("openssl", "deb", "3.0.2-1", "", {}, suite="oldone", names=("libssl-dev",))


@pytest.fixture(autouse=True)
def mirrors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a mirror that has four suites, all empty."""
    mirror = tmp_path / "mirror"
    for suite in ("trixie", "trixie-security", "oldone", "oldone-security"):
        publish(mirror, suite, "")
    monkeypatch.setattr(fetch, "_mirror", lambda suite: f"[trusted=yes] file:{mirror}")
    monkeypatch.setattr(fetch, "CACHE", tmp_path / "cache")
    outdated._lists.cache_clear()
    yield mirror
    outdated._lists.cache_clear()


def publish(mirror: Path, suite: str, text: str, kind: str = "binary-amd64/Packages") -> None:
    """Let a suite have these packages."""
    for name in ("binary-amd64/Packages", "source/Sources"):
        path = mirror / "dists" / suite / "main" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == kind or not path.exists():
            path.write_text(text if name == kind else "")


def package(name: str, version: str) -> str:
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: nobody\n"
        f"Filename: pool/{name}.deb\nSize: 1\nSHA256: {'0' * 64}\nDescription: made up\n\n"
    )


def source(name: str, version: str) -> str:
    return (
        f"Package: {name}\nBinary: {name}, lib{name}\nVersion: {version}\nArchitecture: any\n"
        f"Maintainer: nobody\nFormat: 3.0 (quilt)\nDirectory: pool\n"
        f"Checksums-Sha256:\n {'0' * 64} 1 {name}.dsc\n\n"
    )


def test_nothing_is_said_of_what_is_up_to_date(mirrors: Path) -> None:
    publish(mirrors, "trixie", source("python3.13", "3.13.5-2"), "source/Sources")
    publish(mirrors, "trixie-security", source("python3.13", "3.13.5-1"), "source/Sources")
    publish(mirrors, "oldone-security", package("libssl-dev", "3.0.2-1"))

    assert list(outdated.findings([SOURCE, PACKAGE])) == []


@pytest.mark.parametrize("suite", ["trixie", "trixie-security"])
def test_newer_sources_are_an_error(mirrors: Path, suite: str) -> None:
    both = source("python3.13", "3.13.5-2+deb13u9") + source("python3.13", "3.13.5-2+deb13u10")
    publish(mirrors, suite, both, "source/Sources")

    (found,) = outdated.findings([SOURCE])

    assert found.is_error
    assert found.text == f"python3.13 3.13.5-2: {suite} has 3.13.5-2+deb13u10"


def test_a_fix_whose_sources_the_mirror_does_not_have_is_noticed(mirrors: Path) -> None:
    publish(mirrors, "trixie-security", package("python3.13", "3.13.5-2+deb13u1"))

    (found,) = outdated.findings([SOURCE])

    assert found == ("python3.13 3.13.5-2: trixie-security has 3.13.5-2+deb13u1", True)


def test_a_newer_package_is_an_error_and_another_name_is_not(mirrors: Path) -> None:
    newer = package("libssl-dev", "3.0.10-1") + package("libssl-dev-tools", "9")
    publish(mirrors, "oldone-security", newer)
    publish(mirrors, "trixie", source("libssl", "9"), "source/Sources")

    (found,) = outdated.findings([PACKAGE])

    assert found == ("libssl-dev 3.0.2-1: oldone-security has 3.0.10-1", True)


def test_of_what_is_not_in_the_executable_it_is_only_told(mirrors: Path) -> None:
    headers = dataclasses.replace(PACKAGE, key="kernel-headers", version="5.1", names=("linux",))
    publish(mirrors, "oldone-security", package("linux", "5.2"))

    (found,) = outdated.findings([headers])

    assert found == ("linux 5.1: oldone-security has 5.2", False)


def test_a_mirror_that_is_not_there_is_told_and_no_error(mirrors: Path) -> None:
    publish(mirrors, "trixie-security", source("python3.13", "3.13.5-3"), "source/Sources")
    shutil.rmtree(mirrors / "dists/trixie")

    silent, found = outdated.findings([SOURCE])

    assert silent == ("python 3.13.5-2: trixie does not answer: not compared", False)
    assert found.is_error and "trixie-security" in found.text


def index(answer: str, status: int = 0) -> Callable[..., subprocess.CompletedProcess[str]]:
    """What stands for `pip index versions`."""

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert command[-3:] == ["index", "versions", "orjson"]
        return subprocess.CompletedProcess(command, status, answer, "ERROR: no route")

    return run


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (index("orjson (3.13.0)\nAvailable versions: 3.13.0, 3.12.1\n"), []),
        (index("orjson (3.14.0)\n"), ["orjson 3.13.0: the package index has 3.14.0"]),
        (index("", 1), [f"orjson 3.13.0: not compared: {sys.executable}: ERROR: no route"]),
    ],
)
def test_a_newer_release_of_the_package_index_is_told(
    run: Callable[..., object], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", run)
    pinned = fetch.Source("orjson", "pypi", "3.13.0", "", {}, form="sdist")

    assert list(outdated.findings([pinned])) == [(text, False) for text in said]


@pytest.mark.parametrize(("version", "status"), [("3.13.5-2", 0), ("3.13.5-3", 1)])
def test_the_exit_code_says_whether_a_fix_is_missing(
    version: str,
    status: int,
    mirrors: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    publish(mirrors, "trixie", source("python3.13", version), "source/Sources")
    monkeypatch.setattr(fetch, "sources", lambda: {"python": SOURCE})

    assert outdated.main() == status
    assert capsys.readouterr().out == (
        "Error: python3.13 3.13.5-2: trixie has 3.13.5-3\n" if status else ""
    )
