"""Columns of messages: properties, projection, repair of text, headers in both forms, limits."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq.spark._arrow import Columns
from lavinmq.spark.schema import SEGMENT_COLUMNS, arrow_schema
from tests.support.typed_headers import content, entry, sized

NONE = b"\0\0"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORT_STRINGS = {
    "content_type": 0x8000, "content_encoding": 0x4000, "correlation_id": 0x0400,
    "reply_to": 0x0200, "expiration": 0x0100, "message_id": 0x0080, "type": 0x0020,
    "user_id": 0x0010, "app_id": 0x0008,
}  # fmt: skip


def one(names: tuple[str, ...], properties: bytes = NONE, **facts: Any) -> dict[str, Any]:
    """Return the row of one message."""
    columns = Columns(names)
    assert columns.add(b"ex", b"key", properties, b"body", **facts)
    batch = columns.take()
    batch.validate(full=True)
    (row,) = batch.to_pylist()
    return dict(row)


def with_headers(table: bytes, *, wire: bool = True) -> bytes:
    order = ">" if wire else "<"
    return struct.pack(f"{order}HI", 0x2000, len(table)) + table


def headers_json(table: bytes) -> str:
    text = one(("headers_json",), with_headers(table))["headers_json"]
    json.loads(text)
    return str(text)


def headers_map(table: bytes) -> list[tuple[str, str | None]] | None:
    found: list[tuple[str, str | None]] | None
    found = one(("headers",), with_headers(table))["headers"]
    return found


def test_schema_of_a_batch_is_the_declared_one_to_the_letter() -> None:
    batch = Columns(tuple(SEGMENT_COLUMNS)).take()

    assert batch.schema.equals(arrow_schema(SEGMENT_COLUMNS, SEGMENT_COLUMNS), check_metadata=True)
    assert batch.num_rows == 0


@pytest.mark.parametrize("wire", [True, False])
def test_every_property_comes_out_of_both_byte_orders(wire: bool) -> None:
    order = ">" if wire else "<"
    table = entry(b"a", b"I" + struct.pack(">i", 1))
    flags = 0xFFFC
    properties = struct.pack(order + "H", flags)
    properties += b"\x02ct\x02ce" + struct.pack(order + "I", len(table)) + table
    properties += b"\x02\xff\x02co\x02rt\x02ex\x02mi" + struct.pack(order + "q", 1_700_000_000)
    properties += b"\x02ty\x02ui\x02ai\x02re"

    row = one(tuple(SEGMENT_COLUMNS), properties, offset=7, timestamp_ms=1_735_689_600_100,
              segment=3, position=4, acked=True, wire=wire)  # fmt: skip

    assert row == {
        "queue": "", "offset": 7, "timestamp": EPOCH + timedelta(milliseconds=1_735_689_600_100),
        "exchange": "ex", "routing_key": "key", "body": b"body", "content_type": "ct",
        "content_encoding": "ce", "delivery_mode": 2, "priority": 255, "correlation_id": "co",
        "reply_to": "rt", "expiration": "ex", "message_id": "mi", "type": "ty", "user_id": "ui",
        "app_id": "ai", "message_timestamp": EPOCH + timedelta(seconds=1_700_000_000),
        "headers": [("a", "1")], "headers_json": '{"a":{"I":1}}', "vhost": "", "segment": 3,
        "position": 4, "acked": True, "queue_type": "",
    }  # fmt: skip


def test_what_a_message_does_not_have_is_null() -> None:
    row = one(tuple(SEGMENT_COLUMNS))

    present = {"queue", "vhost", "queue_type", "exchange", "routing_key", "body"}
    assert {name for name, value in row.items() if value is not None} == present


@pytest.mark.parametrize("name", SHORT_STRINGS)
def test_one_property_alone_is_found(name: str) -> None:
    properties = struct.pack(">H", SHORT_STRINGS[name]) + b"\x05value"

    assert one((name, "body"), properties) == {name: "value", "body": b"body"}


def test_columns_come_in_the_order_asked_for_with_constants() -> None:
    columns = Columns(("body", "queue", "offset"), queue="orders")
    columns.add(b"", b"", NONE, b"x", offset=1)

    batch = columns.take()

    assert batch.schema.names == ["body", "queue", "offset"]
    assert batch.to_pylist() == [{"body": b"x", "queue": "orders", "offset": 1}]


@pytest.mark.parametrize("names", [(), ("body", "body"), ("nothing",)])
def test_impossible_columns_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="column"):
        Columns(names)


def test_rows_grow_and_absent_values_in_between_stay_null() -> None:
    names = ("offset", "routing_key", "message_id", "priority", "headers", "acked", "body")
    columns = Columns(names)
    table = entry(b"n", b"V")
    rare = struct.pack(">HI", 0x2880, len(table)) + table + b"\x09\x03mid"
    wanted = []
    for number in range(5000):
        has = number % 1700 == 1
        columns.add(b"", b"k" * (number % 7), rare if has else NONE, b"b" * (number % 90),
                    offset=number, acked=bool(number & 1) if has else None)  # fmt: skip
        wanted.append({
            "offset": number, "routing_key": "k" * (number % 7),
            "message_id": "mid" if has else None, "priority": 9 if has else None,
            "headers": [("n", None)] if has else None,
            "acked": bool(number & 1) if has else None, "body": b"b" * (number % 90),
        })  # fmt: skip
    assert (columns.n_rows, columns.n_bytes > 0) == (5000, True)

    batch = columns.take()

    batch.validate(full=True)
    assert batch.to_pylist() == wanted
    assert (columns.n_rows, columns.n_bytes) == (0, 0)


def test_a_batch_is_untouched_by_the_rows_that_follow() -> None:
    columns = Columns(("body", "offset"))
    columns.add(b"", b"", NONE, b"first", offset=1)
    first = columns.take()
    columns.add(b"", b"", NONE, b"other", offset=2)
    second = columns.take()
    del columns

    assert first.to_pylist() == [{"body": b"first", "offset": 1}]
    assert second.to_pylist() == [{"body": b"other", "offset": 2}]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_texts_that_are_no_utf8_are_repaired_as_python_does(texts: list[bytes]) -> None:
    columns = Columns(("routing_key",))
    for text in texts:
        columns.add(b"", text, NONE, b"")
    batch = columns.take()

    batch.validate(full=True)
    assert batch.column(0).to_pylist() == [text.decode("utf-8", "replace") for text in texts]
    assert columns.n_repaired == sum(_is_bad(text) for text in texts)


@given(st.text(max_size=80))
def test_valid_text_is_kept(text: str) -> None:
    raw = text.encode()[:255].decode("utf-8", "ignore")

    assert one(("routing_key",))["routing_key"] == "key"
    columns = Columns(("exchange",))
    columns.add(raw.encode(), b"", NONE, b"")
    assert columns.take().column(0).to_pylist() == [raw]
    assert columns.n_repaired == 0


def _is_bad(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return True
    return False


@pytest.mark.parametrize(
    "properties",
    [b"", b"\x80", b"\x80\x00", b"\x80\x00\x05abc", b"\x00\x01", b"\x20\x00\x00\x00\x00\x09a",
     b"\x20\x00\xff\xff\xff\xffa", b"\x00\x40\x00"],
)  # fmt: skip
def test_malformed_properties_are_refused_and_add_nothing(properties: bytes) -> None:
    columns = Columns(tuple(SEGMENT_COLUMNS))
    with pytest.raises(ValueError, match="malformed"):
        columns.add(b"", b"", properties, b"")
    columns.add(b"", b"next", NONE, b"")

    batch = columns.take()

    batch.validate(full=True)
    assert batch.column("routing_key").to_pylist() == ["next"]


def test_times_without_microseconds_are_null() -> None:
    stamp = struct.pack(">Hq", 0x0040, 2**62)

    row = one(("timestamp", "message_timestamp"), stamp, timestamp_ms=2**62)

    assert row == {"timestamp": None, "message_timestamp": None}


# --- headers ----------------------------------------------------------------------------------


SCALARS = [
    (b"t\x01", '{"t":true}', "true"),
    (b"t\x00", '{"t":false}', "false"),
    (b"t\x02", '{"t":2}', "true"),
    (b"b\xfe", '{"b":-2}', "-2"),
    (b"B\xc8", '{"B":200}', "200"),
    (b"s\xfe\xd4", '{"s":-300}', "-300"),
    (b"U\xfe\xd4", '{"U":-300}', "-300"),
    (b"u\xea\x60", '{"u":60000}', "60000"),
    (b"I\x80\0\0\0", '{"I":-2147483648}', "-2147483648"),
    (b"i\xff\xff\xff\xff", '{"i":4294967295}', "4294967295"),
    (b"l\x80" + bytes(7), '{"l":-9223372036854775808}', "-9223372036854775808"),
    (b"L\x7f" + b"\xff" * 7, '{"L":9223372036854775807}', "9223372036854775807"),
    (b"T" + struct.pack(">q", 1_700_000_000), '{"T":1700000000}', "1700000000"),
    (b"f" + struct.pack(">f", 0.1), '{"f":0.1}', "0.1"),
    (b"d" + struct.pack(">d", 0.1), '{"d":0.1}', "0.1"),
    (b"d" + struct.pack(">d", -0.0), '{"d":-0.0}', "-0.0"),
    (b"d" + struct.pack(">d", 1e300), '{"d":1e+300}', "1e+300"),
    (b"d\x7f\xf8\0\0\0\0\0\x01", '{"d":"7ff8000000000001"}', "NaN"),
    (b"f\xff\x80\0\0", '{"f":"ff800000"}', "-Infinity"),
    (b"D\x02\0\0\x01\x3a", '{"D":[2,314]}', "3.14"),
    (b"D\x05\xff\xff\xff\xff", '{"D":[5,-1]}', "-0.00001"),
    (b"D\x00\0\0\0\x07", '{"D":[0,7]}', "7"),
    (b"V", '{"V":null}', None),
    (sized(b"S", "hé\n\"\\".encode()), '{"S":"hé\\u000a\\"\\\\"}', 'hé\n"\\'),
    (sized(b"S", b"\xff\x00"), '{"S":"\\udcff\\u0000"}', "\ufffd\0"),
    (sized(b"x", b"\x01\x02"), '{"x":"AQI="}', '"AQI="'),
    (sized(b"A", b"t\x01V"), '{"A":[{"t":true},{"V":null}]}', "[true,null]"),
    (sized(b"F", entry(b"k", b"B\x01")), '{"F":{"k":{"B":1}}}', '{"k":1}'),
    (sized(b"F", b""), '{"F":{}}', "{}"),
    (sized(b"A", b""), '{"A":[]}', "[]"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "typed", "plain"), SCALARS)
def test_each_type_has_a_typed_and_a_plain_form(
    value: bytes, typed: str, plain: str | None
) -> None:
    table = entry(b"k", value)

    assert headers_json(table) == '{"k":' + typed + "}"
    assert content(headers_json(table)) == table
    assert headers_map(table) == [("k", plain)]


def test_empty_headers_are_not_absent_ones() -> None:
    assert headers_json(b"") == "{}"
    assert headers_map(b"") == []


def test_keys_twice_and_bytes_that_are_no_text_stay() -> None:
    table = (
        entry(b"a", b"V") + entry(b"a", b"t\x01") + entry(b"\xed\xa0\x80", b"V") + entry(b"", b"V")
    )

    assert content(headers_json(table)) == table
    assert headers_map(table) == [
        ("a", None),
        ("a", "true"),
        ("\ufffd\ufffd\ufffd", None),
        ("", None),
    ]


NOT_TABLES = [
    b"\x05a", b"\x01a", b"\x01aQ", b"\x01aI\0", b"\x01aS\0\0\0\x05x", b"\x01aV\x00",
    b"\x01aF\0\0\0\x01\x09", b"\x01aA\0\0\0\x02IV", b"\x01aS\xff\xff\xff\xff",
]  # fmt: skip


@pytest.mark.parametrize("table", NOT_TABLES)
def test_bytes_that_are_no_table_are_kept_as_base64_and_are_no_map(table: bytes) -> None:
    assert json.loads(headers_json(table)).__class__ is str
    assert content(headers_json(table)) == table
    assert headers_map(table) is None


def test_nesting_ends_at_64() -> None:
    def nested(depth: int) -> bytes:
        table = b""
        for _ in range(depth - 1):
            table = entry(b"n", sized(b"F", table))
        return table

    assert headers_json(nested(64)).startswith('{"n":{"F"')
    assert headers_json(nested(65)).startswith('"')
    assert headers_json(nested(2000)).startswith('"')


def test_a_message_with_a_broken_table_leaves_its_neighbours_alone() -> None:
    columns = Columns(("headers", "headers_json", "content_type"))
    good, bad = entry(b"a", sized(b"S", b"1")), entry(b"a", sized(b"S", b"1")) + b"\x01bQ"
    for table in (good, bad, good):
        head = struct.pack(">H", 0xA000) + b"\x01t" + struct.pack(">I", len(table))
        columns.add(b"", b"", head + table, b"")

    batch = columns.take()

    batch.validate(full=True)
    assert batch.column("headers").to_pylist() == [[("a", "1")], None, [("a", "1")]]
    assert batch.column("content_type").to_pylist() == ["t", "t", "t"]


def _values(children: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    keys = st.binary(max_size=6)
    entries = st.lists(st.tuples(keys, children), max_size=4)
    tables = entries.map(lambda pairs: sized(b"F", b"".join(entry(*pair) for pair in pairs)))
    arrays = st.lists(children, max_size=4).map(lambda values: sized(b"A", b"".join(values)))
    return tables | arrays


def _fixed(letter: bytes, size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size).map(lambda raw: letter + raw)


SIZES = {b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"U": 2, b"I": 4, b"i": 4, b"f": 4, b"D": 5,
         b"l": 8, b"L": 8, b"d": 8, b"T": 8, b"V": 0}  # fmt: skip
LEAVES = st.one_of(
    *[_fixed(letter, size) for letter, size in SIZES.items()],
    st.binary(max_size=12).map(lambda raw: sized(b"S", raw)),
    st.binary(max_size=12).map(lambda raw: sized(b"x", raw)),
)
TABLES = st.lists(
    st.tuples(st.binary(max_size=6), st.recursive(LEAVES, _values, max_leaves=8)), max_size=5
).map(lambda pairs: b"".join(entry(*pair) for pair in pairs))


@given(TABLES)
@settings(max_examples=300)
def test_typed_headers_give_back_the_very_same_table(table: bytes) -> None:
    text = headers_json(table)

    assert text.startswith("{"), "a good table was taken for a bad one"
    assert content(text) == table


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_plain_real_numbers_read_back_as_the_same(number: float) -> None:
    found = headers_map(entry(b"d", b"d" + struct.pack(">d", number)))

    assert found is not None
    text = found[0][1]
    assert text is not None
    assert math.copysign(1, float(text)) == math.copysign(1, number)
    assert float(text) == number


@given(st.binary(max_size=120))
@settings(max_examples=300)
def test_any_bytes_as_headers_are_kept_or_refused(table: bytes) -> None:
    assert content(headers_json(table)) == table
    headers_map(table)


def test_pyarrow_owns_what_it_got() -> None:
    columns = Columns(("body", "headers"))
    columns.add(b"", b"", with_headers(entry(b"a", b"V")), b"x" * 1000)
    batch = columns.take()

    table = pa.Table.from_batches([batch, columns.take()])

    assert table.num_rows == 1
    assert table.combine_chunks().column("body").to_pylist() == [b"x" * 1000]
