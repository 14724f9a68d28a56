"""The input: frames however they are split, deliveries as messages, and liars found out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine
from lavinmq.client.errors import ProtocolViolation
from tests.support import client_frames as frames


class Reading:
    """An input with a consumer on channel 2."""

    def __init__(self, limit: int = 0, **options: int) -> None:
        self.input = _engine.Input(**options)
        self.tracker = _engine.Tracker(limit)
        self.tracker.reset(2)
        self.port = _engine.Port(2, tracker=self.tracker)
        self.input.open(self.port)


def test_a_delivery_becomes_a_message() -> None:
    reading = Reading()
    props = _engine.encode_properties({"content_type": "text/plain", "headers": {"a": 1}})
    reading.input.feed(
        frames.delivery(2, 1, b"hello", exchange="e", key="k", redelivered=True, props=props)
    )

    [message] = reading.port.take()
    assert (message.body, message.exchange, message.routing_key) == (b"hello", "e", "k")
    assert (message.delivery_tag, message.redelivered, message.consumer_tag) == (1, True, "c")
    assert message.headers == {"a": 1} and message.content_type == "text/plain"
    assert message.text() == "hello" and reading.port.take() == []


def test_names_change_between_deliveries() -> None:
    reading = Reading()
    names = [("", "q"), ("e", "k"), ("e", ""), ("", "k" * 255), ("x", "q")]
    for tag, (exchange, key) in enumerate(names, 1):
        reading.input.feed(frames.delivery(2, tag, b"x", exchange=exchange, key=key))

    found = [(message.exchange, message.routing_key) for message in reading.port.take()]
    assert found == names


@given(st.lists(st.integers(1, 400), max_size=30), st.integers(0, 2**32))
def test_frames_are_the_same_however_they_are_split(cuts: list[int], seed: int) -> None:
    randomness = random.Random(seed)
    bodies = [randomness.randbytes(randomness.choice((0, 1, 50, 3000))) for _ in range(6)]
    data = b"".join(frames.delivery(2, tag, body, chunk=1000) for tag, body in enumerate(bodies, 1))
    data += frames.frame(8, 0, b"") + frames.method(0, "connection.blocked", "low")
    reading = Reading()
    events = []
    at = 0
    for cut in cuts:
        events += reading.input.feed(data[at : at + cut])
        at += cut
        if cut % 3 == 0:
            reading.input.rest()
    events += reading.input.feed(data[at:])

    assert [message.body for message in reading.port.take()] == bodies
    assert [event[:2] for event in events] == [(0, 10 << 16 | 60)]
    assert reading.input.bytes_in == len(data)


def test_a_large_body_comes_in_many_frames() -> None:
    reading = Reading()
    body = random.randbytes(1_000_000)
    reading.input.feed(frames.delivery(2, 1, body))

    assert reading.port.take()[0].body == body


def test_more_than_the_buffer_at_once_is_read_in_pieces() -> None:
    reading = Reading()
    data = b"".join(frames.delivery(2, tag, b"x" * 100) for tag in range(1, 5001))
    reading.input.feed(data)

    assert len(reading.port.take()) == 5000
    assert reading.tracker.count == 5000


def test_deliveries_without_ack_are_not_tracked() -> None:
    reading = Reading()
    reading.port.no_ack = True
    for tag in range(1, 1001):
        reading.input.feed(frames.delivery(2, tag, b"x"))

    messages = reading.port.take()
    assert reading.tracker.count == 0 and messages[0].settled
    assert not messages[0].ack()


def test_an_answer_of_get_is_an_event_with_its_message() -> None:
    reading = Reading()
    head = _engine.encode_method(2, 60 << 16 | 71, "QbssL", 1, False, "", "q", 7)
    events = reading.input.feed(head + frames.content(2, b"got"))

    [(channel, method, _, message)] = events
    assert (channel, method) == (2, 60 << 16 | 71)
    assert message is not None and (message.body, message.message_count) == (b"got", 7)


def test_acks_of_messages_go_through_the_tracker() -> None:
    reading = Reading()
    for tag in (1, 2, 3):
        reading.input.feed(frames.delivery(2, tag, b"x"))
    first, second, third = reading.port.take()

    assert [first.ack(), first.ack(), first.nack()] == [True, False, False]
    with second.process():
        pass
    with pytest.raises(ZeroDivisionError), third.process(requeue=True):
        raise ZeroDivisionError
    assert reading.tracker.count == 0 and reading.tracker.acked == 2
    out = _engine.Output()
    reading.tracker.flush(out)
    assert [payload[4:13] for _, _, payload in frames.cut(out.take())] == [
        (3).to_bytes(8, "big") + b"\x02",
        (2).to_bytes(8, "big") + b"\x01",
    ]


def test_a_message_of_an_earlier_channel_is_not_acked_on_the_next() -> None:
    reading = Reading()
    reading.input.feed(frames.delivery(2, 1, b"old"))
    [old] = reading.port.take()
    reading.tracker.reset(2)
    reading.input.feed(frames.delivery(2, 1, b"new"))

    assert not old.ack()
    assert reading.tracker.unacked_tags == [1] and reading.tracker.stale_acks == 1


def test_a_batch_is_settled_as_one() -> None:
    reading = Reading()
    for tag in range(1, 6):
        reading.input.feed(frames.delivery(2, tag, b"%d" % tag))
    batch = _engine.Batch(reading.port.take())
    batch[1].nack()

    assert batch.bodies() == [b"1", b"2", b"3", b"4", b"5"]
    assert batch.ack() == 4 and batch.ack() == 0


LIES = {
    "a frame with another end": b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x3d\xcd",
    "a frame of an unknown kind": frames.frame(5, 2, b"1234"),
    "a frame larger than agreed": b"\x03\x00\x02\x7f\xff\xff\xff",
    "a heartbeat on a channel": frames.frame(8, 2, b""),
    "a channel that is not open": frames.delivery(9, 1, b"x"),
    "a body without a header": frames.frame(3, 2, b"x"),
    "a header without a method": frames.content(2, b"x"),
    "a method cut short": frames.frame(1, 2, b"\x00\x3c"),
    "a delivery cut short": frames.frame(1, 2, b"\x00\x3c\x00\x3c\x01c\x00"),
    "a tag that is not the next": frames.delivery(2, 2, b"x"),
    "a method within a message": frames.delivery(2, 1, b"x")[:-9] + frames.method(2, "tx.commit"),
    "a body longer than its header says": frames.delivery(2, 1, b"ab")[:-10]
    + frames.frame(3, 2, b"abc"),
    "a confirm on a channel of another kind, cut": frames.frame(1, 2, b"\x00"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_found_out(lie: str) -> None:
    reading = Reading()

    with pytest.raises(ProtocolViolation):
        reading.input.feed(LIES[lie])


def test_a_message_larger_than_allowed_is_refused_before_it_comes() -> None:
    reading = Reading(max_body=1000)

    with pytest.raises(ProtocolViolation, match="1000 are allowed"):
        reading.input.feed(frames.delivery(2, 1, b"x" * 1001)[:60])


def test_more_deliveries_than_prefetched_are_a_lie() -> None:
    reading = Reading(limit=2)
    for tag in (1, 2):
        reading.input.feed(frames.delivery(2, tag, b"x"))

    with pytest.raises(ProtocolViolation):
        reading.input.feed(frames.delivery(2, 3, b"x"))


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_bytes_are_read_or_refused(data: bytes, cut: int) -> None:
    reading = Reading()
    try:
        reading.input.feed(data[:cut])
        reading.input.feed(data[cut:])
    except ProtocolViolation:
        pass
    assert reading.tracker.count == len(reading.port.take())


def test_much_is_dealt_with_in_turns() -> None:
    """A peer that sends many small methods holds up nobody else."""
    reading = Reading()
    raw = frames.method(2, "channel.flow", True) * 1000
    found = 0
    while raw:
        with memoryview(reading.input) as room:
            n = min(len(room), len(raw))
            room[:n] = raw[:n]
        raw = raw[n:]
        turn = len(reading.input.advance(n))
        found += turn
        assert turn <= 128
        while reading.input.has_more:
            turn = len(reading.input.advance(0))
            found += turn
            assert 0 < turn <= 128
    assert found == 1000


def test_a_quiet_connection_has_no_buffer() -> None:
    reading = Reading()
    large, small = frames.delivery(2, 1, b"x" * 500_000), frames.method(2, "channel.flow", True)
    for size, is_kept in ((len(large), True), (len(small), False)):
        raw = (large, small)[not is_kept]
        while raw:
            with memoryview(reading.input) as room:
                n = min(len(room), len(raw))
                room[:n], raw = raw[:n], raw[n:]
                reading.input.advance(n)
                held = len(room)
        assert (held > 2048) is is_kept, size
        assert reading.input.rest() is not is_kept
        reading.input.rest()
    with memoryview(reading.input) as room:
        assert len(room) == 2048


def test_what_is_fed_is_dealt_with_at_once() -> None:
    reading = Reading()
    assert len(reading.input.feed(frames.method(2, "channel.flow", True) * 1000)) == 1000
