"""The C library of the oldest systems to be supported, as a directory for the compiler.

Holds headers and libraries of glibc 2.31, and those static libraries that are linked into the
executable, from packages of Debian for one architecture. Compiling against it with today's
compiler gives an executable that needs no symbol newer than 2.31. Libraries of a later Debian were
compiled against a later C library: what they call that the older one does not have is renamed
(RENAMED). Nothing of it is run, unless an emulator runs what was built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import fetch

PACKAGES = (
    "kernel-headers", "libcrypt", "glibc", "libgcc", "zlib", "libffi", "openssl", "zstd", "pcre2",
    "lz4",
)  # fmt: skip
STATIC = ("ssl", "crypto", "zstd", "z", "ffi", "crypt", "pcre2-8", "lz4")
"""Libraries whose shared form is left out, so that the linker takes the static one."""
CRYPTO = "INPUT(libcrypto.a -lzstd -lz -ldl -lpthread)\n"
"""What the shared form would bring along, wherever the linker is given the library."""
RENAMED = {"crypto": {"__isoc23_strtol": "strtol"}}
"""Functions of a later C library by the static library that calls them, and those that stand in.

C23's reads binary digits after 0b, too, where a caller lets it find the base. OpenSSL reads numbers
of configuration files and of times with it."""


@cache
def build(architecture: str) -> Path:
    """Return the directory, made from its packages if it is not there. Raises: FetchError."""
    place = fetch.CACHE / f"sysroot-{architecture}"
    stamp = place / ".made-of"
    wanted = made_of(architecture)
    with fetch.alone(place):
        if not (stamp.exists() and stamp.read_text() == wanted):
            _make(place, _unpacked(architecture))
            _rename(place, architecture)
            stamp.write_text(wanted)
    return place


def made_of(architecture: str) -> str:
    """Return what differs when a directory has to be made anew. Raises: FetchError."""
    return "\n".join([*map(str, _unpacked(architecture)), str(RENAMED), CRYPTO])


@cache
def _unpacked(architecture: str) -> list[Path]:
    sources = fetch.sources()
    return [fetch.fetch(sources[name], architecture) for name in PACKAGES]


def _make(place: Path, unpacked: list[Path]) -> None:
    """Put packages together in one directory, made anew."""
    shutil.rmtree(place, ignore_errors=True)
    for path in unpacked:
        shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True)
    libraries = next(place.glob("usr/lib/*-linux-gnu"))
    for name in STATIC:
        (libraries / f"lib{name}.so").unlink(missing_ok=True)
    (libraries / "libcrypto.so").write_text(CRYPTO)
    _make_links_relative(place)
    unwinder = place / "unwinder"
    unwinder.mkdir()
    shutil.copy2(next(place.glob("usr/lib/gcc/*/*/libgcc_eh.a")), unwinder)
    # The rest of that compiler is older than the one in use, which must not find it.
    shutil.rmtree(place / "usr/lib/gcc")


def _rename(place: Path, architecture: str) -> None:
    """Have libraries call what this C library has. Raises: FetchError."""
    libraries = next(place.glob("usr/lib/*-linux-gnu"))
    tool = "objcopy" if architecture == fetch.HOST else f"{libraries.name}-objcopy"
    for name, functions in RENAMED.items():
        renamed = [f"--redefine-sym={new}={old}" for new, old in functions.items()]
        command = [tool, "--enable-deterministic-archives", *renamed, libraries / f"lib{name}.a"]
        try:
            subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise fetch.FetchError(f"{tool} is missing or failed: {error}") from error


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
