"""Field tables, properties and methods: what goes out comes back, and is what others write."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, encode, header

from lavinmq.client import _engine, methods
from lavinmq.client.errors import ProtocolViolation, TooLarge, ValueNotEncodable

KEYS = st.text(max_size=40).filter(lambda text: len(text.encode("utf-8", "ignore")) < 200)
MOMENTS = st.integers(0, 253402300799).map(lambda s: datetime.fromtimestamp(s, UTC))
DECIMALS = st.builds(
    lambda digits, scale: Decimal(digits).scaleb(-scale),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 9),
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
    | st.binary(max_size=50)
    | MOMENTS
    | DECIMALS
)
TEXT_KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
TABLES = st.recursive(
    st.dictionaries(TEXT_KEYS, SCALARS, max_size=6),
    lambda inner: st.dictionaries(TEXT_KEYS, inner | st.lists(SCALARS | inner), max_size=4),
    max_leaves=20,
)


@given(TABLES)
def test_a_table_comes_back_as_it_was(table: dict[str, Any]) -> None:
    assert _engine.decode_table(_engine.encode_table(table)) == table


@given(st.binary(max_size=200))
def test_any_bytes_are_a_table_or_a_violation(data: bytes) -> None:
    raw = len(data).to_bytes(4, "big") + data
    try:
        table = _engine.decode_table(raw)
    except ProtocolViolation:
        return
    assert isinstance(table, dict)


def test_a_table_is_what_pamqp_writes() -> None:
    table = {"i": 5, "l": 2**40, "s": "text", "t": True, "n": None, "f": {"x": [1, "a"]}}

    mine = _engine.encode_table(table)

    theirs = encode.field_table(
        {"i": 5, "l": 2**40, "s": "text", "t": True, "n": None, "f": {"x": [1, "a"]}}
    )
    assert _engine.decode_table(theirs) == table == _engine.decode_table(mine)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (object(), ValueNotEncodable),
        (2**63, ValueNotEncodable),
        (Decimal("1e300"), ValueNotEncodable),
        (datetime(1960, 1, 1, tzinfo=UTC), ValueNotEncodable),
        ("\ud800", ValueNotEncodable),
    ],
)
def test_what_has_no_form_is_refused(value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        _engine.encode_table({"k": value})


def test_tables_are_nested_within_bounds() -> None:
    table: dict[str, Any] = {}
    for _ in range(100):
        table = {"k": table}
    with pytest.raises(TooLarge):
        _engine.encode_table(table)


def test_a_key_of_more_than_255_bytes_is_refused() -> None:
    with pytest.raises(TooLarge):
        _engine.encode_table({"k" * 256: 1})


def test_text_that_is_not_utf8_passes_as_it_is() -> None:
    raw = b"\x00\x00\x00\x09\x01kS\x00\x00\x00\x02\xff\xfe"

    table = _engine.decode_table(raw)

    assert _engine.encode_table(table) == raw


@pytest.mark.parametrize("raw", [b"", b"\x00\x00\x00\x05\x01kS\x00\x00", b"\x00\x00\x00\x01\x05"])
def test_a_table_that_is_cut_is_a_violation(raw: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        _engine.decode_table(raw)


PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "headers": st.dictionaries(TEXT_KEYS, SCALARS, max_size=4),
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "correlation_id": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        "expiration": st.integers(0, 10**9).map(str),
        "timestamp": MOMENTS,
        "app_id": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    },
)


@given(PROPERTIES)
def test_properties_come_back_as_they_were(properties: dict[str, Any]) -> None:
    raw = _engine.encode_properties(properties)

    assert _engine.decode_properties(raw) == properties


def test_properties_are_what_pamqp_writes() -> None:
    theirs = commands.Basic.Properties(
        content_type="text/plain", delivery_mode=2, message_id="m", headers={"a": 1}, app_id="x"
    )
    mine = _engine.encode_properties(
        {
            "content_type": "text/plain",
            "delivery_mode": 2,
            "message_id": "m",
            "headers": {"a": 1},
            "app_id": "x",
        }
    )

    raw = header.ContentHeader(body_size=0, properties=theirs).marshal()[12:]
    assert _engine.decode_properties(mine) == _engine.decode_properties(raw)


@pytest.mark.parametrize(
    "properties", [{"priority": 256}, {"delivery_mode": "2"}, {"colour": "red"}, {"headers": 5}]
)
def test_wrong_properties_are_refused_by_name(properties: dict[str, Any]) -> None:
    with pytest.raises(ValueNotEncodable, match=next(iter(properties))):
        _engine.encode_properties(properties)


def test_an_expiration_may_be_a_number() -> None:
    raw = _engine.encode_properties({"expiration": 1500})

    assert _engine.decode_properties(raw) == {"expiration": "1500"}


@given(st.binary(max_size=100))
def test_any_bytes_are_properties_or_a_violation(data: bytes) -> None:
    try:
        found = _engine.decode_properties(data)
    except ProtocolViolation:
        return
    assert found.keys() <= set(_engine.PROPERTY_NAMES)


VALUES = {
    "B": st.integers(0, 255),
    "H": st.integers(0, 65535),
    "L": st.integers(0, 2**32 - 1),
    "Q": st.integers(0, 2**64 - 1),
    "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    "S": st.binary(max_size=60),
    "T": st.dictionaries(TEXT_KEYS, SCALARS, max_size=2),
    "b": st.booleans(),
}


@pytest.mark.parametrize("name", methods.IDS)
@given(data=st.data())
def test_each_method_comes_back_as_it_was(name: str, data: st.DataObject) -> None:
    number = methods.IDS[name]
    form = methods.FORMS[number]
    values = tuple(data.draw(VALUES[kind]) for kind in form)

    raw = _engine.encode_method(7, number, form, *values)

    assert raw[:3] == b"\x01\x00\x07" and raw[-1] == 0xCE
    assert int.from_bytes(raw[3:7], "big") == len(raw) - 8
    assert _engine.decode_method(raw[7:-1], form) == values


@pytest.mark.parametrize("moment", ["now", -1, 2**64, math.nan, math.inf])
def test_what_is_no_time_is_refused(moment: object) -> None:
    with pytest.raises(ValueNotEncodable, match="time"):
        _engine.encode_properties({"timestamp": moment})


@given(st.binary(max_size=60), st.text("BHLQsSTb", max_size=8))
def test_any_bytes_are_a_method_or_a_violation(data: bytes, form: str) -> None:
    try:
        values = _engine.decode_method(b"\x00\x0a\x00\x0a" + data, form)
    except ProtocolViolation:
        return
    assert len(values) == len(form)


@pytest.mark.parametrize(("kind", "value"), [("B", 256), ("H", -1), ("L", 2**32), ("H", "5")])
def test_a_number_that_does_not_fit_is_refused(kind: str, value: object) -> None:
    with pytest.raises(ValueNotEncodable):
        _engine.encode_method(0, 1, kind, value)


def test_numbers_of_other_widths_are_read() -> None:
    raw = b"\x01bb\xff\x01fd" + b"\x3f\xf0" + bytes(6) + b"\x01gf\x3f\x80\x00\x00\x01uu\xff\xff"

    table = _engine.decode_table(len(raw).to_bytes(4, "big") + raw)

    assert table == {"b": -1, "f": 1.0, "g": 1.0, "u": 65535}
    assert math.isclose(table["g"], 1.0)
