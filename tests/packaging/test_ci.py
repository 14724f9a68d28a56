"""What CI makes of an executable that cannot be built: .ci/run, with programs that pretend."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

MAKE = '#!/bin/sh\n[ "$1" != test ] || echo "===== 5 passed in 1.20s ====="\n'
SETUP = "#!/bin/sh\nexit ${SETUP_ENDS:-0}\n"
APT_GET = "#!/bin/sh\nexit ${APT_GET_ENDS:-0}\n"
PYTHON = """#!/bin/sh
echo "$@" >>called
case "$*" in
*--fetch) exit ${FETCH_ENDS:-0} ;;
*outdated.py) exit ${OUTDATED_ENDS:-0} ;;
*) exit ${BUILD_ENDS:-0} ;;
esac
"""
PLAIN = "packaging/freeze/build.py --jobs 2"
NO_SOURCES = {"FETCH_ENDS": "75"}
NO_TOOLS = {"SETUP_ENDS": "1", "APT_GET_ENDS": "100"}
RELEASE = {"RELEASE": "1"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Sources with nothing but CI's program, and what it calls."""
    for name, text in (
        (".ci/setup-debian.sh", SETUP), (".venv/bin/python", PYTHON), ("bin/make", MAKE),
        ("bin/apt-get", APT_GET),
    ):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / ".venv/.installed-all").touch()
    shutil.copy(ROOT / ".ci/run", tmp_path / ".ci/run")
    return tmp_path


def run(checkout: Path, **variables: str) -> tuple[int, list[str], str]:
    """Return how CI ends, what it had Python do, and what it said."""
    done = subprocess.run(
        [checkout / ".ci/run"], text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={"PATH": f"{checkout}/bin:/usr/bin:/bin", **variables},
    )  # fmt: skip
    called = (checkout / "called").read_text().splitlines()
    return done.returncode, called, done.stdout


@pytest.mark.parametrize(("variables", "form"), [({}, PLAIN), (RELEASE, f"{PLAIN} --release")])
def test_the_form_that_is_asked_for_is_built(
    checkout: Path, variables: dict[str, str], form: str
) -> None:
    code, called, said = run(checkout, **variables)

    assert code == 0
    assert form in called
    assert said.splitlines()[-1] == "===== 5 passed in 1.20s ====="


@pytest.mark.parametrize(
    "lacking", [NO_SOURCES, {"FETCH_ENDS": "124"}, NO_TOOLS], ids=["sources", "time", "tools"]
)
def test_what_is_lacking_from_elsewhere_is_told_and_keeps_a_release_back(
    checkout: Path, lacking: dict[str, str]
) -> None:
    code, called, said = run(checkout, **lacking)

    assert code == 0
    assert PLAIN not in called
    assert "WARNING: " in said
    assert run(checkout, **lacking, **RELEASE)[0] == 1


@pytest.mark.parametrize("variables", [{}, RELEASE], ids=["plain", "release"])
@pytest.mark.parametrize(
    "fault",
    [{"FETCH_ENDS": "1"}, {"BUILD_ENDS": "1"}, {"BUILD_ENDS": "124"}, {"SETUP_ENDS": "1"}],
    ids=["checksum", "build", "time", "tools"],
)
def test_a_fault_of_ours_fails(
    checkout: Path, fault: dict[str, str], variables: dict[str, str]
) -> None:
    code, _, said = run(checkout, **fault, **variables)

    assert code == 1
    assert "FAILED, see above" in said


def test_what_debian_has_mended_since_is_told(checkout: Path) -> None:
    code, _, said = run(checkout, OUTDATED_ENDS="1")

    assert code == 0
    assert "out of date" in said


def test_packages_that_tests_ask_for_are_installed_before_them() -> None:
    """etcd was not: on a new machine 121 tests of clusters were skipped, and 41 failed."""
    wanted = {
        name for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"install the package ([a-z][a-z0-9.-]+)", path.read_text())
    }  # fmt: skip
    script = (ROOT / ".ci/setup-debian.sh").read_text()
    stage = script[script.index("\ntest)\n") :]
    stage = stage[: stage.index(";;")]

    assert wanted == {"etcd-server"}
    assert all(f"({name})" in stage for name in wanted)
