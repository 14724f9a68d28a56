"""A large message goes from queue to queue in pieces: when it dies, is released, or is moved."""

from __future__ import annotations

import hashlib
import random
import resource
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lavinmq import _core
from tests.support.core import Bench, Got, TimedEvents, properties, settle
from tests.support.segments import read_queue

LARGE = 1 << 20
BODY = random.Random(8).randbytes(LARGE + 300_000)
OTHER = BODY[::-1]
PIECES = len(BODY) // 131072
QUEUE_SEGMENT = 1 << 23
LATER_MS = 600
"""After which what is parked is tried again."""
ROOM_MS = 6000
"""After which a disk that was full is tried again."""
OTHER_VERSION = b"\x09\0\0\0"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose portions are over as soon as they can be."""
    with closing(Bench(tmp_path / "data", TimedEvents())) as made:
        made.loop.portion_units = 1
        yield made


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def shown(body: bytes) -> str:
    return body.decode() if len(body) < 100 else digest(body)


def put(bench: Bench, queue: str, *contents: bytes, props: bytes = b"\0\0") -> None:
    """Publish to a queue, in one go."""
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    for body in contents:
        other.publish(bench.exchange, b"", queue.encode(), props, body)
    other.close()


def fill(bench: Bench, queue: str, *contents: bytes, props: bytes = b"\0\0") -> None:
    """Publish, and have it in files."""
    put(bench, queue, *contents, props=props)
    bench.run()


def reject(bench: Bench, queue: _core.Queue, count: int = 1) -> None:
    """Take messages and discard them; the loop does not run."""
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    for _ in range(count):
        while (got := other.take(queue, 1 << 30, 10, False)) is None:
            step(bench)
        assert isinstance(got, tuple)
        other.settle(got[0], False, False)
    other.close()


def step(bench: Bench) -> None:
    """One iteration of the event loop."""
    callbacks, bench.events.ready = bench.events.ready, []
    for callback in callbacks:
        callback()


def let_pass(bench: Bench, milliseconds: int) -> None:
    """Let time pass, and only the timers go off."""
    assert isinstance(bench.events, TimedEvents)
    bench.loop.clock_offset_ms += milliseconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench.events, "run", lambda: None)
        bench.events.advance(milliseconds / 1000)


def begin(bench: Bench, *queues: str) -> None:
    """Let a large message come to the middle of its way to these queues."""
    for _ in range(50):
        if all(pieces(bench, queue) for queue in queues):
            return
        step(bench)
    raise AssertionError("it has not begun")


def steps_until_ready(bench: Bench, queue: _core.Queue, count: int = 1) -> int:
    """How many iterations it takes until so many messages are there."""
    for number in range(1000):
        if queue.ready == count:
            return number
        step(bench)
    raise AssertionError("it does not come")


def pieces(bench: Bench, queue: str = "") -> list[Path]:
    """Files of messages that are not whole."""
    return list((bench.directory / queue).rglob("tmp.msgs.*"))


def taken(bench: Bench, queue: _core.Queue) -> list[Got]:
    """All that is in a queue."""
    found = []
    while queue.ready:
        if not bench.link.get(1, queue, True):
            step(bench)
            continue
        bench.run()
        found += bench.receive()
        bench.run()
    return found


def bodies(bench: Bench, queue: _core.Queue) -> list[str]:
    return [shown(got.body) for got in taken(bench, queue)]


def fanout(bench: Bench, *queues: _core.Queue) -> None:
    """An exchange of the name `fan` to these queues."""
    made = _core.Exchange(_core.FANOUT, 7)
    bench.vhost.add(b"fan", made)
    for queue in queues:
        made.bind(b"", b"", queue)
    bench.vhost.touch()


def closed_queue(bench: Bench, name: str) -> _core.Queue:
    """A queue whose only segment has another version; see open_queue."""
    directory = bench.directory / name
    directory.mkdir()
    (directory / "msgs.0000000001").write_bytes(OTHER_VERSION)
    queue = _core.Queue(
        bench.loop, str(directory), QUEUE_SEGMENT, True, name=name.encode(), vhost=bench.vhost
    )
    with pytest.raises(ValueError, match="version"):
        queue.load()
    bench._queues.append(queue)
    return queue


def open_queue(bench: Bench, queue: _core.Queue, name: str) -> None:
    (bench.directory / name / "msgs.0000000001").unlink()
    queue.restart()


def letters(bench: Bench, **rules: object) -> tuple[_core.Queue, _core.Queue]:
    """A queue, and the one that its dead letters go to."""
    dead = bench.queue("dead", QUEUE_SEGMENT)
    return bench.queue("q", QUEUE_SEGMENT, target=b"", target_key=b"dead", **rules), dead


def delayed(bench: Bench, *queues: _core.Queue) -> _core.Queue:
    """The queue in which messages of an exchange `late` wait that goes to the others."""
    late = _core.Exchange(_core.FANOUT, 1)
    bench.vhost.add(b"late", late)
    waiting = bench.queue("waiting", QUEUE_SEGMENT)
    late.set_delayed(b"late", waiting)
    for queue in queues:
        late.bind(b"", b"", queue)
    bench.vhost.touch()
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    headers = b"\x07x-delayI\0\0\0\x64"
    other.publish(late, b"late", b"k", properties(headers=headers), BODY)
    other.close()
    bench.run()
    return waiting


# ---- each way to die -----------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
def test_a_rejected_message_goes_in_pieces(bench: Bench, durable: bool) -> None:
    dead = bench.queue("dead", QUEUE_SEGMENT, durable)
    queue = bench.queue("q", QUEUE_SEGMENT, durable, target=b"", target_key=b"dead")
    fill(bench, "q", BODY)

    reject(bench, queue)
    assert (queue.ready, dead.ready, queue.parked) == (1, 0, 0)
    assert steps_until_ready(bench, dead) >= PIECES
    bench.run()

    (got,) = taken(bench, dead)
    assert shown(got.body) == digest(BODY)
    assert b"x-first-death-reasonS\0\0\0\x08rejected" in got.properties
    assert (queue.ready, queue.ready_bytes, queue.n_segments) == (0, 0, queue.n_segments)
    assert pieces(bench) == []


def test_a_commit_waits_for_a_large_letter_and_asks_for_one_sync(bench: Bench) -> None:
    """However many turns the letter takes: what is on its way is no use on the disk."""
    queue, dead = letters(bench)
    fill(bench, "q", BODY)
    bench.link.select_transactions(1)
    while not bench.link.get(1, queue, False):
        step(bench)
    bench.run()
    tag = bench.receive()[0].tag
    bench.client.send(settle(90, tag, 0))
    bench.link.on_readable()
    bench.run()

    answers = []
    while (answer := bench.link.commit(1)) is not None:
        answers.append(answer)
        step(bench)

    assert dead.ready == 1
    assert answers.count(True) >= PIECES
    assert answers.count(False) == 1


@pytest.mark.parametrize("how", ["expired", "expired behind another", "maxlen", "maxlenbytes"])
def test_what_dies_by_a_rule_goes_in_pieces(bench: Bench, how: str) -> None:
    rules = {"maxlen": {"max_length": 1}, "maxlenbytes": {"max_bytes": LARGE}}.get(how, {})
    queue, dead = letters(bench, **rules)
    if how == "expired behind another":
        fill(bench, "q", b"first")
    put(bench, "q", BODY, props=properties(expiration="100") if "expired" in how else b"\0\0")
    if how != "maxlenbytes":
        bench.run()

    if how == "maxlen":
        put(bench, "q", b"next")
    elif "expired" in how:
        let_pass(bench, 200)
    for _ in range(3 + PIECES // 2):
        step(bench)
    assert dead.ready == 0
    bench.advance(1000)

    (got,) = taken(bench, dead)
    assert shown(got.body) == digest(BODY)
    assert how.split()[0].encode() in got.properties
    assert bodies(bench, queue) == {"maxlen": ["next"], "expired behind another": ["first"]}.get(
        how, []
    )


def test_a_message_that_was_delivered_too_often_goes_in_pieces(bench: Bench) -> None:
    queue, dead = letters(bench, delivery_limit=1)
    fill(bench, "q", BODY)
    for _ in range(2):
        bench.link.get(1, queue, False)
        bench.run()
        (got,) = bench.receive()
        bench.send(settle(120, got.tag, 2))

    assert steps_until_ready(bench, dead) >= PIECES
    bench.run()

    (got,) = taken(bench, dead)
    assert shown(got.body) == digest(BODY)
    assert b"delivery_limit" in got.properties


def test_a_released_message_goes_in_pieces(bench: Bench) -> None:
    queues = [bench.queue(name, QUEUE_SEGMENT) for name in ("a", "b")]
    waiting = delayed(bench, *queues)

    let_pass(bench, 200)
    begin(bench, "a", "b")
    assert (waiting.ready, queues[0].ready, queues[1].ready) == (1, 0, 0)
    bench.advance(LATER_MS)

    found = [taken(bench, queue) for queue in queues]
    assert [[shown(got.body) for got in each] for each in found] == [[digest(BODY)]] * 2
    assert b"x-delay" not in found[0][0].properties
    assert waiting.ready == 0


def test_an_operator_moves_it_in_pieces(bench: Bench) -> None:
    source, to = bench.queue("source", QUEUE_SEGMENT), bench.queue("to", QUEUE_SEGMENT)
    fill(bench, "source", b"1", BODY, b"2", OTHER, b"3")
    move = _core.Move(source, to)

    turns, moved = 0, 0
    while moved < 5:
        turns += 1
        some = move.some(5 - moved)
        moved += some or 0
        assert some != 0
        step(bench)
    assert move.some(1) == 0
    bench.run()

    assert turns > 2 * PIECES
    assert source.ready == 0
    assert bodies(bench, to) == ["1", digest(BODY), "2", digest(OTHER), "3"]
    assert pieces(bench) == []


def test_what_is_to_be_moved_can_be_taken_before_it_is_whole(bench: Bench) -> None:
    source, to = bench.queue("source", QUEUE_SEGMENT), bench.queue("to", QUEUE_SEGMENT)
    fill(bench, "source", BODY, OTHER)
    move = _core.Move(source, to)
    assert move.some(2) is None
    assert len(pieces(bench)) == 1

    bench.link.get(1, source, True)
    bench.run()
    assert shown(bench.receive()[0].body) == digest(BODY)
    while move.some(2) is None:
        step(bench)

    assert (source.ready, bodies(bench, to)) == (0, [digest(OTHER)])
    assert pieces(bench) == []


def test_a_move_that_is_given_up_leaves_no_file(bench: Bench) -> None:
    source, to = bench.queue("source", QUEUE_SEGMENT), bench.queue("to", QUEUE_SEGMENT)
    fill(bench, "source", BODY)
    move = _core.Move(source, to)
    assert move.some(1) is None

    del move

    assert pieces(bench) == []
    assert (bodies(bench, source), to.ready) == ([digest(BODY)], 0)


def test_a_move_of_a_large_message_stops_at_a_queue_that_is_full(bench: Bench) -> None:
    refuses = _core.OVERFLOW["reject-publish"]
    source = bench.queue("source", QUEUE_SEGMENT)
    to = bench.queue("to", QUEUE_SEGMENT, max_length=1, overflow=refuses)
    fill(bench, "source", BODY)
    move = _core.Move(source, to)
    assert move.some(1) is None

    put(bench, "to", b"first")

    assert move.some(1) == 0
    assert (source.ready, to.ready, pieces(bench)) == (1, 1, [])


# ---- order, and what happens meanwhile -----------------------------------------------------------


def test_large_letters_keep_their_order_and_small_ones_pass(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY, OTHER, b"small")

    reject(bench, queue, 3)
    assert (dead.ready, queue.ready) == (1, 2)
    bench.run()

    assert bodies(bench, dead) == ["small", digest(BODY), digest(OTHER)]


def test_queues_take_turns(bench: Bench) -> None:
    dead = bench.queue("dead", QUEUE_SEGMENT)
    queues = [bench.queue(name, QUEUE_SEGMENT, target=b"", target_key=b"dead") for name in "ab"]
    for name in "ab":
        fill(bench, name, BODY, OTHER)
    for queue in queues:
        reject(bench, queue, 2)

    bench.run()

    assert bodies(bench, dead) == [digest(BODY), digest(BODY), digest(OTHER), digest(OTHER)]


def test_others_publish_and_take_meanwhile(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY, b"2")
    reject(bench, queue)
    begin(bench, "dead")

    put(bench, "dead", b"first")
    put(bench, "q", b"3")
    bench.link.get(1, queue, True)
    step(bench)

    assert [got.body for got in bench.receive()] == [b"2"]
    bench.run()
    assert bodies(bench, dead) == ["first", digest(BODY)]
    assert bodies(bench, queue) == ["3"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_queue_that_is_deleted_meanwhile_has_sent_its_letters_on(
    bench: Bench, durable: bool
) -> None:
    dead = bench.queue("dead", QUEUE_SEGMENT)
    queue = bench.queue("q", QUEUE_SEGMENT, durable, target=b"", target_key=b"dead")
    fill(bench, "q", BODY, OTHER, BODY)
    reject(bench, queue, 2)
    begin(bench, "dead")

    bench.exchange.unbind(b"q", b"", queue)
    queue.delete()
    for path in (bench.directory / "q").glob("*"):
        path.unlink()
    bench.run()

    assert bodies(bench, dead) == [digest(BODY), digest(OTHER)]
    assert pieces(bench) == []


def test_a_target_that_is_deleted_meanwhile_gets_nothing(bench: Bench) -> None:
    one, two = bench.queue("one", QUEUE_SEGMENT), bench.queue("two", QUEUE_SEGMENT)
    fanout(bench, one, two)
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"fan")
    fill(bench, "q", BODY)
    reject(bench, queue)
    begin(bench, "one", "two")

    one.delete()
    bench.run()

    assert bodies(bench, two) == [digest(BODY)]
    assert (queue.ready, pieces(bench)) == (0, [])


def test_a_purge_takes_what_is_on_its_way(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY, OTHER, b"3")
    reject(bench, queue, 2)
    begin(bench, "dead")

    assert queue.purge() == 3
    bench.run()

    assert (queue.ready, queue.ready_bytes, dead.ready, pieces(bench)) == (0, 0, 0, [])


def test_a_purge_takes_no_more_than_it_is_told(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY, OTHER, b"3")
    reject(bench, queue, 2)
    begin(bench, "dead")

    assert list(_core.Purge(queue, 1))[-1] == 1
    bench.run()

    assert bodies(bench, dead) == [digest(OTHER)]
    assert bodies(bench, queue) == ["3"]


def test_an_orderly_stop_leaves_it_in_its_queue(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY)
    reject(bench, queue)
    begin(bench, "dead")

    queue.close()
    dead.close()

    assert pieces(bench) == []
    assert [shown(each.body) for each in read_queue(bench.directory / "q")] == [digest(BODY)]


# ---- where it goes -------------------------------------------------------------------------------


def test_a_letter_without_a_way_goes_at_once(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT, max_length=1)
    fill(bench, "q", BODY, b"2")

    assert bodies(bench, queue) == ["2"]
    assert bench.loop.large_bytes < 100


def test_a_letter_to_an_exchange_that_is_not_there_goes(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"nowhere")
    fill(bench, "q", BODY)
    reject(bench, queue)
    bench.run()

    assert queue.ready == 0


def test_many_targets_get_it(bench: Bench) -> None:
    queues = [bench.queue(f"d{n}", QUEUE_SEGMENT, durable=n % 2 == 0) for n in range(12)]
    fanout(bench, *queues)
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"fan")
    fill(bench, "q", BODY)
    reject(bench, queue)
    bench.run()

    assert [bodies(bench, each) for each in queues] == [[digest(BODY)]] * 12
    assert (queue.ready, pieces(bench)) == (0, [])


@pytest.mark.parametrize("kind", ["priority", "stream", "dedup", "full"])
def test_kinds_of_targets(bench: Bench, kind: str) -> None:
    if kind == "stream":
        dead = _core.Queue(
            bench.loop, str(bench.directory / "dead"), QUEUE_SEGMENT, True, name=b"dead",
            is_stream=True,
        )  # fmt: skip
        dead.load()
        bench.exchange.bind(b"dead", b"", dead)
    elif kind == "full":
        refuses = _core.OVERFLOW["reject-publish"]
        dead = bench.queue("dead", QUEUE_SEGMENT, max_length=1, overflow=refuses)
    else:
        dead = bench.queue("dead", QUEUE_SEGMENT, max_priority=5 if kind == "priority" else -1)
    header = b"x-deduplication-header"
    if kind == "dedup":
        dead.set_dedup(_core.DedupCache(bench.loop, header, 100, -1, None, 1))
    headers = bytes([len(header)]) + header + b"S\0\0\0\x01k"
    props = properties(headers=headers, priority=3)
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"", target_key=b"dead")
    fill(bench, "dead", b"first", props=props)
    fill(bench, "q", BODY, props=props)

    reject(bench, queue)
    bench.run()

    assert (queue.ready, pieces(bench)) == (0, [])
    if kind == "stream":
        rows, at, _ = _core.read_stream(dead, 1, 10, 1 << 30, 1 << 30)
        rows += _core.read_stream(dead, at, 10, 1 << 30, 1 << 30)[0]
        assert [shown(row[6][:]) for row in rows] == ["first", digest(BODY)]
    else:
        assert bodies(bench, dead) == ["first", digest(BODY)][: 2 if kind == "priority" else 1]


def test_a_queue_can_be_the_target_of_its_own_letters(bench: Bench) -> None:
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"", target_key=b"q")
    fill(bench, "q", BODY, b"2")
    reject(bench, queue)
    bench.run()

    assert bodies(bench, queue) == ["2", digest(BODY)]


def test_a_released_message_that_finds_a_full_queue_dies_there(bench: Bench) -> None:
    dies = _core.OVERFLOW["reject-publish-dlx"]
    dead = bench.queue("dead", QUEUE_SEGMENT)
    full = bench.queue(
        "full", QUEUE_SEGMENT, max_length=1, overflow=dies, target=b"", target_key=b"dead"
    )
    well = bench.queue("well", QUEUE_SEGMENT)
    fill(bench, "full", b"first")
    waiting = delayed(bench, full, well)

    bench.advance(200)
    bench.advance(LATER_MS)

    assert (waiting.ready, bodies(bench, full)) == (0, ["first"])
    assert bodies(bench, well) == [digest(BODY)]
    (got,) = taken(bench, dead)
    assert shown(got.body) == digest(BODY)
    assert b"x-first-death-queueS\0\0\0\x04full" in got.properties


# ---- what cannot go ------------------------------------------------------------------------------


def test_one_of_several_that_is_closed_holds_it_for_all(bench: Bench) -> None:
    well, ill = bench.queue("well", QUEUE_SEGMENT), closed_queue(bench, "ill")
    fanout(bench, well, ill)
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"fan")
    fill(bench, "q", BODY)
    reject(bench, queue)
    bench.run()
    bench.advance(LATER_MS)

    assert (queue.ready, queue.parked, queue.refuser, well.ready) == (1, 1, b"ill", 0)
    assert pieces(bench) == []
    open_queue(bench, ill, "ill")
    bench.advance(LATER_MS)

    assert (queue.ready, queue.parked) == (0, 0)
    assert bodies(bench, well) == bodies(bench, ill) == [digest(BODY)]


def test_a_queue_that_breaks_meanwhile_holds_it_for_all(bench: Bench) -> None:
    one, two = bench.queue("one", QUEUE_SEGMENT), bench.queue("two", QUEUE_SEGMENT)
    fanout(bench, one, two)
    queue = bench.queue("q", QUEUE_SEGMENT, target=b"fan")
    fill(bench, "q", BODY)
    reject(bench, queue)
    (bench.directory / "two").write_bytes(b"no directory")
    begin(bench, "one")
    bench.run()

    assert (one.ready, two.is_closed, queue.ready, queue.parked) == (0, True, 1, 1)
    assert pieces(bench) == []
    (bench.directory / "two").unlink()
    two.restart()
    bench.advance(LATER_MS)

    assert bodies(bench, one) == bodies(bench, two) == [digest(BODY)]


def test_a_full_disk_is_tried_again_after_a_while(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY)
    reject(bench, queue)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 2, before[1]))
    try:
        bench.run()
        assert (queue.ready, queue.parked, dead.ready) == (1, 1, 0)
        assert not bench.loop.is_held
        assert pieces(bench) == []
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    bench.advance(LATER_MS)
    assert (queue.parked, dead.ready) == (1, 0)

    bench.advance(ROOM_MS)

    assert (queue.parked, bodies(bench, dead)) == (0, [digest(BODY)])


def test_a_message_that_cannot_be_read_stays(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY)
    path = bench.directory / "q" / "msgs.0000000001"
    whole = path.read_bytes()
    reject(bench, queue)
    begin(bench, "dead")
    with path.open("r+b") as file:
        file.truncate(LARGE // 2)
    bench.run()

    assert (queue.ready, queue.parked, dead.ready, pieces(bench)) == (1, 1, 0, [])
    path.write_bytes(whole)
    bench.advance(LATER_MS)

    assert bodies(bench, dead) == [digest(BODY)]


def test_a_message_that_waits_in_memory_for_room_can_die(bench: Bench) -> None:
    queue, dead = letters(bench)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        put(bench, "q", BODY)
        assert bench.loop.is_held
        reject(bench, queue)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    bench.loop.retry()
    bench.run()
    bench.advance(LATER_MS)

    assert (queue.ready, bodies(bench, dead)) == (0, [digest(BODY)])


def test_a_head_as_long_as_properties_can_be(bench: Bench) -> None:
    queue, dead = letters(bench)
    headers = b"\x01hS" + struct.pack(">I", 100_000) + b"x" * 100_000
    fill(bench, "q", BODY, props=properties(headers=headers))
    reject(bench, queue)
    bench.run()

    (got,) = taken(bench, dead)
    assert shown(got.body) == digest(BODY)
    assert b"x" * 100_000 in got.properties


# ---- what a full queue refuses -------------------------------------------------------------------


def full_queue(bench: Bench, *targets: _core.Queue) -> _core.Queue:
    """A queue that has what it refuses go to the targets."""
    fanout(bench, *targets)
    dies = _core.OVERFLOW["reject-publish-dlx"]
    queue = bench.queue("full", QUEUE_SEGMENT, max_length=1, overflow=dies, target=b"fan")
    fill(bench, "full", b"first")
    return queue


def publish_some(bench: Bench, channel: _core.LocalChannel) -> object:
    return channel.publish_some(bench.exchange, b"", b"full", b"\0\0", BODY)


def test_a_message_that_is_refused_dies_in_pieces(bench: Bench) -> None:
    targets = [bench.queue(name, QUEUE_SEGMENT) for name in ("a", "b")]
    queue = full_queue(bench, *targets)
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)

    turns = 1
    while (answer := publish_some(bench, other)) is None:
        assert (queue.ready, targets[1].ready) == (1, 0)
        turns += 1
        step(bench)

    assert answer == (0, False, False)
    assert turns > 2 * PIECES
    other.close()
    assert bodies(bench, queue) == ["first"]
    for target in targets:
        (got,) = taken(bench, target)
        assert shown(got.body) == digest(BODY)
        assert b"x-first-death-reasonS\0\0\0\x06maxlen" in got.properties
    assert pieces(bench) == []


@pytest.mark.parametrize("how", ["publisher", "queue", "target"])
def test_who_goes_while_a_refused_message_dies_leaves_no_file(bench: Bench, how: str) -> None:
    target = bench.queue("a", QUEUE_SEGMENT)
    queue = full_queue(bench, target)
    other = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    while not pieces(bench, "a"):
        assert publish_some(bench, other) is None
        step(bench)

    if how == "queue":
        bench.exchange.unbind(b"full", b"", queue)
        queue.delete()
    elif how == "target":
        target.delete()
    while how != "publisher" and publish_some(bench, other) is None:
        step(bench)
    other.close()
    bench.run()

    assert pieces(bench) == []
    assert target.ready == 0


def test_an_orderly_stop_sends_on_what_has_died(bench: Bench) -> None:
    queue, dead = letters(bench)
    fill(bench, "q", BODY, OTHER)
    reject(bench, queue, 2)
    begin(bench, "dead")

    bench.loop.finish()

    assert (queue.ready, dead.ready, pieces(bench)) == (0, 2, [])
    queue.close()
    dead.close()
    found = read_queue(bench.directory / "dead")
    assert [shown(each.body) for each in found] == [digest(BODY), digest(OTHER)]
