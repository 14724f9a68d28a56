# mypy: disable-error-code="no-untyped-call"
"""A client that sends and shows field tables exactly: lists of [key, type letter, value].

For tests where the type on the wire matters, which client libraries choose by themselves. Units
are dicts as the recorded transcripts have them (`method`, `args`, `props`, `body`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tests.support import replay
from tests.support.patience import PATIENCE

ANSWER_TIMEOUT_S = 15.0 * PATIENCE
PIECE = 60_000

Rows = list[list[Any]]
Unit = dict[str, Any]


class TypedClient:
    """One connection with one open channel. Raises replay.Mismatch when it cannot log in."""

    def __init__(
        self, port: int, *, vhost: str = "/", user: str = "guest", password: str = "guest"
    ) -> None:
        self._connection = replay.Conn("127.0.0.1", port)
        login = {"user": user, "password": password, "vhost": vhost, "channels": [1]}
        try:
            replay.handshake(self._connection, login)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **arguments: Any) -> Unit:
        """Send a method on channel 1 and return the next unit."""
        self.send(method, **arguments)
        return self.take()

    def take(self) -> Unit:
        """Return the next unit, whatever it is."""
        unit: Unit | None = self._connection.unit(ANSWER_TIMEOUT_S)
        assert unit is not None, "nothing came"
        return unit

    def answer(self, method: str, **arguments: Any) -> str:
        """Send a method; return the name of what answers it, or the reply code of a close."""
        unit = self.call(method, **arguments)
        if unit["method"] != "channel.close":
            return str(unit["method"])
        self.send("channel.close-ok")
        assert self.call("channel.open")["method"] == "channel.open-ok"
        return str(unit["args"]["reply_code"])

    def send(self, method: str, **arguments: Any) -> None:
        """Send a method on channel 1."""
        self._connection.send(replay.method_frame(1, method, **arguments))

    def publish(
        self, exchange: str, routing_key: str, body: bytes, *, mandatory: bool = False, **props: Any
    ) -> None:
        """Publish one message; `headers` among the properties are rows."""
        method = replay.method_frame(
            1, "basic.publish", exchange=exchange, routing_key=routing_key, mandatory=mandatory
        )
        header = {"type": "header", "ch": 1, "size": len(body), "props": props}
        content = {"type": "body", "ch": 1, "body": {"hex": body.hex()}}
        frames = [header, content] if body else [header]
        self._connection.send(method + b"".join(map(replay.enc_frame, frames)))

    def synchronise(self) -> None:
        """Return when the broker has handled everything sent on the channel."""
        answer = self.call("basic.qos")
        assert answer["method"] == "basic.qos-ok", answer

    def get(self, queue: str, *, no_ack: bool = False) -> Unit | None:
        """Take the next message; None when there is none. `body` is bytes."""
        unit = self.call("basic.get", queue=queue, no_ack=no_ack)
        if unit["method"] == "basic.get-empty":
            return None
        assert unit["method"] == "basic.get-ok", unit
        return unit | {"body": unit["_raw_body"]}

    def get_all(self, queue: str, *, no_ack: bool = False) -> list[Unit]:
        """Take every message there is."""
        return list(iter(lambda: self.get(queue, no_ack=no_ack), None))

    def read_stream(self, queue: str, start: Any = ("S", "first")) -> list[Unit]:
        """Take every message there is in a stream, from an offset given with its type."""
        count = self.call("queue.declare", queue=queue, passive=True)["args"]["message_count"]
        assert self.call("basic.qos", prefetch_count=65535)["method"] == "basic.qos-ok"
        found = self._read_some(queue, start, min(count, PIECE))
        while len(found) < count:
            # A consumer gets no more than its prefetch of what it does not acknowledge.
            start = ("l", _offset(found[-1]) + 1)
            found += self._read_some(queue, start, min(count - len(found), PIECE))
        return [unit | {"body": unit["_raw_body"]} for unit in found]

    def _read_some(self, queue: str, start: Any, count: int) -> list[Unit]:
        """Take so many from an offset on."""
        arguments = [["x-stream-offset", *start]]
        answer = self.call("basic.consume", queue=queue, consumer_tag="reader", arguments=arguments)
        assert answer["method"] == "basic.consume-ok", answer
        found = [self.take() for _ in range(count)]
        self.send("basic.cancel", consumer_tag="reader")
        while (unit := self.take())["method"] == "basic.deliver":
            pass
        assert unit["method"] == "basic.cancel-ok", unit
        return found

    def close(self) -> None:
        """Drop the socket: what was not acknowledged returns to its queue."""
        self._connection.close()

    def __enter__(self) -> TypedClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()


def _offset(unit: Unit) -> int:
    """Where in its stream a message is."""
    return int({row[0]: row[2] for row in unit["props"]["headers"]}["x-stream-offset"])
