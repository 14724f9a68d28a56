"""Properties of messages between JSON and the wire."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from lavinmq.arguments.bounds import TableBounds
from lavinmq.client.wire import encode_content
from lavinmq.fieldtable import Timestamp
from lavinmq.http import encoding, properties
from lavinmq.http.errors import ApiError

BOUNDS = TableBounds(65536, 1024)

TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
HEADERS = st.dictionaries(
    TEXT,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXT
        | st.floats(allow_nan=False),
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
    assert properties.decode(properties.encode(given_, BOUNDS)) == given_


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
    assert properties.decode(properties.encode(given_, BOUNDS)) == meant


def test_headers_that_json_has_no_type_for_are_text() -> None:
    headers = {"t": Timestamp(1700000000), "x": b"\x00\xff", "far": Timestamp(1 << 60)}

    shown = encoding.encode(properties.decode(_with_headers(headers)))

    assert shown == (
        b'{"headers":{"t":"2023-11-14T22:13:20Z","x":"AP8=","far":1152921504606846976}}'
    )


def _with_headers(headers: dict[str, Any]) -> bytes:
    from lavinmq import fieldtable

    content = fieldtable.encode(headers)
    return b"\x20\x00" + len(content).to_bytes(4, "big") + content
