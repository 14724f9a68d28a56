"""Places that connections go to: one for all that say the same, and nobody else's."""

from __future__ import annotations

import gc

from lavinmq.shovel import places

URI = "amqp://user:very-secret@host/v"


def test_what_says_the_same_is_one() -> None:
    assert places.parse(URI, "/") is places.parse(URI, "/")


def test_the_same_text_in_another_virtual_host_is_another_place() -> None:
    here, there = places.parse("amqp://", "mine"), places.parse("amqp://", "theirs")
    assert (here.vhost, there.vhost) == ("mine", "theirs")


def test_another_login_or_option_is_another_place() -> None:
    first = places.parse(URI, "/")
    other_user = places.parse(URI.replace("user", "other"), "/")
    other_option = places.parse(f"{URI}?heartbeat=7", "/")
    assert first.target.user == "user" and other_user.target.user == "other"
    assert first.config.heartbeat != 7 and other_option.config.heartbeat == 7


def test_no_password_stays_when_nobody_uses_it_any_more() -> None:
    place = places.parse(URI, "/")
    assert any("very-secret" in uri for uri, _ in places._IN_USE)
    del place
    gc.collect()
    assert not any("very-secret" in uri for uri, _ in places._IN_USE)
