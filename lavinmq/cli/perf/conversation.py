"""Any number of AMQP connections in one thread, each a series of requests and their replies.

For the scenarios of lavinmqperf that count connections or rare methods. Requests are encoded
before they are needed and replies recognised by their first four bytes, so that the broker is
measured and not this client. No heartbeats: they are negotiated off. The client library introduces
us to the broker (`peer`), and writes and reads methods; what goes wrong raises its errors.
"""

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from lavinmq.cli.perf.peer import RECEIVE_BYTES, TIMEOUT_S, Broker, properties
from lavinmq.client import frames
from lavinmq.client.errors import ConnectionLost
from lavinmq.client.link import PROTOCOL_HEADER
from lavinmq.client.url import Target


class Step(NamedTuple):
    """A request as sent, and the class and method id, four bytes, of the reply to wait for."""

    request: bytes
    reply: bytes


Script = Iterator[Step]


def step(channel: int, name: str, *values: Any) -> Step:
    """Encode a request. Raises: ValueError when a field does not fit its type."""
    return Step(frames.method(channel, name, *values), frames.id_of(f"{name}-ok"))


def open_channel(number: int) -> Step:
    """Return the step that opens a channel."""
    return step(number, "channel.open", "")


CLOSED = (frames.id_of("connection.close"), frames.id_of("channel.close"))
CLOSE = step(0, "connection.close", *frames.GOODBYE)


class Peer:
    """The broker as met over a first connection, `control`, which stays open.

    Raises: OSError, Error when it cannot be met.
    """

    def __init__(self, broker: Broker, name: str, host: str = "") -> None:
        self.control = broker.open(name, host)
        self.family = self.control.socket.family
        self.sockaddr = self.control.socket.getpeername()
        self.handshake = self._handshake(broker.target, name)

    def _handshake(self, target: Target, name: str) -> tuple[Step, ...]:
        """Encode what every further connection says; the broker's limits are known by now."""
        response = f"\0{target.user}\0{target.password}"
        start_ok = frames.method(
            0, "connection.start-ok", properties(name), "PLAIN", response, "en_US"
        )
        limits = (self.control.channel_max, self.control.frame_max, 0)
        tune_ok = frames.method(0, "connection.tune-ok", *limits)
        opening = step(0, "connection.open", target.vhost, "", False)
        return (
            Step(PROTOCOL_HEADER, frames.id_of("connection.start")),
            Step(start_ok, frames.id_of("connection.tune")),
            opening._replace(request=tune_ok + opening.request),
        )

    def connect(self, host: str = "") -> socket.socket:
        """Begin to connect, to another address of the broker if one is given. Raises: OSError."""
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            problem = sock.connect_ex((host or self.sockaddr[0], *self.sockaddr[1:]))
            if problem not in (0, errno.EINPROGRESS):
                raise OSError(problem, os.strerror(problem))
        except BaseException:
            sock.close()
            raise
        return sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()


class Conversation:
    """One connection and its script, which goes on whenever the reply it waits for is there."""

    def __init__(self, sock: socket.socket, script: Script) -> None:
        self.socket = sock
        self.is_connected = False
        self._script = script
        self._reader = frames.Reader()
        self._awaited = b""

    def begin(self) -> bool:
        """Send the first request, if any; returns whether there is one.

        Raises: OSError, also when connecting has failed.
        """
        self.is_connected = True
        # It is read only when something is there to read, and requests fit the socket's buffer.
        self.socket.setblocking(True)
        return self._advance()

    def receive(self) -> bool:
        """Read what is there. Returns whether the script goes on. Raises: OSError, Error."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionLost("connection closed by the server without a reason")
        self._reader.feed(data)
        while raw := self._reader.next():
            if raw.kind != frames.METHOD:
                continue
            if raw.payload[:4] == self._awaited:
                if not self._advance():
                    return False
            elif raw.payload[:4] in CLOSED:
                raise frames.close_of(raw.payload)
        return True

    def _advance(self) -> bool:
        following = next(self._script, None)
        if following is None:
            return False
        self._awaited = following.reply
        self.socket.sendall(following.request)
        return True


class Conversations:
    """All conversations that are going on. Closes their sockets at its end, not those of others."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._ongoing: dict[int, Conversation] = {}
        self._heard_at = 0.0

    def __len__(self) -> int:
        return len(self._ongoing)

    def start(self, sock: socket.socket, script: Script) -> None:
        """Take over a socket that is connected or about to be."""
        self._ongoing[sock.fileno()] = Conversation(sock, script)
        self._epoll.register(sock, select.EPOLLOUT)
        self._heard_at = time.monotonic()

    def poll(self, timeout_s: float) -> list[socket.socket]:
        """Go on where replies have arrived; returns the sockets whose scripts have ended.

        Raises: OSError, Error when one of them failed, or none was heard for 15 s.
        """
        events = self._epoll.poll(timeout_s)
        if events:
            self._heard_at = time.monotonic()
        elif self._ongoing and time.monotonic() - self._heard_at > TIMEOUT_S:
            raise ConnectionLost("timeout waiting for the server")
        return [sock for fd, _ in events if (sock := self._serve(fd))]

    def _serve(self, fd: int) -> socket.socket | None:
        conversation = self._ongoing[fd]
        if conversation.is_connected:
            goes_on = conversation.receive()
        else:
            goes_on = conversation.begin()
            self._epoll.modify(fd, select.EPOLLIN)
        if goes_on:
            return None
        self._epoll.unregister(fd)
        return self._ongoing.pop(fd).socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._epoll.close()
        for conversation in self._ongoing.values():
            conversation.socket.close()
