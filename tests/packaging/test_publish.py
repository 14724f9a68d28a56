"""What is published as files has checksums that are signed, and notes of its version alone."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, make

sys.path += [str(ROOT / "packaging"), str(ROOT / "packaging/freeze")]
import fetch
import image
import publish
import release

pytestmark = pytest.mark.skipif(not shutil.which("gpg"), reason="not installed: gpg")
KEY = "release@example.com"
DESCRIBED = {"version": "1.2.3", "sources": fetch.digest(), "release": True, "base": "2.31"}
CHANGELOG = """\
# Changelog

## [Unreleased]

## [1.2.3] - 2026-11-24

### Added

- Something new ([docs/new.md](docs/new.md#what)), of [others](https://example.com/).

## [1.2.2] - 2026-11-01

### Fixed

- Something old.
"""


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of gpg with one key."""
    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    make("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", KEY, "ed25519",
         "sign", "never", GNUPGHOME=str(home))  # fmt: skip
    yield home
    environment = {**os.environ, "GNUPGHOME": str(home)}
    subprocess.run(["gpgconf", "--kill", "all"], env=environment, check=False)


@pytest.fixture
def packages(tmp_path: Path, gpg: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A release that is made up, version 1.2.3: sources, executable; here are its packages."""
    dist, packages = tmp_path / "dist", tmp_path / "dist/packages"
    (dist / "licenses").mkdir(parents=True)
    packages.mkdir()
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    (dist / "lavinmq").write_bytes(b"the program")
    for tool in ("lavinmqctl", "lavinmqperf"):
        (dist / tool).symlink_to("lavinmq")
    for name in ("lavinmq.debug", "lavinmq.cdx.json", "lavinmq.profile.tar.xz", "licenses/python"):
        (dist / name).write_text(name)
    (dist / "lavinmq.json").write_text(json.dumps(DESCRIBED))
    for name in (
        "lavinmq_1.2.3-1_amd64.deb",
        "lavinmq-dbgsym_1.2.3-1_amd64.deb",
        "lavinmq-1.2.3-1.x86_64.rpm",
        "lavinmq-1.2.3-cp311-cp311-manylinux_2_17_x86_64.whl",
        "lavinmq-1.2.3.tar.gz",
        "lavinmq_1.2.3-1.dsc",
        "lavinmq_1.2.2-1_amd64.deb",
        "lavinmq-1.2.30-1.x86_64.rpm",
        "lavinmq-archive-keyring_2026.11.24_all.deb",
    ):
        (packages / name).write_text(name)
    monkeypatch.setenv("GNUPGHOME", str(gpg))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "DIST", dist)
    monkeypatch.setattr(release, "version", lambda: "1.2.3")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    return packages


def describe(root: Path, **changed: object) -> None:
    (root / "dist/lavinmq.json").write_text(json.dumps({**DESCRIBED, **changed}))


def add_to_changelog(root: Path) -> None:
    later = "## [Unreleased]\n\n### Added\n\n- Something for later.\n"
    path = root / "CHANGELOG.md"
    path.write_text(path.read_text().replace("## [Unreleased]\n", later))


def publish_to(output: Path, packages: Path) -> Path:
    return publish.build([release.HOST], packages, output, KEY)


def test_checksums_are_of_all_files_of_the_version_and_signed(
    tmp_path: Path, packages: Path
) -> None:
    place = publish_to(tmp_path / "out", packages)

    there = {path.name for path in place.iterdir()}
    name = f"lavinmq-1.2.3-{release.HOST}"
    made = {f"{name}.{end}" for end in ("tar.xz", "debug", "cdx.json", "profile.tar.xz")}
    taken = {path.name for path in packages.iterdir() if "1.2.3-" in path.name}
    taken.add("lavinmq-1.2.3.tar.gz")
    assert there == made | taken | {"NOTES.md", "SHA256SUMS", "SHA256SUMS.asc", "lavinmq.asc"}
    make("gpg", "--verify", place / "SHA256SUMS.asc", place / "SHA256SUMS")
    said = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=place, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    checked = {line.partition(":")[0] for line in said.splitlines()}
    assert checked == made | taken | {"NOTES.md"}


def test_who_downloads_checks_by_the_commands_of_the_page(tmp_path: Path, packages: Path) -> None:
    place = publish_to(tmp_path / "out", packages)
    page = (ROOT / "docs/installation.md").read_text()
    found = re.search(r"## Files without a repository\n.+?```sh\n(.+?)```", page, re.DOTALL)
    assert found
    fetched, rest = found[1].split("\n", 1)
    assert fetched.startswith("curl ") and fetched.endswith("/lavinmq.asc")
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    commands = ["sh", "-ec", rest.replace("-amd64", f"-{release.HOST}")]
    environment = {**os.environ, "GNUPGHOME": str(home)}

    try:
        subprocess.run(commands, cwd=place, env=environment, check=True)
        assert (place / f"lavinmq-1.2.3-{release.HOST}/lavinmqctl").read_bytes() == b"the program"
        (place / "lavinmq-1.2.3.tar.gz").write_text("changed by somebody")
        assert subprocess.run(commands, cwd=place, env=environment, check=False).returncode
    finally:
        subprocess.run(["gpgconf", "--kill", "all"], env=environment, check=False)


def test_the_archive_runs_where_it_is_unpacked_and_is_the_same_again(
    tmp_path: Path, packages: Path
) -> None:
    name = f"lavinmq-1.2.3-{release.HOST}"
    first = publish_to(tmp_path / "first", packages) / f"{name}.tar.xz"
    second = publish_to(tmp_path / "second", packages) / f"{name}.tar.xz"

    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as archive:
        members = {member.name: member for member in archive}
    assert members[f"{name}/lavinmq"].mode == 0o755
    assert members[f"{name}/lavinmqctl"].linkname == "lavinmq"
    assert f"{name}/licenses/python" in members


def test_notes_tell_the_digest_of_the_image_of_this_version(tmp_path: Path, packages: Path) -> None:
    layout = image.Layout(tmp_path / "dist/image-index")
    layout.finish(layout.blob(image.INDEX, b"{}"), "1.2.3")

    said = (publish_to(tmp_path / "out", packages) / "NOTES.md").read_text()
    assert said.endswith(f"is `sha256:{hashlib.sha256(b'{}').hexdigest()}`.\n")
    layout.finish(layout.blob(image.INDEX, b"{}"), "1.2.2")
    with pytest.raises(release.PackagingError, match=r"is of version 1\.2\.2"):
        publish_to(tmp_path / "out", packages)


def test_notes_are_the_section_of_the_version_alone_without_links_to_what_is_not_there(
    packages: Path,
) -> None:
    assert publish.notes("1.2.3") == (
        "# lavinmq 1.2.3\n\n### Added\n\n"
        "- Something new (docs/new.md), of [others](https://example.com/).\n"
    )


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda root: (root / "CHANGELOG.md").write_text("## [1.2.3]\n"), "has no section"),
        (lambda root: add_to_changelog(root), "are of a version to come"),
        (lambda root: (root / "dist/lavinmq.cdx.json").unlink(), "make sbom"),
        (lambda root: (root / "dist/lavinmq.profile.tar.xz").unlink(), "make binary"),
        (lambda root: describe(root, sources="others"), "of other sources: make binary"),
        (lambda root: describe(root, release=False), "not a release"),
        (lambda root: describe(root, base="native"), "not a release for older systems"),
        (lambda root: shutil.rmtree(root / "dist/packages"), "no packages of 1.2.3"),
    ],
)
def test_what_is_missing_or_of_other_sources_is_not_published(
    tmp_path: Path, packages: Path, spoil: object, text: str
) -> None:
    assert callable(spoil)
    spoil(tmp_path)

    with pytest.raises(release.PackagingError, match=text):
        publish_to(tmp_path / "out", packages)
