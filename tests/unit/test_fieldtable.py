"""Field tables: types, strictness, comparison by meaning, and bytes that stay as they came."""

import copy
import math
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import encode as pamqp_encode

from lavinmq import fieldtable
from lavinmq.fieldtable import EMPTY, FieldTable, FieldTableError, Long, Timestamp

# The header table of a message with every type, as a client sent it.
EVERY_TYPE = bytes.fromhex(
    "04626f6f6c7401016262fb014242fa017373fed4017575fde8014949fffeee90016969ee6b2800016c6cf000000000"
    "0000000166663fc00000016464400a00000000000001535300000004746578740178780000000300ff100141410000"
    "00154900000001530000000374776f4100000003740156015454000000006553f1000146460000001202696e460000"
    "000a0464656570490000000101565605656d70747953000000000475746638530000000b6772c3bcc39f6520e29c93"
)


def on_wire(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def entry(letter: bytes, value: bytes) -> bytes:
    return b"\x01k" + letter + value


def test_every_type_is_decoded() -> None:
    table, end = fieldtable.decode(b"??" + on_wire(EVERY_TYPE) + b"!", 2)

    assert end == 2 + 4 + len(EVERY_TYPE)
    assert dict(table) == {
        "bool": True,
        "b": -5,
        "B": 250,
        "s": -300,
        "u": 65000,
        "I": -70000,
        "i": 4000000000,
        "l": -1152921504606846976,
        "f": 1.5,
        "d": 3.25,
        "S": "text",
        "x": b"\x00\xff\x10",
        "A": [1, "two", [True, None]],
        "T": Timestamp(1700000000),
        "F": {"in": {"deep": 1}},
        "V": None,
        "empty": "",
        "utf8": "grüße ✓",
    }
    assert isinstance(table["T"], Timestamp)
    assert table.raw == EVERY_TYPE


def test_decimals_and_old_integer_types_are_decoded() -> None:
    content = bytes.fromhex("014444020000013a015555fffe014c4c0000010000000000")

    table, _ = fieldtable.decode(on_wire(content))

    assert dict(table) == {"D": 3.14, "U": -2, "L": 1099511627776}
    assert table.raw == content


def test_the_bytes_of_a_nested_table_are_kept() -> None:
    inner = entry(b"b", b"\x05")
    table, _ = fieldtable.decode(on_wire(entry(b"F", on_wire(inner))))

    nested = table["k"]

    assert isinstance(nested, FieldTable)
    assert nested.raw == inner
    assert fieldtable.encode({"k": nested}) == table.raw


def test_strings_that_are_not_utf8_come_out_as_they_came() -> None:
    table, _ = fieldtable.decode(on_wire(b"\x02\xff\xfe" + b"S" + on_wire(b"\x80a")))

    assert fieldtable.encode(dict(table)) == table.raw


def test_of_two_entries_with_one_key_the_last_counts() -> None:
    table, _ = fieldtable.decode(on_wire(entry(b"b", b"\x01") + entry(b"b", b"\x02")))

    assert table["k"] == 2


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x05k", "key is cut short"),
        (b"\x01k", "value is missing"),
        (entry(b"Z", b"\x00"), "Unknown field type 'Z'"),
        (entry(b"I", b"\x00\x00\x00"), "cut short"),
        (entry(b"T", b"\x00"), "cut short"),
        (entry(b"D", b"\x00"), "cut short"),
        (entry(b"t", b""), "cut short"),
        (entry(b"S", b"\x00\x00"), "cut short"),
        (entry(b"S", b"\x00\x00\x00\x05abcd"), "cut short"),
        (entry(b"F", b"\x00\x00\x00\x02\x01k"), "value is missing"),
        (entry(b"A", b"\x00\x00\x00\x03I\x00\x00"), "cut short"),
        (entry(b"x", b"\xff\xff\xff\xff"), "cut short"),
    ],
)
def test_broken_content_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(FieldTableError, match=why):
        fieldtable.decode(on_wire(content))


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\xff" * 8])
def test_a_table_longer_than_the_data_is_refused(data: bytes) -> None:
    with pytest.raises(FieldTableError):
        fieldtable.decode(data)


def test_a_nested_value_may_not_reach_over_the_end_of_its_table() -> None:
    inner = b"\x01kS" + b"\x00\x00\x00\x04"
    content = entry(b"F", on_wire(inner)) + b"\x03abcV"

    with pytest.raises(FieldTableError, match="cut short"):
        fieldtable.decode(on_wire(content))


@pytest.mark.parametrize("letter", [b"A", b"F"])
def test_nesting_is_bounded(letter: bytes) -> None:
    def nested(levels: int) -> bytes:
        inner = b""
        for _ in range(levels):
            inner = (letter if letter == b"A" else b"\x01kF") + on_wire(inner)
        return on_wire(inner if letter == b"F" else b"\x01k" + inner)

    # An empty table inside is no level of its own: there is nothing in it.
    allowed = 63 if letter == b"A" else 64
    fieldtable.decode(nested(allowed))
    with pytest.raises(FieldTableError, match="nested deeper"):
        fieldtable.decode(nested(allowed + 1))


def test_python_values_are_encoded() -> None:
    values: dict[str, Any] = {
        "t": True,
        "I": -5,
        "l": 2**31,
        "L": Long(7),
        "d": 1.5,
        "S": "ü",
        "x": b"\x00",
        "A": [1, ("a",)],
        "T": Timestamp(9),
        "F": {"n": None},
    }

    content = fieldtable.encode(values)

    assert content.startswith(b"\x01tt\x01\x01II\xff\xff\xff\xfb\x01ll")
    assert b"\x01Ll\x00\x00\x00\x00\x00\x00\x00\x07" in content
    assert fieldtable.from_content(content) == values


def test_an_integer_argument_is_written_as_the_format_shows() -> None:
    content = fieldtable.encode({"x-message-ttl": 60000})

    assert content == bytes.fromhex("0d782d6d6573736167652d74746c490000ea60")


@pytest.mark.parametrize(
    "values",
    [{"k" * 256: 1}, {"k": 2**63}, {"k": -(2**63) - 1}, {"k": object()}, {"k": "\ud800"}],
)
def test_values_without_a_field_type_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(FieldTableError):
        fieldtable.encode(values)


def test_a_structure_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)

    with pytest.raises(FieldTableError, match="nested deeper"):
        fieldtable.encode({"k": loop})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": Long(1)}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": math.nan}, {"a": float("nan")}),
        ({"a": [1, {"b": None}]}, {"a": (1.0, {"b": None})}),
        ({"a": EMPTY}, {"a": {}}),
    ],
)
def test_tables_that_mean_the_same_are_equal(a: Any, b: Any) -> None:
    """edge-cases.md 75"""
    assert fieldtable.equal(a, b)
    assert FieldTable(a) == b
    assert hash(FieldTable(a)) == hash(FieldTable(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 0}, {"a": False}),
        ({"a": 0}, {"a": None}),
        ({"a": 1}, {"a": Timestamp(1)}),
        ({"a": "x"}, {"a": b"x"}),
        ({"a": "1"}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"a": 1, "b": None}),
        ({"a": {}}, {"a": []}),
        ({"a": 2**53 + 1}, {"a": float(2**53)}),
    ],
)
def test_tables_that_mean_something_else_are_not_equal(a: Any, b: Any) -> None:
    assert not fieldtable.equal(a, b)
    assert FieldTable(a) != b


def test_the_same_number_in_another_width_is_equal() -> None:
    short = fieldtable.from_content(entry(b"b", b"\x05"))
    long = fieldtable.from_content(entry(b"l", struct.pack(">q", 5)))

    assert short == long
    assert len({short, long}) == 1


def test_a_table_is_read_only() -> None:
    table = FieldTable({"a": 1})

    for change in (
        lambda: table.__setitem__("a", 2),
        lambda: table.__delitem__("a"),
        lambda: table.update(a=2),
        lambda: table.setdefault("b", 2),
        lambda: table.pop("a"),
        lambda: table.popitem(),
        lambda: table.clear(),
    ):
        with pytest.raises(TypeError, match="read-only"):
            change()
    assert table.raw == b"\x01aI\x00\x00\x00\x01"


def test_amending_leaves_the_other_bytes_alone() -> None:
    table = fieldtable.from_content(b"\x01ab\x01" + b"\x01bu\x00\x02" + b"\x01cS" + on_wire(b"x"))

    changed = fieldtable.amended(table, {"b": True, "d": None}, removed=("c", "absent"))

    assert changed.raw == b"\x01ab\x01" + b"\x01bt\x01" + b"\x01dV"


def test_copies_keep_the_bytes() -> None:
    table = fieldtable.from_content(entry(b"b", b"\x05"))

    assert copy.deepcopy(table) is table
    assert pickle.loads(pickle.dumps(table)).raw == table.raw


keys = st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace").decode())
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.binary(max_size=20)
    | st.integers(-(2**63), 2**63 - 1).map(Timestamp)
    | keys
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)


@settings(deadline=None)
@given(st.dictionaries(keys, values, max_size=5))
def test_what_is_encoded_decodes_to_an_equal_table(table: dict[str, Any]) -> None:
    decoded, end = fieldtable.decode(on_wire(fieldtable.encode(table)))

    assert decoded == table
    assert hash(decoded) == hash(FieldTable(table))
    assert end == 4 + len(decoded.raw)


plain = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
)


@settings(deadline=None)
@given(st.dictionaries(keys, plain, max_size=5))
def test_tables_of_another_encoder_are_understood(table: dict[str, Any]) -> None:
    decoded, _ = fieldtable.decode(pamqp_encode.field_table(table))

    assert decoded == table


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_the_declared_error(content: bytes) -> None:
    try:
        table, _ = fieldtable.decode(on_wire(content))
    except FieldTableError:
        return
    assert table.raw == content
    assert fieldtable.from_content(fieldtable.encode(dict(table))) == table


@settings(deadline=None)
@given(st.dictionaries(keys, values, min_size=1, max_size=3), st.data())
def test_a_damaged_table_decodes_or_raises_the_declared_error(
    table: dict[str, Any], data: st.DataObject
) -> None:
    content = bytearray(fieldtable.encode(table))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] = data.draw(st.integers(0, 255))

    try:
        fieldtable.from_content(bytes(content[: data.draw(st.integers(0, len(content)))]))
    except FieldTableError as error:
        assert str(error)
