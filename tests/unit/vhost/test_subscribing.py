"""The names of the queues that shared subscriptions have."""

from __future__ import annotations

import hashlib

import pytest

from lavinmq.mqtt import filters
from lavinmq.mqtt.reasons import PacketError
from lavinmq.vhost.subscribing import MOST_GROUP, MOST_STORED, shared_name

LONG = "secret/" + "x" * 300 + "/#"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_what_fits_is_the_name() -> None:
    assert shared_name("g", "a/+/#") == "mqtt.$share/g/a/+/#"
    fits = "x" * (MOST_STORED - len("mqtt.$share/g/"))
    assert shared_name("g", fits) == f"mqtt.$share/g/{fits}"
    for text in (f"${digest(LONG)[1:]}", f"${digest(LONG).upper()}", f"${digest(LONG)}/a"):
        assert shared_name("g", text) == f"mqtt.$share/g/{text}"


@pytest.mark.parametrize("text", [LONG, f"${digest(LONG)}"])
def test_no_filter_is_spelled_like_the_digest_of_another_one(text: str) -> None:
    name = shared_name("g", text)

    assert name == f"mqtt.$share/g/#/{digest(text)}"
    with pytest.raises(PacketError):
        filters.check_filter(name.removeprefix("mqtt.$share/g/"))


def test_a_group_leaves_room_for_a_digest() -> None:
    assert len(shared_name("å" * (MOST_GROUP // 2), LONG).encode()) <= MOST_STORED
    with pytest.raises(ValueError, match="120 bytes"):
        shared_name("å" * (MOST_GROUP // 2) + "x", LONG)
