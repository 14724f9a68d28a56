"""Which positions belong to which epoch: whether what a follower has is a beginning of ours.

In each epoch one node leads, and what it changes has positions that nobody else gives in that
epoch. A new leader goes on where it was; so whoever was further in the epoch before has something
that is in no history but its own. Source: docs/clustering.md.
"""

from __future__ import annotations

from typing import Any, Final

from lavinmq.cluster.frames import PeerError

MOST: Final = 1000


class History:
    """Epochs in rising order, each with the position at which it began."""

    def __init__(self, epochs: list[tuple[int, int]] | None = None) -> None:
        self.epochs = epochs or []

    @property
    def epoch(self) -> int:
        """The last one; 0: there is none."""
        return self.epochs[-1][0] if self.epochs else 0

    def begin(self, epoch: int, position: int) -> None:
        """From a position on it is another epoch; of those that began behind it there is nothing
        here."""
        known = [each for each in self.epochs if each[1] <= position]
        self.epochs = [*known[-MOST:], (epoch, position)]

    def at(self, position: int) -> int:
        """The epoch of the last change before a position; 0: nobody knows."""
        begun = [epoch for epoch, start in self.epochs if start < position]
        return begun[-1] if begun else next((epoch for epoch, _ in self.epochs), 0)

    def has(self, epoch: int, position: int, head: int) -> bool:
        """Whether what somebody has who came to a position in an epoch is the beginning of what we
        have. Args: head: up to where we have it."""
        ends = [start for _, start in self.epochs[1:]]
        for (known, _), end in zip(self.epochs, [*ends, head], strict=False):
            if known == epoch:
                return position <= end
        return False

    def to_json(self) -> list[list[int]]:
        """As it is sent and kept."""
        return [list(each) for each in self.epochs]

    @classmethod
    def of_json(cls, value: Any) -> History:
        """What was sent or kept. Raises: PeerError."""
        if not isinstance(value, list) or len(value) > MOST + 1:
            raise PeerError("no history of epochs")
        epochs: list[tuple[int, int]] = []
        for each in value:
            if not (
                isinstance(each, list) and len(each) == 2
                and all(isinstance(n, int) and n >= 0 for n in each)
                and (not epochs or (each[0] > epochs[-1][0] and each[1] >= epochs[-1][1]))
            ):  # fmt: skip
                raise PeerError("no history of epochs")
            epochs.append((each[0], each[1]))
        return cls(epochs)
