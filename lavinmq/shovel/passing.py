"""Messages of a consumer go on to a producer by a passage of the client, in compiled code.

Python sees only those that cannot go on at once, because the producer's ring is full or enough have
come for now: it hands them over in their order, and lets the others through again. Both shovels and
links of federation pass messages so. Source: docs/shovels.md, decision 0108.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from lavinmq.client.values import PublishMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from lavinmq.client._engine import Message
    from lavinmq.client.aio import AsyncConsumer, AsyncProducer
    from lavinmq.shovel.connecting import PlaceClient

ROOM_S: Final = 0.005
"""Between two looks whether a full ring has room."""


async def open_producer(
    client: PlaceClient, exchange: str, key: str, ack_mode: str
) -> AsyncProducer:
    """A producer that holds what a consumer may be given twice: over a lost connection.

    An exchange that goes missing is found by the next publish. Raises: why there is none.
    """
    return await client.producer(
        exchange=exchange, routing_key=key, declare=False,
        mode=PublishMode.CONFIRM if ack_mode == "on-confirm" else PublishMode.FIRE_AND_FORGET,
    )  # fmt: skip


async def hand_over(
    consumer: AsyncConsumer, producer: AsyncProducer, messages: list[Message],
    budget: Callable[[], int] | None = None,
) -> None:  # fmt: skip
    """Hand over messages that could not go on at once, then open the passage.

    Args: budget: how many may go on before it closes; None: all. Raises: why the producer has
    ended.
    """
    passage = consumer.passage
    assert passage is not None
    at = 0
    while True:
        at = passage.forward(messages, at)
        if at >= len(messages):
            break
        await asyncio.sleep(ROOM_S)
        if producer._error is not None:
            raise producer._error
    if not consumer.has_arrived:
        passage.reopen(None if budget is None else budget())


def refusal(producer: AsyncProducer | None) -> str:
    """Why messages are sent again, as long as some are to be; else empty."""
    if producer is None or producer.retry_in is None:
        return ""
    return "the destination refuses messages, or no queue there takes them: they are sent again"


class Trouble:
    """Why messages do not go on; forgotten once they do."""

    __slots__ = ("_count", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._count = 0

    def say(self, error: Exception, count: int) -> None:
        """Something failed. Args: count: messages that have gone on so far."""
        self._text, self._count = str(error) or type(error).__name__, count

    def text(self, is_running: bool, count: int) -> str:
        """The reason; empty when messages go on."""
        if self._text and is_running and count > self._count:
            self._text = ""
        return self._text
