"""An exchange that keeps its newest messages, and gives them to what is bound later."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from lavinmq import _core
from lavinmq.arguments.exchange_types import HISTORY_LENGTH, check
from lavinmq.arguments.names import failed
from lavinmq.errors import ChannelError
from lavinmq.fieldtable import EMPTY, FieldTable
from lavinmq.files.definitions import ExchangeDef
from lavinmq.policy.features import exchange_features
from lavinmq.process import log
from lavinmq.process.portions import Portions
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.history import Histories
from lavinmq.vhost.loading import load_exchanges
from lavinmq.vhost.recorded import Recorded
from tests.support.core import Bench, frame, properties, publish

RETURN = struct.pack(">HH", 60, 50)
NO_STORE = b"\x19x-recent-history-no-store"
MIB = 1 << 20
MOST_BYTES = 32 * MIB
COST = 64
"""Bytes that a kept message takes besides its body, at most."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with closing(Bench(tmp_path)) as made:
        yield made


def keeping(bench: Bench, name: str = "h", most: int = 3) -> _core.Exchange:
    """An exchange that keeps messages; the link may publish to it."""
    made = _core.Exchange(_core.FANOUT, 7)
    made.set_history(
        _core.Queue(bench.loop, str(bench.directory / f"{name}.kept"), 4096, False), most
    )
    bench.vhost.add(name.encode(), made)
    bench.vhost.touch()
    bench.link.learn(name.encode(), made)
    bench.link.learn(b"", bench.exchange)
    return made


def to(
    exchange: str, body: bytes, props: bytes = b"\0\0", flags: int = 0, key: bytes = b"k"
) -> bytes:
    """basic.publish."""
    name = exchange.encode()
    method = struct.pack(">HHH", 60, 40, 0) + bytes([len(name)]) + name
    data = publish(key, body, props)
    rest = data[7 + struct.unpack_from(">I", data, 3)[0] + 1 :]
    return frame(1, method + bytes([len(key)]) + key + bytes([flags])) + rest


def held(bench: Bench, queue: _core.Queue) -> list[bytes]:
    """Take everything out of a queue."""
    found = []
    while (got := bench.get(queue)) is not None:
        found.append(got.body)
    return found


def filled(bench: Bench, exchange: _core.Exchange, name: str = "q") -> _core.Queue:
    """A new queue that has all that is kept."""
    queue = bench.queue(name, durable=False)
    for _ in _core.Replay(exchange, queue):
        pass
    bench.run()
    return queue


def numbered(n: int) -> list[bytes]:
    return [b"%d" % i for i in range(n)]


@pytest.mark.parametrize("most", [1, 3, 8, 9, 100])
def test_the_newest_are_kept_in_their_order(bench: Bench, most: int) -> None:
    exchange = keeping(bench, most=most)

    bench.send(b"".join(to("h", body) for body in numbered(20)))

    assert exchange.n_kept == min(most, 20)
    assert held(bench, filled(bench, exchange)) == numbered(20)[-most:]
    assert held(bench, filled(bench, exchange, "again")) == numbered(20)[-most:]


def test_no_more_than_the_most_there_is_are_kept(bench: Bench) -> None:
    exchange = keeping(bench, most=1 << 31)

    bench.send(b"".join(to("h", body) for body in numbered(_core.HISTORY_MAX + 5)))

    assert exchange.n_kept == _core.HISTORY_MAX


def test_a_message_comes_with_its_names_and_properties(bench: Bench) -> None:
    exchange = keeping(bench)
    props = properties(priority=4, headers=b"\x01aI\0\0\0\x07")
    bench.send(to("h", b"body", props, key=b"a.key"))

    queue = filled(bench, exchange)

    got = bench.get(queue)
    assert got is not None
    assert (got.routing_key, got.properties, got.body) == (b"a.key", props, b"body")
    assert not got.redelivered


@pytest.mark.parametrize(
    ("value", "is_kept"), [(b"t\1", False), (b"t\0", True), (b"S\0\0\0\0", True)]
)
def test_a_header_keeps_a_message_out(bench: Bench, value: bytes, is_kept: bool) -> None:
    exchange, queue = keeping(bench), bench.queue("bound")
    exchange.bind(b"", b"", queue)

    bench.send(to("h", b"m", properties(headers=NO_STORE + value)))

    assert exchange.n_kept == is_kept
    assert queue.ready == 1


def test_what_is_only_kept_is_returned_as_unroutable(bench: Bench) -> None:
    exchange = keeping(bench)

    bench.send(to("h", b"m", flags=1))
    bench.run()

    assert RETURN in bench.client.recv(1 << 16)
    counters = exchange.counters()
    assert (counters["publish_in"], counters["publish_out"], counters["unroutable"]) == (1, 0, 1)
    assert exchange.n_kept == 1


def test_the_alternate_gets_what_is_only_kept(bench: Bench) -> None:
    exchange, queue = keeping(bench), bench.queue("alt")
    alternate = _core.Exchange(_core.FANOUT, 1)
    alternate.bind(b"", b"", queue)
    exchange.set_alternate(alternate)
    bench.vhost.touch()
    bench.link.learn(b"h", exchange)

    bench.send(to("h", b"m"))

    assert (exchange.n_kept, queue.ready) == (1, 1)


def test_what_comes_through_another_exchange_is_kept(bench: Bench) -> None:
    exchange, outer = keeping(bench), _core.Exchange(_core.DIRECT, 1)
    outer.bind(b"k", b"", exchange)
    bench.vhost.add(b"outer", outer)
    bench.vhost.touch()
    bench.link.learn(b"outer", outer)

    bench.send(to("outer", b"1") + to("outer", b"2") + to("outer", b"3", key=b"other"))

    assert held(bench, filled(bench, exchange)) == [b"1", b"2"]


def test_a_commit_fills_it_and_a_rollback_does_not(bench: Bench) -> None:
    exchange = keeping(bench)
    bench.link.select_transactions(1)

    bench.send(to("h", b"gone") + to("h", b"gone"))
    bench.link.rollback(1)
    bench.send(to("h", b"kept"))
    assert exchange.n_kept == 0
    bench.link.commit(1)
    bench.run()

    assert exchange.n_kept == 1


# ---- bounds --------------------------------------------------------------------------------------


def test_bytes_are_bounded_whatever_the_length(bench: Bench) -> None:
    exchange = keeping(bench, most=1000)
    body = bytes(MIB - 1024)

    for _ in range(40):
        bench.send(to("h", body))

    assert 31 <= exchange.n_kept <= 32
    assert 30 * MIB < bench.loop.history_bytes <= MOST_BYTES


def test_a_large_message_is_passed_on_and_not_kept(bench: Bench) -> None:
    exchange, queue = keeping(bench), bench.queue("bound")
    exchange.bind(b"", b"", queue)

    bench.send(to("h", b"small") + to("h", bytes(MIB)))
    bench.run()

    assert (exchange.n_kept, queue.ready) == (1, 2)


def test_all_exchanges_share_what_they_may_keep(bench: Bench) -> None:
    first, second = keeping(bench, "a", 100), keeping(bench, "b", 100)
    bench.link.learn(b"a", first)
    bench.loop.set_max_history(10 * (1000 + COST))
    bench.send(b"".join(to("a", bytes(1000)) for _ in range(20)))
    most = first.n_kept
    assert 9 <= most <= 10

    bench.send(to("b", bytes(1000)))
    assert (first.n_kept, second.n_kept) == (most, 0)
    bench.send(to("b", b""))
    assert (first.n_kept, second.n_kept) == (most, 1)
    assert bench.loop.history_bytes <= 10 * (1000 + COST)


def test_memory_goes_with_the_exchange(bench: Bench) -> None:
    exchange = keeping(bench, most=1000)
    bench.send(b"".join(to("h", body) for body in numbered(1000)))
    assert bench.loop.history_bytes > 0

    bench.vhost.remove(b"h")
    bench.vhost.touch()
    bench.send(publish(b"nobody", b""))  # the channel keeps its last route
    del exchange

    assert bench.loop.history_bytes == 0


@pytest.mark.parametrize("value", [0, -1, True, "20", 2.0, None, 1, 10_000, 10_001, 1 << 40])
def test_a_length_is_a_number_within_bounds(value: object) -> None:
    arguments = FieldTable({HISTORY_LENGTH: value})  # type: ignore[dict-item]
    if value in (1, 10_000, None) and not isinstance(value, bool):
        check("x-recent-history", arguments)
        return
    with pytest.raises(ChannelError) as raised:
        check("x-recent-history", arguments)
    assert raised.value.code == failed("").code
    assert HISTORY_LENGTH in str(raised.value)
    check("fanout", arguments)


def test_the_length_is_an_effective_argument() -> None:
    given = FieldTable({HISTORY_LENGTH: 5})

    assert exchange_features("x-recent-history", given).effective_arguments == (HISTORY_LENGTH,)
    assert exchange_features("fanout", given).effective_arguments == ()


# ---- replay --------------------------------------------------------------------------------------


def test_a_replay_is_in_portions_and_misses_nothing_that_comes_meanwhile(bench: Bench) -> None:
    exchange, queue = keeping(bench, most=50), bench.queue("q", durable=False)
    bench.send(b"".join(to("h", body) for body in numbered(10)))
    replay = _core.Replay(exchange, queue, 0)

    assert [next(replay) for _ in range(4)] == [1, 2, 3, 4]
    assert queue.ready == 4
    bench.send(to("h", b"10") + to("h", b"11"))
    steps = len(list(replay))
    exchange.bind(b"", b"", queue)
    bench.send(to("h", b"12"))

    assert steps == 12 - 4 - 1 + 1
    assert held(bench, queue) == numbered(13)


def test_who_is_overtaken_goes_on_with_the_oldest(bench: Bench) -> None:
    exchange, queue = keeping(bench, most=4), bench.queue("q", durable=False)
    bench.send(b"".join(to("h", body) for body in numbered(4)))
    replay = _core.Replay(exchange, queue, 0)
    next(replay)

    bench.send(b"".join(to("h", b"late %d" % i) for i in range(6)))
    for _ in replay:
        pass

    assert held(bench, queue) == [b"0", b"late 2", b"late 3", b"late 4", b"late 5"]


def test_a_replay_goes_through_an_exchange(bench: Bench) -> None:
    exchange, inner = keeping(bench), _core.Exchange(_core.DIRECT, 1)
    queue, other = bench.queue("q"), bench.queue("other")
    inner.bind(b"k", b"", queue)
    inner.bind(b"l", b"", other)
    bench.send(to("h", b"1") + to("h", b"2", key=b"l") + to("h", b"3", key=b"m"))

    assert list(_core.Replay(exchange, inner)) == []

    assert (held(bench, queue), held(bench, other)) == ([b"1"], [b"2"])


def test_exchanges_bound_in_a_ring_come_to_an_end(bench: Bench) -> None:
    one, two = keeping(bench, "one", 100), keeping(bench, "two", 100)
    queue = bench.queue("q")
    two.bind(b"", b"", queue)
    bench.link.learn(b"one", one)
    bench.send(b"".join(to("one", body) for body in numbered(5)))
    two.bind(b"", b"", one)

    there, back = _core.Replay(one, two, 0), _core.Replay(two, one, 0)
    for _ in range(200):
        next(there, None)
        next(back, None)

    assert next(there, None) is next(back, None) is None
    assert held(bench, queue) == numbered(5)


def test_dead_letters_that_come_back_do_not_keep_a_replay_going(bench: Bench) -> None:
    exchange = keeping(bench, most=5)
    queue = bench.queue("q", max_length=0, target=b"h")
    bench.send(b"".join(to("h", body) for body in numbered(5)))

    steps = list(_core.Replay(exchange, queue, 0))
    bench.run()

    assert len(steps) < 10
    assert exchange.n_kept == 5


def test_a_dead_letter_may_go_where_there_is_no_name(bench: Bench) -> None:
    """As to the queue of direct reply-to."""
    nameless = _core.Queue(bench.loop, str(bench.directory / "r"), 4096, False)
    bench.exchange.bind(b"r", b"", nameless)
    bench.queue("q", max_length=0, target=b"", target_key=b"r")
    died = b"\5queueS\0\0\0\0\6reasonS\0\0\0\6maxlen"
    deaths = b"F" + struct.pack(">I", len(died)) + died
    headers = b"\7x-deathA" + struct.pack(">I", len(deaths)) + deaths

    bench.send(publish(b"q", b"dead", properties(headers=headers)))
    bench.run()

    assert held(bench, nameless) == [b"dead"]
    bench.exchange.unbind(b"r", b"", nameless)


def test_nobody_is_filled_while_publishers_wait_for_the_disk(bench: Bench) -> None:
    histories = Histories(bench.loop, str(bench.directory), Portions(lambda *_: None))
    exchange, there, late = (
        Exchange("x", "x-recent-history"),
        Exchange("there", "fanout"),
        Exchange("l", "fanout"),
    )
    histories.give(exchange)
    exchange.bind(there, "", EMPTY)
    bench.vhost.add(b"x", exchange.core)
    bench.vhost.touch()
    bench.link.learn(b"x", exchange.core)
    bench.send(to("x", b"kept"))
    histories.check(exchange, late)

    bench.loop.is_low = True
    histories.check(exchange, there)
    with pytest.raises(ChannelError) as raised:
        histories.check(exchange, late)

    assert raised.value.code == 406
    bench.vhost.remove(b"x")


def test_a_length_from_files_that_cannot_be_is_the_usual_one(bench: Bench, caplog: Any) -> None:
    histories = Histories(bench.loop, str(bench.directory), Portions(lambda *_: None))
    stored = ExchangeDef("x", "x-recent-history", arguments=FieldTable({HISTORY_LENGTH: 1 << 40}))
    added: list[ExchangeDef] = []

    for _ in load_exchanges([stored], added.append, Mock(spec=Recorded), log.get("h")):
        pass
    histories.give(Exchange(added[0].name, added[0].type, arguments=added[0].arguments))

    assert "exchange 'x' keeps 20 messages in place of what it was declared" in caplog.text
    assert "x-recent-history-length 1099511627776" in caplog.text


@pytest.mark.parametrize("what", ["queue", "gone", "exchange", "stop"])
def test_a_replay_ends_when_there_is_nobody_any_more(bench: Bench, what: str) -> None:
    exchange, queue = keeping(bench), bench.queue("q")
    inner = _core.Exchange(_core.FANOUT, 1)
    bench.send(b"".join(to("h", body) for body in numbered(3)))
    replay = _core.Replay(exchange, inner if what == "exchange" else queue, 0)
    next(replay)

    if what == "queue":
        queue.delete()
    elif what == "gone":
        _core.vanish(exchange)
    elif what == "exchange":
        _core.vanish(inner)
    else:
        replay.stop()

    assert next(replay, None) is None


def test_a_full_queue_refuses_what_it_would_refuse_from_a_client(bench: Bench) -> None:
    exchange = keeping(bench)
    queue = bench.queue("q", max_length=1, overflow=_core.OVERFLOW["reject-publish"])
    bench.send(b"".join(to("h", body) for body in numbered(3)))

    assert list(_core.Replay(exchange, queue)) == []

    assert held(bench, queue) == [b"0"]
