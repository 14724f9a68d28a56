"""A broker in this process with its management interface, and users of every role.

For tests of what management shows: users and samples are made from within, clients and requests
come from outside, as everybody's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
from pika.exceptions import AMQPError

from lavinmq.http.access.origin import Origin
from tests.support.api import Api
from tests.support.inside import Inside, inside
from tests.support.waiting import wait_for

ALL = (".*", ".*", ".*")


class Managed(Inside):
    """A running broker with its API."""

    def __init__(self, broker: Any) -> None:
        super().__init__(broker)
        ports = {each.origin: each.listener.port for each in self.server.http}
        self.metrics_port = ports[Origin.METRICS]
        self._clients: list[pika.BlockingConnection] = []
        self.api = Api(self, "guest")

    def user(self, name: str, *tags: str, vhost: str = "") -> Api:
        """The API as a new user, with all rights on a virtual host if one is named."""
        self.add_user(name, tags=tags, vhost=vhost, rights=ALL if vhost else None)
        return Api(self, name, name)

    def add_vhost(self, name: str) -> None:
        """Create a virtual host."""
        self.call(self.inner.vhosts.create, name)

    def connect(
        self, vhost: str = "/", user: str = "guest", **parameters: Any
    ) -> pika.BlockingConnection:  # fmt: skip
        """An AMQP connection; the password of a user is its name."""
        credentials = pika.PlainCredentials(user, user)
        client = pika.BlockingConnection(
            pika.ConnectionParameters(
                self.host, self.port, vhost, credentials, heartbeat=0, **parameters
            )
        )
        self._clients.append(client)
        return client

    def disconnect(self) -> None:
        """Close what `connect` has made, and wait until the broker knows."""
        while self._clients:
            with suppress(AMQPError):
                self._clients.pop().close()
        wait_for(lambda: not self.inner.connections, "all have gone")

    def sample(self) -> None:
        """Have rates sampled now, and wait for it."""
        sampler = self.inner.sampler
        self.call(sampler.sample, 120)
        wait_for(lambda: not sampler._is_busy, "the round is over")


@contextmanager
def managed(**settings: Any) -> Iterator[Managed]:
    """Run a broker whose rates are sampled only when a test says so."""
    ports = {"mgmt_port": 0, "metrics_http_port": 0, "stats_interval": 3_600_000}
    with inside(**ports | settings) as within:
        broker = Managed(within.broker)
        try:
            yield broker
        finally:
            broker.disconnect()
