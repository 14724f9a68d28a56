"""The operations of the churn scenarios of lavinmqperf, as requests and the replies to wait for."""

from collections.abc import Callable
from dataclasses import dataclass

from lavinmq.cli.perf.conversation import Step, open_channel, step
from lavinmq.client import frames

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
    flags = (False, durable, not durable, False, False)
    return step(CHANNEL, "queue.declare", 0, queue, *flags, {})


def _bind(kind: str, queue: str) -> Operation:
    # A key of its own each time: a binding that exists would not be made again.
    bind = step(CHANNEL, "queue.bind", 0, queue, EXCHANGE, SERIAL, False, {})
    durable = kind == "durable"
    prepare = (_declare(queue, durable),)
    return Operation(f"bind {kind} queue", prepare, (bind,), queue if durable else "")


def _create_and_delete(kind: str, queue: str) -> Operation:
    delete = step(CHANNEL, "queue.delete", 0, queue, False, False, False)
    durable = kind == "durable"
    body = (_declare(queue, durable), delete)
    return Operation(f"create/delete {kind} queue", (), body, queue if durable else "")


def _open_channel() -> Operation:
    body = (
        open_channel(SECOND_CHANNEL),
        step(SECOND_CHANNEL, "channel.close", *frames.GOODBYE),
    )
    return Operation("open/close channel", (), body)


def _consume(queue: str) -> Operation:
    flags = (False, False, False, False)
    body = (
        step(CHANNEL, "basic.consume", 0, queue, CONSUMER_TAG, *flags, {}),
        step(CHANNEL, "basic.cancel", CONSUMER_TAG, False),
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
