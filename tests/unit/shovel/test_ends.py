"""How runs end that are told to twice: whole, and before anything else begins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.shovel import values
from lavinmq.shovel.carrying import Carrying
from lavinmq.shovel.hook import Hook
from lavinmq.shovel.moving import Move
from lavinmq.shovel.posting import Posting
from lavinmq.shovel.source import Source


def made(kind: str) -> Any:
    """A run that connects to nobody."""
    to = "http://h/" if kind == "posting" else "amqp://"
    queue = {} if kind == "posting" else {"dest-queue": "to"}
    found = values.parse({"src-uri": "amqp://", "src-queue": "from", "dest-uri": to, **queue}, "/")
    broker: Any = SimpleNamespace(rounds=None, sockets=None, is_serving=False, node_name="here")
    if isinstance(found.destination, Hook):
        return Posting(broker, "/", "s", found, found.destination, None)
    if kind == "carrying":
        return Carrying(broker, "s", found, found.destination, None)
    return Move(broker, "/", "s", found, found.destination, None)


@pytest.mark.parametrize("kind", ["carrying", "moving", "posting"])
def test_who_ends_a_run_twice_has_it_end_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long at an end: the disk, or a peer. The source is closed all the same."""

    async def main() -> None:
        run = made(kind)
        source, closed = run._source, []
        is_slow = asyncio.Event()

        async def slowly(_: Any = None) -> None:
            async with asyncio.timeout(5):
                await is_slow.wait()

        async def close(_: Source) -> None:
            closed.append(True)

        monkeypatch.setattr(Source, "stop", slowly)
        monkeypatch.setattr(Source, "close", close)
        if kind == "carrying":
            run._mover = SimpleNamespace(close=lambda: None, counts=lambda: (0, 0, 0))
            run._note_last = slowly
        task = asyncio.get_running_loop().create_task(run.run())
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done() and not closed
        is_slow.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == [True]
        for client in (source.client, getattr(run, "_destination", None)):
            if client is not None:
                await client.close()

    asyncio.run(main())
