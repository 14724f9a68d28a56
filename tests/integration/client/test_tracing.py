"""Spans of OpenTelemetry: of a publish, and of what is done with the message, linked to it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from lavinmq.client import AsyncClient, Client, Message
from lavinmq.client.tracing import consuming
from tests.integration.conftest import UniqueName
from tests.support.broker import Broker

WAIT_S = 10.0
EXPORTER = InMemorySpanExporter()


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """What was traced; the provider is the process's, and can be set once."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
        trace.set_tracer_provider(provider)
    EXPORTER.clear()
    yield EXPORTER


def by_kind(exporter: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.kind is kind]


def test_a_message_carries_the_trace_of_its_publisher(
    broker: Broker, unique: UniqueName, exporter: InMemorySpanExporter
) -> None:
    name = unique("traced")
    tracer = trace.get_tracer("test")
    with Client(broker.uri, tracing=True) as client:
        producer = client.producer(name)
        with tracer.start_as_current_span("order") as order:
            receipt = producer.publish(b"x", headers={"k": 1}, message_id="m1")
        receipt.result(WAIT_S)
        message = client.get(name)
        assert message is not None
        with consuming(message, name):
            message.ack()
        client.delete_queue(name)

    (sent,) = by_kind(exporter, SpanKind.PRODUCER)
    (processed,) = by_kind(exporter, SpanKind.CONSUMER)
    assert sent.parent is not None and sent.parent.span_id == order.get_span_context().span_id
    assert message.headers["k"] == 1
    assert (
        f"{sent.context.trace_id:032x}-{sent.context.span_id:016x}"
        in (message.headers["traceparent"])
    )
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
    assert sent.name == f"{name} send"
    assert dict(sent.attributes or {}) == {
        "messaging.system": "lavinmq",
        "messaging.operation.type": "send",
        "messaging.destination.name": name,
        "messaging.rabbitmq.destination.routing_key": name,
        "messaging.message.id": "m1",
    }
    assert (processed.attributes or {})["messaging.operation.type"] == "process"


def test_a_handler_and_an_iteration_are_spans_too(
    broker: Broker, unique: UniqueName, exporter: InMemorySpanExporter
) -> None:
    name = unique("traced")
    with Client(broker.uri, tracing=True) as client:
        producer = client.producer(name)
        for _ in range(2):
            producer.publish(b"x").result(WAIT_S)
        with client.consumer(name) as consumer:
            for message in consumer:
                with message.process():
                    break
        with client.consumer(name) as consumer:
            seen: list[bool] = []
            told = threading.Event()

            def handle(_: Message) -> None:
                seen.append(trace.get_current_span().is_recording())
                told.set()

            consumer.subscribe(handle)
            assert told.wait(WAIT_S)
        client.delete_queue(name)

    assert seen == [True]
    processed = by_kind(exporter, SpanKind.CONSUMER)
    sent = {span.context.span_id for span in by_kind(exporter, SpanKind.PRODUCER)}
    assert {link.context.span_id for span in processed for link in span.links} == sent


def test_with_asyncio_too_and_a_failure_is_seen_in_the_span(
    broker: Broker, unique: UniqueName, exporter: InMemorySpanExporter
) -> None:
    name = unique("traced")

    async def main() -> None:
        async with AsyncClient(broker.uri, tracing=True) as client:
            producer = await client.producer(name)
            for _ in range(2):
                await (await producer.publish(b"x"))
            async with client.consumer(name) as consumer:
                async for message in consumer:
                    assert trace.get_current_span().is_recording()
                    message.ack()
                    break
            failed = asyncio.Event()

            async def fail(_: Message) -> None:
                await asyncio.sleep(0)
                failed.set()
                raise LookupError("not there")

            async with client.consumer(name) as consumer:
                await consumer.subscribe(fail)
                await asyncio.wait_for(failed.wait(), WAIT_S)
            await client.delete_queue(name)

    asyncio.run(main())

    processed = by_kind(exporter, SpanKind.CONSUMER)
    sent = {span.context.span_id for span in by_kind(exporter, SpanKind.PRODUCER)}
    assert {link.context.span_id for span in processed for link in span.links} == sent
    assert [span.status.is_ok for span in processed] == [True, False]


def test_without_tracing_nothing_is_loaded_or_added(broker: Broker, unique: UniqueName) -> None:
    name = unique("plain")
    program = f"""
import sys
from lavinmq.client import AsyncClient, Client, Message
with Client({broker.uri!r}) as client:
    client.producer({name!r}).publish(b"x").result(10)
    print(client.get({name!r}).headers, "opentelemetry" in sys.modules)
    client.delete_queue({name!r})
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "{} False\n", done.stderr
