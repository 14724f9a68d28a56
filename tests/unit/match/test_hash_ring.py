"""Consistent hashing, through the door class ``Matcher``.

Sources of truth: recorded values of the original, and a reference of a few lines per algorithm in
this file, with zlib's CRC32 and one entry per point or bucket.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from lavinmq._core import HASH, HASH_PROPERTIES
from tests.support._matcher import Matcher

ADDED, UNCHANGED, BAD_INPUT, BAD_WEIGHT, TOO_HEAVY = 1, 0, -3, -4, -5
SEED = 0x0123456789ABCDEF
MAX_POINTS = 262_144
MAX_WEIGHT = 2**32 - 1
RING, JUMP = False, True

quick = settings(deadline=None, database=None, max_examples=100)
both = pytest.mark.parametrize("is_jump", [RING, JUMP], ids=["ring", "jump"])
sets_of_weights = st.lists(st.integers(0, 40), min_size=0, max_size=12)
some_keys = st.lists(st.binary(max_size=40), min_size=1, max_size=30)

KEYS = [f"key.{n}".encode() for n in range(3000)]


class Hasher:
    """A matcher whose destination `n` has the name `str(n)`."""

    def __init__(
        self, is_jump: bool, weights: Sequence[int] = (), header: bytes | None = None,
        property: int = 0,
    ) -> None:  # fmt: skip
        self.matcher = Matcher(HASH, SEED)
        self.matcher.set_hash(is_jump, header, property)
        for number, weight in enumerate(weights):
            assert self.bind(number, str(weight)) == ADDED

    def bind(self, number: int, key: str, table: bytes = b"") -> int:
        return self.matcher.bind(key.encode(), named(number, table), number)

    def unbind(self, number: int, key: str, table: bytes = b"") -> int:
        return self.matcher.unbind(key.encode(), named(number, table), number)

    def __getitem__(self, key: bytes) -> list[int]:
        return self.matcher.route(key)

    def routes(self) -> list[list[int]]:
        return [self.matcher.route(key) for key in KEYS]


def named(number: int, table: bytes) -> bytes:
    """Return a table behind the name of a destination."""
    name = str(number).encode()
    return bytes([len(name)]) + name + table


def header(name: str, kind: str, content: bytes) -> bytes:
    """Return a field table with one entry, without its length."""
    return bytes([len(name)]) + name.encode() + kind.encode() + content


def string(text: str) -> bytes:
    return struct.pack(">I", len(text)) + text.encode()


def by_ring(weights: list[int], key: bytes) -> list[int]:
    """Return what a list of all points says: the lowest at or behind the key, else the first."""
    points = [
        (zlib.crc32(f"{number}.{t}".encode()), number)
        for number, weight in enumerate(weights)
        for t in range(weight)
    ]
    behind = [point for point in points if point[0] >= zlib.crc32(key)]
    return [(min(behind) if behind else points[0])[1]] if points else []


def by_jump(weights: list[int], key: bytes) -> list[int]:
    """Return what a list of all buckets says."""
    buckets = [number for number, weight in enumerate(weights) for _ in range(weight)]
    state = zlib.crc32(key) << 32 | zlib.crc32(key + b"_salt")
    bucket, after = -1, 0
    while after < len(buckets):
        bucket = after
        state = (state * 2862933555777941757 + 1) % 2**64
        after = int((bucket + 1) * (2**31 / ((state >> 33) + 1)))
    return [buckets[bucket]] if buckets else []


# --- recorded values --------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "expected"), [("r1", 1), ("r2", 3), ("r3", 3)])
def test_ring_chooses_as_recorded(key: str, expected: int) -> None:
    """edge-cases.md 102"""
    hasher = Hasher(RING)
    for number in (1, 2, 3):
        hasher.bind(number, "3")

    assert hasher[key.encode()] == [expected]


@pytest.mark.parametrize(("key", "expected"), [("r1", 1), ("r2", 3), ("r3", 3)])
def test_the_ring_keeps_these_keys_when_another_queue_goes(key: str, expected: int) -> None:
    """edge-cases.md 103"""
    hasher = Hasher(RING)
    for number in (1, 2, 3):
        hasher.bind(number, "3")

    hasher.unbind(2, "3")

    assert hasher[key.encode()] == [expected]


@pytest.mark.parametrize(
    ("n", "key", "expected"),
    [(3, "key0", 0), (3, "key1", 1), (3, "r1", 2), (3, "r2", 2), (3, "r3", 0), (10, "r2", 7),
     (10, "r3", 9)],
)  # fmt: skip
def test_jump_chooses_as_recorded(n: int, key: str, expected: int) -> None:
    assert Hasher(JUMP, [1] * n)[key.encode()] == [expected]


# --- against the references -------------------------------------------------------------------


@given(sets_of_weights, some_keys)
@quick
def test_ring_is_what_a_list_of_points_says(weights: list[int], keys: list[bytes]) -> None:
    hasher = Hasher(RING, weights)

    assert [hasher[key] for key in keys] == [by_ring(weights, key) for key in keys]


@pytest.mark.parametrize("weights", [[257], [300, 0, 70_000], [65_537, 11, 1000]])
def test_heavy_bindings_are_what_a_list_of_points_says(weights: list[int]) -> None:
    hasher = Hasher(RING, weights)
    keys = KEYS[:20]

    assert [hasher[key] for key in keys] == [by_ring(weights, key) for key in keys]


@given(sets_of_weights, some_keys)
@quick
def test_jump_is_what_a_list_of_buckets_says(weights: list[int], keys: list[bytes]) -> None:
    hasher = Hasher(JUMP, weights)

    assert [hasher[key] for key in keys] == [by_jump(weights, key) for key in keys]


@both
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=40))
@quick
def test_any_history_ends_where_its_remaining_bindings_lead(
    is_jump: bool, steps: list[tuple[int, int, bool]]
) -> None:
    hasher, left = Hasher(is_jump), dict[tuple[int, int], None]()
    for number, weight, is_bind in steps:
        if is_bind:
            known = (number, weight) in left
            assert hasher.bind(number, str(weight)) == (UNCHANGED if known else ADDED)
            left.setdefault((number, weight))
        else:
            there = left.pop((number, weight), 0) is None
            assert hasher.unbind(number, str(weight)) == (ADDED if there else UNCHANGED)
    fresh = Hasher(is_jump)
    for number, weight in left:
        fresh.bind(number, str(weight))

    assert len(hasher.matcher) == len(left)
    assert [hasher[key] for key in KEYS[:50]] == [fresh[key] for key in KEYS[:50]]
    for number, weight in left:
        hasher.unbind(number, str(weight))
    assert hasher.matcher.weight() == 0


# --- properties -------------------------------------------------------------------------------


@both
def test_without_a_target_nothing_is_chosen(is_jump: bool) -> None:
    """edge-cases.md 107"""
    assert Hasher(is_jump)[b"key"] == []
    assert Hasher(is_jump, [0, 0])[b"key"] == []


@both
def test_a_single_target_takes_everything(is_jump: bool) -> None:
    """edge-cases.md 101, 107"""
    assert set(map(tuple, Hasher(is_jump, [0, 1, 0]).routes())) == {(1,)}


@both
def test_keys_spread_by_weight(is_jump: bool) -> None:
    """edge-cases.md 108"""
    counts = Counter(number for (number,) in Hasher(is_jump, [300, 100]).routes())

    # CRC32 of names that differ by a digit is not random: a ring of them is rough.
    assert 0.65 < counts[0] / len(KEYS) < 0.85


@given(st.lists(st.integers(1, 40), min_size=2, max_size=8), st.data())
@settings(quick, max_examples=25)
def test_a_target_that_leaves_a_ring_moves_its_own_keys_only(
    weights: list[int], data: st.DataObject
) -> None:
    """edge-cases.md 103"""
    # Keys behind the last point belong to the first binding: it stays.
    gone = data.draw(st.integers(1, len(weights) - 1))
    hasher = Hasher(RING, weights)
    before = hasher.routes()
    hasher.unbind(gone, str(weights[gone]))

    moved = [(old, new) for old, new in zip(before, hasher.routes(), strict=True) if old != new]

    assert all(old == [gone] for old, _new in moved)
    assert len(moved) == before.count([gone])


def test_a_third_target_of_a_jump_takes_a_third_and_gives_it_back() -> None:
    """edge-cases.md 108"""
    hasher = Hasher(JUMP, [1, 1])
    before = hasher.routes()
    hasher.bind(2, "1")
    grown = hasher.routes()
    hasher.unbind(2, "1")

    moved = [new for old, new in zip(before, grown, strict=True) if old != new]

    assert set(map(tuple, moved)) == {(2,)}
    assert 0.28 < len(moved) / len(KEYS) < 0.39
    assert hasher.routes() == before


@both
def test_one_of_two_bindings_with_other_arguments_can_go(is_jump: bool) -> None:
    """edge-cases.md 105"""
    hasher = Hasher(is_jump, [3, 3])
    before = hasher.routes()
    assert hasher.bind(0, "3", b"\x01at\x01") == ADDED

    assert hasher.unbind(0, "3", b"\x01at\x01") == ADDED

    assert hasher.routes() == before
    assert {number for (number,) in before} == {0, 1}


def test_the_older_of_two_such_bindings_can_go_too() -> None:
    """edge-cases.md 105"""
    hasher = Hasher(RING, [3, 3])
    before = hasher.routes()
    hasher.bind(1, "3", b"\x01at\x01")

    assert hasher.unbind(1, "3") == ADDED

    assert hasher.routes() == before


# --- weights ----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("key", ["0", "1", " 1", " \t\n7", "007", "00000000000000012"])
def test_numbers_are_weights(is_jump: bool, key: str) -> None:
    hasher = Hasher(is_jump)

    assert hasher.bind(0, key) == ADDED
    assert hasher[b"any"] == ([0] if int(key) else [])
    assert hasher.unbind(0, key) == ADDED
    assert hasher.matcher.weight() == 0


@both
@pytest.mark.parametrize(
    "key",
    ["", " ", "a", "-1", "+1", "1.5", "1 ", "1 2", "0x1", "1_0", "4294967296", "9" * 255, "²"],
)
def test_anything_else_is_refused_when_bound_and_unbound(is_jump: bool, key: str) -> None:
    """edge-cases.md 100"""
    hasher = Hasher(is_jump)

    assert hasher.bind(0, key) == BAD_WEIGHT
    assert hasher.unbind(0, key) == BAD_WEIGHT
    assert len(hasher.matcher) == 0


def test_points_of_a_ring_are_limited_for_all_bindings_together() -> None:
    hasher = Hasher(RING)

    assert hasher.bind(0, str(MAX_WEIGHT)) == TOO_HEAVY
    assert hasher.bind(0, str(MAX_POINTS - 1)) == ADDED
    assert hasher.bind(1, "2") == TOO_HEAVY
    assert hasher.bind(1, "1") == ADDED
    assert hasher.matcher.weight() == MAX_POINTS + 4  # and two slots, two identities
    hasher.unbind(0, str(MAX_POINTS - 1))
    assert hasher.bind(2, "2") == ADDED


def test_the_heaviest_weights_cost_a_jump_nothing() -> None:
    hasher = Hasher(JUMP)
    for number in range(1000):
        assert hasher.bind(number, str(MAX_WEIGHT)) == ADDED

    counts = Counter(number for (number,) in hasher.routes())

    assert len(counts) > 900
    assert hasher.matcher.weight() == 2000


@pytest.mark.parametrize("args", [b"", b"\x01", b"\x05name"])
def test_a_name_that_is_cut_off_is_malformed(args: bytes) -> None:
    assert Hasher(RING).matcher.bind(b"1", args, 0) == BAD_INPUT


def test_other_kinds_do_not_hash() -> None:
    with pytest.raises(ValueError, match="not a matcher that hashes"):
        Matcher(0, SEED).set_hash(RING)


# --- headers ----------------------------------------------------------------------------------


@both
def test_a_header_decides_instead_of_the_key(is_jump: bool) -> None:
    plain, hasher = Hasher(is_jump, [20] * 5), Hasher(is_jump, [20] * 5, b"id")
    keys = [f"k{n}" for n in range(200)]

    found = [
        hasher.matcher.route(b"other", header("x", "t", b"\x01") + header("id", "S", string(key)))
        for key in keys
    ]

    assert found == [plain[key.encode()] for key in keys]
    assert len(set(map(tuple, found))) == 5


@pytest.mark.parametrize(
    "table", [None, b"", header("i", "S", string("k")), header("id", "S", b"\0" * 4),
              header("id", "V", b"")],
)  # fmt: skip
def test_a_header_that_is_missing_void_or_empty_hashes_alike(table: bytes | None) -> None:
    """edge-cases.md 104"""
    for weights in ([20] * 5, [7] * 4):
        hasher = Hasher(RING, weights, b"id")

        assert hasher.matcher.route(b"other", table) == Hasher(RING, weights)[b""]


@pytest.mark.parametrize(
    ("kind", "content"), [("I", b"\0\0\0\5"), ("t", b"\1"), ("x", string("k")), ("F", b"\0" * 4)]
)
def test_a_header_of_another_type_is_an_error(kind: str, content: bytes) -> None:
    for weights in ([20] * 5, []):
        with pytest.raises(ValueError, match="no string"):
            Hasher(RING, weights, b"id").matcher.route(b"k", header("id", kind, content))


# --- properties -------------------------------------------------------------------------------

VALUES: dict[str, object] = {
    "content_type": "text/plain", "content_encoding": "gzip", "headers": {"a": "b", "n": 5},
    "delivery_mode": 2, "priority": 7, "correlation_id": "corr", "reply_to": "back",
    "expiration": "60000", "message_id": "mess", "timestamp": 1_700_000_000,
    "message_type": "kind", "user_id": "guest", "app_id": "app",
}  # fmt: skip
"""One value of every property."""


def properties(values: dict[str, object]) -> bytes:
    """Return properties as pamqp writes them."""
    given = dict(values)
    if isinstance(given.get("timestamp"), int):
        given["timestamp"] = datetime.fromtimestamp(given["timestamp"], UTC)
    return commands.Basic.Properties(**given).marshal()


def hashes(name: str, wire: bytes, is_jump: bool = RING) -> list[int]:
    """Return where a message goes when that property is hashed."""
    hasher = Hasher(is_jump, [20] * 5, property=HASH_PROPERTIES[name])
    return hasher.matcher.route(b"other", None, wire)


@both
@quick
@given(
    name=st.sampled_from(sorted(HASH_PROPERTIES)),
    others=st.sets(st.sampled_from(sorted(VALUES))),
    text=st.text(max_size=60),
    time=st.integers(0, 2**33),
)
def test_a_property_decides_whatever_else_a_message_has(
    is_jump: bool, name: str, others: set[str], text: str, time: int
) -> None:
    value = time if name == "timestamp" else text
    values = {key: VALUES[key] for key in others} | {name: value}

    found = hashes(name, properties(values), is_jump)

    assert found == Hasher(is_jump, [20] * 5)[str(value).encode()]


@pytest.mark.parametrize("name", sorted(HASH_PROPERTIES))
def test_a_property_that_is_missing_or_empty_hashes_like_a_missing_header(name: str) -> None:
    others = {key: value for key, value in VALUES.items() if key != name}
    expected = Hasher(RING, [20] * 5)[b""]

    assert hashes(name, b"\0\0") == hashes(name, properties(others)) == expected
    if name != "timestamp":
        assert hashes(name, properties(VALUES | {name: ""})) == expected


def test_any_64_bits_are_a_time() -> None:
    wire = struct.pack(">HQ", HASH_PROPERTIES["timestamp"], 2**64 - 1)

    assert hashes("timestamp", wire) == Hasher(RING, [20] * 5)[b"18446744073709551615"]


@pytest.mark.parametrize("flag", [0x2000, 0x1000, 3, 0x480])
def test_only_three_properties_can_be_hashed(flag: int) -> None:
    with pytest.raises(ValueError, match="no property to hash on"):
        Matcher(HASH, SEED).set_hash(RING, None, flag)
