"""What the arguments of a consistent hash exchange choose to hash, and what is refused."""

from __future__ import annotations

import pytest

from lavinmq._core import HASH_PROPERTIES
from lavinmq.arguments.hash import Hashed, check, complaint, hashed_by
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import FieldTable

UNKNOWN = "argument 'hash-property' must be one of message_id, correlation_id, timestamp"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, Hashed()),
        ({"x-hash-on": "a"}, Hashed("a")),
        ({"hash-header": "a"}, Hashed("a")),
        ({"x-hash-on": "a", "hash-header": "b"}, Hashed("a")),
        ({"x-hash-on": 5, "hash-header": "b"}, Hashed("b")),
        ({"hash-header": 5}, Hashed()),
        ({"x-hash-on": ""}, Hashed("")),
        ({"hash-property": None, "hash-header": "a"}, Hashed("a")),
        ({"hash-property": "message_id"}, Hashed(None, HASH_PROPERTIES["message_id"])),
        ({"hash-property": "correlation_id"}, Hashed(None, HASH_PROPERTIES["correlation_id"])),
        ({"hash-property": "timestamp", "x-hash-on": 5},
         Hashed(None, HASH_PROPERTIES["timestamp"])),
    ],
)  # fmt: skip
def test_arguments_choose_what_is_hashed(arguments: dict[str, object], expected: Hashed) -> None:
    table = FieldTable(arguments)

    check(table)

    assert hashed_by(table) == expected


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"hash-property": "app_id"}, UNKNOWN),
        ({"hash-property": "message-id"}, UNKNOWN),
        ({"hash-property": ""}, UNKNOWN),
        ({"hash-property": 5}, UNKNOWN),
        ({"hash-property": True}, UNKNOWN),
        ({"hash-property": ["message_id"]}, UNKNOWN),
        ({"hash-property": "message_id", "hash-header": "a"},
         "arguments 'hash-header' and 'hash-property' exclude each other"),
        ({"hash-property": "message_id", "x-hash-on": "a"},
         "arguments 'x-hash-on' and 'hash-property' exclude each other"),
    ],
)  # fmt: skip
def test_what_cannot_be_hashed_is_refused_and_means_the_routing_key_when_stored(
    arguments: dict[str, object], reason: str
) -> None:
    table = FieldTable(arguments)

    with pytest.raises(ChannelError, match=reason) as refused:
        check(table)

    assert refused.value.code == 406
    assert complaint(table) == reason
    assert hashed_by(table) == Hashed()
