"""Builds dist/lavinmq and its packages again, in another directory, and compares every byte.

`python packaging/reproduce.py`, run by `make reproduce`. A release is built from what it was
trained by, dist/lavinmq.profile.tar.xz. With `--quick` what takes long is not built again but
copied: the interpreter and most modules. Compiled is one module of each kind (ours, C of others,
one of several files); all is collected, linked, stripped and packed, with less compression.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import release

sys.path.append(str(release.ROOT / "packaging/freeze"))
import fetch
import profiles

BESIDE = ("lavinmq", "lavinmq.debug", "lavinmq.json", profiles.NAME)
COPIED = (
    "python-*", "lavinmq._cluster-*", "lavinmq._core-*", "lavinmq._perf-*", "lavinmq._tls-*",
    "lavinmq.client._engine-*",
    "openssl_verify-*", "uvloop.loop-*", "libuv-*", "orjson-*", "flow-*",
)  # fmt: skip
"""What is copied with `--quick`, by its name below build/freeze/BASE."""
FASTER = {"DPKG_DEB_COMPRESSOR_LEVEL": "1"}
"""What dpkg-deb is told with `--quick`: most of the time of a package is its compression."""
PACKERS = {"deb.py": ("dpkg-buildpackage", "dh"), "rpm.py": ("rpmbuild",)}


def again(
    architecture: str, place: Path, *, quick: bool, jobs: int
) -> Iterator[tuple[str, str, bool]]:
    """Build in a directory; names, checksums and whether they are those of dist/, as they come.

    Raises: PackagingError, CalledProcessError.
    """
    described = release.executable(architecture)
    if described["sources"] != fetch.digest():
        raise release.PackagingError("dist/lavinmq is of other sources than these: make binary")
    _copy_sources(place)
    here, there = (
        release.place(architecture),
        place / release.place(architecture).relative_to(release.ROOT),
    )
    command = [sys.executable, "packaging/freeze/build.py", f"--jobs={jobs}"]
    command += [f"--base={described['base']}", f"--arch={architecture}"]
    if described["release"]:
        command += [f"--profile={here / profiles.NAME}"]
    if quick:
        _copy_cache(place)
    environment = {
        **release.repeatable(),
        # Others than a release have packages, too, that nobody is to get.
        "REHEARSAL": "" if described["release"] and described["base"] != "native" else "1",
        "PYTHONPATH": os.pathsep.join((str(place), os.environ.get("PYTHONPATH", ""))),
        "PACKAGING_BUILD_DIR": str(place / "build/packages"),
        **(FASTER if quick else {}),
    }
    subprocess.run(command, cwd=place, env=environment, check=True)
    names = [name for name in BESIDE if (here / name).exists()]
    names += [
        str(p.relative_to(here)) for p in sorted((here / "licenses").rglob("*")) if p.is_file()
    ]
    for name in names:
        yield name, *_same(here / name, there / name)
    for program, tools in PACKERS.items():
        if all(map(shutil.which, tools)):
            yield from _packages(program, architecture, place, environment)


def _packages(
    program: str, architecture: str, place: Path, environment: dict[str, str]
) -> list[tuple[str, str, bool]]:
    """Make packages in both directories, of the executable of each."""
    made = []
    for root in (release.ROOT, place):
        output = place / f"build/made-{len(made)}-{program}"
        subprocess.run(
            [
                sys.executable, f"packaging/{program}", f"--arch={architecture}", "--no-check",
                f"--output={output}",
            ],
            cwd=root, check=True,
            env={**environment, "PACKAGING_BUILD_DIR": str(root / "build/packages/again")},
        )  # fmt: skip
        made.append(output)
    return [(path.name, *_same(path, made[1] / path.name)) for path in sorted(made[0].iterdir())]


def _same(here: Path, there: Path) -> tuple[str, bool]:
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (here, there)]
    return digests[0], digests[0] == digests[1]


def _copy_sources(place: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        said = subprocess.run(command, cwd=release.ROOT, capture_output=True, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise release.PackagingError("this needs a clone of git") from error
    for name in filter(None, said.decode().split("\0")):
        source, target = release.ROOT / name, place / name
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    shutil.copytree(fetch.DOWNLOADS, place / fetch.DOWNLOADS.relative_to(fetch.ROOT))


def _copy_cache(place: Path) -> None:
    cache = fetch.CACHE.relative_to(release.ROOT)
    found = [release.ROOT / "build/cython", *fetch.CACHE.glob("sources"), *fetch.CACHE.glob("sys*")]
    places = [path for name in COPIED for path in fetch.CACHE.glob(f"*/{name}")]
    found += [path for path in places if path.parent.name != "sources"]
    for path in found:
        target = place / path.relative_to(release.ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            target.symlink_to(path.readlink())
        elif path.is_dir():
            shutil.copytree(path, target, symlinks=True)
    assert (place / cache).is_dir()


def main() -> int:
    """Build and compare; the exit status is 1 when something differs."""
    parser = argparse.ArgumentParser(description="Build again elsewhere, and compare.")
    release.add_architecture(parser)
    parser.add_argument("--quick", action="store_true", help="copy what takes long to build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="build here, and leave it")
    options = parser.parse_args()
    compared: list[bool] = []
    started = time.monotonic()

    def build() -> str:
        with tempfile.TemporaryDirectory(prefix="lavinmq-elsewhere-") as temporary:
            place = (options.keep or Path(temporary)).absolute()
            for name, digest, is_same in again(
                options.arch, place, quick=options.quick, jobs=options.jobs
            ):
                # At once: what follows may fail, and this took minutes.
                print(f"{'same     ' if is_same else 'DIFFERENT'} {digest} {name}", flush=True)
                compared.append(is_same)
        differing = compared.count(False)
        return f"{len(compared)} files, {differing} differ; {time.monotonic() - started:.0f} s"

    status = release.reported(build)
    return status or int(not all(compared))


if __name__ == "__main__":
    sys.exit(main())
