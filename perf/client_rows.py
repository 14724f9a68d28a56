"""The rows of `lavinmq.client` for `client_bench.py`: rates, latencies, memory, and losses seen.

Each is a function of a URL, a number of messages and a body, run in a process of its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from lavinmq.client import AsyncClient, Client, ConnectionState

QUEUE = "client-bench"
IN_FLIGHT = 1000
ROUNDS = 10
WAIT_S = 30.0
Figures = dict[str, float]
Scenario = Callable[[str, int, bytes], Figures]


def wait_until_there(url: str, n: int) -> None:
    """Wait until the queue has so many ready messages."""
    with Client(url) as client:
        while client.queue(QUEUE, passive=True).message_count < n:
            time.sleep(0.002)


def filled(url: str, n: int, body: bytes) -> None:
    """Put messages into an empty queue."""
    with Client(url) as client:
        client.queue(QUEUE)
        client.purge(QUEUE)
        if n:
            client.producer(QUEUE).publish_batch([body] * n).result(600)


def ours_publish(url: str, n: int, body: bytes) -> Figures:
    with Client(url) as client:
        producer = client.producer(QUEUE, "fire_and_forget")
        publish = producer.publish
        start = time.perf_counter()
        for _ in range(n):
            publish(body)
        accepted = time.perf_counter() - start
        wait_until_there(url, n)
        return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}


def ours_batch(url: str, n: int, body: bytes) -> Figures:
    with Client(url) as client:
        producer = client.producer(QUEUE, "fire_and_forget", buffer_size=100_000)
        bodies = [body] * 10_000
        start = time.perf_counter()
        for _ in range(n // len(bodies)):
            producer.publish_batch(bodies)
        accepted = time.perf_counter() - start
        wait_until_there(url, n // len(bodies) * len(bodies))
        return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}


def ours_confirmed(url: str, n: int, body: bytes) -> Figures:
    with Client(url, max_in_flight=IN_FLIGHT) as client:
        producer = client.producer(QUEUE)
        publish = producer.publish
        start = time.perf_counter()
        for _ in range(n):
            publish(body)
        accepted = time.perf_counter() - start
        producer.flush(600)
        return {"accepted": n / accepted, "confirmed": n / (time.perf_counter() - start)}


def ours_consume(url: str, n: int, body: bytes) -> Figures:
    with Client(url) as client, client.consumer(QUEUE, prefetch=IN_FLIGHT) as consumer:
        left, start = n, time.perf_counter()
        for message in consumer:
            message.ack()
            left -= 1
            if not left:
                break
        return {"consumed": n / (time.perf_counter() - start)}


def ours_batches(url: str, n: int, body: bytes) -> Figures:
    with Client(url) as client, client.consumer(QUEUE, prefetch=10 * IN_FLIGHT) as consumer:
        left, start = n, time.perf_counter()
        for batch in consumer.batches():
            left -= batch.ack()
            if left <= 0:
                break
        return {"consumed": n / (time.perf_counter() - start)}


def ours_async_confirmed(url: str, n: int, body: bytes) -> Figures:
    async def main() -> Figures:
        async with AsyncClient(url, max_in_flight=IN_FLIGHT) as client:
            producer = await client.producer(QUEUE)
            start = time.perf_counter()
            for _ in range(n):
                await producer.publish(body)
            accepted = time.perf_counter() - start
            await producer.flush(600)
            return {"accepted": n / accepted, "confirmed": n / (time.perf_counter() - start)}

    return asyncio.run(main())


def percentiles(samples: list[float], scale: float, unit: str) -> Figures:
    """The median, the 99th percentile and the longest of samples in seconds."""
    samples.sort()
    places = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {f"{name} {unit}": samples[int(part * (len(samples) - 1))] * scale
             for name, part in places.items()}  # fmt: skip
    return {**found, f"longest {unit}": samples[-1] * scale}


def ours_call(url: str, n: int, body: bytes) -> Figures:
    """One call of `publish`, while the connection takes what is published."""
    with Client(url, buffer_size=1 << 20) as client:
        producer = client.producer(QUEUE, "fire_and_forget")
        publish, clock, samples = producer.publish, time.perf_counter, []
        for _ in range(n):
            begin = clock()
            publish(body)
            samples.append(clock() - begin)
        return percentiles(samples, 1e6, "µs")


def ours_latency(url: str, n: int, body: bytes) -> Figures:
    """From `publish` to the confirm, one message at a time."""
    with Client(url) as client:
        producer = client.producer(QUEUE)
        clock, samples = time.perf_counter, []
        for _ in range(n):
            begin = clock()
            producer.publish(body).result(WAIT_S)
            samples.append(clock() - begin)
        return percentiles(samples, 1e6, "µs")


def anonymous_bytes() -> int:
    """Memory of this process that is no file's."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("Anonymous:"))


def ours_memory(url: str, n: int, body: bytes) -> Figures:
    """Bytes that a buffered message takes beside the bytes of its body, without a connection."""
    n = max(n, 50_000)  # below that, what was free before counts
    options: dict[str, Any] = {"buffer_size": n, "buffer_bytes": 1 << 40, "close_timeout": 0}
    with Client("amqp://127.0.0.1:1", fail_fast=False, **options) as client:
        producer = client.producer(QUEUE)
        publish = producer.publish
        publish(body)
        before = anonymous_bytes()
        for number in range(n - 1):
            publish(b"%0*d" % (len(body), number))  # an object of its own
        spent = anonymous_bytes() - before
        assert producer.buffer_size == n
        return {"bytes": spent / (n - 1) - len(body)}


def losses(url: str, is_missed: bool, **options: Any) -> Figures:
    """From the reset of a connection to the client's word of it."""
    from tests.support.fault_proxy import FaultProxy

    host, _, port = url.rpartition("@")[2].partition("/")[0].partition(":")
    samples: list[float] = []
    lost = threading.Event()

    def noted(old: ConnectionState, new: ConnectionState, cause: object) -> None:
        if new is ConnectionState.RECONNECTING:
            lost.set()

    with FaultProxy(host, int(port)) as proxy, Client(proxy.url, **options) as client:
        client.on_state_change(noted)
        for n in range(1, ROUNDS + 1):
            client.wait_connected(WAIT_S)
            if is_missed:
                client.run(deafen(client))
            lost.clear()
            begin = time.perf_counter()
            proxy.cut()
            assert lost.wait(WAIT_S), "the loss was not seen"
            samples.append(time.perf_counter() - begin)
            while client.metrics().reconnects < n:
                time.sleep(0.001)
        assert (client.metrics().poll_detected == ROUNDS) == is_missed
    return percentiles(samples, 1e3, "ms")


async def deafen(client: Client) -> None:
    """Let the event of a loss be missed."""
    link = client._core.link
    assert link is not None and link.transport is not None
    link.transport.pause_reading()


def ours_loss_by_event(url: str, n: int, body: bytes) -> Figures:
    return losses(url, False, health_interval=3600.0)


def ours_loss_by_poll(url: str, n: int, body: bytes) -> Figures:
    return losses(url, True)


# Name, scenario, what part of the messages it gets, and whether the queue is full before.
ROWS: list[tuple[str, Scenario, float, bool]] = [
    ("publish", ours_publish, 1, False),
    ("publish_batch", ours_batch, 2, False),
    ("publish, confirmed", ours_confirmed, 1, False),
    ("publish, confirmed, asyncio", ours_async_confirmed, 1, False),
    ("consume", ours_consume, 1, True),
    ("consume, batches", ours_batches, 2, True),
    ("one call of publish", ours_call, 0.2, False),
    ("one message to its confirm", ours_latency, 0.01, False),
    ("memory of a buffered message", ours_memory, 0.5, False),
    ("loss seen by event", ours_loss_by_event, 0, False),
    ("loss seen by poll", ours_loss_by_poll, 0, False),
]
