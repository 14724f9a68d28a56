"""Builds an interpreter to try the client with: `python packaging/interpreters.py 3.14t`.

    python packaging/interpreters.py VERSION [--sanitizer tsan] [--jobs N]

VERSION is 3.11, 3.13 or 3.14, from 3.13 on with a `t` for one without a GIL. The sources are
CPython's, as Debian has them (the newest of a suite; apt-get checks what it brings), without
Debian's changes. The interpreter is complete, and hardly optimised. It goes to
build/interpreters/VERSION, with a sanitizer to VERSION-SANITIZER, and the last line that is printed
is its program. What is there is not built again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent / "freeze"))
import fetch

PLACE = fetch.ROOT / "build/interpreters"
SUITES = {"3.11": "bookworm", "3.13": "trixie", "3.14": "sid"}
"""Of Debian, that has the sources of a version."""
FREE, SANITIZED = ["--disable-gil"], ["--with-thread-sanitizer"]
OPT = "-DNDEBUG -O1 -Wall"
"""Tests wait for other things than the interpreter; at -O3 it is built for twice as long."""
SUPPRESSIONS = "Tools/tsan/suppressions_free_threading.txt"
"""In CPython's sources: races of its own that its authors know of."""
NEEDED = ("ssl", "ctypes", "zlib", "bz2", "lzma", "sqlite3", "hashlib", "uuid")
"""Modules that a build leaves out where what they need is missing."""


def build(name: str, sanitizer: str, jobs: int) -> Path:
    """Build an interpreter, unless it is there; return its program. Raises: FetchError and others.

    Args: name: a version, with a `t` for one without a GIL.
    """
    version, is_free = name.removesuffix("t"), name.endswith("t")
    place = PLACE / "-".join(filter(None, (name, sanitizer)))
    program = place / f"bin/python{name}"
    with fetch.alone(place):
        if not (place / ".complete").exists():
            tree = _sources(version)
            shutil.rmtree(place, ignore_errors=True)
            options = [*FREE * is_free, *SANITIZED * bool(sanitizer), "--with-ensurepip=install"]
            _make(tree, place, options, jobs)
            if (tree / SUPPRESSIONS).exists():
                shutil.copy2(tree / SUPPRESSIONS, place / "tsan-suppressions.txt")
            subprocess.run([program, "-c", f"import {', '.join(NEEDED)}"], check=True)
            (place / ".complete").touch()
    return program


def _sources(version: str) -> Path:
    """Fetch and unpack the sources of a version. Raises: FetchError."""
    suite, there = SUITES[version], PLACE / f"sources-{version}"
    with fetch.alone(there):
        if not (there / ".unpacked").exists():
            shutil.rmtree(there, ignore_errors=True)
            there.mkdir(parents=True)
            options = fetch.apt_options(suite, ["deb-src"], fetch.HOST)
            source = ["-qq", "source", "--download-only", f"python{version}"]
            for words in (["update", "-qq"], source):
                subprocess.run(["apt-get", *options, *words], cwd=there, check=True)
            (archive,) = there.glob("*.orig.tar.xz")
            with tarfile.open(archive) as file:
                file.extractall(there, filter="data")
            (there / ".unpacked").touch()
    (tree,) = there.glob("Python-*/")
    return tree


def _make(tree: Path, place: Path, options: list[str], jobs: int) -> None:
    """Configure, build and install; what was built meanwhile goes."""
    built = place.with_name(f"{place.name}-built")
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir(parents=True)
    log = place.with_name(f"{place.name}.log")
    print(f"building an interpreter, told in {log.relative_to(fetch.ROOT)}", flush=True)
    configure = [str(tree / "configure"), f"--prefix={place}", "--disable-test-modules", *options]
    make = ["make", f"-j{jobs}", f"OPT={OPT}"]
    with log.open("wb") as out:
        for command in (configure, make, ["make", "install"]):
            subprocess.run(command, cwd=built, stdout=out, stderr=out, check=True)
    shutil.rmtree(built)


def main() -> int:
    """Do what the command line asks for. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    free = [f"{version}t" for version in SUITES if version != "3.11"]
    parser.add_argument("version", choices=[*SUITES, *free])
    parser.add_argument("--sanitizer", default="", choices=("", "tsan"))
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    try:
        print(build(options.version, options.sanitizer, options.jobs))
    except (fetch.FetchError, subprocess.CalledProcessError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
