"""Properties of messages between JSON and the wire."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from lavinmq import _core, fieldtable
from lavinmq.arguments.bounds import TableBounds
from lavinmq.fieldtable import Timestamp
from lavinmq.http import encoding, properties
from lavinmq.http.errors import ApiError
from tests.support.raw_wire import encode_content

BOUNDS = TableBounds(65536, 1024)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
HEADERS = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)  # fmt: skip
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "headers": HEADERS,
        "delivery_mode": st.integers(0, 255),
        "priority": st.integers(0, 255),
        "timestamp": st.integers(0, 2**63 - 1),
        "expiration": st.integers(-5, 2**31).map(str),
    }
    | dict.fromkeys(
        ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type",
         "user_id", "app_id", "reserved1"), TEXT,
    ),
)  # fmt: skip


@given(PROPERTIES)
def test_what_is_written_is_read_again(given_: dict[str, Any]) -> None:
    assert _read(properties.encode(given_, BOUNDS)) == given_


def test_the_bytes_are_those_that_clients_send() -> None:
    given_ = {
        "content_type": "ct", "content_encoding": "ce", "headers": {"s": "x"}, "delivery_mode": 2,
        "priority": 5, "correlation_id": "c", "reply_to": "r", "expiration": "9",
        "message_id": "m", "user_id": "u", "app_id": "a",
    }  # fmt: skip
    header = encode_content(1, commands.Basic.Properties(**given_, message_type="t"), b"", 4096)
    assert properties.encode(given_ | {"type": "t"}, BOUNDS) == header[7 + 12 : -1]


@pytest.mark.parametrize(
    ("given_", "reason"),
    [
        ({"content_type": 5}, "Property 'content_type' must be a string"),
        ({"app_id": "a" * 256}, "Property 'app_id' is longer than 255 bytes"),
        ({"priority": 300}, "Property 'priority' must be between 0 and 255"),
        ({"priority": -1}, "Property 'priority' must be between 0 and 255"),
        ({"timestamp": 1 << 63}, "Property 'timestamp' must be between 0"),
        ({"expiration": "x"}, "Expiration not a number"),
        ({"expiration": 1.5}, "Expiration not a number"),
        ({"expiration": True}, "Expiration not a number"),
        ({"headers": {"n": 1 << 63}}, "Property 'headers': Integer"),
        ({"headers": {"k" * 256: 1}}, "Property 'headers': Field table key"),
    ],
)
def test_what_cannot_be_written_is_named(given_: dict[str, Any], reason: str) -> None:
    with pytest.raises(ApiError) as caught:
        properties.encode(given_, BOUNDS)
    assert caught.value.status == 400 and reason in caught.value.reason


@pytest.mark.parametrize(
    ("given_", "meant"),
    [
        ({"content_type": None, "unknown": 1}, {}),
        ({"delivery_mode": "2", "priority": "3"}, {"delivery_mode": 2, "priority": 3}),
        ({"delivery_mode": 2.5, "timestamp": "soon", "headers": 5}, {}),
        ({"expiration": 600}, {"expiration": "600"}),
        ({"reserved": "z"}, {"reserved1": "z"}),
    ],
)
def test_other_types(given_: dict[str, Any], meant: dict[str, Any]) -> None:
    assert _read(properties.encode(given_, BOUNDS)) == meant


def _read(raw: bytes) -> dict[str, Any]:
    """Properties as they are on the wire, headers included."""
    found, headers = properties.decode(raw)
    return found if headers is None else found | {"headers": json.loads(_text(headers))}


def _text(headers: bytes) -> bytes:
    return b"".join(_core.TableText(headers))


# --- tables as text ---------------------------------------------------------------------------

SIZES = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4,
         "d": 8, "D": 5, "T": 8, "V": 0}  # fmt: skip


def _sized(letter: str, content: bytes) -> bytes:
    return letter.encode() + len(content).to_bytes(4, "big") + content


def _entries(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    keys = st.binary(max_size=9).map(lambda key: bytes([len(key)]) + key)
    return st.lists(st.tuples(keys, values).map(b"".join), max_size=5).map(b"".join)


VALUES = st.recursive(
    st.one_of(
        *(st.binary(min_size=size, max_size=size).map(letter.encode().__add__)
          for letter, size in SIZES.items()),
        st.binary(max_size=20).map(partial(_sized, "S")),
        st.text(max_size=9).map(lambda text: _sized("S", text.encode("utf-8", "surrogatepass"))),
        st.binary(max_size=20).map(partial(_sized, "x")),
    ),
    lambda inner: _entries(inner).map(partial(_sized, "F"))
    | st.lists(inner, max_size=4).map(b"".join).map(partial(_sized, "A")),
    max_leaves=8,
)  # fmt: skip
"""Values of all types as they stand on the wire."""


def test_headers_that_json_has_no_type_for_are_text() -> None:
    headers = {"t": Timestamp(1700000000), "x": b"\x00\xff", "far": Timestamp(1 << 60)}

    shown = _text(fieldtable.encode(headers))

    assert shown == b'{"t":"2023-11-14T22:13:20Z","x":"AP8=","far":1152921504606846976}'


@given(_entries(VALUES))
def test_a_table_as_text_says_what_its_values_say(content: bytes) -> None:
    values = fieldtable.from_content(content)

    assert json.loads(_text(content)) == json.loads(encoding.encode(values))


@given(st.integers(-62135596800 - 5, 253402300799 + 5))
def test_times_are_those_of_the_calendar(seconds: int) -> None:
    shown = json.loads(_text(fieldtable.encode({"t": Timestamp(seconds)})))

    assert shown == {"t": encoding.rfc3339(Timestamp(seconds))}


@given(st.binary(max_size=60))
def test_bytes_are_a_table_for_both_or_for_none(content: bytes) -> None:
    try:
        values = fieldtable.from_content(content)
    except fieldtable.FieldTableError:
        with pytest.raises(ValueError, match="no field table"):
            _text(content)
    else:
        assert json.loads(_text(content)) == json.loads(encoding.encode(values))


def test_what_is_no_utf8_is_kept_byte_for_byte() -> None:
    content = b"\x01\xffS\x00\x00\x00\x04\xc3\xa4\x80\n"

    assert _text(content) == b'{"\\udcff":"\xc3\xa4\\udc80\\u000a"}'


@pytest.mark.parametrize("letter", [b"F", b"A"])
def test_what_is_nested_too_deep_is_no_table(letter: bytes) -> None:
    content = b""
    for _ in range(80):
        key = b"\x00" if letter == b"F" else b""
        content = key + letter + len(content).to_bytes(4, "big") + content
    content = content if letter == b"F" else b"\x00" + content

    with pytest.raises(ValueError, match="no field table"):
        _text(content)


def test_a_long_table_comes_in_pieces() -> None:
    content = fieldtable.encode({f"{n:07}": n / 7 for n in range(7000)})

    pieces = list(_core.TableText(content))

    assert len(pieces) > 10
    assert json.loads(b"".join(pieces)) == dict(fieldtable.from_content(content))
