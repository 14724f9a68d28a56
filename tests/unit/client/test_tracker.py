"""The tracker: acks put together, told once, and never to another channel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine
from lavinmq.client.errors import ProtocolViolation
from tests.support import client_frames as frames

ACK, NACK = b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"


def tracker(deliveries: int, limit: int = 0) -> _engine.Tracker:
    """A tracker on channel 3 with so many unsettled deliveries."""
    made = _engine.Tracker(limit)
    made.reset(3)
    for tag in range(1, deliveries + 1):
        made.track(tag)
    return made


def told(made: _engine.Tracker) -> list[tuple[bytes, int, int]]:
    """What it has to say: (method, tag, bits)."""
    out = _engine.Output()
    made.flush(out)
    return [
        (payload[:4], int.from_bytes(payload[4:12], "big"), payload[12])
        for _, channel, payload in frames.cut(out.take())
        if channel == 3
    ]


def test_acks_in_a_row_become_one() -> None:
    made = tracker(100)
    for tag in range(1, 101):
        made.ack(tag)

    assert told(made) == [(ACK, 100, 1)]
    assert made.count == 0 and made.unacked_tags == []


def test_acks_behind_a_gap_are_told_one_by_one() -> None:
    made = tracker(5)
    for tag in (5, 1, 4):
        made.ack(tag)

    assert told(made) == [(ACK, 1, 1), (ACK, 5, 0), (ACK, 4, 0)]
    made.ack(2)
    assert told(made) == [(ACK, 2, 1)]
    made.ack(3)
    assert told(made) == [(ACK, 3, 1)]
    assert told(made) == []


def test_the_tag_of_an_ack_of_several_is_one_that_the_broker_still_knows() -> None:
    made = tracker(3)
    made.ack(1)
    made.nack(2, requeue=True)
    made.nack(3, requeue=False)

    assert told(made) == [(NACK, 2, 2), (NACK, 3, 0), (ACK, 1, 1)]


def test_to_settle_twice_is_nothing() -> None:
    made = tracker(2)

    assert [made.ack(1), made.ack(1), made.nack(1), made.ack(9), made.ack(0)] == [1, 0, 0, 0, 0]
    assert told(made) == [(ACK, 1, 1)]


def test_multiple_settles_all_up_to_a_tag() -> None:
    made = tracker(5)
    made.ack(2)

    assert made.ack(4, multiple=True) == 3
    assert told(made) == [(ACK, 4, 1)]
    assert made.unacked_tags == [5]


def test_an_ack_for_an_earlier_channel_is_counted_and_never_sent() -> None:
    made = tracker(3)
    old = made.incarnation
    made.reset(3)
    made.track(1)

    assert made.ack(1, incarnation=old) == 0
    assert made.stale_acks == 1 and told(made) == []
    assert made.unacked_tags == [1]


def test_what_was_acked_and_not_told_is_forgotten_with_its_channel() -> None:
    made = tracker(3)
    made.ack(1)
    made.nack(2)
    made.reset(3)

    assert told(made) == []


def test_a_delivery_beyond_the_limit_breaks_the_protocol() -> None:
    made = tracker(3, limit=3)

    with pytest.raises(ProtocolViolation, match="more than 3"):
        made.track(4)


@pytest.mark.parametrize("tag", [0, 1, 5])
def test_tags_are_in_a_row(tag: int) -> None:
    made = tracker(3)

    with pytest.raises(ProtocolViolation):
        made.track(tag)


def test_who_has_to_send_is_woken_once() -> None:
    made = tracker(10)
    woken: list[int] = []
    made.wake = lambda: woken.append(1)
    for tag in range(1, 6):
        made.ack(tag)
    told(made)
    made.ack(6)

    assert len(woken) == 2


def test_settled_to_is_the_end_of_the_settled_row() -> None:
    made = tracker(5)
    before = made.settled_to
    made.ack(1)
    made.ack(3)
    made.nack(2)

    assert (before, made.settled_to) == (0, 3)


@given(
    st.integers(1, 600),
    st.lists(st.tuples(st.integers(1, 600), st.sampled_from("anmfr")), max_size=200),
)
def test_each_delivery_is_told_exactly_once(n: int, steps: list[tuple[int, str]]) -> None:
    """The broker's view: an ack of several settles what is open up to its tag."""
    made = tracker(n)
    open_tags = set(range(1, n + 1))
    acked: set[int] = set()
    refused: set[int] = set()
    at_broker = set(open_tags)

    def listen() -> None:
        for method, tag, bits in told(made):
            assert tag in at_broker, "a tag that the broker does not know any more"
            tags = (
                {each for each in at_broker if each <= tag} if bits & 1 and method == ACK else {tag}
            )
            assert tags <= (acked if method == ACK else refused)
            at_broker.difference_update(tags)

    for tag, step in steps:
        if step == "f":
            listen()
        elif step == "r":
            made.rest()
        elif step == "m":
            tags = {each for each in open_tags if each <= tag}
            assert made.ack(tag, multiple=True) == len(tags)
            acked |= tags
            open_tags -= tags
        else:
            is_open = tag in open_tags
            assert (made.ack(tag) if step == "a" else made.nack(tag)) == is_open
            if is_open:
                (acked if step == "a" else refused).add(tag)
                open_tags.discard(tag)
    listen()

    assert at_broker == open_tags == set(made.unacked_tags)
    assert made.count == len(open_tags)
