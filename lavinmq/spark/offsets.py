"""Positions in streams, as Spark keeps them: JSON, what was lost, how far one batch goes.

A value is the next offset to read; a range is [start, end). Spark writes the JSON to the checkpoint
for each batch, so it is small, sorted, and knows the identity of each stream: one that was deleted
and made anew begins again at 1, and its old position means nothing. It knows the epoch, too: a
stream that was cut by a loss of power gives the same offsets to other messages. Pure: no broker, no
clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from lavinmq.files.stream_epochs import Epoch, divergence

EARLIEST = -2
LATEST = -1
VERSION = 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a stream holds: the offsets [first, end), and who it is, if the broker tells."""

    first: int
    end: int
    created: str | None = None
    epochs: tuple[Epoch, ...] = ()

    @property
    def epoch(self) -> int | None:
        """The epoch it is in now."""
        return self.epochs[-1][0] if self.epochs else None

    def divergence(self, offset: int, epoch: int | None) -> Epoch | None:
        """Return the epoch that gave offsets anew of which a reader at `offset` had some."""
        return None if epoch is None else divergence(self.epochs, epoch, offset)

    def resolve(self, offset: int) -> int:
        """Return the offset meant, which may be the earliest or the latest."""
        return {EARLIEST: self.first, LATEST: self.end}.get(offset, offset)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stream: the offsets [first, end) in so many bytes."""

    first: int
    end: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """The next offset of each stream, and identity and epoch of those that have them."""

    next: Mapping[str, int]
    created: Mapping[str, str] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, document: object) -> Self:
        """Return what the checkpoint says. Raises ValueError for what is no position of ours."""
        if not isinstance(document, dict) or "v" not in document:
            raise ValueError("the checkpoint's offsets are not those of the format lavinmq")
        if document["v"] != VERSION:
            raise ValueError(
                f"the checkpoint's offsets are of version {document['v']}, this release of lavinmq "
                f"reads version {VERSION}"
            )
        offsets, created = document.get("offsets"), document.get("created", {})
        epochs = document.get("epochs", {})
        if (
            not isinstance(offsets, dict)
            or not isinstance(created, dict)
            or not isinstance(epochs, dict)
            or not all(
                type(value) is int and value >= 0 for value in (*offsets.values(), *epochs.values())
            )
        ):
            raise ValueError("the checkpoint's offsets are damaged")
        return cls(offsets, {queue: str(value) for queue, value in created.items()}, epochs)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object; equal offsets give equal text."""
        epochs = {"epochs": dict(sorted(self.epochs.items()))} if self.epochs else {}
        return {
            "v": VERSION,
            "offsets": dict(sorted(self.next.items())),
            "created": dict(sorted(self.created.items())),
            **epochs,
        }

    def same_stream(self, queue: str, other: Mapping[str, str]) -> bool:
        """Tell whether the stream is still the one it was; so is one that nothing is known of."""
        mine, theirs = self.created.get(queue), other.get(queue)
        return mine is None or theirs is None or mine == theirs


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages that were to be read and are gone.

    `resume` is where reading can go on when the old position means nothing any more; None when it
    does, or when there is nothing left to read.
    """

    queue: str
    reason: str
    resume: int | None = None

    def __str__(self) -> str:
        return f"stream {self.queue!r}: {self.reason}"


def loss(
    queue: str, start: int, created: str | None, bounds: Bounds | None, epoch: int | None = None
) -> Loss | None:
    """Return what is lost of a stream that was to be read from `start` on, or None.

    `created` is the identity it had, `epoch` the one in which it was read up to there; `bounds`
    what it holds now, None when it is not there.
    """
    if bounds is None:
        return Loss(queue, f"it is gone; it was read up to offset {start}")
    if created is not None and bounds.created is not None and created != bounds.created:
        return Loss(
            queue,
            f"it was deleted and made anew; the old one was read up to offset {start}, "
            f"the new one has {bounds.first} to {bounds.end}",
            bounds.first,
        )
    other = bounds.divergence(start, epoch)
    if other is not None:
        return Loss(queue, changed(start, epoch, other), max(bounds.first, min(start, other[1])))
    if start > bounds.end:
        where = f"it was read up to offset {start} and now ends at {bounds.end}"
        known = created is not None and bounds.created is not None
        return Loss(queue, where, bounds.end if known else bounds.first)
    # The first message has offset 1: to begin at 0 loses nothing.
    missing = bounds.first - max(start, 1)
    if missing > 0:
        reason = f"offsets {start} to {bounds.first - 1} are gone, {missing} messages"
        return Loss(queue, reason)
    return None


def changed(offset: int, epoch: int | None, other: Epoch) -> str:
    """Say that offsets were given anew after they had been read, up to `offset` in `epoch`."""
    number, first = other
    return (
        f"it was read up to offset {offset} in epoch {epoch}, and epoch {number} begins at offset "
        f"{first}: from there on the broker has lost what was read, and others have the offsets"
    )


def advance(
    start: Offsets,
    bounds: Mapping[str, Bounds],
    ends: Mapping[str, int],
    resumed: Mapping[str, int],
) -> Offsets:
    """Return the end of a batch that starts at `start`.

    Args: `bounds` of the streams there are; `ends` how far the batch goes in each; `resumed` where
    reading goes on in those that were made anew or lost their end. A stream that is new to the
    query, or resumed, only gets its position: read it from there in the next batch, so that
    both ends of every range are in the checkpoint. A stream that is gone keeps its last value.
    """
    positions, created, epochs = dict(start.next), dict(start.created), dict(start.epochs)
    for queue, held in bounds.items():
        if queue in resumed:
            positions[queue] = resumed[queue]
        elif queue not in start.next:
            positions[queue] = held.first
        else:
            positions[queue] = max(start.next[queue], ends.get(queue, 0))
        if held.created is not None:
            created[queue] = held.created
        if held.epoch is not None:
            epochs[queue] = held.epoch
    return Offsets(positions, created, epochs)


def ranges(start: Offsets, end: Offsets) -> dict[str, tuple[int, int]]:
    """Return the range [start, end) of each stream that has anything between the two."""
    found = {}
    for queue, last in sorted(end.next.items()):
        first = start.next.get(queue)
        if first is not None and first < last and start.same_stream(queue, end.created):
            found[queue] = (first, last)
    return found


def share(backlogs: Mapping[str, int], limit: int) -> dict[str, int]:
    """Return how much of `limit` each stream gets: by its backlog, and something if possible.

    The sum is `limit`, or all there is if that is less; the same input gives the same shares.
    """
    waiting = {queue: n for queue, n in sorted(backlogs.items()) if n > 0}
    total = sum(waiting.values())
    if total <= limit:
        return waiting
    # One for each first: a small backlog next to a large one would round to nothing for ever.
    by_size = sorted(waiting, key=lambda queue: (-waiting[queue], queue))
    shares = dict.fromkeys(by_size[:limit], 1)
    spare = limit - len(shares)
    rest = total - len(waiting)
    for queue in shares:
        shares[queue] += (waiting[queue] - 1) * spare // rest if rest else 0
    left = limit - sum(shares.values())
    for queue in shares:
        extra = min(left, waiting[queue] - shares[queue])
        shares[queue] += extra
        left -= extra
    return shares


def bytes_between(segments: Sequence[Segment], start: int, end: int) -> int:
    """Return about how many bytes the range has; messages of a segment count as equally large."""
    total = 0
    for segment in segments:
        n_rows = min(end, segment.end) - max(start, segment.first)
        if n_rows > 0:
            total += segment.n_bytes * n_rows // (segment.end - segment.first)
    return total


def end_within_bytes(segments: Sequence[Segment], start: int, end: int, limit: int) -> int:
    """Return how far a range of about `limit` bytes goes; at least one message, if there is any."""
    position = start
    for segment in segments:
        n_rows = min(end, segment.end) - max(position, segment.first)
        if n_rows <= 0:
            continue
        position = max(position, segment.first)
        row_bytes = max(1, segment.n_bytes // (segment.end - segment.first))
        n_fitting = limit // row_bytes
        if n_fitting < n_rows:
            return max(position + n_fitting, min(start + 1, end))
        position += n_rows
        limit -= n_rows * row_bytes
    # What no segment tells of counts as nothing.
    return end
