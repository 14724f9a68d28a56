"""What was delivered to us and is published elsewhere: settled there once it has ended here.

By a passage, whether messages go on as they come or are handed over later.
"""

from __future__ import annotations

from typing import Any

import pytest
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
    """A source with its tracker, and a destination.

    Args: passing: options of the passage; options: of the ring.
    """

    def __init__(self, passing: dict[str, Any] | None = None, **options: Any) -> None:
        self.tracker = _engine.Tracker(0)
        self.ring, self.out = Ring(**options), _engine.Output()
        self.passage = _engine.Passage(
            self.ring, **{"exchange": "", "routing_key": "to", **(passing or {})}
        )
        self.next_tag = 1
        self.connect_source()
        self.connect_destination()

    def connect_source(self) -> None:
        self.source = _engine.Input()
        self.port = _engine.Port(2, tracker=self.tracker)
        self.source.open(self.port)
        self.tracker.reset(2)
        self.passage.restart(self.tracker)
        self.port.passage = self.passage
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

    def forward(self, *bodies: bytes, **more: Any) -> None:
        """Let them go on, as they come or afterwards; none is left."""
        messages = self.deliver(*bodies, **more)
        assert self.passage.forward(messages) == len(messages)

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


@pytest.fixture(params=["as they come", "handed over"])
def between(request: pytest.FixtureRequest) -> Between:
    """Open or closed: what is handed over ends as what goes on at once."""
    made = Between({"mandatory": True})
    if request.param == "handed over":
        made.passage.close()
    return made


def test_the_source_is_told_when_the_destination_has_confirmed(between: Between) -> None:
    between.forward(b"a", b"b", b"c")
    assert between.send() == [b"a", b"b", b"c"]
    assert between.acks() == []

    between.destination.feed(frames.confirm(1, 2, multiple=True))

    assert between.acks() == [ack(2, multiple=True)]
    assert between.ring.count == 1 and between.tracker.count == 1
    assert (between.passage.count, between.passage.n_bytes) == (3, 3)


def test_no_object_is_made_of_what_goes_on() -> None:
    between = Between()
    assert between.deliver(b"a", b"b") == []
    assert between.send() == [b"a", b"b"]


def test_without_confirms_the_source_is_told_when_it_was_sent() -> None:
    between = Between(confirms=False)
    between.forward(b"a")
    before = between.acks()
    between.send()

    assert before == [] and between.acks() == [ack(1, multiple=True)]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(
    ("exchange", "key", "target"),
    [
        (None, None, b"\x04from\x03old"), ("to", None, b"\x02to\x03old"),
        (None, "k", b"\x04from\x01k"), ("", "q", b"\x00\x01q"),
    ],
)  # fmt: skip
def test_names_are_the_messages_own_or_those_that_were_given(
    exchange: str | None, key: str | None, target: bytes, is_open: bool
) -> None:
    own = b"\x10\x00\x01"
    between = Between({"exchange": exchange, "routing_key": key, "mandatory": True})
    if not is_open:
        between.passage.close()
    between.forward(b"x", exchange="from", key="old", props=own)
    between.ring.pump(between.out, MOST)
    kinds = frames.cut(between.out.take())

    assert [payload[6:] for kind, _, payload in kinds if kind == 1] == [target + b"\x01"]
    assert [payload[12:] for kind, _, payload in kinds if kind == 2] == [own]


@pytest.mark.parametrize("is_open", [True, False])
def test_properties_are_rewritten_on_the_way(is_open: bool) -> None:
    rewriter = _engine.Rewriter(properties={"priority": 7}, drops_user_id=True)
    between = Between({"rewriter": rewriter})
    if not is_open:
        between.passage.close()
    between.forward(b"x", props=_engine.encode_properties({"type": "t", "user_id": "u"}))
    between.ring.pump(between.out, MOST)
    kinds = frames.cut(between.out.take())

    [made] = [payload[12:] for kind, _, payload in kinds if kind == 2]
    assert _engine.decode_properties(made) == {"priority": 7, "type": "t"}


@pytest.mark.parametrize("gives_back", [False, True])
@pytest.mark.parametrize("is_open", [True, False])
def test_what_may_go_no_further_is_settled(is_open: bool, gives_back: bool) -> None:
    rewriter = _engine.Rewriter(array="hops", entry={}, most=1)
    between = Between({"rewriter": rewriter, "gives_back": gives_back})
    if not is_open:
        between.passage.close()
    passed = _engine.encode_properties({"headers": {"hops": [{}]}})
    between.forward(b"", props=passed)
    between.forward(b"b")

    assert between.send() == [b"b"] and between.passage.stopped == 1
    assert (between.tracker.acked, between.tracker.rejected) == ((0, 1) if gives_back else (1, 0))
    assert between.tracker.count == 1


def test_a_body_in_pieces_goes_on_whole() -> None:
    between = Between()
    body = bytes(range(256)) * 40
    raw = frames.delivery(2, 1, body, chunk=4000)
    for at in range(0, len(raw), 1000):
        between.source.feed(raw[at : at + 1000])
    assert b"".join(between.send()) == body


def test_a_connection_that_ends_in_a_body_leaves_nothing_behind() -> None:
    between = Between()
    raw = frames.delivery(2, 1, b"x" * 5000, chunk=4000)
    between.source.feed(raw[:-100])
    between.connect_source()
    between.forward(b"y")
    assert between.send() == [b"y"] and between.ring.count == 1


def test_a_full_ring_closes_the_passage_and_order_stays() -> None:
    between = Between(capacity=2)
    waiting = between.deliver(b"a", b"b", b"c", b"d")
    assert [each.body for each in waiting] == [b"c", b"d"] and not between.passage.is_open
    assert between.passage.forward(waiting) == 0
    between.send()
    between.destination.feed(frames.confirm(1, 1))
    assert between.passage.forward(waiting) == 1
    between.send()
    between.destination.feed(frames.confirm(1, 3, multiple=True))
    assert between.passage.forward(waiting, 1) == 2
    between.passage.reopen()
    assert between.deliver(b"e") == []
    assert between.send() == [b"d", b"e"]


def test_no_more_than_is_wanted_goes_on_and_what_is_lost_counts_anew() -> None:
    between = Between({"wanted": 3})
    between.deliver(b"a", b"b")
    between.send()
    between.destination.feed(frames.confirm(1, 1))
    between.connect_source()  # "b" is not settled, and comes again
    left = between.deliver(b"b", b"c", b"d")
    assert [each.body for each in left] == [b"d"] and between.passage.is_all_taken
    assert between.passage.forward(left) == 1
    assert between.send() == [b"b", b"c"]


def test_a_budget_closes_it() -> None:
    between = Between({"budget": 1})
    left = between.deliver(b"a", b"b")
    assert [each.body for each in left] == [b"b"]
    between.passage.forward(left)
    between.passage.reopen(2)
    assert [each.body for each in between.deliver(b"c", b"d", b"e")] == [b"e"]
    assert between.send() == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize("is_open", [True, False])
def test_a_stream_goes_on_behind_what_is_settled_in_a_row(is_open: bool) -> None:
    between = Between({"is_stream": True}, max_in_flight=2000)
    if not is_open:
        between.passage.close()
    n = 1500  # more than it has room for at first

    def next_offset() -> int | None:
        return between.passage.next_offset

    for i in range(n):
        offset = _engine.encode_properties({"headers": {"x": 1, "x-stream-offset": 100 + 2 * i}})
        between.forward(b"m", props=offset)
    assert next_offset() is None
    between.send()
    between.destination.feed(frames.confirm(1, 3))
    assert next_offset() is None
    between.destination.feed(frames.confirm(1, 2, multiple=True))
    assert next_offset() == 100 + 2 * 2 + 1
    between.destination.feed(frames.confirm(1, n, multiple=True))
    assert next_offset() == 100 + 2 * (n - 1) + 1
    between.connect_source()
    assert next_offset() is None


def test_a_refusal_is_sent_again_and_the_source_keeps_it(between: Between) -> None:
    between.forward(b"a")
    between.send()
    between.destination.feed(frames.refusal(1, 1))

    assert between.acks() == [] and between.tracker.count == 1
    assert between.ring.count == 1 and between.ring.nacks == 1
    retry_in = between.ring.retry_in
    assert retry_in is not None and retry_in > 0


def test_what_no_queue_takes_is_sent_again_and_the_source_keeps_it(between: Between) -> None:
    between.forward(b"a")
    between.send()
    between.destination.feed(
        frames.method(1, "basic.return", 312, "NO_ROUTE", "", "to") + frames.content(1, b"a")
    )
    between.destination.feed(frames.confirm(1, 1))

    assert between.acks() == [] and between.tracker.count == 1
    assert between.ring.count == 1 and between.ring.unrouted == 1
    assert between.ring.retry_in is not None


def test_a_destination_that_is_lost_gets_it_again_and_the_source_is_told_once(
    between: Between,
) -> None:
    between.forward(b"a")
    between.send()
    between.ring.reset()
    between.connect_destination()
    sent = between.send()
    between.destination.feed(frames.confirm(1, 1))

    assert sent == [b"a"] and between.acks() == [ack(1, multiple=True)]


def test_a_source_that_is_lost_is_not_told_of_tags_of_before(between: Between) -> None:
    between.forward(b"a")
    between.send()
    between.connect_source()
    between.forward(b"b")
    between.destination.feed(frames.confirm(1, 1))

    assert between.acks() == [] and between.tracker.stale_acks == 1
    assert between.tracker.count == 1  # b's, whose tag is the same


def test_what_is_given_up_stays_with_the_source(between: Between) -> None:
    between.forward(b"a", b"b")
    between.send()

    assert between.ring.give_up("closed") == 2
    assert between.acks() == [] and between.tracker.count == 2


def test_answers_to_what_was_given_up_say_nothing(between: Between) -> None:
    """A peer may return or confirm what we have let go of, while the channel is still open."""
    between.forward(b"a", b"b")
    between.send()
    between.ring.give_up("closed")
    back = frames.method(1, "basic.return", 312, "NO_ROUTE", "", "to") + frames.content(1, b"a")
    for answer in (back, frames.confirm(1, 1), frames.refusal(1, 2), back, frames.confirm(1, 2)):
        between.destination.feed(answer)
    assert (between.ring.count, between.ring.in_flight, between.tracker.count) == (0, 0, 2)
    assert between.ring.oldest_flight == 0


def test_answers_to_what_a_program_gave_up_say_nothing() -> None:
    between = Between()
    between.ring.publish(b"a", mandatory=True)
    between.send()
    between.ring.give_up("closed")
    back = frames.method(1, "basic.return", 312, "NO_ROUTE", "", "q") + frames.content(1, b"a")
    between.destination.feed(back + frames.confirm(1, 1))
    assert (between.ring.count, between.ring.in_flight) == (0, 0)


def test_messages_of_an_earlier_channel_are_not_handed_over() -> None:
    between = Between()
    between.passage.close()
    old = between.deliver(b"a")
    between.connect_source()
    assert between.passage.forward(old) == 1 and between.ring.count == 0


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
