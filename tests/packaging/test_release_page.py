"""docs/release.md can be followed: its commands, options and files are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache

import pytest

from tests.packaging.conftest import ROOT

PAGE = (ROOT / "docs/release.md").read_text()
CODE = re.findall(r"`([^`]+)`", PAGE)
MAKE = sorted({code for code in CODE if code.startswith("make ")})
MADE = re.compile(r"^(dist|build|\.venv)/|^deb/dists$|^rpm/repodata$")
"""What the steps make, and is not there before."""


def targets(command: str) -> list[str]:
    return [word for word in shlex.split(command)[1:] if "=" not in word]


def settings(command: str) -> dict[str, str]:
    words = [word.partition("=") for word in shlex.split(command)[1:] if "=" in word]
    return {name: value for name, _, value in words}


@cache
def told() -> dict[str, str]:
    """Return what `make help` says of each target."""
    said = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return dict(line.split("\t", 1) for line in said.replace("  ", "").splitlines() if "\t" in line)


@cache
def options_of(program: str) -> str:
    """Return what one of our programs says of its options."""
    return subprocess.run(
        [sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def test_the_page_has_steps_in_order() -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \*\*", PAGE, re.MULTILINE)]

    assert numbers == list(range(1, len(numbers) + 1))
    assert len(MAKE) > 10


@pytest.mark.parametrize("command", MAKE)
def test_make_knows_the_target_and_what_is_set(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text()

    assert set(targets(command)) <= told().keys()
    for name in settings(command):
        assert f"$({name})" in makefile or f"$({name}:" in makefile, name


@pytest.mark.parametrize("command", [each for each in MAKE if "ARGS=" in each])
def test_what_make_runs_knows_the_options(command: str) -> None:
    given = shlex.split(settings(command)["ARGS"])
    shown = subprocess.run(
        ["make", "-n", *shlex.split(command)[1:]],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (line,) = [line for line in shown.splitlines() if line.endswith(shlex.join(given))]

    (program,) = re.findall(r"(packaging/\w+\.py)", line)

    for option in given:
        assert not option.startswith("--") or option in options_of(program), option


def test_files_that_are_named_exist() -> None:
    named = {word for code in CODE for word in code.split() if re.search(r"[/.]\w", word)}
    paths = {word for word in named if re.fullmatch(r"\.?[\w][\w./-]*", word)}

    lacking = {path for path in paths if not MADE.match(path) and not (ROOT / path).exists()}

    # A file of dist/release, and a tag.
    assert lacking <= {"NOTES.md", "vX.Y.Z"}
    assert {"lavinmq/__init__.py", "packaging/freeze/outdated.py", ".ci/run"} <= paths


def test_the_version_is_in_one_place_only() -> None:
    version = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "lavinmq/__init__.py").read_text(), re.MULTILINE
    )

    assert len(version) == 1
    for name in ("pyproject.toml", "setup.py", "debian/control", "rpm/lavinmq.spec", "Makefile"):
        assert version[0] not in re.sub(r"[><=]=?[\d.]+", "", (ROOT / name).read_text()), name
