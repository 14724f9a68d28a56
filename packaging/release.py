"""Facts of a release that all packages say: version, date, architecture.

The version is that of `lavinmq/__init__.py`, in the spelling of the kind of package; the date is
SOURCE_DATE_EPOCH, else that of the last commit, so that builds can be repeated. Architectures have
Debian's names, here and in dist/lavinmq.json. What others get is made of the release form alone;
with REHEARSAL=1 of any executable, and marked by its name.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "freeze"))
import fetch

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PACKAGES = DIST / "packages"
BUILD = Path(os.environ.get("PACKAGING_BUILD_DIR", ROOT / "build/packages"))
RPM_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""What RPM, and the kernel, call an architecture."""
HOST = {rpm: debian for debian, rpm in RPM_ARCHITECTURES.items()}.get(platform.machine(), "")
EPOCH = 1
"""What comes before the version of a package, and never goes back: by it ours is newer than any of
the original, which has none (decision record 0027)."""
REHEARSED = "rehearsal"
"""What names what nobody is to get; "~" before it in a number: any other package is newer."""
RPMLINT = ROOT / "rpm/rpmlint.toml"
MAINTAINER = os.environ.get("MAINTAINER", "The lavinmq maintainers <maintainers@lavinmq.invalid>")


class PackagingError(Exception):
    """A package cannot be made; the text says what to do."""


def version() -> str:
    """Return the version of the sources, as Python spells it."""
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "lavinmq/__init__.py").read_text(), re.M)
    if not found:
        raise PackagingError("no __version__ in lavinmq/__init__.py")
    return found[1]


def package_version() -> str:
    """Return the version for deb and rpm: 1.0.0rc1 is 1.0.0~rc1, which sorts before 1.0.0."""
    return re.sub(r"\.?(a|b|rc|dev)(\d+)$", r"~\1\2", version())


def place(architecture: str) -> Path:
    """Return the directory that `make binary` leaves the executable of an architecture in."""
    return DIST if architecture == HOST else DIST / architecture


def debug_file(architecture: str) -> Path:
    """Return the file with lines for debuggers. Raises: PackagingError if it is not there."""
    path = place(architecture) / "lavinmq.debug"
    if not path.exists():
        raise PackagingError(f"{path.relative_to(ROOT)} is missing: make binary")
    return path


def build_id(path: Path) -> str:
    """Return the name by which debuggers find what belongs to a program."""
    command = ["readelf", "--notes", "--wide", path]
    notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Build ID: ([0-9a-f]+)", notes)
    if not found:
        raise PackagingError(f"{path} has no build id")
    return found[1]


def executable(architecture: str) -> dict[str, Any]:
    """Return what is known of an executable. Raises: PackagingError, also for another version."""
    program = place(architecture) / "lavinmq"
    shown = program.relative_to(ROOT)
    remedy = "make binary" if architecture == HOST else f"make binary ARCH={architecture}"
    try:
        described: dict[str, Any] = json.loads(program.with_suffix(".json").read_text())
    except FileNotFoundError:
        raise PackagingError(f"{shown} is missing: {remedy}") from None
    if described["version"] != version():
        raise PackagingError(
            f"{shown} is {described['version']}, the sources are {version()}: {remedy}"
        )
    return described


def released(architecture: str) -> dict[str, Any]:
    """Return what is known of an executable that others may get.

    Raises: PackagingError for the plain form, one for newer systems alone, and other sources.
    """
    described = executable(architecture)
    remedy = "make binary BASE=2.31 RELEASE=1"
    remedy += "" if architecture == HOST else f" ARCH={architecture}"
    if described["sources"] != fetch.digest():
        raise PackagingError(f"the executable for {architecture} is of other sources: {remedy}")
    if not described["release"] or described["base"] == "native":
        raise PackagingError(
            f"the executable for {architecture} is not a release for older systems: {remedy}"
            " (REHEARSAL=1 makes packages of it that are only for trying)"
        )
    return described


def is_rehearsal() -> bool:
    """Return whether all of this is for trying how a release is made."""
    return bool(os.environ.get("REHEARSAL"))


def numbered(number: str, architecture: str) -> str:
    """Return the number behind the version of a package; in a rehearsal it is marked.

    Raises: PackagingError for an executable that others may not get, except in a rehearsal.
    """
    if is_rehearsal():
        return f"{number}~{REHEARSED}"
    released(architecture)
    return number


def refuse_rehearsed(packages: Iterable[Path]) -> None:
    """Keep from others what a rehearsal has made. Raises: PackagingError."""
    marked = sorted(path.name for path in packages if f"~{REHEARSED}" in path.name)
    if marked and not is_rehearsal():
        raise PackagingError(f"made in a rehearsal, remove: {', '.join(marked)}")


def add_architecture(parser: argparse.ArgumentParser) -> None:
    """Add the option that says which executable is meant."""
    parser.add_argument("--arch", choices=RPM_ARCHITECTURES, default=HOST, help="the processor")


def timestamp() -> int:
    """Return the date of the release in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    asked = subprocess.run(
        ["git", "log", "-1", "--format=%ct"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return int(asked.stdout) if asked.returncode == 0 and asked.stdout.strip() else int(time.time())


def repeatable() -> dict[str, str]:
    """Return the environment for programs that write dates into packages."""
    return {**os.environ, "SOURCE_DATE_EPOCH": str(timestamp()), "LC_ALL": "C.UTF-8"}


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a program. Raises: CalledProcessError."""
    subprocess.run(command, cwd=cwd, env=repeatable(), check=True)


def checked(program: str, *arguments: str | Path) -> None:
    """Run a program that looks for faults, where it is installed. Raises: CalledProcessError."""
    if shutil.which(program):
        run(program, *arguments)
    else:
        print(f"{program} is not installed: nothing has been checked by it", file=sys.stderr)


def rpm_defines(work: Path, version: str, number: str) -> dict[str, str]:
    """Return the macros that each of our specs needs, for a build below one directory."""
    return {
        "_topdir": str(work),
        "shipped_version": version,
        "shipped_release": number,
        "shipped_date": time.strftime("%a %b %d %Y", time.gmtime(timestamp())),
        "packager": MAINTAINER,
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        "_buildhost": "localhost",
    }


def reported(build: Callable[[], object]) -> int:
    """Call a build and print what it returns, or one line about its error; the exit status."""
    try:
        made = build()
        print(*(made if isinstance(made, list) else [made]), sep="\n")
    except PackagingError as error:
        print(f"Error: {error}", file=sys.stderr)
    except FileNotFoundError as error:
        print(f"Error: {error.filename} is missing", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"Error: {error.cmd[0]} ended with {error.returncode}", file=sys.stderr)
    else:
        return 0
    return 1
