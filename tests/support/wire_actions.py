"""Steps that tests on a `Wire` have in common: declare, bind, take, count.

Nothing here opens or closes anything; each step waits for its answer.
"""

from __future__ import annotations

from pamqp import commands

from tests.support.wire import Unit, Wire

Arguments = dict[str, object]


def declare(
    wire: Wire,
    queue: str,
    channel: int = 1,
    *,
    durable: bool = False,
    exclusive: bool = True,
    auto_delete: bool = False,
    arguments: Arguments | None = None,
) -> str:
    """Declare a queue, which goes with the connection unless told otherwise; return its name."""
    request = commands.Queue.Declare(
        queue=queue,
        durable=durable,
        exclusive=exclusive,
        auto_delete=auto_delete,
        arguments=arguments or {},
    )
    return wire.call(channel, request, commands.Queue.DeclareOk).queue


def declare_exchange(
    wire: Wire, exchange: str, kind: str, channel: int = 1, arguments: Arguments | None = None
) -> str:
    """Declare an exchange that goes with its last binding; return its name."""
    request = commands.Exchange.Declare(
        exchange=exchange, exchange_type=kind, auto_delete=True, arguments=arguments or {}
    )
    wire.call(channel, request, commands.Exchange.DeclareOk)
    return exchange


def bind(
    wire: Wire, queue: str, exchange: str, key: str = "", arguments: Arguments | None = None
) -> None:
    """Bind a queue."""
    request = commands.Queue.Bind(
        queue=queue, exchange=exchange, routing_key=key, arguments=arguments or {}
    )
    wire.call(1, request, commands.Queue.BindOk)


def unbind(
    wire: Wire, queue: str, exchange: str, key: str = "", arguments: Arguments | None = None
) -> None:
    """Unbind a queue."""
    request = commands.Queue.Unbind(
        queue=queue, exchange=exchange, routing_key=key, arguments=arguments or {}
    )
    wire.call(1, request, commands.Queue.UnbindOk)


def bind_exchange(wire: Wire, destination: str, source: str, key: str = "") -> None:
    """Bind an exchange to another one."""
    request = commands.Exchange.Bind(destination=destination, source=source, routing_key=key)
    wire.call(1, request, commands.Exchange.BindOk)


def consume(wire: Wire, queue: str, tag: str, channel: int = 1, *, no_ack: bool = False) -> None:
    """Start a consumer."""
    request = commands.Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack)
    wire.call(channel, request, commands.Basic.ConsumeOk)


def qos(wire: Wire, count: int, channel: int = 1, *, is_global: bool = False) -> None:
    """Set the prefetch."""
    request = commands.Basic.Qos(prefetch_count=count, global_=is_global)
    wire.call(channel, request, commands.Basic.QosOk)


def synchronise(wire: Wire, channel: int = 1) -> None:
    """Wait until everything sent before on the channel is handled."""
    passive = commands.Exchange.Declare(exchange="amq.direct", passive=True)
    wire.call(channel, passive, commands.Exchange.DeclareOk)


def get(wire: Wire, queue: str, channel: int = 1, *, no_ack: bool = True) -> Unit | None:
    """Return the next message, or None when the queue says it is empty."""
    wire.send(channel, commands.Basic.Get(queue=queue, no_ack=no_ack))
    unit = wire.receive()
    assert isinstance(unit.method, commands.Basic.GetOk | commands.Basic.GetEmpty), unit
    return unit if isinstance(unit.method, commands.Basic.GetOk) else None


def get_all(wire: Wire, queue: str, channel: int = 1) -> list[bytes]:
    """Return the bodies of all ready messages, which are gone then."""
    found = []
    while (unit := get(wire, queue, channel)) is not None:
        found.append(unit.body)
    return found


def ready(wire: Wire, queue: str, channel: int = 1) -> int:
    """Return how many messages are ready."""
    passive = commands.Queue.Declare(queue=queue, passive=True)
    return wire.call(channel, passive, commands.Queue.DeclareOk).message_count


def deliveries(wire: Wire, count: int) -> list[Unit]:
    """Return the next so many units, which must be deliveries."""
    return [wire.expect_unit(commands.Basic.Deliver) for _ in range(count)]
