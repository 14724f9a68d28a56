"""A small AMQP 0-9-1 client for tests and perf/: each method and frame under their control.

Programs use `lavinmq.client`. One thread owns a connection; nothing here is asynchronous, retries,
or sends heartbeats (they are negotiated off unless asked for). Frames and errors are in
`tests.support.raw_wire`.

Source: AMQP 0-9-1 specification, sections 1.4 and 4.2.
"""

import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Self

from pamqp import base, commands, header

from tests.support import raw_wire as wire
from tests.support.raw_wire import (
    ChannelClosed,
    ClientError,
    Closed,
    ConnectionClosed,
    ConnectionLost,
    ConsumerCancelled,
    M,
    NoAnswer,
    Properties,
    ProtocolViolation,
    build,
)

__all__ = ["Address", "Channel", "Connection", "Delivery", "Properties", "parse_uri"]
__all__ += ["ChannelClosed", "ClientError", "Closed", "ConnectionClosed", "ConnectionLost"]
__all__ += ["ConsumerCancelled", "NoAnswer", "ProtocolViolation"]

GOODBYE = {"reply_code": 200, "reply_text": "Bye", "class_id": 0, "method_id": 0}
BODY_MAX = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where to connect and as whom."""

    host: str = "localhost"
    port: int = 5672
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"


ContentMethod = commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return


@dataclass(slots=True)
class _Content:
    """A message being put together; `properties` is None until its header came."""

    method: ContentMethod
    properties: Properties | None = None
    size: int = 0
    body: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message from basic.deliver, basic.get-ok or basic.return (then without a tag)."""

    method: ContentMethod
    properties: Properties
    body: bytes

    @property
    def delivery_tag(self) -> int:
        """The tag to acknowledge; 0 for a returned message."""
        return int(getattr(self.method, "delivery_tag", 0) or 0)


def parse_uri(uri: str) -> Address:
    """Read `amqp://user:password@host:port/vhost`; every part but the scheme has a default.

    Percent escapes are decoded; an empty vhost means `/`. The query string is ignored.
    Raises: ValueError with a message for people.
    """
    from urllib.parse import unquote, urlsplit

    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"invalid URI '{uri}': {error}") from None
    if parts.scheme == "amqps":
        raise ValueError("amqps is not supported yet, use amqp")
    if parts.scheme != "amqp" or not uri.lower().startswith("amqp://"):
        raise ValueError(f"invalid URI '{uri}': expected amqp://user:password@host:port/vhost")
    return Address(
        host=unquote(parts.hostname or "localhost"),
        port=5672 if port is None else port,
        user=unquote(parts.username or "guest"),
        password=unquote("guest" if parts.password is None else parts.password),
        vhost=unquote(parts.path[1:]) or "/",
    )


class Connection:
    """One open connection; `timeout` bounds, in seconds, each wait for an answer."""

    def __init__(self, sock: socket.socket, timeout: float = 15.0) -> None:
        self._socket = sock
        self._reader = wire.FrameReader()
        self._replies: deque[base.Frame] = deque()
        self._channels: dict[int, Channel] = {}
        self._is_closed = False
        self.timeout = timeout
        self.frame_max = wire.FRAME_MAX
        self.channel_max = 0
        self.heartbeat = 0
        self.server_properties: dict[str, Any] = {}

    @classmethod
    def open(
        cls, address: Address, *, name: str = "", heartbeat: int = 0, timeout: float = 15.0
    ) -> Self:
        """Connect and shake hands. Raises: OSError, ClientError."""
        sock = socket.create_connection((address.host, address.port), timeout)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = cls(sock, timeout)
            connection.handshake(address, name, heartbeat)
        except BaseException:
            sock.close()
            raise
        return connection

    def handshake(self, address: Address, name: str = "", heartbeat: int = 0) -> None:
        """Go from protocol header to open-ok. Raises: ClientError."""
        self.write(wire.PROTOCOL_HEADER)
        start = self.expect(commands.Connection.Start)
        self.server_properties = dict(start.server_properties or {})
        self.send(0, wire.start_ok(address.user, address.password, name))
        tune = self.expect(commands.Connection.Tune)
        self.frame_max = min(tune.frame_max or wire.FRAME_MAX, wire.FRAME_MAX)
        self.channel_max = tune.channel_max
        self.heartbeat = min(heartbeat, tune.heartbeat or heartbeat)
        limits = {"channel_max": self.channel_max, "frame_max": self.frame_max}
        self.send(0, build(commands.Connection.TuneOk, **limits, heartbeat=self.heartbeat))
        self.send(0, build(commands.Connection.Open, virtual_host=address.vhost))
        self.expect(commands.Connection.OpenOk)

    def channel(self, number: int = 0) -> "Channel":
        """Open channel `number`, by default the lowest free one. Raises: ClientError."""
        if not number:
            number = next(n for n in range(1, 65536) if n not in self._channels)
        channel = self._channels[number] = Channel(self, number)
        channel.call(build(commands.Channel.Open), commands.Channel.OpenOk)
        return channel

    def forget(self, number: int) -> None:
        """Give a channel number free; called by the channel."""
        self._channels.pop(number, None)

    def write(self, data: bytes) -> None:
        """Send raw bytes. Raises: ConnectionLost."""
        if self._is_closed:
            raise ConnectionLost("connection is closed")
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(f"cannot send: {error}") from error

    def send(self, channel: int, method: base.Frame) -> None:
        """Encode and send one method."""
        self.write(wire.encode_method(channel, method))

    def expect(self, cls: type[M]) -> M:
        """Wait for a method of `cls` on channel 0. Raises: ClientError."""
        deadline = time.monotonic() + self.timeout
        while not self._replies:
            self.process(deadline)
        reply = self._replies.popleft()
        if not isinstance(reply, cls):
            raise ProtocolViolation(f"expected {cls.name}, got {reply.name}")
        return reply

    def process(self, deadline: float) -> None:
        """Read one frame and hand it to its owner. Raises: ClientError, NoAnswer when late."""
        raw = self._read(deadline)
        if raw.kind == wire.FRAME_HEARTBEAT:
            return
        if raw.channel:
            if channel := self._channels.get(raw.channel):
                channel.on_frame(raw)
            return
        if raw.kind != wire.FRAME_METHOD:
            raise ProtocolViolation(f"frame of type {raw.kind} on channel 0")
        method = wire.decode_method(raw.payload)
        if isinstance(method, commands.Connection.Close):
            self.send(0, build(commands.Connection.CloseOk))
            self.abort()
            raise wire.decode_close(raw.payload)
        if not isinstance(method, commands.Connection.Blocked | commands.Connection.Unblocked):
            self._replies.append(method)

    def detach(self) -> tuple[int, bytes]:
        """Lend the socket out: its descriptor, and bytes read ahead, which are the borrower's."""
        return self._socket.fileno(), self._reader.take()

    def resume(self, unread: bytes) -> None:
        """Take the socket back with the bytes the borrower read and did not use."""
        self._reader.feed(unread)

    def close(self, timeout: float = 5.0) -> None:
        """Say goodbye, wait for the answer so that all that was sent is dealt with, disconnect."""
        if self._is_closed:
            return
        close_ok = commands.Connection.CloseOk.index.to_bytes(4, "big")
        try:
            self.send(0, build(commands.Connection.Close, **GOODBYE))
            deadline = time.monotonic() + timeout
            while True:
                raw = self._read(deadline)
                if raw.channel == 0 and raw.payload[:4] == close_ok:
                    break
        except ClientError:
            pass  # the connection is going away in any case
        finally:
            self.abort()

    def abort(self) -> None:
        """Disconnect without a word."""
        self._is_closed = True
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, deadline: float) -> wire.RawFrame:
        while (raw := self._reader.next()) is None:
            if self._is_closed:
                raise ConnectionLost("connection is closed")
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise NoAnswer("timeout waiting for the server")
            try:
                self._socket.settimeout(remaining)
                data = self._socket.recv(65536)
            except TimeoutError:
                continue
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            if not data:
                raise ConnectionLost("connection closed by the server without a reason")
            self._reader.feed(data)
        return raw


class Channel:
    """One channel. What arrives while a reply is awaited is kept, in order, in the deques.

    After ChannelClosed the number is free again and every further use raises the same error.
    """

    def __init__(self, connection: Connection, number: int) -> None:
        self._connection = connection
        self._replies: deque[base.Frame] = deque()
        self._content: _Content | None = None
        self._error: ClientError | None = None
        self.number = number
        self.deliveries: deque[Delivery] = deque()
        self.returned: deque[Delivery] = deque()
        self.confirms: deque[commands.Basic.Ack | commands.Basic.Nack] = deque()
        self._got: Delivery | None = None

    def call(self, method: base.Frame, reply: type[M]) -> M:
        """Send `method` and wait for its reply. Raises: ClientError."""
        self.send(method)
        answer = self._wait_reply()
        if not isinstance(answer, reply):
            raise ProtocolViolation(f"expected {reply.name}, got {answer.name}")
        return answer

    def send(self, method: base.Frame) -> None:
        """Send `method` without waiting. Raises: ClientError."""
        if self._error:
            raise self._error
        self._connection.send(self.number, method)

    def declare_queue(self, queue: str = "", **options: Any) -> commands.Queue.DeclareOk:
        """Declare a queue; the reply names it and counts its messages and consumers.

        `options`: passive, durable, exclusive, auto_delete, arguments.
        """
        method = build(commands.Queue.Declare, queue=queue, **options)
        return self.call(method, commands.Queue.DeclareOk)

    def delete_queue(self, queue: str, **options: bool) -> int:
        """Delete a queue; returns its message count. `options`: if_unused, if_empty."""
        method = build(commands.Queue.Delete, queue=queue, **options)
        return self.call(method, commands.Queue.DeleteOk).message_count or 0

    def purge_queue(self, queue: str) -> int:
        """Drop the ready messages of a queue; returns how many."""
        method = build(commands.Queue.Purge, queue=queue)
        return self.call(method, commands.Queue.PurgeOk).message_count or 0

    def bind_queue(self, queue: str, exchange: str, routing_key: str = "", **options: Any) -> None:
        """Bind a queue to an exchange; `options`: arguments."""
        names = {"queue": queue, "exchange": exchange, "routing_key": routing_key}
        self.call(build(commands.Queue.Bind, **names, **options), commands.Queue.BindOk)

    def declare_exchange(self, exchange: str, kind: str = "direct", **options: Any) -> None:
        """Declare an exchange; `options`: passive, durable, auto_delete, internal, arguments."""
        names = {"exchange": exchange, "exchange_type": kind}
        self.call(build(commands.Exchange.Declare, **names, **options), commands.Exchange.DeclareOk)

    def delete_exchange(self, exchange: str, *, if_unused: bool = False) -> None:
        """Delete an exchange."""
        method = build(commands.Exchange.Delete, exchange=exchange, if_unused=if_unused)
        self.call(method, commands.Exchange.DeleteOk)

    def qos(self, prefetch_count: int, *, per_channel: bool = False) -> None:
        """Limit unacknowledged deliveries per new consumer, or of the whole channel."""
        method = build(commands.Basic.Qos, prefetch_count=prefetch_count, global_=per_channel)
        self.call(method, commands.Basic.QosOk)

    def consume(self, queue: str, tag: str = "", **options: Any) -> str:
        """Start a consumer; returns its tag. `options`: no_ack, exclusive, arguments."""
        method = build(commands.Basic.Consume, queue=queue, consumer_tag=tag, **options)
        return self.call(method, commands.Basic.ConsumeOk).consumer_tag or ""

    def cancel(self, tag: str) -> None:
        """Stop a consumer."""
        method = build(commands.Basic.Cancel, consumer_tag=tag)
        self.call(method, commands.Basic.CancelOk)

    def receive(self, timeout: float) -> Delivery:
        """Return the next delivery. Raises: ClientError, ConnectionLost after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.deliveries:
            self._process(deadline)
        return self.deliveries.popleft()

    def get(self, queue: str, *, no_ack: bool = False) -> Delivery | None:
        """Fetch one message; None when the queue is empty."""
        self._got = None
        self.send(build(commands.Basic.Get, queue=queue, no_ack=no_ack))
        deadline = time.monotonic() + self._connection.timeout
        while not self._replies and self._got is None:
            self._process(deadline)
        self._replies.clear()  # get-empty: nothing else can be pending
        return self._got

    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        properties: Properties | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        """Publish one message; does not wait for its confirm."""
        if self._error:
            raise self._error
        method = build(
            commands.Basic.Publish,
            exchange=exchange,
            routing_key=routing_key,
            mandatory=mandatory,
        )
        content = wire.encode_content(
            self.number, properties or Properties(), body, self._connection.frame_max
        )
        self._connection.write(wire.encode_method(self.number, method) + content)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        """Acknowledge a delivery, or all up to it."""
        self.send(build(commands.Basic.Ack, delivery_tag=tag, multiple=multiple))

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        """Refuse a delivery, or all up to it."""
        method = build(commands.Basic.Nack, delivery_tag=tag, multiple=multiple, requeue=requeue)
        self.send(method)

    def confirm_select(self) -> None:
        """Turn publisher confirms on; they come through `confirm`."""
        self.call(build(commands.Confirm.Select), commands.Confirm.SelectOk)

    def confirm(self, timeout: float) -> commands.Basic.Ack | commands.Basic.Nack:
        """Return the next confirm. Raises: ClientError, ConnectionLost after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.confirms:
            self._process(deadline)
        return self.confirms.popleft()

    def tx_select(self) -> None:
        """Make the channel transactional."""
        self.call(build(commands.Tx.Select), commands.Tx.SelectOk)

    def tx_commit(self) -> None:
        """Commit what was published and acknowledged since the last commit."""
        self.call(build(commands.Tx.Commit), commands.Tx.CommitOk)

    def close(self) -> None:
        """Close the channel; its number is free afterwards."""
        method = build(commands.Channel.Close, **GOODBYE)
        self.call(method, commands.Channel.CloseOk)
        self._end(ConnectionLost("channel is closed"))

    def on_frame(self, raw: wire.RawFrame) -> None:
        """Take one frame of this channel; called by the connection. Raises: ProtocolViolation."""
        if raw.kind == wire.FRAME_METHOD:
            self._on_method(raw.payload)
        elif raw.kind == wire.FRAME_HEADER:
            self._on_header(raw.payload)
        elif raw.kind == wire.FRAME_BODY:
            self._on_body(raw.payload)
        else:
            raise ProtocolViolation(f"unknown frame type {raw.kind}")

    def _on_method(self, payload: bytes) -> None:
        method = wire.decode_method(payload)
        match method:
            case commands.Basic.Deliver() | commands.Basic.GetOk() | commands.Basic.Return():
                self._content = _Content(method)
            case commands.Basic.Ack() | commands.Basic.Nack():
                self.confirms.append(method)
            case commands.Basic.Cancel():
                self._error = ConsumerCancelled(f"consumer {method.consumer_tag} was cancelled")
            case commands.Channel.Close():
                self._connection.send(self.number, build(commands.Channel.CloseOk))
                self._end(wire.decode_close(payload))
            case commands.Channel.Flow():
                self.send(build(commands.Channel.FlowOk, active=method.active))
            case _:
                self._replies.append(method)

    def _on_header(self, payload: bytes) -> None:
        content = self._content
        if content is None or content.properties is not None:
            raise ProtocolViolation("content header without a method")
        head = header.ContentHeader()
        try:
            head.unmarshal(payload)
        except wire.DECODE_ERRORS as error:
            raise ProtocolViolation(f"undecodable content header: {error}") from error
        if head.body_size > BODY_MAX:
            raise ProtocolViolation(f"body of {head.body_size} bytes exceeds {BODY_MAX}")
        content.properties, content.size = head.properties, head.body_size
        self._on_body(b"")

    def _on_body(self, payload: bytes) -> None:
        content = self._content
        if content is None or content.properties is None:
            raise ProtocolViolation("content body without a header")
        content.body += payload
        if len(content.body) > content.size:
            raise ProtocolViolation("content body is longer than announced")
        if len(content.body) < content.size:
            return
        self._content = None
        delivery = Delivery(content.method, content.properties, bytes(content.body))
        if isinstance(content.method, commands.Basic.GetOk):
            self._got = delivery
        elif isinstance(content.method, commands.Basic.Return):
            self.returned.append(delivery)
        else:
            self.deliveries.append(delivery)

    def _end(self, error: ClientError) -> None:
        self._error = error
        self._connection.forget(self.number)

    def _process(self, deadline: float) -> None:
        if self._error:
            raise self._error
        self._connection.process(deadline)

    def _wait_reply(self) -> base.Frame:
        deadline = time.monotonic() + self._connection.timeout
        while not self._replies:
            self._process(deadline)
        return self._replies.popleft()
