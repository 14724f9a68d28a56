"""The management pages are whole in every package, and what others wrote for them is what it was.

The wheel has them as files; the executable as data of a module, and the packages for Debian and
RPM have that executable, as has the image.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lavinmq.http.ui import files, places
from tests.packaging.conftest import ROOT, make

PACKAGE = "lavinmq.http.ui"
STATIC = ROOT / PACKAGE.replace(".", "/") / "static"
LAY = (
    "import sys; from setuptools.dist import Distribution;"
    " made = Distribution({'script_name': 'setup.py'});"
    " made.parse_config_files(); command = made.get_command_obj('build_py');"
    " command.build_lib = sys.argv[1]; command.ensure_finalized(); command.run()"
)
INSTALL = (
    "import sys; sys.path.insert(0, 'packaging'); import install, release;"
    " from pathlib import Path;"
    " release.executable = lambda _: {}; release.place = lambda _: Path(sys.argv[1]);"
    " install.install(Path(sys.argv[2]), install.LAYOUTS[sys.argv[3]])"
)


def of_sources() -> dict[str, bytes]:
    """The files of the pages by their names below `static/`."""
    return {
        str(path.relative_to(STATIC)): path.read_bytes()
        for path in STATIC.rglob("*")
        if path.is_file()
    }


def below(directory: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for each in directory.iterdir():
        if each.is_dir():
            yield from below(each, f"{prefix}{each.name}/")
        else:
            yield prefix + each.name, each.read_bytes()


def program(name: str) -> ModuleType:
    """A program of the build of the executable, which is not a module of the tests."""
    spec = importlib.util.spec_from_file_location(
        f"freeze_{name}", ROOT / f"packaging/freeze/{name}.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_others_wrote_is_the_release_that_is_pinned() -> None:
    script = (ROOT / "packaging/vendor.sh").read_text()
    pinned = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", script, re.M)}

    found = {
        name.removeprefix("vendor/"): hashlib.sha256(content).hexdigest()
        for name, content in of_sources().items()
        if name.startswith("vendor/")
    }

    assert found == pinned
    assert {"uplot.js", "uplot.css", "uplot-license.txt"} == pinned.keys()


def test_each_page_has_its_files() -> None:
    """So that a page that is missing in the sources is not missed by what compares with them."""
    found = files.Files()
    for name, place in {**places.PLACES, "docs": places.DOCS}.items():
        assert f"pages/{name}.html" in found.fragments
        if place.has_frame:
            assert f"pages/{name}.js" in found.assets


def test_a_wheel_has_the_pages(tmp_path: Path) -> None:
    make(sys.executable, "-c", LAY, tmp_path)
    assert dict(below(tmp_path / PACKAGE.replace(".", "/") / "static")) == of_sources()


def test_the_executable_has_the_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As collect.py writes them and assets.py reads them, which is what the broker asks."""
    contents, collect, assets = (program(name) for name in ("contents", "collect", "assets"))
    module = collect.Module(PACKAGE, STATIC.parent / "__init__.py", True)
    collect.write_data([module], contents.WITH_DATA, tmp_path / "assets_data.py")
    monkeypatch.syspath_prepend(str(tmp_path))

    found: Any = assets.reader(PACKAGE).files()

    assert "lavinmq.*" in contents.ROOTS
    assert dict(below(found / "static")) == of_sources()


@pytest.mark.parametrize("layout", ["deb", "rpm"])
def test_a_package_has_the_executable_that_has_the_pages(tmp_path: Path, layout: str) -> None:
    dist, root = tmp_path / "dist", tmp_path / "root"
    (dist / "licenses").mkdir(parents=True)
    (dist / "lavinmq").write_bytes(b"\x7fELF, and the pages")

    make(sys.executable, "-c", INSTALL, dist, root, layout)

    assert (root / "usr/bin/lavinmq").read_bytes() == (dist / "lavinmq").read_bytes()
