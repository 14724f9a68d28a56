"""A federated queue that is gone takes nothing from its upstream."""

from __future__ import annotations

import asyncio

import pytest

from lavinmq.client import Client
from lavinmq.federation import queue_link
from lavinmq.federation.hops import Here
from lavinmq.federation.queue_link import QueueLink, QueueRun
from lavinmq.federation.upstreams import parse
from lavinmq.vhost.queue import Queue
from tests.support.inside import Inside, inside

COUNT = 20


class Unaware(QueueRun):
    """A run that has not heard yet that its queue is deleted: another one stands for it."""

    __slots__ = ()

    def _queue(self) -> Queue:
        vhost = self.broker.vhosts["/"]
        found: Queue = vhost.queues["stand-in"]
        return found


async def run_until_it_hears(own: Inside) -> dict[str, int]:
    """Returns: its figures then."""
    upstream = parse("u", {"uri": f"amqp://127.0.0.1:{own.port}", "queue": "source"}, "/")
    here = Here("here", "/", "", "id")
    link = QueueLink(own.inner, here, "queue", "gone", upstream, is_paused=True, after=None)
    run = Unaware(link, own.inner)
    task = asyncio.get_running_loop().create_task(run.run())
    try:
        async with asyncio.timeout(30):
            while not (run.figures()["refused"] or run.figures()["confirmed"]):
                await asyncio.sleep(0.01)
        return run.figures()
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_what_comes_for_a_queue_that_is_deleted_stays_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_link, "has_consumers", lambda _: True)
    with inside() as own:
        with Client(f"amqp://127.0.0.1:{own.port}") as client:
            for name in ("source", "stand-in"):
                client.queue(name)
            client.producer("source").publish_batch([b"x"] * COUNT).result(30)
        figures = own.submit(run_until_it_hears, own).result(60)
        assert figures["confirmed"] == 0
        assert own.queue("source").core.ready == COUNT
