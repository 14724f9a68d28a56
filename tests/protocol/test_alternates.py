# mypy: disable-error-code="no-untyped-call"
"""Alternate exchanges: who is asked, when exchanges are bound to exchanges."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp import commands

from tests.support.wire import Wire
from tests.support.wire_actions import (
    bind,
    bind_exchange,
    declare,
    declare_exchange,
    get_all,
    unbind,
)


@pytest.fixture
def direct(wire: Wire, name: str) -> str:
    return declare(wire, f"{name}-q")


@pytest.fixture
def rest(wire: Wire, name: str) -> str:
    """The queue behind the alternate exchange."""
    queue = declare(wire, f"{name}-rest")
    bind(wire, queue, declare_exchange(wire, f"{name}-spare", "fanout"))
    return queue


def exchange(wire: Wire, name: str, word: str, kind: str, alternate: str | None = "spare") -> str:
    arguments = {} if alternate is None else {"alternate-exchange": f"{name}-{alternate}"}
    return declare_exchange(wire, f"{name}-{word}", kind, arguments=arguments)


def having(**headers: Any) -> commands.Basic.Properties:
    return commands.Basic.Properties(headers=headers)


@pytest.mark.parametrize("is_queue_first", [True, False])
def test_an_alternate_exchange_is_reached_through_a_nested_exchange(
    wire: Wire, name: str, direct: str, rest: str, is_queue_first: bool
) -> None:
    """edge-cases.md 99"""
    outer = exchange(wire, name, "outer", "topic")
    inner = exchange(wire, name, "inner", "topic")
    if is_queue_first:
        bind(wire, direct, outer, "a.*")
    bind_exchange(wire, inner, outer, "a.*")
    if not is_queue_first:
        bind(wire, direct, outer, "a.*")

    wire.publish(1, outer, "a.b", b"m")

    assert get_all(wire, direct) == [b"m"]
    assert get_all(wire, rest) == [b"m"]


def test_binding_the_nested_exchange_ends_that_and_unbinding_begins_it(
    wire: Wire, name: str, direct: str, rest: str
) -> None:
    """Publishers keep their routes: a change in a nested exchange must reach them."""
    outer = exchange(wire, name, "outer", "fanout")
    inner = exchange(wire, name, "inner", "direct")
    bind(wire, direct, inner, "other")
    bind(wire, direct, outer)
    bind_exchange(wire, inner, outer)

    for body in (b"1", b"2"):
        wire.publish(1, outer, "k", body)
    bind(wire, direct, inner, "k")
    for body in (b"3", b"4"):
        wire.publish(1, outer, "k", body)
    unbind(wire, direct, inner, "k")
    wire.publish(1, outer, "k", b"5")

    assert get_all(wire, direct) == [b"1", b"2", b"3", b"4", b"5"]
    assert get_all(wire, rest) == [b"1", b"2", b"5"]


PATTERN = {"x-match": "all", "a": 1}


@pytest.mark.parametrize(
    ("kind", "key", "arguments"),
    [("direct", "k", {}), ("fanout", "", {}), ("topic", "#", {}), ("headers", "", PATTERN),
     ("headers", "", {"x-match": "all"}), ("x-consistent-hash", "1", {})],
)  # fmt: skip
def test_a_match_that_adds_no_queue_is_a_match(
    wire: Wire, name: str, direct: str, rest: str, kind: str, key: str, arguments: dict[str, Any]
) -> None:
    outer = exchange(wire, name, "outer", "fanout")
    inner = exchange(wire, name, "inner", kind)
    bind(wire, direct, outer)
    bind_exchange(wire, inner, outer)
    bind(wire, direct, inner, key, dict(arguments))

    wire.publish(1, outer, "k", b"m", having(a=1))

    assert get_all(wire, direct) == [b"m"]
    assert get_all(wire, rest) == []


def test_a_pattern_that_does_not_match_is_none_though_its_queue_has_the_message(
    wire: Wire, name: str, direct: str, rest: str
) -> None:
    outer = exchange(wire, name, "outer", "fanout")
    inner = exchange(wire, name, "inner", "headers")
    bind(wire, direct, outer)
    bind_exchange(wire, inner, outer)
    bind(wire, direct, inner, "", {"x-match": "all", "a": 1, "b": 1})

    wire.publish(1, outer, "k", b"m", having(a=1))

    assert get_all(wire, direct) == [b"m"]
    assert get_all(wire, rest) == [b"m"]


@pytest.mark.parametrize("header", ["CC", "BCC"])
def test_a_copy_that_matches_in_a_nested_exchange_is_a_match(
    wire: Wire, name: str, direct: str, rest: str, header: str
) -> None:
    """Each exchange on the way matches all keys of a message."""
    outer = exchange(wire, name, "outer", "direct", None)
    inner = exchange(wire, name, "inner", "direct")
    bind_exchange(wire, inner, outer, "k")
    bind(wire, direct, inner, "copy")

    wire.publish(1, outer, "k", b"matched", having(**{header: ["other", "copy"]}))
    wire.publish(1, outer, "k", b"not", having(**{header: ["other"]}))
    wire.publish(1, outer, "other", b"nowhere", having(**{header: ["copy"]}))

    assert get_all(wire, direct) == [b"matched"]
    assert get_all(wire, rest) == [b"not"]


def test_what_is_lost_behind_a_nested_exchange_goes_to_the_outer_alternate(
    wire: Wire, name: str, rest: str
) -> None:
    """RabbitMQ drops it: the outer exchange has a binding that matches."""
    outer = exchange(wire, name, "outer", "fanout")
    inner = exchange(wire, name, "inner", "direct", None)
    innermost = exchange(wire, name, "innermost", "direct", None)
    bind_exchange(wire, inner, outer)
    bind_exchange(wire, innermost, inner, "k")

    wire.publish(1, outer, "k", b"m")

    assert get_all(wire, rest) == [b"m"]


def test_alternates_in_a_circle_end_and_lead_to_every_queue_on_the_way(
    wire: Wire, name: str, direct: str
) -> None:
    first = exchange(wire, name, "first", "direct", "second")
    second = exchange(wire, name, "second", "direct", "third")
    third = exchange(wire, name, "third", "direct", "first")
    bind_exchange(wire, first, third, "k")
    bind(wire, direct, second, "other")

    wire.publish(1, first, "k", b"lost")
    bind(wire, direct, third, "k")
    wire.publish(1, first, "k", b"m")

    assert get_all(wire, direct) == [b"m"]
