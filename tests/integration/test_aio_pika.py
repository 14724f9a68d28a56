"""aio-pika: concurrent confirms, iterators, returns, RPC, and recovery over a broker restart."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import warnings
from collections.abc import Callable, Coroutine
from typing import ParamSpec

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustConnection, FieldValue
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError, PublishError
from aio_pika.patterns import RPC

from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

DEADLINE_S = 40.0
STEP_TIMEOUT_S = 30.0
RECONNECT_INTERVAL_S = 0.1

Test = ParamSpec("Test")


def in_event_loop(test: Callable[Test, Coroutine[None, None, None]]) -> Callable[Test, None]:
    """Run a coroutine test in an event loop of its own, for at most `STEP_TIMEOUT_S`.

    An attempt to connect that fails in its handshake, as it may while the broker restarts, leaves a
    transport of aiormq unclosed. It is collected here, where the warning says nothing of ours, and
    not in whatever test comes next. Its log stays off meanwhile: pytest keeps what is logged until
    the test has ended, and with it the traceback that holds the transport.
    """

    @functools.wraps(test)
    def run(*args: Test.args, **kwargs: Test.kwargs) -> None:
        logging.disable()
        try:
            asyncio.run(asyncio.wait_for(test(*args, **kwargs), STEP_TIMEOUT_S))
        finally:
            logging.disable(logging.NOTSET)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                gc.collect()

    return run


async def connect(broker: Broker) -> AbstractRobustConnection:
    """Open a connection that comes back by itself soon after it was lost."""
    return await aio_pika.connect_robust(broker.uri, reconnect_interval=RECONNECT_INTERVAL_S)


def persistent(body: bytes) -> aio_pika.Message:
    return aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)


@in_event_loop
async def test_concurrent_publishes_are_all_confirmed(broker: Broker) -> None:
    """edge-cases.md 129"""
    async with await connect(broker) as connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(exclusive=True)
        messages = [aio_pika.Message(b"%d" % number) for number in range(1000)]

        confirms = await asyncio.gather(
            *(channel.default_exchange.publish(message, queue.name) for message in messages)
        )

        names = {type(confirm).__name__ for confirm in confirms}
        assert names == {"Ack"}, f"the broker answered with {names}"
        # Another channel, because a robust channel answers from what it remembers.
        counted = await (await connection.channel()).declare_queue(queue.name, passive=True)
        assert counted.declaration_result.message_count == len(messages)


@in_event_loop
async def test_many_channels_publish_at_the_same_time(broker: Broker) -> None:
    async def publish_and_count(connection: AbstractRobustConnection, number: int) -> int:
        async with connection.channel() as channel:
            queue = await channel.declare_queue(exclusive=True)
            body = b"%d" % number * 1000
            publishes = (
                channel.default_exchange.publish(aio_pika.Message(body), queue.name)
                for _ in range(20)
            )
            await asyncio.gather(*publishes)
            taken = [await queue.get(no_ack=True) for _ in range(20)]
            return sum(message.body == body for message in taken)

    async with await connect(broker) as connection:
        tasks = (publish_and_count(connection, number) for number in range(20))
        counts = await asyncio.gather(*tasks)

    assert counts == [20] * 20


@in_event_loop
async def test_an_iterator_takes_messages_one_by_one(broker: Broker) -> None:
    async with await connect(broker) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=7)
        queue = await channel.declare_queue(exclusive=True)
        for number in range(100):
            await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)

        taken: list[bytes] = []
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():
                    taken.append(message.body)
                if len(taken) == 100:
                    break

        assert taken == [b"%d" % number for number in range(100)]


@in_event_loop
async def test_a_message_whose_processing_fails_is_delivered_again(broker: Broker) -> None:
    async with await connect(broker) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        attempts: list[bool] = []
        done = asyncio.Event()

        async def fail_once(message: AbstractIncomingMessage) -> None:
            attempts.append(bool(message.redelivered))
            if len(attempts) == 1:
                await message.nack(requeue=True)
                return
            await message.ack()
            done.set()

        await queue.consume(fail_once)
        await channel.default_exchange.publish(aio_pika.Message(b"again"), queue.name)
        await done.wait()

        assert attempts == [False, True]


@in_event_loop
async def test_an_unroutable_mandatory_message_fails_its_publish(
    broker: Broker, unique: UniqueName
) -> None:
    async with await connect(broker) as connection:
        channel = await connection.channel(on_return_raises=True)
        queue = await channel.declare_queue(exclusive=True)
        exchange = channel.default_exchange

        outcomes = await asyncio.gather(
            exchange.publish(aio_pika.Message(b"lost"), unique("nowhere"), mandatory=True),
            exchange.publish(aio_pika.Message(b"kept"), queue.name, mandatory=True),
            return_exceptions=True,
        )

        assert isinstance(outcomes[0], PublishError), f"no return but {outcomes[0]!r}"
        assert type(outcomes[1]).__name__ == "Ack"
        assert (await queue.get(no_ack=True)).body == b"kept"


@in_event_loop
async def test_a_publish_that_the_queue_refuses_fails(broker: Broker) -> None:
    async with await connect(broker) as connection:
        channel = await connection.channel()
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        queue = await channel.declare_queue(exclusive=True, arguments=arguments)
        await channel.default_exchange.publish(aio_pika.Message(b"fits"), queue.name)

        with pytest.raises(DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"full"), queue.name)


@in_event_loop
async def test_a_channel_error_leaves_other_channels_alone(broker: Broker) -> None:
    async with await connect(broker) as connection:
        healthy = await connection.channel()
        queue = await healthy.declare_queue(exclusive=True)
        mistaken = await connection.channel()

        with pytest.raises(ChannelPreconditionFailed):
            await mistaken.declare_queue(queue.name, exclusive=True, arguments={"x-max-length": 1})

        await healthy.default_exchange.publish(aio_pika.Message(b"fine"), queue.name)
        assert (await queue.get(no_ack=True)).body == b"fine"


@in_event_loop
async def test_a_large_message_with_headers_arrives_whole(broker: Broker) -> None:
    async with await connect(broker) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        body = bytes(range(256)) * 16 * 1024
        headers: dict[str, FieldValue] = {
            "n": 1,
            "nested": {"list": [1, "two", None]},
            "flag": True,
            "half": 0.5,
        }
        sent = aio_pika.Message(body, headers=headers, message_id="large", priority=3)

        await channel.default_exchange.publish(sent, queue.name)

        received = await queue.get(no_ack=True)
        assert received.body == body
        assert received.headers == headers
        assert (received.message_id, received.priority) == ("large", 3)


@in_event_loop
async def test_remote_procedure_calls_are_answered(broker: Broker, unique: UniqueName) -> None:
    method = unique("multiply")

    async def multiply(*, x: int, y: int) -> int:
        return x * y

    async with await connect(broker) as connection:
        server = await RPC.create(await connection.channel())
        await server.register(method, multiply, auto_delete=True)
        client = await RPC.create(await connection.channel())

        calls = (client.call(method, kwargs={"x": number, "y": 3}) for number in range(50))
        answers = await asyncio.gather(*calls)

        assert answers == [number * 3 for number in range(50)]
        await client.close()
        await server.close()


@in_event_loop
async def test_durable_messages_and_consumers_are_back_after_a_restart(own_broker: Broker) -> None:
    connection = await connect(own_broker)
    async with connection:
        publishing = await connection.channel()
        stored = await publishing.declare_queue("stored", durable=True)
        live = await publishing.declare_queue("live", durable=True)
        exchange = await publishing.declare_exchange("logs", "topic", durable=True)
        await stored.bind(exchange, "stored.#")
        for number in range(100):
            await exchange.publish(persistent(b"%d" % number), "stored.before")

        arrived: asyncio.Queue[bytes] = asyncio.Queue()
        consuming = await connection.channel()
        watched = await consuming.get_queue("live")

        async def on_message(message: AbstractIncomingMessage) -> None:
            await message.ack()
            await arrived.put(message.body)

        await watched.consume(on_message)
        await publishing.default_exchange.publish(persistent(b"before"), live.name)
        assert await arrived.get() == b"before"
        reconnected = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: reconnected.set())

        await asyncio.to_thread(own_broker.restart)
        await reconnected.wait()
        await publishing.default_exchange.publish(persistent(b"after"), live.name)

        assert await arrived.get() == b"after", "the consumer did not come back"
        await exchange.publish(persistent(b"bound"), "stored.after")
        taken = [await stored.get(no_ack=True, fail=False) for _ in range(102)]
        bodies = [message.body for message in taken if message is not None]
        assert bodies == [b"%d" % number for number in range(100)] + [b"bound"]


@in_event_loop
async def test_a_restart_forgets_what_was_not_durable(own_broker: Broker) -> None:
    """edge-cases.md 58"""
    async with await connect(own_broker) as connection:
        channel = await connection.channel()
        await channel.declare_queue("transient", durable=False)
        await channel.declare_queue("durable", durable=True)

    await asyncio.to_thread(own_broker.restart)

    async with await connect(own_broker) as connection:
        found = {}
        for name in ("transient", "durable"):
            channel = await connection.channel()
            try:
                await channel.declare_queue(name, passive=True)
                found[name] = True
            except aio_pika.exceptions.ChannelNotFoundEntity:
                found[name] = False
        assert found == {"transient": False, "durable": True}
