"""What a node knows of etcd does not go back, whatever comes first: an answer, or a watch."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from lavinmq.cluster.coordinator import Coordinator
from lavinmq.cluster.etcd import EtcdError, Event, Put
from tests.simulation.etcd import Client, Store


class Slow(Client):
    """An etcd whose answers take time, and which is watched."""

    def __init__(self) -> None:
        super().__init__(Store(), random.Random(0))
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        self.is_answering = asyncio.Event()

    async def get_prefix(self, prefix: str) -> tuple[list[Any], int]:
        found = await super().get_prefix(prefix)
        await self.is_answering.wait()
        return found

    async def watch(self, _: str, __: int) -> AsyncGenerator[tuple[list[Event], int]]:
        while (batch := await self.told.get()) is not None:
            yield batch
        raise EtcdError("the watch has ended")

    async def tell(self) -> None:
        """Have the watch tell of what has changed last."""
        before = self.store.ends[-2] if len(self.store.ends) > 1 else 0
        self.told.put_nowait((self.store.events[before:], self.store.revision))
        await asyncio.sleep(0.01)


async def watched(coordinator: Coordinator) -> None:
    async for _ in coordinator.changes(1):
        pass


def test_an_answer_that_is_older_than_what_a_watch_has_told_is_dropped() -> None:
    """The watch does not say it again: a node did not know for ever that it was in sync."""

    async def main() -> tuple[str, ...]:
        client: Any = Slow()
        coordinator = Coordinator(client, "c", "a", {})
        await client.transact([], [Put("c/isr", b"b")])
        watching = asyncio.create_task(watched(coordinator))
        looking = asyncio.create_task(coordinator.look())
        await asyncio.sleep(0.01)
        await client.transact([], [Put("c/isr", b"a,b")])
        await client.tell()
        assert coordinator.state.in_sync == ("a", "b")
        client.is_answering.set()
        await looking
        watching.cancel()
        return coordinator.state.in_sync

    assert asyncio.run(main()) == ("a", "b")


def test_without_a_watch_what_etcd_answers_counts() -> None:
    """Even if it has fewer revisions than before: somebody has brought it back from a copy."""

    async def main() -> tuple[str, ...]:
        client: Any = Slow()
        client.is_answering.set()
        coordinator = Coordinator(client, "c", "a", {})
        watching = asyncio.create_task(watched(coordinator))
        await client.transact([], [Put("c/isr", b"a,b")])
        await client.transact([], [Put("c/isr", b"a,b,c")])
        await client.tell()
        assert coordinator.state.in_sync == ("a", "b", "c")
        client.told.put_nowait(None)
        with pytest.raises(EtcdError):
            await watching
        client.store = Store()
        await client.transact([], [Put("c/isr", b"a")])
        await coordinator.look()
        return coordinator.state.in_sync

    assert asyncio.run(main()) == ("a",)
