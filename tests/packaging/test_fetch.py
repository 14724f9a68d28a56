"""A source that cannot be had is no fault of ours, and one that is not what was pinned may be."""

from __future__ import annotations

import hashlib
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging/freeze"))
import fetch

import build

NAME = "made_up-1.0-py3-none-any.whl"
DIGEST = "0" * 64


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> fetch.Source:
    """A source that pip looks for in the directory `index`, and that has another checksum."""
    (tmp_path / "index").mkdir()
    monkeypatch.setattr(fetch, "DOWNLOADS", tmp_path / "downloads")
    monkeypatch.setattr(fetch, "CACHE", tmp_path / "cache")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return fetch.Source("made-up", "pypi", "1.0", "MIT", {NAME: DIGEST}, form="wheel")


def wheel(place: Path) -> None:
    with zipfile.ZipFile(place / NAME, "w") as archive:
        archive.writestr("made_up-1.0.dist-info/METADATA",
                         "Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")  # fmt: skip
        archive.writestr("made_up-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")


def status(monkeypatch: pytest.MonkeyPatch, source: fetch.Source) -> int:
    """Return the exit code of a build whose only source this is."""
    monkeypatch.setattr(build, "_fetch", lambda _: fetch.fetch(source))
    monkeypatch.setattr(sys, "argv", ["build.py", "--fetch"])
    monkeypatch.setattr(build.signal, "signal", lambda *_: None)
    return build.main()


def test_a_source_that_no_mirror_has_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, source: fetch.Source
) -> None:
    assert status(monkeypatch, source) == build.NOT_FETCHED


def test_a_source_that_is_not_the_pinned_one_fails_the_build(
    monkeypatch: pytest.MonkeyPatch,
    source: fetch.Source,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel(tmp_path / "index")

    assert status(monkeypatch, source) == 1
    assert f"{NAME}: not the file that sources.toml names" in capsys.readouterr().err


def test_two_builds_in_one_tree_do_not_unpack_the_same_source_at_once(
    monkeypatch: pytest.MonkeyPatch, source: fetch.Source, tmp_path: Path
) -> None:
    """Builds for two processors at once: one ended in the middle of the patches of the other."""
    (tmp_path / "downloads").mkdir()
    wheel(tmp_path / "downloads")
    digest = hashlib.sha256((tmp_path / "downloads" / NAME).read_bytes()).hexdigest()
    source = replace(source, sha256={NAME: digest})
    unpack, unpacked = fetch._unpack, []
    other = threading.Thread(target=fetch.fetch, args=(source,))

    def slowly(source: fetch.Source, names: list[Path], place: Path) -> None:
        unpacked.append(place)
        if len(unpacked) == 1:
            other.start()
            other.join(1.0)
        unpack(source, names, place)

    monkeypatch.setattr(fetch, "_unpack", slowly)
    place = fetch.fetch(source)
    other.join()

    assert unpacked == [place]
    assert (place / "made_up-1.0.dist-info/METADATA").exists()
