"""Exchanges, queues and bindings by the calls of both fronts: made, asked about, taken away, and
after a lost connection those that are left."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from lavinmq.client import AsyncClient, Client, Receipt
from lavinmq.client.errors import NotFound, PreconditionFailed
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker
from tests.support.fault_proxy import FaultProxy

QUICK: dict[str, Any] = {"reconnect_initial_delay": 0.01, "rpc_timeout": 10}


async def done(found: Any) -> Any:
    """What a call returns, of either front."""
    is_receipt = isinstance(found, Receipt)  # whose end is waited for elsewhere
    return await found if inspect.isawaitable(found) and not is_receipt else found


async def walk(client: Any, proxy: FaultProxy, names: dict[str, str]) -> None:
    """Every call, and what the broker makes of it."""
    top, down, all_, by, queue = (names[each] for each in ("top", "down", "all", "by", "queue"))
    await done(client.topic_exchange(top))
    await done(client.direct_exchange(down, auto_delete=False))
    await done(client.fanout_exchange(all_, durable=False))
    await done(client.headers_exchange(by, arguments={"x-note": "n"}))
    info = await done(client.queue(queue, arguments={"x-max-length": 100}))
    assert info == (queue, 0, 0)
    await done(client.exchange_bind(down, top, "a.#"))
    await done(client.bind(queue, down, "a.b"))
    await done(client.bind(queue, all_))
    await done(client.bind(queue, by, arguments={"x-match": "all", "k": 1}))
    await done(client.exchange(top, "topic", passive=True))
    with pytest.raises(PreconditionFailed):
        await done(client.exchange(top, "direct"))
    with pytest.raises(NotFound):
        await done(client.exchange("nobody made this", passive=True))

    producer = await done(client.producer(exchange=top, routing_key="a.b"))

    async def arrived() -> int:
        """How many of one message by each way come."""
        ways: list[dict[str, Any]] = [
            {}, {"exchange": all_}, {"exchange": by, "headers": {"k": 1}}
        ]  # fmt: skip
        for way in ways:
            receipt = await done(producer.publish(b"x", **way))
            await asyncio.to_thread(receipt.result, 10) if isinstance(
                client, Client
            ) else await receipt
        count = (await done(client.queue(queue, passive=True))).message_count
        assert await done(client.purge(queue)) == count
        return int(count)

    assert await arrived() == 3
    await done(client.exchange_unbind(down, top, "a.#"))
    assert await arrived() == 2
    await done(client.unbind(queue, by, arguments={"x-match": "all", "k": 1}))
    await done(client.delete_exchange(by, if_unused=True))
    await done(client.exchange_bind(down, top, "a.b"))

    before = client.metrics().reconnects
    proxy.cut()
    while client.metrics().reconnects == before:
        await asyncio.sleep(0.01)
    with pytest.raises(NotFound):
        await done(client.exchange(by, passive=True))
    receipt = await done(producer.publish(b"kept"))
    await asyncio.to_thread(receipt.result, 10) if isinstance(client, Client) else await receipt
    message = await done(client.get(queue))
    assert message.body == b"kept" and await done(client.get(queue)) is None

    with pytest.raises(PreconditionFailed):
        await done(client.delete_exchange(down, if_unused=True))
    assert await done(client.delete_queue(queue, if_empty=True)) == 0
    for name in (top, down, all_):
        await done(client.delete_exchange(name))


@pytest.mark.parametrize("front", ["sync", "asyncio"])
def test_topology_is_made_asked_about_and_taken_away(
    proxy: FaultProxy, broker: Broker, unique: UniqueName, front: str
) -> None:
    names = {each: unique(each) for each in ("top", "down", "all", "by", "queue")}

    async def main() -> None:
        async with AsyncClient(proxy.url, **QUICK) as client:
            await walk(client, proxy, names)

    if front == "asyncio":
        asyncio.run(main(), debug=True)
        return
    with Client(proxy.url, **QUICK) as client:
        asyncio.run(walk(client, proxy, names))
