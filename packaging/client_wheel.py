"""Lays the sources of the distribution lavinmq-client into a tree of their own, and builds a wheel.

The tree is `lavinmq/client` without the client of our own commands, the files of `cext/` that its
compiled module is made of, and what stands in `packaging/client`. There is no `lavinmq/__init__.py`
in it: beside the broker's wheel that is the broker's, without it `lavinmq` is a namespace.

Usage: client_wheel.py [--tree DIRECTORY] [--out dist/packages] [--tree-only]
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OF_OUR_COMMANDS = {"connection.py", "wire.py"}
"""Modules of `lavinmq/client` that need other packages."""


def sources_of(umbrella: Path) -> set[Path]:
    """The files of `cext/` that an umbrella includes, itself and all contracts."""
    text = umbrella.read_text()
    included = re.findall(r'^include "([^"]+)"', text, re.MULTILINE)
    return {
        umbrella,
        *(umbrella.parent / name for name in included),
        *umbrella.parent.glob("*.pxd"),
    }


def version() -> str:
    """The version of the repository."""
    found = re.search(r'^__version__ = "([^"]+)"', (ROOT / "lavinmq/__init__.py").read_text(), re.M)
    if found is None:
        raise SystemExit("lavinmq/__init__.py names no version")
    return found[1]


def lay(tree: Path) -> Path:
    """Make the tree anew."""
    shutil.rmtree(tree, ignore_errors=True)
    package = tree / "lavinmq" / "client"
    package.mkdir(parents=True)
    for path in (ROOT / "lavinmq/client").glob("*.py*"):
        if path.name not in OF_OUR_COMMANDS and path.is_file():
            shutil.copy2(path, package)
    shutil.copy2(ROOT / "lavinmq/py.typed", package)
    for path in sources_of(ROOT / "cext/client.pyx"):
        place = tree / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    for path in (ROOT / "packaging/client").iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    shutil.copy2(ROOT / "setup.py", tree / "broker_setup.py")
    shutil.copy2(ROOT / "LICENSE", tree)
    (tree / "VERSION").write_text(version() + "\n")
    (tree / "MANIFEST.in").write_text("include VERSION broker_setup.py\nrecursive-include cext *\n")
    return tree


def build(tree: Path, out: Path) -> Path:
    """Build the wheel. Raises: subprocess.CalledProcessError."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*command, "--wheel-dir", str(out), str(tree)], check=True)
    return max(out.glob("lavinmq_client-*.whl"), key=lambda path: path.stat().st_mtime)


def main() -> None:
    """Lay and build."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=ROOT / "build/client-wheel")
    parser.add_argument("--out", type=Path, default=ROOT / "dist/packages")
    parser.add_argument("--tree-only", action="store_true")
    options = parser.parse_args()
    tree = lay(options.tree)
    print(tree if options.tree_only else build(tree, options.out))


if __name__ == "__main__":
    main()
