"""A shovel: one parameter at work, by the run that its destination needs.

Source: docs/shovels.md.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from lavinmq.shovel.carrying import Carrying, is_possible
from lavinmq.shovel.hook import Hook
from lavinmq.shovel.moving import Move
from lavinmq.shovel.runner import Run, Runner

if TYPE_CHECKING:
    from lavinmq.broker import Broker
    from lavinmq.shovel.source import Position
    from lavinmq.shovel.values import Values

FIGURES: Final = (
    "message_count", "bytes", "confirmed", "in_flight", "refused", "unroutable", "dead_lettered",
    "requests", "reconnects",
)  # fmt: skip
"""What is counted: messages taken from the source, their bytes, those that have arrived, those
whose end is not known, attempts that a destination refused, those that no queue took, those that
were rejected at the source, requests of a webhook, and connections that were made again."""


class Owner(Protocol):
    """Who has shovels."""

    def done(self, shovel: Shovel) -> None:
        """It has moved all that it was to."""

    def stopped(self, shovel: Shovel) -> None:
        """Its destination wants no more."""


class Shovel(Runner):
    """One parameter at work.

    Args: is_paused: whether it stays where it is; position: where it is kept how far its source
        is read; after: what has to end before; owner: is told how it ends.
    """

    __slots__ = ("_broker", "_is_carried", "_owner", "name", "position", "values", "vhost")

    def __init__(
        self, broker: Broker, vhost: str, name: str, values: Values, *, is_paused: bool,
        position: Position, after: asyncio.Task[None] | None, owner: Owner,
    ) -> None:  # fmt: skip
        super().__init__(values.delay_s, FIGURES, is_paused=is_paused, after=after)
        self.name, self.vhost, self.values = name, vhost, values
        self._broker, self.position = broker, position
        self._owner = owner
        self._is_carried = True
        """Whether messages may go from store to store."""
        self.start()

    def __str__(self) -> str:
        return f"shovel {self.name!r} of vhost {self.vhost!r}"

    def made(self) -> Run:
        """What does the work, by what it moves to."""
        values = self.values
        who = self._broker, self.vhost, self.name, values
        to = values.destination
        if isinstance(to, Hook):
            from lavinmq.shovel.posting import Posting

            return Posting(*who, to, self.position)
        if self._is_carried and is_possible(values, to):
            return Carrying(self._broker, self.name, values, to, self.position)
        return Move(*who, to, self.position)

    def has_ended(self) -> None:
        """All that was to be moved is moved."""
        self._owner.done(self)

    def was_stopped(self) -> None:
        """Its destination wants no more."""
        self._owner.stopped(self)

    def not_carried(self) -> None:
        """These queues need AMQP."""
        self._is_carried = False
