"""The aliveness test: a message through a queue, on the way that all messages take.

Its client is a link on a pair of sockets within this process, so that reading, routing and storing
are those of every client; only the handshake is left out. Source: docs/http-api.md.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from lavinmq import _core
from lavinmq.amqp import methods as m
from lavinmq.errors import ProtocolError
from lavinmq.fieldtable import EMPTY
from lavinmq.http.call import Actor, Call
from lavinmq.http.routes import ROUTES
from lavinmq.process import log
from lavinmq.vhost.new_queue import NewQueue

if TYPE_CHECKING:
    from lavinmq.vhost.queue import Queue
    from lavinmq.vhost.vhost import VHost

QUEUE: Final = "aliveness-test"
EXCHANGE: Final = "amq.direct"
BODY: Final = b"test"
CHANNEL: Final = 1
FRAME_MAX: Final = 8192
TIMEOUT_S: Final = 5.0
_log = log.get("lmq.http.server")


@ROUTES.get("/api/aliveness-test/:vhost")
def test_aliveness(call: Call) -> dict[str, str]:
    """Declare a queue, publish a message and get it back."""
    vhost = call.vhost
    actor = Actor(call.broker.users.direct_user)  # it is the broker that is tested, not the caller
    try:
        declared = vhost.declare_queue(actor, QUEUE, False, False, False, False, EMPTY)
        assert not isinstance(declared, NewQueue)  # it is transient
        queue, _ = declared
        vhost.bindings.bind_queue(actor, QUEUE, EXCHANGE, QUEUE, EMPTY)
        reason = _send_and_get(call, vhost, queue)
    except (ProtocolError, OSError, MemoryError) as error:
        reason = str(error)
    if reason:
        _log.warning("aliveness test of vhost %r failed: %s", vhost.name, reason)
        return {"status": "failed", "reason": reason}
    return {"status": "ok"}


def _send_and_get(call: Call, vhost: VHost, queue: Queue) -> str:
    """Returns: what went wrong; empty when nothing did."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        link = _core.Link(call.broker.loop, ours.fileno(), _core.AMQP)
        session = _Session(link, vhost)
        link.session = session
        link.start(TIMEOUT_S)
        try:
            link.set_vhost(vhost.core)
            link.set_limits(FRAME_MAX, FRAME_MAX, 0)
            link.state = _core.STATE_OPEN
            link.open_channel(CHANNEL, 0)
            theirs.send(_publish())
            link.drain()
            if session.failure:
                return session.failure
            return "" if link.get(CHANNEL, queue.core, True) else "the message did not arrive"
        finally:
            link.close()


def _publish() -> bytes:
    """basic.publish with its content: no properties, one frame of body."""
    header = m.BASIC.to_bytes(2) + bytes(2) + len(BODY).to_bytes(8) + bytes(2)
    return (
        m.encode_frame(CHANNEL, m.BasicPublish(exchange=EXCHANGE, routing_key=QUEUE))
        + _frame(2, header) + _frame(3, BODY)
    )  # fmt: skip


def _frame(kind: int, payload: bytes) -> bytes:
    """Source: docs/protocol.md."""
    return bytes([kind]) + CHANNEL.to_bytes(2) + len(payload).to_bytes(4) + payload + b"\xce"


class _Session:
    """Answers the link for the test; anything out of the ordinary is a failure."""

    def __init__(self, link: _core.Link, vhost: VHost) -> None:
        self.failure = ""
        self._link = link
        self._vhost = vhost

    def _fail(self, why: str) -> None:
        self.failure = self.failure or why
        self._link.close()

    def on_route_miss(self, channel: int, kind: int, name: bytes, keys: list[bytes], /) -> None:
        """The publish names its exchange for the first time."""
        exchange = self._vhost.exchanges.get(name.decode())
        if exchange is None:
            self._fail(f"there is no exchange {name.decode()}")
        else:
            self._link.learn(name, exchange.core)

    def on_held(self, channel: int, /) -> None:
        """Publishers wait for room on the disk."""
        self._fail("publishers are held: the disk is short of space")

    def on_released(self) -> None:
        """It never waits."""

    def on_header(self, header: bytes, /) -> None:
        """It sends none."""

    def on_method(self, channel: int, payload: bytes, /) -> None:
        """It sends none but publish."""

    def on_error(
        self, kind: int, channel: int, method: int, a: int, b: int, text: bytes, /
    ) -> None:
        """The frames broke a rule."""
        self._fail(f"error {kind} of the message path")

    def on_illegal_frame(self) -> None:
        """There is no handshake."""

    def on_timeout(self, why: str, /) -> None:
        """It does not live that long."""

    def on_consumer_timeout(self, channel: int, /) -> None:
        """It has no consumers."""

    def on_unreadable(self) -> None:
        """It gets nothing large."""

    def on_large_header(self, channel: int, /) -> None:
        """Nothing it gets has one."""

    def on_stream_end(self, channel: int, tag: bytes, /) -> None:
        """It has no consumers."""

    def on_lost(self, why: str, /) -> None:
        """The sockets are closed in order."""
        self._link.close()
