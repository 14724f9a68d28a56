"""A key is replaced by another, and who has the package of the keys trusts it before it signs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.conftest import make

TOOLS = ("apt-ftparchive", "apt-get", "createrepo_c", "dpkg-deb", "gpg", "rpmbuild", "rpmkeys")
MISSING = [name for name in TOOLS if not shutil.which(name)]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
OLD, NEW = "old@example.com", "new@example.com"
APT_KEYRING = "usr/share/keyrings/lavinmq-archive-keyring.asc"
DNF_KEYRING = "etc/pki/rpm-gpg/RPM-GPG-KEY-lavinmq"


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment in which gpg has both keys."""
    directory = tmp_path_factory.mktemp("gnupg")
    directory.chmod(0o700)
    environment = {"GNUPGHOME": str(directory)}
    for name in (OLD, NEW):
        make("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", name,
             "rsa3072", "sign", "never", **environment)  # fmt: skip
    yield environment
    subprocess.run(["gpgconf", "--kill", "all"], env={**os.environ, **environment}, check=False)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory, gpg: dict[str, str]) -> Path:
    """A directory with the packages of both keys, and one of a broker that is made up."""
    directory = tmp_path_factory.mktemp("packages")
    (directory / "tree/DEBIAN").mkdir(parents=True)
    (directory / "tree/DEBIAN/control").write_text(
        "Package: lavinmq\nVersion: 1\nArchitecture: amd64\nMaintainer: nobody\n"
        "Description: made up\n"
    )
    made = directory / "made"
    made.mkdir()
    make("dpkg-deb", "--build", directory / "tree", made / "lavinmq_1_amd64.deb")
    said = make(
        sys.executable, "packaging/keyring.py", "--key", OLD, "--key", NEW, "--output", made, **gpg
    )
    assert "E: " not in said and "W: " not in said
    return made


def publish(packages: Path, place: Path, key: str, gpg: dict[str, str], *options: str) -> Path:
    make(
        sys.executable, "packaging/repository.py", "--packages", packages, "--output", place,
        "--key", key, "--url", f"file://{place}", *options, **gpg,
    )  # fmt: skip
    return place


class User:
    """apt of somebody who trusts the keys of one file, in a directory of its own."""

    def __init__(self, place: Path, repository: Path, keyring: Path) -> None:
        self._place = place
        (place / "lists/partial").mkdir(parents=True)
        (place / "cache/archives/partial").mkdir(parents=True)
        (place / "apt.sources").write_text(
            f"Types: deb\nURIs: file://{repository}/deb\nSuites: stable\nComponents: main\n"
            f"Signed-By: {keyring}\n"
        )

    def apt(self, *words: str) -> subprocess.CompletedProcess[str]:
        options = {
            "Dir::Etc::sourcelist": self._place / "apt.sources", "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self._place / "lists", "Dir::Cache": self._place / "cache",
            "Dir::State::status": "/dev/null", "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64", "APT::Architectures": "amd64",
        }  # fmt: skip
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        return subprocess.run(
            ["apt-get", *given, *words], cwd=self._place, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip


def test_apt_goes_on_with_the_next_key_for_who_has_the_package(
    tmp_path: Path, packages: Path, gpg: dict[str, str]
) -> None:
    repository = publish(packages, tmp_path / "repository", OLD, gpg)
    old_alone = tmp_path / "old.asc"
    shutil.copy(repository / "lavinmq.asc", old_alone)
    before = User(tmp_path / "before", repository, old_alone)
    updated = before.apt("update")
    assert updated.returncode == 0, updated.stdout
    fetched = before.apt("download", "lavinmq-archive-keyring")
    assert fetched.returncode == 0, fetched.stdout
    (package,) = (tmp_path / "before").glob("*.deb")
    make("dpkg-deb", "--extract", package, tmp_path / "installed")

    publish(packages, repository, NEW, gpg)

    refused = before.apt("update")
    assert "NO_PUBKEY" in refused.stdout
    after = User(tmp_path / "after", repository, tmp_path / "installed" / APT_KEYRING)
    accepted = after.apt("update")
    assert accepted.returncode == 0 and "W: " not in accepted.stdout, accepted.stdout


def test_rpm_goes_on_with_the_next_key_for_who_has_the_package(
    tmp_path: Path, packages: Path, gpg: dict[str, str]
) -> None:
    rpm = next(packages.glob("*.rpm"))
    database = ("--dbpath", str(tmp_path / "rpmdb"))
    make("rpm", "--root", tmp_path / "root", "--nosignature", "--install", "--nodeps", rpm)
    repository = publish(packages, tmp_path / "repository", NEW, gpg)
    signed = next((repository / "rpm").glob("*.rpm"))
    check = ("rpmkeys", *database, "--checksig", "--define", "_pkgverify_level signature", signed)
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0

    make("rpmkeys", *database, "--import", tmp_path / "root" / DNF_KEYRING)

    assert "signatures OK" in make(*check)


def test_new_users_get_the_next_key_with_the_first(
    tmp_path: Path, packages: Path, gpg: dict[str, str]
) -> None:
    repository = publish(packages, tmp_path / "repository", OLD, gpg, "--next-key", NEW)

    listed = make("gpg", "--show-keys", repository / "lavinmq.asc", **gpg)

    assert OLD in listed and NEW in listed
    assert f"Signed-By: /{APT_KEYRING}" in (repository / "lavinmq.sources").read_text()
    assert f"gpgkey=file:///{DNF_KEYRING}" in (repository / "lavinmq.repo").read_text()
