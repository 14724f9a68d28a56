"""Both fronts of the client against a broker: publish, consume, policies, channels, questions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lavinmq.client import (
    AsyncClient,
    BufferFullError,
    Client,
    ClosedError,
    ConfigError,
    ConfirmTimeout,
    DropReason,
    Message,
    Receipt,
    ReturnedError,
)
from lavinmq.client.errors import (
    AccessRefused,
    DroppedError,
    NotFound,
    PreconditionFailed,
    RpcTimeout,
)
from tests.support.broker import Broker
from tests.support.fault_proxy import FaultProxy
from tests.support.waiting import wait_for

ACK = b"\x00\x3c\x00\x50"

DEADLINE_S = 120.0


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with Client(broker.uri) as made:
        yield made


@pytest.fixture
def deaf(broker: Broker) -> Iterator[FaultProxy]:
    """A way to the broker on which no confirms come back."""
    with FaultProxy(broker.host, broker.port) as proxy:
        proxy.judge = lambda frame: [] if frame[2][:4] == ACK else [frame]
        yield proxy


def test_what_is_published_is_consumed(client: Client, queue: str) -> None:
    producer = client.producer(queue)
    receipt = producer.publish(b"one", headers={"k": [1, "two"]}, correlation_id="c", priority=3)
    text = producer.publish("zwei ü")
    data = producer.publish({"three": 3})

    assert [each.result(5) for each in (receipt, text, data)] == ["confirmed"] * 3
    with client.consumer(queue) as consumer:
        first, second, third = (consumer.get(5) for _ in range(3))
        assert first and second and third
        assert first.headers == {"k": [1, "two"]} and first.correlation_id == "c"
        assert first.delivery_mode == 2 and first.priority == 3
        assert second.text() == "zwei ü"
        assert third.parse() == {"three": 3} and third.content_type == "application/json"
        assert first.ack() and not first.ack()
        assert consumer.ack(third.delivery_tag, multiple=True) == 2
        wait_for(lambda: consumer.unacked == 0, "all settled")


def test_a_body_of_many_frames_arrives_whole(client: Client, queue: str) -> None:
    body = os.urandom(3_000_000)
    client.producer(queue).publish(body).result(10)

    message = client.get(queue)
    assert message is not None and message.body == body


def test_a_batch_is_confirmed_as_one(client: Client, queue: str) -> None:
    producer = client.producer(queue, buffer_size=100)
    receipt = producer.publish_batch([b"%d" % n for n in range(5000)])

    assert receipt.result(20) == "confirmed" and receipt.size == 5000
    found = 0
    with client.consumer(queue, prefetch=500) as consumer:
        for batch in consumer.batches():
            assert batch.bodies() == [b"%d" % n for n in range(found, found + len(batch))]
            found += batch.ack()
            if found == 5000:
                break


def test_without_confirms_a_receipt_says_sent(client: Client, queue: str) -> None:
    producer = client.producer(queue, "fire_and_forget")
    receipts = [producer.publish(b"%d" % n) for n in range(100)]
    producer.flush(5)

    assert {receipt.status for receipt in receipts} == {"sent"}
    wait_for(lambda: client.queue(queue, passive=True).message_count == 100, "all there")


def test_a_queue_is_declared_once_and_not_per_message(client: Client, queue: str) -> None:
    producer = client.producer(queue)
    before = client._core.link.input.frames_in if client._core.link else 0
    producer.publish_batch([b"x"] * 1000).result(10)
    after = client._core.link.input.frames_in if client._core.link else 0

    assert after - before < 1000


def test_block_waits_for_room_and_then_says_no(deaf: FaultProxy, queue: str) -> None:
    with Client(deaf.url, close_timeout=0.2, confirm_timeout=None) as client:
        producer = client.producer(queue, buffer_size=3, block_timeout=0.2)
        for n in range(3):
            producer.publish(b"%d" % n)
        with pytest.raises(BufferFullError):
            producer.publish(b"too much")
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(producer.publish(b"waits")))
        producer.config = producer.config.updated({"block_timeout": 30})
        thread.start()
        wait_for(lambda: producer._waiting_for_room == 1, "it waits")
        deaf.judge = lambda frame: [frame]
        deaf.cut()
        thread.join(20)

        assert isinstance(results[0], Receipt) and results[0].result(10) == "confirmed"


@pytest.mark.parametrize(
    ("policy", "kept", "lost"),
    [
        ("drop_oldest", [b"0", b"3", b"4"], [b"1", b"2"]),
        ("drop_newest", [b"0", b"1", b"2"], [b"3", b"4"]),
        ("raise", [b"0", b"1", b"2"], [b"3", b"4"]),
    ],
)
def test_a_full_buffer_drops_what_the_policy_says_and_tells(
    deaf: FaultProxy, broker: Broker, queue: str, policy: str, kept: list[bytes], lost: list[bytes]
) -> None:
    dropped: list[tuple[bytes, DropReason]] = []
    with Client(deaf.url, confirm_timeout=None) as client:
        producer = client.producer(queue, buffer_policy=policy, buffer_size=3, max_in_flight=1)
        producer.on_drop(lambda message, reason: dropped.append((message.body, reason)))
        producer.publish(b"0")
        wait_for(lambda: producer.in_flight == 1, "one is in flight")
        for n in range(1, 5):
            try:
                producer.publish(b"%d" % n)
            except BufferFullError:
                assert policy == "raise"
        deaf.judge = lambda frame: [frame]
        deaf.cut()
        producer.flush(20)
        wait_for(lambda: len(dropped) == 2, "told")

    assert dropped == [(body, DropReason.BUFFER_FULL) for body in lost]
    with Client(broker.uri) as client, client.consumer(queue) as consumer:
        found = dict.fromkeys(m.body for m in (consumer.get(2) for _ in range(4)) if m)
    assert list(found) == kept


def test_a_spill_keeps_order_and_survives(
    deaf: FaultProxy, broker: Broker, queue: str, tmp_path: Path
) -> None:
    """The program that spills is killed; another one sends what is in the file."""
    program = f"""
import os, sys
from lavinmq.client import Client
client = Client({deaf.url!r}, spill_directory={str(tmp_path)!r}, confirm_timeout=None)
producer = client.producer({queue!r}, buffer_policy="spill", buffer_size=5, max_in_flight=5)
for n in range(40):
    producer.publish(b"%d" % n)
print(producer.buffer_size, flush=True)
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 9 and done.stdout == "40\n", done.stderr
    with Client(broker.uri, spill_directory=str(tmp_path)) as client:
        producer = client.producer(queue, buffer_policy="spill", buffer_size=5)
        producer.publish(b"40")
        producer.flush(20)
        assert producer.buffer_size == 0
        with client.consumer(queue) as consumer:
            found = [m.body for m in (consumer.get(2) for _ in range(42)) if m]

    assert found[-36:] == [b"%d" % n for n in range(5, 41)]


def test_while_disconnected_a_producer_may_refuse(own_broker: Broker) -> None:
    dropped: list[DropReason] = []
    with Client(own_broker.uri, buffer_while_disconnected=False) as client:
        producer = client.producer("q")
        producer.on_drop(lambda message, reason: dropped.append(reason))
        own_broker.kill()
        wait_for(lambda: not client.connected, "lost")
        receipt = producer.publish(b"x")

        with pytest.raises(DroppedError):
            receipt.result(1)
        wait_for(lambda: dropped == [DropReason.DISCONNECTED], "told")


def test_old_messages_are_not_sent(own_broker: Broker) -> None:
    dropped: list[DropReason] = []
    options: dict[str, Any] = {"health_interval": 0.05, "close_timeout": 0.1}
    with Client(own_broker.uri, **options) as client:
        producer = client.producer("q", message_ttl=0.05)
        producer.on_drop(lambda message, reason: dropped.append(reason))
        own_broker.kill()
        wait_for(lambda: not client.connected, "lost")
        producer.publish(b"x")
        wait_for(lambda: dropped == [DropReason.TTL_EXPIRED], "dropped")


def test_a_mandatory_message_without_a_queue_comes_back(client: Client) -> None:
    returned: list[bytes] = []
    producer = client.producer(exchange="", routing_key=f"no-{uuid.uuid4().hex}", mandatory=True)
    producer.on_return(lambda message, reason: returned.append(message.body))
    receipt = producer.publish(b"x")

    with pytest.raises(ReturnedError):
        receipt.result(5)
    wait_for(lambda: returned == [b"x"], "told")


def test_a_message_that_closes_the_channel_is_found_and_dropped(client: Client, queue: str) -> None:
    dropped: list[tuple[bytes, DropReason]] = []
    client.queue(queue)
    producer = client.producer(queue)
    producer.on_drop(lambda message, reason: dropped.append((message.body, reason)))
    receipts = [
        producer.publish(b"%d" % n, **({"user_id": "somebody else"} if n == 5 else {}))
        for n in range(10)
    ]
    producer.flush(20)

    assert [each.status for each in receipts] == [
        "dropped" if n == 5 else "confirmed" for n in range(10)
    ]
    wait_for(lambda: dropped == [(b"5", DropReason.FLUSH_RETRY_EXCEEDED)], "told")


def test_messages_to_an_exchange_wait_until_it_is_there(client: Client, queue: str) -> None:
    name = f"x-{uuid.uuid4().hex[:8]}"
    seen: list[Exception] = []
    producer = client.producer(exchange=name, routing_key="k")
    producer.on_error(seen.append)
    receipt = producer.publish(b"x")
    wait_for(lambda: bool(seen), "the error is told")
    client.exchange(name)
    client.queue(queue)
    client.bind(queue, name, "k")

    assert receipt.result(20) == "confirmed" and isinstance(seen[0], NotFound)
    client.delete_exchange(name)


def test_handlers_run_side_by_side_and_one_that_fails_stops_nothing(
    client: Client, queue: str
) -> None:
    seen: list[bytes] = []
    errors: list[Exception] = []
    client.producer(queue).publish_batch([b"%d" % n for n in range(50)]).result(5)
    consumer = client.consumer(queue)
    consumer.on_error(errors.append)

    def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == b"7":
            raise ZeroDivisionError("seven")

    consumer.subscribe(handle, workers=4)
    wait_for(lambda: len(seen) == 50 and consumer.unacked == 0, "all handled")
    wait_for(lambda: bool(errors), "told")
    consumer.close()

    assert sorted(seen, key=int) == [b"%d" % n for n in range(50)]
    assert [type(error) for error in errors] == [ZeroDivisionError]
    assert client.queue(queue, passive=True).message_count == 0


def test_each_partition_keeps_its_order(client: Client, queue: str) -> None:
    seen: list[tuple[str, int]] = []
    producer = client.producer(queue)
    for n in range(60):
        producer.publish(b"%d" % n, headers={"k": f"k{n % 3}"})
    consumer = client.consumer(queue)
    consumer.subscribe(
        lambda m: seen.append((m.headers["k"], int(m.body))),
        workers=3,
        partition_by=lambda m: m.headers["k"],
    )
    wait_for(lambda: len(seen) == 60, "all handled")
    consumer.close()

    for key in ("k0", "k1", "k2"):
        mine = [n for each, n in seen if each == key]
        assert mine == sorted(mine)


def test_a_pause_keeps_what_is_here(client: Client, queue: str) -> None:
    producer = client.producer(queue)
    producer.publish_batch([b"1", b"2", b"3"]).result(5)
    consumer = client.consumer(queue, prefetch=2)
    wait_for(lambda: consumer.tracker.delivered == 2, "prefetched")
    consumer.pause()
    held = [consumer.get(5), consumer.get(5)]
    for message in held:
        assert message is not None and message.ack()
    assert consumer.get(0.2) is None
    consumer.resume()

    message = consumer.get(5)
    assert message is not None and message.body == b"3"
    consumer.close()


def test_a_loop_over_messages_may_be_left_and_gone_on_with(client: Client, queue: str) -> None:
    client.producer(queue).publish_batch([b"%d" % n for n in range(10)]).result(5)
    found = []
    with client.consumer(queue) as consumer:
        for n in (3, 10):
            for message in consumer:
                message.ack()
                found.append(message.body)
                if len(found) == n:
                    break

    assert found == [b"%d" % n for n in range(10)]


def test_a_consumer_without_acks_is_not_flooded(client: Client, queue: str) -> None:
    n = 30_000
    client.producer(queue).publish_batch([b"x" * 20] * n).result(20)
    consumer = client.consumer(queue, no_ack=True)
    found = 0
    while found < n:
        assert consumer.get(10) is not None
        found += 1
    consumer.close()


def test_transactions_are_on_the_channel(client: Client, queue: str) -> None:
    client.queue(queue)
    with client.channel() as channel:
        channel.tx_select()
        channel.basic_publish("", queue, b"not this")
        channel.tx_rollback()
        channel.basic_publish("", queue, b"this")
        assert client.queue(queue, passive=True).message_count == 0
        channel.tx_commit()

        message = channel.basic_get(queue)
        assert message is not None and message.body == b"this"
        assert channel.basic_ack(message.delivery_tag) == 1
        channel.tx_commit()
        assert channel.basic_get(queue) is None


def test_a_channel_does_what_the_protocol_has(client: Client, queue: str) -> None:
    name = f"x-{uuid.uuid4().hex[:8]}"
    seen: list[bytes] = []
    with client.channel() as channel:
        assert channel.queue_declare(queue, durable=True).name == queue
        channel.exchange_declare(name, "topic")
        channel.queue_bind(queue, name, "a.#")
        channel.confirm_select()
        receipt = channel.basic_publish(name, "a.b", b"1", app_id="test")
        assert channel.wait_for_confirm(receipt, 5) == "confirmed"
        lost = channel.basic_publish(name, "x", b"2", mandatory=True)
        with pytest.raises(ReturnedError):
            channel.wait_for_confirm(lost, 5)
        channel.basic_qos(5)

        def handle(message: Message) -> None:
            seen.append(message.body)
            message.ack()

        tag = channel.basic_consume(queue, handle)
        wait_for(lambda: seen == [b"1"], "consumed")
        channel.basic_cancel(tag)
        channel.queue_unbind(queue, name, "a.#")
        channel.exchange_delete(name)
        with pytest.raises(NotFound):
            channel.queue_declare("no such queue", passive=True)
        with pytest.raises(NotFound):
            channel.queue_purge(queue)


def test_a_wrong_declaration_raises_and_the_client_goes_on(client: Client, queue: str) -> None:
    client.queue(queue)
    with pytest.raises(PreconditionFailed):
        client.queue(queue, durable=False)

    assert client.queue(queue).name == queue


def test_questions_are_answered(client: Client, queue: str) -> None:
    server = client.rpc_server(queue, lambda message: message.body[::-1], workers=2)
    answers = [client.rpc_call(queue, b"%d!" % n, timeout=5).body for n in range(20)]
    server.close()

    assert answers == [(b"%d!" % n)[::-1] for n in range(20)]
    with pytest.raises(RpcTimeout):
        client.rpc_call(queue, b"nobody", timeout=0.2)
    with pytest.raises(ReturnedError):
        client.rpc_call("no such queue", b"?", timeout=5)


def test_after_close_everything_says_so(broker: Broker, queue: str) -> None:
    client = Client(broker.uri)
    producer, consumer = client.producer(queue), client.consumer(queue)
    client.close()
    client.close()

    for action in (
        lambda: producer.publish(b"x"),
        lambda: client.queue("q"),
        lambda: client.producer("q"),
    ):
        with pytest.raises(ClosedError):
            action()
    assert consumer.get(1) is None and list(consumer) == []
    names = {thread.name for thread in threading.enumerate()}
    assert not names & {"lavinmq-client", "lavinmq-callbacks"}


def test_a_receipt_says_when_it_takes_too_long(deaf: FaultProxy, queue: str) -> None:
    with Client(deaf.url, close_timeout=0.2) as client, pytest.raises(ConfirmTimeout):
        client.producer(queue).publish(b"x").result(0.2)


def test_callbacks_that_fail_go_to_on_error(client: Client, queue: str) -> None:
    errors: list[Exception] = []
    client.on_error(errors.append)
    producer = client.producer(queue)
    producer.on_confirm(lambda message: 1 // 0)
    for _ in range(3):
        producer.publish(b"x").result(5)
    wait_for(lambda: len(errors) == 3, "told")


def test_in_a_forked_child_the_client_is_closed(client: Client, queue: str) -> None:
    producer = client.producer(queue)
    producer.publish(b"before").result(5)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            client.queue(queue)
        except ClosedError:
            try:
                producer.publish(b"child")
            except ClosedError:
                code = 0
        os._exit(code)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert producer.publish(b"after").result(5) == "confirmed"


def test_a_forked_child_waits_for_no_lock_of_a_thread_that_it_has_not(
    client: Client, queue: str
) -> None:
    producer, consumer = client.producer(queue), client.consumer(queue)
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with client._lock, client._dispatching, producer._room, consumer._news:
            held.set()
            forked.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            signal.alarm(20)
            code = int(consumer.get(1.0) is not None)
            client._dispatch(int)
            client.close()
            producer.has_room()
        finally:
            os._exit(code)
    forked.set()
    thread.join()

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert producer.publish(b"after").result(5) == "confirmed"


def test_the_end_of_the_interpreter_sends_what_is_buffered(broker: Broker, queue: str) -> None:
    program = f"""
from lavinmq.client import Client
producer = Client({broker.uri!r}).producer({queue!r})
for n in range(500): producer.publish(b"x")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)

    assert done.returncode == 0 and not done.stderr
    with Client(broker.uri) as client:
        assert client.queue(queue, passive=True).message_count == 500


def test_options_of_a_client_are_refused_for_a_producer(client: Client) -> None:
    with pytest.raises(ConfigError, match="heartbeat is one of the client"):
        client.producer("q", heartbeat=5)
    with pytest.raises(ConfigError, match="needs a queue"):
        client.producer()
    with pytest.raises(ConfigError, match="not both"):
        client.producer("q", exchange="e")


def test_access_refused_ends_a_consumer(broker: Broker, client: Client) -> None:
    name = f"mine-{uuid.uuid4().hex[:8]}"
    client.queue(name)
    with (
        Client(broker.uri) as other,
        client.consumer(name, exclusive=True),
        pytest.raises(AccessRefused),
    ):
        other.consumer(name)
    client.delete_queue(name)


# ---- asyncio


def run(work: Any) -> None:
    """In asyncio's debug mode."""
    asyncio.run(work, debug=True)


def test_the_front_for_asyncio_has_the_same_names(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            async with client.producer(queue, buffer_size=50) as producer:
                receipts = [await producer.publish(b"%d" % n) for n in range(100)]
                assert {await receipt for receipt in receipts} == {"confirmed"}
                batch = await producer.publish_batch([b"%d" % n for n in range(100, 300)])
                assert await batch == "confirmed" and batch.size == 200
                await producer.flush(5)
            found = []
            async with client.consumer(queue, prefetch=50) as consumer:
                async for message in consumer:
                    async with message.process():
                        found.append(message.body)
                    if len(found) == 100:
                        break
                async for some in consumer.batches():
                    found += some.bodies()
                    some.ack()
                    if len(found) == 300:
                        break
                assert await consumer.get(0.05) is None
            assert found == [b"%d" % n for n in range(300)]
            assert (await client.queue(queue, passive=True)).message_count == 0

    run(main())


def test_handlers_may_be_coroutines(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            producer = await client.producer(queue)
            await (await producer.publish_batch([b"%d" % n for n in range(20)]))
            done = asyncio.Event()
            seen = []

            async def handle(message: Message) -> None:
                await asyncio.sleep(0)
                seen.append(message.body)
                if len(seen) == 20:
                    done.set()

            consumer = await client.consumer(queue)
            await consumer.subscribe(handle, workers=3)
            await asyncio.wait_for(done.wait(), 10)
            await consumer.close()
            assert sorted(seen, key=int) == [b"%d" % n for n in range(20)]
            server = await client.rpc_server(queue, handle_question)
            assert (await client.rpc_call(queue, b"abc")).body == b"ABC"
            await server.close()

    async def handle_question(message: Message) -> bytes:
        return message.body.upper()

    run(main())


def test_block_is_a_wait_of_the_coroutine(deaf: FaultProxy, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(deaf.url, close_timeout=0.2, confirm_timeout=None) as client:
            producer = await client.producer(queue, buffer_size=2, block_timeout=0.1)
            await producer.publish(b"1")
            await producer.publish(b"2")
            with pytest.raises(BufferFullError):
                await producer.publish(b"3")
            assert producer.try_publish(b"4") is None

    run(main())


def test_transactions_with_asyncio(broker: Broker, queue: str) -> None:
    async def main() -> None:
        async with AsyncClient(broker.uri) as client, client.channel() as channel:
            await channel.queue_declare(queue, durable=True)
            await channel.tx_select()
            await channel.basic_publish("", queue, b"x")
            await channel.tx_commit()
            message = await channel.basic_get(queue, no_ack=True)
            assert message is not None and message.body == b"x"

    run(main())


@pytest.mark.parametrize("end_by", ["tx_commit", "close", "the client's close"])
def test_what_ends_a_channel_does_not_overtake_what_was_published(
    proxy: FaultProxy, broker: Broker, queue: str, end_by: str
) -> None:
    """The peer takes nothing for a while, so most of it waits when the commit or close comes."""
    body = b"x" * (256 << 10)

    async def main() -> None:
        async with AsyncClient(proxy.url) as client, AsyncClient(broker.uri) as other:
            channel = await client.channel()
            await channel.queue_declare(queue, durable=True)
            if end_by == "tx_commit":
                await channel.tx_select()
            proxy.stall("up")
            for _ in range(60):
                await channel.basic_publish("", queue, body)
            link = channel.link
            end = asyncio.ensure_future(getattr(channel, end_by, client.close)())
            while not link.is_paused:
                await asyncio.sleep(0)
            proxy.flow()
            await end

            assert (await other.queue(queue, passive=True)).message_count == 60

    run(main())


def test_who_asks_in_vain_leaves_nothing_and_takes_no_turn(broker: Broker, queue: str) -> None:
    """Each question with a time waits in a place of its own, which goes with it."""

    async def main() -> None:
        async with AsyncClient(broker.uri) as client:
            consumer = await client.consumer(queue)
            producer = await client.producer(queue)
            for _ in range(20):
                assert await consumer.get(0.001) is None
            assert consumer._waiters == []

            going, staying = (asyncio.ensure_future(consumer.get(30)) for _ in range(2))
            await asyncio.sleep(0)
            first = consumer._waiters[0]
            await producer.publish(b"x")
            while not first.done():
                await asyncio.sleep(0)
            going.cancel()

            message = await asyncio.wait_for(staying, 20)
            assert message is not None and message.body == b"x"
            message.ack()

    run(main())


def test_a_consumer_with_very_much_to_take_can_be_paused(client: Client, queue: str) -> None:
    """Reading has stopped, and the answer has to be read nevertheless."""
    n = 60_000
    client.producer(queue).publish_batch([b"x" * 20] * n).result(20)
    consumer = client.consumer(queue, no_ack=True)
    link = client._core.link
    assert link is not None
    wait_for(lambda: consumer in link._stoppers, "reading has stopped", 20)
    consumer.pause()
    assert consumer not in link._stoppers
    left = client.queue(queue, passive=True).message_count
    found = 0
    while consumer.get(0.2) is not None:
        found += 1
    assert found + left == n
    consumer.close()


def test_nothing_is_left_of_a_closed_client(broker: Broker, queue: str) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        client = AsyncClient(broker.uri)
        await client.start()
        await client.producer(queue)
        await client.consumer(queue)
        await client.close()
        await asyncio.sleep(0.05)
        assert asyncio.all_tasks() == before

    run(main())


@pytest.mark.parametrize("scheme", ["amqp", "ws"])
def test_it_runs_on_uvloop_too(broker: Broker, scheme: str) -> None:
    port = broker.port if scheme == "amqp" else broker.http_port
    uvloop = pytest.importorskip("uvloop")
    name = f"uvloop-{uuid.uuid4().hex[:12]}"

    async def main() -> bytes:
        async with AsyncClient(f"{scheme}://guest:guest@{broker.host}:{port}/") as client:
            producer = await client.producer(name)
            assert await (await producer.publish(b"x" * 300_000)) == "confirmed"
            async with client.consumer(name) as consumer:
                message = await consumer.get(10)
                assert message is not None and message.ack()
            await client.delete_queue(name)
            return message.body

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == b"x" * 300_000
