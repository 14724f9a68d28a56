"""A broker that may have few file descriptors: more durable queues than that take what is sent.

What queues keep open, and what waits for a sync, leaves descriptors for clients.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pamqp import commands

from tests.support.broker import Broker
from tests.support.nursery import broker_command
from tests.support.wire import Wire

DESCRIPTORS = 256
QUEUES = 400
MESSAGES = 3
CLIENTS = 40

BrokerFactory = Callable[..., Broker]


@pytest.mark.parametrize("arguments", [{}, {"x-queue-type": "stream"}], ids=["queue", "stream"])
def test_a_fanout_to_more_durable_queues_than_descriptors(
    broker_factory: BrokerFactory, arguments: dict[str, str]
) -> None:
    limited = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *broker_command()]
    broker = broker_factory(command=limited)
    names = [f"few-{number}" for number in range(QUEUES)]
    with Wire.open(broker.port) as wire:
        wire.call(
            1, commands.Exchange.Declare(exchange="few", exchange_type="fanout", durable=True),
            commands.Exchange.DeclareOk,
        )  # fmt: skip
        for name in names:
            declare = commands.Queue.Declare(queue=name, durable=True, arguments=arguments)
            wire.call(1, declare, commands.Queue.DeclareOk)
            wire.call(1, commands.Queue.Bind(queue=name, exchange="few"), commands.Queue.BindOk)
        wire.call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)
        for number in range(MESSAGES):
            wire.publish(1, "few", "", b"%d" % number)
            wire.expect(commands.Basic.Ack, 1)  # and no connection.blocked before it
        for _ in range(CLIENTS):
            with Wire.open(broker.port):
                pass
    broker.kill()

    broker.start()

    with Wire.open(broker.port) as wire:
        for name in names:
            declare = commands.Queue.Declare(queue=name, passive=True)
            assert wire.call(1, declare, commands.Queue.DeclareOk).message_count == MESSAGES
