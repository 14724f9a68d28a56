"""Spans of OpenTelemetry, for clients made with `tracing=True`; needs opentelemetry-api.

A publish is a span of the kind PRODUCER, whose context goes into the headers of the message. What
is done with a message is one of the kind CONSUMER, linked to that: a handler, the body of a loop
over messages, and for those who take messages otherwise `consuming`.
Source: OpenTelemetry semantic conventions for messaging.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, closing, contextmanager
from typing import Any

from lavinmq.client._engine import Message
from lavinmq.client.errors import ConfigError


def _api() -> Any:
    try:
        import importlib

        return importlib.import_module("opentelemetry")
    except ImportError:
        raise ConfigError("option tracing needs the package opentelemetry-api") from None


def _parts() -> tuple[Any, Any]:
    import importlib

    _api()
    return (
        importlib.import_module("opentelemetry.trace"),
        importlib.import_module("opentelemetry.propagate"),
    )


def check() -> None:
    """Make sure that spans can be made. Raises: ConfigError."""
    _api()


def inject(producer: Any, options: dict[str, Any]) -> None:
    """Begin and end the span of a publish; its context goes into `options["headers"]`."""
    trace, propagate = _parts()
    exchange = options.get("exchange", producer.exchange)
    key = options.get("routing_key", producer.routing_key)
    attributes = {
        "messaging.system": "lavinmq",
        "messaging.operation.type": "send",
        "messaging.destination.name": exchange or key,
        "messaging.rabbitmq.destination.routing_key": key,
    }
    if options.get("message_id"):
        attributes["messaging.message.id"] = options["message_id"]
    tracer = trace.get_tracer("lavinmq.client")
    name = f"{exchange or key} send"
    with tracer.start_as_current_span(name, kind=trace.SpanKind.PRODUCER, attributes=attributes):
        headers = dict(options.get("headers") or {})
        propagate.inject(headers)
        if headers:
            options["headers"] = headers


@contextmanager
def consuming(message: Message, queue: str = "") -> Generator[Any, None, None]:
    """A span around what is done with a message, linked to the one that published it."""
    trace, propagate = _parts()
    carrier = {key: value for key, value in message.headers.items() if isinstance(value, str)}
    origin = trace.get_current_span(propagate.extract(carrier)).get_span_context()
    attributes = {
        "messaging.system": "lavinmq",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue or message.exchange or message.routing_key,
        "messaging.rabbitmq.destination.routing_key": message.routing_key,
    }
    if message.message_id:
        attributes["messaging.message.id"] = message.message_id
    tracer = trace.get_tracer("lavinmq.client")
    with tracer.start_as_current_span(
        f"{queue or message.routing_key} process",
        kind=trace.SpanKind.CONSUMER,
        attributes=attributes,
        links=[trace.Link(origin)] if origin.is_valid else [],
    ) as span:
        yield span


def handling(handler: Callable[[Message], Any], queue: str) -> Callable[[Message], Any]:
    """A handler in spans."""

    def handle(message: Message) -> Any:
        with consuming(message, queue):
            return handler(message)

    return handle


def handling_async(handler: Callable[[Message], Any], queue: str) -> Callable[[Message], Any]:
    """A handler, which may be a coroutine, in spans."""

    async def handle(message: Message) -> None:
        with consuming(message, queue):
            result = handler(message)
            if hasattr(result, "__await__"):
                await result

    return handle


def each(messages: Generator[Message, None, None], queue: str) -> Generator[Message, None, None]:
    """Messages, each in a span that lasts until the next one is asked for."""
    with closing(messages):
        for message in messages:
            with consuming(message, queue):
                yield message


async def each_async(
    messages: AsyncGenerator[Message, None], queue: str
) -> AsyncGenerator[Message, None]:
    """Messages, each in a span that lasts until the next one is asked for."""
    async with aclosing(messages):
        async for message in messages:
            with consuming(message, queue):
                yield message
