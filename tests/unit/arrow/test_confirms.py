"""What the broker says about published messages, counted: acks, nacks, and what is neither."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from tests.support import raw_wire as wire

pytest.importorskip("pyarrow")
from lavinmq.spark._arrow import Confirms


def ack(tag: int, multiple: bool = False) -> bytes:
    return wire.encode_method(1, commands.Basic.Ack(tag, multiple))


def nack(tag: int, multiple: bool = False) -> bytes:
    return wire.encode_method(1, commands.Basic.Nack(tag, multiple))


def made(sent: int, window: int = 100) -> Confirms:
    confirms = Confirms(window=window)
    confirms.sent(sent)
    return confirms


def counts(confirms: Confirms) -> tuple[int, int, int]:
    return confirms.confirmed, confirms.nacked, confirms.unconfirmed


def test_a_multiple_ack_covers_what_is_still_open() -> None:
    confirms = made(10)

    assert confirms.feed(ack(3) + nack(5) + ack(6, multiple=True) + ack(8)) == []

    assert counts(confirms) == (6, 1, 3)
    assert confirms.first_nacked == 4


def test_tag_0_with_multiple_means_all() -> None:
    confirms = made(10)

    confirms.feed(nack(0, multiple=True))

    assert counts(confirms) == (0, 10, 0)
    assert confirms.first_nacked == 0


def test_a_confirm_that_comes_twice_counts_once() -> None:
    confirms = made(4)

    confirms.feed(ack(2) + ack(2) + ack(2, multiple=True) + ack(1))

    assert counts(confirms) == (2, 0, 2)


@pytest.mark.parametrize("answer", [ack(5), ack(0), ack(5, multiple=True), nack(7)])
def test_a_confirm_of_what_was_not_sent_is_a_violation(answer: bytes) -> None:
    with pytest.raises(ValueError, match="AMQP does not allow"):
        made(4).feed(answer)


def test_the_window_gives_room_as_confirms_come() -> None:
    confirms = Confirms(window=3)
    assert confirms.room == 3
    confirms.sent(3)
    assert confirms.room == 0
    with pytest.raises(ValueError, match="window"):
        confirms.sent(1)
    confirms.feed(ack(2))
    assert confirms.room == 1


def test_an_old_message_that_is_never_confirmed_does_not_let_the_ring_overflow() -> None:
    confirms = Confirms(window=4)
    tag = 0
    while confirms.room:
        confirms.sent(1)
        tag += 1
        if tag > 1:
            confirms.feed(ack(tag))
        assert tag < 100

    assert counts(confirms) == (tag - 1, 0, 1)
    confirms.feed(ack(1))
    assert confirms.unconfirmed == 0
    assert confirms.room == 4


def test_other_methods_are_handed_over_and_content_is_skipped() -> None:
    returned = wire.encode_method(
        1, commands.Basic.Return(312, "NO_ROUTE", exchange="e", routing_key="k")
    )
    content = wire.encode_content(1, wire.Properties(content_type="a"), b"x" * 5000, 4096)
    blocked = wire.encode_method(0, commands.Connection.Blocked("low on disk"))
    heartbeat = b"\x08\0\0\0\0\0\0\xce"
    confirms = made(2)

    found = confirms.feed(returned + content + heartbeat + ack(1) + blocked + ack(2))

    assert [channel for channel, _ in found] == [1, 0]
    names = [type(wire.decode_method(payload)).__name__ for _, payload in found]
    assert names == ["Return", "Blocked"]
    assert confirms.confirmed == 2


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 40), max_size=30))
def test_however_it_is_cut_the_same_is_counted(cuts: list[int]) -> None:
    returned = wire.encode_method(1, commands.Basic.Return(312, "x", exchange="", routing_key="k"))
    data = ack(1) + returned + nack(3) + ack(4, multiple=True) + returned
    confirms, found = made(5), 0

    for size in cuts:
        found += len(confirms.feed(data[:size]))
        data = data[size:]
    found += len(confirms.feed(data))

    assert counts(confirms) == (3, 1, 1)
    assert found == 2


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 40))
def test_any_bytes_are_counted_or_refused(noise: bytes, at: int) -> None:
    good = ack(1) + nack(2) + ack(3)
    confirms = made(3)

    try:
        confirms.feed(good[:at] + noise + good[at:])
        confirms.feed(noise)
    except ValueError:
        pass

    confirmed, nacked, unconfirmed = counts(confirms)
    assert confirmed + nacked + unconfirmed == 3


def test_a_frame_beyond_the_limit_is_refused_before_it_is_gathered() -> None:
    confirms = Confirms(window=1, frame_max=4096)

    with pytest.raises(ValueError, match="AMQP does not allow"):
        confirms.feed(b"\x03\0\1\x7f\0\0\0" + b"x" * 100)
    with pytest.raises(ValueError, match="window"):
        Confirms(window=0)
