"""Filters of MQTT against topics: a trie of levels, compared with the rules in a few lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support._matcher import Matcher

FILTERS = 7
ADDED, UNCHANGED, BAD_INPUT = 1, 0, -3


def matches(filter_: str, topic: str) -> bool:
    """Section 4.7 of the standard, level by level."""
    wanted, levels = filter_.split("/"), topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(levels) < len(wanted):
            return False
        levels = levels[: len(wanted)]
    if len(wanted) != len(levels):
        return False
    return all(want in ("+", level) for want, level in zip(wanted, levels, strict=True))


def matcher(*filters: str) -> Matcher:
    made = Matcher(FILTERS, 7)
    for number, each in enumerate(filters):
        assert made.bind(each.encode(), b"\1", number) == ADDED
    return made


def found(made: Matcher, topic: str) -> list[int]:
    return sorted(number for number, _ in made.route(topic.encode()))


@pytest.mark.parametrize(
    ("filter_", "topic", "is_matched"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/#", "sports", False),
        ("#", "a/b", True),
        ("+", "/finance", False),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("#", "$SYS/monitor/Clients", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/monitor/Clients", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("a/$b", "a/$b", True),
        ("+/$b", "a/$b", True),
        ("åäö/+", "åäö/x", True),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
        ("ACCOUNTS", "Accounts", False),
    ],
)
def test_the_examples_of_the_standard_hold(filter_: str, topic: str, is_matched: bool) -> None:
    """3.1.1 [MQTT-4.7.1-2], [MQTT-4.7.1-3], [MQTT-4.7.2-1], 5.0 [MQTT-4.7.1-1], [MQTT-4.7.1-2],
    [MQTT-4.7.2-1]."""
    assert bool(found(matcher(filter_), topic)) is is_matched
    assert matches(filter_, topic) is is_matched


@pytest.mark.parametrize("filter_", ["", "sport/tennis#", "sport/tennis/#/ranking", "sport+", "#/"])
def test_a_wildcard_that_does_not_fill_its_level_is_refused(filter_: str) -> None:
    made = Matcher(FILTERS, 7)

    assert made.bind(filter_.encode(), b"", 1) == BAD_INPUT
    assert (len(made), made.weight()) == (0, 0)


def test_a_filter_of_too_many_levels_is_refused_and_leaves_nothing() -> None:
    made = Matcher(FILTERS, 7)

    assert made.bind(b"/".join([b"+"] * 201), b"", 1) == BAD_INPUT
    assert made.bind(b"/".join([b"+"] * 200), b"", 1) == ADDED
    assert found(made, "/".join("a" * 200)) == [1]
    assert made.unbind(b"/".join([b"+"] * 200), b"", 1) == 1
    assert made.weight() == 0


def test_another_subscription_with_the_filter_takes_the_place_of_the_first() -> None:
    made = matcher("a/+", "a/+")

    assert made.bind(b"a/+", b"\2", 0) == UNCHANGED
    assert sorted(made.route(b"a/b")) == [(0, 2), (1, 1)]
    assert len(made) == 2


def test_a_queue_is_found_once_for_each_of_its_filters() -> None:
    made = Matcher(FILTERS, 7)
    for filter_ in (b"a/b", b"a/+", b"a/#", b"#"):
        made.bind(filter_, b"", 5)

    assert made.route(b"a/b") == [(5, 0)] * 4


def test_a_topic_of_32000_levels_is_matched_level_by_level() -> None:
    made = matcher("#", "/#", "//+/#", "+/+/+")

    assert found(made, "/" * 32000) == [0, 1, 2]


NAMES = st.lists(st.sampled_from(["a", "b", "", "$x", "ä"]), min_size=1, max_size=5)
WANTED = st.builds(
    lambda levels, rest: "/".join(levels + rest),
    st.lists(st.sampled_from(["a", "b", "", "+", "$x", "ä"]), min_size=1, max_size=5),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@given(
    st.lists(st.tuples(WANTED, st.integers(0, 3)), max_size=20),
    st.lists(st.integers(0, 19), max_size=10),
    st.lists(NAMES.map("/".join).filter(bool), min_size=1, max_size=5),
)
def test_what_is_found_is_what_the_rules_say(
    bound: list[tuple[str, int]], gone: list[int], topics: list[str]
) -> None:
    """Also when the walk is stopped as often as can be, and others are routed meanwhile."""
    made = Matcher(FILTERS, 7)
    there = set(bound)
    for filter_, dest in bound:
        made.bind(filter_.encode(), b"", dest)
    for place in gone:
        if place < len(bound):
            filter_, dest = bound[place]
            assert made.unbind(filter_.encode(), b"", dest) == ((filter_, dest) in there)
            there.discard((filter_, dest))

    assert len(made) == len(there)
    others = [topic.encode() for topic in topics]
    for topic in topics:
        wanted = sorted(dest for filter_, dest in there if matches(filter_, topic))
        assert found(made, topic) == wanted
        assert sorted(dest for dest, _ in made.route(topic.encode(), others=others)) == wanted
    for filter_, dest in there:
        assert made.unbind(filter_.encode(), b"", dest) == 1
    assert made.weight() == 0
