"""The RPM package, `dist/packages/lavinmq-VERSION-RELEASE.ARCH.rpm`: `python packaging/rpm.py`.

rpm/lavinmq.spec says what belongs to RPM; files come from ``install.py``. Needs rpmbuild, which
Debian has too; checked with rpmlint where that is installed (`--no-check`: not).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import install
import release

RECIPE = release.ROOT / "rpm"


def build(architecture: str, number: str, output: Path, *, check: bool) -> Path:
    """Build the package and return its path. Raises: PackagingError, CalledProcessError."""
    machine = release.RPM_ARCHITECTURES[architecture]
    work = release.BUILD / "rpm"
    shutil.rmtree(work, ignore_errors=True)
    tree = work / "tree"
    install.install(tree, install.LAYOUTS["rpm"], architecture)
    version = release.package_version()
    values = {
        "_topdir": work,
        "tree": tree,
        "shipped_epoch": release.EPOCH,
        "shipped_version": version,
        "shipped_release": number,
        "shipped_date": time.strftime("%a %b %d %Y", time.gmtime(release.timestamp())),
        "packager": release.MAINTAINER,
        "use_source_date_epoch_as_buildtime": 1,
        "clamp_mtime_to_source_date_epoch": 1,
        "_buildhost": "localhost",
    }
    defines = [word for name, value in values.items() for word in ("--define", f"{name} {value}")]
    spec = RECIPE / "lavinmq.spec"
    release.run("rpmbuild", "-bb", "--quiet", "--target", f"{machine}-linux", *defines, spec)
    made = work / f"RPMS/{machine}/lavinmq-{version}-{number}.{machine}.rpm"
    output.mkdir(parents=True, exist_ok=True)
    package = Path(shutil.copy2(made, output))
    if check:
        _lint(package)
    return package


def _lint(package: Path) -> None:
    if not shutil.which("rpmlint"):
        print("rpmlint is not installed: the package has not been checked", file=sys.stderr)
        return
    release.run("rpmlint", "--strict", "--config", RECIPE / "rpmlint.toml", package)


def main() -> int:
    """Build the package; the exit status."""
    parser = argparse.ArgumentParser(description="Build the RPM package.")
    release.add_architecture(parser)
    parser.add_argument("--release", default="1", help="number behind the version")
    parser.add_argument("--output", type=Path, default=release.PACKAGES, metavar="DIR")
    parser.add_argument("--no-check", action="store_true", help="do not run rpmlint")
    options = parser.parse_args()
    return release.reported(
        lambda: build(options.arch, options.release, options.output, check=not options.no_check)
    )


if __name__ == "__main__":
    sys.exit(main())
