"""What is kept of sessions: against a model, cut and damaged, compacted, on a disk that refuses."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lavinmq import _core
from tests.support import mqtt_log
from tests.support.core import FakeEvents
from tests.unit.mqtt.test_retained import Refusing

RECEIVED, RELEASED, SENT, REC, DONE = (
    _core.SESSION_CHANGES[name] for name in ("RECEIVED", "RELEASED", "SENT", "REC", "DONE")
)

quick = settings(deadline=None, database=None, max_examples=150)
Packets = tuple[list[int], list[tuple[int, int, int]], list[int]]


@dataclass
class Session:
    """What the model knows of one."""

    times: tuple[int, int] = (0, 0)
    facts: dict[bytes, bytes] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)

    def note(self, change: int, id: int, seg: int, pos: int) -> None:
        """What a change of an id means."""
        if change == RECEIVED:
            self.received.add(id)
        elif change == RELEASED:
            self.received.discard(id)
        else:
            self.sent.pop(id, None)
            self.released.discard(id)
            if change == SENT:
                self.sent[id] = seg, pos
            elif change == REC:
                self.released.add(id)

    @property
    def packets(self) -> Packets:
        """As the log tells them."""
        sent = sorted((id, *place) for id, place in self.sent.items())
        return sorted(self.received), sent, sorted(self.released)


Model = dict[bytes, Session]


class Home:
    """A log in a directory, on a loop that runs when told."""

    def __init__(self, directory: Path, file_size: int = 1 << 24) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.events = FakeEvents()
        self.file_size = file_size
        self.loop = _core.Loop(self.events, str(directory), False, lambda *_why: None, lambda: None)
        self.notes: list[str] = []
        self.log = self._opened()

    def _opened(self) -> _core.SessionLog:
        log = _core.SessionLog(self.loop, str(self.directory), self.file_size)
        self.notes = log.load()
        return log

    def reopen(self, *, orderly: bool = True) -> None:
        """Stop, in order or by a kill behind a tick, and start again."""
        if orderly:
            self.log.close()
        else:
            self.log.flush()
            self.log.release()  # nor does the loop call it any more
        self.log = self._opened()

    def state(self) -> Model:
        """All that the log tells."""
        found: Model = {}
        at = 0
        while at >= 0:
            ids, at = self.log.client_ids(at, 5)
            for client_id in ids:
                received, sent, released = self.log.packets(client_id)
                found[client_id] = Session(
                    self.log.times(client_id), self.log.facts(client_id), set(received),
                    {id: (seg, pos) for id, seg, pos in sent}, set(released),
                )  # fmt: skip
        return found

    def compact(self) -> None:
        """From beginning to end."""
        while self.log.compact_some():
            pass
        self.events.run()
        self.loop.tick()

    def files(self) -> list[Path]:
        """Those of the log."""
        return sorted(self.directory.glob("mqtt_sessions.*"))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "vhost")


clients = st.sampled_from([b"a", b"b", b"\xff" * 300, b"client"])
ids = st.one_of(st.integers(1, 12), st.sampled_from([65535, 40000]))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("make"), clients),
        st.tuples(st.just("end"), clients),
        st.tuples(st.just("times"), clients, st.integers(0, 2**32 - 1), st.integers(0, 2**62)),
        st.tuples(st.just("fact"), clients, st.sampled_from([b"will", b"user", b"f" * 1000]),
                  st.one_of(st.none(), st.binary(max_size=100), st.just(bytes(3000)))),
        st.tuples(st.just("note"), clients, st.integers(RECEIVED, DONE), ids,
                  st.integers(1, 2**32 - 1), st.integers(4, 2**32 - 1)),
        st.tuples(st.just("note"), clients, st.integers(RECEIVED, DONE), ids,
                  st.just(1), st.just(4)),
        st.tuples(st.sampled_from(["tick", "reopen", "kill", "compact", "begin"]), clients),
    ),
    max_size=80,
)  # fmt: skip


@quick
@given(steps, st.sampled_from([300, 5000, 1 << 20]))
def test_whatever_happens_the_log_knows_what_a_model_knows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[object, ...]], size: int
) -> None:
    home = Home(tmp_path_factory.mktemp("vhost"), size)
    model: Model = {}
    for step, client, *values in steps:
        assert isinstance(client, bytes)
        if step == "make":
            home.log.make(client)
            model[client] = Session()
        elif step == "tick":
            home.loop.tick()
        elif step == "compact":
            home.compact()
        elif step == "begin":
            home.loop.portion_units = 1
            home.log.compact_some()
            home.loop.portion_units = 0
        elif step in ("reopen", "kill"):
            home.reopen(orderly=step == "reopen")
            assert home.notes == []
        elif client not in model:
            with pytest.raises(KeyError):
                home.log.end(client)
        elif step == "end":
            home.log.end(client)
            del model[client]
        elif step == "times":
            home.log.set_times(client, *values)  # type: ignore[arg-type]
            model[client].times = tuple(values)  # type: ignore[assignment]
        elif step == "fact":
            home.log.set_fact(client, *values)  # type: ignore[arg-type]
            key, value = values
            model[client].facts.pop(key, None)  # type: ignore[call-overload]
            if value is not None:
                model[client].facts[key] = value  # type: ignore[index,assignment]
        else:
            home.log.note(client, *values)  # type: ignore[arg-type]
            model[client].note(*values)  # type: ignore[arg-type]
    assert home.state() == model

    home.reopen()

    assert home.state() == model
    assert len(home.log) == len(model)


def test_ids_of_both_directions_are_apart(home: Home) -> None:
    home.log.make(b"c")
    for change in (RECEIVED, SENT):
        home.log.note(b"c", change, 7, 1, 4)
    home.reopen()
    assert home.log.packets(b"c") == ([7], [(7, 1, 4)], [])

    home.log.note(b"c", RELEASED, 7)
    home.log.note(b"c", REC, 7)

    assert home.log.packets(b"c") == ([], [], [7])
    home.log.note(b"c", DONE, 7)
    home.reopen()
    assert home.log.packets(b"c") == ([], [], [])


def test_a_new_session_of_a_client_has_nothing_of_the_old_one(home: Home) -> None:
    home.log.make(b"c")
    home.log.set_fact(b"c", b"will", b"x")
    home.log.note(b"c", RECEIVED, 1)
    home.log.set_times(b"c", 10, 20)

    home.log.make(b"c")

    assert home.state() == {b"c": Session()}
    home.reopen()
    assert home.state() == {b"c": Session()}


def test_every_id_may_be_in_use(home: Home) -> None:
    home.log.make(b"c")
    for id in range(1, 65536):
        home.log.note(b"c", SENT, id, 1, id * 4)
        home.log.note(b"c", RECEIVED, id)
    for id in range(1, 65536, 2):
        home.log.note(b"c", DONE, id)

    home.reopen()

    received, sent, released = home.log.packets(b"c")
    assert received == list(range(1, 65536))
    assert sent == [(id, 1, id * 4) for id in range(2, 65536, 2)]
    assert released == []


def filled(home: Home) -> list[Model]:
    """Ten ticks, and what was known behind each."""
    states: list[Model] = [{}]
    for number in range(10):
        client = b"client-%d" % (number % 4)
        if client not in home.log:
            home.log.make(client)
        home.log.note(client, SENT, number + 1, 1, 4)
        home.log.note(client, RECEIVED, number + 1)
        home.log.set_fact(client, b"will", b"%d" % number * 5)
        home.log.flush()
        states.append(home.state())
    home.log.close()
    return states


def test_a_log_whose_virtual_host_goes_writes_nothing_more(home: Home) -> None:
    home.log.make(b"one")
    home.log.flush()
    before = home.files()[0].read_bytes()
    home.log.make(b"two")

    home.log.release()
    home.log.release()
    home.log.close()
    home.events.run()

    assert [path.read_bytes() for path in home.files()] == [before]


def test_every_cut_of_the_log_leaves_the_state_behind_a_tick(home: Home) -> None:
    """A tick is there as a whole or not at all, whatever a kill or a loss of power has left."""
    states = filled(home)
    (path,) = home.files()
    whole = path.read_bytes()
    last = 0
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])

        home.reopen()

        assert home.state() in states[last : last + 2]
        last = states.index(home.state())
        home.log.make(b"new")
        before = home.state()
        home.reopen()
        assert home.notes == []
        assert home.state() == before
        home.log.close()
        for each in home.directory.iterdir():
            each.unlink()
    assert last == 10


def test_damage_is_told_and_costs_one_tick(home: Home) -> None:
    filled(home)
    (path,) = home.files()
    whole = path.read_bytes()
    chance = random.Random(7)
    for _ in range(60):
        damaged = bytearray(whole)
        at = chance.randrange(24, len(whole))
        damaged[at : at + 8] = os.urandom(8)
        path.write_bytes(damaged[: len(whole)])

        home.reopen()

        sent = [id for each in home.state().values() for id in each.sent]
        assert len(home.notes) == (damaged[: len(whole)] != whole)
        assert len(sent) >= 10 - 6, "a session is known from its first tick on, and two are hit"
        home.log.close()


def test_compaction_leaves_what_counts(home: Home) -> None:
    for number in range(100):
        home.log.make(b"client-%d" % number)
        home.log.set_fact(b"client-%d" % number, b"user", b"guest")
    for number in range(200000):
        home.log.note(b"client-%d" % (number % 100), SENT, 1 + number % 7, 1, 4 + number)
        home.log.note(b"client-%d" % (number % 100), DONE, 1 + number % 7)
    home.loop.tick()
    before = home.state()
    assert home.log.is_due

    home.compact()

    assert home.log.file_bytes < 20000
    assert sum(path.stat().st_size for path in home.files()) == home.log.file_bytes
    assert not home.log.is_due
    home.reopen()
    assert home.state() == before


def test_a_file_without_entries_is_nothing_to_tell_of(home: Home) -> None:
    """A kill has come as a compaction had begun one."""
    assert not home.log.compact_some()
    (path,) = home.files()
    assert path.stat().st_size == mqtt_log.HEADER.size

    home.reopen(orderly=False)

    assert home.notes == []
    assert list(home.directory.iterdir()) == []


def test_what_happens_during_a_compaction_counts(home: Home) -> None:
    for number in range(100):
        home.log.make(b"client-%d" % number)
    home.loop.portion_units = 1
    assert home.log.compact_some()
    home.log.end(b"client-50")
    home.log.make(b"client-0")
    home.log.note(b"client-0", RECEIVED, 5)
    home.log.note(b"client-99", SENT, 6, 1, 4)
    home.log.make(b"new")
    home.loop.portion_units = 0
    before = home.state()

    home.compact()

    assert len(home.files()) == 1
    assert home.state() == before
    home.reopen()
    assert home.state() == before


def test_a_session_that_has_ended_does_not_come_back_with_a_file_whose_removal_is_lost(
    home: Home,
) -> None:
    home.log.make(b"gone")
    home.log.make(b"kept")
    home.log.flush()
    (path,) = home.files()
    content = path.read_bytes()
    home.log.end(b"gone")
    home.compact()
    assert not path.exists()
    home.log.close()
    path.write_bytes(content)

    home.reopen()

    assert list(home.state()) == [b"kept"]
    assert not path.exists()


def test_that_an_id_is_free_again_is_written_with_what_comes_next(home: Home) -> None:
    home.log.make(b"c")
    home.log.note(b"c", SENT, 1, 1, 4)
    home.loop.tick()
    (path,) = home.files()
    before = path.stat().st_size

    home.log.note(b"c", DONE, 1)
    home.loop.tick()
    assert path.stat().st_size == before
    home.log.note(b"c", SENT, 2, 1, 50)
    home.loop.tick()

    written = path.stat().st_size
    assert written > before
    home.log.note(b"c", DONE, 2)
    home.log.retry()
    assert path.stat().st_size > written
    home.reopen(orderly=False)
    assert home.log.packets(b"c") == ([], [], [])


def test_ids_that_follow_each_other_take_few_bytes(home: Home) -> None:
    for client in (b"a", b"b"):
        home.log.make(client)
    home.loop.tick()
    (path,) = home.files()
    before = path.stat().st_size

    for id in range(1, 1001):
        home.log.note(b"a", SENT, id, 1, id * 10)
    home.loop.tick()

    assert path.stat().st_size - before < 4100
    for id in range(1, 501):
        home.log.note(b"a", DONE, id)
    for id in range(501, 601):
        home.log.note(b"a", REC, id)
        home.log.note(b"b", SENT, id, 2, id)
    for id in range(601, 701):
        home.log.note(b"b", SENT, id, id % 2, id)
    for id in (65534, 65535, 1, 2):
        home.log.note(b"b", RECEIVED, id)
    home.log.note(b"b", RELEASED, 65535)
    state = home.state()
    home.reopen(orderly=False)

    assert home.notes == []
    assert home.state() == state
    assert home.log.packets(b"b")[0] == [1, 2, 65534]
    assert home.log.packets(b"a")[1][0] == (601, 1, 6010)
    assert home.log.packets(b"a")[2] == list(range(501, 601))


def test_what_is_noted_again_counts(home: Home) -> None:
    home.log.make(b"c")
    home.log.note(b"c", SENT, 1, 1, 4)
    home.log.note(b"c", DONE, 1)
    home.log.note(b"c", DONE, 2)
    home.log.make(b"c")
    home.log.note(b"c", DONE, 3)
    home.log.note(b"c", SENT, 1, 1, 8)
    home.log.note(b"c", SENT, 2, 2, 8)
    home.loop.tick()
    home.log.note(b"c", SENT, 3, 2, 9)
    home.reopen(orderly=False)

    assert home.log.packets(b"c")[1] == [(1, 1, 8), (2, 2, 8), (3, 2, 9)]


def test_very_many_ids_that_are_free_again_are_written(home: Home) -> None:
    home.log.make(b"c")
    home.log.note(b"c", SENT, 1, 1, 4)
    home.loop.tick()
    (path,) = home.files()
    before = path.stat().st_size

    for _ in range(6000):
        home.log.note(b"c", DONE, 1)
    home.loop.tick()

    assert path.stat().st_size > before


def test_what_cannot_be_written_is_tried_again(home: Home) -> None:
    home.log.make(b"c")
    home.log.flush()
    (path,) = home.files()
    called = []
    with Refusing(path.stat().st_size + 10):
        home.log.note(b"c", RECEIVED, 1)
        home.log.synced(lambda: called.append(1))
        home.events.run()
        assert home.log.take_news() == 27
        home.log.retry()
        home.events.run()
        assert called == []
    home.log.note(b"c", RECEIVED, 2)
    home.loop.tick()
    home.log.retry()
    home.log.synced(lambda: called.append(2))
    home.events.run()

    assert called == [1, 2]
    assert home.log.take_news() == 0
    home.reopen(orderly=False)
    assert home.notes == []
    assert home.log.packets(b"c") == ([1, 2], [], [])


def test_a_first_file_that_cannot_be_written_is_tried_again(home: Home) -> None:
    with Refusing(10):
        home.log.make(b"c")
        home.loop.tick()
        assert home.files() == []
    home.log.note(b"c", RECEIVED, 1)
    home.loop.tick()

    home.reopen(orderly=False)

    assert home.log.packets(b"c") == ([1], [], [])


def test_facts_are_bounded(home: Home) -> None:
    home.log.make(b"c")
    home.log.set_fact(b"c", b"a", bytes(4000000))
    with pytest.raises(OSError, match="large"):
        home.log.set_fact(b"c", b"b", bytes(300000))
    home.log.set_fact(b"c", b"a", None)
    home.log.set_fact(b"c", b"b", bytes(300000))
    assert home.log.fact(b"c", b"b") == bytes(300000)
    assert home.log.fact(b"c", b"a") is None


def test_a_session_takes_few_bytes_of_memory(home: Home) -> None:
    n = 20000
    for number in range(n):
        home.log.make(b"client-%08d" % number)
        home.log.set_times(b"client-%08d" % number, 86400, 0)

    assert home.log.memory / n < 200


def test_a_closed_log_knows_nobody_and_is_on_no_list(home: Home) -> None:
    """Whoever still has it may ask: what is on disk of definitions is told after the end, too."""
    told: list[str] = []
    home.log.make(b"a")
    home.log.close()

    assert b"a" not in home.log
    home.log.synced(lambda: told.append("safe"))
    home.log = home._opened()
    home.loop.tick()
    home.events.run()
    assert b"a" in home.log
    assert told == []
