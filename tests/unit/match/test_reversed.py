"""Exchanges whose binding keys are literal and whose routing keys have wildcards."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq._core import kinds
from tests.support._matcher import Matcher

WORDS = st.lists(st.sampled_from(["a", "b", "", "cc", "*", "#"]), min_size=1, max_size=5)
KEYS = WORDS.map(".".join)


def matcher(*keys: str) -> Matcher:
    """One with a destination for each key, numbered in their order."""
    made = Matcher(kinds()["reversed"], 7)
    for number, key in enumerate(keys):
        assert made.bind(key.encode(), b"", number) == 1
    return made


def fits(pattern: list[str], words: list[str]) -> bool:
    """The same by trying all that a '#' may stand for."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(fits(pattern[1:], words[i:]) for i in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and fits(pattern[1:], words[1:])


@settings(deadline=None, database=None, max_examples=300)
@given(st.lists(KEYS, unique=True, max_size=12), KEYS, st.booleans())
def test_wildcards_reach_the_keys_that_they_stand_for(
    keys: list[str], pattern: str, is_stopped: bool
) -> None:
    found = matcher(*keys).route(pattern.encode(), others=[b"#", b"a.b"] if is_stopped else None)

    wanted = [n for n, key in enumerate(keys) if fits(pattern.split("."), key.split("."))]
    assert sorted(found) == wanted


def test_wildcards_in_binding_keys_are_words() -> None:
    found = matcher("a.*", "a.#", "a.b")

    assert found.route(b"a.b") == [2]
    assert sorted(found.route(b"a.*")) == [0, 1, 2]
    assert sorted(found.route(b"#")) == [0, 1, 2]


def test_a_destination_of_many_keys_is_reached_once() -> None:
    found = matcher()
    for number in range(50):
        assert found.bind(b"k.%d" % number, b"", number % 3) == 1

    assert sorted(found.route(b"k.*")) == [0, 1, 2]
    assert found.bind(b"k.1", b"", 1) == 0


def test_keys_that_are_unbound_leave_nothing_behind() -> None:
    keys = [f"a.{n}.b" for n in range(100)]
    found = matcher(*keys)

    for number, key in enumerate(keys[1:], 1):
        assert found.unbind(key.encode(), b"", number) == 1
        assert found.unbind(key.encode(), b"", number) == 0
    assert found.route(b"a.#") == [0]
    assert found.unbind(b"a.0.b", b"", 0) == 1
    assert (found.route(b"#"), len(found), found.weight()) == ([], 0, 0)


def test_others_are_served_while_many_keys_are_compared() -> None:
    keys = [f"{n}.x" for n in range(500)]
    found = matcher(*keys)
    for number in range(1000, 1100):
        assert found.bind(b"7.x", b"", number) == 1

    reached = found.route(b"*.x", others=[b"#.x", b"7.*"])

    assert sorted(reached) == [*range(500), *range(1000, 1100)]
    assert found.pauses >= 500


@pytest.mark.parametrize("n", [40, 127])
def test_many_wildcards_take_no_more_than_words_times_words(n: int) -> None:
    """What would try all ways would not come to an end."""
    found = matcher(".".join(["a"] * 128), ".".join([*["a"] * 127, "b"]))

    assert found.route(".".join(chain(*[("#", "a")] * (n // 2), ("b",))).encode()) == [1]
    assert found.route(".".join([*["#"] * n, "c"]).encode()) == []


def test_a_key_that_is_no_short_string_is_not_bound() -> None:
    found = matcher("a")

    assert found.bind(b"a" * 256, b"", 1) == -3
    assert found.unbind(b"a" * 256, b"", 1) == 0
    assert found.route(b"#") == [0]
