"""Packages and images are of the release form; those of a rehearsal are marked and go nowhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

sys.path += [str(ROOT / "packaging"), str(ROOT / "packaging/freeze")]
import deb
import fetch
import image
import publish
import release
import repository

import rpm

VERSION = "1.2.3"
RELEASED = {"version": VERSION, "sources": fetch.digest(), "release": True, "base": "2.31"}
MARKED = ("lavinmq_1.2.3-1~rehearsal_amd64.deb", "lavinmq-1.2.3-1~rehearsal.x86_64.rpm")


class Begun(Exception):
    """The work would begin."""


@pytest.fixture
def dist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of executables that are made up."""
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "DIST", tmp_path / "dist")
    monkeypatch.setattr(release, "BUILD", tmp_path / "build")
    monkeypatch.setattr(release, "version", lambda: VERSION)
    monkeypatch.delenv("REHEARSAL", raising=False)
    (tmp_path / "dist").mkdir()
    return tmp_path / "dist"


def begin(*_: object) -> None:
    raise Begun


BUILDS: list[Callable[[Path], object]] = [
    lambda output: deb.build(release.HOST, "1", output, check=False),
    lambda output: rpm.build(release.HOST, "1", output, check=False),
    lambda output: image.build(release.HOST, output),
]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({"release": False}, r"not a release for older systems: make binary BASE=2\.31 RELEASE=1"),
        ({"base": "native"}, "not a release for older systems"),
        ({"sources": "others"}, "of other sources"),
    ],
)
def test_what_others_get_is_of_the_release_form_but_in_a_rehearsal(
    dist: Path,
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[Path], object],
    told: dict[str, object],
    text: str,
) -> None:
    (dist / "lavinmq.json").write_text(json.dumps(RELEASED | told))
    for module, name in ((deb.install, "install"), (image, "base")):
        monkeypatch.setattr(module, name, begin)

    with pytest.raises(release.PackagingError, match=text):
        build(dist / "made")

    monkeypatch.setenv("REHEARSAL", "1")
    with pytest.raises(Begun):
        build(dist / "made")
    monkeypatch.delenv("REHEARSAL")
    (dist / "lavinmq.json").write_text(json.dumps(RELEASED))
    with pytest.raises(Begun):
        build(dist / "made")


def test_a_package_of_a_rehearsal_is_older_than_any_other(
    dist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dist / "lavinmq.json").write_text(json.dumps(RELEASED))
    assert release.numbered("1", release.HOST) == "1"

    monkeypatch.setenv("REHEARSAL", "1")

    marked = release.numbered("1", release.HOST)
    assert marked == "1~rehearsal"
    if shutil.which("dpkg"):
        compared = ["dpkg", "--compare-versions", f"1:1.2.3-{marked}", "lt", "1:1.2.3-1"]
        subprocess.run(compared, check=True)
    if shutil.which("rpm"):
        said = subprocess.check_output(
            ["rpm", "--eval", f'%{{lua:print(rpm.vercmp("{marked}", "1"))}}'], text=True
        )
        assert said.strip() == "-1"


@pytest.mark.parametrize("name", MARKED)
def test_neither_repositories_nor_files_have_what_a_rehearsal_made(
    dist: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    packages, published = dist / "packages", dist / "repository"
    monkeypatch.setattr(repository.keyring, "exported", lambda *_: b"the key")
    monkeypatch.setattr(publish, "notes", lambda _: "the notes")
    monkeypatch.setattr(publish, "_executable", lambda *_: None)
    for module in ("_apt", "_dnf"):
        monkeypatch.setattr(repository, module, begin)
    key = repository.Key("nobody")
    for place in (packages, published / "deb/pool"):
        place.mkdir(parents=True)

    for place in (packages, published / "deb/pool"):
        (packages / "lavinmq_1.2.3-1_amd64.deb").touch()
        (place / name).touch()
        with pytest.raises(release.PackagingError, match=f"rehearsal, remove: {name}"):
            repository.build(packages, published, key, (), "https://example.com")
        if place == packages:
            with pytest.raises(release.PackagingError, match=f"rehearsal, remove: {name}"):
                publish.build([release.HOST], packages, dist / "release", "nobody")
        (place / name).unlink()

    (packages / name).touch()
    monkeypatch.setenv("REHEARSAL", "1")
    with pytest.raises(Begun):
        repository.build(packages, published, key, (), "https://example.com")


def test_an_index_takes_no_image_of_a_rehearsal(
    dist: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image.Layout(dist / "image")
    made.finish(made.blob(image.MANIFEST, b"{}"), f"{VERSION}-rehearsal")

    with pytest.raises(release.PackagingError, match=r"is of 1\.2\.3-rehearsal, not of 1\.2\.3:"):
        image.combine([dist / "image"], dist / "image-index")
