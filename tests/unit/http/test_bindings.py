"""The key of a binding: routing key, and its arguments as sorted text in base64."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from lavinmq.fieldtable import EMPTY, FieldTable, Timestamp
from lavinmq.http.api.bindings import properties_key


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"z": 1, "a": "b"}, "a:b,z:1"),
        ({"n": None}, "n:"),
        ({"x-match": "all", "n": {"a": [1]}}, 'n:{"a" => [1]},x-match:all'),
        ({"l": [None, True, 'q"\\', 1.5]}, 'l:[nil, true, "q\\"\\\\", 1.5]'),
        ({"b": False, "x": b"\x01\xff"}, "b:false,x:Bytes[1, 255]"),
        ({"t": Timestamp(0)}, "t:1970-01-01T00:00:00Z"),
    ],
)
def test_arguments_are_sorted_text(arguments: dict[str, Any], text: str) -> None:
    """edge-cases.md 76."""
    key = properties_key("k", FieldTable(arguments))

    assert key.startswith("k~")
    assert base64.urlsafe_b64decode(key[2:]).decode() == text


def test_without_arguments_it_is_the_routing_key() -> None:
    """edge-cases.md 76."""
    assert properties_key("a.#", EMPTY) == properties_key("a.#", None) == "a.#"
    assert properties_key("", EMPTY) == "~"
