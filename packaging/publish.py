"""Gathers what a release publishes as files, with checksums, their signature, and notes.

`python packaging/publish.py --key ID`, run by `make publish`, makes dist/release/VERSION: for each
architecture an archive with the executable, its tools and its licences, debug symbols, the bill of
materials and what it was trained by; the packages of dist/packages that are of this version;
NOTES.md, the version's section of the changelog and the digest of the image; SHA256SUMS, and its
signature SHA256SUMS.asc. Whoever downloads a file checks the signature with lavinmq.asc, then the
file with the checksums.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import re
import shutil
import sys
import tarfile
from pathlib import Path

import keyring
import release
import repository

sys.path.append(str(release.ROOT / "packaging/freeze"))
import profiles

SUMS = "SHA256SUMS"
NOTES = "NOTES.md"
INSIDE = re.compile(r"\[([^]\[]+)\]\((?![\w+.-]+:)[^)]*\)")
"""A link of the changelog to another file of the sources: what it says is group 1."""
BESIDE = {"lavinmq.debug": "debug", "lavinmq.cdx.json": "cdx.json", profiles.NAME: "profile.tar.xz"}
"""Files beside the executable, and how their names end when they are published."""


def notes(version: str) -> str:
    """Return the section of the changelog about a version. Raises: PackagingError.

    Who reads it has no sources beside it: links to files of them become their text.
    """
    changelog = (release.ROOT / "CHANGELOG.md").read_text()
    if re.search(r"^## \[Unreleased\]\n++(?!## |\Z)", changelog, re.MULTILINE):
        raise release.PackagingError(
            "CHANGELOG.md has changes below '## [Unreleased]': they are of a version to come"
        )
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    found = re.search(rf"{heading}\n+(.+?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    if not found:
        raise release.PackagingError(f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'")
    text = INSIDE.sub(r"\1", found[1].strip())
    return f"# lavinmq {version}\n\n{text}\n"


def build(architectures: list[str], packages: Path, output: Path, key: str) -> Path:
    """Gather, sum up and sign; the directory is made anew.

    Raises: PackagingError, CalledProcessError, also for what is missing or of other sources.
    """
    version = release.version()
    text, public = notes(version), keyring.exported(key)
    made = _packages(packages, version)
    if not made:
        raise release.PackagingError(f"no packages of {version} in {packages}: make deb rpm")
    release.refuse_rehearsed(made)
    place = output / version
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    (place / NOTES).write_text(text + _image(release.DIST / "image-index", version))
    (place / repository.KEY_NAME).write_bytes(public)
    for architecture in architectures:
        _executable(architecture, version, place)
    for path in made:
        shutil.copy2(path, place)
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(place.iterdir())
        if path.name != repository.KEY_NAME
    ]
    (place / SUMS).write_text("".join(lines))
    repository.Key(key).sign(place / SUMS, place / f"{SUMS}.asc")
    return place


def _image(index: Path, version: str) -> str:
    """Return which container image is of this release; nothing where none has been made.

    Raises: PackagingError for one of another version.
    """
    if not (index / "index.json").exists():
        return ""
    (named,) = json.loads((index / "index.json").read_text())["manifests"]
    tag = named["annotations"]["org.opencontainers.image.ref.name"]
    if tag != version:
        raise release.PackagingError(f"{index} is of version {tag}: make image ARGS=--index")
    return f"\nThe container image of this release is `{named['digest']}`.\n"


def _executable(architecture: str, version: str, place: Path) -> None:
    """Add the executable of an architecture, and what tells about it. Raises: PackagingError."""
    release.released(architecture)
    built, name = release.place(architecture), f"lavinmq-{version}-{architecture}"
    _pack(built, name, place / f"{name}.tar.xz")
    for beside, ending in BESIDE.items():
        if (built / beside).exists():
            shutil.copy2(built / beside, place / f"{name}.{ending}")
        else:
            target = "sbom" if beside.endswith("cdx.json") else "binary"
            raise release.PackagingError(f"{built / beside} is missing: make {target}")


def _pack(built: Path, name: str, archive: Path) -> None:
    """Write an archive of the executable, links to it, its description and licences."""
    names = ["lavinmq", "lavinmq.json", "lavinmqctl", "lavinmqperf"]
    licences = sorted(path for path in (built / "licenses").rglob("*") if path.is_file())
    names += [str(path.relative_to(built)) for path in licences]
    with (
        lzma.open(archive, "wb") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as files,
    ):
        for each in names:
            path = built / each
            member = tarfile.TarInfo(f"{name}/{each}")
            member.mtime = release.timestamp()
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                files.addfile(member)
                continue
            content = path.read_bytes()
            member.size, member.mode = len(content), 0o755 if each == "lavinmq" else 0o644
            files.addfile(member, io.BytesIO(content))


def _packages(packages: Path, version: str) -> list[Path]:
    """Return the packages that are of this version, wheels and source archives among them."""
    spelled = {version, release.package_version()}
    # lavinmq_1:0.2.0-1_amd64.deb has no epoch in its name; RPMs, wheels and sources have "-".
    named = re.compile(rf"^lavinmq[\w.-]*?[_-]({'|'.join(map(re.escape, spelled))})[-_.][^/]+$")
    return sorted(path for path in packages.glob("lavinmq*") if named.match(path.name))


def main() -> int:
    """Read the command line; the exit status."""
    parser = argparse.ArgumentParser(description="Gather, sum up and sign what a release publishes")
    parser.add_argument("--key", required=True, help="the key of gpg that signs the checksums")
    parser.add_argument(
        "--arch", action="append", choices=release.RPM_ARCHITECTURES, help="processor; repeated"
    )
    parser.add_argument("--packages", type=Path, default=release.PACKAGES)
    parser.add_argument("--output", type=Path, default=release.DIST / "release")
    options = parser.parse_args()
    architectures = options.arch or [release.HOST]
    return release.reported(
        lambda: build(architectures, options.packages, options.output, options.key)
    )


if __name__ == "__main__":
    sys.exit(main())
