"""What the upstream of an exchange hears of bindings here: what somebody asks for stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lavinmq.auth.users import User, UserStore
from lavinmq.federation.exchange_link import ExchangeLink, ExchangeRun
from lavinmq.federation.hops import Here
from lavinmq.federation.upstreams import parse
from lavinmq.fieldtable import EMPTY
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.vhost import VHost
from tests.support.core import Bench, FakeEvents

MANY = 20_000
KEPT = "key.0"
"""What goes last of very many."""


class Client:
    """As much of a connection as the virtual host asks for."""

    def __init__(self, user: User) -> None:
        self.name = "client"
        self.user = user
        self.exclusive_queues: set[Queue] = set()


class Upstream:
    """Stands for the other broker, and a channel to it: what the internal exchange is bound by."""

    def __init__(self) -> None:
        self.keys: set[str] = set()

    def send(self, name: str, *values: Any) -> None:
        """Bind or unbind."""
        key = values[3]
        assert (name == "exchange.bind") == (key not in self.keys)
        self.keys ^= {key}

    async def call(self, *_: Any) -> None:
        """Anything else is done."""
        await asyncio.sleep(0)

    async def close(self) -> None:
        """Nothing is held."""


class Run(ExchangeRun):
    """Without connections."""

    def __init__(self, link: ExchangeLink, vhost: VHost, upstream: Upstream) -> None:
        super().__init__(link, SimpleNamespace(vhosts={"/": vhost}, rounds=None, sockets=None))
        self.chan: Any = upstream

    async def _declare_queue(self, exchange: Any) -> None:
        await asyncio.sleep(0)

    async def open_producer(self, exchange: str, key: str) -> Any:
        """Nothing is brought."""

    async def open_consumer(self, *_: Any, **__: Any) -> Any:
        """Nothing comes."""

    async def _make_internal(self) -> Any:
        return self.chan

    async def _channel(self) -> Any:
        return self.chan

    async def mirrored(self) -> None:
        """All that has happened is told."""
        while self._following is not None:
            await asyncio.sleep(0)


@pytest.fixture
def events() -> FakeEvents:
    return FakeEvents()


@pytest.fixture
def vhost(tmp_path: Path, events: FakeEvents) -> Iterator[VHost]:
    with closing(Bench(tmp_path, events)) as bench:
        vhost = VHost("/", tmp_path, bench.loop, 4096, 5, "ring", events.call_soon)
        vhost.open()
        yield vhost
        vhost.close()


@pytest.fixture
def client(vhost: VHost, tmp_path: Path) -> Client:
    """Of somebody who has bound a queue very often, and another one by one key."""
    client = Client(UserStore(tmp_path, "guest", "", True).direct_user)
    vhost.declare_exchange(client, "x", "direct", False, True, False, False, EMPTY)
    for name, keys in (("often", MANY), ("once", 1)):
        vhost.declare_queue(client, name, False, True, False, False, EMPTY)
        for number in range(keys):
            vhost.bindings.bind_queue(client, name, "x", f"key.{number}", EMPTY)
    return client


def run_of(vhost: VHost, upstream: Upstream) -> Run:
    here = Here("host", "/", "", "1a2b")
    of = parse("u", {"uri": "amqp://h"}, "/")
    link = ExchangeLink(None, here, "exchange", "x", of, is_paused=True, after=None)  # type: ignore[arg-type]
    return Run(link, vhost, upstream)


def test_a_queue_that_goes_while_a_link_begins_takes_no_binding_of_others_along(
    vhost: VHost, client: Client, events: FakeEvents
) -> None:
    upstream = Upstream()

    async def main() -> None:
        run = run_of(vhost, upstream)
        vhost.delete_queue(client, "often", False, False)
        await run._begin()
        assert len(vhost.exchanges["x"].bindings) > 1
        events.run()
        assert len(vhost.exchanges["x"].bindings) == 1
        await run.mirrored()
        run.ending()

    asyncio.run(main())
    assert upstream.keys == {KEPT}


def test_very_many_bindings_of_the_same_leave_turns_to_others(vhost: VHost, client: Client) -> None:
    async def main() -> int:
        loop, turns = asyncio.get_running_loop(), 0

        def other() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(other)

        run = run_of(vhost, Upstream())
        run._mirrored = {(key, arguments): 1 for _, key, arguments in vhost.exchanges["x"].bindings}
        other()
        await run._begin()
        run.ending()
        return turns

    assert asyncio.run(main()) > MANY // 100
