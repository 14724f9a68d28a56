"""Publishes that take long are stopped wherever that is possible, and come to the same end."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, Session, frame, publish, settle

QUEUES = 40
MANDATORY = 1
ACK, NACK, RETURN = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78", b"\x00\x3c\x00\x32"
KEY_HEADER = b"x-deduplication-header"
LONG = b"." * 8192
"""What makes a transaction of ten messages one that is carried out in turns."""

NewExchange = Callable[..., _core.Exchange]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose portions are over as soon as they can be."""
    made = Bench(tmp_path / "data")
    made.loop.portion_units = 1
    yield made
    made.close()


def exchange(bench: Bench, name: str, kind: int) -> _core.Exchange:
    """An exchange that the link may publish to."""
    made = _core.Exchange(kind, 7)
    bench.vhost.add(name.encode(), made)
    bench.vhost.touch()
    return made


def fanout(bench: Bench, n: int = QUEUES) -> tuple[_core.Exchange, list[_core.Queue]]:
    """An exchange and queues that are bound to it."""
    made = exchange(bench, "fan", _core.FANOUT)
    queues = [bench.queue(f"q{i}") for i in range(n)]
    for queue in queues:
        made.bind(b"", b"", queue)
    learn(bench, "fan", made)
    return made, queues


def learn(bench: Bench, name: str, made: _core.Exchange) -> None:
    """The link may publish to it, and to the default exchange."""
    bench.link.learn(name.encode(), made)
    bench.link.learn(b"", bench.exchange)


def long_string(text: bytes) -> bytes:
    return b"S" + struct.pack(">I", len(text)) + text


def entry(key: bytes, value: bytes) -> bytes:
    return bytes([len(key)]) + key + value


def array(items: list[bytes]) -> bytes:
    content = b"".join(long_string(item) for item in items)
    return b"A" + struct.pack(">I", len(content)) + content


def message(
    to: str, key: str = "", body: bytes = b"m", headers: bytes = b"", flags: int = 0,
    channel: int = 1,
) -> bytes:  # fmt: skip
    """basic.publish with its content."""
    names = b"".join(bytes([len(name)]) + name.encode() for name in (to, key))
    properties = b"\x20\x00" + struct.pack(">I", len(headers)) + headers if headers else b"\0\0"
    header = b"\0\x3c\0\0" + struct.pack(">Q", len(body)) + properties
    frames = [(1, b"\0\x3c\0\x28\0\0" + names + bytes([flags])), (2, header), (3, body)]
    return b"".join(frame(kind, payload, channel) for kind, payload in frames)


def step(bench: Bench) -> None:
    """One iteration of the event loop."""
    callbacks, bench.events.ready = bench.events.ready, []
    for callback in callbacks:
        callback()


def answers(bench: Bench) -> list[tuple[bytes, bytes]]:
    """(method, arguments) of what was sent to the client, without content."""
    bench.link.flush()
    data = b""
    while True:
        try:
            data += bench.client.recv(1 << 20)
        except BlockingIOError:
            break
    found, at = [], 0
    while at < len(data):
        kind, _, size = struct.unpack_from(">BHI", data, at)
        if kind == 1:
            found.append((data[at + 7 : at + 11], data[at + 11 : at + 7 + size]))
        at += size + 8
    return found


def lengths(queues: list[_core.Queue]) -> list[int]:
    return [queue.ready for queue in queues]


def test_a_fanout_goes_on_in_further_turns_and_reaches_each_queue_once(bench: Bench) -> None:
    _, queues = fanout(bench)
    bench.client.send(message("fan"))

    bench.link.on_readable()
    stages = set()
    while sum(lengths(queues)) < QUEUES:
        stages.add(sum(lengths(queues)))
        step(bench)
    bench.run()

    assert stages >= {0, 1, QUEUES // 2, QUEUES - 1}
    assert lengths(queues) == [1] * QUEUES


def test_another_client_is_heard_in_the_middle_of_a_fanout(bench: Bench) -> None:
    _, queues = fanout(bench)
    quiet = bench.queue("quiet")
    bench.link.open_channel(2, 0)
    bench.client.send(message("fan"))
    bench.link.on_readable()

    local = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    local.publish(bench.exchange, b"", b"quiet", b"\0\0", b"m")

    assert quiet.ready == 1
    assert sum(lengths(queues)) < QUEUES
    local.close()
    bench.run()
    assert lengths(queues) == [1] * QUEUES


def test_order_of_a_channel_is_kept_behind_a_long_publish(bench: Bench) -> None:
    _, queues = fanout(bench, 5)
    bench.client.send(message("fan", body=b"1") + message("fan", body=b"2") + publish(b"q0", b"3"))

    bench.link.on_readable()
    bench.run()

    assert bodies(bench, queues[0]) == [b"1", b"2", b"3"]
    assert lengths(queues[1:]) == [2] * 4


def test_a_long_publish_is_confirmed_once_and_after_all_queues_have_it(bench: Bench) -> None:
    _, queues = fanout(bench)
    bench.link.select_confirms(1)
    bench.client.send(message("fan"))
    bench.link.on_readable()

    while sum(lengths(queues)) < QUEUES:
        assert answers(bench) == []
        step(bench)
    bench.run()

    assert answers(bench) == [(ACK, struct.pack(">QB", 1, 1))]


def test_what_reaches_no_queue_is_returned_once(bench: Bench) -> None:
    made = exchange(bench, "t", _core.TOPIC)
    queue = bench.queue("q")
    for word in b"abcdefgh":
        made.bind(b"#.%c.*.#" % word, b"", queue)
    learn(bench, "t", made)

    bench.client.send(message("t", "a", flags=MANDATORY) + message("t", "z.a.x", flags=MANDATORY))
    bench.link.on_readable()
    bench.run()

    assert [method for method, _ in answers(bench)] == [RETURN]
    assert queue.ready == 1


def test_a_queue_that_is_deleted_meanwhile_is_passed_over(bench: Bench) -> None:
    made, queues = fanout(bench)
    bench.client.send(message("fan"))
    bench.link.on_readable()
    while not 5 < sum(lengths(queues)) < 30:
        step(bench)
    gone = [queue for queue in queues if queue.ready == 0][:3]

    for queue in gone:
        made.unbind(b"", b"", queue)
        queue.delete()
    bench.run()

    left = [queue for queue in queues if queue not in gone]
    assert lengths(left) == [1] * (QUEUES - 3)


def test_a_routing_begins_anew_when_bindings_change_and_nothing_is_stored_twice(
    bench: Bench,
) -> None:
    made, queues = fanout(bench, 20)
    late = bench.queue("late")
    bench.client.send(message("fan"))
    bench.link.on_readable()
    step(bench)
    assert sum(lengths(queues)) == 0

    made.bind(b"", b"", late)
    made.unbind(b"", b"", queues[0])
    bench.run()

    assert lengths([*queues, late]) == [0] + [1] * 20


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_sample_that_opens_and_closes_does_not_make_a_routing_begin_anew(
    bench: Bench, tmp_path: Path, is_nested: bool
) -> None:
    """An exchange that is traced takes messages for a sample several times a second: a routing that
    took longer never came to its end."""
    made, queues = fanout(bench, 50)
    if is_nested:
        made.bind(b"", b"", exchange(bench, "beside", _core.FANOUT))
    sample = _core.Sample()
    made.follow(_core.Queue(bench.loop, str(tmp_path / "trace"), 4096, False), sample)
    bench.vhost.touch()
    learn(bench, "fan", made)
    bench.client.send(message("fan") + message("fan"))
    bench.link.on_readable()
    step(bench)
    assert sum(lengths(queues)) == 0

    for number in range(2000):
        if sum(lengths(queues)) == 2 * len(queues):
            break
        sample.take(number % 2, 1 << 20)
        step(bench)

    assert lengths(queues) == [2] * len(queues)


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_sample_that_opens_during_a_routing_sees_the_next_message_of_the_same_key(
    bench: Bench, tmp_path: Path, is_nested: bool
) -> None:
    """The route that is kept of the first one leads past it."""
    made, queues = fanout(bench, 20)
    if is_nested:
        made.bind(b"", b"", exchange(bench, "beside", _core.FANOUT))
    sample = _core.Sample()
    made.follow(_core.Queue(bench.loop, str(tmp_path / "trace"), 4096, False), sample)
    bench.vhost.touch()
    learn(bench, "fan", made)
    bench.client.send(message("fan") + message("fan", body=b"the next"))
    bench.link.on_readable()
    step(bench)
    assert sum(lengths(queues)) == 0

    sample.take(10, 1 << 20)
    bench.run()

    assert lengths(queues) == [2] * len(queues)
    assert sample.take(0, 0)[-1][4] == len(b"the next")


def test_an_exchange_that_is_deleted_while_its_message_is_stored(bench: Bench) -> None:
    _, queues = fanout(bench)
    bench.client.send(message("fan"))
    bench.link.on_readable()
    while sum(lengths(queues)) < 5:
        step(bench)

    bench.vhost.remove(b"fan")
    bench.vhost.touch()
    step(bench)
    asked = [event for event in bench.session.events if event[0] == "on_route_miss"]

    assert asked[0][3] == b"fan"
    bench.link.close_channel(1, True)
    bench.run()
    assert 5 <= sum(lengths(queues)) < QUEUES


def test_a_channel_that_closes_lets_go_of_its_publish(bench: Bench) -> None:
    _, queues = fanout(bench)
    bench.client.send(message("fan") + publish(b"q0", b"m"))
    bench.link.on_readable()
    while sum(lengths(queues)) < 5:
        step(bench)

    bench.link.close_channel(1, False)
    bench.run()

    assert 5 <= sum(lengths(queues)) < QUEUES


def test_a_duplicate_of_what_is_being_stored_is_refused(bench: Bench) -> None:
    made, queues = fanout(bench)
    made.set_dedup(_core.DedupCache(bench.loop, KEY_HEADER, 100, -1, None, 1))
    bench.link.open_channel(2, 0)
    bench.link.select_confirms(2)
    headers = entry(KEY_HEADER, long_string(b"same"))
    bench.client.send(message("fan", headers=headers))
    bench.link.on_readable()
    while sum(lengths(queues)) < 5:
        step(bench)
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    properties = b"\x20\x00" + struct.pack(">I", len(headers)) + headers

    with pytest.raises(_core.QueueClosedError):
        other.publish(made, b"fan", b"", properties, b"again")
    bench.run()
    other.publish(made, b"fan", b"", properties, b"and again")

    assert lengths(queues) == [1] * QUEUES
    other.close()


def build(bench: Bench, seed: int) -> list[_core.Queue]:
    """Exchanges of all kinds with bindings between them, at random."""
    chance = random.Random(seed)
    queues = [bench.queue(f"q{i}") for i in range(8)]
    kinds = [_core.DIRECT, _core.FANOUT, _core.TOPIC, _core.HEADERS, _core.TOPIC, _core.DIRECT]
    made = [exchange(bench, f"x{i}", kind) for i, kind in enumerate(kinds)]
    words = ["a", "b", "*", "#", "a.b", "#.b", "*.*", "b.#.a"]
    for _ in range(40):
        source = chance.choice(made)
        target = chance.choice([*queues, *made])
        table = entry(chance.choice([b"h", b"k"]), long_string(chance.choice([b"1", b"2"])))
        key = chance.choice(words).encode()
        source.bind(key, table if kinds[made.index(source)] == _core.HEADERS else b"", target)
    for each in made:
        if chance.random() < 0.4:
            each.set_alternate(chance.choice(made))
    bench.vhost.touch()
    known = {f"x{i}".encode(): each for i, each in enumerate(made)}
    bench.link.session = Answering(bench, known)
    return queues


def bodies(bench: Bench, queue: _core.Queue) -> list[bytes]:
    """What is in a queue, in its order."""
    found = []
    while (got := bench.get(queue)) is not None:
        found.append(got.body)
    return found


class Answering(Session):
    """Lets the link publish to all exchanges; it remembers a few at a time."""

    def __init__(self, bench: Bench, known: dict[bytes, _core.Exchange]) -> None:
        super().__init__()
        self._bench, self._known = bench, known

    def on_route_miss(self, _channel: int, kind: int, name: bytes, keys: list[bytes]) -> None:
        self._bench.link.allow(kind, name, keys, self._known[name])


def messages(seed: int) -> bytes:
    """Publishes to these exchanges, with further keys in CC and BCC."""
    chance = random.Random(-seed)
    data = b""
    for number in range(12):
        headers = b""
        keys = [chance.choice([b"a", b"b", b"a.b", b"b.a"]) for _ in range(chance.randrange(4))]
        if keys:
            headers += entry(chance.choice([b"CC", b"BCC"]), array(keys))
        if chance.random() < 0.5:
            headers += entry(b"h", long_string(chance.choice([b"1", b"2"])))
        data += message(
            f"x{chance.randrange(6)}", chance.choice(["a", "b", "a.b"]), b"%d" % number, headers
        )
    return data


@pytest.mark.parametrize("seed", range(1, 40))
def test_routes_are_the_same_whether_they_are_stopped_or_not(tmp_path: Path, seed: int) -> None:
    found = []
    for units in (0, 1, 3):
        bench = Bench(tmp_path / str(units))
        bench.loop.portion_units = units
        queues = build(bench, seed)
        bench.client.send(messages(seed))
        bench.link.on_readable()
        bench.run()
        found.append([bodies(bench, queue) for queue in queues])
        bench.close()

    assert found[0] == found[1] == found[2]
    assert any(found[0])


# --- bounds -----------------------------------------------------------------------------------


def test_keys_in_cc_and_bcc_have_a_bound(bench: Bench) -> None:
    queues = [bench.queue(name) for name in "abc"]
    bench.loop.set_max_copies(2)
    allowed = entry(b"CC", array([b"b"])) + entry(b"BCC", array([b"c"]))
    too_many = entry(b"CC", array([b"b"])) + entry(b"BCC", array([b"c", b"c"]))

    bench.client.send(message("", "a", headers=allowed) + message("", "a", headers=too_many))
    bench.link.on_readable()
    bench.run()

    assert lengths(queues) == [1, 1, 1]
    assert bench.session.events[0][:3] == ("on_error", 36, 1)


# --- transactions -----------------------------------------------------------------------------


def begin(
    bench: Bench, n: int, queue: str = "q", channel: int = 1, filling: bytes = LONG
) -> _core.Queue:
    """Publish n messages in a transaction."""
    made = bench.queue(queue)
    learn(bench, "", bench.exchange)
    bench.link.select_transactions(channel)
    bench.client.send(b"".join(publish(queue.encode(), b"%d" % i + filling) for i in range(n)))
    bench.link.on_readable()
    bench.run()
    return made


def test_a_commit_goes_on_in_further_turns(bench: Bench) -> None:
    queue = begin(bench, 10)

    stages = []
    while bench.link.commit(1) is not None:
        stages.append(queue.ready)

    assert stages[0] == 0
    assert set(stages) >= set(range(10))
    assert bodies(bench, queue) == [b"%d" % i + LONG for i in range(10)]


def test_a_small_commit_is_carried_out_in_one_turn(bench: Bench) -> None:
    queue = begin(bench, 100, filling=b"")

    stages = set()
    while bench.link.commit(1) is not None:
        stages.add(queue.ready)

    assert stages == {0}
    assert queue.ready == 100


def test_a_commit_comes_to_its_end_when_its_channel_goes(bench: Bench) -> None:
    queue = begin(bench, 10)
    while queue.ready < 4:
        assert bench.link.commit(1) is True

    assert bench.link.is_committing
    bench.link.close_channel(1, False)

    assert queue.ready == 10
    assert not bench.link.is_committing


@pytest.mark.parametrize("how", ["synced", "rolled back", "channel goes"])
def test_what_a_commit_settles_waits_until_it_is_called_once_more(bench: Bench, how: str) -> None:
    source = bench.queue("source")
    queue = begin(bench, 3)
    bench.send(publish(b"source", b"m"))
    while bench.link.commit(1) is not None:
        pass
    assert bench.link.get(1, source, False)
    bench.client.send(publish(b"q", b"made of it") + settle(80, 1, 0))
    bench.link.on_readable()
    bench.run()

    while answer := bench.link.commit(1):
        assert answer is True
    assert answer is False
    assert (queue.ready, source.unacked) == (4, 1)
    if how == "rolled back":
        bench.link.rollback(1)
    elif how == "channel goes":
        bench.link.close_channel(1, False)
    else:
        while bench.link.commit(1) is not None:
            pass
    bench.run()

    assert source.unacked == (how == "rolled back")
    assert source.ready == (how == "channel goes")


def test_a_commit_that_is_only_looked_at_changes_nothing_when_its_channel_goes(
    bench: Bench,
) -> None:
    queue = begin(bench, 10)
    for _ in range(3):
        assert bench.link.commit(1) is True

    bench.link.close_channel(1, False)
    bench.run()

    assert queue.ready == 0


def test_a_queue_that_becomes_full_during_a_commit_takes_it_all(bench: Bench) -> None:
    queue = begin(bench, 3, filling=3 * LONG)
    queue.set_features(max_length=3, overflow=_core.OVERFLOW["reject-publish"])
    while queue.ready == 0:
        assert bench.link.commit(1) is True
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    for _ in range(2):
        other.publish(bench.exchange, b"", b"q", b"\0\0", b"other")

    while bench.link.commit(1) is not None:
        pass

    assert queue.ready == 5
    other.close()


def test_a_commit_that_a_full_queue_refuses_changes_nothing(bench: Bench) -> None:
    queue = begin(bench, 4)
    queue.set_features(max_length=3, overflow=_core.OVERFLOW["reject-publish"])

    with pytest.raises(ValueError, match="full"):
        while bench.link.commit(1) is not None:
            pass
    bench.run()

    assert queue.ready == 0


def test_an_exchange_that_is_deleted_during_a_commit_is_passed_over(bench: Bench) -> None:
    queue = bench.queue("q")
    made = exchange(bench, "x", _core.DIRECT)
    made.bind(b"k", b"", queue)
    learn(bench, "x", made)
    bench.link.select_transactions(1)
    bench.client.send(message("x", "k", body=2 * LONG) * 5)
    bench.link.on_readable()
    bench.run()
    while queue.ready < 2:
        assert bench.link.commit(1) is True

    made.unbind(b"k", b"", queue)
    bench.vhost.remove(b"x")
    bench.vhost.touch()
    while bench.link.commit(1) is not None:
        pass

    assert queue.ready == 2


# ---- files that are made -------------------------------------------------------------------------


def test_a_commit_of_a_client_that_goes_makes_the_files_of_many_queues(tmp_path: Path) -> None:
    """It comes to its end at once: no turn of the loop lies between two files."""
    bench = Bench(tmp_path / "data")
    _, queues = fanout(bench, 300)
    bench.link.select_transactions(1)
    bench.send(message("fan") + message("fan"))
    bench.loop.portion_units = 1
    while not bench.link.is_committing:
        assert bench.link.commit(1) is True
        bench.run()
    bench.loop.portion_units = 0

    bench.link.close_channel(1, False)

    assert {queue.ready for queue in queues} == {2}
    bench.run()
    assert all((tmp_path / "data" / f"q{i}" / "msgs.0000000001").exists() for i in range(300))
    bench.close()


def test_files_of_many_queues_are_made_in_several_turns(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "data")
    _, queues = fanout(bench, 300)

    bench.send(message("fan"))

    assert {queue.ready for queue in queues} == {0, 1}
    while any(queue.ready == 0 for queue in queues):
        bench.run()
    assert {queue.ready for queue in queues} == {1}
    bench.close()
