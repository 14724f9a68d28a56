"""Typed headers from text: the same bytes that the text was made from."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
from lavinmq.spark._arrow import Columns
from lavinmq.spark.headers_json import HeadersError, encode_table


def as_text(table: bytes) -> str:
    """What a reader shows of a message with this table."""
    columns = Columns(("headers_json",))
    properties = struct.pack(">HI", 1 << 13, len(table)) + table
    assert columns.add(b"", b"", properties, b"")
    (text,) = columns.take().column(0).to_pylist()
    return str(text)


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def entry(key: bytes, value: bytes) -> bytes:
    return bytes((len(key),)) + key + value


INTEGERS = {"b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "I": 4, "i": 4, "l": 8, "L": 8, "T": 8}
FIXED = {**INTEGERS, "f": 4, "d": 8, "D": 5, "V": 0}
scalars = st.one_of(
    *[
        st.binary(min_size=size, max_size=size).map(lambda data, k=kind: k.encode() + data)
        for kind, size in FIXED.items()
    ],
    st.integers(0, 255).map(lambda n: b"t" + bytes((n,))),
    st.binary(max_size=40).map(lambda data: b"S" + sized(data)),
    st.text(max_size=40).map(lambda text: b"S" + sized(text.encode())),
    st.binary(max_size=40).map(lambda data: b"x" + sized(data)),
)
keys = st.binary(max_size=30) | st.text(max_size=30).map(str.encode)


def tables_of(values: Any) -> Any:
    entries = st.tuples(keys, values).map(lambda pair: entry(*pair))
    return st.lists(entries, max_size=5).map(b"".join)


values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: b"A" + sized(b"".join(items)))
        | tables_of(inner).map(lambda table: b"F" + sized(table))
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(tables_of(values))
def test_the_same_table_comes_out(table: bytes) -> None:
    assert encode_table(as_text(table)) == table


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_what_is_no_table_is_kept_as_its_bytes(table: bytes) -> None:
    assert encode_table(as_text(table)) == table


def test_entries_are_left_out_at_the_top_only() -> None:
    text = '{"a":{"I":1},"b":{"F":{"a":{"V":null}}},"a":{"t":true}}'

    assert encode_table(text, ("a",)) == entry(b"b", b"F" + sized(entry(b"a", b"V")))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no JSON"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("1", "a table is an object"),
        ("[]", "a table is an object"),
        ('"not base64"', "not typed"),
        ('{"a":1}', "the value of 'a' is not like"),
        ('{"a":"b"}', "the value of 'a' is not like"),
        ('{"a":{}}', "the value of 'a' is not like"),
        ('{"a":{"I":1,"l":2}}', "the value of 'a' is not like"),
        ('{"a":{"Z":1}}', "unknown type 'Z'"),
        ('{"a":{"é":1}}', "unknown type 'é'|does not fit"),
        ('{"a":{"I":2147483648}}', "does not fit type 'I'"),
        ('{"a":{"I":1.5}}', "does not fit type 'I'"),
        ('{"a":{"I":true}}', "does not fit type 'I'"),
        ('{"a":{"d":"00"}}', "does not fit type 'd'"),
        ('{"a":{"d":NaN}}', "does not fit type 'd'"),
        ('{"a":{"D":[1]}}', "does not fit type 'D'"),
        ('{"a":{"t":"yes"}}', "does not fit type 't'"),
        ('{"a":{"V":0}}', "does not fit type 'V'"),
        ('{"a":{"x":"?"}}', "does not fit type 'x'"),
        ('{"a":{"S":1}}', "does not fit type 'S'"),
        ('{"a":{"S":"\\ud800"}}', "does not fit type 'S'"),
        ('{"a":{"A":{}}}', "does not fit type 'A'"),
        ('{"a":{"F":[]}}', "does not fit type 'F'"),
        ('{"' + "k" * 256 + '":{"V":null}}', "256 bytes, AMQP allows 255"),
        ('{"a":' + '{"F":{"a":' * 64 + '{"V":null}' + "}}" * 64 + "}", "nested deeper than 64"),
    ],
)
def test_text_that_is_not_typed_headers_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(HeadersError, match=why) as caught:
        encode_table(text)

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
