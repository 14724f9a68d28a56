"""Consumers of streams with filters that are long to try."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from perf.hostile_cases.peer import (
    FROM_FIRST,
    Broker,
    client,
    raw_publish,
    send_many,
    settle,
)
from tests.support.raw_connection import Channel
from tests.support.raw_wire import Properties


def _stream(broker: Broker, channel: Channel, count: int, properties: Properties) -> None:
    channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
    broker.fill("s", count, properties)


def stream_filters(broker: Broker) -> None:
    """A stream consumer with 4 000 filter conditions, on messages with long lists of values."""
    with client(broker) as (_connection, channel):
        values = ",".join(f"value-{n}" for n in range(500))
        _stream(broker, channel, 2000, Properties(headers={"x-stream-filter-value": values}))
        channel.qos(100)
        wanted = [f"other-value-{n}" for n in range(4000)]
        asked = {"x-stream-filter": wanted, **FROM_FIRST}
        with broker.watched():
            channel.consume("s", "greedy", arguments=asked)
            time.sleep(3)


def stream_filters_allowed(broker: Broker) -> None:
    """The same with 256 conditions, which no bound refuses, on 10 000 messages."""
    with client(broker) as (_connection, channel):
        values = ",".join(f"value-{n}" for n in range(500))
        _stream(broker, channel, 10_000, Properties(headers={"x-stream-filter-value": values}))
        channel.qos(100)
        asked = {"x-stream-filter": [f"other-{n}" for n in range(256)], **FROM_FIRST}
        with broker.watched():
            channel.consume("s", "greedy", arguments=asked)
            time.sleep(3)


def stream_filter_headers(broker: Broker) -> None:
    """A stream consumer with 4 000 conditions on headers, on messages with 1 000 headers."""
    with client(broker) as (_connection, channel):
        _stream(broker, channel, 1000, Properties(headers={f"h{n}": "x" for n in range(1000)}))
        channel.qos(100)
        wanted = [{f"other{n}": "x"} for n in range(4000)]
        asked = {"x-stream-filter": wanted, **FROM_FIRST}
        with broker.watched():
            channel.consume("s", "greedy", arguments=asked)
            time.sleep(3)


def stream_filter_headers_allowed(broker: Broker) -> None:
    """The same with 256 conditions, which no bound refuses, on 500 messages with 16 384 headers."""
    with client(broker) as (connection, channel):
        _stream(broker, channel, 0, Properties())
        table = b"".join(b"\x05h%04xV" % n for n in range(0, 0x10000, 4))
        send_many(connection, raw_publish("", "s", table), 500)
        settle(channel)
        channel.qos(100)
        wanted = [{f"other{n}": "x"} for n in range(256)]
        asked = {"x-stream-filter": wanted, **FROM_FIRST}
        with broker.watched():
            channel.consume("s", "greedy", arguments=asked)
            time.sleep(3)


def stream_polygon(broker: Broker) -> None:
    """A stream consumer with a polygon of 4 000 points, on 20 000 messages."""
    with client(broker) as (_connection, channel):
        _stream(broker, channel, 20_000, Properties(headers={"x-geo-lat": 80, "x-geo-lon": 100}))
        channel.qos(100)
        points = [[n % 50, n % 79] for n in range(4000)]
        asked = {"x-stream-filter": {"geo-polygon": {"points": points}}, "x-stream-offset": "first"}
        with broker.watched():
            channel.consume("s", "greedy", arguments=asked)
            time.sleep(2)


def stream_polygon_allowed(broker: Broker) -> None:
    """The same with 256 points, which no bound refuses, on 300 000 messages."""
    with client(broker) as (_connection, channel):
        _stream(broker, channel, 300_000, Properties(headers={"x-geo-lat": 80, "x-geo-lon": 100}))
        channel.qos(100)
        points = [[n % 50, n % 79] for n in range(256)]
        asked = {"x-stream-filter": {"geo-polygon": {"points": points}}, "x-stream-offset": "first"}
        with broker.watched():
            channel.consume("s", "greedy", arguments=asked)
            time.sleep(3)


def stream_nothing_matches(broker: Broker) -> None:
    """20 stream consumers whose filter matches none of 300 000 messages."""
    with client(broker) as (_connection, channel):
        _stream(broker, channel, 300_000, Properties(headers={"x-stream-filter-value": "a"}))
        channel.qos(100)
        asked = {"x-stream-filter": "b", "x-stream-offset": "first"}
        with broker.watched():
            for number in range(20):
                channel.consume("s", f"greedy{number}", arguments=asked)
            time.sleep(2)


def stream_timestamps(broker: Broker) -> None:
    """1 000 consumers, one after the other, from a time in a stream of 20 segments."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        broker.fill("s", 400_000, body=bytes(400))
        channel.qos(1)
        at = datetime.now(UTC)
        with broker.watched():
            for n in range(1000):
                channel.consume("s", f"c{n}", arguments={"x-stream-offset": at})
                channel.cancel(f"c{n}")


def stream_offsets(broker: Broker) -> None:
    """1 000 consumers from offsets at the end of 400 000 messages, whose filter matches none."""
    with client(broker) as (_connection, channel):
        channel.declare_queue("s", durable=True, arguments={"x-queue-type": "stream"})
        broker.fill("s", 400_000, body=bytes(400))
        channel.qos(1)
        with broker.watched():
            for n in range(1000):
                asked = {"x-stream-offset": 399_000 - 300 * n, "x-stream-filter": "b"}
                channel.consume("s", f"c{n}", arguments=asked)
            time.sleep(2)


CASES = (
    stream_timestamps,
    stream_offsets,
    stream_filters,
    stream_filters_allowed,
    stream_filter_headers,
    stream_filter_headers_allowed,
    stream_polygon,
    stream_polygon_allowed,
    stream_nothing_matches,
)
