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
from collections.abc import Sequence
from pathlib import Path

import keyring
import release

SUITE = "stable"
COMPONENT = "main"
ORIGIN = "lavinmq"
KEY_NAME = "lavinmq.asc"
BY_HASH = "by-hash"
ANY = "all"
"""The architecture of packages that every processor's index lists."""
DAY_S = 86400


class Key:
    """A key of gpg that signs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def sign(self, source: Path, target: Path, *, clear: bool = False) -> None:
        """Write a signature, or with `clear` the signed text."""
        kind = ["--clear-sign"] if clear else ["--armor", "--detach-sign"]
        release.run(
            "gpg", "--batch", "--yes", "--local-user", self.name, *kind, "--output", target, source
        )


def build(
    packages: Path, output: Path, key: Key, trusted: Sequence[str], url: str, valid_days: int = 0
) -> Path:
    """Build both repositories. Raises: PackagingError, CalledProcessError.

    Args: trusted: names of further keys that new users are to trust;
        valid_days: after which apt refuses the index unless it is made anew; 0: never.
    """
    public = keyring.exported(key.name, *trusted)
    debs, rpms = sorted(packages.glob("*.deb")), sorted(packages.glob("*.rpm"))
    if not debs and not rpms:
        raise release.PackagingError(f"no packages in {packages}: make deb rpm")
    release.refuse_rehearsed([*debs, *rpms, *output.rglob("*.deb"), *output.rglob("*.rpm")])
    output.mkdir(parents=True, exist_ok=True)
    (output / KEY_NAME).write_bytes(public)
    if debs:
        _apt(debs, output / "deb", key, valid_days)
        (output / "lavinmq.sources").write_text(
            f"Types: deb\nURIs: {url}/deb\nSuites: {SUITE}\nComponents: {COMPONENT}\n"
            f"Signed-By: {keyring.APT_KEYRING}\n"
        )
    if rpms:
        _dnf(rpms, output / "rpm", key)
        (output / "lavinmq.repo").write_text(
            f"[lavinmq]\nname=LavinMQ\nbaseurl={url}/rpm\nenabled=1\ngpgcheck=1\nrepo_gpgcheck=1\n"
            f"gpgkey=file://{keyring.DNF_KEYRING}\n"
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
    architectures = sorted({path.stem.rsplit("_", 1)[1] for path in pool.glob("*.deb")} - {ANY})
    if not architectures:
        raise release.PackagingError(f"no package of lavinmq in {pool}: make deb")
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
    parser.add_argument(
        "--next-key", dest="trusted", action="append", default=[], metavar="NAME",
        help="a further key that new users are to trust, as it will sign one day",
    )  # fmt: skip
    options = parser.parse_args()
    url = options.url.rstrip("/")
    return release.reported(
        lambda: build(
            options.packages,
            options.output,
            Key(options.key),
            options.trusted,
            url,
            options.valid_days,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
