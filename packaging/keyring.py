"""The packages of the keys, `lavinmq-archive-keyring`, deb and RPM: `python packaging/keyring.py`.

It holds the public halves of all keys that sign, or soon will, at the place where users have put
the first one: who has it installed trusts the next key before it signs anything. The version is
the day; `--key` is repeated for each key. Needs gpg, dpkg-deb and rpmbuild.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import shutil
import subprocess
import sys
import time
from email.utils import formatdate
from pathlib import Path

import release

NAME = "lavinmq-archive-keyring"
APT_KEYRING = f"/usr/share/keyrings/{NAME}.asc"
DNF_KEYRING = "/etc/pki/rpm-gpg/RPM-GPG-KEY-lavinmq"
SPEC = release.ROOT / f"rpm/{NAME}.spec"
CONTROL = """\
Package: {name}
Version: {version}
Architecture: all
Maintainer: {maintainer}
Installed-Size: {size}
Section: misc
Priority: optional
Multi-Arch: foreign
Description: keys that sign the repository of lavinmq
 The keys that apt checks the repository of lavinmq by. When a key is about to
 be replaced, this package brings the next one, before it signs anything.
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: lavinmq

Files: *
Copyright: 2026 the lavinmq authors
License: Apache-2.0
 On Debian systems the text is in /usr/share/common-licenses/Apache-2.0.
"""


def exported(*names: str) -> bytes:
    """Return the public halves of keys, armoured. Raises: PackagingError for one not there."""
    found = []
    for name in names:
        command = ["gpg", "--batch", "--armor", "--export", name]
        found.append(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        if not found[-1]:
            raise release.PackagingError(f"gpg has no key {name!r}")
    # One block each, which apt and rpm both read.
    return b"".join(found)


def fingerprint(name: str) -> str:
    """Return the fingerprint of a key that gpg has and that signs. Raises: PackagingError."""
    command = ["gpg", "--batch", "--with-colons", "--list-secret-keys", name]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line.split(":")[9] for line in listed.stdout.splitlines() if line.startswith("fpr:")]
    if not found:
        raise release.PackagingError(f"gpg has no key '{name}' that signs")
    return found[0]


def build(keys: list[str], version: str, output: Path, *, check: bool) -> list[Path]:
    """Build both packages and return their paths. Raises: PackagingError, CalledProcessError."""
    work = release.BUILD / "keyring"
    shutil.rmtree(work, ignore_errors=True)
    output.mkdir(parents=True, exist_ok=True)
    content = exported(*keys)
    made = [_deb(content, version, work / "deb"), _rpm(content, version, work / "rpm")]
    packages = [Path(shutil.copy2(path, output)) for path in made]
    if check:
        deb, rpm = packages
        release.checked("lintian", "--fail-on", "error,warning", deb)
        release.checked("rpmlint", "--strict", "--config", release.RPMLINT, rpm)
    return packages


def _deb(content: bytes, version: str, tree: Path) -> Path:
    documents = f"usr/share/doc/{NAME}"
    said = (
        f"{NAME} ({version}) stable; urgency=medium\n\n  * The keys of this day.\n\n"
        f" -- {release.MAINTAINER}  {formatdate(release.timestamp())}\n"
    )
    files = {
        APT_KEYRING.lstrip("/"): content,
        f"{documents}/copyright": COPYRIGHT.encode(),
        f"{documents}/changelog.gz": gzip.compress(said.encode(), 9, mtime=0),
    }
    for name, data in files.items():
        _write(tree / name, data)
    control = CONTROL.format(
        name=NAME, version=version, maintainer=release.MAINTAINER,
        size=sum(-(-len(data) // 1024) for data in files.values()),
    )  # fmt: skip
    sums = [f"{hashlib.md5(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())]
    _write(tree / "DEBIAN/control", control.encode())
    _write(tree / "DEBIAN/md5sums", "".join(sums).encode())
    package = tree.parent / f"{NAME}_{version}_all.deb"
    release.run("dpkg-deb", "-Zxz", "--root-owner-group", "--build", tree, package)
    return package


def _write(path: Path, data: bytes) -> None:
    for parent in reversed(path.parents):
        if not parent.exists():
            parent.mkdir()
            parent.chmod(0o755)
    path.write_bytes(data)
    path.chmod(0o644)


def _rpm(content: bytes, version: str, work: Path) -> Path:
    _write(work / "keys.asc", content)
    defines = release.rpm_defines(work, version, "1") | {
        "keys": str(work / "keys.asc"),
        "place": DNF_KEYRING,
    }
    words = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    release.run("rpmbuild", "-bb", "--quiet", *words, SPEC)
    return work / f"RPMS/noarch/{NAME}-{version}-1.noarch.rpm"


def main() -> int:
    """Build the packages; the exit status."""
    parser = argparse.ArgumentParser(description="Make the package of the keys of the repository.")
    parser.add_argument(
        "--key", dest="keys", action="append", required=True, metavar="NAME",
        help="a key of gpg that signs the repository, or will; may be repeated",
    )  # fmt: skip
    day = time.strftime("%Y.%m.%d", time.gmtime())
    parser.add_argument("--version", default=day, help="of the package; the day if not said")
    parser.add_argument("--output", type=Path, default=release.PACKAGES, metavar="DIR")
    parser.add_argument("--no-check", action="store_true", help="run neither lintian nor rpmlint")
    options = parser.parse_args()
    return release.reported(
        lambda: build(options.keys, options.version, options.output, check=not options.no_check)
    )


if __name__ == "__main__":
    sys.exit(main())
