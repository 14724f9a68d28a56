"""What was compiled beforehand is what the standard library would have compiled itself."""

from __future__ import annotations

import dataclasses
import importlib.util
import marshal
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

FREEZE = Path(__file__).parents[2] / "packaging/freeze"


class Tables(NamedTuple):
    """A module `prepared`, and the module that its tables are in."""

    prepared: Any
    data: Any


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Tables with things that differ from what they stand for, to be told apart."""
    data = ModuleType("prepared_data")
    code = marshal.dumps(compile("answer = 'prepared'", "<string>", "exec"))
    value = marshal.dumps(compile("'prepared'", "<string>", "eval"))
    data.__dict__["CODE"] = {"answer = 1": code, "1": value}
    data.__dict__["PATTERNS"] = {("a+", 0): arguments_of("(?P<b>b)+", 0)}
    monkeypatch.setitem(sys.modules, "prepared_data", data)
    spec = importlib.util.spec_from_file_location("freeze_prepared", FREEZE / "prepared.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Tables(module, data)


def arguments_of(text: str, flags: int) -> bytes:
    """What a pattern is made of, as the table has it."""
    from re import _compiler, _parser  # type: ignore[attr-defined]

    parsed = _parser.parse(text, flags)
    steps = [*map(int, _compiler._code(parsed, flags))]
    names: dict[str, int] = parsed.state.groupdict
    by_number: list[str | None] = [None] * parsed.state.groups
    for name, number in names.items():
        by_number[number] = name
    state = int(flags | parsed.state.flags)
    return marshal.dumps((state, steps, parsed.state.groups - 1, names, tuple(by_number)))


def test_a_text_in_the_table_is_used_once(tables: Tables) -> None:
    names: dict[str, Any] = {}
    tables.prepared.run("answer = 1", {}, names)
    assert names["answer"] == "prepared"
    tables.prepared.run("answer = 1", {}, names)
    assert names["answer"] == 1
    assert tables.prepared.evaluate("1", {}) == "prepared"
    assert not tables.data.CODE


def test_a_text_that_is_not_in_the_table_is_compiled(tables: Tables) -> None:
    assert tables.prepared.evaluate("2 + x", {"x": 3}) == 5


def test_a_pattern_in_the_table_is_made_from_it(tables: Tables) -> None:
    compiled: list[str] = []

    def compile_pattern(text: str, flags: int) -> re.Pattern[str]:
        compiled.append(text)
        return re.compile(text, flags)

    make = tables.prepared.compiler(compile_pattern)
    found = make("a+").match("bb")
    assert found and found["b"] == "b"
    assert not compiled
    assert make("a+").match("a")
    assert make("c", re.IGNORECASE).match("C")
    assert compiled == ["a+", "c"]


def test_a_dataclass_of_prepared_functions_is_like_any(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []

    def noting(text: str, variables: Any, names: Any) -> None:
        texts.append(text)
        exec(text, variables, names)

    monkeypatch.setattr(dataclasses, "exec", noting, raising=False)
    fields = [("x", int), ("y", str, dataclasses.field(default="z"))]
    dataclasses.make_dataclass("Point", fields, frozen=True)
    assert texts
    for text in texts:
        tables.data.CODE[text] = marshal.dumps(compile(text, "<string>", "exec"))
    monkeypatch.setattr(dataclasses, "exec", tables.prepared.run)
    point = dataclasses.make_dataclass("Point", fields, frozen=True)
    assert not set(texts) & set(tables.data.CODE)
    assert point(1) == point(1, "z") != point(2)
    assert repr(point(1)) == "Point(x=1, y='z')"
    with pytest.raises(dataclasses.FrozenInstanceError):
        point(1).x = 2
