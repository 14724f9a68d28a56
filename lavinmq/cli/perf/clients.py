"""The publishers and consumers of `lavinmqperf amqp throughput`, up to the first message.

`Template` turns options into encoded frames once, for all clients. `Publisher` and `Consumer`
declare what they need over a connection, then borrow its socket for their `lavinmq._perf` engine.
Threads, reconnecting and reporting are `lavinmq.cli.perf.throughput`'s.
"""

from typing import Any

from lavinmq import _perf
from lavinmq.cli.perf.peer import Connection
from lavinmq.cli.perf.throughput_options import ThroughputOptions
from lavinmq.client import frames
from lavinmq.client._engine import PROPERTY_NAMES, encode_properties
from lavinmq.client.errors import ConnectionLost, ConsumerCancelled, NotFound, PreconditionFailed

PATTERN = bytes(range(64, 64 + 27))
CHANNEL = 1
# Of a tag that begins like this the broker keeps no position in a stream.
CONSUMER_TAG = "amq.ctag-perf"


class Template:
    """What all clients of a run share. Raises: ValueError when an option does not fit AMQP."""

    def __init__(self, options: ThroughputOptions) -> None:
        self.options = options
        self.queues = options.queues
        self.properties = message_properties(options)
        keys = self.queues if options.routing_key is None else [options.routing_key]
        try:
            self.methods = [
                frames.method(CHANNEL, "basic.publish", 0, options.exchange, key, False, False)
                for key in keys
            ]
        except ValueError as error:
            raise ValueError(f"cannot encode exchange or routing key: {error}") from error
        # Only to have bad arguments refused here and not in every client's thread.
        frames.method(CHANNEL, "queue.declare", *self._queue("", passive=False))
        self.consume("")

    def content(self, frame_max: int) -> bytes:
        """Return content header and body frames of one message."""
        size = self.options.size
        body = (PATTERN * (size // len(PATTERN) + 1))[:size]
        return frames.content(CHANNEL, self.properties, body, frame_max)

    def consume(self, queue: str) -> bytes:
        """Return the method that starts a consumer, which is not answered."""
        options = self.options
        is_acked = bool(options.ack or options.ack_transaction)
        flags = (False, not is_acked, False, True)
        return frames.method(
            CHANNEL, "basic.consume", 0, queue, CONSUMER_TAG, *flags, options.consumer_args
        )

    def declare(self, connection: Connection, queue: str) -> str:
        """Declare a queue, passively if it exists with other arguments; return its name."""
        try:
            found = connection.call("queue.declare", *self._queue(queue, passive=False))
        except PreconditionFailed as why:
            connection.open_channel()
            try:
                found = connection.call("queue.declare", *self._queue(queue, passive=True))
            except NotFound:  # nothing can have these arguments
                raise why from None
        name = str(found[0])
        if self.options.measure_latency:
            connection.call("queue.purge", 0, name, False)
        return name

    def _queue(self, name: str, *, passive: bool) -> tuple[Any, ...]:
        flags = (passive, bool(name), False, not name, False)
        return (0, name, *flags, {} if passive else self.options.queue_args)


def message_properties(options: ThroughputOptions) -> bytes:
    """Make the properties of each message. Raises: ValueError for unknown names and bad values."""
    values: dict[str, Any] = dict(options.properties)
    if "message_type" in values:
        values["type"] = values.pop("message_type")
    if unknown := set(values) - set(PROPERTY_NAMES):
        raise ValueError(f"unknown message properties: {', '.join(sorted(unknown))}")
    if options.persistent:
        values["delivery_mode"] = 2
    try:
        return encode_properties(values)
    except ValueError as error:
        raise ValueError(f"cannot encode properties: {error}") from error


def raise_for(end: int, reason: bytes) -> None:
    """Raise what ended a run of an engine, unless it was done. Raises: Error."""
    if end == _perf.DONE:
        return
    if end != _perf.CLOSED:
        raise ConnectionLost(reason.decode())
    if reason.startswith(frames.id_of("basic.cancel")):
        raise ConsumerCancelled("the consumer was cancelled by the broker")
    raise frames.close_of(reason)


class Publisher:
    """Publisher number `index`; the first one declares the queues, if they are the target."""

    def __init__(self, template: Template, shared: _perf.Run, index: int) -> None:
        self._template = template
        self._shared = shared
        self._index = index
        self.name = f"publisher {index + 1}"
        self.engine: _perf.Publisher | None = None

    def set_up(self, connection: Connection) -> None:
        """Open the channel and declare. Raises: Error."""
        options = self._template.options
        connection.open_channel()
        if self._index == 0 and not options.exchange:
            for queue in filter(None, self._template.queues):
                self._template.declare(connection, queue)
        if options.confirm:
            connection.call("confirm.select", False)
        if options.transaction:
            connection.call("tx.select")
        if self.engine is None:
            self.engine = self._make_engine(connection.frame_max)

    def work(self, connection: Connection) -> None:
        """Publish. Raises: Error."""
        assert self.engine is not None
        end, rest = self.engine.run(connection.borrow())
        raise_for(end, rest)
        connection.give_back(rest)

    def _make_engine(self, frame_max: int) -> _perf.Publisher:
        options = self._template.options
        return _perf.Publisher(
            self._shared,
            methods=self._template.methods,
            first=self._index,
            content=self._template.content(frame_max),
            body_size=options.size,
            chunk=frame_max - frames.OVERHEAD,
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
        """Open the channel, declare, bind. Raises: Error."""
        options = self._template.options
        connection.open_channel()
        self._queue = self._template.declare(connection, self._declared)
        if options.exchange:
            key = self._queue if options.routing_key is None else options.routing_key
            connection.call("queue.bind", 0, self._queue, options.exchange, key, False, {})
        if options.prefetch:
            connection.call("basic.qos", 0, options.prefetch, False)
        if options.ack_transaction:
            connection.call("tx.select")

    def work(self, connection: Connection) -> None:
        """Consume. Raises: Error."""
        descriptor = connection.borrow()
        if not self._template.options.poll:
            connection.socket.sendall(self._template.consume(self._queue))
        end, rest = self.engine.run(descriptor)
        raise_for(end, rest)
        connection.give_back(rest)

    def _get_payload(self) -> bytes:
        # An empty queue name means the queue declared last on the channel, which is ours.
        return frames.method(CHANNEL, "basic.get", 0, self._declared, not self._ack)[7:-1]
