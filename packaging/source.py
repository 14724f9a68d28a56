"""The source package for Debian, `dist/packages/lavinmq_VERSION.dsc`: `python packaging/source.py`.

Three archives go with it: our sources, those of all that is linked in and of what compiles
(vendor/, by freeze/sources.toml), and debian/. Debian's tools make the packages from it without a
network, with the compilers and libraries of Debian: `dpkg-buildpackage -us -uc`. The same commit
makes the same files. Needs dpkg-source.
"""

from __future__ import annotations

import argparse
import gzip
import io
import lzma
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import deb
import release

sys.path.append(str(release.ROOT / "packaging/freeze"))
import fetch

ARCHITECTURES = " ".join(release.RPM_ARCHITECTURES)
LEFT_OUT = ("debian/", "vendor/")


def build(revision: str, output: Path) -> list[Path]:
    """Build the package and return its files. Raises: PackagingError, CalledProcessError."""
    upstream = release.package_version()
    work = release.BUILD / "source"
    shutil.rmtree(work, ignore_errors=True)
    tree = work / f"lavinmq-{upstream}"
    tree.mkdir(parents=True)
    ours = [(name, release.ROOT / name) for name in _tracked()]
    _pack(work / f"lavinmq_{upstream}.orig.tar.xz", tree.name, ours)
    _pack(work / f"lavinmq_{upstream}.orig-vendor.tar.gz", "vendor", _vendored())
    for archive in sorted(work.glob("*.orig*.tar.?z")):
        place = tree / "vendor" if "orig-vendor" in archive.name else tree
        place.mkdir(exist_ok=True)
        release.run("tar", "-xf", archive, "--strip-components=1", cwd=place)
    deb.recipe(tree, f"{upstream}-{revision}", ARCHITECTURES)
    release.run("dpkg-source", "--build", tree.name, cwd=work)
    output.mkdir(parents=True, exist_ok=True)
    return [Path(shutil.copy2(path, output)) for path in sorted(work.glob("lavinmq_*"))]


def _tracked() -> list[str]:
    """Return the names of our files: what git has, and what is not there is in no archive."""
    command = ["git", "ls-files", "-z"]
    try:
        said = subprocess.run(command, cwd=release.ROOT, capture_output=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise release.PackagingError("a source package is made in a clone of git") from error
    names = said.decode().split("\0")
    return [name for name in names if name and not name.startswith(LEFT_OUT)]


def _vendored() -> Iterable[tuple[str, Path]]:
    """Fetch what Debian's libraries are no substitute for, and return its files by name."""
    for source in fetch.sources().values():
        if source.kind != "deb":
            try:
                fetch.fetch(source)
            except fetch.FetchError as error:
                raise release.PackagingError(str(error)) from error
            for name in source.sha256:
                yield name, fetch.DOWNLOADS / name


def _pack(archive: Path, top: str, files: Iterable[tuple[str, Path]]) -> None:
    """Write an archive that is the same for the same files.

    Most of it has been compressed before, by others or as pictures: more effort gains nothing.
    """
    with (
        archive.open("wb") as file,
        (
            gzip.GzipFile("", "wb", 1, file, mtime=0)
            if archive.suffix == ".gz"
            else lzma.open(file, "wb", preset=0)
        ) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as written,
    ):
        for name, path in sorted(files):
            member = tarfile.TarInfo(f"{top}/{name}")
            member.mtime = release.timestamp()
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                written.addfile(member)
                continue
            content = path.read_bytes()
            member.size = len(content)
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            written.addfile(member, io.BytesIO(content))


def main() -> int:
    """Build the package; the exit status."""
    parser = argparse.ArgumentParser(description="Build the source package for Debian.")
    parser.add_argument("--revision", default="1", help="number behind the version")
    parser.add_argument("--output", type=Path, default=release.PACKAGES, metavar="DIR")
    options = parser.parse_args()
    return release.reported(lambda: build(options.revision, options.output))


if __name__ == "__main__":
    sys.exit(main())
