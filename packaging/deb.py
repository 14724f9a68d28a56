"""The Debian package, `dist/packages/lavinmq_VERSION_ARCH.deb`: `python packaging/deb.py`.

debian/ says what belongs to Debian; files come from ``install.py``. Built in a directory of its own
below build/packages, and checked with lintian where that is installed (`--no-check`: not).
"""

from __future__ import annotations

import argparse
import shutil
import sys
from email.utils import formatdate
from pathlib import Path

import install
import release


def build(architecture: str, revision: str, output: Path, *, check: bool) -> Path:
    """Build the package and return its path. Raises: PackagingError, CalledProcessError."""
    described = release.executable(architecture)
    work = release.BUILD / "deb/lavinmq"
    shutil.rmtree(work.parent, ignore_errors=True)
    install.install(work / "root", install.LAYOUTS["deb"], architecture)
    shutil.copytree(release.ROOT / "debian", work / "debian")
    _fill(work / "debian/control", MAINTAINER=release.MAINTAINER, ARCHITECTURE=architecture)
    _fill(work / "debian/rules", GLIBC=described["glibc"])
    version = f"{release.package_version()}-{revision}"
    (work / "debian/changelog").write_text(changelog(f"{release.EPOCH}:{version}"))
    release.run(
        "dpkg-buildpackage", "--build=binary", "--unsigned-changes", "--no-sign",
        f"--host-arch={architecture}", cwd=work,
    )  # fmt: skip
    made = work.parent / f"lavinmq_{version}_{architecture}.deb"
    output.mkdir(parents=True, exist_ok=True)
    package = Path(shutil.copy2(made, output))
    if check:
        _lint(package)
    return package


def changelog(version: str) -> str:
    """Return Debian's changelog; that of the broker is the other one in the package."""
    return (
        f"lavinmq ({version}) stable; urgency=medium\n\n"
        f"  * Release {release.version()}; what is new: /usr/share/doc/lavinmq/changelog.gz\n\n"
        f" -- {release.MAINTAINER}  {formatdate(release.timestamp())}\n"
    )


def _fill(path: Path, **values: str) -> None:
    text = path.read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    path.write_text(text)


def _lint(package: Path) -> None:
    if not shutil.which("lintian"):
        print("lintian is not installed: the package has not been checked", file=sys.stderr)
        return
    release.run("lintian", "--fail-on", "error,warning", package)


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
