"""How much a table of arguments may hold, in bytes of the wire and in JSON."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq import fieldtable
from lavinmq.arguments.bounds import TableBounds, TableTooLargeError
from lavinmq.fieldtable import FieldTableError

BOUNDS = TableBounds(max_bytes=1000, max_entries=20)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


def entries(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(entries, value.values()))
    return len(value) + sum(map(entries, value)) if isinstance(value, list) else 0


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_entries_are_counted_with_those_of_tables_and_arrays_inside(values: dict[str, Any]) -> None:
    content = fieldtable.encode(values)

    assert fieldtable.count(content, 1000) == entries(values)
    assert fieldtable.count(content, 2) == min(entries(values), 3)


def test_every_type_is_counted() -> None:
    every = b"".join(
        b"\x01k" + kind + bytes(size)
        for kind, size in [
            (b"t", 1), (b"b", 1), (b"B", 1), (b"s", 2), (b"u", 2), (b"U", 2), (b"I", 4), (b"i", 4),
            (b"l", 8), (b"L", 8), (b"f", 4), (b"d", 8), (b"D", 5), (b"T", 8), (b"V", 0),
            (b"S", 4), (b"x", 4), (b"A", 4), (b"F", 4),
        ]
    )  # fmt: skip

    assert fieldtable.count(every, 1000) == 19


@given(st.binary(max_size=40))
def test_any_bytes_are_counted_or_refused(content: bytes) -> None:
    try:
        found = fieldtable.count(content, 1000)
    except FieldTableError:
        with pytest.raises(FieldTableError):
            fieldtable.from_content(content)
    else:
        assert found <= len(content)


@pytest.mark.parametrize(
    "values",
    [
        {str(n): None for n in range(20)},
        {"a": list(range(19))},
        {"a": {"b": [1] * 18}},
        {"a": "x" * 993},
    ],
)  # fmt: skip
def test_a_table_at_its_limits_is_taken(values: dict[str, Any]) -> None:
    BOUNDS.check_values(values)
    BOUNDS.check_content(fieldtable.encode(values))


@pytest.mark.parametrize(
    ("values", "setting"),
    [
        ({str(n): None for n in range(21)}, "20 entries of max_arguments_entries"),
        ({"a": list(range(20))}, "20 entries of max_arguments_entries"),
        ({"a": {"b": [1] * 19}}, "20 entries of max_arguments_entries"),
        ({"a": "x" * 1000}, "1000 bytes of max_arguments_bytes"),
        ({"a": ["x" * 500, {"b": "y" * 500}]}, "1000 bytes of max_arguments_bytes"),
    ],
)
def test_a_table_above_its_limits_is_refused_with_the_name_of_the_setting(
    values: dict[str, Any], setting: str
) -> None:
    for check, table in (
        (BOUNDS.check_values, values),
        (BOUNDS.check_content, fieldtable.encode(values)),
    ):
        with pytest.raises(TableTooLargeError, match=setting):
            check(table)


def test_what_is_long_on_the_wire_only_is_refused_there() -> None:
    values = {"a": "\u20ac" * 400}

    BOUNDS.check_values(values)

    with pytest.raises(TableTooLargeError, match="1000 bytes"):
        BOUNDS.check_content(fieldtable.encode(values))


def test_a_table_far_above_the_limits_is_not_walked_to_its_end() -> None:
    class Endless(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("it was walked")

    with pytest.raises(TableTooLargeError):
        BOUNDS.check_values({"a": Endless({str(n): n for n in range(100)})})
