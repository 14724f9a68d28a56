"""What functions of the program raise, exits included, stops nothing and is told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lavinmq.client import AsyncClient, Client, ConfigError, Error, Message, Receipt
from tests.support.broker import Broker
from tests.support.waiting import wait_for


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.uri) as made:
        yield made


@pytest.fixture
def errors(client: Client) -> list[Exception]:
    told: list[Exception] = []
    client.on_error(told.append)
    return told


def divide(_: object) -> None:
    raise ZeroDivisionError


def leave(_: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize("fail", [divide, leave])
def test_who_waits_for_a_receipt_hears_whatever_other_callbacks_raise(
    client: Client, queue: str, errors: list[Exception], fail: Callable[[object], None]
) -> None:
    producer = client.producer(queue)
    ended: list[Receipt] = []
    receipts = []
    for _ in range(20):
        receipt = producer.publish(b"x")
        for callback in (fail, ended.append):
            receipt.add_done_callback(callback)
        receipts.append(receipt)

    assert [receipt.result(10) for receipt in receipts] == ["confirmed"] * 20
    # Who waits may be awake before those who are called.
    wait_for(lambda: len(ended) == 20, "all heard")
    assert client.metrics().reconnects == 0
    # A receipt that has ended calls at once, whoever asks for it; these are few, if any.
    wait_for(lambda: bool(errors), "told")


def test_an_exit_in_a_callback_stops_no_others(
    client: Client, queue: str, errors: list[Exception]
) -> None:
    producer = client.producer(queue)
    producer.on_confirm(leave)
    for _ in range(3):
        producer.publish(b"x").result(5)

    wait_for(lambda: len(errors) == 3, "told")
    assert isinstance(errors[0], Error) and "SystemExit" in str(errors[0])
    assert isinstance(errors[0].__cause__, SystemExit)


def test_an_exit_in_a_handler_ends_no_worker(
    client: Client, queue: str, errors: list[Exception]
) -> None:
    consumer, producer = client.consumer(queue), client.producer(queue)
    consumer.subscribe(leave)
    for _ in range(3):
        producer.publish(b"x").result(5)

    wait_for(lambda: len(errors) == 3, "told")
    assert consumer.handler_errors == 3


def test_a_message_that_belongs_to_no_partition_is_refused_alone(
    client: Client, queue: str, errors: list[Exception]
) -> None:
    consumer, producer = client.consumer(queue), client.producer(queue)
    came: list[Message] = []
    consumer.subscribe(came.append, 2, partition_by=lambda message: message.headers["key"])
    producer.publish(b"without").result(5)
    producer.publish(b"with", headers={"key": 1}).result(5)

    wait_for(lambda: [message.body for message in came] == [b"with"], "the other came")
    # Another thread tells.
    wait_for(lambda: [type(error) for error in errors] == [KeyError], "it is told")


def test_an_on_error_that_fails_is_not_told_of_itself(
    client: Client, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[Exception] = []

    async def on_error(error: Exception) -> None:
        calls.append(error)
        raise error

    client.on_error(on_error)
    producer = client.producer(queue)
    producer.on_confirm(divide)
    producer.publish(b"x").result(5)

    wait_for(lambda: "an on_error callback failed" in caplog.text, "logged")
    client.close()
    assert len(calls) == 1


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2", True, 1 << 40])
def test_a_wrong_number_of_workers_is_refused(client: Client, queue: str, workers: Any) -> None:
    with pytest.raises(ConfigError, match="option workers is"):
        client.consumer(queue).subscribe(divide, workers)
    with pytest.raises(ConfigError, match="option workers is"):
        client.rpc_server(queue, divide, workers=workers)


def test_what_a_handler_waits_for_may_be_cancelled(broker: Broker, queue: str) -> None:
    async def run() -> None:
        errors: list[Exception] = []

        async def handle(_: Message) -> None:
            waited_for = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(waited_for.cancel)
            await waited_for

        async with AsyncClient(broker.uri) as client:
            client.on_error(errors.append)
            consumer = await client.consumer(queue)
            with pytest.raises(ConfigError, match="option workers is 0"):
                await consumer.subscribe(handle, 0)
            await consumer.subscribe(handle)
            producer = await client.producer(queue)
            for _ in range(2):
                await (await producer.publish(b"x"))
            async with asyncio.timeout(10):
                while len(errors) < 2:
                    await asyncio.sleep(0.01)
            assert consumer.handler_errors == 2
            assert "CancelledError" in str(errors[0])
            partitioned = await client.consumer(queue)
            await partitioned.subscribe(handle, partition_by=lambda message: message.headers["key"])
            await consumer.close()
            await (await producer.publish(b"x"))
            async with asyncio.timeout(10):
                while partitioned.handler_errors < 1:
                    await asyncio.sleep(0.01)
            await (await producer.publish(b"x"))
            async with asyncio.timeout(10):
                while partitioned.handler_errors < 2:
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_consumers_of_a_channel_have_names_of_their_own(client: Client, queue: str) -> None:
    channel = client.channel()
    channel.queue_declare(queue)
    first, second = (channel.basic_consume(queue, divide) for _ in range(2))
    channel.basic_cancel(first)

    assert channel.basic_consume(queue, divide) not in (first, second)
