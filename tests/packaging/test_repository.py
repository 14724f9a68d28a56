"""The repository for apt: what its index says, and that the one before can still be read."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, make
from tests.packaging.test_keyring import User

TOOLS = ("apt-ftparchive", "apt-get", "dpkg-deb", "gpg")
MISSING = [name for name in TOOLS if not shutil.which(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
KEY = "index@example.com"
INDEX = "deb/dists/stable/main/binary-amd64"


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which gpg has the key."""
    directory = tmp_path_factory.mktemp("gnupg")
    directory.chmod(0o700)
    environment = {"GNUPGHOME": str(directory)}
    make("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", KEY, "rsa3072",
         "sign", "never", **environment)  # fmt: skip
    yield environment
    subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **environment}, check=False)


def publish(place: Path, version: str, keyring: dict[str, str], *options: str) -> Path:
    """Publish a package of a version, and return the repository."""
    tree, packages = place / version, place / f"packages-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: lavinmq\nVersion: {version}\nArchitecture: amd64\nMaintainer: nobody\n"
        "Description: made up\n"
    )
    packages.mkdir()
    make("dpkg-deb", "--build", tree, packages / f"lavinmq_{version}_amd64.deb")
    make(
        sys.executable, "packaging/repository.py", "--packages", packages, "--output",
        place / "repository", "--key", KEY, "--url", "https://example.com", *options, **keyring,
    )  # fmt: skip
    return place / "repository"


def signed(repository: Path) -> str:
    return (repository / "deb/dists/stable/InRelease").read_text()


def test_indexes_are_also_there_by_their_hash_and_stay(
    tmp_path: Path, keyring: dict[str, str]
) -> None:
    repository = publish(tmp_path, "1", keyring)
    before = (repository / INDEX / "Packages.gz").read_bytes()

    publish(tmp_path, "2", keyring)

    now = (repository / INDEX / "Packages.gz").read_bytes()
    assert b"Version: 2" in (repository / INDEX / "Packages").read_bytes()
    assert now != before
    assert "Acquire-By-Hash: yes" in signed(repository)
    for content in (before, now):
        for kind in ("sha256", "sha512"):
            name = hashlib.new(kind, content).hexdigest()
            kept = repository / INDEX / "by-hash" / kind.upper() / name
            assert kept.read_bytes() == content
    assert hashlib.sha256(now).hexdigest() in signed(repository)
    assert "by-hash" not in re.sub("(?m)^Acquire-By-Hash.*$", "", signed(repository))


def test_origin_and_codename_are_those_that_unattended_upgrades_is_told(
    tmp_path: Path, keyring: dict[str, str]
) -> None:
    page = (ROOT / "docs/installation.md").read_text()
    (origin,) = re.findall(r'`"o=([\w-]+)"` in `Unattended-Upgrade::Origins-Pattern`', page)
    (left_out,) = re.findall(r'Unattended-Upgrade::Package-Blacklist \{ "(.+)"; \};', page)

    repository = publish(tmp_path, "1", keyring)

    assert f"\nOrigin: {origin}\n" in signed(repository)
    listed = (repository / INDEX / "Packages").read_text()
    names = re.findall("^Package: (.+)$", listed, re.MULTILINE)
    assert names and all(re.match(left_out, name) for name in names)
    assert not re.match(left_out, "lavinmq-archive-keyring")  # keys go on coming


def test_an_index_may_be_valid_for_some_days_only(tmp_path: Path, keyring: dict[str, str]) -> None:
    repository = publish(tmp_path, "1", keyring)
    assert "Valid-Until" not in signed(repository)

    publish(tmp_path, "2", keyring, "--valid-days", "30")

    until = re.search("^Valid-Until: (.+)$", signed(repository), re.MULTILINE)
    assert until
    assert 29 < (parsedate_to_datetime(until[1]).timestamp() - time.time()) / 86400 < 31


def test_apt_refuses_an_index_whose_days_are_over(tmp_path: Path, keyring: dict[str, str]) -> None:
    repository = publish(tmp_path, "1", keyring, "--valid-days", "30")
    suite = repository / "deb/dists/stable"
    user = User(tmp_path / "user", repository, repository / "lavinmq.asc")
    now = user.apt("update")
    assert now.returncode == 0, now.stdout

    release = suite / "Release"
    held_back = formatdate(time.time() - 40 * 86400, usegmt=True)
    over = formatdate(time.time() - 10 * 86400, usegmt=True)
    text = re.sub("(?m)^Date: .+$", f"Date: {held_back}", release.read_text())
    release.write_text(re.sub("(?m)^Valid-Until: .+$", f"Valid-Until: {over}", text))
    make("gpg", "--batch", "--yes", "--local-user", KEY, "--clear-sign", "--output",
         suite / "InRelease", release, **keyring)  # fmt: skip
    later = User(tmp_path / "later", repository, repository / "lavinmq.asc")
    looking = ("-o", "Acquire::Check-Date=true", "-o", "Acquire::Check-Valid-Until=true")
    refused = later.apt(*looking, "update")  # as by default

    assert refused.returncode != 0
    assert "is expired" in refused.stdout
