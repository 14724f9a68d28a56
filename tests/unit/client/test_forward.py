"""What was delivered to us and is published elsewhere: settled there once it has ended here."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client import _engine
from tests.support import client_frames as frames

MOST = 1 << 20


class Ring(_engine.Ring):
    """A ring that is pumped by hand."""

    def __init__(self, **options: Any) -> None:
        self.configure(**{"routing_key": "q", **options})

    def wake(self) -> None:
        pass


class Between:
    """A source with its tracker, and a destination."""

    def __init__(self, **options: Any) -> None:
        self.tracker = _engine.Tracker(0)
        self.ring, self.out = Ring(**options), _engine.Output()
        self.next_tag = 1
        self.connect_source()
        self.connect_destination()

    def connect_source(self) -> None:
        self.source = _engine.Input()
        self.port = _engine.Port(2, tracker=self.tracker)
        self.source.open(self.port)
        self.tracker.reset(2)
        self.next_tag = 1

    def connect_destination(self) -> None:
        self.destination = _engine.Input()
        self.destination.open(_engine.Port(1, ring=self.ring))
        self.ring.attach(1, 131072)

    def deliver(self, *bodies: bytes, **more: Any) -> list[_engine.Message]:
        for body in bodies:
            self.source.feed(frames.delivery(2, self.next_tag, body, **more))
            self.next_tag += 1
        return self.port.take()

    def forward(
        self, *bodies: bytes, exchange: str | None = "", key: str | None = "to", **options: Any
    ) -> int:
        return self.ring.forward(self.deliver(*bodies), 0, exchange, key, **options)

    def send(self) -> list[bytes]:
        self.ring.pump(self.out, MOST, "too large", "expired")
        return [payload for kind, _, payload in frames.cut(self.out.take()) if kind == 3]

    def acks(self) -> list[bytes]:
        """What the source is told: tag, and whether of several."""
        out = _engine.Output()
        self.tracker.flush(out)
        return [payload[4:13] for _, _, payload in frames.cut(out.take())]


def ack(tag: int, multiple: bool = False) -> bytes:
    return tag.to_bytes(8, "big") + bytes([multiple])


def test_the_source_is_told_when_the_destination_has_confirmed() -> None:
    between = Between()
    assert between.forward(b"a", b"b", b"c") == 3
    assert between.send() == [b"a", b"b", b"c"]
    assert between.acks() == []

    between.destination.feed(frames.confirm(1, 2, multiple=True))

    assert between.acks() == [ack(2, multiple=True)]
    assert between.ring.count == 1 and between.tracker.count == 1


def test_without_confirms_the_source_is_told_when_it_was_sent() -> None:
    between = Between(confirms=False)
    between.forward(b"a")
    before = between.acks()
    between.send()

    assert before == [] and between.acks() == [ack(1, multiple=True)]


def test_properties_and_names_are_the_messages_own_or_those_that_were_given() -> None:
    between = Between()
    own = b"\x10\x00\x01"
    messages = between.deliver(b"x", exchange="from", key="old", props=own)
    again = between.deliver(b"y", exchange="from", key="old", props=own)
    other = _engine.encode_properties({"priority": 7})

    between.ring.forward(messages, 0, None, None)
    between.ring.forward(again, 0, "to", None, True, [other])
    between.ring.pump(between.out, MOST)
    kinds = frames.cut(between.out.take())

    assert [payload[6:] for kind, _, payload in kinds if kind == 1] == [
        b"\x04from\x03old\x00",
        b"\x02to\x03old\x01",
    ]
    assert [payload[12:] for kind, _, payload in kinds if kind == 2] == [own, other]


def test_a_refusal_is_sent_again_and_the_source_keeps_it() -> None:
    between = Between()
    between.forward(b"a")
    between.send()
    between.destination.feed(frames.refusal(1, 1))

    assert between.acks() == [] and between.tracker.count == 1
    assert between.ring.count == 1 and between.ring.nacks == 1
    retry_in = between.ring.retry_in
    assert retry_in is not None and retry_in > 0


def test_what_no_queue_takes_is_sent_again_and_the_source_keeps_it() -> None:
    between = Between()
    between.forward(b"a", mandatory=True)
    between.send()
    between.destination.feed(
        frames.method(1, "basic.return", 312, "NO_ROUTE", "", "to") + frames.content(1, b"a")
    )
    between.destination.feed(frames.confirm(1, 1))

    assert between.acks() == [] and between.tracker.count == 1
    assert between.ring.count == 1 and between.ring.unrouted == 1
    assert between.ring.retry_in is not None


def test_a_destination_that_is_lost_gets_it_again_and_the_source_is_told_once() -> None:
    between = Between()
    between.forward(b"a")
    between.send()
    between.ring.reset()
    between.connect_destination()
    sent = between.send()
    between.destination.feed(frames.confirm(1, 1))

    assert sent == [b"a"] and between.acks() == [ack(1, multiple=True)]


def test_a_source_that_is_lost_is_not_told_of_tags_of_before() -> None:
    between = Between()
    between.forward(b"a")
    between.send()
    between.connect_source()
    between.forward(b"b")
    between.destination.feed(frames.confirm(1, 1))

    assert between.acks() == [] and between.tracker.stale_acks == 1
    assert between.tracker.count == 1  # b's, whose tag is the same


def test_what_is_given_up_stays_with_the_source() -> None:
    between = Between()
    between.forward(b"a", b"b")
    between.send()

    assert between.ring.give_up("closed") == 2
    assert between.acks() == [] and between.tracker.count == 2


def test_no_more_are_taken_than_there_is_room_for() -> None:
    between = Between(capacity=2)
    messages = between.deliver(b"a", b"b", b"c")

    taken = between.ring.forward(messages, 0, "", "to")
    between.send()
    between.destination.feed(frames.confirm(1, 2, multiple=True))

    assert taken == 2
    assert between.ring.forward(messages, taken, "", "to") == 3
    assert between.send() == [b"c"]


@given(st.data())
def test_the_source_is_told_of_what_was_confirmed_and_of_nothing_else(data: st.DataObject) -> None:
    between = Between()
    n = data.draw(st.integers(1, 40))
    between.forward(*(b"%d" % i for i in range(n)))
    between.send()
    told: set[int] = set()
    confirmed: set[int] = set()
    for tag in data.draw(st.lists(st.integers(1, n), unique=True)):
        multiple = data.draw(st.booleans())
        between.destination.feed(frames.confirm(1, tag, multiple))
        confirmed |= set(range(1, tag + 1)) if multiple else {tag}
        for each in between.acks():
            last = int.from_bytes(each[:8], "big")
            told |= set(range(1, last + 1)) if each[8] else {last}

        assert told == confirmed
