"""How C is compiled and linked for the executable: flags, the C library, places of what is built.

A `Target` is one way to build: on this machine's C library (BASE=native), or on one as old as the
systems to be supported (BASE=2.31, sysroot.py); plain, or optimised by a profile (RELEASE=1); for
this machine's processor or, with the cross compiler of Debian, for another (ARCH=arm64).
What is built is kept in a directory named after what it was built from: nothing is built twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import fetch
import sysroot

RELEASE, PLAIN = "-O3", "-O1"
"""The plain form is for trying: compiled like a release it would take twice as long."""
COMPILE_FLAGS = shlex.split(
    "-g1 -fPIE -fno-omit-frame-pointer -fno-strict-aliasing -fwrapv -DNDEBUG"
    " -fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"
)
BRANCH_FLAGS = {"amd64": "-fcf-protection=full", "arm64": "-mbranch-protection=standard"}
"""Calls through pointers end where functions begin, and returns where they were called from, on
processors that look: CET of x86, BTI and PAC of ARM. Others take these instructions for none."""
LEAF_FLAG = "-mno-omit-leaf-frame-pointer"
EXACT_FLAG = "-ffp-contract=off"
"""Rounds as other processors do, which have no single instruction for a product and a sum."""
BASES = ("native", "2.31")
MACHINES = {debian: machine for machine, debian in fetch.ARCHITECTURES.items()}
"""What the kernel and compilers call a processor, by Debian's name."""
LIMIT_S = 3600.0
"""No step takes longer, on a busy machine either."""
AGAIN_S = 0.5
"""A part that is to end is told so again after this time."""
ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that end a part, or the whole."""


class BuildError(Exception):
    """A step failed; its output has been shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """One way to build. `base` is a version of glibc, or "native"; `architecture` Debian's name."""

    base: str = "native"
    is_release: bool = False
    jobs: int = 2
    architecture: str = fetch.HOST

    @property
    def is_cross(self) -> bool:
        """Whether what is built does not run here."""
        return self.architecture != fetch.HOST

    @property
    def triplet(self) -> str:
        """The system that is built for, as GNU's tools call it."""
        return f"{MACHINES.get(self.architecture, self.architecture)}-linux-gnu"

    def tool(self, name: str) -> str:
        """Return the program of binutils or of the compiler that knows the processor."""
        return f"{self.triplet}-{name}" if self.is_cross else name

    @property
    def runner(self) -> list[str]:
        """What runs a program that was built: nothing, or an emulator of the processor."""
        if not self.is_cross:
            return []
        return [f"qemu-{MACHINES[self.architecture]}-static", "-L", str(self.sysroot)]

    @property
    def compiler(self) -> list[str]:
        """The C compiler, with the C library it is to see."""
        if self.is_cross:
            command = [self.tool("gcc")]
            command += sysroot.header_options(self.architecture, command[0])
        else:
            command = shlex.split(os.environ.get("CC") or "cc")
        if self.base == "native":
            return command
        return [*command, *sysroot.options(self.architecture)]

    @property
    def sysroot(self) -> Path:
        """Where the C library of BASE is."""
        return sysroot.build(self.architecture) if self.base != "native" else Path("/")

    @property
    def flags(self) -> list[str]:
        """Flags of every C file."""
        # So that every file is named in the same way, wherever it was built.
        optimised = [RELEASE if self.is_release else PLAIN]
        flags = [*optimised, *COMPILE_FLAGS, f"-ffile-prefix-map={fetch.ROOT}=."]
        if self.architecture in MACHINES:
            flags += [LEAF_FLAG, BRANCH_FLAGS[self.architecture]]
        return [*flags, EXACT_FLAG] if self.architecture == "arm64" else flags

    @property
    def cache(self) -> Path:
        """Where all that is built for the target is kept."""
        return fetch.CACHE / (f"{self.base}-{self.architecture}" if self.is_cross else self.base)

    def place(self, name: str, *made_of: str | Path) -> Path:
        """Return the directory of one thing that is built for this target.

        Args: made_of: what it is built from, besides the compiler; a file counts by its content.
        """
        digest = hashlib.sha256(_anywhere(" ".join([*self.compiler, *self.flags])))
        if self.base != "native":
            digest.update(_anywhere(sysroot.made_of(self.architecture)))
        for part in made_of:
            digest.update(part.read_bytes() if isinstance(part, Path) else _anywhere(part))
        return self.cache / f"{name}-{digest.hexdigest()[:12]}"

    def compile(self, source: Path, result: Path, *options: str) -> Path:
        """Compile one C file. Raises: BuildError."""
        result.parent.mkdir(parents=True, exist_ok=True)
        run([*self.compiler, *self.flags, *options, "-c", str(source), "-o", str(result)])
        return result


def _anywhere(text: str) -> bytes:
    """Return what is the same in every directory that the sources may be in."""
    return text.replace(str(fetch.ROOT), ".").encode()


def once(place: Path, build: Callable[[Path], None]) -> Path:
    """Build something in its directory unless that was done before. Raises: what `build` raises."""
    done = place / ".built"
    if not done.exists():
        place.mkdir(parents=True, exist_ok=True)
        build(place)
        done.touch()
    return place


def side_by_side(parts: Sequence[Callable[[], object]], jobs: int) -> None:
    """Have parts built, `jobs` of them at a time, those that come first begun first.

    Each is built in a process of its own, which ends the step that it runs when it is to end. What
    a part returns is lost: who calls it again finds it built. The parts must not fetch anything.
    Raises: BuildError when one of them failed; the others are ended.
    """
    here = multiprocessing.get_context("fork")
    ahead = list(reversed(parts))
    running: list[BaseProcess] = []
    codes: list[int | None] = []
    try:
        while not any(codes) and (ahead or running):
            while ahead and len(running) < jobs:
                running.append(here.Process(target=_build_alone, args=(ahead.pop(),)))
                running[-1].start()
            wait([process.sentinel for process in running])
            # Asked once: its sentinel may tell of an end before its code is there.
            codes = [process.exitcode for process in running]
            running = [each for each, code in zip(running, codes, strict=True) if code is None]
    finally:
        for process in running:
            while process.exitcode is None:
                # Again: nothing is woken by a signal that came just before it began to wait.
                process.terminate()
                process.join(AGAIN_S)
    if any(codes):
        raise BuildError("a part could not be built, see above")


def _build_alone(part: Callable[[], object]) -> None:
    """Build a part, as the only work of a process."""
    signal.signal(signal.SIGTERM, _end_part)
    try:
        part()
    except (BuildError, fetch.FetchError) as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)


def _end_part(number: int, _: object) -> None:
    """End the process, and the step that it runs; what is told once more is no news."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def run(
    command: Sequence[str],
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    limit_s: float = LIMIT_S,
) -> None:
    """Run a step quietly; its output is shown if it fails. Raises: BuildError.

    A step that is not done after `limit_s` is ended with all that it started.
    """
    environment = {**os.environ, **(env or {})}
    # A signal to end waits until there is somebody to end the step, which itself hears them.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, start_new_session=True, preexec_fn=_hear_endings,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        _hear_endings()
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
    with process:
        try:
            _hear_endings()
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            _end(process)
            _show(late.output)
            raise BuildError(f"{shlex.join(command)[:300]}: not done in {limit_s:g} s") from None
        except BaseException:
            _end(process)
            raise
    if process.returncode:
        _show(said)
        raise BuildError(f"{shlex.join(command)[:300]} failed, see above")


def _hear_endings() -> None:
    """Let signals to end come in again, those that waited at once."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step and what it started, which is a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _show(said: bytes | None) -> None:
    sys.stderr.write((said or b"").decode(errors="replace")[-8000:])
