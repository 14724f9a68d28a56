"""Parameters of upstreams and sets: read, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq.federation.upstreams import of_set, parse, parse_set


def test_defaults_are_those_of_the_original() -> None:
    found = parse("u", {"uri": "amqp://h/v"}, "/")
    assert (found.prefetch, found.delay_s, found.ack_mode, found.max_hops) == (
        1000, 1.0, "on-confirm", 1
    )  # fmt: skip
    assert (found.exchange, found.queue, found.expires_ms) == ("", "", None)
    assert found.consumer_tag == "federation-link-u"


@pytest.mark.parametrize("nothing", ["", None])
def test_empty_and_null_names_are_those_of_here(nothing: str | None) -> None:
    found = parse("u", {"uri": "amqp://h", "exchange": nothing, "queue": nothing}, "/")
    assert (found.exchange, found.queue) == ("", "")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (5, "must be an object"),
        ({}, "requires field 'uri'"),
        ({"uri": "nonsense"}, "'uri' is no URI"),
        ({"uri": ["amqp://h", "http://h"]}, "Item 1 of 'uri' has the scheme 'http'"),
        ({"uri": "amqp://h", "max-hop": 1}, "did you mean 'max-hops'"),
        ({"uri": "amqp://h", "max-hops": 0}, "'max-hops' must be a whole number"),
        ({"uri": "amqp://h", "prefetch-count": True}, "'prefetch-count'"),
        ({"uri": "amqp://h", "ack-mode": "maybe"}, "'ack-mode' must be one of"),
        ({"uri": "amqp://h", "trust-user-id": 1}, "'trust-user-id' must be true or false"),
        ({"uri": "amqp://h", "exchange": "x" * 256}, "longer than 255"),
    ],
)
def test_what_is_wrong_is_named(value: Any, why: str) -> None:
    with pytest.raises(ValueError) as failure:
        parse("u", value, "/")
    assert why in str(failure.value)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "must be an array"),
        ([{}], "must be an array of objects"),
        ([{"upstream": "uo"}], "no upstream 'uo'; did you mean 'up'"),
        ([{"upstream": "up", "consumer-tag": "t"}], "no key 'consumer-tag'"),
        ([{"upstream": "up", "max-hops": "2"}], "'max-hops'"),
    ],
)
def test_a_set_that_is_wrong_is_named(value: Any, why: str) -> None:
    with pytest.raises(ValueError) as failure:
        parse_set(value, ["up"])
    assert why.partition(";")[0] in str(failure.value)


def test_a_set_changes_what_it_says() -> None:
    [(name, others)] = parse_set([{"upstream": "up", "exchange": "other"}], ["up"])
    found = of_set(name, {"uri": "amqp://h", "max-hops": 3}, others, "/")
    assert (found.exchange, found.max_hops, found.is_private) == ("other", 3, True)
