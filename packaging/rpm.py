"""The RPM package, `dist/packages/lavinmq-VERSION-RELEASE.ARCH.rpm`: `python packaging/rpm.py`.

rpm/lavinmq.spec says what belongs to RPM; files come from ``install.py``. Needs rpmbuild, which
Debian has too; checked with rpmlint where that is installed (`--no-check`: not). Beside it is made
that of the debug symbols, lavinmq-debuginfo.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import install
import release

RECIPE = release.ROOT / "rpm"


def build(architecture: str, number: str, output: Path, *, check: bool) -> list[Path]:
    """Build the package, and that of its debug symbols, and return their paths.

    Raises: PackagingError, CalledProcessError.
    """
    number = release.numbered(number, architecture)
    machine = release.RPM_ARCHITECTURES[architecture]
    work = release.BUILD / "rpm"
    shutil.rmtree(work, ignore_errors=True)
    tree = work / "tree"
    install.install(tree, install.LAYOUTS["rpm"], architecture)
    version = release.package_version()
    build_id = release.build_id(tree / "usr/bin/lavinmq")
    values = release.rpm_defines(work, version, number) | {
        "tree": str(tree),
        "symbols": str(release.debug_file(architecture)),
        "symbols_place": f"{build_id[:2]}/{build_id[2:]}.debug",
        "shipped_epoch": str(release.EPOCH),
    }
    defines = [word for name, value in values.items() for word in ("--define", f"{name} {value}")]
    spec = RECIPE / "lavinmq.spec"
    release.run("rpmbuild", "-bb", "--quiet", "--target", f"{machine}-linux", *defines, spec)
    names = ("lavinmq", "lavinmq-debuginfo")
    made = [work / f"RPMS/{machine}/{name}-{version}-{number}.{machine}.rpm" for name in names]
    output.mkdir(parents=True, exist_ok=True)
    packages = [Path(shutil.copy2(path, output)) for path in made]
    if check:
        release.checked("rpmlint", "--strict", "--config", release.RPMLINT, *packages)
    return packages


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
