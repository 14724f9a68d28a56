"""Publishes that are long to route: many keys, headers, patterns, queues, levels."""

from __future__ import annotations

import itertools
import struct

from pamqp import commands

from perf.hostile_cases.peer import (
    TIMEOUT_S,
    Broker,
    bind,
    bound_by_headers,
    client,
    publish,
    published,
    raw_publish,
    send_all,
    send_many,
    settle,
    texts,
)
from tests.support import raw_wire as wire
from tests.support.raw_wire import Properties, build


def cc_headers(broker: Broker) -> None:
    """A publish of 130 kB: 13 000 keys in CC, 32 490 headers, to a headers exchange."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("h", "headers")
        channel.declare_queue("q")
        channel.bind_queue("q", "h", "", arguments={"x-match": "any", "wanted": "x"})
        room = wire.FRAME_MAX - 200 - 13_000 * 5
        sent = raw_publish("h", "", b"\x00V" * (room // 2) + texts(b"CC", [b""] * 13_000))
        with broker.watched():
            connection.write(sent)
            settle(channel)


def cc_topic(broker: Broker) -> None:
    """A publish with 10 000 keys in CC to a topic exchange of 2 000 bindings."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("t", "topic")
        channel.declare_queue("q")
        send_all(connection, (bind("q", "t", f"#.{n}.#.b.*") for n in range(2000)))
        sent = raw_publish("t", "a.b", texts(b"CC", (b"a.b.%04x" % n for n in range(10_000))))
        settle(channel)
        with broker.watched():
            connection.write(sent)
            settle(channel)


def bcc_default(broker: Broker) -> None:
    """100 publishes with 13 000 keys in BCC, all of the same queue, to the default exchange."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        sent = raw_publish("", "q", texts(b"BCC", [b"q"] * 13_000))
        with broker.watched():
            send_many(connection, sent, 100)
            settle(channel)


def topic_hashes(broker: Broker) -> None:
    """4 096 topic bindings `#.{a,*}.#.{a,*}…`, and 256 KiB of publishes of keys of 120 words."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("t", "topic")
        channel.declare_queue("q")
        patterns = (".".join(f"#.{each}" for each in word) + ".b"
                    for word in itertools.product("a*", repeat=12))  # fmt: skip
        send_all(connection, (bind("q", "t", each) for each in patterns))
        settle(channel)
        sent = b"".join(published("t", "a." * 120 + f"c{n}") for n in range(850))
        with broker.watched():
            connection.write(sent)
            settle(channel)


def topic_long(broker: Broker) -> None:
    """50 topic bindings of 127 words, `#` and `*` in turn, and a key of 127 words, 1 000 times."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("t", "topic")
        channel.declare_queue("q")
        send_all(connection, (bind("q", "t", "#.*." * 60 + f"z{n}") for n in range(50)))
        settle(channel)
        sent = b"".join(published("t", "a." * 120 + f"b{n}") for n in range(1000))
        with broker.watched():
            connection.write(sent)
            settle(channel)


def fanout_2000(broker: Broker) -> None:
    """256 KiB of publishes to a fanout of 2 000 queues."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("f", "fanout")
        for number in range(2000):
            channel.declare_queue(f"q{number}")
            channel.bind_queue(f"q{number}", "f")
        one = published("f", "")
        with broker.watched():
            send_many(connection, one, 256 * 1024 // len(one))
            settle(channel)


def fanout_2000_durable(broker: Broker) -> None:
    """Ten confirmed publishes to a fanout of 2 000 durable queues: 2 000 files to make and sync."""
    with client(broker) as (_, channel):
        channel.declare_exchange("f", "fanout")
        for number in range(2000):
            channel.declare_queue(f"q{number}", durable=True)
            channel.bind_queue(f"q{number}", "f")
        channel.confirm_select()
        with broker.watched():
            for _ in range(10):
                channel.publish("f", "", b"x")
                channel.confirm(TIMEOUT_S)


def exchanges_chain(broker: Broker) -> None:
    """A publish through 12 layers of 12 exchanges, each bound to all of the next layer."""
    with client(broker) as (connection, channel):
        channel.declare_queue("q")
        for layer in range(12):
            for each in range(12):
                channel.declare_exchange(f"e{layer}.{each}", "fanout")
        binds = (
            wire.encode_method(1, build(commands.Exchange.Bind, source=f"e{layer}.{one}",
                                        destination=f"e{layer + 1}.{other}", nowait=True))
            for layer in range(11) for one in range(12) for other in range(12)
        )  # fmt: skip
        send_all(connection, binds)
        channel.bind_queue("q", "e11.0")
        with broker.watched():
            publish(connection, "e0.0", "", 1000)
            settle(channel)


def headers_match(broker: Broker) -> None:
    """1 000 publishes to a headers exchange with 50 000 bindings of one pair."""
    with client(broker) as (connection, channel):
        bound_by_headers(channel, connection)
        each = ({"n": f"none{n}"} for n in range(1000))
        sent = b"".join(published("h", "", Properties(headers={**headers})) for headers in each)
        with broker.watched():
            connection.write(sent)
            settle(channel)


def headers_long(broker: Broker) -> None:
    """20 publishes of 30 000 headers to a headers exchange with 2 000 bindings of 10 arguments."""
    with client(broker) as (connection, channel):
        channel.declare_exchange("h", "headers")
        channel.declare_queue("q")
        wanted = {f"k{n}": "x" for n in range(9)}
        send_all(connection, (bind("q", "h", "", n=n, **wanted) for n in range(2000)))
        settle(channel)
        sent = [raw_publish("h", "", b"\x01kV" * 30_000 + b"\x04%04xV" % n) for n in range(20)]
        with broker.watched():
            connection.write(b"".join(sent))
            settle(channel)


def hash_weight(broker: Broker) -> None:
    """A binding of weight 262 144 to a consistent hash exchange, made and undone."""
    with client(broker) as (_connection, channel):
        channel.declare_exchange("c", "x-consistent-hash")
        channel.declare_queue("q")
        with broker.watched():
            channel.bind_queue("q", "c", "262144")
            channel.delete_queue("q")


def nested_headers(broker: Broker) -> None:
    """50 publishes with tables in tables, 16 000 deep, to a headers exchange."""
    table = b""
    for _ in range(16_000):
        table = b"\x01aF" + struct.pack(">I", len(table)) + table
    with client(broker) as (connection, channel):
        channel.declare_exchange("h", "headers")
        channel.declare_queue("q")
        channel.bind_queue("q", "h", "", arguments={"a": "x"})
        sent = raw_publish("h", "", table)
        with broker.watched():
            send_many(connection, sent, 50)
            settle(channel)


def nested_arguments(broker: Broker) -> None:
    """A declaration whose arguments are 60 kB of arrays in arrays."""
    table = b""
    for _ in range(12_000):
        table = b"A" + struct.pack(">I", len(table)) + table
    table = b"\x01a" + table
    payload = struct.pack(">HHH", 50, 10, 0) + b"\x01q\x00" + struct.pack(">I", len(table)) + table
    frame = struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"
    with client(broker) as (connection, channel), broker.watched():
        connection.write(frame)
        settle(channel)


def many_arguments(broker: Broker) -> None:
    """20 declarations with 20 000 arguments each, all the same."""
    table = b"".join(b"\x04%04xV" % n for n in range(20_000))
    payload = b"\x01q\x10" + struct.pack(">I", len(table)) + table
    payload = struct.pack(">HHH", 50, 10, 0) + payload
    frame = struct.pack(">BHI", 1, 1, len(payload)) + payload + b"\xce"
    with client(broker) as (connection, channel), broker.watched():
        send_many(connection, frame, 20)
        settle(channel)


CASES = (
    cc_headers,
    cc_topic,
    bcc_default,
    topic_hashes,
    topic_long,
    fanout_2000,
    fanout_2000_durable,
    exchanges_chain,
    headers_match,
    headers_long,
    hash_weight,
    nested_headers,
    nested_arguments,
    many_arguments,
)
