"""Retained messages: what is found by filters, what is in the files, and what a full disk leaves.

The model is a dict, and a matcher of a few lines that compares level by level.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support.core import FakeEvents

Found = tuple[bytes, bytes, int, bytes, int, int]

quick = settings(deadline=None, database=None, max_examples=150)


class Home:
    """A store in a directory, on a loop that runs when told."""

    def __init__(self, directory: Path, file_size: int = 1 << 26) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.events = FakeEvents()
        self.file_size = file_size
        self.fatal: list[tuple[str, int]] = []
        self.loop = _core.Loop(
            self.events, str(directory), False, lambda *why: self.fatal.append(why), lambda: None
        )
        self.notes: list[str] = []
        self.store = self._opened()

    def _opened(self) -> _core.RetainedStore:
        store = _core.RetainedStore(self.loop, str(self.directory), self.file_size)
        self.notes = store.load()
        return store

    def reopen(self, *, orderly: bool = True) -> None:
        """Stop, in order or by a kill behind a tick, and start again."""
        if orderly:
            self.store.close()
        else:
            self.store.flush()
        self.store = self._opened()

    def found(self, filter: bytes, n: int = 7) -> list[Found]:
        """All that a filter matches, in portions."""
        walk = self.store.walk(filter)
        found: list[Found] = []
        while not walk.is_over:
            found += walk.some(n)
        walk.stop()
        return found

    def payloads(self, filter: bytes = b"#") -> dict[bytes, bytes]:
        """What a filter matches, by topic."""
        return {topic: payload for topic, payload, *_ in self.found(filter)}

    def clean(self) -> None:
        """Clean as long as that is due."""
        while self.store.is_due:
            while self.store.clean_some():
                pass
            self.events.run()

    def files(self) -> list[Path]:
        """Those of the store."""
        return sorted(self.directory.glob("mqtt_retained.*"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "vhost")


def put(home: Home, topic: bytes, payload: bytes, expires_ms: int = 0) -> None:
    home.store.put(topic, payload, 1, b"", 1000, expires_ms)


def matches(filter: bytes, topic: bytes) -> bool:
    """What the standard says, level by level."""
    wanted, levels = filter.split(b"/"), topic.split(b"/")
    if topic.startswith(b"$") and wanted[0] in (b"#", b"+"):
        return False
    for number, level in enumerate(wanted):
        if level == b"#":
            return True
        if number == len(levels) or level not in (b"+", levels[number]):
            return False
    return len(wanted) == len(levels) or (len(wanted) == len(levels) + 1 and wanted[-1] == b"#")


# ---- filters

LEVELS = [b"", b"a", b"b", b"a!", b"a0", b"$s", b"\xc3\xa5", b"z" * 20]
topics = st.lists(st.sampled_from(LEVELS), min_size=1, max_size=4).map(b"/".join).filter(bool)
filters = st.tuples(
    st.lists(st.sampled_from([*LEVELS, b"+", b"+"]), min_size=1, max_size=4),
    st.booleans(),
).map(lambda parts: b"/".join([*parts[0][: 3 if parts[1] else 4], *([b"#"] if parts[1] else [])]))


@quick
@given(st.sets(topics, max_size=60), st.lists(filters.filter(bool), min_size=1, max_size=6))
def test_a_filter_finds_what_the_standard_says(
    tmp_path_factory: pytest.TempPathFactory, names: set[bytes], wanted: list[bytes]
) -> None:
    home = Home(tmp_path_factory.mktemp("vhost"))
    for topic in names:
        put(home, topic, topic[::-1])

    for filter in [*wanted, b"#", b"+/#"]:
        found = home.found(filter, 3)
        assert [topic for topic, *_ in found] == sorted(t for t in names if matches(filter, t))
        assert all(payload == topic[::-1] for topic, payload, *_ in found)


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (b"#", [b"/a", b"a", b"a/b", b"a/b/c", b"\xc3\xa5\xc3\xa4/x"]),
        (b"a/#", [b"a", b"a/b", b"a/b/c"]),
        (b"+/x", [b"\xc3\xa5\xc3\xa4/x"]),
        (b"+/+", [b"/a", b"a/b", b"\xc3\xa5\xc3\xa4/x"]),
        (b"+", [b"a"]),
        (b"$SYS/#", [b"$SYS/up"]),
        (b"$SYS/+", [b"$SYS/up"]),
        (b"+/up", []),
        (b"a/b", [b"a/b"]),
        (b"a/+/c", [b"a/b/c"]),
    ],
)
def test_wildcards(home: Home, filter: bytes, expected: list[bytes]) -> None:
    for topic in (b"a", b"a/b", b"a/b/c", b"/a", b"$SYS/up", b"\xc3\xa5\xc3\xa4/x"):
        put(home, topic, b"x")

    assert [topic for topic, *_ in home.found(filter)] == sorted(expected)


def test_a_topic_of_many_levels_takes_no_more_memory_than_its_bytes(home: Home) -> None:
    before = home.store.memory
    deep = b"/".join([b""] * 32768)
    for end in range(10):
        put(home, deep + bytes([97 + end]), b"x")

    assert home.store.memory - before < 11 * (len(deep) + 200)
    assert len(home.found(b"/".join([b"+"] * 32768))) == 10
    assert len(home.found(b"+/#")) == 10


def test_what_comes_and_goes_during_a_walk_does_not_confuse_it(home: Home) -> None:
    for number in range(500):
        put(home, b"t/%03d" % number, b"x")
    home.loop.tick()
    walk = home.store.walk(b"t/+")
    found = [topic for topic, *_ in walk.some(100)]
    for number in range(0, 500, 2):
        home.store.remove(b"t/%03d" % number)
    for number in range(500):
        put(home, b"t/%03d/new" % number, b"x")
    home.loop.tick()

    while not walk.is_over:
        found += [topic for topic, *_ in walk.some(7)]

    assert found == [b"t/%03d" % n for n in range(500) if n < 100 or n % 2]


@pytest.mark.parametrize("units", [1, 50, 10000])
def test_a_walk_goes_on_in_the_next_portion(home: Home, units: int) -> None:
    names = [b"a/%d/b" % number for number in range(300)]
    for topic in names:
        put(home, topic, topic)
        put(home, topic + b"/c", b"no")
    home.loop.portion_units = units

    assert [found[0] for found in home.found(b"a/+/b", 1000)] == sorted(names)


# ---- the files


def test_all_that_was_published_is_given_back(home: Home) -> None:
    home.store.put(b"t", b"payload", 2, b"\x03\x00\x01x", 1234, 1 << 60)
    home.reopen()

    assert home.found(b"t") == [(b"t", b"payload", 2, b"\x03\x00\x01x", 1234, 1 << 60)]
    assert home.notes == []


def test_an_expired_message_is_not_found_and_goes(home: Home) -> None:
    home.loop.clock_offset_ms = 0
    now_ms = 1 << 40
    put(home, b"old", b"x", 5000)
    put(home, b"later", b"x", now_ms * 8)
    put(home, b"ever", b"x")
    assert set(home.payloads()) == {b"later", b"ever"}
    assert len(home.store) == 3

    while home.store.expire_some():
        pass
    home.loop.tick()

    assert len(home.store) == 2
    home.reopen()
    assert set(home.payloads()) == {b"later", b"ever"}


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), topics, st.binary(max_size=200)),
        st.tuples(st.just("put"), topics, st.just(bytes(5000))),
        st.tuples(st.just("remove"), topics, st.just(b"")),
        st.tuples(st.sampled_from(["tick", "reopen", "kill", "clean", "find"]),
                  filters.filter(bool), st.just(b"")),
    ),
    max_size=60,
)  # fmt: skip


@quick
@given(operations, st.sampled_from([200, 3000, 1 << 20]))
def test_whatever_happens_the_store_has_what_a_dict_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes, bytes]], size: int
) -> None:
    home = Home(tmp_path_factory.mktemp("vhost"), size)
    model: dict[bytes, bytes] = {}
    for step, topic, payload in steps:
        if step == "put":
            put(home, topic, payload)
            model[topic] = payload
        elif step == "remove":
            assert home.store.remove(topic) == (topic in model)
            model.pop(topic, None)
        elif step == "tick":
            home.loop.tick()
        elif step == "clean":
            if home.files():
                while home.store.clean_some():
                    pass
                home.events.run()
                home.loop.tick()
        elif step == "find":
            assert home.payloads(topic) == {t: p for t, p in model.items() if matches(topic, t)}
        else:
            home.reopen(orderly=step == "reopen")
            assert home.notes == []
        assert len(home.store) == len(model)

    home.reopen()
    assert home.payloads() | home.payloads(b"$s/#") == model


def test_the_table_grows_beyond_a_segment_and_is_emptied(home: Home) -> None:
    """Topics are found by their hash, replaced and removed in lines that were split many times."""
    n = 90_000
    topics = [b"t/%05d" % number for number in range(n)]
    for topic in topics:
        put(home, topic, b"a")
    for topic in topics[::3]:
        put(home, topic, b"b")
    home.loop.tick()
    assert len(home.store) == n
    assert all(home.store.remove(topic) for topic in topics[1::3])
    assert not any(home.store.remove(topic) for topic in topics[1:300:3])
    home.loop.tick()
    assert len(home.store) == n - n // 3
    found: dict[bytes, bytes] = {}
    for topic in (topics[0], topics[1], topics[2], topics[-1], topics[-2]):
        found |= home.payloads(topic)
    assert found == {b"t/00000": b"b", b"t/00002": b"a", b"t/89999": b"a"}
    home.reopen()
    assert len(home.store) == n - n // 3
    assert all(home.store.remove(topic) for topic in topics[::3] + topics[2::3])
    home.loop.tick()
    assert len(home.store) == 0
    assert home.found(b"#") == []


def test_random_topics_by_the_thousand(home: Home) -> None:
    chance = random.Random(5)
    model: dict[bytes, bytes] = {}
    for number in range(20000):
        topic = b"%d/%d" % (chance.randrange(60), chance.randrange(60))
        if chance.random() < 0.45:
            assert home.store.remove(topic) == (topic in model)
            model.pop(topic, None)
        else:
            put(home, topic, b"%d" % number)
            model[topic] = b"%d" % number
        if chance.random() < 0.01:
            home.loop.tick()
    for topic in list(model)[50:]:
        assert home.store.remove(topic)
        del model[topic]
    home.loop.tick()

    assert home.payloads() == model
    for topic in model:
        assert home.store.remove(topic)
    home.loop.tick()
    assert home.found(b"#") == []
    assert home.store.memory < 200_000


def test_topics_that_come_in_runs_stand_in_their_order(home: Home) -> None:
    """A topic is looked for in the leaf of the one before first: behind it, before it, in it."""
    chance = random.Random(7)
    model: dict[bytes, bytes] = {}
    for run in range(150):
        start, step = chance.randrange(3000), chance.choice((-1, 1, 1, 2))
        for number in range(start, start + step * 40, step):
            topic = b"%05d" % abs(number)
            put(home, topic, b"%d" % run)
            model[topic] = b"%d" % run
        for topic in chance.sample(sorted(model), 30):
            assert home.store.remove(topic)
            del model[topic]
        home.loop.tick()

    assert [each[0] for each in home.found(b"+")] == sorted(model)
    assert home.payloads() == model


def test_cleaning_gives_the_bytes_back(tmp_path: Path) -> None:
    home = Home(tmp_path / "vhost", 1 << 20)
    put(home, b"kept", b"x" * 1000)
    for number in range(4000):
        put(home, b"t/%d" % (number % 10), b"%d" % number + bytes(1000))
        home.loop.tick()
    home.events.run()
    assert home.store.is_due
    before = home.store.file_bytes

    home.clean()

    assert home.store.file_bytes < before // 2
    assert sum(path.stat().st_size for path in home.files()) == home.store.file_bytes
    kept = home.payloads()
    assert len(kept) == 11
    home.reopen()
    assert home.payloads() == kept


def test_what_an_old_file_has_does_not_come_back_when_its_removal_is_lost(tmp_path: Path) -> None:
    """Whichever of the files that were removed are there again: nothing that is gone is found."""
    home = Home(tmp_path / "vhost", 4096)
    put(home, b"gone", b"x")
    put(home, b"kept", b"old")
    for number in range(40):
        put(home, b"kept", b"%d" % number + bytes(500))
        home.store.flush()
    home.store.remove(b"gone")
    home.store.flush()
    first = home.files()[0]
    content = first.read_bytes()
    for _ in range(len(home.files()) + 2):
        while home.store.clean_some():
            pass
        home.events.run()
    assert not first.exists()
    home.store.close()
    first.write_bytes(content)

    home.reopen()

    assert home.payloads() == {b"kept": b"39" + bytes(500)}
    assert not first.exists()


def test_a_store_whose_virtual_host_goes_writes_nothing_more(home: Home) -> None:
    """Its end wrote and synced, in the thread that serves clients, what was about to be removed;
    in files of a new virtual host of that name, if there was one."""
    put(home, b"t", b"written")
    home.store.flush()
    before = home.files()[0].read_bytes()
    put(home, b"t", b"in memory")

    home.store.release()
    home.store.release()
    home.store.close()
    home.events.run()

    assert [path.read_bytes() for path in home.files()] == [before]
    with pytest.raises(ValueError, match="closed"):
        home.store.walk(b"#").some(1)


def test_messages_of_a_store_that_is_released_go_in_turns(home: Home) -> None:
    """All of them went in one go: a million take a quarter of a second."""
    n = 5000
    for number in range(n):
        home.store.put(b"t/%d" % number, b"x", 0, b"", 1)
    home.events.run()
    home.loop.portion_units = 1
    home.store.release()

    turns = 0
    while home.events.ready:
        home.events.ready.pop(0)()
        turns += 1
    assert turns >= n // 5  # those of a line together, which are five at most


# ---- damage


def filled(home: Home, n: int = 20) -> dict[bytes, bytes]:
    model = {b"t/%02d" % number: b"%d" % number * 20 for number in range(n)}
    for topic, payload in model.items():
        put(home, topic, payload)
        home.store.flush()
    home.store.close()
    return model


def test_every_cut_of_a_file_leaves_what_was_whole(home: Home) -> None:
    model = filled(home, 6)
    (path,) = home.files()
    whole = path.read_bytes()
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])

        home.reopen()

        found = home.payloads()
        assert found.items() <= model.items()
        assert list(found) == list(model)[: len(found)]
        if cut == len(whole):
            assert found == model
        put(home, b"new", b"behind the cut")
        home.reopen()
        assert home.notes == []
        assert home.payloads() == found | {b"new": b"behind the cut"}
        home.store.close()
        for each in home.directory.iterdir():
            each.unlink()


def test_damage_in_the_middle_is_told_and_skipped(home: Home) -> None:
    model = filled(home)
    (path,) = home.files()
    whole = path.read_bytes()
    chance = random.Random(3)
    for _ in range(60):
        damaged = bytearray(whole)
        at = chance.randrange(24, len(whole) - 100)
        n = chance.randrange(1, 80)
        damaged[at : at + n] = os.urandom(n)
        path.write_bytes(damaged)

        home.reopen()

        found = home.payloads()
        assert found.items() <= model.items()
        assert len(found) >= len(model) - 3
        assert len(home.notes) == (damaged != whole)
        home.store.close()


def test_a_damaged_header_is_read_with_the_salt_of_another_file(tmp_path: Path) -> None:
    home = Home(tmp_path / "vhost", 600)
    model = filled(home)
    files = home.files()
    assert len(files) > 2
    files[1].write_bytes(bytes(24) + files[1].read_bytes()[24:])

    home.reopen()

    assert home.payloads() == model
    assert any("header" in note for note in home.notes)


def test_a_file_without_a_header_is_kept_for_humans(home: Home) -> None:
    filled(home)
    (path,) = home.files()
    path.write_bytes(bytes(24) + path.read_bytes()[24:])

    home.reopen()

    assert home.payloads() == {}
    assert Path(f"{path}.damaged").exists()
    put(home, b"a", b"b")
    home.reopen()
    assert home.payloads() == {b"a": b"b"}


def test_a_file_of_another_version_is_refused(home: Home) -> None:
    filled(home)
    (path,) = home.files()
    header = (2).to_bytes(4, "little") + path.read_bytes()[4:16]
    # The check of a header is not what is tested: without it the file counts as damaged.
    path.write_bytes(header + path.read_bytes()[16:])

    home.reopen()

    assert Path(f"{path}.damaged").exists()


def test_a_payload_that_looks_like_an_entry_is_none(home: Home) -> None:
    """Somebody publishes what he has seen in a file; the entry around it is damaged later."""
    put(home, b"evil", b"forged" * 4)
    home.store.flush()
    (path,) = home.files()
    entry = path.read_bytes()[24:]
    put(home, b"forger", bytes(8) + entry * 3 + bytes(8))
    put(home, b"last", b"x")
    home.store.remove(b"evil")
    home.store.close()
    content = bytearray(path.read_bytes())
    content[24 + len(entry)] ^= 1
    path.write_bytes(content)

    home.reopen()

    assert home.payloads() == {b"last": b"x"}


# ---- a disk that refuses


class Refusing:
    """Have writes behind a size fail."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __enter__(self) -> None:
        import resource
        import signal

        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, self.before[1]))

    def __exit__(self, *_: Any) -> None:
        import resource
        import signal

        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)
        signal.signal(signal.SIGXFSZ, self.handler)


def test_what_cannot_be_written_is_taken_back(home: Home) -> None:
    put(home, b"a", b"1")
    put(home, b"b", b"2")
    home.store.flush()
    (path,) = home.files()
    size = path.stat().st_size
    with Refusing(size + 50):
        put(home, b"a", b"new" * 100)
        put(home, b"c", b"new" * 100)
        home.store.remove(b"b")
        assert home.payloads() == {b"a": b"new" * 100, b"c": b"new" * 100}

        with pytest.raises(OSError, match="too large"):
            home.store.flush()

        assert home.store.take_news() == 27
        assert home.payloads() == {b"a": b"1", b"b": b"2"}
    assert path.stat().st_size == size
    put(home, b"a", b"3")
    home.loop.tick()
    assert home.store.take_news() == 0
    home.reopen()
    assert home.payloads() == {b"a": b"3", b"b": b"2"}
    assert home.notes == []


def test_a_first_file_that_cannot_be_written_is_not_left(home: Home) -> None:
    with Refusing(30):
        put(home, b"a", b"1" * 100)
        home.loop.tick()
        assert len(home.store) == 0
        assert home.files() == []
    put(home, b"a", b"2")
    home.reopen()
    assert home.payloads() == {b"a": b"2"}


def test_a_message_that_is_too_large_is_refused(home: Home) -> None:
    with pytest.raises(OSError, match="large"):
        put(home, b"a", bytes(8388608))
    put(home, b"a", bytes(8388000))
    home.reopen()
    assert home.payloads() == {b"a": bytes(8388000)}


def test_a_message_takes_250_bytes_of_memory(home: Home) -> None:
    n = 20000
    for number in range(n):
        put(home, b"site/%03d/device/%06d/temperature" % (number % 100, number), b"21.5")
    home.loop.tick()

    assert home.store.memory / n < 250
