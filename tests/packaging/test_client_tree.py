"""The sources of the distribution lavinmq-client work without the broker. Wheels: test_wheel.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT

sys.path.append(str(ROOT / "packaging"))
import client_tree

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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return client_tree.lay(tmp_path / "tree")


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

    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE", "VERSION"} <= files
    assert {"cext/client/ring.pyx", "cext/base/table.pyx", "cext/bytes.pxd"} <= files
    assert {"lavinmq/client/py.typed", "lavinmq/client/_engine.pyi"} <= files
    assert "lavinmq/client/kombu/transport.py" in files
    assert "lavinmq/__init__.py" not in files
    assert not any(name.startswith(("cext/queue", "lavinmq/vhost")) for name in files)
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    assert "dependencies" not in project
