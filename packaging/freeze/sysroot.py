"""The C library of the oldest systems to be supported, as a directory for the compiler.

Holds headers and libraries of glibc 2.31, and those static libraries that are linked into the
executable, from packages of Debian for one architecture. Compiling against it with today's
compiler gives an executable that needs no symbol newer than 2.31. Nothing of it is run, unless an
emulator runs what was built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import fetch

PACKAGES = (
    "kernel-headers", "libcrypt", "glibc", "libgcc", "zlib", "libffi", "openssl", "pcre2", "lz4",
)  # fmt: skip
STATIC = ("ssl", "crypto", "z", "ffi", "crypt", "pcre2-8", "lz4")
"""Libraries whose shared form is left out, so that the linker takes the static one."""


@cache
def build(architecture: str) -> Path:
    """Return the directory, made from its packages if it is not there. Raises: FetchError."""
    sources = fetch.sources()
    unpacked = [fetch.fetch(sources[name], architecture) for name in PACKAGES]
    place = fetch.CACHE / f"sysroot-{architecture}"
    made_of = "\n".join(str(path) for path in unpacked)
    stamp = place / ".made-of"
    with fetch.alone(place):
        if not (stamp.exists() and stamp.read_text() == made_of):
            _make(place, unpacked)
            stamp.write_text(made_of)
    return place


def _make(place: Path, unpacked: list[Path]) -> None:
    """Put packages together in one directory, made anew."""
    shutil.rmtree(place, ignore_errors=True)
    for path in unpacked:
        shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True)
    libraries = next(place.glob("usr/lib/*-linux-gnu"))
    for name in STATIC:
        (libraries / f"lib{name}.so").unlink(missing_ok=True)
    # What the shared form would bring along, wherever the linker is given the library.
    (libraries / "libcrypto.so").write_text("INPUT(libcrypto.a -ldl -lpthread)\n")
    _make_links_relative(place)
    unwinder = place / "unwinder"
    unwinder.mkdir()
    shutil.copy2(next(place.glob("usr/lib/gcc/*/*/libgcc_eh.a")), unwinder)
    # The rest of that compiler is older than the one in use, which must not find it.
    shutil.rmtree(place / "usr/lib/gcc")


def options(architecture: str) -> list[str]:
    """Return what makes the compiler see this C library, and not the one it was installed with."""
    place = build(architecture)
    libraries = next(place.glob("usr/lib/*-linux-gnu"))
    multiarch = libraries.name
    # The unwinder is of that time too: the one that is installed needs a newer C library.
    directories = (libraries, place / "lib" / multiarch, place / "unwinder")
    return [f"--sysroot={place}", f"-B{libraries}", *(f"-L{path}" for path in directories)]


@cache
def header_options(architecture: str, compiler: str) -> list[str]:
    """Return what a cross compiler needs besides: it has headers of a C library of its own."""
    asked = [compiler, "-print-file-name=include"]
    try:
        own = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise fetch.FetchError(f"{compiler} is missing: .ci/setup-debian.sh cross") from error
    headers = build(architecture) / "usr/include"
    multiarch = next(headers.glob("*-linux-gnu"))
    return ["-nostdinc", *(f"-isystem{path}" for path in (own, multiarch, headers))]


def _make_links_relative(place: Path) -> None:
    """Let absolute links stay in the directory; else they lead to this machine's own files."""
    for path in place.rglob("*"):
        if path.is_symlink() and os.readlink(path).startswith("/"):
            target = place / os.readlink(path).lstrip("/")
            path.unlink()
            path.symlink_to(os.path.relpath(target, path.parent))
