"""Builds CPython as a static library, with those modules of its own that the broker can use.

Each module is part of the library, nothing is loaded from files. The program `python` of the same
build compiles our modules to the byte code that goes into the executable (collect.py); it is not
shipped.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import fetch
from toolchain import BuildError, Target, once, run

MODULES = shlex.split(
    "array _asyncio _bisect _blake2 _contextvars _csv _datetime _decimal _hashlib _heapq _json _md5"
    " _opcode _pickle _posixsubprocess _queue _random _sha1 _sha256 _sha3 _sha512 _socket _ssl"
    " _statistics _struct _typing _zoneinfo binascii fcntl grp math mmap resource select syslog"
    " termios unicodedata zlib"
)
CTYPES = (
    "_ctypes _ctypes/_ctypes.c _ctypes/callbacks.c _ctypes/callproc.c _ctypes/stgdict.c"
    " _ctypes/cfield.c -DHAVE_FFI_PREP_CIF_VAR -DHAVE_FFI_PREP_CLOSURE_LOC"
    " -DHAVE_FFI_CLOSURE_ALLOC -lffi"
)
OPTIONS = shlex.split(
    "--quiet --prefix=/usr --disable-shared --with-static-libpython --without-ensurepip"
    " --disable-test-modules --without-doc-strings MODULE_BUILDTYPE=static LDFLAGS=-pie"
)
# What configure finds out by running programs, and cannot when these are for another processor.
ANSWERS = shlex.split(
    "ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no"
    " ac_cv_working_tzset=yes ac_cv_computed_gotos=yes ac_cv_pthread_is_default=yes"
    " ac_cv_pthread_system_supported=yes ac_cv_aligned_required=no ac_cv_broken_sem_getvalue=no"
)
COUNTING = ("EXTRA_CFLAGS=-fprofile-generate", "LDFLAGS_NODIST=-fprofile-generate")
COUNTED = ("EXTRA_CFLAGS=-fprofile-use -fprofile-correction -Wno-missing-profile",)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What was built: the directory, the source it comes from, and a program that runs here."""

    built: Path
    source: Path
    program: Path

    @property
    def archives(self) -> list[Path]:
        """The static libraries, in the order of the linker."""
        return [
            self.built / "libpython3.11.a",
            self.built / "Modules/_decimal/libmpdec/libmpdec.a",
        ]

    @property
    def includes(self) -> list[str]:
        """Flags that find its headers."""
        return [f"-I{self.source / 'Include'}", f"-I{self.built}"]

    @property
    def python(self) -> list[str]:
        """The command that runs its program with nothing but the standard library."""
        return [str(self.program), "-I", "-S", "-B", "-X", "no_debug_ranges"]


def build(target: Target) -> Interpreter:
    """Return the interpreter, built if it is not there. Raises: BuildError, FetchError."""
    pinned = fetch.sources()["python"]
    source = fetch.fetch(pinned)
    kind = "release" if target.is_release else "plain"
    made_of = [pinned.version, *OPTIONS, *MODULES, CTYPES]
    if target.is_release:
        made_of += [*COUNTING, *COUNTED, (fetch.HERE / "profile_task.py").read_text()]
    crossing: list[str] = []
    program = None
    if target.is_cross:
        # The same version, so that it can make the byte code that the other one reads.
        here = replace(target, architecture=fetch.HOST, is_release=False)
        program = build(here).program
        crossing = [f"--build={here.triplet}", f"--host={target.triplet}"]
        crossing += [f"--with-build-python={program}", *ANSWERS]
    place = target.place(f"python-{kind}", *made_of, *crossing)
    once(place, lambda built: _build(target, source, built, crossing))
    return Interpreter(place, source, program or place / "python")


def _build(target: Target, source: Path, built: Path, crossing: list[str]) -> None:
    print(f"building the interpreter in {built.relative_to(fetch.ROOT)}", flush=True)
    # Names that do not say where they are would have the profile written to anywhere.
    left_out = ("-DNDEBUG", "-ffile-prefix-map" if target.is_release else "-DNDEBUG")
    flags = " ".join(flag for flag in target.flags if not flag.startswith(left_out))
    options = [*OPTIONS, *crossing, f"CC={' '.join(target.compiler)}", f"CFLAGS={flags}"]
    if target.base != "native":
        # Static libraries need what they were linked with; pkg-config only knows this machine.
        options += [f"--with-openssl={target.sysroot}/usr", "PKG_CONFIG=false"]
        options.append("LIBS=-ldl -lpthread")
    shutil.rmtree(built)
    built.mkdir()
    run([str(source / "configure"), *options], cwd=built)
    (built / "Modules/Setup.local").write_text(_setup((built / "Modules/Setup.stdlib").read_text()))
    make = ["make", f"-j{target.jobs}", "libpython3.11.a", "python"]
    if not target.is_release:
        run(make, cwd=built)
        return
    # What the target `profile-opt` does, without building every module as a file of its own, too.
    run([*make, "pybuilddir.txt", *COUNTING], cwd=built)
    run(["./python", str(fetch.HERE / "profile_task.py")], cwd=built)
    run(["make", "clean-retain-profile"], cwd=built)
    run([*make, *COUNTED], cwd=built)


def _setup(known: str) -> str:
    """Return the lines of Setup.local that make our modules part of the library."""
    lines = {match[1]: match[0] for match in re.finditer(r"^#?(\w+) .*$", known, re.MULTILINE)}
    absent = [name for name in MODULES if name not in lines or lines[name].startswith("#")]
    if absent:
        raise BuildError(
            f"the interpreter cannot be built with {', '.join(absent)}: install the development"
            " packages of OpenSSL, zlib and libffi"
        )
    return "\n".join(["*static*", *(lines[name] for name in MODULES), CTYPES, ""])
