"""Tries the client alone with the interpreter that runs this: `python3.13 client_alone.py`.

    python packaging/client_alone.py [--broker COMMAND] [--sanitizer tsan] [ARGUMENTS OF PYTEST ...]

Builds the wheel of lavinmq-client from its source distribution, installs it into an environment in
which nothing of the broker is, and runs a copy of the client's tests there; the broker that they
speak with is a process with an interpreter of its own. What tests need and the index does not have
for this interpreter is left out, with the files of tests that name it; both are told.

Everything is below build/client-alone, in a directory for each interpreter.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import client_tree
import release

BUILD_SDIST = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
TOOLS = ("setuptools", "wheel", "Cython")
NEEDED = ("pytest", "pytest-timeout", "pytest-benchmark", "pytest-xdist")
WANTED = {
    "pamqp": "pamqp", "prometheus_client": "prometheus-client", "uvloop": "uvloop",
    "pika": "pika", "amqp": "amqp", "kombu": "kombu", "cryptography": "cryptography",
    "jwt": "PyJWT", "opentelemetry": "opentelemetry-sdk",
}  # fmt: skip
"""What single files of tests import, and the package that has it."""
TESTS = ("__init__.py", "conftest.py", "support", "unit/client", "integration/__init__.py",
         "integration/conftest.py", "integration/client")  # fmt: skip
OF_THE_BROKER = ("lavinmq_client:", "DOCS =")
"""By these words a file of tests is known that needs the broker's package, or pages."""
IMPORTS = re.compile(r"^\s*(?:from|import) ([\w.]+)", re.MULTILINE)


def try_out(broker: str, sanitizer: str, arguments: list[str]) -> int:
    """Build, install, test. Returns: what pytest did. Raises: PackagingError and others."""
    if not shutil.which(broker.split()[0]):
        raise release.PackagingError(f"no broker to try it with, `make` builds one: {broker}")
    tag = f"{sys.implementation.cache_tag}{'t' if IS_FREE_THREADED else ''}{sanitizer}"
    place = release.ROOT / "build/client-alone" / tag
    python = _environment(place / "environment")
    wheel = _wheel(place, python, sanitizer)
    _pip(python, "install", "--force-reinstall", "--no-deps", str(wheel))
    missing = {name for name, package in WANTED.items() if not _install(python, package)}
    left_out = lay_tests(place / "tests-alone", missing)
    _tell(f"{sys.version}", wheel.name, *(f"not tried: {each}" for each in left_out))
    environment = {**os.environ, "LAVINMQ_TEST_COMMAND": broker, "PYTHONPATH": ""}
    findings = place / "findings"
    shutil.rmtree(findings, ignore_errors=True)
    if sanitizer:
        environment["TSAN_OPTIONS"] = options_of_tsan(findings)
        arguments = ["-p", "tests.support.findings", *arguments]
    command = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=place / "tests-alone", env=environment, check=False)
    return told(findings) or done.returncode


def options_of_tsan(findings: Path) -> str:
    """Have each process write what is found into a file: workers of pytest have no exit code that
    anybody sees. An interpreter of interpreters.py has beside it what its authors know of."""
    findings.mkdir()
    options = [f"log_path={findings}/of", os.environ.get("TSAN_OPTIONS", "")]
    known = Path(sys.base_prefix, "tsan-suppressions.txt")
    if known.exists():
        options.append(f"suppressions={known}")
    return ":".join(filter(None, options))


def told(findings: Path) -> int:
    """Print what a sanitizer has found; return 1 if that is anything."""
    reports = sorted(findings.glob("of.*"))
    for report in reports:
        print(report.read_text(errors="replace"), file=sys.stderr)
    return int(bool(reports))


def lay_tests(tree: Path, missing: set[str]) -> list[str]:
    """Copy the client's tests to where the broker's package is not seen; return what is left out of
    them, with the reason."""
    shutil.rmtree(tree, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in TESTS:
        source, target = release.ROOT / "tests" / name, tree / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy2(source, target)
    shutil.copy2(release.ROOT / "pyproject.toml", tree)
    (tree / "docs").mkdir()
    shutil.copy2(release.ROOT / "docs/client.md", tree / "docs")
    left_out: list[str] = []
    for path in sorted(tree.glob("tests/*/client/test_*.py")):
        if reason := _reason(tree, path, missing):
            path.unlink()
            left_out.append(f"{path.relative_to(tree)} ({reason})")
    return left_out


def _reason(tree: Path, path: Path, missing: set[str]) -> str:
    """Why a file of tests cannot run here; empty if it can."""
    text = path.read_text()
    if any(word in text for word in OF_THE_BROKER):
        return "needs the broker's package or its pages"
    if path.parent.parent.name == "integration" and "pika" in missing:
        return "pika is not to be had"
    return next(
        (f"{name} is not to be had" for name in _imported(tree, text) if name in missing), ""
    )


def _imported(tree: Path, text: str) -> set[str]:
    """The packages that a file of tests imports, those of what it shares with others included."""
    found: set[str] = set()
    # What it does as a program is another process's, of the broker's interpreter.
    for name in IMPORTS.findall(text.partition("\nif __name__ ==")[0]):
        shared = tree / (name.replace(".", "/") + ".py")
        if name.startswith("tests.support.") and shared.exists():
            found |= _imported(tree, shared.read_text())
        found.add(name.partition(".")[0])
    return found


def _wheel(place: Path, python: Path, sanitizer: str) -> Path:
    """Build the wheel from its source distribution, unless there is one of these sources."""
    tree = client_tree.lay(place / "sources")
    built, known = place / "built", place / "built/made-of"
    files = sorted(path for path in tree.rglob("*") if path.is_file())
    made_of = "\n".join(f"{path.relative_to(tree)} {hash_of(path)}" for path in files)
    if known.exists() and known.read_text() == made_of:
        return next(built.glob("*.whl"))
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir(parents=True)
    variables = {
        **os.environ,
        "LAVINMQ_SANITIZE": sanitizer,
        "LAVINMQ_DEBUG": str(int(bool(sanitizer))),
    }
    subprocess.run([python, "-c", BUILD_SDIST, built], cwd=tree, env=variables, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    (sources,) = built.glob("*.tar.gz")
    _pip(python, "wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(sources),
         env=variables)  # fmt: skip
    known.write_text(made_of)
    return next(built.glob("*.whl"))


def hash_of(path: Path) -> str:
    """A digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _environment(place: Path) -> Path:
    """The interpreter of an environment with what builds a wheel and runs tests."""
    python, stamp = place / "bin/python", place / ".made-of"
    lock = (release.ROOT / "requirements.lock").read_text()
    made_of = "\n".join([sys.version, sys.executable, lock])
    if not stamp.exists() or stamp.read_text() != made_of:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        _pip(python, "install", *LOCKED, *TOOLS, *NEEDED)
        if not _install(python, "hypothesis"):  # its last one that nothing of was compiled for
            _pip(python, "install", "--only-binary=:all:", "hypothesis")
        stamp.write_text(made_of)
    return python


LOCKED = ("-c", str(release.ROOT / "requirements.lock"))


def _install(python: Path, package: str) -> bool:
    """Install a package that is compiled already for this interpreter; whether there is one."""
    return _pip(python, "install", *LOCKED, "--only-binary=:all:", package, check=False)


def _pip(
    python: Path, *arguments: str, check: bool = True, env: dict[str, str] | None = None
) -> bool:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    if check:
        subprocess.run(command, check=True, env=env)
        return True
    done = subprocess.run(command, check=False, env=env, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def _tell(*lines: str) -> None:
    print("\n".join(lines), flush=True)


def main() -> int:
    """Do what the command line asks for. Returns: the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--broker", default=f"{release.ROOT}/.venv/bin/python -m lavinmq", help="how one is started"
    )
    parser.add_argument("--sanitizer", default="", choices=("", "tsan"), help="of the wheel")
    options, arguments = parser.parse_known_args()
    try:
        return try_out(options.broker, options.sanitizer, arguments)
    except (release.PackagingError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
