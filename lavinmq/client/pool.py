"""Several clients to one broker, in turn: for programs whose one connection is not enough."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from lavinmq.client.config import Config
from lavinmq.client.errors import ConfigError
from lavinmq.client.sync import Client
from lavinmq.client.values import ConnectionState


class ConnectionPool:
    """`pool_size` clients of the same options."""

    def __init__(
        self, url: str, pool_size: int = 5, config: Config | None = None, **overrides: Any
    ) -> None:
        if not 1 <= pool_size <= 1000:
            raise ConfigError(f"option pool_size is {pool_size}, allowed are 1 to 1000")
        self.clients = [Client(url, config, **overrides) for _ in range(pool_size)]
        self._turn = itertools.count()

    def connect(self) -> Self:
        """Connect all. Raises: why one cannot; then all are closed."""
        try:
            for client in self.clients:
                client.start()
        except BaseException:
            self.close()
            raise
        return self

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.clients)

    @property
    def healthy_count(self) -> int:
        """How many are connected."""
        return sum(client.connected for client in self.clients)

    @property
    def healthy(self) -> bool:
        """Whether at least half are."""
        return 2 * self.healthy_count >= self.size

    def connection(self) -> Client:
        """The next client's turn; one that is connected, if there is one."""
        for _ in self.clients:
            client = self.clients[next(self._turn) % self.size]
            if client.connected:
                return client
        return self.clients[next(self._turn) % self.size]

    def on_pool_connect(self, callback: Callable[[int], Any]) -> None:
        """Call it with the number of a client that has connected."""
        self._on(ConnectionState.CONNECTED, callback)

    def on_pool_disconnect(self, callback: Callable[[int], Any]) -> None:
        """Call it with the number of a client that lost its connection."""
        self._on(ConnectionState.RECONNECTING, callback)

    def on_pool_error(self, callback: Callable[[int, Exception], Any]) -> None:
        """Call it with the number of a client and an error that nobody else hears of."""
        for number, client in enumerate(self.clients):
            client.on_error(partial(callback, number))

    def _on(self, state: ConnectionState, call: Callable[[int], Any]) -> None:
        def told(number: int, old: ConnectionState, new: ConnectionState, _: object) -> None:
            if new is state and old is not ConnectionState.BLOCKED:
                call(number)

        for number, client in enumerate(self.clients):
            client.on_state_change(partial(told, number))

    def close(self) -> None:
        """Close all."""
        for client in self.clients:
            client.close()

    def __enter__(self) -> Self:
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()
