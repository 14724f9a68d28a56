"""The distribution lavinmq-client: what is in it works without the broker, and beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys
import lavinmq.client as client
for name in client.__all__:
    getattr(client, name)
from lavinmq.client import _engine
assert _engine.__file__.startswith(sys.argv[1]), _engine.__file__
assert client.Config().prefetch == 100
print(sorted(name for name in sys.modules if name.startswith("lavinmq.") and "client" not in name))
"""


def run(*options: str | Path) -> str:
    """Run the program that lays and builds; return what it printed."""
    command = [sys.executable, ROOT / "packaging/client_wheel.py", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return Path(run("--tree", tmp_path / "tree", "--tree-only"))


def test_the_tree_works_without_the_broker_and_other_packages(tree: Path, tmp_path: Path) -> None:
    for path in (ROOT / "lavinmq/client").glob("_engine*.so"):
        shutil.copy2(path, tree / "lavinmq/client")
    program = f"import sys; sys.path.insert(0, {str(tree)!r})\n{PROGRAM}"
    command = [sys.executable, "-I", "-S", "-c", program, str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_the_tree_has_all_that_its_module_is_made_of_and_nothing_of_the_broker(tree: Path) -> None:
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}

    assert {"pyproject.toml", "setup.py", "broker_setup.py", "LICENSE", "VERSION"} <= files
    assert {"cext/client/ring.pyx", "cext/base/table.pyx", "cext/bytes.pxd"} <= files
    assert "lavinmq/__init__.py" not in files and "lavinmq/client/wire.py" not in files
    assert not any(name.startswith(("cext/queue", "lavinmq/vhost")) for name in files)
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    assert "dependencies" not in project


@pytest.mark.skipif("PACKAGE_TESTS" not in os.environ, reason="PACKAGE_TESTS is not set")
def test_the_wheel_is_built_and_runs_in_an_environment_of_its_own(
    tree: Path, tmp_path: Path
) -> None:
    wheel = Path(run("--tree", tree, "--out", tmp_path / "out"))
    names = zipfile.ZipFile(wheel).namelist()
    assert "lavinmq/__init__.py" not in names and "lavinmq/client/py.typed" in names
    venv.create(tmp_path / "env", with_pip=False)
    place = next((tmp_path / "env/lib").glob("python3*")) / "site-packages"
    zipfile.ZipFile(wheel).extractall(place)
    python = tmp_path / "env/bin/python"
    done = subprocess.run(
        [python, "-I", "-c", PROGRAM, str(tmp_path / "env")], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
