"""Lays out the sources of the distribution lavinmq-client: `packaging/client_tree.py DIRECTORY`.

`wheel.py` builds it from them, `make lint` has them checked. They are `lavinmq/client`, the files
of `cext/` that its compiled module is made of, and what stands in `packaging/client`. There is no
`lavinmq/__init__.py` among them: beside the broker's wheel that is the broker's, without it
`lavinmq` is a namespace.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import release


def sources_of(umbrella: Path) -> set[Path]:
    """The files of `cext/` that an umbrella includes, itself and all contracts."""
    text = umbrella.read_text()
    included = re.findall(r'^include "([^"]+)"', text, re.MULTILINE)
    return {
        umbrella,
        *(umbrella.parent / name for name in included),
        *umbrella.parent.glob("*.pxd"),
    }


def lay(tree: Path) -> Path:
    """Make the tree anew, and return it."""
    shutil.rmtree(tree, ignore_errors=True)
    package = tree / "lavinmq/client"
    (package / "kombu").mkdir(parents=True)
    ours = release.ROOT / "lavinmq/client"
    for path in (*ours.glob("*.py*"), *ours.glob("kombu/*.py")):
        shutil.copy2(path, package / path.relative_to(ours))
    shutil.copy2(release.ROOT / "lavinmq/py.typed", package)
    for path in sources_of(release.ROOT / "cext/client.pyx"):
        place = tree / path.relative_to(release.ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    for path in (release.ROOT / "packaging/client").iterdir():
        if path.is_file():
            shutil.copy2(path, tree)
    for name in ("setup.py", "LICENSE"):
        shutil.copy2(release.ROOT / name, tree)
    (tree / "VERSION").write_text(release.version() + "\n")
    (tree / "MANIFEST.in").write_text("include VERSION\nrecursive-include cext *\n")
    return tree


if __name__ == "__main__":
    lay(Path(sys.argv[1]))
