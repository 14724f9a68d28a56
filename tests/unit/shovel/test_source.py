"""A source that is told to stop while it begins: messages may have gone on already."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.client.awaiting import Opening
from lavinmq.shovel import source as sources
from lavinmq.shovel import values
from lavinmq.shovel.source import Source


class Consumer:
    """The broker has heard of it, and answers when it is told to."""

    passage = None
    is_bounded = subscribed = is_given_up = False

    def __init__(self) -> None:
        self.is_asked, self.answers = asyncio.Event(), asyncio.Event()
        self.n_pauses = 0

    async def open(self) -> None:
        self.is_asked.set()
        try:
            await self.answers.wait()
        except asyncio.CancelledError:
            self.is_given_up = True
            raise
        self.subscribed = True

    async def pause(self) -> None:
        self.n_pauses += 1

    def on_cancel(self, _: object) -> None:
        """Nobody cancels it."""


def made(consumer: Consumer) -> Source:
    """A source whose broker has that consumer."""
    value = {"src-uri": "amqp://", "src-queue": "from", "dest-uri": "amqp://", "dest-queue": "to"}
    broker: Any = SimpleNamespace(rounds=None, sockets=None, is_serving=False)
    source: Any = Source(broker, "s", values.parse(value, "/"), lambda _: None, None)
    source.client = SimpleNamespace(consumer=lambda *_, **__: Opening(consumer))
    found: Source = source
    return found


async def stopped_while_it_begins(*, is_answered: bool) -> Consumer:
    consumer = Consumer()
    source = made(consumer)
    opening = asyncio.ensure_future(source.open("from"))
    await consumer.is_asked.wait()
    opening.cancel()
    await asyncio.sleep(0)
    opening.cancel()  # paused, then deleted
    if is_answered:
        consumer.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await source.stop()
    return consumer


def test_what_has_begun_is_paused_and_not_given_up() -> None:
    """Its channel was closed, and what had gone on by then came again, by the next run."""
    consumer = asyncio.run(stopped_while_it_begins(is_answered=True))

    assert (consumer.is_given_up, consumer.subscribed, consumer.n_pauses) == (False, True, 1)


def test_a_broker_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CLOSE_S", 0.05)

    consumer = asyncio.run(stopped_while_it_begins(is_answered=False))

    assert (consumer.is_given_up, consumer.n_pauses) == (True, 0)
