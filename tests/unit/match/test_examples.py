"""Examples of topic and headers bindings, one by one; the general rules are in `test_match.py`."""

from __future__ import annotations

from typing import Any

import pytest

from lavinmq._core import DIRECT, HEADERS, TOPIC
from lavinmq.fieldtable import FieldTable, Timestamp
from tests.support._matcher import Matcher

SEED = 0x0123456789ABCDEF
BAD_MODE = -2

TOPICS = [
    ("*.test", ["rk2.test"], ["rk2", "rk2.a", "test"]),  # edge-cases.md 78
    ("*", ["rk2"], ["rk2.a"]),  # edge-cases.md 78
    ("a.*", ["a.b"], ["b.c"]),  # edge-cases.md 79
    ("c.*", ["c.a"], ["c.a.d"]),  # edge-cases.md 79
    ("c.*.*", ["c.a.d"], ["c.a", "c.a.d.e"]),  # edge-cases.md 79
    ("c.*.*.*", ["c.a.d.e"], ["c.a.d", "c.a.d.e.f"]),  # edge-cases.md 79
    ("c.*.d", ["c.a.d"], ["c.d", "c.a.b.d"]),  # edge-cases.md 80
    ("d.#", ["d.a.d", "d"], ["a.d"]),  # edge-cases.md 80
    ("rk63.rk63", ["rk63.rk63"], ["rk63"]),  # edge-cases.md 81
    ("#.a", ["a.a.a", "a"], ["a.a.b"]),  # edge-cases.md 82
    ("#.a.a.a", ["a.a.a.a"], ["a.a.b.a.a"]),  # edge-cases.md 82
    ("#.a.b.c", ["a.a.a.a.b.c"], ["a.b.c.d"]),  # edge-cases.md 82
    ("#.*.d", ["a.a.d"], ["a.d.a", "d"]),  # edge-cases.md 83
    ("#.a.#", ["b.b.a.b.b", "a"], ["b.b"]),  # edge-cases.md 83
    ("a.*.c.#", ["a.b.c", "a.b.c.d", "a.b.c.d.e"], ["a.c", "a.b.d"]),  # edge-cases.md 84
    ("a.b.c", ["a.b.c"], ["a.b"]),  # edge-cases.md 85
    ("a.b", ["a.b"], ["a.b.c"]),  # edge-cases.md 85
]

NESTED = {"a": {"b": [1, "two", {"c": True}]}}
PAIR: dict[str, Any] = {"a": 1, "b": "x"}
EVERY_TYPE: list[Any] = [None, True, False, 0, -128, 2**31, -(2**63), 0.5, "s", "", b"\xff",
                         [1, "a"], [], Timestamp(1), {"n": 1}, {}]  # fmt: skip


def table(value: dict[str, Any]) -> bytes:
    """Return the content of a field table."""
    return FieldTable(value).raw


@pytest.mark.parametrize(("pattern", "hits", "misses"), TOPICS, ids=[each[0] for each in TOPICS])
def test_a_topic_pattern_matches_these_keys(
    pattern: str, hits: list[str], misses: list[str]
) -> None:
    matcher = Matcher(TOPIC, SEED)
    matcher.bind(pattern.encode(), b"", 1)

    assert [matcher.route(key.encode()) for key in hits] == [[1]] * len(hits)
    assert [matcher.route(key.encode()) for key in misses] == [[]] * len(misses)


@pytest.mark.parametrize(
    ("arguments", "hits", "misses"),
    [
        # edge-cases.md 86
        ({"x-match": "all"} | PAIR, [PAIR, PAIR | {"c": 1}], [{"a": 1}, {"a": 1, "b": "y"}, {}]),
        # edge-cases.md 87
        ({"x-match": "any"} | PAIR, [{"a": 1}, {"a": 2, "b": "x"}], [{"a": 2}, {"c": 1}, {}]),
        # edge-cases.md 88
        ({"x-match": "all"} | NESTED, [NESTED], [{"a": {"b": [1, "two", {"c": False}]}}, {"a": 1}]),
        # edge-cases.md 89
        (PAIR, [PAIR], [{"a": 1}, {"b": "x"}]),
        # edge-cases.md 90
        ({}, [None, {}], []),
        # edge-cases.md 91
        ({"x-match": "all"}, [{"a": 1}, PAIR], [None, {}]),
    ],
    ids=["all", "any", "nested", "default", "no-arguments", "mode-only"],
)
def test_arguments_of_a_headers_binding_match_these_messages(
    arguments: dict[str, Any],
    hits: list[dict[str, Any] | None],
    misses: list[dict[str, Any] | None],
) -> None:
    matcher = Matcher(HEADERS, SEED)
    matcher.bind(b"", table(arguments), 1)

    def found(headers: dict[str, Any] | None) -> list[int]:
        return matcher.route(b"k", None if headers is None else table(headers))

    assert [found(headers) for headers in hits] == [[1]] * len(hits)
    assert [found(headers) for headers in misses] == [[]] * len(misses)


@pytest.mark.parametrize("value", EVERY_TYPE, ids=repr)
def test_values_of_every_type_are_equal_to_themselves_only(value: object) -> None:
    """edge-cases.md 88"""
    matcher = Matcher(HEADERS, SEED)
    matcher.bind(b"", table({"h": value}), 1)

    same = [other for other in EVERY_TYPE if matcher.route(b"", table({"h": other}))]

    assert [(type(other), other) for other in same] == [(type(value), value)]


def test_the_exchange_changes_the_default_and_the_binding_decides() -> None:
    """edge-cases.md 89"""
    matcher = Matcher(HEADERS, SEED)
    matcher.set_default_any(True)
    matcher.bind(b"", table(PAIR), 1)
    matcher.bind(b"", table(PAIR | {"x-match": "all"}), 2)

    assert matcher.route(b"", table({"a": 1})) == [1]
    assert sorted(matcher.route(b"", table(PAIR))) == [1, 2]


def test_a_queue_bound_twice_matches_either_and_is_reached_once() -> None:
    """edge-cases.md 92"""
    matcher = Matcher(HEADERS, SEED)
    matcher.bind(b"", table({"a": 1}), 7)
    matcher.bind(b"", table({"b": 2}), 7)

    messages: list[dict[str, Any]] = [{"a": 1}, {"b": 2}, {"a": 1, "b": 2}, {"a": 2}]

    assert [matcher.route(b"", table(each)) for each in messages] == [[7], [7], [7], []]


@pytest.mark.parametrize("mode", ["fail", 123])
def test_an_illegal_mode_is_refused(mode: object) -> None:
    """edge-cases.md 93"""
    assert Matcher(HEADERS, SEED).bind(b"", table({"x-match": mode}), 1) == BAD_MODE


@pytest.mark.parametrize("kind", [DIRECT, TOPIC, HEADERS])
def test_publishing_to_unbound_keys_costs_nothing(kind: int) -> None:
    """edge-cases.md 74"""
    matcher = Matcher(kind, SEED)
    matcher.bind(b"bound", table({"a": 1}), 1)
    before = matcher.weight(), len(matcher)

    reached = [matcher.route(b"key.%d" % number, b"") for number in range(10_000)]

    assert not any(reached)
    assert (matcher.weight(), len(matcher)) == before
