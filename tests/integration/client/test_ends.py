"""Clients that are closed twice, from anywhere, in the midst; and what was begun and given up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq.client import (
    AsyncClient,
    BufferFullError,
    Client,
    ClosedError,
    ConnectionState,
    Message,
    Receipt,
    ReturnedError,
)
from lavinmq.client.errors import (
    AccessRefused,
    ClientConnectionError,
    DroppedError,
    ResourceLocked,
    RpcTimeout,
)
from tests.support.broker import Broker
from tests.support.client_frames import method
from tests.support.fault_proxy import FaultProxy
from tests.support.waiting import wait_for


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.uri) as made:
        yield made


@pytest.mark.parametrize("what", ["client", "producer"])
def test_who_closes_second_cuts_nothing_off(proxy: FaultProxy, queue: str, what: str) -> None:
    client = Client(proxy.url, close_timeout=30).start()
    producer = client.producer(queue)
    proxy.stall("up")
    receipts = [producer.publish(b"x") for _ in range(10)]
    ends = [client.close, client.close if what == "client" else producer.close]
    threads = [threading.Thread(target=end) for end in ends]
    for thread in threads:
        thread.start()
    wait_for(lambda: client.state is ConnectionState.CLOSING, "it is closed")
    threads[1].join(0.3)
    proxy.flow()
    for thread in threads:
        thread.join(60)

    assert {receipt.result(0) for receipt in receipts} == {"confirmed"}
    assert client.state is ConnectionState.CLOSED


def test_who_closes_at_once_ends_another_who_waits(proxy: FaultProxy, queue: str) -> None:
    client = Client(proxy.url, close_timeout=300, confirm_timeout=None).start()
    proxy.judge = lambda frame: [] if frame[2][:4] == b"\x00\x3c\x00\x50" else [frame]
    receipt = client.producer(queue).publish(b"x")
    thread = threading.Thread(target=client.close)
    thread.start()
    wait_for(lambda: client.state is ConnectionState.CLOSING, "it is closed")

    client.close(flush=False)
    thread.join(60)

    assert not thread.is_alive() and client.state is ConnectionState.CLOSED
    with pytest.raises(DroppedError, match="closed"):
        receipt.result(0)


def test_a_close_that_is_cancelled_is_an_end(proxy: FaultProxy, queue: str) -> None:
    """Nobody waits for ever for a receipt of it."""

    async def main() -> None:
        client = AsyncClient(proxy.url, close_timeout=300, confirm_timeout=None)
        await client.start()
        producer = await client.producer(queue)
        proxy.stall("up")
        receipt = await producer.publish(b"x")
        closing = asyncio.ensure_future(client.close())
        while client.state is not ConnectionState.CLOSING:
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        with pytest.raises(DroppedError):
            await asyncio.wait_for(_awaited(receipt), 20)
        await client.close()
        assert client.state is ConnectionState.CLOSED

    asyncio.run(main())


async def _awaited(receipt: Receipt) -> str:
    return await receipt


def held(consumer: Any, producer: Any, where: str) -> Any:
    """A lock that the main thread may have when a signal comes."""
    if where == "taking":
        return consumer._news
    return producer._room if where == "waiting for room" else producer._reserve._lock


@pytest.mark.parametrize("where", ["taking", "waiting for room", "writing a file"])
def test_a_handler_of_a_signal_may_close_wherever_the_program_is(
    broker: Broker, queue: str, tmp_path: Path, where: str
) -> None:
    """The thread that does the I/O would wait for a lock of who waits for it."""
    client = Client(broker.uri, spill_directory=str(tmp_path)).start()
    consumer = client.consumer(queue)
    producer = client.producer(queue, buffer_policy="spill")
    receipt = producer.publish(b"x")
    receipt.result(20)
    with held(consumer, producer, where):
        client.close()

    assert client.state is ConnectionState.CLOSED
    assert consumer.get() is None


def test_messages_are_taken_although_the_thread_that_brings_them_waits_for_no_lock(
    client: Client, queue: str
) -> None:
    """Who is told of them is told again if he could not be."""
    consumer = client.consumer(queue)
    with consumer._news:
        client.producer(queue).publish(b"x").result(20)
        wait_for(lambda: bool(consumer._lists), "it has come")
    message = consumer.get(20)
    assert message is not None and message.ack()


def test_a_program_that_is_told_to_end_by_a_signal_ends(broker: Broker, queue: str) -> None:
    program = f"""
import signal, sys
from lavinmq.client import Client
client = Client({broker.uri!r}).start()
producer, consumer = client.producer({queue!r}), client.consumer({queue!r}, prefetch=1000)
def end(*_):
    client.close()
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
producer.publish_batch([b"x"] * 1000)
print("ready", flush=True)
while (message := consumer.get()) is not None:
    message.nack()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05)
        process.terminate()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_end_of_the_interpreter_waits_for_the_next_connection(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    """To a name, which asyncio looks up in threads that do not begin any more."""
    program = f"""
import sys
from lavinmq.client import Client
client = Client("amqp://guest:guest@localhost:{proxy.port}/%2F", close_timeout=60,
                reconnect_initial_delay=0.05, reconnect_max_delay=0.1).start()
producer = client.producer({queue!r})
print("ready", flush=True)
sys.stdin.readline()
while client.connected: pass
producer.on_drop(print)
producer.publish_batch([b"x"] * 100)
print("ends", flush=True)
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        process.stdout.readline()
        proxy.is_refusing = True
        proxy.cut()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "ends\n"
        time.sleep(0.2)
        proxy.is_refusing = False
        out, err = process.communicate(timeout=60)

    assert (out, err) == ("", "")
    with Client(broker.uri) as client:
        assert client.queue(queue, passive=True).message_count == 100


def test_what_callbacks_are_told_at_the_end_needs_no_new_thread(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From CPython 3.12 on none begins once the main thread has ended."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    states: list[ConnectionState] = []
    client.on_state_change(lambda old, new, cause: states.append(new))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        client.close()
    assert states == [ConnectionState.CLOSING, ConnectionState.CLOSED]


# ---- begun, and given up


def kinds(client: AsyncClient, queue: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "consumer": client.consumer(queue)._open,
        "producer": client.producer(queue)._open,
        "channel": client.channel()._open,
        "question": lambda: client.rpc_call(queue, b"x"),
    }


@pytest.mark.parametrize(
    ("kind", "most"), [("consumer", 3), ("producer", 2), ("channel", 1), ("question", 2)]
)
def test_what_was_begun_and_given_up_leaves_no_channel(
    proxy: FaultProxy, broker: Broker, queue: str, kind: str, most: int
) -> None:
    """At each answer that it waits for: a consumer that nobody has would hold messages back."""

    async def main() -> None:
        async with AsyncClient(proxy.url) as client, AsyncClient(broker.uri) as other:
            await client.queue(queue)
            link = client._core.link
            assert link is not None
            n_channels = len(link.input.all_ports())
            for n_answers in range(most):
                answers = iter([True] * n_answers)
                came = threading.Event()

                def judge(
                    frame: Any, answers: Iterator[bool] = answers, came: Any = came
                ) -> list[Any]:
                    if not next(answers, False):
                        came.set()
                        proxy.stall("down")
                    return [frame]

                proxy.judge = judge
                work = asyncio.ensure_future(kinds(client, queue)[kind]())
                while not came.is_set() and not work.done():
                    await asyncio.sleep(0.001)
                work.cancel()
                await asyncio.wait([work])
                proxy.judge = lambda frame: [frame]
                proxy.flow()
                assert work.cancelled()
                deadline = asyncio.get_running_loop().time() + 20
                while len(link.input.all_ports()) > n_channels:
                    assert asyncio.get_running_loop().time() < deadline, n_answers
                    await asyncio.sleep(0.001)
                assert (await other.queue(queue, passive=True)).consumer_count == 0
                assert client._core.link is link

    asyncio.run(main())


def test_whatever_is_cancelled_the_rest_goes_on(broker: Broker, queue: str) -> None:
    """Many things at once, each of which is given up at a random moment."""
    chance = random.Random(5)

    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            producer = await client.producer(queue, buffer_size=20)
            consumer = await client.consumer(queue, prefetch=10)
            channel = await client.channel()

            async def take() -> None:
                message = await consumer.get(1)
                if message is not None:
                    message.ack()

            async def fetch() -> None:
                message = await channel.basic_get(queue)
                if message is not None:
                    message.ack()

            async def ask() -> None:
                with pytest.raises(ReturnedError):
                    await client.rpc_call(f"no-{queue}", b"x", timeout=20)

            works: list[Callable[[], Awaitable[Any]]] = [
                take, fetch, ask, consumer.pause, consumer.resume, producer.flush,
                lambda: producer.publish(b"x"),
                lambda: producer.publish_batch([b"x"] * 30),
                lambda: client.queue(queue, passive=True),
                lambda: closed(client.producer(queue)),
                lambda: closed(client.consumer(queue)),
                lambda: closed(client.channel()),
            ]  # fmt: skip

            async def give_up(work: Callable[[], Awaitable[Any]]) -> None:
                task = asyncio.ensure_future(work())
                await asyncio.sleep(chance.random() * 0.004)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None

            for _ in range(60):
                await asyncio.gather(*(give_up(chance.choice(works)) for _ in range(6)))
            await consumer.resume()
            while await consumer.get(0.05) is not None or producer.buffer_size:
                consumer.ack(consumer.tracker.delivered, multiple=True)
                for tag in consumer.tracker.unacked_tags:
                    consumer.ack(tag)
            assert client.metrics().connects == 1
            assert set(client._core.members) == {producer, consumer}

    asyncio.run(main())


async def closed(opening: Any) -> None:
    async with opening:
        pass


def test_a_start_that_is_cancelled_leaves_no_connection(proxy: FaultProxy) -> None:
    """And who waits for a connection in vain leaves nothing."""

    async def main() -> None:
        before = asyncio.all_tasks()
        proxy.stall("down")
        client = AsyncClient(proxy.url)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.start(), 0.05)
        assert client.state is ConnectionState.CLOSED
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before
        with pytest.raises(ClosedError):
            await client.start()

        client = AsyncClient(proxy.url, fail_fast=False)
        await client.start()
        for _ in range(3):
            with pytest.raises(ClientConnectionError):
                await client.wait_connected(0.001)
        assert not client._core._waiting
        await client.close()

    asyncio.run(main())


def test_a_message_that_is_fetched_for_nobody_goes_back(
    proxy: FaultProxy, broker: Broker, queue: str
) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url) as client, AsyncClient(broker.uri) as other:
            await (await (await client.producer(queue)).publish(b"x"))
            channel = await client.channel()
            proxy.stall("down")
            fetching = asyncio.ensure_future(channel.basic_get(queue))
            while (await other.queue(queue, passive=True)).message_count:
                await asyncio.sleep(0.001)
            fetching.cancel()
            await asyncio.wait([fetching])
            proxy.flow()
            while not (await other.queue(queue, passive=True)).message_count:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_producer_that_could_not_begin_has_no_file(broker: Broker, tmp_path: Path) -> None:
    name = f"mine-{os.getpid()}-{time.monotonic_ns()}"
    options: dict[str, Any] = {"buffer_policy": "spill", "spill_directory": str(tmp_path)}
    with Client(broker.uri) as other, Client(broker.uri) as client:
        other.queue(name, exclusive=True)
        with pytest.raises(ResourceLocked):
            client.producer(name, **options)
        other.delete_queue(name)
        assert client.producer(name, **options).publish(b"x").result(20) == "confirmed"
        client.delete_queue(name)


# ---- from within


def test_a_handler_may_close_its_own_consumer(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            producer, consumer = await client.producer(queue), await client.consumer(queue)
            ended = asyncio.Event()

            async def handle(_: Message) -> None:
                await consumer.close()
                ended.set()

            await consumer.subscribe(handle, workers=2)
            await producer.publish(b"x")
            await asyncio.wait_for(ended.wait(), 20)
            assert consumer not in client._core.members
            assert await consumer.get() is None

    asyncio.run(main())


def test_the_clients_own_thread_waits_for_nothing(client: Client, queue: str) -> None:
    """It would wait for itself, and nothing of the client would go on."""
    producer = client.producer(queue, buffer_size=2, block_timeout=None)
    consumer = client.consumer(queue)
    consumer.pause()
    errors: list[BaseException] = []
    done = threading.Event()

    def wait(receipt: Receipt) -> None:
        for work in (
            lambda: [producer.publish(b"y") for _ in range(3)],
            producer.flush,
            lambda: client.rpc_call(queue, b"x"),
            consumer.get,
            client.close,
        ):
            try:
                work()
            except (BufferFullError, RuntimeError) as error:
                errors.append(error)
        done.set()

    producer.publish(b"x").add_done_callback(wait)
    assert done.wait(60)
    assert len(errors) == 5
    assert client.queue(queue, passive=True).name == queue


def test_results_that_are_asked_for_in_vain_leave_nothing(proxy: FaultProxy, queue: str) -> None:
    with Client(proxy.url, close_timeout=0) as client:
        producer = client.producer(queue)
        proxy.stall("up")
        receipt = producer.publish(b"x")
        heard: list[Receipt] = []
        for _ in range(3):
            with pytest.raises(TimeoutError):
                receipt.result(0)
            receipt.add_done_callback(heard.append)
            receipt.remove_done_callback(heard.append)
        proxy.flow()
        client.close()
        assert not heard and receipt.done()


def test_receipts_that_are_awaited_in_vain_leave_nothing(proxy: FaultProxy, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(proxy.url) as client:
            producer = await client.producer(queue)
            proxy.stall("up")
            receipt = await producer.publish(b"x")
            futures = []
            for _ in range(3):
                waiting = asyncio.ensure_future(_awaited(receipt))
                await asyncio.sleep(0)
                futures.append(weakref.ref(waiting._fut_waiter))  # type: ignore[attr-defined]
                waiting.cancel()
                await asyncio.wait([waiting])
                del waiting
            gc.collect()
            assert [each() for each in futures] == [None] * 3
            proxy.flow()
            assert await receipt == "confirmed"

    asyncio.run(main())


def test_in_a_forked_child_a_client_for_asyncio_is_closed(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            producer = await client.producer(queue)
            pid = os.fork()
            if not pid:
                with contextlib.suppress(ClosedError):
                    producer.try_publish(b"child")
                    os._exit(2)
                os._exit(client.state is not ConnectionState.CLOSED)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert await (await producer.publish(b"parent")) == "confirmed"

    asyncio.run(main())


# ---- consumers and what belongs to them


def test_what_an_iteration_leaves_is_there_for_who_waits(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            await (await (await client.producer(queue)).publish_batch([b"1", b"2", b"3"]))
            consumer = await client.consumer(queue)
            while len(consumer._lists[:1] and consumer._lists[0]) < 3:
                await asyncio.sleep(0.001)
            async for message in consumer:
                assert message.body == b"1"
                break
            message = await asyncio.wait_for(consumer.get(), 20)
            assert message is not None and message.body == b"2"

    asyncio.run(main())


def test_a_consumer_that_is_paused_again_and_again_holds_what_it_was_given(
    client: Client, queue: str
) -> None:
    """To the broker it is another one each time, with another prefetch."""
    client.producer(queue).publish_batch([b"x"] * 100).result(20)
    consumer = client.consumer(queue, prefetch=10)
    for n in range(1, 6):
        wait_for(lambda n=n: consumer.unacked == 10 * n, "all it may have has come")  # type: ignore[misc]
        consumer.pause()
        consumer.resume()
    assert client.metrics().connects == 1


def test_many_may_resume_a_consumer(client: Client, queue: str) -> None:
    """The broker would be asked for the same consumer twice, and close the connection."""
    consumer = client.consumer(queue)
    consumer.pause()
    threads = [threading.Thread(target=consumer.resume) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert consumer.subscribed and client.metrics().connects == 1


def test_what_is_not_allowed_is_no_wrong_password(proxy: FaultProxy, queue: str) -> None:
    """The broker closes a connection that was open: another one is made."""
    with Client(proxy.url, reconnect_initial_delay=0.02) as client:
        proxy.say(method(0, "connection.close", 530, "NOT_ALLOWED", 0, 0))
        wait_for(lambda: client.metrics().connects == 2, "it is connected again")


def test_who_answers_questions_leaves_no_channel(client: Client, queue: str) -> None:
    link = client._core.link
    assert link is not None
    client.queue(queue)
    before = len(link.input.all_ports())
    client.rpc_server(queue, lambda message: message.body).close()
    assert len(link.input.all_ports()) == before and not client._core.members


def test_a_question_has_one_time_for_all(proxy: FaultProxy) -> None:
    with Client(proxy.url, close_timeout=0, rpc_timeout=60) as client:
        proxy.stall("up")
        with pytest.raises(RpcTimeout, match=r"within 0\.1 s"):
            client.rpc_call("nobody", b"x", timeout=0.1)
        proxy.flow()
        proxy.is_refusing = True
        proxy.cut()
        wait_for(lambda: not client.connected, "it is lost")
        with pytest.raises(ClientConnectionError, match=r"within 0\.1 s"):
            client.rpc_call("nobody", b"x", timeout=0.1)


def test_workers_of_a_consumer_that_is_refused_end_in_silence(
    client: Client, queue: str, capfd: pytest.CaptureFixture[str]
) -> None:
    consumer = client.consumer(queue)
    consumer.subscribe(print)

    async def refuse() -> None:
        consumer.finish(AccessRefused(403, "no"))

    client.run(refuse())
    for thread in consumer._threads:
        thread.join(20)
    assert capfd.readouterr() == ("", "")


# ---- a buffer that is too small


def test_what_does_not_fit_drops_nothing_else(proxy: FaultProxy, queue: str) -> None:
    """It would not fit either, were all dropped that was not sent."""
    options: dict[str, Any] = {"close_timeout": 0, "confirm_timeout": None}
    with Client(proxy.url, **options) as client:
        producer = client.producer(
            queue, buffer_policy="drop_oldest", buffer_bytes=1000, max_in_flight=2
        )
        proxy.stall("up")
        kept = [producer.publish(b"x" * 50) for _ in range(8)]
        wait_for(lambda: producer.in_flight == 2, "two are under way")
        assert producer.publish(b"x" * 2000).status == "dropped"
        assert {receipt.status for receipt in kept} == {"sent", "buffered"}
        assert producer.publish(b"x" * 800).status == "buffered"
        proxy.flow()


@pytest.mark.parametrize("front", ["threads", "asyncio"])
def test_a_batch_that_is_refused_says_what_was_taken(
    proxy: FaultProxy, queue: str, front: str
) -> None:
    options: dict[str, Any] = {"close_timeout": 0, "confirm_timeout": None}
    small: dict[str, Any] = {"buffer_policy": "raise", "buffer_size": 5}
    bodies = [b"x"] * 8

    async def main() -> BufferFullError:
        async with AsyncClient(proxy.url, **options) as client:
            producer = await client.producer(queue, **small)
            proxy.stall("up")
            with pytest.raises(BufferFullError) as raised:
                await producer.publish_batch(bodies)
            proxy.flow()
            return raised.value

    if front == "asyncio":
        error = asyncio.run(main())
    else:
        with Client(proxy.url, **options) as client:
            producer = client.producer(queue, **small)
            proxy.stall("up")
            with pytest.raises(BufferFullError) as raised:
                producer.publish_batch(bodies)
            error = raised.value
            proxy.flow()
    assert error.receipt is not None and error.receipt.size == 5 and error.receipt.done()
