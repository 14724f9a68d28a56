"""The publishers and consumers of `lavinmqperf amqp throughput`, up to the first message.

`Template` turns options into encoded frames once, for all clients. `Publisher` and `Consumer`
declare what they need over a connection, then lend its socket to their `lavinmq._perf` engine.
Threads, reconnecting and reporting are `lavinmq.cli.perf.throughput`'s.
"""

from typing import Any

from pamqp import commands

from lavinmq import _perf
from lavinmq.cli.perf.throughput_options import ThroughputOptions
from lavinmq.client.connection import (
    Channel,
    ChannelClosed,
    Connection,
    ConnectionLost,
    ConsumerCancelled,
    Properties,
)
from lavinmq.client.wire import (
    FRAME_MAX,
    FRAME_OVERHEAD,
    build,
    decode_close,
    encode_content,
    encode_method,
)

PATTERN = bytes(range(64, 64 + 27))
PRECONDITION_FAILED = 406
CHANNEL = 1


class Template:
    """What all clients of a run share. Raises: ValueError when an option does not fit AMQP."""

    def __init__(self, options: ThroughputOptions) -> None:
        self.options = options
        self.queues = options.queues
        self.properties = message_properties(options)
        keys = self.queues if options.routing_key is None else [options.routing_key]
        publish = commands.Basic.Publish
        self.methods = [
            encode_method(CHANNEL, build(publish, exchange=options.exchange, routing_key=key))
            for key in keys
        ]
        # Only to have bad arguments refused here and not in every client's thread.
        encode_content(CHANNEL, self.properties, b"", FRAME_MAX)
        encode_method(CHANNEL, build(commands.Queue.Declare, arguments=options.queue_args))
        encode_method(CHANNEL, build(commands.Basic.Consume, arguments=options.consumer_args))

    def content(self, frame_max: int) -> bytes:
        """Return content header and body frames of one message."""
        size = self.options.size
        body = (PATTERN * (size // len(PATTERN) + 1))[:size]
        return encode_content(CHANNEL, self.properties, body, frame_max)

    def declare(self, connection: Connection, channel: Channel, queue: str) -> tuple[Channel, str]:
        """Declare a queue, passively if it exists with other arguments.

        Returns the channel to go on with and the queue's name.
        """
        kind = {"durable": bool(queue), "auto_delete": not queue}
        try:
            reply = channel.declare_queue(queue, **kind, arguments=self.options.queue_args)
        except ChannelClosed as error:
            if error.code != PRECONDITION_FAILED:
                raise
            channel = connection.channel(CHANNEL)
            reply = channel.declare_queue(queue, passive=True)
        name = reply.queue or queue
        if self.options.measure_latency:
            channel.purge_queue(name)
        return channel, name


def message_properties(options: ThroughputOptions) -> Properties:
    """Make the properties of each message. Raises: ValueError for unknown names and bad values."""
    import datetime

    values: dict[str, Any] = dict(options.properties)
    if "type" in values:
        values["message_type"] = values.pop("type")
    if unknown := set(values) - set(Properties.attributes()):
        raise ValueError(f"unknown message properties: {', '.join(sorted(unknown))}")
    if isinstance(values.get("timestamp"), int):
        values["timestamp"] = datetime.datetime.fromtimestamp(values["timestamp"], datetime.UTC)
    if options.persistent:
        values["delivery_mode"] = 2
    try:
        return Properties(**values)
    except TypeError as error:
        raise ValueError(f"invalid message properties: {error}") from error


def raise_for(end: int, reason: bytes) -> None:
    """Raise what ended a run of an engine, unless it was done. Raises: ClientError."""
    if end == _perf.DONE:
        return
    if end != _perf.CLOSED:
        raise ConnectionLost(reason.decode())
    if reason[:4] == commands.Basic.Cancel.index.to_bytes(4, "big"):
        raise ConsumerCancelled("the consumer was cancelled by the broker")
    raise decode_close(reason)


class Publisher:
    """Publisher number `index`; the first one declares the queues, if they are the target."""

    def __init__(self, template: Template, shared: _perf.Run, index: int) -> None:
        self._template = template
        self._shared = shared
        self._index = index
        self.name = f"publisher {index + 1}"
        self.engine: _perf.Publisher | None = None

    def set_up(self, connection: Connection) -> None:
        """Open the channel and declare. Raises: ClientError."""
        options = self._template.options
        channel = connection.channel(CHANNEL)
        if self._index == 0 and not options.exchange:
            for queue in filter(None, self._template.queues):
                channel, _ = self._template.declare(connection, channel, queue)
        if options.confirm:
            channel.confirm_select()
        if options.transaction:
            channel.tx_select()
        if self.engine is None:
            self.engine = self._make_engine(connection.frame_max)

    def work(self, connection: Connection) -> None:
        """Publish. Raises: ClientError."""
        assert self.engine is not None
        end, rest = self.engine.run(*connection.detach())
        raise_for(end, rest)
        connection.resume(rest)

    def _make_engine(self, frame_max: int) -> _perf.Publisher:
        options = self._template.options
        return _perf.Publisher(
            self._shared,
            methods=self._template.methods,
            first=self._index,
            content=self._template.content(frame_max),
            body_size=options.size,
            chunk=frame_max - FRAME_OVERHEAD,
            rate=options.rate,
            window=options.confirm,
            transaction=options.transaction,
            stamp=options.measure_latency,
            random=options.random_bodies,
        )


class Consumer:
    """Consumer number `index`; the queues are dealt out to the consumers in turn."""

    def __init__(self, template: Template, shared: _perf.Run, index: int) -> None:
        options = template.options
        self._template = template
        self._declared = template.queues[index % len(template.queues)]
        self._queue = self._declared
        self._channel: Channel | None = None
        # Acknowledging in transactions implies acknowledging.
        self._ack = options.ack or options.ack_transaction
        self.name = f"consumer {index + 1}"
        self.engine = _perf.Consumer(
            shared,
            rate=options.consumer_rate,
            ack=self._ack,
            transaction=options.ack_transaction,
            body_size=options.size,
            verify=options.verify,
            random=options.random_bodies,
            stamp=options.measure_latency,
            get=self._get_payload() if options.poll else b"",
        )

    def set_up(self, connection: Connection) -> None:
        """Open the channel, declare, bind. Raises: ClientError."""
        options = self._template.options
        channel = connection.channel(CHANNEL)
        channel, self._queue = self._template.declare(connection, channel, self._declared)
        if options.exchange:
            key = self._queue if options.routing_key is None else options.routing_key
            channel.bind_queue(self._queue, options.exchange, key)
        if options.prefetch:
            channel.qos(options.prefetch)
        if options.ack_transaction:
            channel.tx_select()
        self._channel = channel

    def work(self, connection: Connection) -> None:
        """Consume. Raises: ClientError."""
        assert self._channel is not None
        options = self._template.options
        if not options.poll:
            arguments = options.consumer_args
            self._channel.consume(self._queue, no_ack=not self._ack, arguments=arguments)
        end, rest = self.engine.run(*connection.detach())
        raise_for(end, rest)
        connection.resume(rest)

    def _get_payload(self) -> bytes:
        # An empty queue name means the queue declared last on the channel, which is ours.
        method = build(commands.Basic.Get, queue=self._declared, no_ack=not self._ack)
        return encode_method(CHANNEL, method)[7:-1]
