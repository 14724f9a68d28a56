"""`lavinmq/spark/inbox.py`: messages that are pulled, answers among them, and peers that babble."""

from __future__ import annotations

import pytest

from lavinmq.client import frames
from lavinmq.client._engine import encode_properties
from lavinmq.spark.connection import ConnectionFailure
from lavinmq.spark.inbox import Inbox
from tests.spark.apart.test_connection import TIMEOUT_S, Peer, connected, wait


def delivery(tag: int, body: bytes, frame_max: int = 8192) -> bytes:
    method = frames.method(1, "basic.deliver", "t", tag, False, "x", "k\udc80")
    return method + frames.content(1, encode_properties({}), body, frame_max)


def test_messages_that_come_before_an_answer_are_kept() -> None:
    def answer(peer: Peer) -> None:
        peer.frame()
        # A piece that ends in the middle of a message.
        data = delivery(1, b"one") + frames.method(1, "basic.qos-ok") + delivery(2, bytes(20_000))
        peer.socket.sendall(data[:-5000])
        peer.frame()
        peer.socket.sendall(data[-5000:])
        wait(peer)

    with connected(answer) as connection:
        inbox = Inbox(connection)
        inbox.ask("basic.qos", 0, 1, False)
        inbox.send("basic.ack", 1, False)
        first, second = inbox.next(TIMEOUT_S), inbox.next(TIMEOUT_S)

    assert first is not None and second is not None
    assert (first.body, first.routing_key, first.delivery_tag) == (b"one", "k\udc80", 1)
    assert second.body == bytes(20_000)


def test_nothing_is_read_before_somebody_wants_it() -> None:
    sent: list[int] = []

    def pour(peer: Peer) -> None:
        peer.socket.settimeout(0.5)
        body = delivery(1, bytes(60_000))
        try:
            while len(sent) < 2000:
                peer.socket.sendall(body)
                sent.append(len(body))
        except OSError:
            wait(peer)

    with connected(pour) as connection:
        inbox = Inbox(connection)
        for _ in range(3):
            assert inbox.next(TIMEOUT_S) is not None
        held = len(inbox.messages)

    assert held <= 2
    assert sum(sent) < 100_000_000  # what the buffers of two sockets hold


def test_what_was_under_way_to_a_consumer_that_is_cancelled_is_passed_over() -> None:
    def answer(peer: Peer) -> None:
        peer.frame()
        peer.socket.sendall(delivery(1, b"late") * 3 + frames.method(1, "basic.cancel-ok", "t"))
        peer.socket.sendall(delivery(4, b"another's"))
        wait(peer)

    with connected(answer) as connection:
        inbox = Inbox(connection)
        inbox.cancel("t")
        message = inbox.next(TIMEOUT_S)

    assert message is not None and message.body == b"another's"


def test_a_consumer_that_the_broker_ends_is_an_event_and_no_message() -> None:
    def end(peer: Peer) -> None:
        peer.socket.sendall(delivery(1, b"last") + frames.method(1, "basic.cancel", "t", True))
        wait(peer)

    with connected(end) as connection:
        inbox = Inbox(connection)
        last, none = inbox.next(TIMEOUT_S), inbox.next(TIMEOUT_S)
        event = inbox.event()

    assert last is not None and last.body == b"last"
    assert none is None
    assert event is not None and event[0] == "basic.cancel"


def test_an_answer_that_does_not_come_is_not_waited_for_longer() -> None:
    with (
        connected(wait) as connection,
        pytest.raises(ConnectionFailure, match=r"no basic.qos-ok within 0.2 s") as caught,
    ):
        Inbox(connection).ask("basic.qos", 0, 1, False, timeout_s=0.2)

    assert caught.value.is_transient


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (frames.frame(frames.BODY, 1, b"x"), "a body where none belongs"),
        (frames.frame(frames.HEADER, 1, bytes(14)), "a content header where none belongs"),
        (delivery(1, b"abc", 8 + 3)[:-11] + delivery(2, b""), "a method in the middle"),
        (frames.frame(frames.METHOD, 2, frames.id_of("basic.deliver")), "not open"),
        (b"\x01\x00\x01\x7f\xff\xff\xff\x00", "a frame of"),
    ],
)
def test_what_breaks_the_protocol_ends_it_with_one_line(data: bytes, reason: str) -> None:
    def babble(peer: Peer) -> None:
        peer.socket.sendall(data)
        wait(peer)

    with connected(babble) as connection, pytest.raises(ConnectionFailure, match=reason) as caught:
        Inbox(connection).next(TIMEOUT_S)

    assert "\n" not in str(caught.value)


def test_a_refusal_has_its_words() -> None:
    def refuse(peer: Peer) -> None:
        peer.frame()
        peer.socket.sendall(frames.method(1, "channel.close", 404, "NOT_FOUND - no q", 50, 10))
        wait(peer)

    with connected(refuse) as connection, pytest.raises(ConnectionFailure, match="404 NOT_FOUND"):
        Inbox(connection).count("q")
