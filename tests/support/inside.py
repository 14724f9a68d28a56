"""A broker in this process with its parts in reach: what management will do, done directly.

Owns nothing but the way to the loop's thread: everything of a server is called there.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lavinmq
from lavinmq.broker import Broker
from lavinmq.files.saving import gathered
from lavinmq.policy.policies import Policy
from lavinmq.server import Server
from lavinmq.vhost.exchange import Exchange
from lavinmq.vhost.queue import Queue
from lavinmq.vhost.vhost import VHost

TIMEOUT_S = 20.0

T = TypeVar("T")
Function = Callable[..., Coroutine[Any, Any, T] | T]


class Inside:
    """A running broker, from within."""

    def __init__(self, broker: lavinmq.Broker) -> None:
        self.broker = broker
        self.port = broker.port
        self.server: Server = broker._server
        self.inner: Broker = self.server.broker
        """What sessions and HTTP know of it."""

    @property
    def host(self) -> str:
        """Where it listens."""
        return self.broker.host

    @property
    def http_port(self) -> int:
        """And on which port for HTTP."""
        return self.server.http_port

    def call(
        self, function: Callable[..., Coroutine[Any, Any, T] | T], *args: Any, **kwargs: Any
    ) -> T:
        """What the function returns, or raises, in the loop's thread."""
        return self.submit(function, *args, **kwargs).result(TIMEOUT_S)

    def submit(
        self, function: Callable[..., Coroutine[Any, Any, T] | T], *args: Any, **kwargs: Any
    ) -> Future[T]:
        """The same without waiting. What it saves is on disk when it is done."""

        async def run() -> Any:
            async with gathered():
                result = function(*args, **kwargs)
                return await result if inspect.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(run(), self.server.events)

    def vhost(self, name: str = "/") -> VHost:
        """A virtual host."""
        return self.inner.vhosts[name]

    def queue(self, name: str, vhost: str = "/") -> Queue:
        """A queue that exists."""
        return self.vhost(vhost).queues[name]

    def exchange(self, name: str, vhost: str = "/") -> Exchange:
        """An exchange that exists."""
        return self.vhost(vhost).exchanges[name]

    def settled(self, vhost: str = "/") -> None:
        """Wait until policies have reached everything."""
        applied = threading.Event()
        self.call(self.vhost(vhost).rules.when_applied, applied.set)
        assert applied.wait(TIMEOUT_S)

    def put_policy(
        self, name: str, pattern: str, definition: dict[str, Any], priority: int = 0,
        apply_to: str = "all", *, vhost: str = "/",
    ) -> None:  # fmt: skip
        """Set a policy and wait until it has reached everything."""
        policy = Policy.of(name, pattern, definition, priority, apply_to)
        self.call(self.vhost(vhost).rules.put_policy, policy)
        self.settled(vhost)

    def delete_policy(self, name: str, *, vhost: str = "/") -> bool:
        """Delete a policy and wait until everything is rid of it."""
        deleted = self.call(self.vhost(vhost).rules.delete_policy, name)
        self.settled(vhost)
        return deleted

    def put_operator_policy(self, name: str, pattern: str, definition: dict[str, Any]) -> None:
        """Set an operator policy of `/` and wait until it has reached everything."""
        policy = Policy.of(name, pattern, definition, is_operator=True)
        self.call(self.vhost().rules.put_operator_policy, policy)
        self.settled()

    def add_user(self, name: str, *, vhost: str = "", rights: tuple[str, str, str] | None = None,
                 tags: tuple[str, ...] = ()) -> None:  # fmt: skip
        """Create a user whose password is its name; `rights` to configure, read, write."""
        self.call(self.inner.accounts.put_user, name, password=name.encode(), tags=tags)
        if rights is not None:
            self.call(self.inner.accounts.set_permissions, name, vhost or "/", *rights)


@contextmanager
def inside(data_dir: Path | None = None, **settings: Any) -> Iterator[Inside]:
    """Run a broker; it is stopped at the end."""
    with lavinmq.run(data_dir=data_dir, **settings) as broker:
        yield Inside(broker)
