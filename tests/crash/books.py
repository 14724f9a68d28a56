"""What must be in the queues of a broker after a crash, by the books of its clients.

*confirmed ⊆ recovered ⊆ published*, each message once, in the order of its publisher, and nothing
whose ack was answered. Knows nothing of files or kills.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.crash.load import Consumer, Message, Stream, messages_in

END_OF_TIME_NS = 1 << 63


@dataclass(slots=True)
class Books:
    """All that clients did to a broker, over any number of its lives."""

    streams: dict[str, Stream] = field(default_factory=dict)
    acknowledged: dict[Message, int] = field(default_factory=dict)
    settled: set[Message] = field(default_factory=set)

    def add(self, streams: Iterable[Stream], consumers: Iterable[Consumer] = ()) -> None:
        """Take over what clients that have ended did."""
        self.streams.update((stream.name, stream) for stream in streams)
        for consumer in consumers:
            self.acknowledged |= consumer.acknowledged
            self.settled |= consumer.settled

    def purged(self, queue: str) -> None:
        """All that was in this queue was removed, and that was answered."""
        for stream in self.streams.values():
            if stream.queue == queue:
                messages = [(stream.name, number) for number in range(1, stream.published + 1)]
                self.acknowledged.update((message, 0) for message in messages)
                self.settled.update(messages)

    def check(
        self,
        found: Mapping[str, list[Message]],
        *,
        before_ns: int = END_OF_TIME_NS,
        acks_may_be_lost: bool = False,
    ) -> None:
        """Compare with the messages found in each queue, in their order.

        Args: `before_ns`, when the crash was: later confirms and acks did not happen;
        `acks_may_be_lost`, after a loss of power, which acks are not synced against.
        """
        for queue, messages in found.items():
            numbers: dict[str, list[int]] = defaultdict(list)
            for name, number in messages:
                numbers[name].append(number)
            for name, each in numbers.items():
                self._check_stream(queue, name, each)
            if not acks_may_be_lost:
                back = self.settled.intersection(messages)
                assert not back, f"{queue}: acked, answered, and back: {_some(back)}"
        check_confirmed(self.streams.values(), self.acknowledged, found, before_ns)

    def _check_stream(self, queue: str, name: str, numbers: list[int]) -> None:
        assert name in self.streams, f"{queue}: {name} was never published"
        stream = self.streams[name]
        assert stream.queue == queue, f"{name} was published to {stream.queue}, found in {queue}"
        assert len(numbers) == len(set(numbers)), f"{name}: a message twice: {numbers}"
        assert numbers == sorted(numbers), f"{name}: out of order: {numbers}"
        assert 1 <= numbers[0] <= numbers[-1] <= stream.published, f"{name}: never published"


def check_confirmed(
    streams: Iterable[Stream],
    acknowledged: Mapping[Message, int],
    found: Mapping[str, list[Message]],
    before_ns: int,
) -> None:
    """What was confirmed before a time, and not acknowledged before, is somewhere."""
    there = set().union(*found.values())
    for stream in streams:
        missing = [
            message
            for number in range(1, stream.confirmed_before(before_ns) + 1)
            if (message := (stream.name, number)) not in there
            and acknowledged.get(message, END_OF_TIME_NS) >= before_ns
        ]
        assert not missing, f"confirmed, not acked, and lost: {_some(missing)}"


def _some(messages: Iterable[Message]) -> str:
    ordered = sorted(messages)
    return f"{len(ordered)} messages, {ordered[:5]} to {ordered[-1]}"


def messages_found(
    port: int, queues: Iterable[str], *, count_is_exact: bool = True
) -> dict[str, list[Message]]:
    """Return the messages of each queue, in their order, leaving them there."""
    return {queue: messages_in(port, queue, count_is_exact=count_is_exact) for queue in queues}
