"""Signed repositories for apt and dnf, as static files: `python packaging/repository.py --key ID`.

Takes the packages of dist/packages, makes dist/repository/deb and dist/repository/rpm, and the
files that users install to trust and find them. Older packages that are in a repository stay. The
key is in the keyring of gpg (GNUPGHOME); its public half goes with the repository. Needs
apt-ftparchive, createrepo_c, rpmsign and gpg.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import release

SUITE = "stable"
COMPONENT = "main"
ORIGIN = "lavinmq"
KEY_NAME = "lavinmq.asc"
BY_HASH = "by-hash"
DAY_S = 86400
APT_KEYRING = "/etc/apt/keyrings/lavinmq.asc"


class Key:
    """A key of gpg that signs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def public(self) -> bytes:
        """Return the public half, armoured. Raises: PackagingError for a key that is not there."""
        command = ["gpg", "--batch", "--armor", "--export", self.name]
        exported = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        if not exported:
            raise release.PackagingError(f"gpg has no key {self.name!r}")
        return exported

    def sign(self, source: Path, target: Path, *, clear: bool = False) -> None:
        """Write a signature, or with `clear` the signed text."""
        kind = ["--clear-sign"] if clear else ["--armor", "--detach-sign"]
        release.run(
            "gpg", "--batch", "--yes", "--local-user", self.name, *kind, "--output", target, source
        )


def build(packages: Path, output: Path, key: Key, url: str, valid_days: int = 0) -> Path:
    """Build both repositories. Raises: PackagingError, CalledProcessError.

    Args: valid_days: after which apt refuses the index unless it is made anew; 0: never.
    """
    public = key.public()
    debs, rpms = sorted(packages.glob("*.deb")), sorted(packages.glob("*.rpm"))
    if not debs and not rpms:
        raise release.PackagingError(f"no packages in {packages}: make deb rpm")
    output.mkdir(parents=True, exist_ok=True)
    (output / KEY_NAME).write_bytes(public)
    if debs:
        _apt(debs, output / "deb", key, valid_days)
        (output / "lavinmq.sources").write_text(
            f"Types: deb\nURIs: {url}/deb\nSuites: {SUITE}\nComponents: {COMPONENT}\n"
            f"Signed-By: {APT_KEYRING}\n"
        )
    if rpms:
        _dnf(rpms, output / "rpm", key)
        (output / "lavinmq.repo").write_text(
            f"[lavinmq]\nname=LavinMQ\nbaseurl={url}/rpm\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=1\n"
            f"gpgkey={url}/{KEY_NAME}\n"
        )
    return output


def _apt(debs: list[Path], root: Path, key: Key, valid_days: int) -> None:
    pool = root / "pool" / COMPONENT
    pool.mkdir(parents=True, exist_ok=True)
    for deb in debs:
        shutil.copy2(deb, pool)
    suite = root / "dists" / SUITE
    for path in suite.rglob("*"):
        # Who has read the index of a moment ago still finds what it names.
        if path.is_file() and BY_HASH not in path.parts:
            path.unlink()
    architectures = sorted({path.stem.rsplit("_", 1)[1] for path in pool.glob("*.deb")})
    for architecture in architectures:
        index = suite / COMPONENT / f"binary-{architecture}" / "Packages"
        index.parent.mkdir(parents=True, exist_ok=True)
        place = f"pool/{COMPONENT}"
        listed = _output("apt-ftparchive", "--arch", architecture, "packages", place, cwd=root)
        index.write_bytes(listed)
        index.with_suffix(".gz").write_bytes(gzip.compress(listed, mtime=release.timestamp()))
        for path in (index, index.with_suffix(".gz")):
            _keep_by_hash(path)
    facts = {
        "Origin": ORIGIN, "Label": ORIGIN, "Suite": SUITE, "Codename": SUITE,
        "Components": COMPONENT, "Architectures": " ".join(architectures), "Acquire-By-Hash": "yes",
    }  # fmt: skip
    if valid_days:
        facts["ValidTime"] = str(valid_days * DAY_S)  # it writes Valid-Until
    options = [
        word
        for name, value in facts.items()
        for word in ("-o", f"APT::FTPArchive::Release::{name}={value}")
    ]
    place = f"dists/{SUITE}"
    release_file = suite / "Release"
    release_file.write_bytes(_output("apt-ftparchive", *options, "release", place, cwd=root))
    key.sign(release_file, suite / "InRelease", clear=True)
    key.sign(release_file, suite / "Release.gpg")


def _keep_by_hash(index: Path) -> None:
    """Have an index also by names that say what is in it; apt takes the strongest that is told."""
    content = index.read_bytes()
    for name in ("SHA256", "SHA512"):
        place = index.parent / BY_HASH / name / hashlib.new(name, content).hexdigest()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)


def _dnf(rpms: list[Path], root: Path, key: Key) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for rpm in rpms:
        signed = Path(shutil.copy2(rpm, root))
        # Debian's rpm looks for gpg in a place of its own.
        defines = ("--define", f"__gpg {shutil.which('gpg')}", "--define", f"_gpg_name {key.name}")
        release.run("rpmsign", *defines, "--addsign", signed)
    release.run("createrepo_c", "--quiet", "--general-compress-type", "gz", root)
    key.sign(root / "repodata/repomd.xml", root / "repodata/repomd.xml.asc")


def _output(*command: str | Path, cwd: Path) -> bytes:
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, check=True).stdout


def main() -> int:
    """Build the repositories; the exit status."""
    parser = argparse.ArgumentParser(description="Make signed repositories for apt and dnf.")
    parser.add_argument("--key", required=True, help="name of the key in gpg's keyring")
    parser.add_argument("--url", required=True, help="where the folder will be found by users")
    parser.add_argument("--packages", type=Path, default=release.PACKAGES, metavar="DIR")
    parser.add_argument("--output", type=Path, default=release.DIST / "repository", metavar="DIR")
    parser.add_argument(
        "--valid-days", type=int, default=0, metavar="N", help="apt refuses the index after N days"
    )
    options = parser.parse_args()
    url = options.url.rstrip("/")
    return release.reported(
        lambda: build(options.packages, options.output, Key(options.key), url, options.valid_days)
    )


if __name__ == "__main__":
    sys.exit(main())
