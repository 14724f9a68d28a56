"""The client beside pika, aio-pika, amqpstorm and kombu: messages per second, in one harness.

Each library publishes without confirms, publishes with confirms, and consumes with an ack for each
message, 16 bytes and 1 KiB, in a process of its own. Two figures for publishing: *accepted* is when
the last call returned, *there* is when the broker has the last message (with confirms: has
confirmed it). A library that is not installed is left out, and said. The broker is this
repository's, in a process of its own, unless `--url` names another.

Usage: python perf/client_bench.py [--messages N] [--only NAME] [--url URL] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

QUEUE = "client-bench"
IN_FLIGHT = 1000
Figures = dict[str, float]
Scenario = Callable[[str, int, bytes], Figures]


def wait_until_there(url: str, n: int) -> None:
    """Wait until the queue has so many ready messages."""
    from lavinmq.client import Client

    with Client(url) as client:
        while client.queue(QUEUE, passive=True).message_count < n:
            time.sleep(0.002)


def filled(url: str, n: int, body: bytes) -> None:
    """Put messages into an empty queue."""
    from lavinmq.client import Client

    with Client(url) as client:
        client.queue(QUEUE)
        client.purge(QUEUE)
        if n:
            client.producer(QUEUE).publish_batch([body] * n).result(600)


# ---- ours


def ours_publish(url: str, n: int, body: bytes) -> Figures:
    from lavinmq.client import Client

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
    from lavinmq.client import Client

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
    from lavinmq.client import Client

    with Client(url, max_in_flight=IN_FLIGHT) as client:
        producer = client.producer(QUEUE)
        publish = producer.publish
        start = time.perf_counter()
        for _ in range(n):
            publish(body)
        accepted = time.perf_counter() - start
        producer.flush(600)
        return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}


def ours_consume(url: str, n: int, body: bytes) -> Figures:
    from lavinmq.client import Client

    with Client(url) as client, client.consumer(QUEUE, prefetch=IN_FLIGHT) as consumer:
        left, start = n, time.perf_counter()
        for message in consumer:
            message.ack()
            left -= 1
            if not left:
                break
        return {"consumed": n / (time.perf_counter() - start)}


def ours_batches(url: str, n: int, body: bytes) -> Figures:
    from lavinmq.client import Client

    with Client(url) as client, client.consumer(QUEUE, prefetch=10 * IN_FLIGHT) as consumer:
        left, start = n, time.perf_counter()
        for batch in consumer.batches():
            left -= batch.ack()
            if left <= 0:
                break
        return {"consumed": n / (time.perf_counter() - start)}


def ours_async_confirmed(url: str, n: int, body: bytes) -> Figures:
    from lavinmq.client import AsyncClient

    async def main() -> Figures:
        async with AsyncClient(url, max_in_flight=IN_FLIGHT) as client:
            producer = await client.producer(QUEUE)
            start = time.perf_counter()
            for _ in range(n):
                await producer.publish(body)
            accepted = time.perf_counter() - start
            await producer.flush(600)
            return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}

    return asyncio.run(main())


# ---- pika


def pika_publish(url: str, n: int, body: bytes, confirms: bool = False) -> Figures:
    pika: Any = importlib.import_module("pika")

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    if confirms:
        channel.confirm_delivery()
    properties = pika.BasicProperties(delivery_mode=2)
    start = time.perf_counter()
    for _ in range(n):
        channel.basic_publish("", QUEUE, body, properties)
    accepted = time.perf_counter() - start
    connection.close()
    if not confirms:
        wait_until_there(url, n)
    return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}


def pika_confirmed(url: str, n: int, body: bytes) -> Figures:
    return pika_publish(url, n, body, confirms=True)


def pika_consume(url: str, n: int, body: bytes) -> Figures:
    pika: Any = importlib.import_module("pika")

    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=IN_FLIGHT)
    left, start = n, time.perf_counter()
    for method, _, _ in channel.consume(QUEUE):
        channel.basic_ack(method.delivery_tag)
        left -= 1
        if not left:
            break
    spent = time.perf_counter() - start
    connection.close()
    return {"consumed": n / spent}


# ---- aio-pika


def aio_pika_publish(url: str, n: int, body: bytes, confirms: bool = False) -> Figures:
    aio_pika: Any = importlib.import_module("aio_pika")

    async def main() -> Figures:
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel(publisher_confirms=confirms)
            exchange = channel.default_exchange
            message = aio_pika.Message(body, delivery_mode=2)
            start = time.perf_counter()
            done = 0
            while done < n:
                some = min(IN_FLIGHT if confirms else 100, n - done)
                await asyncio.gather(*(exchange.publish(message, QUEUE) for _ in range(some)))
                done += some
            accepted = time.perf_counter() - start
        if not confirms:
            await asyncio.to_thread(wait_until_there, url, n)
        return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}

    return asyncio.run(main())


def aio_pika_confirmed(url: str, n: int, body: bytes) -> Figures:
    return aio_pika_publish(url, n, body, confirms=True)


def aio_pika_consume(url: str, n: int, body: bytes) -> Figures:
    aio_pika: Any = importlib.import_module("aio_pika")

    async def main() -> Figures:
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(IN_FLIGHT)
            queue = await channel.declare_queue(QUEUE, durable=True)
            left, start = n, time.perf_counter()
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    left -= 1
                    if not left:
                        break
            return {"consumed": n / (time.perf_counter() - start)}

    return asyncio.run(main())


# ---- amqpstorm


def amqpstorm_publish(url: str, n: int, body: bytes, confirms: bool = False) -> Figures:
    amqpstorm: Any = importlib.import_module("amqpstorm")
    connection = amqpstorm.UriConnection(url)
    channel = connection.channel()
    if confirms:
        channel.confirm_deliveries()
    start = time.perf_counter()
    for _ in range(n):
        channel.basic.publish(body, QUEUE, properties={"delivery_mode": 2})
    accepted = time.perf_counter() - start
    if not confirms:
        wait_until_there(url, n)
    spent = time.perf_counter() - start
    connection.close()
    return {"accepted": n / accepted, "there": n / spent}


def amqpstorm_confirmed(url: str, n: int, body: bytes) -> Figures:
    return amqpstorm_publish(url, n, body, confirms=True)


# ---- kombu


def kombu_publish(url: str, n: int, body: bytes, confirms: bool = False) -> Figures:
    kombu: Any = importlib.import_module("kombu")

    options = {"confirm_publish": True} if confirms else {}
    with kombu.Connection(url.replace("/%2F", "//"), transport_options=options) as connection:
        producer = connection.Producer(serializer=None)
        start = time.perf_counter()
        for _ in range(n):
            producer.publish(
                body, routing_key=QUEUE, delivery_mode=2, content_type="application/data",
                content_encoding="binary",
            )  # fmt: skip
        accepted = time.perf_counter() - start
        if not confirms:
            wait_until_there(url, n)
        return {"accepted": n / accepted, "there": n / (time.perf_counter() - start)}


def kombu_confirmed(url: str, n: int, body: bytes) -> Figures:
    return kombu_publish(url, n, body, confirms=True)


def kombu_consume(url: str, n: int, body: bytes) -> Figures:
    kombu: Any = importlib.import_module("kombu")

    left = n

    def handle(_: Any, message: Any) -> None:
        nonlocal left
        message.ack()
        left -= 1

    with kombu.Connection(url.replace("/%2F", "//")) as connection:
        queue = kombu.Queue(QUEUE, durable=True, no_declare=True)
        accept = ["application/data"]
        with connection.Consumer(
            queue, callbacks=[handle], prefetch_count=IN_FLIGHT, accept=accept
        ):
            start = time.perf_counter()
            while left > 0:
                connection.drain_events(timeout=10)
            return {"consumed": n / (time.perf_counter() - start)}


# Name, package, scenario, what part of the messages it gets, and whether the queue is full before.
SCENARIOS: list[tuple[str, str, Scenario, float, bool]] = [
    ("lavinmq.client publish", "lavinmq", ours_publish, 1, False),
    ("lavinmq.client publish_batch", "lavinmq", ours_batch, 2, False),
    ("lavinmq.client publish, confirmed", "lavinmq", ours_confirmed, 1, False),
    ("lavinmq.client publish, confirmed, asyncio", "lavinmq", ours_async_confirmed, 1, False),
    ("lavinmq.client consume", "lavinmq", ours_consume, 1, True),
    ("lavinmq.client consume, batches", "lavinmq", ours_batches, 2, True),
    ("pika publish", "pika", pika_publish, 0.04, False),
    ("pika publish, confirmed one by one", "pika", pika_confirmed, 0.01, False),
    ("pika consume", "pika", pika_consume, 0.04, True),
    ("aio-pika publish", "aio_pika", aio_pika_publish, 0.04, False),
    ("aio-pika publish, confirmed, 1000 in flight", "aio_pika", aio_pika_confirmed, 0.04, False),
    ("aio-pika consume", "aio_pika", aio_pika_consume, 0.04, True),
    ("amqpstorm publish", "amqpstorm", amqpstorm_publish, 0.04, False),
    ("amqpstorm publish, confirmed one by one", "amqpstorm", amqpstorm_confirmed, 0.01, False),
    ("kombu publish", "kombu", kombu_publish, 0.04, False),
    ("kombu publish, confirmed one by one", "kombu", kombu_confirmed, 0.01, False),
    ("kombu consume", "kombu", kombu_consume, 0.04, True),
]


@contextmanager
def running_broker() -> Iterator[str]:
    """A broker in a process of its own; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "lavinmq", "-D", directory, "-p", str(port)]
        ports = ("http", "metrics-http", "https", "mqtt", "mqtts")
        options = [part for name in ports for part in (f"--{name}-port", "-1")]
        process = subprocess.Popen(
            [*command, *options, "--control-unix-path", ""],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            url = f"amqp://guest:guest@127.0.0.1:{port}/%2F"
            wait_for_port(port, process)
            yield url
        finally:
            process.terminate()
            process.wait(20)


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until somebody listens there. Raises: SystemExit when the broker has ended."""
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                raise SystemExit("the broker does not start") from None
            time.sleep(0.05)


def measure(scenario: Scenario, url: str, n: int, body: bytes) -> Figures:
    """Run a scenario in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(scenario, (url, n, body))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--url", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--sizes", type=int, nargs="*", default=[16, 1024])
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    with running_broker() as own:
        url = options.url or own
        for size in options.sizes:
            for name, package, scenario, part, is_full in SCENARIOS:
                if options.only not in name:
                    continue
                if importlib.util.find_spec(package) is None:
                    print(f"{name}: {package} is not installed", flush=True)
                    continue
                n = max(1000, int(options.messages * part * (1 if size <= 64 else 0.25)))
                n = n // 10_000 * 10_000 or n
                body = bytes(size)
                filled(url, n if is_full else 0, body)
                figures = measure(scenario, url, n, body)
                row = {"name": name, "size": size, "messages": n, **figures}
                found.append(row)
                shown = "  ".join(f"{key} {value:>11,.0f}/s" for key, value in figures.items())
                print(f"{size:>5} B  {name:<46} {shown}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
