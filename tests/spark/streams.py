"""Streams for tests: declare, publish, damage, and read back what Spark wrote."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.broker import Broker
from tests.support.raw_connection import Address, Channel, Connection, Properties


@contextlib.contextmanager
def channel(broker: Broker) -> Iterator[Channel]:
    """A channel on a connection of its own."""
    with Connection.open(Address(broker.host, broker.port)) as connection:
        yield connection.channel()


class Stream:
    """A stream queue of a broker."""

    def __init__(self, broker: Broker, name: str) -> None:
        self.broker = broker
        self.name = name

    def declare(self, **arguments: Any) -> Stream:
        """Declare it, with further arguments."""
        with channel(self.broker) as opened:
            opened.declare_queue(
                self.name, durable=True, arguments={"x-queue-type": "stream", **arguments}
            )
        return self

    def delete(self) -> None:
        """Delete it."""
        with channel(self.broker) as opened:
            opened.delete_queue(self.name)

    def publish(
        self, bodies: Iterable[bytes], exchange: str = "", properties: Properties | None = None
    ) -> None:
        """Publish messages and return when the broker has confirmed them all."""
        with channel(self.broker) as opened:
            opened.confirm_select()
            n_published = 0
            for body in bodies:
                opened.publish(exchange, self.name, body, properties)
                n_published += 1
            while n_published and (opened.confirm(30).delivery_tag or 0) < n_published:
                pass

    def options(self, **more: str) -> dict[str, str]:
        """Options of the format that read it."""
        found = {"url": self.broker.uri, "queue": self.name}
        if self.broker.http_port > 0:
            found["httpUrl"] = self.broker.http_url
        return found | more


def numbers(start: int, end: int) -> list[bytes]:
    """Bodies that are the numbers of a range."""
    return [b"%d" % number for number in range(start, end)]


def damage(broker: Broker, body: bytes) -> None:
    """Overwrite the head of the record that has this body, in a segment that was counted."""
    broker.restart()
    broker.stop()
    (path,) = (each for each in broker.data_dir.rglob("msgs.*") if body in each.read_bytes())
    data = path.read_bytes()
    at = data.index(body)
    path.write_bytes(data[: at - 16] + b"\xff" * 16 + data[at:])
    broker.start()
