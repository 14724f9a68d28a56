"""How C is compiled and linked for the executable: flags, the C library, places of what is built.

A `Target` is one way to build: on this machine's C library (BASE=native), or on one as old as the
systems to be supported (BASE=2.31, sysroot.py); plain, or optimised by a profile (RELEASE=1).
What is built is kept in a directory named after what it was built from: nothing is built twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import fetch
import sysroot

COMPILE_FLAGS = shlex.split(
    "-O3 -g1 -fPIE -fno-omit-frame-pointer -fno-strict-aliasing -fwrapv -DNDEBUG"
    " -fstack-protector-strong -fstack-clash-protection -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2"
)
LEAF_FLAG = "-mno-omit-leaf-frame-pointer"
BASES = ("native", "2.31")
LIMIT_S = 3600.0
"""No step takes longer, on a busy machine either."""


class BuildError(Exception):
    """A step failed; its output has been shown."""


@dataclass(frozen=True, slots=True)
class Target:
    """One way to build. `base` is a version of glibc, or "native"."""

    base: str = "native"
    is_release: bool = False
    jobs: int = 2

    @property
    def compiler(self) -> list[str]:
        """The C compiler, with the C library it is to see."""
        command = shlex.split(os.environ.get("CC") or "cc")
        return command if self.base == "native" else [*command, *sysroot.options()]

    @property
    def sysroot(self) -> Path:
        """Where the C library of BASE is."""
        return sysroot.build() if self.base != "native" else Path("/")

    @property
    def flags(self) -> list[str]:
        """Flags of every C file."""
        known = platform.machine() in ("x86_64", "aarch64")
        # So that every file is named in the same way, wherever it was built.
        mapping = f"-ffile-prefix-map={fetch.ROOT}=."
        return [*COMPILE_FLAGS, mapping, *([LEAF_FLAG] if known else [])]

    def place(self, name: str, *made_of: str | Path) -> Path:
        """Return the directory of one thing that is built for this target.

        Args: made_of: what it is built from, besides the compiler; a file counts by its content.
        """
        digest = hashlib.sha256(" ".join([*self.compiler, *self.flags]).encode())
        for part in made_of:
            digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        return fetch.CACHE / self.base / f"{name}-{digest.hexdigest()[:12]}"

    def compile(self, source: Path, result: Path, *options: str) -> Path:
        """Compile one C file. Raises: BuildError."""
        result.parent.mkdir(parents=True, exist_ok=True)
        run([*self.compiler, *self.flags, *options, "-c", str(source), "-o", str(result)])
        return result


def once(place: Path, build: Callable[[Path], None]) -> Path:
    """Build something in its directory unless that was done before. Raises: what `build` raises."""
    done = place / ".built"
    if not done.exists():
        place.mkdir(parents=True, exist_ok=True)
        build(place)
        done.touch()
    return place


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
    try:
        process = subprocess.Popen(
            command, cwd=cwd, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from error
    with process:
        try:
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


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a step and what it started, which is a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _show(said: bytes | None) -> None:
    sys.stderr.write((said or b"").decode(errors="replace")[-8000:])
