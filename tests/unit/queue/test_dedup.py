"""The cache of keys against a model with a clock of its own, and its file against damage.

A header is written by hand, as type and bytes: what counts as the same key is decided by them.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support.core import FakeEvents

HEADER = b"x-deduplication-header"
BOOT, NEXT_BOOT = 11, 22
SLOT = 32
SLACK = 1024
NEVER = 1 << 62
DEFAULT_SIZE = 128
MANY_KEYS = 200_000

quick = settings(deadline=None, database=None, max_examples=150)


def field(name: bytes, value: bytes) -> bytes:
    """One entry of a field table; `value` begins with its type."""
    return bytes([len(name)]) + name + value


def text(value: str | bytes) -> bytes:
    """A string value."""
    raw = value.encode() if isinstance(value, str) else value
    return b"S" + struct.pack(">I", len(raw)) + raw


def keyed(value: str | bytes, ttl: bytes = b"") -> bytes:
    """The headers of a message with this key, and perhaps an x-cache-ttl."""
    return field(HEADER, text(value)) + (field(b"x-cache-ttl", ttl) if ttl else b"")


def milliseconds(ttl: int) -> bytes:
    """A value of x-cache-ttl."""
    return b"l" + struct.pack(">q", ttl)


def cache(
    size: int = DEFAULT_SIZE, ttl_ms: int = -1, path: Path | None = None, boot: int = BOOT
) -> _core.DedupCache:
    """A cache without a loop; what the file holds is loaded."""
    made = _core.DedupCache(None, HEADER, size, ttl_ms, str(path) if path else None, boot)
    if path is not None and path.exists():
        made.load(path.read_bytes())
    return made


def remembered(made: _core.DedupCache, names: list[str], now_ms: int = 0) -> list[str]:
    """Those of the keys that the cache knows."""
    return [name for name in names if made.seen(keyed(name), now_ms)]


# ---- the hash

# OpenSSL 3: openssl mac -macopt hexkey:000102...0f -macopt size:16 SIPHASH, of bytes 0, 1, 2, ...
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    9: "264499060ad9baabc47f8b02bb6d71ed",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    63: "5150d1772f50834a503e069a973fbd7c",
    64: "1eaf077dc0d4cd3f8cad4d383658a74b",
    200: "7c5853f4ed12ff9d836a79bc4047022d",
}


@pytest.mark.parametrize(("length", "expected"), VECTORS.items())
def test_the_hash_is_siphash(length: int, expected: str) -> None:
    data = bytes(number % 256 for number in range(length))

    assert _core.siphash128(bytes(range(16)), data).hex() == expected


def test_the_key_of_the_hash_has_16_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        _core.siphash128(bytes(15), b"")


# ---- what is a duplicate


def test_a_message_without_the_header_is_never_a_duplicate() -> None:
    """edge-cases.md 218"""
    made = cache()

    for headers in (b"", field(b"other", text("a")), field(HEADER, b"V")):
        made.remember(headers, 0)
        assert not made.seen(headers, 0)

    assert len(made) == 0


def test_any_header_can_be_the_key() -> None:
    """edge-cases.md 220"""
    made = _core.DedupCache(None, b"id", 10, -1, None, BOOT)

    made.remember(field(b"other", text("b")) + field(b"id", text("a")), 0)

    assert made.seen(field(b"id", text("a")), 0)
    assert not made.seen(field(HEADER, text("a")), 0)


KEYS = {
    "string": text("1"),
    "longer string": text("10"),
    "empty string": text(""),
    "bytes": b"x" + text("1")[1:],
    "one": b"b\x01",
    "two": b"b\x02",
    "minus one": b"b\xff",
    "fraction": b"d" + struct.pack(">d", 1.5),
    "true": b"t\x01",
    "false": b"t\x00",
    "time": b"T" + struct.pack(">q", 1),
    "table": b"F" + struct.pack(">I", 4) + field(b"a", b"b\x01"),
    "array": b"A" + struct.pack(">I", 2) + b"b\x01",
    "long": text(b"k" * 100_000),
    "long, other end": text(b"k" * 99_999 + b"j"),
    "long, other beginning": text(b"j" + b"k" * 99_999),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_any_type_equals_itself_only(name: str) -> None:
    made = cache()

    made.remember(field(HEADER, KEYS[name]), 0)

    assert [each for each in KEYS if made.seen(field(HEADER, KEYS[each]), 0)] == [name]


@pytest.mark.parametrize(
    "value",
    [
        b"b\x07", b"B\x07", b"s\0\x07", b"U\0\x07", b"u\0\x07", b"I\0\0\0\x07", b"i\0\0\0\x07",
        b"l" + struct.pack(">q", 7), b"L" + struct.pack(">q", 7), b"d" + struct.pack(">d", 7),
        b"f" + struct.pack(">f", 7), b"D\x01" + struct.pack(">i", 70),
    ],
)  # fmt: skip
def test_numbers_are_the_same_key_whatever_their_type(value: bytes) -> None:
    made = cache()

    made.remember(field(HEADER, b"I\0\0\0\x07"), 0)

    assert made.seen(field(HEADER, value), 0)


# ---- size and age


def test_the_129th_key_replaces_the_first_unless_told_otherwise() -> None:
    """edge-cases.md 215"""
    made, names = cache(), [str(number) for number in range(DEFAULT_SIZE + 1)]
    for name in names[:-1]:
        made.remember(keyed(name), 0)
    assert remembered(made, names) == names[:-1]

    made.remember(keyed(names[-1]), 0)

    assert remembered(made, names) == names[1:]


def test_in_a_cache_of_two_the_third_key_replaces_the_first_only() -> None:
    """edge-cases.md 216"""
    made = cache(size=2)

    for name in "abc":
        made.remember(keyed(name), 0)

    assert remembered(made, list("abc")) == ["b", "c"]


def test_a_cache_of_no_size_remembers_nothing() -> None:
    made = cache(size=0)

    made.remember(keyed("a"), 0)

    assert not made.seen(keyed("a"), 0)


def test_keys_expire_by_themselves_and_those_without_time_never() -> None:
    """edge-cases.md 217"""
    made = cache()
    made.remember(keyed("short", milliseconds(100)), 1000)
    made.remember(keyed("long", milliseconds(200)), 1000)
    made.remember(keyed("ever"), 1000)
    names = ["short", "long", "ever"]

    assert remembered(made, names, 1099) == names
    assert remembered(made, names, 1100) == ["long", "ever"]
    assert remembered(made, names, 1199) == ["long", "ever"]
    assert remembered(made, names, 1200) == ["ever"]
    assert remembered(made, names, NEVER) == ["ever"]


def test_the_time_of_the_message_wins_over_that_of_the_cache() -> None:
    """edge-cases.md 219"""
    made = cache(ttl_ms=100)
    made.remember(keyed("default"), 0)
    made.remember(keyed("longer", milliseconds(1000)), 0)
    made.remember(keyed("shorter", b"b\x0a"), 0)
    made.remember(keyed("no time", text("500")), 0)
    names = ["default", "longer", "shorter", "no time"]

    assert remembered(made, names, 9) == names
    assert remembered(made, names, 10) == ["default", "longer", "no time"]
    assert remembered(made, names, 100) == ["longer"]


@pytest.mark.parametrize("ttl", [0, -1, -(1 << 63)])
def test_a_message_that_allows_no_time_is_not_remembered(ttl: int) -> None:
    made = cache()

    made.remember(keyed("a", milliseconds(ttl)), 5)

    assert not made.seen(keyed("a"), 5)


def test_the_longest_time_is_for_ever() -> None:
    made = cache()

    made.remember(keyed("a", milliseconds((1 << 63) - 1)), NEVER)

    assert made.seen(keyed("a"), NEVER)


def test_a_cache_has_a_largest_size_whatever_is_asked_for() -> None:
    """amqp.md 22.27"""
    made = cache(size=1 << 200)
    for number in range(_core.KEYS_MAX + 1):
        made.remember(field(HEADER, b"I" + struct.pack(">I", number)), 0)

    assert len(made) == _core.KEYS_MAX
    assert not made.seen(field(HEADER, b"I\0\0\0\0"), 0)
    assert made.seen(field(HEADER, b"I\0\0\0\1"), 0)


def test_a_cache_that_grows_finds_all_its_keys(tmp_path: Path) -> None:
    made = cache(100_000)
    for number in range(5000):
        made.remember(keyed(str(number)), 0)
        assert made.seen(keyed(str(number // 2)), 0)

    assert len(made) == 5000
    assert all(made.seen(keyed(str(number)), 0) for number in range(5000))
    assert not any(made.seen(keyed(f"no {number}"), 0) for number in range(5000))


def test_all_caches_together_are_bounded_and_give_back_what_they_took(tmp_path: Path) -> None:
    loop = _core.Loop(FakeEvents(), str(tmp_path), False, lambda *_: None, lambda: None)
    loop.set_max_dedup(40_000)
    caches = [_core.DedupCache(loop, HEADER, 100_000, -1, None, BOOT) for _ in range(5)]
    for made in caches:
        for number in range(3000):
            made.remember(keyed(str(number)), 0)

    assert loop.dedup_bytes < 40_000 + 5 * 129 * 64
    assert all(len(made) >= 100 for made in caches), "each has a few in any case"
    assert max(map(len, caches)) > 200
    assert all(made.seen(keyed("2999"), 0) for made in caches), "the newest are remembered"

    for made in caches:
        made.release()
    assert loop.dedup_bytes == 0
    loop.stop()


class Model:
    """What a cache remembers, by the rules."""

    def __init__(self, size: int, ttl_ms: int) -> None:
        self.size, self.ttl_ms = size, ttl_ms
        self.keys: OrderedDict[int, int] = OrderedDict()

    def seen(self, key: int, now_ms: int) -> bool:
        return self.keys.get(key, now_ms) > now_ms

    def remember(self, key: int, ttl_ms: int | None, now_ms: int) -> None:
        ttl_ms = self.ttl_ms if ttl_ms is None else ttl_ms
        if ttl_ms == 0 or self.size == 0:
            return
        self.keys.pop(key, None)
        self.keys[key] = now_ms + ttl_ms if ttl_ms > 0 else NEVER
        if len(self.keys) > self.size:
            self.keys.popitem(last=False)


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"), st.integers(0, 40), st.none() | st.sampled_from([0, 1, 5, 1000])
        ),
        st.tuples(st.just("wait"), st.integers(1, 20), st.none()),
        st.tuples(st.just("flush"), st.just(0), st.none()),
        st.tuples(st.sampled_from(["kill", "stop"]), st.just(0), st.none()),
    ),
    max_size=120,
)


@given(size=st.sampled_from([0, 1, 2, 5, 30]), ttl_ms=st.sampled_from([-1, 3, 50]), steps=steps)
@quick
def test_a_cache_agrees_with_the_model_over_restarts(
    tmp_path_factory: pytest.TempPathFactory,
    size: int,
    ttl_ms: int,
    steps: list[tuple[str, int, int | None]],
) -> None:
    path = tmp_path_factory.mktemp("model") / "dedup"
    made, model, now_ms, boot = cache(size, ttl_ms, path), Model(size, ttl_ms), 1000, BOOT
    for what, number, ttl in steps:
        headers = keyed(str(number), b"" if ttl is None else milliseconds(ttl))
        if what == "publish":
            is_seen = made.seen(headers, now_ms)
            assert is_seen == model.seen(number, now_ms)
            if not is_seen:
                made.remember(headers, now_ms)
                model.remember(number, ttl, now_ms)
        elif what == "wait":
            now_ms += number
        else:
            made.flush()
        if what == "stop":
            made.close()
            boot += 1
        if what in ("kill", "stop"):
            made = cache(size, ttl_ms, path, boot)
        assert [key for key in range(41) if made.seen(keyed(str(key)), now_ms)] == [
            key for key in range(41) if model.seen(key, now_ms)
        ]
    made.release()


# ---- what may be forgotten, and must not be


def test_a_key_is_in_the_file_once_it_was_flushed(tmp_path: Path) -> None:
    path = tmp_path / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    assert not path.exists()

    made.flush()
    made.remember(keyed("b"), 0)

    assert remembered(cache(path=path), ["a", "b"]) == ["a"]


def test_new_keys_are_forgotten_when_their_messages_are_lost(tmp_path: Path) -> None:
    """amqp.md 22.10"""
    made = cache(path=tmp_path / "dedup")
    made.remember(keyed("a"), 0)
    made.flush()
    made.remember(keyed("b"), 0)
    made.remember(keyed("c"), 0)

    made.forget_new()
    made.flush()

    assert remembered(made, ["a", "b", "c"]) == ["a"]
    assert remembered(cache(path=tmp_path / "dedup"), ["a", "b", "c"]) == ["a"]


def test_a_key_whose_message_is_not_stored_goes_with_the_broker(tmp_path: Path) -> None:
    made = cache(path=tmp_path / "dedup")
    made.remember(keyed("stored"), 0)
    made.remember(keyed("transient"), 0, False)
    made.flush()

    assert remembered(made, ["stored", "transient"]) == ["stored", "transient"]
    assert remembered(cache(path=tmp_path / "dedup"), ["stored", "transient"]) == ["stored"]


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_file_of_another_boot_counts_after_an_orderly_stop_only(
    tmp_path: Path, is_orderly: bool
) -> None:
    """When the power goes nobody knows whether a key's message has reached the disk."""
    path = tmp_path / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    made.flush()
    if is_orderly:
        made.close()

    found = cache(path=path, boot=NEXT_BOOT)

    assert remembered(found, ["a"]) == (["a"] if is_orderly else [])
    again = _core.DedupCache(None, HEADER, 10, -1, None, NEXT_BOOT)
    answer = again.load(path.read_bytes())
    assert answer == (0 if is_orderly else _core.KEYS_OF_OTHER_BOOT)


def test_keys_loaded_and_not_touched_survive_the_next_orderly_stop(tmp_path: Path) -> None:
    path = tmp_path / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    made.flush()  # and then it is killed

    cache(path=path).close()

    assert remembered(cache(path=path, boot=NEXT_BOOT), ["a"]) == ["a"]


def test_what_cannot_be_written_is_told_and_written_later(tmp_path: Path) -> None:
    path = tmp_path / "later" / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    assert made.take_news() is None

    with pytest.raises(FileNotFoundError):
        made.flush()
    assert made.take_news() == 2
    assert made.take_news() is None

    path.parent.mkdir()
    made.remember(keyed("b"), 0)
    made.flush()
    assert made.take_news() == 0
    assert remembered(cache(path=path), ["a", "b"]) == ["a", "b"]


def test_the_file_stays_in_proportion_to_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "dedup"
    made = cache(size=10, path=path)
    largest = 0
    for number in range(20_000):
        made.remember(keyed(str(number)), 0)
        if number % 7 == 0:
            made.flush()
            largest = max(largest, path.stat().st_size)
    made.flush()

    assert largest <= (1 + 2 * 10 + SLACK) * SLOT
    newest = [str(number) for number in range(19_990, 20_000)]
    assert remembered(cache(size=10, path=path), newest) == newest
    assert [entry.name for entry in tmp_path.iterdir()] == ["dedup"]


def test_many_keys_of_one_tick_are_written_in_order(tmp_path: Path) -> None:
    path = tmp_path / "dedup"
    made = cache(size=2000, path=path)
    names = [str(number) for number in range(2000)]
    for start in (0, 1000):
        for name in names[start : start + 1000]:
            made.remember(keyed(name), 0)
        made.flush()

    assert path.stat().st_size == (1 + 2000) * SLOT
    assert remembered(cache(size=300, path=path), names) == names[-300:]


def test_a_released_cache_is_of_no_effect(tmp_path: Path) -> None:
    made = cache(path=tmp_path / "dedup")
    made.remember(keyed("a"), 0)
    made.release()

    made.remember(keyed("b"), 0)
    made.flush()
    made.close()
    made.release()

    assert len(made) == 0
    assert list(tmp_path.iterdir()) == []


def test_the_memory_of_a_large_cache_goes_in_turns(tmp_path: Path) -> None:
    """That of half a million keys went in one go, which took the kernel 4 ms."""
    events = FakeEvents()
    loop = _core.Loop(events, str(tmp_path), False, lambda path, error: None, lambda: None)
    made = _core.DedupCache(loop, HEADER, MANY_KEYS, -1, None, BOOT)
    for number in range(MANY_KEYS):
        made.remember(keyed(str(number)), 0)
    size = loop.dedup_bytes
    loop.portion_units = 1

    made.release()
    assert loop.dedup_bytes == 0
    turns = 0
    while events.ready:
        events.ready.pop(0)()
        turns += 1

    assert turns > size >> 21


def test_a_large_file_is_written_anew_in_turns_and_has_all_keys_meanwhile(tmp_path: Path) -> None:
    """A million keys are 32 MB, which one tick wrote."""
    path, aside = tmp_path / "dedup", tmp_path / "dedup.tmp"
    events = FakeEvents()
    loop = _core.Loop(events, str(tmp_path), False, lambda path, error: None, lambda: None)
    loop.portion_units = 1
    size = 8000
    made = _core.DedupCache(loop, HEADER, size, -1, str(path), BOOT)
    number = 0

    def remember(count: int) -> None:
        nonlocal number
        for _ in range(count):
            made.remember(keyed(str(number)), 0)
            number += 1
        made.flush()

    def missing() -> int:
        newest = [str(each) for each in range(number - size, number)]
        return size - len(remembered(cache(size, path=path), newest))

    for _ in range(8):
        remember(size // 8)
    while not aside.exists():
        remember(500)
    largest, turns = path.stat().st_size, 0
    while aside.exists():
        loop.turn()
        turns += 1
        if turns % 8 == 1:
            remember(3)
            assert missing() == 0

    assert turns > 20
    assert path.stat().st_size < largest
    assert missing() == 0
    made.close()
    assert missing() == 0


def head_of(path: Path) -> tuple[int, int, int]:
    """Version, slots that are covered, and boot of a file."""
    return struct.unpack("<IIQ", path.read_bytes()[:16])


def as_version_1(path: Path) -> None:
    """Make a file what an earlier release would have left of it."""
    data = path.read_bytes()
    path.write_bytes(struct.pack("<II", 1, head_of(path)[1] != 0) + data[8:])


@pytest.mark.parametrize("is_orderly", [True, False])
def test_the_first_key_of_a_life_is_added_to_the_file_that_is_there(
    tmp_path: Path, is_orderly: bool
) -> None:
    """A million keys were written anew, 32 MB in one tick, for the first one after a start."""
    path = tmp_path / "dedup"
    made = cache(size=9000, path=path)
    names = [str(number) for number in range(8000)]
    for name in names:
        made.remember(keyed(name), 0)
    for _ in range(2):  # a portion each
        made.flush()
    if is_orderly:
        made.close()
    inode, size = path.stat().st_ino, path.stat().st_size

    boot = NEXT_BOOT if is_orderly else BOOT
    found = cache(size=9000, path=path, boot=boot)
    found.remember(keyed("first"), 0)
    found.flush()

    assert (path.stat().st_ino, path.stat().st_size) == (inode, size + SLOT)
    assert head_of(path) == (2, 0, boot)
    assert remembered(cache(9000, path=path, boot=boot), [*names, "first"]) == [*names, "first"]
    found.close()
    assert head_of(path) == (2, 8002, boot)
    assert remembered(cache(9000, path=path, boot=33), [*names, "first"]) == [*names, "first"]


def test_what_a_failed_write_has_left_behind_the_keys_goes_at_the_stop(tmp_path: Path) -> None:
    path = tmp_path / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    made.flush()
    path.write_bytes(path.read_bytes() + b"half a slot")

    made.close()

    assert path.stat().st_size == 2 * SLOT
    assert remembered(cache(path=path, boot=NEXT_BOOT), ["a"]) == ["a"]


def test_new_keys_behind_the_head_of_an_earlier_life_are_not_believed(tmp_path: Path) -> None:
    """A loss of power may leave them without the head that their life has written."""
    path = tmp_path / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    made.close()
    before = path.read_bytes()
    found = cache(path=path, boot=NEXT_BOOT)
    found.remember(keyed("b"), 0)
    found.flush()
    after = path.read_bytes()

    for data in (after, before[:SLOT] + after[SLOT:], before + bytes(1), before[:-1]):
        again = _core.DedupCache(None, HEADER, 10, -1, None, 33)
        assert again.load(data) == _core.KEYS_OF_OTHER_BOOT
        assert remembered(again, ["a", "b"]) == []
    again = _core.DedupCache(None, HEADER, 10, -1, None, 33)
    assert again.load(before) == 0


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_file_of_version_1_is_written_anew_when_it_is_read(
    tmp_path: Path, is_orderly: bool
) -> None:
    path = tmp_path / "dedup"
    made = cache(path=path)
    for name in ("a", "b"):
        made.remember(keyed(name), 0)
    made.flush()
    if is_orderly:
        made.close()
    as_version_1(path)

    found = cache(path=path, boot=NEXT_BOOT if is_orderly else BOOT)

    assert head_of(path) == (2, 3, NEXT_BOOT if is_orderly else BOOT)
    found.remember(keyed("c"), 0)
    found.close()
    assert remembered(cache(path=path, boot=33), ["a", "b", "c"]) == ["a", "b", "c"]


def test_a_file_of_version_1_of_another_boot_counts_after_an_orderly_stop_only(
    tmp_path: Path,
) -> None:
    path = tmp_path / "dedup"
    made = cache(path=path)
    made.remember(keyed("a"), 0)
    made.flush()
    as_version_1(path)

    found = _core.DedupCache(None, HEADER, 10, -1, None, NEXT_BOOT)

    assert found.load(path.read_bytes()) == _core.KEYS_OF_OTHER_BOOT


def test_keys_that_the_disk_has_refused_for_long_are_written_in_portions(tmp_path: Path) -> None:
    path = tmp_path / "later" / "dedup"
    made = cache(size=20_000, path=path)
    names = [str(number) for number in range(10_000)]
    for name in names:
        made.remember(keyed(name), 0)
        if name == "5000":
            with pytest.raises(FileNotFoundError):
                made.flush()
    path.parent.mkdir()

    sizes = []
    for _ in range(3):
        made.flush()
        sizes.append(path.stat().st_size // SLOT - 1)

    assert sizes == [4096, 8192, 10_000]
    assert remembered(cache(20_000, path=path), names) == names


def test_a_cache_that_goes_while_its_file_is_written_leaves_nothing_half_done(
    tmp_path: Path,
) -> None:
    events = FakeEvents()
    loop = _core.Loop(events, str(tmp_path), False, lambda path, error: None, lambda: None)
    loop.portion_units = 1
    for end in (_core.DedupCache.close, _core.DedupCache.release):
        made = _core.DedupCache(loop, HEADER, 6000, -1, str(tmp_path / "dedup"), BOOT)
        for number in range(20_000):
            made.remember(keyed(str(number)), 0)
            if number % 1000 == 0:
                made.flush()
        assert (tmp_path / "dedup.tmp").exists()

        end(made)
        loop.turn()

        assert [each.name for each in tmp_path.iterdir()] == ["dedup"]


def test_no_table_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no field table"):
        cache().seen(b"\x05ab", 0)


# ---- damage


@pytest.fixture(scope="module")
def file_of_50(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with the keys 0 to 49."""
    path = tmp_path_factory.mktemp("keys") / "dedup"
    made = cache(path=path)
    for name in NAMES:
        made.remember(keyed(name), 0)
    made.flush()
    return path.read_bytes()


NAMES = [str(number) for number in range(50)]


def keys_in(data: bytes) -> list[str]:
    """What is remembered after loading a file, which must be usable then."""
    made = _core.DedupCache(None, HEADER, 100, -1, None, BOOT)
    made.load(data)
    made.remember(keyed("after"), 0)
    assert made.seen(keyed("after"), 0)
    return remembered(made, NAMES)


@given(cut=st.integers(0, 51 * SLOT))
@quick
def test_a_cut_file_keeps_all_keys_before_the_cut(file_of_50: bytes, cut: int) -> None:
    whole = max(0, cut // SLOT - 1)

    assert keys_in(file_of_50[:cut]) == NAMES[:whole]


@given(at=st.integers(SLOT, 51 * SLOT - 1), junk=st.binary(min_size=1, max_size=200))
@quick
def test_junk_costs_the_keys_that_it_covers(file_of_50: bytes, at: int, junk: bytes) -> None:
    data = file_of_50[:at] + junk + file_of_50[at + len(junk) :]
    first, last = at // SLOT - 1, (at + len(junk) - 1) // SLOT - 1
    untouched = [name for number, name in enumerate(NAMES) if not first <= number <= last]

    found = keys_in(data)

    assert [name for name in untouched if name not in found] == []


@given(at=st.integers(SLOT, 51 * SLOT), junk=st.binary(min_size=1, max_size=200))
@quick
def test_bytes_too_many_leave_the_keys_before_them(file_of_50: bytes, at: int, junk: bytes) -> None:
    found = keys_in(file_of_50[:at] + junk + file_of_50[at:])

    assert found[: at // SLOT - 1] == NAMES[: at // SLOT - 1]


@given(data=st.binary(max_size=400))
@quick
def test_anything_can_be_loaded(data: bytes) -> None:
    assert keys_in(data) == []


def test_damage_is_counted(file_of_50: bytes) -> None:
    made = cache()
    bad = bytearray(file_of_50)
    bad[3 * SLOT + 5] ^= 1
    bad[9 * SLOT + 30] ^= 1

    assert made.load(bytes(bad) + b"torn") == 3
    assert cache().load(b"") == _core.KEYS_UNREADABLE
    assert cache().load(b"\x03" + file_of_50[1:]) == _core.KEYS_UNREADABLE
