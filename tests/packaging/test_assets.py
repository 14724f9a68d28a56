"""Files of packages are read in the executable as they are from a directory."""

from __future__ import annotations

import importlib.util
import sys
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType

import pytest

FREEZE = Path(__file__).parents[2] / "packaging/freeze"
FILES = {"ui": {"index.html": b"<p>\xc3\xb8", "js": {"main.js": b"let x\n"}}}


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Traversable:
    """The directory of a package with two files."""
    data = ModuleType("assets_data")
    data.__dict__["FILES"] = FILES
    monkeypatch.setitem(sys.modules, "assets_data", data)
    spec = importlib.util.spec_from_file_location("freeze_assets", FREEZE / "assets.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Traversable = module.reader("ui").files()
    return found


def test_files_are_listed_and_read(files: Traversable) -> None:
    assert sorted(entry.name for entry in files.iterdir()) == ["index.html", "js"]
    assert (files / "index.html").read_text(encoding="utf-8") == "<p>ø"
    assert files.joinpath("js/main.js").read_bytes() == b"let x\n"
    assert files.joinpath("js", "main.js").is_file()
    assert (files / "js").is_dir()


def test_what_is_not_there_is_said_so(files: Traversable) -> None:
    missing = files / "css" / "style.css"

    assert not missing.is_file()
    assert not missing.is_dir()
    with pytest.raises(FileNotFoundError):
        missing.read_bytes()
    with pytest.raises(IsADirectoryError):
        (files / "js").read_bytes()
