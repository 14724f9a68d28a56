"""What a sample counts and keeps of messages that reach an exchange by others, whatever routes
channels keep: those keep a route past a sample that is closed, and count for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp import commands

from lavinmq import _core
from tests.support.core import Bench
from tests.support.wire import encode_publish
from tests.unit.queue.test_delayed_model import StillEvents

ROOM = 1 << 20


class Ways:
    """`outer` (direct) leads to `inner` by the key "in", which leads to `deep`; each has a queue.
    Messages of `outer` with the key "out" go to a queue alone."""

    def __init__(self, directory: Path) -> None:
        self.bench = Bench(directory, StillEvents())
        self.exchanges = {
            "outer": _core.Exchange(_core.DIRECT, 1), "inner": _core.Exchange(_core.FANOUT, 2),
            "deep": _core.Exchange(_core.DIRECT, 3), "plain": _core.Exchange(_core.DIRECT, 4),
        }  # fmt: skip
        self.queues = {name: self.bench.queue(name) for name in ("i", "d", "o")}
        outer, inner, deep, plain = self.exchanges.values()
        outer.bind(b"in", b"", inner)
        outer.bind(b"out", b"", self.queues["o"])
        inner.bind(b"", b"", self.queues["i"])
        inner.bind(b"", b"", deep)
        deep.bind(b"in", b"", self.queues["d"])
        plain.bind(b"in", b"", self.queues["o"])
        self.samples: dict[str, _core.Sample] = {}
        self.learn()
        self.bench.link.open_channel(2, 0)

    def learn(self) -> None:
        """What a connection asks Python for, after each change of what is followed."""
        self.bench.vhost.touch()
        for name, exchange in self.exchanges.items():
            self.bench.link.learn(name.encode(), exchange)

    def follow(self, name: str) -> _core.Sample:
        """Begin to follow an exchange."""
        sample = self.samples[name] = _core.Sample(16)
        place = str(self.bench.directory / f"trace-{name}")
        followed = _core.Queue(self.bench.loop, place, 4096, False)
        self.exchanges[name].follow(followed, sample)
        self.learn()
        return sample

    def leave(self, name: str) -> int:
        """Follow it no more. Returns: what has passed."""
        self.exchanges[name].follow(None, None)
        self.learn()
        return self.samples.pop(name).seen

    def publish(self, exchange: str, key: str, n: int = 1, channel: int = 1) -> None:
        """Publish some messages."""
        self.bench.send(encode_publish(channel, exchange, key, b"body") * n)


@pytest.fixture
def ways(tmp_path: Path) -> Iterator[Ways]:
    """A message path with exchanges behind others."""
    made = Ways(tmp_path / "bench")
    with closing(made.bench):
        yield made


def test_what_passes_by_another_exchange_is_kept_while_wanted_and_counted_afterwards(
    ways: Ways,
) -> None:
    sample = ways.follow("inner")
    ways.publish("outer", "in", 3)
    assert sample.take(2, ROOM) == [] and sample.seen == 3

    ways.publish("outer", "in", 1000)

    assert sample.seen == 1003
    assert [(row[1], row[2]) for row in sample.take(2, ROOM)] == [(b"outer", b"in")] * 2
    ways.publish("outer", "in", 5)
    assert len(sample.take(0, ROOM)) == 2
    assert ways.leave("inner") == 1008
    assert ways.queues["i"].ready == ways.queues["d"].ready == 1008


def test_two_samples_on_the_way_count_the_same(ways: Ways) -> None:
    samples = [ways.follow(name) for name in ("inner", "deep")]
    ways.publish("outer", "in", 10)
    samples[0].take(1, ROOM)
    ways.publish("outer", "in", 10)
    ways.leave("inner")
    ways.publish("outer", "in", 10)
    assert (samples[0].seen, samples[1].seen) == (20, 30)


def test_a_channel_that_goes_leaves_what_it_has_published(ways: Ways) -> None:
    sample = ways.follow("inner")
    ways.publish("outer", "in", 7, channel=2)
    ways.bench.link.close_channel(2, False)
    ways.publish("outer", "in", 2)
    assert sample.seen == 9


def test_messages_of_a_transaction_pass_when_they_are_committed(ways: Ways) -> None:
    sample = ways.follow("inner")
    ways.bench.link.select_transactions(1)
    ways.publish("outer", "in", 4)
    assert sample.seen == 0
    ways.bench.link.commit(1)
    ways.bench.run()
    ways.publish("outer", "in", 4)
    assert sample.seen == 4


class Delayed:
    """An exchange x whose messages may wait, with a queue, and a way to it by `front`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.bench = Bench(directory, StillEvents())
        self.exchange = _core.Exchange(_core.FANOUT, 1)
        self.waiting = _core.Queue(self.bench.loop, str(directory / "waiting"), 4096, True)
        self.exchange.set_delayed(b"x", self.waiting)
        self.out = self.bench.queue("out")
        self.exchange.bind(b"", b"", self.out)
        self.front = _core.Exchange(_core.FANOUT, 2)
        self.front.bind(b"", b"", self.exchange)
        self.sample = _core.Sample(16)
        self.exchange.follow(
            _core.Queue(self.bench.loop, str(directory / "trace"), 4096, False), self.sample
        )
        self.learn()

    def learn(self) -> None:
        """What a connection asks Python for."""
        self.bench.vhost.touch()
        self.bench.link.learn(b"x", self.exchange)
        self.bench.link.learn(b"front", self.front)

    def publish(self, body: bytes, n: int, exchange: str = "x") -> None:
        """Publish some messages, which wait for a second when they say that they are later."""
        later = commands.Basic.Properties(headers={"x-delay": 1000})
        given = [later] if body.startswith(b"later") else []
        self.bench.send(encode_publish(1, exchange, "k", body, *given) * n)

    def release(self) -> None:
        """The time of all has come."""
        self.bench.loop.clock_offset_ms += 2000
        self.bench.loop.expire()
        self.bench.run()


@pytest.fixture
def delayed(tmp_path: Path) -> Iterator[Delayed]:
    """A followed exchange whose messages may wait."""
    made = Delayed(tmp_path)
    with closing(made.bench):
        yield made


def test_messages_of_a_delayed_exchange_pass_when_their_time_has_come(delayed: Delayed) -> None:
    """Those without a delay pass at once; the exchange counts both when they come."""
    sample = delayed.sample
    delayed.publish(b"now", 3)
    delayed.publish(b"later", 4)
    delayed.bench.run()
    assert sample.seen == 3
    assert sample.take(1, ROOM) == []
    delayed.publish(b"now", 2)
    assert (sample.seen, [row[5] for row in sample.take(5, ROOM)]) == (5, [b"now"])

    delayed.release()

    assert (sample.seen, delayed.out.ready) == (9, 9)
    assert [row[5] for row in sample.take(0, ROOM)] == [b"later"] * 4
    delayed.exchange.follow(None, None)
    assert sample.seen == 9


@pytest.mark.parametrize("exchange", ["x", "front"])
@pytest.mark.parametrize("is_open", [False, True])
def test_what_waits_has_not_passed_by_whatever_way_it_came(
    delayed: Delayed, exchange: str, is_open: bool
) -> None:
    sample = delayed.sample
    if is_open:
        sample.take(1000, ROOM)
    delayed.publish(b"later", 5, exchange)
    assert sample.seen == 0
    delayed.publish(b"now", 2, exchange)
    assert sample.seen == 2
    delayed.release()
    delayed.publish(b"later", 1, exchange)
    assert (sample.seen, delayed.out.ready) == (7, 7)
    assert len(sample.take(0, ROOM)) == (7 if is_open else 0)


def test_a_large_message_that_waits_has_not_passed(delayed: Delayed) -> None:
    """It is stored in portions: nobody sees it pass meanwhile."""
    delayed.publish(b"later" + bytes(3 << 20), 1)
    delayed.bench.run()
    assert (delayed.waiting.ready, delayed.sample.seen) == (1, 0)


def test_an_exchange_may_become_delayed_and_cease_to_be_while_it_is_followed(
    delayed: Delayed,
) -> None:
    delayed.publish(b"later", 5)
    delayed.publish(b"now", 1)
    delayed.exchange.end_delay()
    delayed.learn()
    delayed.publish(b"later", 2)
    assert delayed.sample.seen == 3
    delayed.exchange.set_delayed(b"x", delayed.waiting)
    delayed.learn()
    delayed.publish(b"later", 4)
    assert delayed.sample.seen == 3
    delayed.release()
    assert delayed.sample.seen == 12


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("publish"), st.sampled_from(["outer", "inner", "deep", "plain"]),
            st.sampled_from(["in", "out"]), st.integers(1, 30), st.integers(1, 2),
        ),
        st.tuples(
            st.sampled_from(["follow", "leave"]), st.sampled_from(["outer", "inner", "deep"])
        ),
        st.tuples(
            st.just("take"), st.sampled_from(["outer", "inner", "deep"]), st.integers(0, 20)
        ),
    ),
    max_size=40,
)  # fmt: skip
PASSED = {
    ("outer", "in"): ("outer", "inner", "deep"), ("outer", "out"): ("outer",),
    ("inner", "in"): ("inner", "deep"), ("inner", "out"): ("inner", "deep"),
    ("deep", "in"): ("deep",), ("deep", "out"): ("deep",),
}  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(steps=STEPS)
def test_every_message_is_counted_once_by_each_it_passes(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    ways = Ways(tmp_path_factory.mktemp("ways"))
    expected: dict[str, int] = {}
    with closing(ways.bench):
        for what, *more in steps:
            if what == "publish":
                exchange, key, n, channel = more
                ways.publish(exchange, key, n, channel)
                for name in PASSED.get((exchange, key), ()):
                    if name in expected:
                        expected[name] += n
            elif what == "follow" and more[0] not in expected:
                ways.follow(more[0])
                expected[more[0]] = 0
            elif what == "leave" and more[0] in expected:
                assert ways.leave(more[0]) == expected.pop(more[0])
            elif what == "take" and more[0] in expected:
                ways.samples[more[0]].take(more[1], ROOM)
            assert {name: each.seen for name, each in ways.samples.items()} == expected
