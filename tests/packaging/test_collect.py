"""The byte code in the executable does what its source does, without what nobody reads."""

from __future__ import annotations

import importlib.util
import marshal
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FREEZE = Path(__file__).parents[2] / "packaging/freeze"
SOURCE = '''"""About the module."""
from __future__ import annotations
import os, fractions
from dataclasses import dataclass
from typing import Final, NamedTuple

LIMIT: Final = 3
unset: int


@dataclass
class Point:
    """A place."""

    x: int = 1


class Pair(NamedTuple):
    """Two."""

    left: int
    right: int = 2


class Empty:
    """Nothing."""


def half(number: int) -> fractions.Fraction:
    """Of a number."""
    shown: str
    return fractions.Fraction(number, 2)
'''


def program(name: str) -> ModuleType:
    """A program of the build, which is not a module of the tests."""
    spec = importlib.util.spec_from_file_location(f"freeze_{name}", FREEZE / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give the variables of a module after it has run from the byte code of the executable."""
    collect = program("collect")
    monkeypatch.setitem(sys.modules, "later", program("later"))

    def run(name: str, **wanted: Any) -> dict[str, Any]:
        path = tmp_path / "ours.py"
        path.write_text(SOURCE)
        asked: dict[str, Any] = {name: {} for name in collect.Wanted._fields} | wanted
        asked["places"] = {"": "", "ours": str(tmp_path)}
        code = collect.code_of(collect.Module(name, path, False), collect.Wanted(**asked))
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(marshal.loads(code), module.__dict__)
        return module.__dict__

    return run


def test_docstrings_and_annotations_go(collected: Any) -> None:
    ours = collected("ours")
    assert ours["half"].__doc__ is ours["Empty"].__doc__ is ours["__doc__"] is None
    assert not ours["half"].__annotations__
    assert not ours.get("__annotations__")


def test_what_is_left_behaves_as_before(collected: Any) -> None:
    ours = collected("ours")
    assert ours["LIMIT"] == 3
    assert ours["Point"](x=2).x == 2
    assert ours["Point"].__doc__ == "A place."
    assert ours["Pair"](1) == (1, 2)
    assert "unset" not in ours
    assert ours["half"](3) * 2 == 3


def test_modules_of_python_keep_what_they_may_look_at(collected: Any) -> None:
    theirs = collected("theirs")
    assert theirs["Empty"].__doc__ == "Nothing."
    assert theirs["half"].__annotations__["number"] == "int"
    assert theirs["half"].__doc__ is None


def test_documented_packages_keep_their_docstrings(collected: Any) -> None:
    ours = collected("ours", documented=["ours"])
    assert ours["half"].__doc__ == "Of a number."
    assert ours["Empty"].__doc__ == "Nothing."


def test_a_postponed_import_is_made_when_it_is_used(
    collected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "fractions", raising=False)
    ours = collected("ours", postponed={"ours": ["fractions"]})
    assert "fractions" not in sys.modules
    assert ours["half"](3) * 2 == 3
    assert "fractions" in sys.modules
    assert ours["os"] is sys.modules["os"]


def test_an_import_that_is_not_there_cannot_be_postponed(collected: Any) -> None:
    with pytest.raises(SystemExit, match="no import of gzip"):
        collected("ours", postponed={"ours": ["gzip"]})


def test_a_line_can_be_appended(collected: Any) -> None:
    assert collected("ours", appended={"ours": "LIMIT += 1"})["LIMIT"] == 4
