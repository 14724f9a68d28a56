"""Builds CPython as a static library, with those modules of its own that the broker can use.

Each module is part of the library, nothing is loaded from files. The program `python` of the same
build compiles our modules to the byte code that goes into the executable (collect.py); it is not
shipped.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path

import fetch
from profiles import Profile
from toolchain import BuildError, Target, once, run

MODULES = shlex.split(
    "array _asyncio _bisect _blake2 _contextvars _csv _datetime _decimal _hashlib _heapq _json _md5"
    " _opcode _pickle _posixsubprocess _queue _random _sha1 _sha2 _sha3 _socket _ssl"
    " _statistics _struct _zoneinfo binascii fcntl grp math mmap resource select syslog termios"
    " unicodedata zlib"
)
CTYPES = (
    "_ctypes _ctypes/_ctypes.c _ctypes/callbacks.c _ctypes/callproc.c _ctypes/stgdict.c"
    " _ctypes/cfield.c -DHAVE_FFI_PREP_CIF_VAR -DHAVE_FFI_PREP_CLOSURE_LOC"
    " -DHAVE_FFI_CLOSURE_ALLOC -lffi"
)
OPTIONS = shlex.split(
    "--quiet --prefix=/usr --disable-shared --with-static-libpython --without-ensurepip"
    " --disable-test-modules --without-doc-strings --without-mimalloc MODULE_BUILDTYPE=static"
    " LDFLAGS=-pie"
)
# What configure finds out by running programs. It cannot when these are for another processor, and
# here the answer would be of the machine that builds: with `nice`, or where /dev/shm is missing,
# another interpreter came out, to which the counts of a training do not belong.
ANSWERS = shlex.split(
    "ac_cv_file__dev_ptmx=yes ac_cv_file__dev_ptc=no ac_cv_buggy_getaddrinfo=no"
    " ac_cv_working_tzset=yes ac_cv_computed_gotos=yes ac_cv_pthread_is_default=yes"
    " ac_cv_pthread_system_supported=yes ac_cv_aligned_required=no ac_cv_broken_sem_getvalue=no"
    " ac_cv_broken_nice=no ac_cv_broken_poll=no ac_cv_posix_semaphores_enabled=yes"
)
COUNT = "-fprofile-generate"
USE_COUNTS = "-fprofile-use -fprofile-correction -Wno-missing-profile"
LTO = "-flto -ffat-lto-objects"
LINK_LTO = ("-flto", "-flto-partition=none", "-flinker-output=nolto-rel")
"""In one part: in several, functions that one of them keeps from the others get other names."""
SERIES = ".".join(fetch.sources()["python"].version.split(".")[:2])
"""The branch of CPython, such as 3.13; byte code and headers belong to it."""
NAMED = "./interpreter"
"""What the directory of an interpreter is called in what tells debuggers of lines."""
LIBRARY = f"libpython{SERIES}.a"
OPTIMISED = f"libpython{SERIES}.o"
BESIDE = ("Modules/_decimal/libmpdec/libmpdec.a", "Modules/_hacl/libHacl_Hash_SHA2.a")
"""What some of its modules are made of."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What was built: the directory, the source it comes from, and a program that runs here."""

    built: Path
    source: Path
    program: Path
    link_options: tuple[str, ...] = ()
    made_of: tuple[str | Path, ...] = ()

    @property
    def objects(self) -> list[Path]:
        """What is linked whole, then static libraries, in the order of the linker."""
        optimised = self.built / OPTIMISED
        if optimised.exists():
            return [optimised]
        return [self.built / name for name in (LIBRARY, *BESIDE)]

    @property
    def includes(self) -> list[str]:
        """Flags that find its headers, by one name in each directory that it may be built in."""
        return [*(f"-I{path}" for path in self.headers), f"-ffile-prefix-map={self.built}={NAMED}"]

    @property
    def headers(self) -> list[Path]:
        """The directories of its headers."""
        return [self.source / "Include", self.built]

    @property
    def counts(self) -> list[Path]:
        """The files that its training left."""
        return sorted(self.built.rglob("*.gcda"))

    @property
    def python(self) -> list[str]:
        """The command that runs its program with nothing but the standard library."""
        return [str(self.program), "-I", "-S", "-B", "-X", "no_debug_ranges"]


Training = Callable[[Interpreter], None]
"""Runs what is to be fast, with an interpreter that counts."""


def build(
    target: Target, train: Training, trained_by: Sequence[Path], profile: Profile | None = None
) -> Interpreter:
    """Return the interpreter, built if it is not there.

    Args: train: called for a release only; trained_by: files that say what it does;
        profile: what a training has left, so that there needs to be none.
    Raises: BuildError, FetchError.
    """
    pinned = fetch.sources()["python"]
    source = fetch.fetch(pinned)
    kind = "release" if target.is_release else "plain"
    made_of: list[str | Path] = [pinned.version, *OPTIONS, *MODULES, CTYPES]
    if target.is_release:
        made_of += [COUNT, USE_COUNTS, LTO, *LINK_LTO, *trained_by]
    settled = ANSWERS
    program = None
    if target.is_cross:
        # The same version, so that it can make the byte code that the other one reads.
        here = replace(target, architecture=fetch.HOST, is_release=False)
        program = build(here, train, trained_by).program
        settled = [f"--build={here.triplet}", f"--host={target.triplet}"]
        settled += [f"--with-build-python={program}", *ANSWERS]
    made_of += settled
    counts = list(profile.interpreter.values()) if profile and target.is_release else []
    place = target.place(f"python-{kind}", *made_of, *counts)
    program = program or place / "python"

    def build_there(built: Path) -> None:
        print(f"building the interpreter in {built.relative_to(fetch.ROOT)}", flush=True)
        _configure(target, source, built, settled)
        if target.is_release:
            counting = Interpreter(built, source, program, (COUNT,))
            if profile:
                profile.lay_out(built)
            else:
                _train(target, counting, train)
            _build_optimised(target, counting)
        else:
            run(_make(target), cwd=built, env=_dated(source))

    once(place, build_there)
    return Interpreter(place, source, program, made_of=tuple(made_of))


def remember(target: Target, trained: Interpreter, profile: Profile) -> None:
    """Let a build from what it was trained by find it, and not build it again."""
    name = target.place("python-release", *trained.made_of, *profile.interpreter.values())
    if not name.exists():
        name.symlink_to(trained.built.name)


def _configure(target: Target, source: Path, built: Path, settled: list[str]) -> None:
    flags = " ".join(target.flags).replace(" -DNDEBUG", "")
    flags += f" -ffile-prefix-map={built}={NAMED}"
    if target.is_release:
        # With this one, which is both of these and a third, counts would be written to anywhere.
        both = r"-fdebug-prefix-map=\1 -fmacro-prefix-map=\1"
        flags = re.sub(r"-ffile-prefix-map=(\S+)", both, flags)
    options = [*OPTIONS, *settled, f"CC={' '.join(target.compiler)}", f"CFLAGS={flags}"]
    if target.base != "native":
        # Static libraries need what they were linked with; pkg-config only knows this machine.
        options += [f"--with-openssl={target.sysroot}/usr", "PKG_CONFIG=false"]
        options.append("LIBS=-ldl -lpthread")
    shutil.rmtree(built)
    built.mkdir()
    # By a relative path, which the interpreter remembers.
    run([os.path.relpath(source / "configure", built), *options], cwd=built)
    modules = built / "Modules/Setup.stdlib"
    modules.write_text(_setup(modules.read_text()))


def _dated(source: Path) -> dict[str, str]:
    """Return the variable by which the compiler takes the date of the source for that of today."""
    line = re.search(r"^ -- .*>  (.+)$", (source / "debian/changelog").read_text(), re.MULTILINE)
    if not line:
        raise BuildError("the changelog of the interpreter has no date")
    return {"SOURCE_DATE_EPOCH": str(int(parsedate_to_datetime(line[1]).timestamp()))}


def _make(target: Target) -> list[str]:
    return ["make", f"-j{target.jobs}", LIBRARY, "python"]


def _train(target: Target, counting: Interpreter, train: Training) -> None:
    """Build it to count, and train it.

    With what follows it is what CPython's target `profile-opt` does, without building every module
    as a file of its own, too. Counts are not atomic: threads that run at once in the interpreter
    are held apart by its lock, and the compiler is told that a few may be wrong.
    """
    built = counting.built
    counts = [f"EXTRA_CFLAGS={COUNT}", f"LDFLAGS_NODIST={COUNT}"]
    run([*_make(target), "pybuilddir.txt", *counts], cwd=built, env=_dated(counting.source))
    print("training the interpreter", flush=True)
    for path in counting.counts:
        path.unlink()  # what it did to build itself
    train(counting)
    run(["make", "clean-retain-profile"], cwd=built)


def _build_optimised(target: Target, counting: Interpreter) -> None:
    """Build it with what was counted."""
    built = counting.built
    # Its own programs are linked of the same code, for each to optimise the whole would take long.
    make = [*_make(target), f"EXTRA_CFLAGS={USE_COUNTS} {LTO}", "LDFLAGS_NODIST=-fno-lto"]
    run(make, cwd=built, env=_dated(counting.source))
    run(
        [
            *target.compiler, *target.flags, *counting.includes, *LINK_LTO,
            "-r", "-nostdlib", "-o", OPTIMISED,
            # All of them: what is compiled for this step has the directory in it otherwise.
            "-Wl,--whole-archive", LIBRARY, *BESIDE, "-Wl,--no-whole-archive",
        ],
        cwd=built,
    )  # fmt: skip


def _setup(known: str) -> str:
    """Return the lines of Setup.stdlib that make our modules part of the library, and no other."""
    lines = {match[1]: match[0] for match in re.finditer(r"^#?(\w+) .*$", known, re.MULTILINE)}
    absent = [name for name in MODULES if name not in lines or lines[name].startswith("#")]
    if absent:
        raise BuildError(
            f"the interpreter cannot be built with {', '.join(absent)}: install the development"
            " packages of OpenSSL, zlib and libffi"
        )
    return "\n".join(["*static*", *(lines[name] for name in MODULES), CTYPES, ""])
