"""The client beside pika, aio-pika, amqpstorm and kombu: messages per second, in one harness.

Each library publishes without confirms, publishes with confirms, and consumes with an ack for each
message, 16 bytes and 1 KiB, in a process of its own. Two figures for publishing: *accepted* is when
the last call returned; *confirmed* when the broker has confirmed the last message, and without
confirms *there*, when the broker has it. Ours has further rows: `client_rows.py`. A library that is
not installed is left out, and said. The brokers are this repository's and, if asked for, RabbitMQ,
each in a process of its own on one core, unless `--url` names another.

Usage: python perf/client_bench.py [--messages N] [--only NAME] [--brokers ours rabbitmq]
       [--url URL] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Started as a script, `perf` itself is on the path; the package is found one level up.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perf import brokers
from perf.brokers import Contender, RunningBroker
from perf.client_rows import (
    IN_FLIGHT,
    QUEUE,
    ROWS,
    Figures,
    Scenario,
    filled,
    wait_until_there,
)
from perf.measure import BenchError, machine_facts


def published(n: int, accepted_s: float, spent_s: float, confirms: bool) -> Figures:
    """Both figures of a publisher; the second has a name that says what it knows."""
    name = "confirmed" if confirms else "there"
    return {"accepted": n / accepted_s, name: n / spent_s}


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
    return published(n, accepted, time.perf_counter() - start, confirms)


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
        return published(n, accepted, time.perf_counter() - start, confirms)

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
    return published(n, accepted, spent, confirms)


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
        return published(n, accepted, time.perf_counter() - start, confirms)


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
    *(
        (f"lavinmq.client {name}", "lavinmq", row, part, is_full)
        for name, row, part, is_full in ROWS
    ),
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
def running_broker(contender: Contender) -> Iterator[str]:
    """A broker in a process of its own; yields its URL. Raises: BenchError."""
    if contender.launch is None:
        raise BenchError(f"{contender.label} is not installed")
    with tempfile.TemporaryDirectory() as root:
        core = min(os.sched_getaffinity(0))
        log = Path(root) / "broker.out"
        with RunningBroker(contender.launch(Path(root), 0), core, log) as broker:
            print(f"{contender.name}: {broker.version}", flush=True)
            yield f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"


def measure(scenario: Scenario, url: str, n: int, body: bytes) -> Figures:
    """Run a scenario in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(scenario, (url, n, body))


def rows(broker: str, url: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure all that was asked for with one broker."""
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
            shown = "  ".join(f"{key} {value:>11,.1f}" for key, value in figures.items())
            print(f"{broker:>8} {size:>5} B  {name:<46} {shown}", flush=True)
            yield {"broker": broker, "name": name, "size": size, "messages": n, **figures}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--messages", type=int, default=1_000_000)
    add("--only", default="", help="rows whose name has this in it")
    add("--brokers", nargs="*", choices=("ours", "rabbitmq"), default=["ours"])
    add("--url", default="", help="a broker that runs, in place of those")
    add("--json", default="")
    add("--sizes", type=int, nargs="*", default=[16, 1024])
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    contenders = {
        "ours": brokers.ours("ours", "lavinmq", brokers.DEFAULT_COMMAND),
        "rabbitmq": brokers.rabbitmq(),
    }
    if options.url:
        found += rows("given", options.url, options)
    for name in () if options.url else options.brokers:
        with running_broker(contenders[name]) as url:
            found += rows(name, url, options)
    if options.json:
        result = {"machine": machine_facts(), "rows": found}
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
