"""Builds wheels, and the source distributions they are made from: `python3.12 packaging/wheel.py`.

    python packaging/wheel.py [--base native|2.31] [--output dist/packages]

There are three: of the broker, of what runs beside Spark (packaging/spark), and of the client alone
(packaging/client). They are for the interpreter that runs this. Each is built in an environment of
its own below build/wheel, from its source distribution, which is thereby proven to be enough. With
a base they are compiled against that C library instead of this machine's (freeze/sysroot.py); their
tag, the oldest C library they run with, is read from their symbols by auditwheel.
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

import client_tree
import release

sys.path.append(str(release.ROOT / "packaging/freeze"))
import fetch
import toolchain

BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
PROJECT = release.ROOT / "packaging/spark"
APART = ("lavinmq/spark", "lavinmq/pipeline", "pyspark_lavinmq", "pyspark_lavinmq_segments", "cext")
TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"


def build(base: str, output: Path) -> str:
    """Build all and return their names. Raises: PackagingError, CalledProcessError."""
    place = release.ROOT / "build/wheel" / TAG
    _environment(place / "environment")
    output.mkdir(parents=True, exist_ok=True)
    for name in ("lavinmq", "lavinmq_spark", "lavinmq_client"):
        for old in (*output.glob(f"{name}-*-{TAG}-*.whl"), *output.glob(f"{name}-*.tar.gz")):
            old.unlink()
    trees = (release.ROOT, spark_tree(place / "spark"), client_tree.lay(place / "client"))
    made = [shutil.copy2(path, output) for tree in trees for path in _built(tree, base, place)]
    return "\n".join(map(str, made))


def spark_tree(tree: Path) -> Path:
    """Lay out the sources of lavinmq-spark, which stand in the same tree as the broker's."""
    shutil.rmtree(tree, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in APART:
        shutil.copytree(release.ROOT / name, tree / name, ignore=ignored)
    for name in ("setup.py", "LICENSE", "requirements.lock"):
        shutil.copy2(release.ROOT / name, tree / name)
    shutil.copy2(PROJECT / "README.md", tree / "README.md")
    version = release.version()
    (tree / "version.py").write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    project = (PROJECT / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text(project.replace('"lavinmq",', f'"lavinmq=={version}",'))
    (tree / "MANIFEST.in").write_text(
        "include version.py requirements.lock\nrecursive-include cext *.pyx *.pxd\n"
    )
    return tree


def _built(tree: Path, base: str, place: Path) -> tuple[Path, Path]:
    """Build the source distribution of a tree, and a wheel from it."""
    built, repaired = place / "built", place / "repaired"
    python = str(place / "environment/bin/python")
    for directory in (built, repaired):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    _run(place, tree, python, "-c", BUILD_SDIST, str(built))
    (sources,) = built.glob("*.tar.gz")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
    pip += ["--no-build-isolation", "-w", str(built)]
    _run(place, tree, *pip, str(sources), **_compiler(base, place))
    (wheel,) = built.glob("*.whl")
    _run(place, tree, python, "-m", "auditwheel", "repair", "-w", str(repaired), str(wheel))
    (result,) = repaired.iterdir()
    kept = place / "kept" / tree.name
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    return Path(shutil.copy2(sources, kept)), Path(shutil.copy2(result, kept))


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


def _run(place: Path, tree: Path, *command: str, **variables: str) -> None:
    """Run a program of the environment, in some sources. Raises: CalledProcessError."""
    programs = place / "environment/bin"
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    environment = {**release.repeatable(), "PATH": path, **variables}
    subprocess.run(command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, check=True)


def main() -> int:
    """Build what the command line asks for. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", choices=toolchain.BASES, default="native", help="the C library")
    parser.add_argument("--output", type=Path, default=release.PACKAGES)
    options = parser.parse_args()
    return release.reported(lambda: build(options.base, options.output))


if __name__ == "__main__":
    sys.exit(main())
