"""The operations of the churn scenarios of lavinmqperf, as requests and the replies to wait for."""

from collections.abc import Callable
from dataclasses import dataclass

from pamqp import commands

from lavinmq.cli.perf.conversation import Step, open_channel, step
from lavinmq.client.connection import GOODBYE
from lavinmq.client.wire import build

# The first channel is open before the operation begins.
CHANNEL, SECOND_CHANNEL = 1, 2
EXCHANGE = "amq.direct"
CONSUMER_TAG = "churn"
SERIAL = b"########"


@dataclass(frozen=True, slots=True)
class Operation:
    """What one client does: once to prepare, then the body over and over.

    SERIAL in a request of the body is to be replaced by a number of the same width. An operation
    without a body measures the connection itself. `durable_queue` may be left over at the end.
    """

    name: str
    prepare: tuple[Step, ...] = ()
    body: tuple[Step, ...] = ()
    durable_queue: str = ""


def _declare(queue: str, durable: bool = False) -> Step:
    # Those that are not durable are exclusive: gone with the connection, whatever happens to us.
    method = build(commands.Queue.Declare, queue=queue, durable=durable, exclusive=not durable)
    return step(CHANNEL, method, commands.Queue.DeclareOk)


def _bind(kind: str, queue: str) -> Operation:
    # A key of its own each time: a binding that exists would not be made again.
    names = {"queue": queue, "exchange": EXCHANGE, "routing_key": SERIAL.decode()}
    bind = step(CHANNEL, build(commands.Queue.Bind, **names), commands.Queue.BindOk)
    durable = kind == "durable"
    prepare = (_declare(queue, durable),)
    return Operation(f"bind {kind} queue", prepare, (bind,), queue if durable else "")


def _create_and_delete(kind: str, queue: str) -> Operation:
    delete = step(CHANNEL, build(commands.Queue.Delete, queue=queue), commands.Queue.DeleteOk)
    durable = kind == "durable"
    body = (_declare(queue, durable), delete)
    return Operation(f"create/delete {kind} queue", (), body, queue if durable else "")


def _open_channel() -> Operation:
    close = build(commands.Channel.Close, **GOODBYE)
    body = (
        open_channel(SECOND_CHANNEL),
        step(SECOND_CHANNEL, close, commands.Channel.CloseOk),
    )
    return Operation("open/close channel", (), body)


def _consume(queue: str) -> Operation:
    consume = build(commands.Basic.Consume, queue=queue, consumer_tag=CONSUMER_TAG)
    cancel = build(commands.Basic.Cancel, consumer_tag=CONSUMER_TAG)
    body = (
        step(CHANNEL, consume, commands.Basic.ConsumeOk),
        step(CHANNEL, cancel, commands.Basic.CancelOk),
    )
    return Operation("consume/cancel", (_declare(queue),), body)


# By scenario: what makes its operations for a client, whose queues begin with this name.
OPERATIONS: dict[str, Callable[[str], list[Operation]]] = {
    "bind-churn": lambda queue: [
        _bind(kind, f"{queue}-{kind}") for kind in ("non-durable", "durable")
    ],
    "queue-churn": lambda queue: [
        _create_and_delete(kind, f"{queue}-{kind}") for kind in ("transient", "durable")
    ],
    "connection-churn": lambda _: [Operation("open/close connection with channel")],
    "channel-churn": lambda _: [_open_channel()],
    "consumer-churn": lambda queue: [_consume(queue)],
}
