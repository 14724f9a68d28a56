"""Bodies of requests against the fields that an endpoint declares."""

from __future__ import annotations

import difflib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.http.errors import ApiError
from lavinmq.http.fields import LOOKED_AT, Field, Kind, check

FIELDS = {
    "name": Field("string", "A name", required=True),
    "count": Field("integer", "How many", default=1),
    "flag": Field("boolean", "Whether", default=False),
    "arguments": Field("object", "Further", default={}),
    "hash": Field("string", "May be null", nullable=True, default="none"),
    "mode": Field("string", "One of", choices=("a", "b"), default="a"),
}


def test_what_is_absent_has_its_default_and_what_nobody_knows_is_ignored() -> None:
    assert check(FIELDS, {"name": "x", "vhost": "/", "node": "n"}) == {
        "name": "x", "count": 1, "flag": False, "arguments": {}, "hash": "none", "mode": "a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "Field 'name' is required"),
        ({"name": None}, "Field 'name' must be a string"),
        ({"name": 1}, "Field 'name' must be a string"),
        ({"name": "x", "count": "one"}, "Field 'count' must be an integer"),
        ({"name": "x", "count": True}, "Field 'count' must be an integer"),
        ({"name": "x", "count": 1.5}, "Field 'count' must be an integer"),
        ({"name": "x", "flag": "perhaps"}, "Field 'flag' must be a boolean"),
        ({"name": "x", "arguments": [1]}, "Field 'arguments' must be an object"),
        ({"name": "x", "hash": 1}, "Field 'hash' must be a string or null"),
        ({"name": "x", "mode": "c"}, "Field 'mode' must be one of a, b"),
        ({"name": "x", "argument": {}}, "Field 'argument' is unknown, did you mean 'arguments'?"),
    ],
)
def test_a_wrong_field_is_named(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(ApiError) as refused:
        check(FIELDS, body)

    assert (refused.value.status, refused.value.reason) == (400, reason)


def test_an_empty_array_is_an_empty_table_where_none_is_needed() -> None:
    assert check(FIELDS, {"name": "x", "arguments": []})["arguments"] == {}
    with pytest.raises(ApiError):
        check({"must": Field("object", "", required=True)}, {"must": []})


def test_several_missing_fields_are_named_at_once() -> None:
    fields = {name: Field("string", "", required=True) for name in ("a", "b", "c")}

    with pytest.raises(ApiError) as refused:
        check(fields, {})

    assert refused.value.reason == "Fields 'a', 'b' and 'c' are required"


def test_numbers_and_booleans_may_be_spelled_and_null_is_absent() -> None:
    checked = check(FIELDS, {"name": "x", "count": "-12", "flag": "true", "mode": None})

    assert (checked["count"], checked["flag"], checked["mode"]) == (-12, True, "a")
    assert check(FIELDS, {"name": "x", "hash": None})["hash"] is None


TYPES: dict[Kind, Any] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "object": dict,
    "array": list,
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@given(st.sampled_from(sorted(TYPES)), JSON)
def test_any_value_is_of_the_type_afterwards_or_refused(kind: Kind, value: Any) -> None:
    try:
        checked = check({"x": Field(kind, "")}, {"x": value})
    except ApiError as refused:
        assert refused.status == 400
    else:
        assert checked["x"] is None or isinstance(checked["x"], TYPES[kind])


def test_only_some_of_thousands_of_unknown_fields_are_taken_for_slips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def compared(name: str, *_: object) -> list[str]:
        seen.append(name)
        return []

    monkeypatch.setattr(difflib, "get_close_matches", compared)
    check({"durable": Field("boolean", "")}, {f"field {n}": n for n in range(10_000)})

    assert seen == [f"field {n}" for n in range(LOOKED_AT)]
