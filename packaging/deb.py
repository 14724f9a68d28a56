"""The Debian package, `dist/packages/lavinmq_VERSION_ARCH.deb`: `python packaging/deb.py`.

debian/ says what belongs to Debian; files come from ``install.py``. Beside it is made that of the
debug symbols, lavinmq-dbgsym. Built in a directory of its own below build/packages, and checked
with lintian where that is installed (`--no-check`: not).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from email.utils import formatdate
from pathlib import Path

import install
import release


def build(architecture: str, revision: str, output: Path, *, check: bool) -> list[Path]:
    """Build the package, and that of its debug symbols, and return their paths.

    Raises: PackagingError, CalledProcessError.
    """
    version = f"{release.package_version()}-{release.numbered(revision, architecture)}"
    work = release.BUILD / "deb/lavinmq"
    shutil.rmtree(work.parent, ignore_errors=True)
    install.install(work / "root", install.LAYOUTS["deb"], architecture)
    (work / "dist").mkdir()
    for path in (release.debug_file(architecture), release.place(architecture) / "lavinmq.json"):
        shutil.copy2(path, work / "dist")
    recipe(work, version, architecture)
    release.run(
        "dpkg-buildpackage", "--build=binary", "--unsigned-changes", "--no-sign",
        # What compiles from the sources is not needed.
        "--no-check-builddeps", f"--host-arch={architecture}", cwd=work,
    )  # fmt: skip
    names = ("lavinmq", "lavinmq-dbgsym")
    made = [work.parent / f"{name}_{version}_{architecture}.deb" for name in names]
    output.mkdir(parents=True, exist_ok=True)
    packages = [Path(shutil.copy2(path, output)) for path in made]
    if check:
        release.checked("lintian", "--fail-on", "error,warning", *packages)
    return packages


def recipe(place: Path, version: str, architectures: str) -> None:
    """Put debian/ into a directory, with what depends on the version. Raises: PackagingError."""
    shutil.copytree(release.ROOT / "debian", place / "debian")
    control = place / "debian/control"
    text = control.read_text().replace("@MAINTAINER@", release.MAINTAINER)
    control.write_text(text.replace("@ARCHITECTURE@", architectures))
    (place / "debian/changelog").write_text(changelog(f"{release.EPOCH}:{version}"))


def changelog(version: str) -> str:
    """Return Debian's changelog; that of the broker is the other one in the package."""
    return (
        f"lavinmq ({version}) stable; urgency=medium\n\n"
        f"  * Release {release.version()}; what is new: /usr/share/doc/lavinmq/changelog.gz\n\n"
        f" -- {release.MAINTAINER}  {formatdate(release.timestamp())}\n"
    )


def main() -> int:
    """Build the package; the exit status."""
    parser = argparse.ArgumentParser(description="Build the Debian package.")
    release.add_architecture(parser)
    parser.add_argument("--revision", default="1", help="number behind the version")
    parser.add_argument("--output", type=Path, default=release.PACKAGES, metavar="DIR")
    parser.add_argument("--no-check", action="store_true", help="do not run lintian")
    options = parser.parse_args()
    return release.reported(
        lambda: build(options.arch, options.revision, options.output, check=not options.no_check)
    )


if __name__ == "__main__":
    sys.exit(main())
