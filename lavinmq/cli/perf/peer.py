"""Connections of lavinmqperf: opened by the client library, whose loop is in a thread of its own.

The library says hello, declares and asks; the socket stays ours. `Connection.borrow` takes it out
of the loop for compiled code, which then has it to itself. There are no heartbeats, so nobody has
to do anything meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from lavinmq.client import frames
from lavinmq.client.config import Config
from lavinmq.client.errors import ClientConnectionError, ConfigError, ConnectionLost, RpcTimeout
from lavinmq.client.link import Chan, Link
from lavinmq.client.url import Target, parse_url

T = TypeVar("T")
TIMEOUT_S = 15.0
GOODBYE_S = 5.0
RECEIVE_BYTES = 65536
OURS = {"heartbeat": 0, "rpc_timeout": TIMEOUT_S, "channel_max": 65_535}
# A broker that blocks is not told to say so: an engine waits for room in the socket.
CAPABILITIES = (
    *("publisher_confirms", "basic.nack", "consumer_cancel_notify"),
    "authentication_failure_close",
)


class Broker:
    """Where the broker is, as whom to go there, and the loop of all connections to it.

    Args: uri: `amqp://user:password@host:port/vhost`. Raises: ConfigError, a ValueError.
    """

    def __init__(self, uri: str) -> None:
        self.target = target_of(uri)
        self.config = Config().updated(OURS)
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread

    def open(self, name: str, host: str = "") -> Connection:
        """Connect, to another address of the broker if one is given. Raises: OSError, Error."""
        endpoint = self.target.endpoints[0]
        sock = reach(host or endpoint.host, endpoint.port)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return Connection(self, sock, self.run(self._handshake(sock, name)))
        except BaseException:
            sock.close()
            raise

    async def _handshake(self, sock: socket.socket, name: str) -> Link:
        config = self.config.updated({"client_properties": properties(name)})
        link = Link(config, self.target, self._loop)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._loop.create_connection(lambda: link, sock=sock)
                await link.open()
        except TimeoutError:
            error = RpcTimeout("timeout waiting for the server")
            link.end(error)
            raise error from None
        except BaseException:
            link.end(ConnectionLost("given up"))
            raise
        return link

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop's thread and wait for it. Raises: what it raises."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # a client that did not end in time, when all is over
            work.close()
            raise ConnectionLost("the run is over") from None
        return future.result()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Connection:
    """One connection with a channel, or none; used by one thread at a time."""

    def __init__(self, broker: Broker, sock: socket.socket, link: Link) -> None:
        self._broker, self._link = broker, link
        self._chan: Chan | None = None
        self._is_borrowed = False
        self._unread = b""
        self.socket = sock
        self.frame_max = link.frame_max
        self.channel_max = link.channel_max

    def open_channel(self) -> None:
        """Open a channel, with the lowest number that is free. Raises: Error."""
        self._chan = self._broker.run(self._link.channel())

    def close_channel(self) -> None:
        """Close it; its number is free afterwards."""
        self._broker.run(self.chan.close())

    def call(self, name: str, *values: Any) -> Any:
        """Say a method on the channel; return the arguments of its answer. Raises: Error."""
        return self._broker.run(self.chan.call(name, *values))

    @property
    def chan(self) -> Chan:
        """The channel, for who runs in the loop."""
        assert self._chan is not None
        return self._chan

    def borrow(self) -> int:
        """Take the socket out of the loop for good, and return its number. Nothing may be awaited
        from the broker then. Raises: Error."""
        if not self._is_borrowed:
            self.socket = self._broker.run(self._let_go())
        self._is_borrowed = True
        return self.socket.fileno()

    async def _let_go(self) -> socket.socket:
        if self._link.lost is not None:
            raise self._link.lost
        # All that was sent has been answered. The loop closes a socket whose descriptor is gone.
        self._link.end(ConnectionLost("the socket was lent"))
        ours = socket.socket(fileno=self.socket.detach())
        ours.settimeout(TIMEOUT_S)
        return ours

    def give_back(self, unread: bytes) -> None:
        """Nobody uses the borrowed socket any more; `unread` was read from it and not used."""
        self._unread = unread

    def close(self) -> None:
        """Say goodbye, wait for the answer so that all that was sent is dealt with, disconnect.

        Raises: ChannelClosed when the broker has closed the channel over what was sent.
        """
        try:
            with contextlib.suppress(OSError, ClientConnectionError, TimeoutError):
                self.borrow()
                _part(self.socket, self._unread)
        finally:
            self.abort()

    def abort(self) -> None:
        """Disconnect without a word."""
        if self._is_borrowed:
            self.socket.close()
        else:
            self._broker.run(self._drop())

    async def _drop(self) -> None:
        self._link.end(ConnectionLost("the connection was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def target_of(uri: str) -> Target:
    """Read a URI; options behind it have no meaning here. Raises: ConfigError."""
    uri, _, options = uri.partition("?")
    if options:
        print(f"Options of the URI have no effect: {options}", file=sys.stderr)
    try:
        target = parse_url(uri)
    except ConfigError as error:
        raise ConfigError(f"invalid URI: {error}") from None
    if target.endpoints[0].scheme != "amqp":
        raise ConfigError(f"{target.endpoints[0].scheme} is not supported, use amqp")
    if len(target.endpoints) > 1:
        raise ConfigError("invalid URI: one host is wanted")
    return target


def reach(host: str, port: int) -> socket.socket:
    """Connect. Raises: OSError, which names the address."""
    try:
        return socket.create_connection((host, port), TIMEOUT_S)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(f"Cannot connect to {host}:{port}: {reason}") from error


def properties(name: str) -> dict[str, Any]:
    """Who we are."""
    return {"connection_name": name, "capabilities": dict.fromkeys(CAPABILITIES, True)}


def _part(sock: socket.socket, unread: bytes) -> None:
    """Close a connection; what comes before the answer is passed over, but for the end of its
    channel. Raises: OSError, ChannelClosed."""
    sock.settimeout(GOODBYE_S)
    sock.sendall(frames.method(0, "connection.close", *frames.GOODBYE))
    reader = frames.Reader()
    reader.feed(unread)
    answer, refusal = frames.id_of("connection.close-ok"), frames.id_of("channel.close")
    deadline = time.monotonic() + GOODBYE_S
    while (left_s := deadline - time.monotonic()) > 0:
        while (frame := reader.next()) is not None:
            if frame.kind != frames.METHOD:
                continue
            if frame.payload.startswith(refusal):
                raise frames.close_of(frame.payload)
            if frame.payload.startswith(answer):
                return
        sock.settimeout(left_s)
        data = sock.recv(RECEIVE_BYTES)
        if not data:
            return
        reader.feed(data)
