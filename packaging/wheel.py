"""Builds a wheel, and the source distribution it is made from: `python3.12 packaging/wheel.py`.

    python packaging/wheel.py [--base native|2.31] [--output dist/packages]

The wheel is for the interpreter that runs this. It is built in an environment of its own below
build/wheel, from the source distribution, which is thereby proven to be enough. With a base it is
compiled against that C library instead of this machine's (freeze/sysroot.py); its tag, the oldest C
library it runs with, is read from its symbols by auditwheel.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import release

sys.path.append(str(release.ROOT / "packaging/freeze"))
import fetch
import toolchain

BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def build(base: str, output: Path) -> str:
    """Build both and return their names. Raises: PackagingError, CalledProcessError."""
    place = release.ROOT / "build/wheel" / TAG
    built, repaired = place / "built", place / "repaired"
    python = _environment(place / "environment")
    for directory in (built, repaired):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    _run(place, str(python), "-c", BUILD_SDIST, str(built))
    (sources,) = built.glob("*.tar.gz")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "-w", str(built)]
    _run(place, *pip, str(sources), **_compiler(base, place))
    (wheel,) = built.glob("*.whl")
    _run(place, str(python), "-m", "auditwheel", "repair", "-w", str(repaired), str(wheel))
    (result,) = repaired.iterdir()
    output.mkdir(parents=True, exist_ok=True)
    for old in (*output.glob(f"lavinmq-*-{TAG}-*.whl"), *output.glob("lavinmq-*.tar.gz")):
        old.unlink()
    made = [shutil.copy2(path, output) for path in (sources, result)]
    return "\n".join(map(str, made))


def _environment(place: Path) -> Path:
    """Return the interpreter of an environment that has what builds a wheel, and no more."""
    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text())
    needed = [
        *project["build-system"]["requires"], "wheel",
        *project["project"]["optional-dependencies"]["release"],
    ]  # fmt: skip
    python, stamp = place / "bin/python", place / ".made-of"
    made_of = "\n".join([sys.version, *needed])
    if stamp.exists() and stamp.read_text() == made_of:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "-c", str(release.ROOT / "requirements.lock"), *needed], check=True)
    stamp.write_text(made_of)
    return python


def _compiler(base: str, place: Path) -> dict[str, str]:
    """Return the variables that have C compiled for a base. Raises: PackagingError."""
    try:
        command = toolchain.Target(base).compiler
    except fetch.FetchError as error:
        raise release.PackagingError(str(error)) from error
    # Debian keeps one of the interpreter's headers where headers of the C library are, and nowhere
    # else: it is offered alone, so that no other header of this machine is seen.
    multiarch = sysconfig.get_config_var("MULTIARCH")
    name = Path(sysconfig.get_path("include")).name
    headers = Path("/usr/include", multiarch, name) if multiarch else None
    if base != "native" and headers and headers.is_dir():
        link = place / "include" / multiarch / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(headers)
        command = [*command, f"-I{place / 'include'}"]
    compiler = shlex.join(command)
    # Else modules would look for libraries where this interpreter was installed, and name all
    # directories of this machine; names of functions stay.
    return {"CC": compiler, "LDSHARED": f"{compiler} -shared -Wl,--strip-debug"}


def _run(place: Path, *command: str, **variables: str) -> None:
    """Run a program of the environment, in the sources. Raises: CalledProcessError."""
    programs = place / "environment/bin"
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    environment = {**release.repeatable(), "PATH": path, **variables}
    subprocess.run(
        command, cwd=release.ROOT, env=environment, stdout=subprocess.DEVNULL, check=True
    )


def main() -> int:
    """Build what the command line asks for. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", choices=toolchain.BASES, default="native", help="the C library")
    parser.add_argument("--output", type=Path, default=release.PACKAGES)
    options = parser.parse_args()
    return release.reported(lambda: build(options.base, options.output))


if __name__ == "__main__":
    sys.exit(main())
