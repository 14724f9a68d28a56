"""One AMQP channel: its rare methods, decided in Python one at a time.

Publishes, deliveries and settlements never come here; the message path handles them on the same
channel. A method returns the replies to send, or raises ChannelError; changes of durable
definitions are answered once they are on disk. Called by `connection.py`. Longer than 500 lines: a
handler for each method, in the order of the specification.
Source: docs/protocol.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from lavinmq import _core
from lavinmq.amqp import methods as m
from lavinmq.arguments.names import REPLY_PREFIX, REPLY_TO, check_name, failed, missing, refused
from lavinmq.arguments.stream import Reading, check_consumer, reading
from lavinmq.errors import TOO_FEW, ChannelError, ConnectionError_, ReplyCode
from lavinmq.fieldtable import FieldTable, Timestamp
from lavinmq.files import stream_epochs
from lavinmq.stats.sampler import NOTHING
from lavinmq.stats.track import Counters
from lavinmq.vhost import rights
from lavinmq.vhost.new_queue import Declared, DeclaredExchange, NewQueue

if TYPE_CHECKING:
    from lavinmq.amqp.connection import Connection
    from lavinmq.stats.track import Track
    from lavinmq.vhost.queue import Queue

LARGE_HEADER: Final = "a message has a larger header than the frame_max of this connection allows"
"""It stays in its queue, for a client with larger frames."""


class Consumer:
    """A consumer of this channel, as its queue knows it."""

    __slots__ = ("channel", "core", "exclusive", "no_ack", "priority", "queue", "tag")

    def __init__(
        self, channel: Channel, queue: Queue, tag: str, exclusive: bool, no_ack: bool,
        priority: int, core: _core.Consumer,
    ) -> None:  # fmt: skip
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.exclusive = exclusive
        self.no_ack = no_ack
        self.priority = priority
        self.core = core

    @property
    def is_active(self) -> bool:
        """Whether it may get messages, or waits for others to leave a queue that serves one."""
        return not self.queue.is_single_active or self.queue.active_consumer is self

    @property
    def is_for_replies(self) -> bool:
        """Whether it takes direct replies, whose address is nobody else's business."""
        return self.queue.name.startswith(REPLY_PREFIX)

    def start(self) -> None:
        """Its turn has come: let deliveries begin."""
        self.core.start()

    def stop(self) -> None:
        """The queue is gone: nothing more is delivered."""
        self.core.cancel()
        self.channel.forget(self.tag)
        self.channel.connection.vhost.totals.churn.count("consumer_removed")

    def cancelled(self) -> None:
        """Tell the client with basic.cancel, unless its channel is gone too."""
        if self.channel.connection.channels.get(self.channel.id) is not self.channel:
            return
        self.channel.connection.send(self.channel.id, m.BasicCancel(self.tag, True))


class Channel:
    """State of one channel that the message path does not need."""

    __slots__ = (
        "connection", "consumers", "id", "is_flowing", "is_over", "last_queue", "mode", "track",
    )  # fmt: skip

    def __init__(self, connection: Connection, id_: int) -> None:
        self.connection = connection
        self.id = id_
        self.mode: Literal["", "confirm", "tx"] = ""
        self.consumers: dict[str, Consumer] = {}
        self.last_queue = ""
        self.is_flowing = True
        self.is_over = False
        """Whether the broker has closed it; the client may not have answered."""
        self.track: Track | None = None

    @property
    def name(self) -> str:
        """The address of the client with the number of the channel."""
        return f"{self.connection.name.partition(' -> ')[0]}[{self.id}]"

    def counters(self) -> Counters:
        """What messages have gone through it."""
        return NOTHING if self.is_over else self.connection.link.channel_counters(self.id)

    def handle(self, method: m.Method) -> None:
        """Carry out one method. Raises: ChannelError, ConnectionError_."""
        handler = _HANDLERS.get(type(method))
        if handler is None:
            raise ChannelError(
                ReplyCode.NOT_IMPLEMENTED, f"{method.NAME} is not for clients to send"
            )
        refuses = self.connection.broker.refuses
        if refuses is None:
            handler(self, method)
            return
        if not _is_read(method):
            raise refused(refuses())
        try:
            handler(self, method)
        except ChannelError as error:
            if error.code == ReplyCode.NOT_FOUND:
                error.text = f"{error.text}; {refuses()}"
            raise

    def release(self) -> None:
        """Cancel all consumers at once. Idempotent."""
        for _ in self.releasing():
            pass

    def releasing(self) -> Iterator[None]:
        """Cancel all consumers, which get nothing any more, one in each step: the channel or the
        connection is going. Others may do the same meanwhile."""
        if not self.is_over:
            self.is_over = True
            self.connection.vhost.totals.churn.count("channel_closed")
        while self.consumers:
            self._drop(next(reversed(self.consumers.values())))
            yield

    def forget(self, tag: str) -> None:
        """A consumer is over."""
        if self.consumers.pop(tag, None) is not None:
            self.connection.n_consumers -= 1

    def cancel(self, tag: str) -> bool:
        """End a consumer on behalf of an operator, and tell the client.

        Returns: whether there is one of that tag.
        """
        consumer = self.consumers.get(tag)
        if consumer is None or consumer.is_for_replies:
            return False
        self._drop(consumer)
        consumer.cancelled()
        return True

    def review(self, consumer: Consumer) -> None:
        """End a consumer whose queue the user may not read any more, and tell the client."""
        connection, name = self.connection, consumer.queue.name
        if consumer.is_for_replies or connection.user.can_read(connection.vhost.name, name):
            return
        if connection.is_told_of_cancels:
            self._drop(consumer)
            consumer.cancelled()
            return
        error = refused(f"User '{connection.user.name}' doesn't have permissions to queue '{name}'")
        connection.refuse_consumer(self.id, error)

    def set_prefetch(self, count: int) -> None:
        """What basic.qos sets, on behalf of an operator: the limit of each of its consumers."""
        self.connection.link.set_prefetch(self.id, count, False)

    def _drop(self, consumer: Consumer) -> None:
        consumer.core.cancel()
        self.forget(consumer.tag)
        if not consumer.is_for_replies:
            self.connection.vhost.totals.churn.count("consumer_removed")
        if consumer.is_for_replies:
            self.connection.link.set_reply_address(self.id, b"")
            self.connection.vhost.reply_queues.remove(consumer.queue)
        else:
            self.connection.vhost.consumer_left(consumer.queue, consumer)

    def _reply(self, method: m.Method, no_wait: bool = False) -> None:
        if not no_wait:
            self.connection.send(self.id, method)

    def _reply_when(self, recorded: bool, method: m.Method, no_wait: bool = False) -> None:
        """Reply, after what was recorded is on disk."""
        connection = self.connection
        if not recorded:
            self._reply(method, no_wait)
        elif no_wait:
            connection.when_synced(_say_nothing)
        else:
            reply = m.encode_frame(self.id, method)
            connection.when_synced(partial(connection.link.write, reply))

    def _reply_bound(self, recorded: bool, method: m.Method, no_wait: bool) -> None:
        """Reply to a binding, after who is bound has what its exchange keeps."""
        if self.connection.vhost.bindings.are_in_force:
            self._reply_when(recorded, method, no_wait)
        else:
            self.connection.when_bound(recorded, partial(self._reply, method, no_wait))

    def _queue_name(self, name: str) -> str:
        """An empty name means the queue that this channel declared last."""
        return name or self.last_queue

    # --- exchanges ----------------------------------------------------------------------------

    def _exchange_declare(self, d: m.ExchangeDeclare) -> None:
        declared = self.connection.vhost.declare_exchange(
            self.connection, d.exchange, d.type, d.passive, d.durable, d.auto_delete, d.internal,
            d.arguments,
        )  # fmt: skip
        self._exchange_declared(declared, d.no_wait)

    def _exchange_declared(self, declared: DeclaredExchange, no_wait: bool) -> bool:
        """Answer, once the exchange is there. Returns: whether the client's next frames wait."""
        if isinstance(declared, NewQueue):
            ids = m.ExchangeDeclare.CLASS_ID, m.ExchangeDeclare.METHOD_ID
            again = partial(self._exchange_declare_again, declared, no_wait)
            self.connection.when_made(self.id, ids, declared.when_made, again)
            return True
        self._reply_when(declared, m.ExchangeDeclareOk(), no_wait)
        return declared

    def _exchange_declare_again(self, new: NewQueue[bool], no_wait: bool) -> bool:
        return not self.is_over and self._exchange_declared(new.declare(), no_wait)

    def _exchange_delete(self, d: m.ExchangeDelete) -> None:
        recorded = self.connection.vhost.delete_exchange(self.connection, d.exchange, d.if_unused)
        self._reply_when(recorded, m.ExchangeDeleteOk(), d.no_wait)

    def _exchange_bind(self, d: m.ExchangeBind) -> None:
        recorded = self.connection.vhost.bindings.bind_exchange(
            self.connection, d.destination, d.source, d.routing_key, d.arguments
        )
        self._reply_bound(recorded, m.ExchangeBindOk(), d.no_wait)

    def _exchange_unbind(self, d: m.ExchangeUnbind) -> None:
        recorded = self.connection.vhost.bindings.unbind_exchange(
            self.connection, d.destination, d.source, d.routing_key, d.arguments
        )
        self._reply_when(recorded, m.ExchangeUnbindOk(), d.no_wait)

    # --- queues -------------------------------------------------------------------------------

    def _queue_declare(self, d: m.QueueDeclare) -> None:
        if d.queue in REPLY_TO or d.queue.startswith(REPLY_PREFIX):
            self._declare_reply_queue(d)
            return
        declared = self.connection.vhost.declare_queue(
            self.connection, d.queue, d.passive, d.durable, d.exclusive, d.auto_delete, d.arguments
        )
        self._declared(declared, d.no_wait)

    def _declared(self, declared: Declared, no_wait: bool) -> bool:
        """Answer, once the queue is there. Returns: whether the client's next frames wait."""
        if isinstance(declared, NewQueue):
            ids = m.QueueDeclare.CLASS_ID, m.QueueDeclare.METHOD_ID
            again = partial(self._declare_again, declared, no_wait)
            self.connection.when_made(self.id, ids, declared.when_made, again)
            return True
        queue, recorded = declared
        self.last_queue = queue.name
        ready = min(queue.core.ready, 0xFFFFFFFF)
        reply = m.QueueDeclareOk(queue.name, ready, len(queue.consumers))
        self._reply_when(recorded, reply, no_wait)
        return recorded

    def _declare_again(self, new: NewQueue[tuple[Queue, bool]], no_wait: bool) -> bool:
        return not self.is_over and self._declared(new.declare(), no_wait)

    def _declare_reply_queue(self, d: m.QueueDeclare) -> None:
        """Declaring says whether somebody waits for replies there; it makes nothing."""
        if d.queue not in REPLY_TO and d.queue not in self.connection.vhost.reply_queues:
            raise missing(
                f"Queue '{d.queue}' doesn't exists in vhost '{self.connection.vhost.name}'"
            )
        self._reply(m.QueueDeclareOk(d.queue, 0, int(d.queue not in REPLY_TO)), d.no_wait)

    def _queue_bind(self, d: m.QueueBind) -> None:
        name = self._queue_name(d.queue)
        key = name if not d.queue and not d.routing_key else d.routing_key
        recorded = self.connection.vhost.bindings.bind_queue(
            self.connection, name, d.exchange, key, d.arguments
        )
        self._reply_bound(recorded, m.QueueBindOk(), d.no_wait)

    def _queue_unbind(self, d: m.QueueUnbind) -> None:
        recorded = self.connection.vhost.bindings.unbind_queue(
            self.connection, self._queue_name(d.queue), d.exchange, d.routing_key, d.arguments
        )
        self._reply_when(recorded, m.QueueUnbindOk())

    def _queue_purge(self, d: m.QueuePurge) -> None:
        vhost = self.connection.vhost
        self._check_not_session(d.queue)
        purge = vhost.purge(self.connection, self._queue_name(d.queue))

        def finish() -> None:
            self._reply(m.QueuePurgeOk(min(purge.purged, 0xFFFFFFFF)), d.no_wait)

        self.connection.when_done(
            vhost.portions, purge, lambda: self.connection.when_copied(finish)
        )  # fmt: skip

    def _check_not_session(self, name: str) -> None:
        """Only operators empty or delete sessions of MQTT. Raises: ChannelError 403."""
        queue = self.connection.vhost.queues.get(name)
        if queue is not None and queue.is_session:
            rights.check_usable(self.connection.vhost.name, queue)

    def _queue_delete(self, d: m.QueueDelete) -> None:
        self._check_not_session(d.queue)
        ready, recorded, consumers = self.connection.vhost.delete_queue(
            self.connection, self._queue_name(d.queue), d.if_unused, d.if_empty
        )
        self._reply_when(recorded, m.QueueDeleteOk(min(ready, 0xFFFFFFFF)), d.no_wait)
        vhost = self.connection.vhost
        tell = partial(vhost.tell_cancelled, consumers)
        if recorded:  # its consumers hear of it even if this client goes meanwhile
            vhost.recorded.when_synced(tell)
        else:
            tell()

    # --- consuming ----------------------------------------------------------------------------

    def _qos(self, d: m.BasicQos) -> None:
        if d.prefetch_size:
            raise ChannelError(ReplyCode.NOT_IMPLEMENTED, "prefetch_size is not supported")
        self.connection.link.set_prefetch(self.id, d.prefetch_count, d.global_)
        self._reply(m.BasicQosOk())

    def _consume(self, d: m.BasicConsume) -> None:
        name = self._queue_name(d.queue)
        check_name("Queue", name)
        queue = None
        if name in REPLY_TO:
            self._check_replies(d)
        else:
            queue = self._check_consume(name, d)
        priority = _priority(d.arguments)
        tag = d.consumer_tag or "amq.ctag-" + secrets.token_urlsafe(24)
        is_stream = queue is not None and queue.is_stream
        how = None
        if queue is not None and is_stream:
            most = self.connection.config.max_filter_conditions
            how = reading(tag, d.arguments, time.time_ns() // 1_000_000, most)
            if how.epoch:
                self._check_epoch(queue, how)
            if how.is_tracked and self.connection.broker.refuses is not None:
                raise failed(
                    "This node keeps no positions: x-stream-offset has to say where to begin, and"
                    " x-stream-automatic-offset-tracking must not be set"
                )
        if tag in self.consumers:
            raise ConnectionError_(
                ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'",
                d.CLASS_ID, d.METHOD_ID,
            )  # fmt: skip
        self._add_consumer(queue or self._reply_queue(), tag, priority, how, d)

    def _add_consumer(
        self, queue: Queue, tag: str, priority: int, how: Reading | None, d: m.BasicConsume
    ) -> None:
        """Nothing stands against it any more."""
        raw = tag.encode("utf-8", "surrogateescape")
        rank = 0 if queue.is_single_active else priority
        core = self.connection.link.add_consumer(self.id, queue.core, raw, d.no_ack, rank)
        if how is not None:
            core.read_stream(
                how.start, is_tracked=how.is_tracked, uses_stored=how.uses_stored,
                conditions=how.conditions, is_any=how.is_any,
                takes_unfiltered=how.takes_unfiltered, end=how.end, tells_time=how.tells_time,
                tells_epoch=how.tells_epoch,
            )  # fmt: skip
        consumer = Consumer(self, queue, tag, d.exclusive, d.no_ack, priority, core)
        self.consumers[tag] = consumer
        self.connection.n_consumers += 1
        queue.add_consumer(consumer)
        if not consumer.is_for_replies:
            self.connection.vhost.totals.churn.count("consumer_added")
        self._reply(m.BasicConsumeOk(tag), d.no_wait)
        if consumer.is_active:
            consumer.start()

    def _check_epoch(self, queue: Queue, how: Reading) -> None:
        """Raises: ChannelError 406 when messages that the consumer has read may be others now."""
        assert isinstance(how.start, int)
        other = stream_epochs.divergence(queue.core.epochs, how.epoch, how.start)
        if other is not None:
            raise failed(
                f"Stream '{queue.name}' in vhost '{self.connection.vhost.name}' is another from "
                f"offset {other[1]} on: epoch {other[0]} begins there, and offset {how.start} was "
                f"reached in epoch {how.epoch}"
            )

    def _check_replies(self, d: m.BasicConsume) -> None:
        """A consumer of direct replies replaces an earlier one of the channel."""
        if not d.no_ack:
            raise ChannelError(
                ReplyCode.PRECONDITION_FAILED, "Direct replys must be consumed in no-ack mode"
            )
        for consumer in list(self.consumers.values()):
            if consumer.is_for_replies:
                self._drop(consumer)
        self._check_limit()

    def _reply_queue(self) -> Queue:
        """An address for direct replies to this channel."""
        queue = self.connection.vhost.reply_queues.add()
        self.connection.link.set_reply_address(self.id, queue.name.encode())
        return queue

    def _check_limit(self) -> None:
        limit = self.connection.config.max_consumers_per_channel
        if limit and len(self.consumers) >= limit:
            raise ChannelError(
                ReplyCode.RESOURCE_ERROR, f"Max {limit} consumers per channel reached"
            )
        limit = self.connection.config.max_consumers_per_connection
        if limit and self.connection.n_consumers >= limit:
            raise ChannelError(
                ReplyCode.RESOURCE_ERROR,
                f"Max {limit} consumers per connection reached (max_consumers_per_connection)",
            )

    def _check_consume(self, name: str, d: m.BasicConsume) -> Queue:
        connection, vhost = self.connection, self.connection.vhost
        if not connection.user.can_read(vhost.name, name):
            raise refused(
                f"User '{connection.user.name}' doesn't have permissions to queue '{name}'"
            )
        self._check_limit()
        queue = vhost.queues.get(name)
        if queue is None:
            raise missing(f"Queue '{name}' not declared in vhost '{vhost.name}'")
        rights.check_usable(vhost.name, queue)
        if queue.is_locked_to(connection):
            raise rights.locked(vhost.name, queue)
        most = queue.features.max_consumers
        if most is not None and len(queue.consumers) >= most:
            raise failed(f"'{name}' has {most} consumers, as many as may be (max-consumers)")
        if queue.is_stream:
            check_consumer(d.exclusive, d.no_ack, connection.link.prefetch(self.id), d.arguments)
            return queue
        if queue.has_exclusive_consumer or (d.exclusive and queue.consumers):
            raise refused(f"Queue '{name}' in vhost '{vhost.name}' in exclusive use")
        return queue

    def _cancel(self, d: m.BasicCancel) -> None:
        consumer = self.consumers.get(d.consumer_tag)
        if consumer is not None:
            self._drop(consumer)
        self._reply(m.BasicCancelOk(d.consumer_tag), d.no_wait)

    def _get(self, d: m.BasicGet) -> None:
        connection, vhost, name = self.connection, self.connection.vhost, self._queue_name(d.queue)
        if not connection.user.can_read(vhost.name, name):
            raise refused(
                f"User '{connection.user.name}' doesn't have permissions to queue '{name}'"
            )
        queue = vhost.queues.get(name)
        if queue is None:
            raise missing(f"No queue '{name}' in vhost '{vhost.name}'")
        if queue.is_locked_to(connection):
            raise rights.locked(vhost.name, queue)
        if queue.has_exclusive_consumer:
            raise refused(f"Queue '{name}' in vhost '{vhost.name}' in exclusive use")
        if queue.is_stream:
            raise ChannelError(ReplyCode.NOT_IMPLEMENTED, "basic.get is not possible on a stream")
        if queue.is_session:
            rights.check_usable(vhost.name, queue)
        vhost.get_used(queue)
        if queue.is_internal:
            self._reply(m.BasicGetEmpty())
            return
        step = partial(self._get_next, queue, d.no_ack)
        connection.in_turns(self.id, (d.CLASS_ID, d.METHOD_ID), step)

    def _get_next(self, queue: Queue, no_ack: bool) -> bool:
        """Answer with the next message, or that there is none; whether it takes another turn to get
        to it."""
        link = self.connection.link
        if not self.is_over:
            if not queue.core.reach():
                return True
            try:
                found = link.get(self.id, queue.core, no_ack)
            except MemoryError as error:
                raise ChannelError(ReplyCode.RESOURCE_ERROR, str(error)) from error
            except ValueError as error:
                raise failed(LARGE_HEADER) from error
            if not found:
                self._reply(m.BasicGetEmpty())
        link.resume()
        return False

    def _recover(self, d: m.BasicRecover) -> None:
        self._reply(m.BasicRecoverOk())
        self.connection.link.recover(self.id, d.requeue)
        self.connection.when_returned(_say_nothing)

    # --- confirms and transactions ------------------------------------------------------------

    def _confirm_select(self, d: m.ConfirmSelect) -> None:
        if self.mode == "tx":
            raise failed("Channel already in transactional mode")
        self.mode = "confirm"
        self.connection.link.select_confirms(self.id)
        self._reply(m.ConfirmSelectOk(), d.no_wait)

    def _tx_select(self, _d: m.TxSelect) -> None:
        if self.mode == "confirm":
            raise failed("Channel already in confirm mode")
        self.mode = "tx"
        self.connection.link.select_transactions(self.id)
        self._reply(m.TxSelectOk())

    def _tx_commit(self, d: m.TxCommit) -> None:
        self._check_tx()
        before = self.connection.broker.loop.breaks
        self._in_turns(partial(self._commit_some, before))

    def _in_turns(self, step: Callable[[], bool]) -> None:
        self.connection.in_turns(self.id, (m.TxCommit.CLASS_ID, m.TxCommit.METHOD_ID), step)

    def _commit_some(self, before: int) -> bool:
        """Go on with a commit; whether there is more of it now. It is answered when it is on disk.

        Args: before: how many queues had broken when it began."""
        connection = self.connection
        if self.is_over:
            connection.link.resume()
            return False
        try:
            while (question := connection.link.commit(self.id)) is not None:
                if question is True:
                    return True
                if question is False:
                    connection.link.pause()
                    settle = partial(self._settle_some, before)
                    connection.broker.loop.after_sync(
                        partial(self._in_turns, settle), partial(self._in_turns, self._refuse)
                    )
                    return False
                connection.allow(*question)
        except ValueError as error:
            raise failed(str(error)) from error
        except _core.QueueClosedError as error:
            raise _commit_is_lost() from error

        def finish() -> None:
            if connection.broker.loop.breaks != before:
                raise _commit_is_lost()
            self._reply(m.TxCommitOk())

        connection.when_committed(finish, partial(self._in_turns, self._refuse))
        return False

    def _refuse(self) -> bool:
        """What a commit has stored is on too few disks: it settles nothing more. Raises:
        ChannelError."""
        if self.is_over:
            self.connection.link.resume()
            return False
        self.connection.link.rollback(self.id)
        raise failed(f"{TOO_FEW}: the transaction may be kept, or lost")

    def _settle_some(self, before: int) -> bool:
        """What a commit has stored is on disk, if no queue has broken: go on with it."""
        if not self.is_over and self.connection.broker.loop.breaks != before:
            self.connection.link.rollback(self.id)
            raise _commit_is_lost()
        return self._commit_some(before)

    def _tx_rollback(self, _d: m.TxRollback) -> None:
        self._check_tx()
        self.connection.link.rollback(self.id)
        self._reply(m.TxRollbackOk())

    def _check_tx(self) -> None:
        if self.mode != "tx":
            raise failed("Not in transaction mode")

    def _flow(self, d: m.ChannelFlow) -> None:
        self.connection.link.set_flow(self.id, d.active)
        self.is_flowing = d.active
        self._reply(m.ChannelFlowOk(d.active))

    def _flow_ok(self, _d: m.ChannelFlowOk) -> None:
        """Ignored: the broker never sends channel.flow."""


_HANDLERS: Final[dict[type[m.Method], Callable[[Channel, Any], None]]] = {
    m.ChannelFlow: Channel._flow,
    m.ChannelFlowOk: Channel._flow_ok,
    m.ExchangeDeclare: Channel._exchange_declare,
    m.ExchangeDelete: Channel._exchange_delete,
    m.ExchangeBind: Channel._exchange_bind,
    m.ExchangeUnbind: Channel._exchange_unbind,
    m.QueueDeclare: Channel._queue_declare,
    m.QueueBind: Channel._queue_bind,
    m.QueueUnbind: Channel._queue_unbind,
    m.QueuePurge: Channel._queue_purge,
    m.QueueDelete: Channel._queue_delete,
    m.BasicQos: Channel._qos,
    m.BasicConsume: Channel._consume,
    m.BasicCancel: Channel._cancel,
    m.BasicGet: Channel._get,
    m.BasicRecover: Channel._recover,
    m.ConfirmSelect: Channel._confirm_select,
    m.TxSelect: Channel._tx_select,
    m.TxCommit: Channel._tx_commit,
    m.TxRollback: Channel._tx_rollback,
}


_READING: Final = (
    m.BasicCancel, m.BasicQos, m.BasicRecover, m.ChannelFlow, m.ChannelFlowOk,
)  # fmt: skip
"""What readers of streams use besides basic.consume and a passive queue.declare."""


def _is_read(method: m.Method) -> bool:
    """Whether it does nothing but read a stream, and what goes with that."""
    if isinstance(method, m.QueueDeclare):
        return method.passive
    if isinstance(method, m.BasicConsume):
        return method.queue not in REPLY_TO
    return isinstance(method, _READING)


def _say_nothing() -> None:
    """The client wants no reply."""


def _commit_is_lost() -> ConnectionError_:
    return ConnectionError_(
        ReplyCode.INTERNAL_ERROR, "a queue of the transaction cannot be written",
        m.TxCommit.CLASS_ID, m.TxCommit.METHOD_ID,
    )  # fmt: skip


def _priority(arguments: FieldTable) -> int:
    """`x-priority`, which has to be a 32-bit integer, or 0. Raises: ChannelError 406."""
    if "x-priority" not in arguments:
        return 0
    value = arguments["x-priority"]
    if isinstance(value, bool | Timestamp) or not isinstance(value, int):
        raise ChannelError(ReplyCode.PRECONDITION_FAILED, "x-priority must be an integer")
    if not -(1 << 31) <= value < 1 << 31:
        raise ChannelError(
            ReplyCode.PRECONDITION_FAILED,
            "x-priority out of bounds, must fit a 32-bit integer",
        )
    return value
