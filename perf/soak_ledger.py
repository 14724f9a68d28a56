"""The books of a soak run: what was published, confirmed, delivered and settled, and what is wrong.

Each publishing channel is a stream whose messages are numbered from 1; the body says which message
it is, so that consumers need no properties. All threads write here. What is kept per message is
dropped once it is settled, so the books of a long run stay small.

A confirmed message must be settled in the end; one that was seen before must come with the
redelivered flag; one that was surely settled, or never committed, must not come at all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

PATTERN = bytes(range(256))
MOST_FAILURES = 100
VOID = 0
"""Number of a message that is never committed."""


class Message(NamedTuple):
    """Which message a body is: the stream's id and the number there."""

    stream: int
    number: int


class Numbers:
    """A set of numbers from 1, small when they come nearly in order: a floor and what is above."""

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return 0 < number <= self._floor or number in self._above

    def add(self, number: int) -> None:
        """Put a number in; it may be there already."""
        if number <= self._floor:
            return
        self._above.add(number)
        while self._floor + 1 in self._above:
            self._floor += 1
            self._above.remove(self._floor)

    def add_up_to(self, number: int) -> None:
        """Put all numbers from 1 in."""
        self._floor = max(self._floor, number)
        self._above = {each for each in self._above if each > self._floor}
        self.add(self._floor)

    def missing_from(self, other: Numbers) -> list[int]:
        """Return the numbers that are here and not in `other`, in order."""
        candidates = [*range(other._floor + 1, self._floor + 1), *sorted(self._above)]
        return [number for number in candidates if number not in other]


@dataclass(slots=True)
class Stream:
    """The messages of one publishing channel; `is_audited` when none of them may disappear."""

    queue: str
    is_audited: bool
    published: int = 0
    confirmed: Numbers = field(default_factory=Numbers)
    seen: Numbers = field(default_factory=Numbers)
    settled: Numbers = field(default_factory=Numbers)
    """Ack or reject was sent; it may have been lost with the connection."""
    gone: Numbers = field(default_factory=Numbers)
    """The broker answered something behind the ack or reject: it must have been carried out."""


def body_of(message: Message, size: int) -> bytes:
    """Return a body of about `size` bytes that says which message it is."""
    head = b"%d:%d:%d:" % (message.stream, message.number, size)
    repeats = size // len(PATTERN) + 2
    start = message.number % len(PATTERN)
    return head + (PATTERN * repeats)[start : start + size]


def message_of(body: bytes) -> Message:
    """Return which message a body is. Raises ValueError when it is not as it was published."""
    stream, number, size, _ = body.split(b":", 3)
    message = Message(int(stream), int(number))
    if body != body_of(message, int(size)):
        raise ValueError(f"the body of {message} was changed")
    return message


class Ledger:
    """All streams, under one lock; `failures` are sentences, at most a hundred."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        self.failures: list[str] = []
        self.totals: Counter[str] = Counter()

    def open_stream(self, queue: str, *, is_audited: bool) -> int:
        """Return the id of a new stream into `queue`."""
        with self._lock:
            self._streams.append(Stream(queue, is_audited))
            return len(self._streams) - 1

    def publish(self, stream: int, count: int) -> range:
        """Return the numbers of the next messages; call it before they are sent."""
        with self._lock:
            books = self._streams[stream]
            first = books.published + 1
            books.published += count
            self.totals["published"] += count
            return range(first, first + count)

    def confirm(self, stream: int, number: int, *, multiple: bool) -> None:
        """Note a confirm, of all numbers up to this one if `multiple`."""
        with self._lock:
            books = self._streams[stream]
            self._expect(number <= books.published, f"stream {stream}: confirm of {number}")
            (books.confirmed.add_up_to if multiple else books.confirmed.add)(number)
            self.totals["confirms"] += 1

    def deliver(self, body: bytes, *, is_redelivered: bool, queue: str) -> Message | None:
        """Note a delivery; None when the body is none of ours, which is a failure."""
        with self._lock:
            self.totals["delivered"] += 1
            self.totals["redelivered"] += is_redelivered
            try:
                message = message_of(body)
                books = self._streams[message.stream]
            except (ValueError, IndexError) as error:
                self._expect(False, f"{queue}: {error}: {body[:60]!r}")
                return None
            self._check(message, books, is_redelivered, queue)
            books.seen.add(message.number)
            return message

    def settle(self, messages: Iterable[Message]) -> None:
        """Note that ack or reject is about to be sent."""
        with self._lock:
            for stream, number in messages:
                books = self._streams[stream]
                if number not in books.settled:
                    books.settled.add(number)
                    self.totals["settled"] += 1

    def vanish(self, messages: Iterable[Message]) -> None:
        """Note that what `settle` was called for has surely reached the broker."""
        with self._lock:
            for stream, number in messages:
                self._streams[stream].gone.add(number)

    def fail(self, what: str) -> None:
        """Note a failure."""
        with self._lock:
            self._expect(False, what)

    def lost(self) -> dict[int, list[int]]:
        """Return the confirmed messages that are not settled, by stream."""
        with self._lock:
            lost = {
                stream: books.confirmed.missing_from(books.settled)
                for stream, books in enumerate(self._streams)
                if books.is_audited
            }
        return {stream: numbers for stream, numbers in lost.items() if numbers}

    def close(self) -> None:
        """Note what is missing, after everything has been drained."""
        for stream, numbers in self.lost().items():
            self.totals["lost"] += len(numbers)
            queue = self._streams[stream].queue
            self.fail(
                f"{queue}: lost {len(numbers)} confirmed messages of stream {stream}, "
                f"of {self._streams[stream].published}, the first ones {numbers[:5]}"
            )

    def _check(self, message: Message, books: Stream, is_redelivered: bool, queue: str) -> None:
        number = message.number
        self._expect(number != VOID, f"{queue}: {message} was never committed")
        self._expect(books.queue == queue, f"{queue}: {message} belongs to {books.queue}")
        self._expect(number <= books.published, f"{queue}: {message} was never published")
        self._expect(number not in books.gone, f"{queue}: {message} came after it was settled")
        self._expect(
            is_redelivered or number not in books.seen,
            f"{queue}: {message} came again without the redelivered flag",
        )

    def _expect(self, condition: bool, what: str) -> None:
        if not condition:
            self.totals["failures"] += 1
            if len(self.failures) < MOST_FAILURES:
                self.failures.append(what)
