"""Frames one by one: what is written is read, by pamqp too; what is none is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands, header
from pamqp import frame as pamqp_frame

from lavinmq.client import frames
from lavinmq.client._engine import encode_properties
from lavinmq.client.errors import (
    ChannelClosed,
    ConnectionClosed,
    NotFound,
    ProtocolViolation,
    ValueNotEncodable,
)

SOME = (
    frames.method(0, "connection.tune-ok", 7, 8192, 0)
    + frames.method(3, "basic.publish", 0, "x", "k", True, False)
    + frames.content(3, encode_properties({"priority": 4}), b"abcdef", 8 + 4)
    + frames.frame(frames.HEARTBEAT, 0, b"")
)


def cut(*pieces: bytes, frame_max: int = frames.FRAME_MAX) -> list[frames.Frame]:
    reader = frames.Reader(frame_max)
    found: list[frames.Frame] = []
    for piece in pieces:
        reader.feed(piece)
        found += iter(reader.next, None)
    return found


@given(st.lists(st.integers(0, len(SOME)), max_size=6))
def test_a_stream_may_be_split_anywhere(places: list[int]) -> None:
    ends = [0, *sorted(places), len(SOME)]
    pieces = [SOME[a:b] for a, b in pairwise(ends)]

    assert cut(*pieces) == cut(SOME)
    assert b"".join(frames.frame(*each) for each in cut(SOME)) == SOME


def test_what_is_not_a_whole_frame_yet_can_be_taken_back() -> None:
    reader = frames.Reader()
    reader.feed(SOME + SOME[:9])
    while reader.next() is not None:
        pass

    assert reader.take() == SOME[:9]
    assert reader.take() == b""


def test_pamqp_reads_the_same() -> None:
    tune, publish, head, first, second, _ = cut(SOME)

    assert frames.arguments(tune.payload) == (7, 8192, 0)
    read = pamqp_frame.unmarshal(frames.frame(*publish))[2]
    assert isinstance(read, commands.Basic.Publish)
    assert (read.exchange, read.routing_key, read.mandatory) == ("x", "k", True)
    content = pamqp_frame.unmarshal(frames.frame(*head))[2]
    assert isinstance(content, header.ContentHeader)
    assert (content.body_size, content.properties.priority) == (6, 4)
    assert (first.payload, second.payload) == (b"abcd", b"ef")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x01\x00\x01\x7f\xff\xff\xff\x00", "frame size"),
        (b"\x01\x00\x01\x00\x00\x00\x04\x00\x3c\x00\x0b\xff", "frame end"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ProtocolViolation, match=reason):
        cut(data)


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\x63\0\1", b"\0\x0a\0\x32\1"])
def test_what_is_no_method_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        frames.arguments(payload)


def test_a_close_is_the_error_to_raise() -> None:
    (channel,) = cut(frames.method(1, "channel.close", 404, "NOT_FOUND - no queue", 50, 10))
    (connection,) = cut(frames.method(0, "connection.close", 320, "CONNECTION_FORCED", 0, 0))

    closed, ended = frames.close_of(channel.payload), frames.close_of(connection.payload)

    assert isinstance(closed, ChannelClosed)
    assert isinstance(closed, NotFound)
    assert isinstance(ended, ConnectionClosed)
    assert (str(closed), ended.code) == ("404 NOT_FOUND - no queue", 320)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueNotEncodable, match="255"):
        frames.method(1, "queue.delete", 0, "q" * 256, False, False, False)
