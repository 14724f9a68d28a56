"""Exchanges that give each message to one of their destinations: by chance, or by the hash."""

from __future__ import annotations

import zlib
from collections import Counter

import pytest

from lavinmq._core import kinds
from tests.support._matcher import Matcher

RANDOM, MODULUS = kinds()["random"], kinds()["modulus"]
BOTH = pytest.mark.parametrize("kind", [RANDOM, MODULUS])


def matcher(kind: int, *dests: int, seed: int = 7) -> Matcher:
    made = Matcher(kind, seed)
    for dest in dests:
        assert made.bind(b"", b"", dest) == 1
    return made


@BOTH
def test_a_message_goes_to_one_destination(kind: int) -> None:
    found = matcher(kind, 1, 2, 3)

    for number in range(300):
        (dest,) = found.route(b"%d" % number)
        assert dest in (1, 2, 3)


@BOTH
def test_without_a_binding_nothing_matches(kind: int) -> None:
    found = matcher(kind, 1)
    assert found.unbind(b"", b"", 1) == 1

    assert found.route(b"k") == []
    assert (len(found), found.weight()) == (0, 0)


@BOTH
def test_a_destination_is_bound_once_whatever_the_key(kind: int) -> None:
    found = matcher(kind, 1, 2)

    assert found.bind(b"other", b"", 1) == 0
    assert (len(found), found.weight()) == (2, 2)
    assert found.unbind(b"other", b"", 1) == 1
    assert found.unbind(b"", b"", 1) == 0


def test_chance_treats_all_destinations_alike() -> None:
    found = matcher(RANDOM, *range(5))

    counts = Counter(found.route(b"same")[0] for _ in range(5000))

    assert set(counts) == set(range(5))
    assert min(counts.values()) > 800


def test_chance_differs_from_seed_to_seed() -> None:
    one, two = (
        [found.route(b"")[0] for _ in range(40)]
        for found in (matcher(RANDOM, *range(9), seed=seed) for seed in (1, 2))
    )

    assert one != two


def test_a_key_goes_where_its_hash_says() -> None:
    dests = [5, 3, 9]
    found = matcher(MODULUS, *dests)

    for number in range(200):
        key = b"key-%d" % number
        assert found.route(key) == [dests[zlib.crc32(key) % 3]]


def test_keys_stay_where_they_are_while_bindings_do_not_change() -> None:
    """Neither the seed of this process nor bindings that have gone matter."""
    there = matcher(MODULUS, 1, 2, 3, seed=1)
    again = matcher(MODULUS, 1, 8, 2, 3, seed=2)
    again.unbind(b"", b"", 8)

    assert all(there.route(b"%d" % n) == again.route(b"%d" % n) for n in range(100))


def test_keys_are_spread_over_all_destinations() -> None:
    found = matcher(MODULUS, *range(8))

    counts = Counter(found.route(b"order.%d" % n)[0] for n in range(4000))

    assert min(counts.values()) > 300
