"""Where a consumer of a stream goes on: no message is passed over, whatever was given back."""

from __future__ import annotations

import heapq

from hypothesis import given
from hypothesis import strategies as st

from lavinmq.client.stream_place import StreamPlace

MOST = 4


class Stream:
    """A broker that sends what was given back before anything new, to one consumer."""

    def __init__(self) -> None:
        self.place = StreamPlace()
        self.new, self.tag = 0, 0
        self.again: list[int] = []
        self.unsettled: dict[int, int] = {}
        self.told: list[int] = []
        self.missing: set[int] = set()
        self.lowest_open = 1

    def deliver(self) -> None:
        if len(self.unsettled) == MOST:
            return
        if self.again:
            offset = heapq.heappop(self.again)
        else:
            offset, self.new = self.new, self.new + 1
        self.tag += 1
        self.unsettled[self.tag] = offset
        self.missing.add(offset)
        self.place.deliver(self.tag, offset)

    def settle(self, which: int, *, is_given_back: bool) -> None:
        if not self.unsettled:
            return
        tag = sorted(self.unsettled)[which % len(self.unsettled)]
        offset = self.unsettled.pop(tag)
        if is_given_back:
            heapq.heappush(self.again, offset)
            self.told.append(tag)
        else:
            self.missing.discard(offset)

    def note(self) -> None:
        up_to = min(self.unsettled, default=self.tag + 1) - 1
        self.place.settle(up_to, self.told, MOST)
        self.told = []


STEPS = st.lists(
    st.tuples(st.sampled_from(["deliver", "ack", "give back", "note"]), st.integers(0, MOST)),
    max_size=200,
)


@given(STEPS)
def test_nothing_is_passed_over(steps: list[tuple[str, int]]) -> None:
    stream = Stream()
    for what, which in steps:
        if what == "deliver":
            stream.deliver()
        elif what == "note":
            stream.note()
        else:
            stream.settle(which, is_given_back=what == "give back")
    stream.note()

    goes_on = stream.place.next_offset or 0
    assert all(goes_on <= offset for offset in stream.missing)
    if not stream.unsettled and not stream.missing:
        assert goes_on == stream.new, "what is settled does not come again"


def test_what_a_broker_never_sends_again_is_not_waited_for() -> None:
    """RabbitMQ takes a refusal of a stream's message for an acknowledgement."""
    place = StreamPlace()
    for tag in range(1, 21):
        place.deliver(tag, tag + 99)
        place.settle(tag, [tag] if tag == 3 else [], MOST)
        assert place.next_offset == (102 if 3 <= tag <= 3 + MOST else 100 + tag)
