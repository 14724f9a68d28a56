"""A channel without a connection, and what management does with messages by way of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lavinmq import _core, fieldtable
from lavinmq.amqp.walk_errors import walk_error
from lavinmq.arguments.bounds import TableBounds
from lavinmq.http import properties as properties_module
from lavinmq.http.errors import ApiError
from tests.support.core import Bench, TimedEvents, properties, publish, settle

ALL = 1 << 40
PLAIN = b"\0\0"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A message path on which time passes when told."""
    bench = Bench(tmp_path / "vhost", TimedEvents())
    yield bench
    bench.close()


@pytest.fixture
def local(bench: Bench) -> Iterator[_core.LocalChannel]:
    """A channel of the user guest."""
    channel = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    yield channel
    channel.close()


Send = Callable[..., tuple[int, bool, bool]]


@pytest.fixture
def send(bench: Bench, local: _core.LocalChannel) -> Send:
    """Publish to the default exchange."""
    return lambda key, body, props=PLAIN: local.publish(bench.exchange, b"", key, props, body)


def take(local: _core.LocalChannel, queue: _core.Queue, is_look: bool = False) -> tuple:  # type: ignore[type-arg]
    """The next message, which has to be there."""
    taken = local.take(queue, ALL, ALL, is_look)
    assert isinstance(taken, tuple)
    return taken


def counts(queue: _core.Queue) -> tuple[int, int, int]:
    """Ready, unacked, and bytes of the unacked."""
    return queue.ready, queue.unacked, queue.unacked_bytes


# --- publishing -------------------------------------------------------------------------------


def test_a_publish_is_routed_stored_and_counted(bench: Bench, send: Send) -> None:
    queue = bench.queue("q", durable=False)

    assert send(b"q", b"body", properties(priority=4)) == (0, True, False)

    got = bench.get(queue)
    assert got is not None and (got.body, got.properties) == (b"body", properties(priority=4))
    assert bench.exchange.counters()["publish_in"] == queue.counters()["publish"] == 1


def test_what_no_queue_takes_is_not_routed(bench: Bench, send: Send) -> None:
    assert send(b"nowhere", b"") == (0, False, False)
    assert bench.exchange.counters()["unroutable"] == 1


def test_a_full_queue_that_refuses_makes_it_unrouted(bench: Bench, send: Send) -> None:
    queue = bench.queue("q", max_length=1, overflow=_core.OVERFLOW["reject-publish"])

    assert [send(b"q", b"1")[1], send(b"q", b"2")[1]] == [True, False]
    assert queue.ready == 1


def test_a_durable_publish_says_that_it_has_to_be_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "synced", sync=True)
    bench.queue("q")
    local = _core.LocalChannel(bench.loop, bench.vhost, b"guest", False)
    synced: list[bool] = []

    _, _, is_durable = local.publish(bench.exchange, b"", b"q", PLAIN, b"kept")
    bench.loop.after_sync(lambda: synced.append(True))
    bench.run()

    assert is_durable and synced == [True]
    local.close()
    bench.close()


@pytest.mark.parametrize(
    ("props", "text"),
    [
        (properties(expiration="x"), "Expiration not a number"),
        (properties(expiration="-1"), "Negative expiration not allowed"),
        (properties(headers=fieldtable.encode({"CC": "x"})), "CC header not a string array"),
        (b"\x00\x10\x05other", "doesn't match actual user 'guest'"),
        (b"\x20\x00\x00\x00\x00\x09short", "Frame has reached frame size limit"),
        (b"", "Frame has reached frame size limit"),
    ],
)
def test_bad_properties_are_refused_before_anything_happens(
    bench: Bench, send: Send, props: bytes, text: str
) -> None:
    queue = bench.queue("q")

    error, is_routed, _ = send(b"q", b"x", props)

    user_id = b"other" if props.startswith(b"\x00\x10") else b""
    assert text in walk_error(error, 0, 0, 0, user_id, "guest").text
    assert not is_routed and queue.ready == 0


def test_an_impersonator_may_publish_as_anybody(bench: Bench) -> None:
    queue = bench.queue("q")
    local = _core.LocalChannel(bench.loop, bench.vhost, b"guest", True)

    assert local.publish(bench.exchange, b"", b"q", b"\x00\x10\x05other", b"")[0] == 0
    assert queue.ready == 1
    local.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(properties_module.NAMES),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.sampled_from(["CC", "BCC", "x-delay", "a"]), inner, max_size=3)
            ),
            max_leaves=5,
        ),
    )
)
def test_whatever_json_is_given_as_properties_is_refused_or_comes_back(
    bench: Bench, given_: dict[str, Any]
) -> None:
    queue = bench.queue("q", durable=False) if not bench._queues else bench._queues[0]
    local = _core.LocalChannel(bench.loop, bench.vhost, b"guest", True)
    try:
        raw = properties_module.encode(given_, TableBounds(65_536, 1_024))
    except ApiError as error:
        assert error.status == 400
        return
    error_row, is_routed, _ = local.publish(bench.exchange, b"", b"q", raw, b"")
    if error_row:
        assert walk_error(error_row, 0, 0, 0, b"", "guest").text
        assert queue.ready == 0
    elif is_routed:
        expected, headers = properties_module.decode(raw)
        if headers:
            headers = fieldtable.amended(fieldtable.from_content(headers), {}, ["BCC"]).raw
        found = local.take(queue, ALL, ALL, False)
        # One that expires at once may be gone.
        assert found is None or properties_module.decode(found[4]) == (expected, headers)  # type: ignore[index]
    local.close()
    queue.purge()


def test_a_closed_channel_publishes_nothing(bench: Bench, local: _core.LocalChannel) -> None:
    local.close()
    with pytest.raises(ValueError, match="closed"):
        local.publish(bench.exchange, b"", b"q", PLAIN, b"")


# --- taking -----------------------------------------------------------------------------------


def test_a_taken_message_is_unacked_until_it_is_settled(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    for body in (b"1", b"2", b"3"):
        send(b"q", body)

    tag, redelivered, exchange, key, props, size, body, left = take(local, queue)
    assert (redelivered, exchange, key, props) == (False, b"", b"q", PLAIN)
    assert (size, body, left) == (1, b"1", 2)
    assert counts(queue)[:2] == (2, 1) and queue.unacked_bytes > 0
    local.settle(tag, False, True)
    assert counts(queue) == (2, 0, 0)
    assert queue.counters() | {"ack": 1, "get": 1, "deliver_get": 1} == queue.counters()


def test_what_is_put_back_is_in_its_place_and_redelivered(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    for body in (b"1", b"2"):
        send(b"q", body)

    for _ in range(2):
        local.settle(take(local, queue, True)[0], True, False)

    first, second = take(local, queue), take(local, queue)
    assert (first[6], first[1], second[6], second[1]) == (b"1", True, b"2", False)


def test_closing_puts_back_what_is_not_settled(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    send(b"q", b"1")
    take(local, queue)

    local.close()

    assert counts(queue) == (1, 0, 0)
    assert bench.loop.local_channels() == []


def test_a_message_that_does_not_fit_stays(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q", segment_size=16_384)
    send(b"q", b"x" * 1000)

    needed = local.take(queue, 100, ALL, False)
    assert isinstance(needed, int) and 1000 < needed < 1100
    assert counts(queue) == (1, 0, 0)
    shown = local.take(queue, 100, 10, False)
    assert isinstance(shown, tuple) and (shown[5], shown[6]) == (1000, b"x" * 10)


def test_a_paused_queue_can_be_looked_into(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    queue.is_paused = True
    send(b"q", b"1")

    assert bench.get(queue) is None
    assert take(local, queue)[6] == b"1"


def test_bcc_is_not_shown(bench: Bench, local: _core.LocalChannel, send: Send) -> None:
    queue = bench.queue("q")
    send(b"q", b"", properties(headers=fieldtable.encode({"a": 1, "BCC": ["secret"]})))

    assert take(local, queue)[4] == properties(headers=fieldtable.encode({"a": 1}))


def test_looking_does_not_count_against_the_delivery_limit(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q", delivery_limit=1)
    send(b"q", b"1")

    for _ in range(5):
        local.settle(take(local, queue, True)[0], True, False)
    assert queue.ready == 1
    # Attempts do: the second one after the first is one too many.
    for _ in range(2):
        local.settle(take(local, queue)[0], True, False)
    assert counts(queue) == (0, 0, 0)


def test_a_rejected_message_goes_where_dead_letters_go(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    dead = bench.queue("dead")
    queue = bench.queue("q", target=b"", target_key=b"dead")
    send(b"q", b"bad")

    local.settle(take(local, queue)[0], False, False)
    bench.run()

    assert (queue.ready, dead.ready) == (0, 1)
    assert b"x-first-death-reason" in take(local, dead)[4]


def test_expired_messages_are_not_taken(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    send(b"q", b"old", properties(expiration="10"))
    send(b"q", b"new")

    bench.loop.clock_offset_ms += 50

    assert take(local, queue)[6] == b"new"


def test_nothing_is_taken_from_an_empty_or_deleted_queue(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    assert local.take(queue, ALL, ALL, False) is None
    send(b"q", b"1")
    tag = take(local, queue)[0]
    queue.delete()

    assert local.take(queue, ALL, ALL, False) is None
    local.settle(tag, True, False)


def test_a_tag_can_be_settled_once(bench: Bench, local: _core.LocalChannel, send: Send) -> None:
    queue = bench.queue("q")
    send(b"q", b"1")
    tag = take(local, queue)[0]
    local.settle(tag, False, True)

    for unknown in (tag, tag + 1, 0):
        with pytest.raises(ValueError, match="unknown tag"):
            local.settle(unknown, False, True)


def test_many_are_taken_and_put_back_in_order(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q", segment_size=1 << 20)
    for number in range(3000):
        send(b"q", str(number).encode())

    tags = [take(local, queue, True)[0] for _ in range(3000)]
    for tag in reversed(tags):
        local.settle(tag, True, False)

    assert [take(local, queue)[6] for _ in range(3000)] == [str(n).encode() for n in range(3000)]


# --- unacked ----------------------------------------------------------------------------------


def test_unacked_deliveries_are_listed_by_channel_in_pages(bench: Bench) -> None:
    queue, other = bench.queue("q"), bench.queue("other")
    for number in range(4):
        bench.send(publish(b"q", str(number).encode()))
    bench.send(publish(b"other", b"x"))
    bench.get(queue, no_ack=False)
    bench.get(other, no_ack=False)
    consumer = bench.link.add_consumer(1, queue, b"tag", False)
    consumer.start()
    bench.run()
    bench.send(settle(80, 3, 0))

    first = bench.link.unacked_of(1, queue, 0, 2)

    assert first == [(1, None, 0), (4, b"tag", 0)]
    assert bench.link.unacked_of(1, queue, first[-1][0], 2) == [(5, b"tag", 0)]
    assert bench.link.unacked_of(1, queue, 5, 2) == []
    with pytest.raises(KeyError):
        bench.link.unacked_of(2, queue, 0, 1)


def test_old_deliveries_that_the_ring_left_behind_are_listed(bench: Bench) -> None:
    queue = bench.queue("q", segment_size=1 << 20)
    for _ in range(3000):
        bench.send(publish(b"q", b"x"))
        bench.get(queue, no_ack=False)
    for tag in range(2, 3001):
        bench.send(settle(80, tag, 0))
        bench.send(publish(b"q", b"x"))
        bench.get(queue, no_ack=False)
        bench.send(settle(80, 3000 + tag - 1, 0))

    assert [row[0] for row in bench.link.unacked_of(1, queue, 0, 10)] == [1]


def test_a_local_channel_tells_what_it_holds(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    send(b"q", b"1")
    take(local, queue)

    assert bench.loop.local_channels() == [local]
    assert local.unacked_of(queue, 0, 10) == [(1, None, 0)]


def test_a_restarted_queue_forgets_what_was_taken(
    bench: Bench, local: _core.LocalChannel, send: Send, tmp_path: Path
) -> None:
    queue = bench.queue("q")
    send(b"q", b"1")
    bench.run()
    tag = take(local, queue)[0]
    (bench.directory / "q").rename(tmp_path / "away")
    (bench.directory / "q").write_bytes(b"no directory")
    send(b"q", b"x" * 5000)
    bench.run()
    assert queue.is_closed
    (bench.directory / "q").unlink()
    (tmp_path / "away").rename(bench.directory / "q")

    queue.restart()
    local.settle(tag, False, True)

    assert (queue.ready, queue.unacked) == (1, 0)


# --- purging and moving -----------------------------------------------------------------------


def test_purging_some_deletes_the_oldest(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    for number in range(5):
        send(b"q", str(number).encode())

    assert list(_core.Purge(queue, 3)) == [3]
    assert (queue.ready, take(local, queue)[6]) == (2, b"3")
    assert list(_core.Purge(queue, 9)) == [1]


@pytest.mark.parametrize("is_requeued", [False, True])
def test_a_purge_of_many_goes_in_portions_and_spares_what_comes_later(
    bench: Bench, local: _core.LocalChannel, send: Send, is_requeued: bool
) -> None:
    queue = bench.queue("q", segment_size=1 << 20)
    many = 2000
    for _ in range(many):
        send(b"q", b"")
    bench.run()
    if is_requeued:
        tags = [take(local, queue)[0] for _ in range(many)]
        for tag in tags:
            local.settle(tag, True, False)
    purge = _core.Purge(queue, portion_ns=0)

    next(purge)
    send(b"q", b"later")
    bench.run()

    assert 1 < queue.ready < many + 1
    steps = list(purge)
    assert steps == sorted(steps)
    assert (purge.purged, queue.ready) == (many, 1)
    assert take(local, queue)[6] == b"later"


def test_a_purge_that_meets_an_empty_queue_keeps_its_places(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    queue = bench.queue("q")
    send(b"q", b"old")
    purge = _core.Purge(queue)
    local.settle(take(local, queue)[0], False, True)
    bench.run()  # an empty queue takes back what it has not written

    send(b"q", b"new")
    bench.run()

    assert sum(purge) == 0
    assert take(local, queue)[6] == b"new"


def test_a_deleted_queue_ends_its_purge(bench: Bench, send: Send) -> None:
    queue = bench.queue("q")
    send(b"q", b"x")
    purge = _core.Purge(queue)
    queue.delete()

    assert list(purge) == [0]
    assert list(purge) == []


def test_moved_messages_are_as_if_published_there(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    source, to = bench.queue("source"), bench.queue("to")
    for number in range(5):
        send(b"source", str(number).encode(), properties(priority=number))

    assert _core.Move(source, to).some(3) == 3
    bench.run()

    assert (source.ready, to.ready) == (2, 3)
    assert [take(local, to)[2:7] for _ in range(3)] == [
        (b"", b"to", properties(priority=n), 1, str(n).encode()) for n in range(3)
    ]
    assert _core.Move(source, to).some(9) == 2


def test_moving_stops_at_a_queue_that_is_full(
    bench: Bench, local: _core.LocalChannel, send: Send
) -> None:
    source = bench.queue("source")
    to = bench.queue("to", max_length=2, overflow=_core.OVERFLOW["reject-publish"])
    for number in range(5):
        send(b"source", str(number).encode())

    assert _core.Move(source, to).some(9) == 2
    assert (source.ready, to.ready) == (3, 2)
    assert take(local, source)[6] == b"2"


def test_a_moved_message_is_deleted_after_a_sync(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "synced", sync=True)
    source, to = bench.queue("source"), bench.queue("to")
    bench.send(publish(b"source", b"1"))
    bench.run()
    acks = bench.directory / "source" / "acks.0000000001"

    _core.Move(source, to).some(1)
    assert not acks.exists() and source.ready == 0
    done: list[bool] = []
    bench.loop.after_sync(lambda: done.append(True))
    bench.run()
    bench.run()

    assert done and acks.exists() and to.ready == 1
    bench.close()


def test_a_queue_is_not_moved_into_itself_nor_into_a_closed_one(bench: Bench, send: Send) -> None:
    source, gone = bench.queue("source"), bench.queue("gone")
    send(b"source", b"1")
    gone.delete()

    assert _core.Move(source, source).some(1) == _core.Move(source, gone).some(1) == 0
    assert source.ready == 1
